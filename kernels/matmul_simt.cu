// targets: 75 80 90 100 120 ptx:75
//
// matmul without tensor cores, any strides: out = act(a @ b + bias). float32 and float64 in IEEE multiply-adds of their
// own precision; float16 and bfloat16 summed in float32, for devices before sm_80. 2 m n k flops.
//
// 256 threads share a tile of the result, each TM x TN of it in registers, so that TM + TN values from shared memory
// feed TM * TN multiply-adds. A ring of buffers in shared memory, filled by cp.async: the next BK steps of k are copied
// during the arithmetic of the present ones, with one barrier each. Before sm_80, and where elements are widened, the
// copies go through registers. Each 512 of k are summed alone, in a second set of registers or of 128x128 in `out`.
//
// Variants, matmul_simt_{tile}_{dtype}, chosen in src/cuda/plan/matmul/blocks.rs:
//   128x128  8 x 8 values a thread, for results that fill the device.
//   64x64    4 x 4 a thread: four times the blocks for smaller results, and always float64, for lack of registers.
// Measurements: docs/measurements/matmul_simt.md

#include "simt_block.cuh"

template <class T, class S, class Params> __device__ __forceinline__ void matmul(const Params& p) {
    ptx::wait_for_grid_before();
    using Acc = typename S::Acc;
    using Block = SimtBlock<T, S>;
    __shared__ __align__(16) typename Block::Shared shared;

    // Shared memory keeps it for the end: in registers it would cost the large tile its second block.
    __shared__ Work<T> kept;
    Work<T> work;
    if (!find_work<S::BM, S::BN>(p, work)) return;
    if (threadIdx.x == 0) kept = work;
    // A thread without registers for two sums keeps the sum of earlier parts of k in `out`, which has to be as precise.
    constexpr bool IN_OUT = !S::TWO_SUMS && sizeof(T) == sizeof(Acc);
    for (int at = 0;; ++at) {
        const int64_t left = p.k - int64_t(at) * PART_K;
        const Part part{at == 0, !IN_OUT || left <= PART_K};
        Block block;
        block.multiply(p, work, shared, part.last ? left : PART_K);
        work = kept;
        // A row at a time. Not unrolled, to keep the activations' code small: the accumulators move up instead.
#pragma unroll 1
        for (int i = 0; i < S::TM; ++i) {
#pragma unroll
            for (int run = 0; run < S::TN / S::VEC; ++run) {
                Acc v[S::VEC];
#pragma unroll
                for (int e = 0; e < S::VEC; ++e) v[e] = block.accumulator[0][run * S::VEC + e];
                apply_epilogue(p, work, block.row + i / S::VEC * S::ROW_RUN + i % S::VEC, block.col + run * S::COL_RUN,
                               1, v, part);
            }
#pragma unroll
            for (int next = 1; next < S::TM; ++next)
#pragma unroll
                for (int j = 0; j < S::TN; ++j) block.accumulator[next - 1][j] = block.accumulator[next][j];
        }
        if (!IN_OUT || (at + 1) * int64_t(PART_K) >= p.k) return;
        work.a += (at + 1) * int64_t(PART_K) * p.a_col;
        work.b += (at + 1) * int64_t(PART_K) * p.b_row;
    }
}

//                                   BM   BN BK TM TN lanes threads stages
using Float128x128 = SimtShape<float, 128, 128, 8, 8, 8, 4, 256, 3>;
using Float64x64 = SimtShape<float, 64, 64, 16, 4, 4, 4, 256, 3>;
using Double64x64 = SimtShape<double, 64, 64, 8, 4, 4, 4, 256, 3>;

#define MATMUL(tile, T, S, BLOCKS, RANK)                                         \
    extern "C" __global__ void __launch_bounds__(S::THREADS, BLOCKS)             \
        matmul_simt_##tile##_##T(const __grid_constant__ MatmulParams<RANK> p) { \
        matmul<T, S>(p);                                                         \
    }
MATMUL(128x128, f32, Float128x128, 2, MAX_RANK)
MATMUL(64x64, f32, Float64x64, 3, INLINE_RANK)
MATMUL(64x64, f64, Double64x64, 2, MAX_RANK)

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 800
MATMUL(128x128, f16, Float128x128, 2, MAX_RANK)
MATMUL(64x64, f16, Float64x64, 3, INLINE_RANK)
MATMUL(128x128, bf16, Float128x128, 2, MAX_RANK)
MATMUL(64x64, bf16, Float64x64, 3, INLINE_RANK)
#endif
