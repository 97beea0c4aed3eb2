// From accumulators to the result in matmul_wgmma.cu: bias, activation, one rounding, and out. Every warp works alone
// on its 16 rows, so nothing here waits for another warp of the block.
#pragma once

#include "wgmma_shape.cuh"

template <class T> __device__ __forceinline__ uint32_t pack(float low, float high) {
    return same_type<T, f16> ? ptx::pack_f16(low, high) : ptx::pack_bf16(low, high);
}
template <class T> __device__ __forceinline__ float2 unpack(uint32_t word) {
    Pack<T, 2> pair;
    __builtin_memcpy(&pair, &word, sizeof(pair));
    return make_float2(number(pair.v[0]), number(pair.v[1]));
}

template <class S> struct Epilogue {
    using T = typename S::T;
    static constexpr int BIASES = S::PANELS > S::M_STEPS ? S::PANELS : S::M_STEPS;

    const WgmmaParams& p;
    const uint32_t warp, lane;
    const uint32_t staging_begin, staging;  // shared addresses of all buffers, and of this warp's
    uint32_t bias_first[BIASES], bias_second[BIASES];

    __device__ __forceinline__ Epilogue(const WgmmaParams& p, uint32_t shared)
        : p(p),
          warp(__shfl_sync(~0u, threadIdx.x / 32, 0)),
          lane(threadIdx.x % 32),
          staging_begin(shared + HEADER_BYTES),
          staging(staging_begin + warp * STORE_BYTES) {}

    // First of this warp's 16 rows in step i, within the tile.
    __device__ __forceinline__ int32_t row_of(int i) const {
        return ((warp / 4) * S::M_STEPS + i) * 64 + warp % 4 * 16;
    }

    // Asks for the tile's bias, which arrives while the tile is multiplied: nothing here may look at what is loaded, nor
    // branch, or each load is waited for, before the first product. Two values for each register of a panel: by columns,
    // lane l asks for 2 l and 2 l + 1 of each panel, and hands them out when they are added; by rows, for the two rows of
    // a step that the lane has accumulators of.
    __device__ __forceinline__ void load_bias(const Item& item, bool rehearsal) {
        const bool by_row = p.bias_by_row;
        const uint32_t size = p.bias == nullptr || rehearsal ? 0 : by_row ? p.m : p.n;
#pragma unroll
        for (int i = 0; i < BIASES; ++i) {
            const int32_t row = item.row + row_of(i < S::M_STEPS ? i : 0) + int32_t(lane / 4);
            const int32_t col = item.col + (i < S::PANELS ? i : 0) * 64 + int32_t(lane) * 2;
            const uint32_t first = by_row ? row : col, second = by_row ? row + 8 : col + 1;
            const T* bias = static_cast<const T*>(p.bias);
            bias_first[i] = bias_second[i] = 0;
            ptx::load_global_if<2>(first < size, bias + first * p.bias_stride, &bias_first[i]);
            ptx::load_global_if<2>(second < size, bias + second * p.bias_stride, &bias_second[i]);
        }
    }

    __device__ __forceinline__ void add_bias(float (&v)[S::ACCUMULATORS], int i) const {
        if (p.bias == nullptr) return;
        if (p.bias_by_row) {
            const float2 rows = unpack<T>(bias_first[i] | bias_second[i] << 16);
#pragma unroll
            for (int at = 0; at < S::ACCUMULATORS; ++at) v[at] += at / 2 % 2 ? rows.y : rows.x;
            return;
        }
#pragma unroll
        for (int panel = 0; panel < S::PANELS; ++panel) {
            const uint32_t pair = bias_first[panel] | bias_second[panel] << 16;
#pragma unroll
            for (int group = panel * 8; group < min(panel * 8 + 8, S::ACCUMULATORS / 4); ++group) {  // of 8 columns
                const float2 columns = unpack<T>(__shfl_sync(~0u, pair, group % 8 * 4 + lane % 4));
                v[group * 4] += columns.x;
                v[group * 4 + 1] += columns.y;
                v[group * 4 + 2] += columns.x;
                v[group * 4 + 3] += columns.y;
            }
        }
    }

    __device__ __forceinline__ void finish(float (&d)[S::ACCUMULATORS], int i) const {
        add_bias(d, i);
        activate<T>(d, p.activation, p.negative_slope);
    }

    // All of the tile at once: put together in shared memory by each warpgroup for its 64 rows, from where the copy engine
    // takes it while the next tile is multiplied.
    __device__ __forceinline__ void send(float (&d)[S::ACCUMULATORS], const Item& item, bool rehearsal) {
        const uint32_t own = warp / 4, panels = staging_begin + own * S::PANELS * PANEL_BYTES;
        const bool leader = warp % 4 == 0 && ptx::elect();
        if (!rehearsal) finish(d, 0);
        if (leader) ptx::tma_store_wait_read();
        ptx::barrier_sync(RESULT_STAGED + own, 128);
#pragma unroll
        for (int j = 0; j < S::PANELS; ++j) {
            stage_panel(reinterpret_cast<float (&)[32]>(d[j * 32]), panels + j * PANEL_BYTES + warp % 4 * STORE_BYTES);
        }
        ptx::fence_async_proxy();
        ptx::barrier_sync(RESULT_STAGED + own, 128);
        const int32_t row = item.row + int32_t(own) * 64;
        if (!leader || rehearsal || row >= int32_t(p.m)) return;
#pragma unroll
        for (int j = 0; j < S::PANELS; ++j) {
            const int32_t column = item.col + j * 64;
            if (column >= int32_t(p.n)) break;
            if (p.batched) {
                ptx::tma_store_5d(p.result, panels + j * PANEL_BYTES, column, row, item.batch);
            } else {
                ptx::tma_store_2d(p.result, panels + j * PANEL_BYTES, column, row);
            }
        }
        ptx::tma_store_commit();
    }
    // At the end, by all.
    __device__ __forceinline__ void sent() const {
        if (warp % 4 == 0 && ptx::elect()) ptx::tma_store_wait_read();
    }

    // The 16 rows of step i, 64 columns at a time by way of shared memory, from where 8 lanes write 128 bytes of a row.
    __device__ __forceinline__ void store(float (&d)[S::ACCUMULATORS], int i, const Item& item, bool rehearsal) {
        if (!rehearsal) finish(d, i);
        const int32_t row = item.row + row_of(i), rows = rehearsal ? 0 : int32_t(p.m) - row;
        T* out = static_cast<T*>(p.out) + row * p.out_row + item.col * p.out_col;
#pragma unroll
        for (int k = 0; k < 3; ++k) out += item.batch[k] * p.out_batch[k];
#pragma unroll
        for (int j = 0; j < S::PANELS; ++j) {
            constexpr int WHOLE = 32;  // accumulators of a panel
            const int32_t width = int32_t(p.n) - (item.col + j * 64);
            if (j == S::PANELS - 1 && S::TAIL < 64) {
                store_panel(reinterpret_cast<float (&)[S::TAIL / 2]>(d[j * WHOLE]), out + j * 64 * p.out_col, rows,
                            width);
            } else {
                store_panel(reinterpret_cast<float (&)[WHOLE]>(d[j * WHOLE]), out + j * 64 * p.out_col, rows, width);
            }
        }
    }

    // As rows of 128 bytes, 16-byte chunks permuted by an XOR with the row, as the copy engine has it, and so that neither
    // stmatrix nor the reads meet a bank twice.
    template <int N> __device__ __forceinline__ void stage_panel(float (&v)[N], uint32_t to) const {
#pragma unroll
        for (int unit = 0; unit < N / 8; ++unit) {  // of 16 columns
            uint32_t words[4];
#pragma unroll
            for (int q = 0; q < 4; ++q) words[q] = pack<T>(v[unit * 8 + q * 2], v[unit * 8 + q * 2 + 1]);
            const uint32_t row = lane % 16, chunk = unit * 2 + lane / 16;
            ptx::stmatrix_x4(to + row * 128 + ((chunk ^ row % 8) << 4), words);
        }
    }

    template <int N> __device__ __forceinline__ void store_panel(float (&v)[N], T* out, int32_t rows,
                                                                 int32_t width) const {
        stage_panel(v, staging);
        __syncwarp();
        // A chunk that ends outside the result is written by elements.
        if (p.store_elements || (width < 2 * N && width % 8 != 0)) {
            copy_elements<2 * N>(out, rows, width);
        } else {
#pragma unroll
            for (int pass = 0; pass < 4; ++pass) {
                const int32_t row = pass * 4 + lane / 8, chunk = lane % 8;
                uint32_t words[4];
                ptx::load_shared_16(staging + row * 128 + ((chunk ^ row % 8) << 4), words);
                if (row < rows && chunk * 8 < min(width, 2 * N)) {
                    ptx::store_global<16>(out + row * p.out_row + chunk * 8, words);
                }
            }
        }
        __syncwarp();
    }

    // For rows that are no whole, aligned chunks: a warp's neighbouring lanes write neighbouring columns.
    template <int COLUMNS> __device__ __forceinline__ void copy_elements(T* out, int32_t rows, int32_t width) const {
#pragma unroll 1
        for (int row = 0; row < min(rows, 16); ++row, out += p.out_row) {
#pragma unroll
            for (int c = lane; c < 64; c += 32) {
                const uint16_t bits =
                    ptx::load_shared_half(staging + row * 128 + (((c / 8) ^ row % 8) << 4) + c % 8 * 2);
                if (c < min(COLUMNS, width)) *reinterpret_cast<uint16_t*>(out + c * p.out_col) = bits;
            }
        }
    }

    // Sums of a part of k, in float, for a kernel of their own to add up. Padded to whole tiles.
    __device__ __forceinline__ void store_partials(const float (&d)[S::ACCUMULATORS], int i, const Item& item) const {
        const uint64_t width = uint64_t(p.order.tiles_n) * S::BN;
        const uint64_t height = uint64_t(p.order.tiles_m) * p.pair * S::BM;
        const uint64_t plane = uint64_t(item.split) * p.products + item.product;
        const uint64_t row = item.row + row_of(i) + lane / 4;
        float* out = p.partials + (plane * height + row) * width + item.col + lane % 4 * 2;
#pragma unroll
        for (int group = 0; group < S::ACCUMULATORS / 4; ++group) {
            *reinterpret_cast<float2*>(out + group * 8) = make_float2(d[group * 4], d[group * 4 + 1]);
            *reinterpret_cast<float2*>(out + group * 8 + 8 * width) = make_float2(d[group * 4 + 2], d[group * 4 + 3]);
        }
    }
};
