// What every matmul kernel shares: its parameters, which product and tile a block works on, and how
// accumulators reach the result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype.cuh"
#include "epilogue.cuh"
#include "tile_order.cuh"

constexpr int MAX_BATCH_RANK = 62;

// out[i, j] = act(sum over k of a[i, k] b[k, j] + bias[i, j]) for every index of the batch. Strides in
// elements. The mirror of MatmulParams in src/cuda/plan/matmul.rs, which asserts the same numbers.
struct MatmulParams {
    const void* a;
    const void* b;
    const void* bias;  // null: none
    void* out;
    int64_t m, n, k;
    int64_t a_row, a_col, b_row, b_col, out_row, out_col;
    int64_t bias_row, bias_col;  // one of them is 0
    double negative_slope;
    uint64_t blocks;  // tiles_m * tiles_n * products: the grid may hold a few more
    uint32_t tiles_m, tiles_n, group_m;
    uint32_t batch_rank;
    uint32_t activation;
    uint32_t a_k_fast, b_k_fast;  // single elements: neighbouring threads step along k, not along m or n
    uint32_t out_vector;          // 1: a thread's neighbouring columns may be written at once
    int64_t batch_shape[MAX_BATCH_RANK];  // outermost first
    int64_t a_batch[MAX_BATCH_RANK], b_batch[MAX_BATCH_RANK], out_batch[MAX_BATCH_RANK];
};
static_assert(sizeof(MatmulParams) == 2152, "src/cuda/plan/matmul.rs");
static_assert(offsetof(MatmulParams, m) == 32, "src/cuda/plan/matmul.rs");
static_assert(offsetof(MatmulParams, a_row) == 56, "src/cuda/plan/matmul.rs");
static_assert(offsetof(MatmulParams, bias_row) == 104, "src/cuda/plan/matmul.rs");
static_assert(offsetof(MatmulParams, negative_slope) == 120, "src/cuda/plan/matmul.rs");
static_assert(offsetof(MatmulParams, tiles_m) == 136, "src/cuda/plan/matmul.rs");
static_assert(offsetof(MatmulParams, out_vector) == 164, "src/cuda/plan/matmul.rs");
static_assert(offsetof(MatmulParams, batch_shape) == 168, "src/cuda/plan/matmul.rs");
static_assert(offsetof(MatmulParams, out_batch) == 1656, "src/cuda/plan/matmul.rs");

// What one block works on.
template <class T>
struct Work {
    const T* a;        // (first row of the tile, 0) of this product's a
    const T* b;        // (0, first column of the tile) of this product's b
    T* out;            // (0, 0) of this product's result
    int64_t row, col;  // where the tile starts in the result
    int rows, cols;    // how much of the tile lies inside the result
};

// n / d and what is left; 64-bit division is an order of magnitude slower and hardly ever needed.
__device__ __forceinline__ uint64_t divide(uint64_t n, uint64_t d, uint64_t& left) {
    const uint64_t q = ((n | d) >> 32) == 0 ? uint32_t(n) / uint32_t(d) : n / d;
    left = n - q * d;
    return q;
}

// False for the blocks that only fill up the grid.
template <int BM, int BN, class T>
__device__ __forceinline__ bool locate(const MatmulParams& p, Work<T>& work) {
    uint64_t pid = uint64_t(blockIdx.y) * gridDim.x + blockIdx.x;
    if (pid >= p.blocks) return false;
    int64_t a = 0, b = 0, out = 0;
    if (p.batch_rank > 0) {
        uint64_t product = divide(pid, uint64_t(p.tiles_m) * p.tiles_n, pid);
        for (int d = int(p.batch_rank) - 1; d >= 0; --d) {
            uint64_t index = product;
            if (d > 0) product = divide(product, uint64_t(p.batch_shape[d]), index);
            a += int64_t(index) * p.a_batch[d];
            b += int64_t(index) * p.b_batch[d];
            out += int64_t(index) * p.out_batch[d];
        }
    }
    const Tile tile = tile_at(uint32_t(pid), p.tiles_m, p.tiles_n, p.group_m);
    work.row = int64_t(tile.m) * BM;
    work.col = int64_t(tile.n) * BN;
    work.rows = int(min(p.m - work.row, int64_t(BM)));
    work.cols = int(min(p.n - work.col, int64_t(BN)));
    work.a = static_cast<const T*>(p.a) + a + work.row * p.a_row;
    work.b = static_cast<const T*>(p.b) + b + work.col * p.b_col;
    work.out = static_cast<T*>(p.out) + out;
    return true;
}

// Finishes and stores the elements (row, col + e * step) of the tile, whose accumulators are v[e].
template <int N, class T, class Acc>
__device__ __forceinline__ void finish(const MatmulParams& p, const Work<T>& work, int row, int col, int step,
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
    activate(v, p.activation, Acc(p.negative_slope));
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
