// What every matmul kernel but matmul_wgmma.cu shares: the parameter struct, which product and tile a block computes,
// and how accumulators are stored.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype.cuh"
#include "epilogue.cuh"
#include "index.cuh"
#include "ptx/grid.cuh"
#include "tile_order.cuh"

// out[i, j] = act(sum over k of a[i, k] b[k, j] + bias[i, j]) + residual[i, j] for every index of the batch. Strides in
// elements. Mirrored in src/cuda/plan/matmul/params.rs. The batch comes last: dimensions that a kernel does not declare are not copied by
// a launch. "any" 128x128, simt 128x128 and simt 64x64 for float64 have MAX_RANK of them.
template <int Rank> struct MatmulParams {
    const void* a;
    const void* b;
    const void* bias;  // null: none
    void* out;
    int64_t m, n, k;
    int64_t a_row, a_col, b_row, b_col, out_row, out_col;
    int64_t bias_row, bias_col;  // one of them is 0
    double negative_slope;
    uint64_t blocks;      // tiles of all products: the grid may hold a few more
    Divisor per_product;  // by tiles_m * tiles_n
    TileOrder order;      // of each product's
    uint32_t activation;
    uint32_t a_k_fast, b_k_fast;  // single elements: neighbouring threads step along k, not along m or n
    uint32_t out_vector;          // a thread's neighbouring columns may be written at once
    uint32_t batch_rank;          // at least 1
    uint32_t part_k;              // of matmul_dmma: k whose products are summed alone, at most 2^31 - 1
    Addends addends;
    Dim<4> batch[Rank];  // outermost first; strides of a, b, out, residual
};
static_assert(sizeof(Dim<4>) == 56, "mirrored in src/cuda/plan/index.rs");
static_assert(sizeof(MatmulParams<INLINE_RANK>) == 304 + 56 * INLINE_RANK, "mirrored in Rust");
static_assert(sizeof(MatmulParams<MAX_RANK>) == 304 + 56 * MAX_RANK && sizeof(MatmulParams<MAX_RANK>) < 4096, "");
static_assert(offsetof(MatmulParams<1>, a_row) == 56 && offsetof(MatmulParams<1>, negative_slope) == 120, "");
static_assert(offsetof(MatmulParams<1>, order) == 152 && offsetof(MatmulParams<1>, addends) == 240, "");

// What one block works on.
template <class T>
struct Work {
    const T* a;        // (first row of the tile, 0) of this product's a
    const T* b;        // (0, first column of the tile) of this product's b
    T* out;            // (0, 0) of this product's result
    int64_t row, col;  // where the tile starts in the result
    int rows, cols;    // how much of the tile lies inside the result
    uint64_t block;    // the tile, counted through all products
};

// Of tile number `block` of all products.
template <int BM, int BN, class T, class Params>
__device__ __forceinline__ void find_tile(const Params& p, uint64_t block, Work<T>& work) {
    const uint64_t product = p.per_product.quotient(block);
    const uint32_t pid = uint32_t(block - product * p.order.tiles_m * p.order.tiles_n);
    const Tile tile = p.order.at(pid);
    const auto offset = locate(p.batch, p.batch_rank, product);
    work.block = block;
    work.row = int64_t(tile.m) * BM;
    work.col = int64_t(tile.n) * BN;
    work.rows = int(min(p.m - work.row, int64_t(BM)));
    work.cols = int(min(p.n - work.col, int64_t(BN)));
    work.a = static_cast<const T*>(p.a) + offset.at[0] + work.row * p.a_row;
    work.b = static_cast<const T*>(p.b) + offset.at[1] + work.col * p.b_col;
    work.out = static_cast<T*>(p.out) + offset.at[2];
}

// False for the blocks that only fill up the grid.
template <int BM, int BN, class T, class Params>
__device__ __forceinline__ bool find_work(const Params& p, Work<T>& work) {
    const uint64_t block = uint64_t(blockIdx.y) * gridDim.x + blockIdx.x;
    if (block >= p.blocks) return false;
    find_tile<BM, BN>(p, block, work);
    return true;
}

// Writes elements (row, col + e * step) of the tile, if they are in the result.
template <int N, class T, class Acc, class Params>
__device__ __forceinline__ void store_result(const Params& p, const Work<T>& work, int row, int col, int step,
                                             const Acc (&v)[N]) {
    if (row >= work.rows) return;
    T* out = work.out + (work.row + row) * p.out_row + work.col * p.out_col;
    if (p.out_vector && step == 1 && col + N <= work.cols) {
        Pack<T, N> pack;
#pragma unroll
        for (int e = 0; e < N; ++e) pack.v[e] = convert<T>(v[e]);
        store_pack(out + col, pack);
        return;
    }
#pragma unroll
    for (int e = 0; e < N; ++e) {
        const int c = col + e * step;
        if (c < work.cols) out[c * p.out_col] = convert<T>(v[e]);
    }
}

// The epilogue of the elements (row, col + e * step) of the tile, whose accumulators are v[e]. Its elements may be apart,
// which makes it another code than the one in epilogue.cuh. ADDENDS: whether something may be added.
template <bool ADDENDS = true, int N, class T, class Acc, class Params>
__device__ __forceinline__ void apply_epilogue(const Params& p, const Work<T>& work, int row, int col, int step,
                                               Acc (&v)[N]) {
    if (row >= work.rows) return;
    if (p.bias != nullptr) {
        const T* bias = static_cast<const T*>(p.bias) + (work.row + row) * p.bias_row;
#pragma unroll
        for (int e = 0; e < N; ++e) {
            const int c = col + e * step;
            if (c < work.cols) v[e] += convert<Acc>(bias[(work.col + c) * p.bias_col]);
        }
    }
    activate<T>(v, p.activation, Acc(p.negative_slope));
    if (ADDENDS && p.addends.any()) {
        const uint64_t product = p.per_product.quotient(work.block);
        const int64_t offset = locate(p.batch, p.batch_rank, product).at[3];
        const Run<T, Acc> run(p.addends, work.row + row, work.col + col, product, offset, false);
        if (!add_run(v, run, step, int(work.cols - col))) return;
    }
    store_result(p, work, row, col, step, v);
}
