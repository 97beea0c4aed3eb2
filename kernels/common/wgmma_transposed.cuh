// The epilogue of matmul_wgmma.cu for results whose neighbours in memory are those of a column of the tile: bias by row,
// relu, leaky_relu, one rounding, and stores of vectors of 8 rows.
#pragma once

#include "wgmma_epilogue.cuh"

template <class S> struct TransposedEpilogue : Epilogue<S, EpilogueKind::transpose> {
    using Base = Epilogue<S, EpilogueKind::transpose>;
    using Base::p, Base::lane, Base::staging;
    using typename Base::Accumulators, typename Base::T;
    static constexpr int UNIT = Base::UNIT, ALL = Base::ALL;
    static constexpr int UNITS_AT_ONCE = STORE_BYTES / 512;  // of 16 columns of 16 rows
    static_assert(S::M_STEPS == 1 && UNIT == 8, "");

    __device__ __forceinline__ TransposedEpilogue(const WgmmaParams& p, uint32_t shared) : Base(p, shared) {}

    // A warp's 16 rows of each column are two vectors. A warm_up writes nothing.
    __device__ __forceinline__ void write(Accumulators& d, const Item& item, bool warm_up) const {
        if (!warm_up) {
            if (p.bias != nullptr) Base::add_row_bias(d[0], Base::bias_first[0] | Base::bias_second[0] << 16);
            if (p.activation == ACT_RELU) relu(d[0]);
            if (p.activation == ACT_LEAKY_RELU) leaky_relu_of_fraction(d[0], p.negative_slope);
        }
        const int32_t row = item.row + Base::row_of(0) + int32_t(lane % 2) * 8;
        const int32_t columns = warm_up || row >= int32_t(p.m) ? 0 : min(int32_t(p.n) - item.col, S::BN);
        T* out = static_cast<T*>(p.out) + row + (item.col + int32_t(lane / 2)) * p.out_col;
#pragma unroll
        for (int k = 0; k < 3; ++k) out += item.batch[k] * p.out_batch[k];
#pragma unroll
        for (int first = 0; first < ALL; first += UNITS_AT_ONCE) {
            constexpr auto place = [](uint32_t column, uint32_t half) {
                return column * 32 + ((half ^ (column / 4 & 1)) << 4);  // no bank conflicts
            };
#pragma unroll
            for (int unit = first; unit < ALL && unit < first + UNITS_AT_ONCE; ++unit) {
                float v[UNIT];
                Base::template take<0, ALL>(d, unit, v);
                uint32_t words[4];
#pragma unroll
                for (int q = 0; q < 4; ++q) words[q] = pack<T>(v[q * 2], v[q * 2 + 1]);
                const uint32_t column = lane / 16 * 8 + lane % 8;
                ptx::stmatrix_x4_transposed(staging + (unit - first) * 512 + place(column, lane / 8 % 2), words);
            }
            __syncwarp();
#pragma unroll
            for (int unit = first; unit < ALL && unit < first + UNITS_AT_ONCE; ++unit) {
                uint32_t words[4];
                ptx::load_shared_16(staging + (unit - first) * 512 + place(lane / 2, lane % 2), words);
                if (unit * 16 + int32_t(lane / 2) < columns) ptx::store_global<16>(out + unit * 16 * p.out_col, words);
            }
            __syncwarp();
        }
    }
};
