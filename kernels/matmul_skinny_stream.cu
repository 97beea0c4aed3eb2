// targets: 75 80 90 100 120 ptx:75
//
// matmul of up to 8 rows of float32 by a large matrix, or of a large matrix by as few columns: out = act(a @ b + bias). The
// time is that of reading the weights.
//
// The weights go from memory to registers in vectors of 16 bytes, eight in flight a thread, and are multiplied there by the
// few rows, from L1 or shared memory. Each lane has k of its own: sums are short, and lanes, then warps, add theirs up. k is split
// until all multiprocessors read; common/skinny.cuh reduces the splits.
// Variants, matmul_skinny_stream_{tile}_{layout}_f32, chosen in src/cuda/plan/matmul/skinny/mod.rs:
//   k  8x4, 8x8      weights contiguous along k: a warp reads 128 of k of eight rows.
//   m  32x4, 32x8    across it: a warp reads 32 rows of four of k.
// Measurements: docs/measurements/matmul_skinny_stream.md

#include "matmul.cuh"
#include "skinny.cuh"

constexpr int STREAM_THREADS = 128, STREAM_WARPS = STREAM_THREADS / 32;
// Vectors of weights that a thread has in flight.
constexpr int STREAM_VECTORS = 8;

// Four values of k, of one of the few rows.
__device__ __forceinline__ float4 load_four(const float* from, int64_t step, bool vector) {
    if (vector) return *reinterpret_cast<const float4*>(from);
    return make_float4(from[0], from[step], from[2 * step], from[3 * step]);
}

// Adds up `v` over a warp, by halves: afterwards a lane has N / 32 sums, or one of them if N is less, of which the first is
// number `first`.
template <int N, int OFFSET = 16> __device__ __forceinline__ void reduce_by_halves(float* v, int& first) {
    if constexpr (OFFSET > 0) {
        const bool upper = threadIdx.x & OFFSET;
        if constexpr (N > 1) {
#pragma unroll
            for (int i = 0; i < N / 2; ++i) {
                const float keep = upper ? v[N / 2 + i] : v[i], send = upper ? v[i] : v[N / 2 + i];
                v[i] = keep + __shfl_xor_sync(~0u, send, OFFSET);
            }
            first += upper ? N / 2 : 0;
            reduce_by_halves<N / 2, OFFSET / 2>(v, first);
        } else {
            v[0] += __shfl_xor_sync(~0u, v[0], OFFSET);
            reduce_by_halves<1, OFFSET / 2>(v, first);
        }
    }
}

template <int BN> __device__ __forceinline__ void stream_along_k(const SkinnyParams& params) {
    ptx::wait_for_grid_before();
    constexpr int BM = STREAM_VECTORS;
    using Sums = SumTile<float, BM, BN>;
    __shared__ __align__(16) float sums[STREAM_WARPS * BN * Sums::STRIDE];
    const auto& p = params.product;
    Work<float> work;
    const Split split = find_split<BM, BN>(params, work);
    float sum[BM * BN] = {};
    const float* row[BM];
#pragma unroll
    for (int i = 0; i < BM; ++i) row[i] = work.a + min(i, work.rows - 1) * p.a_row;
    for (int64_t k = threadIdx.x * 4; k < split.k; k += STREAM_THREADS * 4) {
        Vector weights[BM];
#pragma unroll
        for (int i = 0; i < BM; ++i) weights[i] = load_vector(row[i] + k);
#pragma unroll
        for (int j = 0; j < BN; ++j) {
            if (j >= work.cols) break;
            const float4 x = load_four(work.b + j * p.b_col + k * p.b_row, p.b_row, params.b_vectors);
#pragma unroll
            for (int i = 0; i < BM; ++i) {
                const auto w = weights[i].template unpack<float>();
                float& s = sum[i * BN + j];
                s = fmaf(w.v[0], x.x, s), s = fmaf(w.v[1], x.y, s), s = fmaf(w.v[2], x.z, s), s = fmaf(w.v[3], x.w, s);
            }
        }
    }
    int first = 0;
    reduce_by_halves<BM * BN>(sum, first);
    constexpr int LEFT = BM * BN / 32;
    float* own = sums + threadIdx.x / 32 * BN * Sums::STRIDE;
#pragma unroll
    for (int i = 0; i < LEFT; ++i) own[(first + i) % BN * Sums::STRIDE + (first + i) / BN] = sum[i];
    store_sums<BM, BN, STREAM_WARPS, STREAM_THREADS>(params, work, split, sums);
}

