// The epilogue of float32 results of wgmma: bias, activation, and stores from the accumulators to memory, each of whole
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

    __device__ __forceinline__ void write(const Accumulators& d, const Item& item) const {
        if constexpr (F == EpilogueKind::partial) {
            Base::store_partials(d, item);
        } else {
            const int32_t row = item.row + thread_row(), col = item.col + thread_col();
            float* out = static_cast<float*>(p.out) + row * p.out_row + col * p.out_col;
#pragma unroll
            for (int k = 0; k < 3; ++k) out += item.batch[k] * p.out_batch[k];
#pragma unroll(LOOP ? 1 : ALL)
            for (int at = 0; at < ALL; ++at) {
                float v[UNIT];
                Base::template take<0, ALL>(d, at, v);
                const int32_t columns = at * UNIT * 2;  // to the left of the unit
                if (F != EpilogueKind::none) {
                    if (p.bias != nullptr) add_bias(v, row, col + columns);
                    if constexpr (LOOP) {
                        activate<float>(v, p.activation, p.negative_slope);
                    } else {
                        if (p.activation == ACT_RELU) relu(v);
                        if (p.activation == ACT_LEAKY_RELU) leaky_relu_of_fraction(v, p.negative_slope);
                    }
                }
                store(v, row, col + columns, out + columns * p.out_col);
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

    __device__ __forceinline__ void store(const float (&v)[UNIT], int32_t row, int32_t col, float* out) const {
#pragma unroll
        for (int i = 0; i < UNIT; i += 2) {
            const int32_t at_row = row + i / 2 % 2 * 8, at_col = col + i / 4 * 8;
            float* to = out + i / 2 % 2 * 8 * p.out_row + i / 4 * 8 * p.out_col;
            if (at_row >= int32_t(p.m) || at_col >= int32_t(p.n)) continue;
            if (!(LOOP && p.store_elements) && at_col + 1 < int32_t(p.n)) {
                *reinterpret_cast<float2*>(to) = make_float2(v[i], v[i + 1]);
                continue;
            }
            to[0] = v[i];
            if (at_col + 1 < int32_t(p.n)) to[p.out_col] = v[i + 1];
        }
    }
};
