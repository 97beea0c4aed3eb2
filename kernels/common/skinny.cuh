// Products with few rows or columns (matmul_skinny.cu, matmul_skinny_simt.cu): which k split of which tile a block
// computes, and how the splits are reduced: through distributed shared memory, or in the workspace for
// matmul_reduce.cu.
#pragma once

#include "matmul.cuh"
#include "ptx/cluster.cuh"

// The long operand, the weights, is always a, so that its rows are those of the tensor cores' larger side; the few rows
// or columns of the other are b's columns. Mirrored in src/cuda/plan/matmul/skinny/params.rs.
struct SkinnyParams {
    MatmulParams<INLINE_RANK> product;
    void* partials;           // where sums of splits that are no cluster go, for matmul_reduce.cu to add
    int64_t k_per_split;      // of one split; the last may have less
    uint32_t splits;          // neighbouring blocks
    uint32_t by_rows;         // neighbours in the result's memory are rows of the weights
    uint32_t width, height;   // of a matrix of partial sums
    uint32_t b_vectors;       // b's columns are whole, aligned vectors along k
    uint32_t cluster_splitk;  // the splits are a cluster, which reduces them through distributed shared memory
};
static_assert(sizeof(SkinnyParams) == sizeof(MatmulParams<INLINE_RANK>) + 40, "mirrored in Rust");
static_assert(offsetof(SkinnyParams, partials) == sizeof(MatmulParams<INLINE_RANK>), "mirrored in Rust");

// The k split that a block computes.
struct Split {
    uint32_t index;    // of the split
    uint64_t product;  // of the batch
    int64_t k;         // of this split
};

// Work's operands begin with the split's k.
template <int BM, int BN, class T>
__device__ __forceinline__ Split find_split(const SkinnyParams& params, Work<T>& work) {
    const auto& p = params.product;
    const uint32_t tile = blockIdx.x / params.splits;
    Split split;
    split.index = blockIdx.x - tile * params.splits;
    split.product = p.per_product.quotient(uint64_t(tile));
    find_tile<BM, BN>(p, tile, work);
    const int64_t begin = split.index * params.k_per_split;
    split.k = min(p.k - begin, params.k_per_split);
    work.a += begin * p.a_col;
    work.b += begin * p.b_row;
    return split;
}

// The sums of a block's threads in shared memory, column by column.
template <class Acc, int BM, int BN> struct SumTile {
    // Padded by 16 bytes: what a warp's threads hold of an mma, or of a SIMT tile, lies in different banks.
    static constexpr int STRIDE = BM + 16 / sizeof(Acc);
    static constexpr int BYTES = BN * STRIDE * sizeof(Acc);
};

// Adds up what the block's GROUPS tiles in shared memory hold and, if the splits are a cluster, what those of its other
// blocks hold, always in the same order; then writes the result, or the partial sums.
template <int BM, int BN, int GROUPS, int THREADS, class T, class Acc>
__device__ __forceinline__ void store_sums(const SkinnyParams& params, const Work<T>& work, const Split& split,
                                           const Acc* sums) {
    constexpr int STRIDE = SumTile<Acc, BM, BN>::STRIDE;
    const bool cluster_splitk = params.cluster_splitk;
    const uint32_t blocks = cluster_splitk ? params.splits : 1;
    if (cluster_splitk) {
        ptx::cluster_sync();
    } else {
        __syncthreads();
    }
    // Each block of a cluster takes its share of the fours.
    const int begin = threadIdx.x + (cluster_splitk ? split.index * THREADS : 0);
    for (int four = begin; four < BM * BN / 4; four += THREADS * blocks) {
        const int row = params.by_rows ? four % (BM / 4) * 4 : four % BM;
        const int col = params.by_rows ? four / (BM / 4) : four / BM * 4;
        if (row >= work.rows || col >= work.cols) continue;
        Acc v[4] = {};
        for (uint32_t block = 0; block < blocks; ++block) {
            const Acc* from = cluster_splitk ? ptx::in_block(sums, block) : sums;
            const int step = params.by_rows ? 1 : STRIDE;
            Acc sum[4] = {};
#pragma unroll
            for (int group = 0; group < GROUPS; ++group) {
                const Acc* at = from + (group * BN + col) * STRIDE + row;
#pragma unroll
                for (int e = 0; e < 4; ++e) sum[e] += at[e * step];
            }
#pragma unroll
            for (int e = 0; e < 4; ++e) v[e] += sum[e];
        }
        if (params.splits == 1 || cluster_splitk) {
            const auto& p = params.product;
            const int64_t i = work.row + row, j = work.col + col;
            const T* bias =
                p.bias == nullptr ? nullptr : static_cast<const T*>(p.bias) + i * p.bias_row + j * p.bias_col;
            T* out = work.out + i * p.out_row + j * p.out_col;
            Run<T, Acc> run;
            if (p.addends.any()) {
                const int64_t offset = locate(p.batch, p.batch_rank, split.product).at[3];
                run = Run<T, Acc>(p.addends, i, j, split.product, offset, params.by_rows);
            }
            apply_epilogue(v, bias, params.by_rows ? p.bias_row : p.bias_col, p.activation, Acc(p.negative_slope), run,
                           out, params.by_rows ? p.out_row : p.out_col,
                           params.by_rows ? work.rows - row : work.cols - col, p.out_vector);
            continue;
        }
        const int64_t line = params.by_rows ? work.col + col : work.row + row;
        const int64_t along = params.by_rows ? work.row + row : work.col + col;
        const uint64_t products =
            params.product.blocks / (uint64_t(params.product.order.tiles_m) * params.product.order.tiles_n);
        const uint64_t plane = split.index * products + split.product;
        Acc* to = static_cast<Acc*>(params.partials) + (plane * params.height + line) * params.width + along;
        store_pack(to, Pack<Acc, 4>{{v[0], v[1], v[2], v[3]}});
    }
    ptx::let_next_grid_begin();
    // Nobody's shared memory goes while another block may read it.
    if (cluster_splitk) ptx::cluster_sync();
}
