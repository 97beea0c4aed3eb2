// targets: 80 90 100 120 ptx:80
//
// matmul of float16 and bfloat16 on tensor cores (mma.sync), summed in float32: out = act(a @ b + bias). 2 m n k flops.
//
// A block of warps computes a tile of the result (common/mma_block.cuh). Tiles of a and b come through a ring of
// buffers in shared memory (cp.async), then ldmatrix; copies write zeros beyond m, n and k, and read nothing there.
// Blocks take tiles in grouped order (common/tile_order.cuh), so that tiles of a and b are read again from L2.
// Variants, matmul_mma_{tile}_{layout}_{dtype}, chosen in src/cuda/plan/matmul/blocks.rs:
//   layout  {k or m}{k or n}: the dimension of unit stride in a and in b. "any": no unit stride, or misaligned rows;
//           loads of single elements.
//   tile    128x256 large results; 192x192, 128x192, 96x192 results that those fill more evenly; 128x128 two blocks a
//           multiprocessor, and devices with 99 KB of shared memory; 64x64 few tiles; 32x64 few rows.
// grouped_matmul_mma_{tile}_{layout}_{dtype}: the same for the groups of common/grouped.cuh; list_any: for lists.
// Where matmul_wgmma.cu runs, this kernel has only what TMA cannot address and is too small to copy.
// Measurements: docs/measurements/matmul_mma.md

#include "grouped.cuh"
#include "listed.cuh"
#include "mma_block.cuh"

// Any strides and any alignment: two buffers, the next tile's elements held in registers meanwhile.
template <class S, class Params>
__device__ __forceinline__ void multiply_any(const Params& p, const Work<typename S::T>& work) {
    using T = typename S::T;
    constexpr uint32_t STAGE_BYTES = S::template STAGE_BYTES<Major::K, Major::K>;
    static_assert(S::STAGES == 2, "one to read, one to write");
    ElementCopier<T, S::BM, S::BK, S::THREADS> copy_a(work.a, p.a_row, p.a_col, work.rows, p.a_k_fast);
    ElementCopier<T, S::BN, S::BK, S::THREADS> copy_b(work.b, p.b_col, p.b_row, work.cols, p.b_k_fast);
    const uint32_t shared = uint32_t(__cvta_generic_to_shared(shared_memory));
    Warp<S, Major::K, Major::K> warp;

    const auto load = [&](int64_t left) {
        const int k_left = int(min(left, int64_t(S::BK)));
        copy_a.load(k_left);
        copy_b.load(k_left);
    };
    const auto store = [&](int stage) {
        copy_a.store(shared_memory + stage * STAGE_BYTES);
        copy_b.store(shared_memory + stage * STAGE_BYTES + S::template SharedA<Major::K>::BYTES);
        __syncthreads();
    };
    if (p.k > 0) {
        load(p.k);
        store(0);
    }
    int stage = 0;
    for (int64_t left = p.k; left > 0; left -= S::BK) {
        if (left > S::BK) load(left - S::BK);
#pragma unroll
        for (int step = 0; step < S::K_STEPS; ++step) {
            warp.read(step % 2, shared + stage * STAGE_BYTES, step);
            warp.multiply(step % 2);
        }
        stage ^= 1;
        // The other buffer was last read before the barrier of the previous store.
        if (left > S::BK) store(stage);
    }
    __syncthreads();
    warp.apply_epilogue_to_all(p, work);
}

template <class S, class Params> __device__ __forceinline__ void matmul_any(const Params& p) {
    ptx::wait_for_grid_before();
    Work<typename S::T> work;
    if (find_work<S::BM, S::BN>(p, work)) multiply_any<S>(p, work);
}

template <class S> __device__ __forceinline__ void grouped_any(const GroupedMatmulParams& p) {
    ptx::wait_for_grid_before();
    Work<typename S::T> work;
    MatmulParams<1> own;
    if (find_grouped<S::BM, S::BN>(p, work, own)) multiply_any<S>(own, work);
}
template <class S> __device__ __forceinline__ void listed_any(const ListedParams& p) {
    ptx::wait_for_grid_before();
    Work<typename S::T> work;
    MatmulParams<1> own;
    find_listed<S::BM, S::BN>(p, work, own);
    multiply_any<S>(own, work);
}
template <class S, Major A, Major B> __device__ __forceinline__ void grouped_async(const GroupedMatmulParams& p) {
    ptx::wait_for_grid_before();
    Work<typename S::T> work;
    MatmulParams<1> own;
    if (find_grouped<S::BM, S::BN>(p, work, own)) multiply_async<S, A, B>(own, work);
}

// As many of the largest tiles as shared memory has room for: 227 KB, before sm_90 163. Mirrored in
// src/cuda/plan/matmul/blocks.rs.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr int LARGE_STAGES = 3;
#else
constexpr int LARGE_STAGES = 4;
#endif

