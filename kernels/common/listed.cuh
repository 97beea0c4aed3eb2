// grouped_matmul of lists of matrices by the blocks of matmul_simt.cu and matmul_mma.cu, a tile a block: products of any
// sizes and strides in one launch, which the parameters describe.
#pragma once

#include "matmul.cuh"

// Strides in elements. Mirrored in src/cuda/plan/matmul/grouped/listed.rs, as is ListedParams.
struct ListedProduct {
    const void* a;
    const void* b;
    const void* bias;  // null: none
    void* out;
    int64_t a_row, a_col, b_row, b_col, out_row, out_col;
    int64_t bias_col;
    int32_t m, n, k;
    uint32_t first_block;  // of its tiles, down the columns
    uint32_t tiles_m;
    uint32_t a_k_fast, b_k_fast;  // as in MatmulParams
    uint32_t out_vector;
};
constexpr int LISTED = 32;
struct ListedParams {
    ListedProduct products[LISTED];
    double negative_slope;
    uint32_t count;
    uint32_t activation;
};
static_assert(sizeof(ListedProduct) == 120 && offsetof(ListedProduct, first_block) == 100, "mirrored in Rust");
static_assert(sizeof(ListedParams) == 120 * LISTED + 16 && sizeof(ListedParams) < 4096, "mirrored in Rust");

// What the block works on, and the parameters of its product alone.
template <int BM, int BN, class T>
__device__ __forceinline__ void find_listed(const ListedParams& p, Work<T>& work, MatmulParams<1>& own) {
    uint32_t i = 0;
    while (i + 1 < p.count && blockIdx.x >= p.products[i + 1].first_block) ++i;
    const ListedProduct& x = p.products[i];
    const uint32_t tile = blockIdx.x - x.first_block, tile_n = tile / x.tiles_m;
    own.a_row = x.a_row, own.a_col = x.a_col, own.b_row = x.b_row, own.b_col = x.b_col;
    own.out_row = x.out_row, own.out_col = x.out_col;
    own.out = x.out;
    own.bias = x.bias, own.bias_row = 0, own.bias_col = x.bias_col;
    own.addends = {};
    own.k = x.k;
    own.negative_slope = p.negative_slope;
    own.activation = p.activation;
    own.a_k_fast = x.a_k_fast, own.b_k_fast = x.b_k_fast;
    own.out_vector = x.out_vector;
    work.row = int64_t(tile - tile_n * x.tiles_m) * BM;
    work.col = int64_t(tile_n) * BN;
    work.rows = int(min(x.m - work.row, int64_t(BM)));
    work.cols = int(min(x.n - work.col, int64_t(BN)));
    work.a = static_cast<const T*>(x.a) + work.row * x.a_row;
    work.b = static_cast<const T*>(x.b) + work.col * x.b_col;
    work.out = static_cast<T*>(x.out);
    work.block = blockIdx.x;
}
