// What the parts of matmul_wgmma.cu share: its parameters, a block's shared memory, and which tile a block works on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "epilogue.cuh"
#include "ptx/barrier.cuh"
#include "ptx/global.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/registers.cuh"
#include "ptx/shared.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile_order.cuh"
#include "wgmma_tile.cuh"

// out[i, j] = act(sum over k of a[i, k] b[k, j] + bias) for every index of the batch. Strides in elements. Mirrored in
// src/cuda/plan/matmul/wgmma.rs.
struct alignas(64) WgmmaParams {
    TensorMap a, b;
    TensorMap out, out_tail;  // boxes of 16 rows by 64 columns, and by what is left of a tile's width
    const void* bias;         // null: none
    void* result;             // where the maps of the result start
    float* partials;          // not null: sums of parts of k go here, for matmul_reduce.cu to add
    int64_t bias_stride;
    int64_t out_row, out_col;
    int64_t out_batch[3];  // innermost dimension first
    uint32_t m, n;
    uint32_t k_blocks;  // of 64
    uint32_t tiles_m, tiles_n, group_m;
    uint32_t products;
    uint32_t splits;         // parts of k that go to `partials`; 1 without
    uint32_t batch_size[2];  // of the two inner dimensions
    uint32_t batched;        // maps have five dimensions, not two
    uint32_t a_mn, b_mn;     // the unit stride is along m or n, not along k
    uint32_t stages;
    uint32_t stage_bytes;  // that arrive for one block of k
    uint32_t activation;
    float negative_slope;
    uint32_t bias_by_row;
    uint32_t store_elements;        // rows that the copy engine cannot address
    uint32_t a_batches, b_batches;  // bit d: the operand has that dimension of the batch, and is not broadcast along it
    uint32_t unused[9];
};
static_assert(sizeof(WgmmaParams) == 704 && offsetof(WgmmaParams, bias) == 512, "mirrored in Rust");
static_assert(offsetof(WgmmaParams, m) == 584 && offsetof(WgmmaParams, store_elements) == 656, "mirrored in Rust");

template <class Element, int CONSUMERS, int M_STEPS, int BN, int BLOCKS_>
struct WgmmaShape : WgmmaTile<CONSUMERS, M_STEPS, BN> {
    using T = Element;
    static constexpr int BLOCKS = BLOCKS_;  // on one multiprocessor
    static constexpr int THREADS = 128 * CONSUMERS + 128;
    static constexpr int ACCUMULATORS = BN / 2;  // of a thread, for 64 rows
    // A thread's, in steps of 8: what the block is launched with is all there is to share, and who asks for more waits
    // for ever.
    static constexpr int LAUNCHED = 65536 / (BLOCKS * THREADS) / 8 * 8;
    static constexpr int PRODUCER_REGISTERS = 24;
    static constexpr int SHARE = (LAUNCHED * (CONSUMERS + 1) - PRODUCER_REGISTERS) / CONSUMERS / 8 * 8;
    static constexpr int CONSUMER_REGISTERS = SHARE < 240 ? SHARE : 240;
};

extern __shared__ __align__(1024) unsigned char wgmma_shared[];

// The ring of stages. Each has a barrier that completes when its bytes have arrived, and one that completes when every
// consumer warp is done with them.
struct Ring {
    uint32_t barriers;  // shared address
    uint32_t stages;
    uint32_t stage = 0, phase = 0;

    __device__ __forceinline__ uint32_t full(uint32_t s) const { return barriers + s * 8; }
    __device__ __forceinline__ uint32_t empty(uint32_t s) const { return barriers + (MAX_STAGES + s) * 8; }
    __device__ __forceinline__ void advance() {
        if (++stage == stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

// What a block does next. All of its warps count through the same items and so agree.
struct Item {
    int32_t row, col;  // where the tile starts in the result
    int32_t batch[3];
    uint32_t product, split;
    uint32_t k_begin, k_end;  // blocks of k
};

// Items are the tiles of all products, once for each part of k.
template <class S> __device__ __forceinline__ Item item_at(const WgmmaParams& p, uint32_t index) {
    const uint32_t tiles = p.tiles_m * p.tiles_n;
    const uint32_t each = tiles * p.products;
    Item item;
    item.split = index / each;
    const uint32_t in_split = index - item.split * each;
    item.product = in_split / tiles;
    const Tile tile = tile_at(in_split - item.product * tiles, p.tiles_m, p.tiles_n, p.group_m);
    item.row = int32_t(tile.m) * S::BM;
    item.col = int32_t(tile.n) * S::BN;
    const uint32_t outer = item.product / p.batch_size[0];
    item.batch[0] = int32_t(item.product - outer * p.batch_size[0]);
    item.batch[2] = int32_t(outer / p.batch_size[1]);
    item.batch[1] = int32_t(outer - item.batch[2] * p.batch_size[1]);
    item.k_begin = uint32_t(uint64_t(p.k_blocks) * item.split / p.splits);
    item.k_end = uint32_t(uint64_t(p.k_blocks) * (item.split + 1) / p.splits);
    return item;
}

// Calls f with every item of this block.
template <class S, class F> __device__ __forceinline__ void for_each_item(const WgmmaParams& p, F f) {
    const uint32_t items = p.tiles_m * p.tiles_n * p.products * p.splits;
    for (uint32_t index = blockIdx.x; index < items; index += gridDim.x) f(item_at<S>(p, index));
}