//                                              BM   BN  bytes WM  WN stages blocks
template <class T> using Tile128x256 = Shape<T, 128, 256, 128, 64, 64, LARGE_STAGES, 1>;
template <class T> using Tile192x192 = Shape<T, 192, 192, 128, 96, 48, LARGE_STAGES, 1>;
template <class T> using Tile128x192 = Shape<T, 128, 192, 128, 64, 48, LARGE_STAGES, 1>;
template <class T> using Tile96x192 = Shape<T, 96, 192, 128, 48, 48, LARGE_STAGES, 1>;
template <class T> using Tile128x128 = Shape<T, 128, 128, 64, 64, 64, 3, 2>;
template <class T> using Tile64x64 = Shape<T, 64, 64, 128, 32, 32, 3, 4>;
template <class T> using Tile32x64 = Shape<T, 32, 64, 128, 32, 16, 8, 2>;
template <class T> using Any128x128 = Shape<T, 128, 128, 64, 64, 32, 2, 1>;
template <class T> using Any64x64 = Shape<T, 64, 64, 64, 32, 16, 2, 2>;

#define MATMUL_ASYNC(tile, layout, a, b, T)                                                       \
    extern "C" __global__ void __launch_bounds__(Tile##tile<T>::THREADS, Tile##tile<T>::BLOCKS)   \
        matmul_mma_##tile##_##layout##_##T(const __grid_constant__ MatmulParams<INLINE_RANK> p) { \
        matmul_async<Tile##tile<T>, Major::a, Major::b>(p);                                       \
    }
#define MATMUL_ANY(tile, T, RANK)                                                             \
    extern "C" __global__ void __launch_bounds__(Any##tile<T>::THREADS, Any##tile<T>::BLOCKS) \
        matmul_mma_##tile##_any_##T(const __grid_constant__ MatmulParams<RANK> p) {           \
        matmul_any<Any##tile<T>>(p);                                                          \
    }
#define GROUPED_ASYNC(tile, layout, a, b, T)                                                        \
    extern "C" __global__ void __launch_bounds__(Tile##tile<T>::THREADS, Tile##tile<T>::BLOCKS)     \
        grouped_matmul_mma_##tile##_##layout##_##T(const __grid_constant__ GroupedMatmulParams p) { \
        grouped_async<Tile##tile<T>, Major::a, Major::b>(p);                                        \
    }
#define GROUPED_ANY(tile, T)                                                                  \
    extern "C" __global__ void __launch_bounds__(Any##tile<T>::THREADS, Any##tile<T>::BLOCKS) \
        grouped_matmul_mma_##tile##_any_##T(const __grid_constant__ GroupedMatmulParams p) {  \
        grouped_any<Any##tile<T>>(p);                                                         \
    }
#define LISTED_ANY(tile, T)                                                                   \
    extern "C" __global__ void __launch_bounds__(Any##tile<T>::THREADS, Any##tile<T>::BLOCKS) \
        grouped_matmul_mma_##tile##_list_any_##T(const __grid_constant__ ListedParams p) {    \
        listed_any<Any##tile<T>>(p);                                                          \
    }
// Vectors are whole along what is not cut.
#define GROUPED_LAYOUTS(tile, T)      \
    GROUPED_ASYNC(tile, kk, K, K, T)  \
    GROUPED_ASYNC(tile, kn, K, MN, T) \
    GROUPED_ASYNC(tile, mn, MN, MN, T)
#define MATMUL_LAYOUTS(tile, T)      \
    MATMUL_ASYNC(tile, kk, K, K, T)  \
    MATMUL_ASYNC(tile, kn, K, MN, T) \
    MATMUL_ASYNC(tile, mk, MN, K, T) \
    MATMUL_ASYNC(tile, mn, MN, MN, T)
#define MATMUL_DTYPE(T)               \
    MATMUL_LAYOUTS(128x256, T)        \
    MATMUL_LAYOUTS(192x192, T)        \
    MATMUL_LAYOUTS(128x192, T)        \
    MATMUL_LAYOUTS(96x192, T)         \
    MATMUL_LAYOUTS(128x128, T)        \
    MATMUL_LAYOUTS(64x64, T)          \
    MATMUL_LAYOUTS(32x64, T)          \
    MATMUL_ANY(128x128, T, MAX_RANK)  \
    MATMUL_ANY(64x64, T, INLINE_RANK) \
    GROUPED_LAYOUTS(128x128, T)       \
    GROUPED_LAYOUTS(64x64, T)         \
    GROUPED_ANY(64x64, T)             \
    LISTED_ANY(64x64, T)

MATMUL_DTYPE(f16)
MATMUL_DTYPE(bf16)
