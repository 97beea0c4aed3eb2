// A block like that of simt_block.cuh, of float32 operands that are both contiguous along k: they are copied in vectors of 16
// bytes and lie in shared memory as they do in memory, [mn][k]; a thread reads four k of a row or column at once.
#pragma once

#include "simt_block.cuh"

// Starts the copy of four elements to shared memory, or of zeros.
__device__ __forceinline__ void copy_four(float* shared, const float* global, bool valid) {
#if __CUDA_ARCH__ >= 800
    ptx::cp_async_16(uint32_t(__cvta_generic_to_shared(shared)), global, valid);
#else
    *reinterpret_cast<float4*>(shared) = valid ? *reinterpret_cast<const float4*>(global) : float4{};
#endif
}

// One operand: MN rows of BK elements, which THREADS threads copy.
template <int MN, int BK, int THREADS> struct CopierK {
    static constexpr int VECTORS = BK / 4, ROWS = THREADS / VECTORS;  // of a row; at once
    static constexpr int ROW = BK + 4;  // padded: vectors of eight rows lie in different banks
    using Buffer = float[MN][ROW];
    static_assert(THREADS % VECTORS == 0 && MN % ROWS == 0, "every thread copies alike");

    const float* source;  // this thread's first vector of the next tile
    int row, k;           // of that vector in the tile
    int room;             // how far the operand's mn reaches past it

    __device__ __forceinline__ CopierK(const float* tile, int64_t mn_stride, int mn_left)
        : row(threadIdx.x / VECTORS), k(threadIdx.x % VECTORS * 4) {
        source = tile + row * mn_stride + k;
        room = mn_left - row;
    }

    // Starts the copies of the next tile, of which k_left steps of k exist, a multiple of four.
    __device__ __forceinline__ void copy(Buffer& shared, int64_t mn_stride, int k_left) {
        const float* from = source;
#pragma unroll
        for (int i = 0; i < MN; i += ROWS) {
            copy_four(&shared[row + i][k], from, i < room && k < k_left);
            from += ROWS * mn_stride;
        }
        source += BK;
    }
};

// As SimtBlock; a thread's rows and columns are LANES_M and LANES_N apart.
template <class S> struct SimtBlockK {
    using CopierA = CopierK<S::BM, S::BK, S::THREADS>;
    using CopierB = CopierK<S::BN, S::BK, S::THREADS>;
    struct Shared {
        typename CopierA::Buffer a[S::STAGES];
        typename CopierB::Buffer b[S::STAGES];
    };
    static_assert(S::GROUPS == 1, "");
    static constexpr int group = 0;

    int row, col;  // where the thread's part of the tile begins
    float accumulator[S::TM][S::TN] = {};

    __device__ __forceinline__ SimtBlockK() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        row = warp / S::WARPS_N * S::WM + lane / S::LANES_N;
        col = warp % S::WARPS_N * S::WN + lane % S::LANES_N;
    }
    __device__ __forceinline__ static int row_at(int i) { return i * S::LANES_M; }
    __device__ __forceinline__ static int col_at(int j) { return j * S::LANES_N; }

    // Adds the products of `k` steps of k. Afterwards nobody uses the buffers any more.
    template <class Params>
    __device__ __forceinline__ void multiply(const Params& p, const Work<float>& work, Shared& shared, int64_t k) {
        CopierA copy_a(work.a, p.a_row, work.rows);
        CopierB copy_b(work.b, p.b_col, work.cols);
        const int tiles = int((k + S::BK - 1) / S::BK);
        const auto fetch = [&](int tile, int stage) {
            if (tile < tiles) {
                const int left = int(min(int64_t(S::BK), k - int64_t(tile) * S::BK));
                copy_a.copy(shared.a[stage], p.a_row, left);
                copy_b.copy(shared.b[stage], p.b_col, left);
            }
            commit();
        };
#pragma unroll
        for (int tile = 0; tile < S::STAGES - 1; ++tile) fetch(tile, tile);
        int stage = 0;
        for (int tile = 0; tile < tiles; ++tile) {
            // This tile has arrived, and everyone is done with the previous one: its buffer is free.
            wait<S::STAGES - 2>();
            __syncthreads();
            fetch(tile + S::STAGES - 1, stage == 0 ? S::STAGES - 1 : stage - 1);
#pragma unroll
            for (int step = 0; step < S::BK; step += 4) {
                float b[S::TN][4];
#pragma unroll
                for (int j = 0; j < S::TN; ++j) read_runs<4>(b[j], &shared.b[stage][col + col_at(j)][step], 4);
#pragma unroll
                for (int i = 0; i < S::TM; ++i) {
                    float a[4];
                    read_runs<4>(a, &shared.a[stage][row + row_at(i)][step], 4);
#pragma unroll
                    for (int e = 0; e < 4; ++e)
#pragma unroll
                        for (int j = 0; j < S::TN; ++j) accumulator[i][j] = fma(a[e], b[j][e], accumulator[i][j]);
                }
            }
            stage = stage + 1 == S::STAGES ? 0 : stage + 1;
        }
        __syncthreads();
    }
};
