// grouped_matmul by the blocks of matmul_simt.cu and matmul_mma.cu, a tile a block.
#pragma once

#include "group_cursor.cuh"
#include "matmul.cuh"

// Mirrored in src/cuda/plan/matmul/grouped/params.rs.
struct GroupedMatmulParams {
    MatmulParams<1> matmul;  // of all groups together; the batch has their strides
    Groups groups;
};
static_assert(sizeof(GroupedMatmulParams) == 408 && offsetof(GroupedMatmulParams, groups) == 360, "mirrored in Rust");

// What the block works on; `own` becomes the parameters of its group alone. False where there is nothing left.
template <int BM, int BN, class T>
__device__ __forceinline__ bool find_grouped(const GroupedMatmulParams& p, Work<T>& work, MatmulParams<1>& own) {
    __shared__ GroupTile found;
    __shared__ bool any;
    const uint64_t block = uint64_t(blockIdx.y) * gridDim.x + blockIdx.x;
    if (threadIdx.x < 32) {
        GroupTile tile = {};
        bool is_there = false;
        if (block < p.matmul.blocks) is_there = GroupCursor<BM>(p.groups).find(uint32_t(block), tile);
        if (threadIdx.x == 0) found = tile, any = is_there;
    }
    __syncthreads();
    if (!any) return false;
    const GroupTile tile = found;
    own = p.matmul;
    own.addends = {};  // known to have no residual, or the copy would lie in memory
    const Dim<4>& group = p.matmul.batch[0];
    const bool in_group = tile.group < p.groups.count;
    const int64_t index = in_group ? int64_t(tile.group) : 0;
    if (p.matmul.addends.wide != nullptr) {
        const Addends& addends = p.matmul.addends;
        constexpr int64_t WIDE_BYTES = sizeof(T) == 8 ? 8 : 4;  // of a sum
        const int64_t before = p.groups.cut == CUT_ROWS ? 0 : index * addends.wide_product;
        own.addends.wide = static_cast<char*>(addends.wide) + before * WIDE_BYTES;
        own.addends.wide_row = addends.wide_row, own.addends.wide_col = 1;
        own.addends.wide_kind = addends.wide_kind;
    }
    const int64_t first = p.groups.cut == CUT_ROWS ? tile.begin : 0;
    const int64_t first_k = p.groups.cut == CUT_DEPTH ? tile.begin : 0;
    const int64_t rows = p.groups.cut == CUT_ROWS ? int64_t(tile.end) : p.matmul.m;
    if (p.groups.cut == CUT_DEPTH) own.k = tile.end - tile.begin;
    if (!in_group) own.k = 0;
    own.bias = in_group && p.matmul.bias != nullptr ? static_cast<const T*>(p.matmul.bias) + index * p.groups.bias_group
                                                    : nullptr;
    work.row = first + int64_t(tile.m) * BM;
    work.col = int64_t(tile.n) * BN;
    work.rows = int(min(rows - work.row, int64_t(BM)));
    work.cols = int(min(p.matmul.n - work.col, int64_t(BN)));
    work.a = static_cast<const T*>(p.matmul.a) + index * group.strides[0] + work.row * p.matmul.a_row +
             first_k * p.matmul.a_col;
    work.b = static_cast<const T*>(p.matmul.b) + index * group.strides[1] + work.col * p.matmul.b_col +
             first_k * p.matmul.b_row;
    work.out = static_cast<T*>(p.matmul.out) + index * group.strides[2];
    return true;
}
