// targets: 75 80 90 100 120 ptx:75
//
// matmul without tensor cores, any strides: out = act(a @ b + bias) + residual. float32 and float64 in IEEE multiply-adds of their
// own precision; float16 and bfloat16 summed in float32, for devices before sm_80. 2 m n k flops.
//
// 256 threads share a tile of the result, each TM x TN of it in registers, so that TM + TN values from shared memory
// feed TM * TN multiply-adds. A ring of buffers in shared memory, filled by cp.async: the next BK steps of k are copied
// during the arithmetic of the present ones, with one barrier each; through registers before sm_80, and where elements are
// widened. Parts of 256 of k are summed alone, and added up in registers; of 128x128 parts of 1024, in `out`.
//
// Variants, matmul_simt_{tile}_{dtype}, chosen in src/cuda/plan/matmul/blocks.rs:
//   128x128  8 x 8 values a thread, for results that fill the device.
//   64x64    4 x 4 a thread: four times the blocks for smaller results, and always float64, for lack of registers.
// grouped_matmul_simt_64x64_{dtype}, .._list_{dtype}: the same for the groups of common/grouped.cuh, for lists.
// Measurements: docs/measurements/matmul_simt.md

#include "grouped.cuh"
#include "listed.cuh"
#include "simt_block.cuh"

// Adds to a thread's sums what `out` holds of earlier parts of k, if there are any, and stores them there, if more follow.
template <class S, class T, class Params, class Block>
__device__ __forceinline__ void exchange_sums(const Params& p, const Work<T>& work, Block& block, bool earlier,
                                              bool more) {
    constexpr int RUNS = S::TN / S::VEC, VEC = S::VEC;
#pragma unroll
    for (int i = 0; i < S::TM; ++i) {
        Pack<T, VEC> stored[RUNS] = {};
        const auto each_run = [&](auto access) {
            const int row = block.row + i / VEC * S::ROW_RUN + i % VEC;
            T* out = work.out + (work.row + row) * p.out_row + work.col * p.out_col;
#pragma unroll
            for (int run = 0; run < RUNS; ++run) {
                const int col = block.col + run * S::COL_RUN;
                access(run, out + col * p.out_col, row < work.rows ? work.cols - col : 0);
            }
        };
        if (earlier) {
            each_run([&](int run, T* from, int count) {
                if (p.out_vector && count >= VEC) {
                    stored[run] = load_pack<T, VEC>(from);
                    return;
                }
#pragma unroll
                for (int e = 0; e < VEC; ++e) {
                    if (e < count) stored[run].v[e] = from[e * p.out_col];
                }
            });
        }
        each_run([&](int run, T* to, int count) {
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                auto& sum = block.accumulator[i][run * VEC + e];
                sum += stored[run].v[e];
                stored[run].v[e] = sum;
                if (more) sum = 0;
            }
            if (!more) return;
            if (p.out_vector && count >= VEC) {
                store_pack(to, stored[run]);
                return;
            }
#pragma unroll
            for (int e = 0; e < VEC; ++e) {
                if (e < count) to[e * p.out_col] = stored[run].v[e];
            }
        });
    }
}

