// The epilogue of float32 results of wgmma: bias, activation, residual, and stores from the accumulators to memory, each of whole
// sectors of 32 bytes of 8 rows.
#pragma once

#include "wgmma_epilogue.cuh"

template <class S, EpilogueKind F> struct StoreEpilogue : Epilogue<S, F> {
    using Base = Epilogue<S, F>;
    using Accumulators = typename Base::Accumulators;
    using Base::p, Base::warp, Base::lane;
    static constexpr bool LOOP = Base::LOOP;
    static constexpr int UNIT = Base::UNIT, ALL = Base::ALL;
    static_assert(S::M_STEPS == 1, "");

    __device__ __forceinline__ StoreEpilogue(const WgmmaParams& p, uint32_t shared) : Base(p, shared) {}

    // Of this thread's first accumulator, within the tile.
    __device__ __forceinline__ int32_t thread_row() const { return Base::row_of(0) + int32_t(lane / 4); }
    __device__ __forceinline__ int32_t thread_col() const { return int32_t(lane % 4) * 2; }

    // A warm_up reads and writes nothing.
    __device__ __forceinline__ void write(const Accumulators& d, const Item& item, bool warm_up) const {
        if constexpr (F == EpilogueKind::partial) {
            if (!warm_up) Base::store_partials(d, item);
        } else {
            const int32_t row = item.row + thread_row(), col = item.col + thread_col();
            float* out = static_cast<float*>(p.out) + row * p.out_row + col * p.out_col;
#pragma unroll
            for (int k = 0; k < 3; ++k) out += item.batch[k] * p.out_batch[k];
#pragma unroll(LOOP ? 1 : ALL)
            for (int at = 0; at < (LOOP && warm_up ? 1 : ALL); ++at) {
                float v[UNIT];
                Base::template take<0, ALL>(d, at, v);
                const int32_t columns = at * UNIT * 2;  // to the left of the unit
                if (F != EpilogueKind::none) {
                    if (p.bias != nullptr && !warm_up) add_bias(v, row, col + columns);
                    if constexpr (LOOP) {
                        activate<float>(v, p.activation, p.negative_slope);
                    } else {
                        if (p.activation == ACT_RELU) relu(v);
                        if (p.activation == ACT_LEAKY_RELU) leaky_relu_of_fraction(v, p.negative_slope);
                    }
                }
                if (LOOP && p.addends.any() && !warm_up) add_addends(v, item, row, col + columns);
                store(v, row, col + columns, warm_up ? 0 : int32_t(p.m), out + columns * p.out_col);
            }
        }
    }

private:
    __device__ __forceinline__ void add_bias(float (&v)[UNIT], int32_t row, int32_t col) const {
        const float* bias = static_cast<const float*>(p.bias);
        const int32_t m = int32_t(p.m), n = int32_t(p.n);
        if (p.bias_by_row) {
            const float low = bias[min(row, m - 1) * p.bias_stride], high = bias[min(row + 8, m - 1) * p.bias_stride];
#pragma unroll
            for (int i = 0; i < UNIT; ++i) v[i] += i / 2 % 2 ? high : low;
            return;
        }
#pragma unroll
        for (int i = 0; i < UNIT; i += 4) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const float one = bias[min(col + i * 2 + e, n - 1) * p.bias_stride];
                v[i + e] += one;
                v[i + 2 + e] += one;
            }
        }
    }

    // By pairs of columns, as `store` has them.
    __device__ __forceinline__ void add_addends(float (&v)[UNIT], const Item& item, int32_t row, int32_t col) const {
        int64_t offset = 0;
#pragma unroll
        for (int k = 0; k < 3; ++k) offset += item.batch[k] * p.residual_batch[k];
#pragma unroll
        for (int i = 0; i < UNIT; i += 2) {
            const int32_t at_row = row + i / 2 % 2 * 8, at_col = col + i / 4 * 8;
            const Run<float, float> run(p.addends, at_row, at_col, item.product, offset, false);
            add_run(reinterpret_cast<float (&)[2]>(v[i]), run, 1, at_row < int32_t(p.m) ? int32_t(p.n) - at_col : 0);
        }
    }

    // Of rows below `m`.
    __device__ __forceinline__ void store(const float (&v)[UNIT], int32_t row, int32_t col, int32_t m,
                                          float* out) const {
        if (LOOP && p.store_elements) {
            if (p.out_col == 1) {
                store_odd_pairs(v, row, col, m, out);
            } else {
                store_elements(v, row, col, m, out);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < UNIT; i += 2) {
            const int32_t at_row = row + i / 2 % 2 * 8, at_col = col + i / 4 * 8;
            float* to = out + i / 2 % 2 * 8 * p.out_row + i / 4 * 8;
            if (at_row < m && at_col + 1 < int32_t(p.n)) {
                *reinterpret_cast<float2*>(to) = make_float2(v[i], v[i + 1]);
            } else if (at_row < m && at_col < int32_t(p.n)) {
                to[0] = v[i];
            }
        }
    }

    __device__ __forceinline__ void store_elements(const float (&v)[UNIT], int32_t row, int32_t col, int32_t m,
                                                   float* out) const {
#pragma unroll
        for (int i = 0; i < UNIT; ++i) {
            if (row + i / 2 % 2 * 8 < m && col + i / 4 * 8 + i % 2 < int32_t(p.n)) {
                out[i / 2 % 2 * 8 * p.out_row + (i / 4 * 8 + i % 2) * p.out_col] = v[i];
            }
        }
    }

    // Pairs of neighbours at even addresses, which in some rows are an odd column and the one behind it, the next lane's.
    __device__ __forceinline__ void store_odd_pairs(const float (&v)[UNIT], int32_t row, int32_t col, int32_t m,
                                                    float* out) const {
        const int32_t n = int32_t(p.n);
        const bool first_lane = col % 8 == 0, last_lane = col % 8 == 6;  // of the four of a row
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            float* to = out + half * 8 * p.out_row;
            const bool inside = row + half * 8 < m, odd = reinterpret_cast<uint64_t>(to) % 8 != 0;
            if (inside && odd && first_lane && col < n) to[0] = v[2 * half];
#pragma unroll
            for (int group = 0; group < UNIT / 4; ++group) {
                constexpr int LAST = UNIT / 4 - 1;
                const float low = v[group * 4 + 2 * half], high = v[group * 4 + 2 * half + 1];
                // The first lane's is wanted by the last, for the group behind.
                const float behind = v[(group < LAST ? group + 1 : group) * 4 + 2 * half];
                const float next = __shfl_sync(~0u, first_lane ? behind : low, (col / 2 + 1) & 3, 4);
                const bool has_next = group < LAST || !last_lane;
                const int32_t at = group * 8 + odd, column = col + at;
                const int32_t count = min(n - column, odd && !has_next ? 1 : 2);
                if (inside && count == 2)
                    *reinterpret_cast<float2*>(to + at) = odd ? make_float2(high, next) : make_float2(low, high);
                if (inside && count == 1) to[at] = odd ? high : low;
            }
        }
    }
};