// k of a split of weights across k, at most: the few rows' is in shared memory. Mirrored in
// src/cuda/plan/matmul/skinny/mod.rs.
constexpr int STREAM_M_K = 1024;

template <int BN> __device__ __forceinline__ void stream_along_m(const SkinnyParams& params) {
    ptx::wait_for_grid_before();
    constexpr int BM = 32, LANES_M = BM / 4, LANES_K = 32 / LANES_M, STEP = STREAM_WARPS * LANES_K;
    using Sums = SumTile<float, BM, BN>;
    __shared__ __align__(16) float sums[STREAM_WARPS * BN * Sums::STRIDE];
    __shared__ __align__(16) float few[STREAM_M_K][BN];
    const auto& p = params.product;
    Work<float> work;
    const Split split = find_split<BM, BN>(params, work);
    const int k_end = int(split.k);
    const auto take = [&](int k, int j) { few[k][j] = j < work.cols ? work.b[k * p.b_row + j * p.b_col] : 0.0f; };
    if (p.b_k_fast) {
        for (int k = threadIdx.x; k < k_end; k += STREAM_THREADS)
#pragma unroll
            for (int j = 0; j < BN; ++j) take(k, j);
    } else {
        for (int k = threadIdx.x / BN; k < k_end; k += STREAM_THREADS / BN) take(k, threadIdx.x % BN);
    }
    __syncthreads();
    const int m = threadIdx.x % LANES_M * 4, first_k = threadIdx.x / LANES_M;
    float sum[BN][4] = {};
    const float* from = work.a + (m < work.rows ? m : 0) * p.a_row + first_k * p.a_col;
    for (int k = first_k; k < k_end; k += STEP * STREAM_VECTORS, from += STEP * STREAM_VECTORS * p.a_col) {
        Vector weights[STREAM_VECTORS];
#pragma unroll
        for (int i = 0; i < STREAM_VECTORS; ++i)
            weights[i] = k + i * STEP < k_end ? load_vector(from + i * STEP * p.a_col) : Vector{};
#pragma unroll
        for (int i = 0; i < STREAM_VECTORS; ++i) {
            if (k + i * STEP >= k_end) break;
            const auto w = weights[i].template unpack<float>();
#pragma unroll
            for (int j = 0; j < BN; j += 4) {
                const float4 x = *reinterpret_cast<const float4*>(&few[k + i * STEP][j]);
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    sum[j][e] = fmaf(w.v[e], x.x, sum[j][e]), sum[j + 1][e] = fmaf(w.v[e], x.y, sum[j + 1][e]);
                    sum[j + 2][e] = fmaf(w.v[e], x.z, sum[j + 2][e]), sum[j + 3][e] = fmaf(w.v[e], x.w, sum[j + 3][e]);
                }
            }
        }
    }
    float* own = sums + threadIdx.x / 32 * BN * Sums::STRIDE;
#pragma unroll
    for (int j = 0; j < BN; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float s = sum[j][e];
#pragma unroll
            for (int offset = LANES_M; offset < 32; offset *= 2) s += __shfl_xor_sync(~0u, s, offset);
            if (threadIdx.x % 32 < LANES_M) own[j * Sums::STRIDE + m + e] = s;
        }
    store_sums<BM, BN, STREAM_WARPS, STREAM_THREADS>(params, work, split, sums);
}

#define STREAM(tile, layout, BN, BLOCKS)                                                       \
    extern "C" __global__ void __launch_bounds__(STREAM_THREADS, BLOCKS)                       \
        matmul_skinny_stream_##tile##_##layout##_f32(const __grid_constant__ SkinnyParams p) { \
        stream_along_##layout<BN>(p);                                                          \
    }
STREAM(8x4, k, 4, 4)
STREAM(8x8, k, 8, 3)
STREAM(32x4, m, 4, 5)
STREAM(32x8, m, 8, 5)