template <class T, class S, class Params>
__device__ __forceinline__ void multiply_tile(const Params& p, Work<T>& work) {
    using Acc = typename S::Acc;
    using Block = SimtBlock<T, S>;
    __shared__ __align__(16) typename Block::Shared shared;

    // Shared memory keeps it for the end: in registers it would cost the large tile its second block.
    __shared__ Work<T> kept;
    if (threadIdx.x == 0) kept = work;
    Block block;
    if constexpr (S::TWO_SUMS) {
        Acc sum[S::TM][S::TN] = {};
        const auto add_part = [&](int = 0) {
#pragma unroll
            for (int i = 0; i < S::TM; ++i)
#pragma unroll
                for (int j = 0; j < S::TN; ++j) {
                    sum[i][j] += block.accumulator[i][j];
                    block.accumulator[i][j] = 0;
                }
        };
        block.multiply(p, work, shared, p.k, add_part);
        add_part();
#pragma unroll
        for (int i = 0; i < S::TM; ++i)
#pragma unroll
            for (int j = 0; j < S::TN; ++j) block.accumulator[i][j] = sum[i][j];
    } else if constexpr (same_type<T, Acc>) {
        // Where `out` holds the residual, it is no place for sums: one chain of them then.
        const bool parts = p.addends.residual != p.out;
        block.multiply(p, work, shared, p.k, [&](int part) {
            if (parts) exchange_sums<S>(p, kept, block, part > 0, true);
        });
        if (parts && p.k > S::PART_K) exchange_sums<S>(p, kept, block, true, false);
    } else {  // a half is no place for a sum
        block.multiply(p, work, shared, p.k);
    }
    work = kept;
    // A row at a time. Not unrolled, to keep the activations' code small: the accumulators move up instead.
#pragma unroll 1
    for (int i = 0; i < S::TM; ++i) {
#pragma unroll
        for (int run = 0; run < S::TN / S::VEC; ++run) {
            Acc v[S::VEC];
#pragma unroll
            for (int e = 0; e < S::VEC; ++e) v[e] = block.accumulator[0][run * S::VEC + e];
            apply_epilogue(p, work, block.row + i / S::VEC * S::ROW_RUN + i % S::VEC, block.col + run * S::COL_RUN, 1,
                           v);
        }
#pragma unroll
        for (int next = 1; next < S::TM; ++next)
#pragma unroll
            for (int j = 0; j < S::TN; ++j) block.accumulator[next - 1][j] = block.accumulator[next][j];
    }
}

template <class T, class S, class Params> __device__ __forceinline__ void matmul(const Params& p) {
    ptx::wait_for_grid_before();
    Work<T> work;
    if (find_work<S::BM, S::BN>(p, work)) multiply_tile<T, S>(p, work);
}

template <class T, class S> __device__ __forceinline__ void grouped_matmul(const GroupedMatmulParams& p) {
    ptx::wait_for_grid_before();
    __shared__ MatmulParams<1> own;  // in a thread's own memory it would be a stack
    Work<T> work;
    MatmulParams<1> found;
    if (!find_grouped<S::BM, S::BN>(p, work, found)) return;
    if (threadIdx.x == 0) own = found;
    __syncthreads();
    multiply_tile<T, S>(own, work);
}

template <class T, class S> __device__ __forceinline__ void listed_matmul(const ListedParams& p) {
    ptx::wait_for_grid_before();
    Work<T> work;
    MatmulParams<1> own;
    find_listed<S::BM, S::BN>(p, work, own);
    multiply_tile<T, S>(own, work);
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

#define GROUPED(T, S, BLOCKS)                                                          \
    extern "C" __global__ void __launch_bounds__(S::THREADS, BLOCKS)                   \
        grouped_matmul_simt_64x64_##T(const __grid_constant__ GroupedMatmulParams p) { \
        grouped_matmul<T, S>(p);                                                       \
    }
#define LISTED_PRODUCTS(T, S, BLOCKS)                                                \
    extern "C" __global__ void __launch_bounds__(S::THREADS, BLOCKS)                 \
        grouped_matmul_simt_64x64_list_##T(const __grid_constant__ ListedParams p) { \
        listed_matmul<T, S>(p);                                                      \
    }
GROUPED(f32, Float64x64, 2)
GROUPED(f64, Double64x64, 2)
LISTED_PRODUCTS(f32, Float64x64, 2)
LISTED_PRODUCTS(f64, Double64x64, 2)

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 800
MATMUL(128x128, f16, Float128x128, 2, MAX_RANK)
MATMUL(64x64, f16, Float64x64, 3, INLINE_RANK)
MATMUL(128x128, bf16, Float128x128, 2, MAX_RANK)
MATMUL(64x64, bf16, Float64x64, 3, INLINE_RANK)
GROUPED(f16, Float64x64, 2)
GROUPED(bf16, Float64x64, 2)
LISTED_PRODUCTS(f16, Float64x64, 2)
LISTED_PRODUCTS(bf16, Float64x64, 2)
#endif
