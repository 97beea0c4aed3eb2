// targets: 80 90 100 120 ptx:80
//
// matmul for float16 and bfloat16 on tensor cores, summed in float: out = act(a @ b + bias).
//
// A block of warps computes one tile of the result (common/mma_block.cuh). Tiles of a and b come in through a ring
// of buffers in shared memory. At the ragged edges of m, n and k the copies write zeros instead of reading: nothing
// outside an operand is ever touched.
//
// Variants, matmul_mma_{tile}_{layout}_{dtype}; src/cuda/plan/matmul/blocks.rs chooses:
//   layout  {k or m}{k or n}: the dimension with unit stride in a, in b. Each has its own image in shared memory,
//           and ldmatrix or its transposing form brings both to the same fragments.
//           "any": an operand has no unit stride, or rows that are not whole, aligned 16-byte chunks: loads of
//           single elements.
//   tile    128 x 256  large results: the fewest bytes of shared memory and of L2 for each flop
//           192 x 192, 128 x 192, 96 x 192  results of which such tiles fill the device more evenly
//           128 x 128  two blocks a multiprocessor hide each other's fill and epilogue; fits 99 KB parts
//            64 x  64  results with too few larger tiles to fill the device
//            32 x  64  few rows: bound by the bytes of b, so eight buffers keep many of them in flight
//
// Per product: 2 m n k flops; 2 (m k + k n + m n) bytes at least. Each tile of a and b is read again from L2 by every
// block in its row or column, which the grouped order of blocks (common/tile_order.cuh) keeps near.
//
// Measured on an H200, bf16, caches cold, cuBLAS's time (which has wgmma) over this kernel's: 512^3 0.84, 1024^3 0.60,
// 1536^3 0.58, 2048^3 0.61, 3072^3 0.56, 4096^3 0.60, 6144^3 0.60, 8192^3 0.58. An mma takes 6 clocks of its tensor core,
// two thirds of wgmma's rate; the tensor cores are active in 78 % of the clocks of 4096^3. In the others, by samples of
// the first variant below, both warps of a scheduler copy and work out addresses at the same time, since the barrier of
// each tile of k keeps them in step. Tried against that, all slower at 4096^3 and 8192^3:
//    3 to 6 %    fragments read one piece ahead instead of one step, which frees the registers for warps of 96 x 64: tiles
//                of 192 x 256 so took 3 to 15 % longer than 128 x 256, though they ask a fifth less of shared memory
//    1 to 4 %    all copies of a tile at once, instead of in four parts
//    10 to 19 %  persistent blocks, which copy for the next tile before the epilogue of the last; as much with mbarriers
//                instead of the block's barrier, so that warps may drift apart, and copies one by one between the mma
// A warp that does nothing but copy leaves the others 168 registers each, too few for 64 x 64.
// 96 x 192 takes 26.5 us for 1536^3, where 128 x 192 takes 32 and 192 x 96 of four warps 39; 192 x 192 takes 136 us for
// 3072^3, 128 x 192 150. A fourth buffer gains 0.3 to 3 %; six for 96 x 192 nothing.
// Odd sizes with matmul_repack.cu's copies before it (src/cuda/plan/matmul/copied.rs), us, beside "any" and cuBLAS:
// 513^3 14.6 (19.8, 18.8), 1023^3 21.9 (36.0, 29.5), 8191^3 2358 (8795, 7230).
// Where there is matmul_wgmma.cu, this kernel is left with what that cannot address and is too small to copy.

#include "mma_block.cuh"

// Any strides and any alignment: two buffers, the next tile's elements held in registers meanwhile.
template <class S, class Params> __device__ __forceinline__ void matmul_any(const Params& p) {
    ptx::wait_for_grid_before();
    using T = typename S::T;
    constexpr uint32_t STAGE_BYTES = S::template STAGE_BYTES<Major::K, Major::K>;
    static_assert(S::STAGES == 2, "one to read, one to write");
    Work<T> work;
    if (!find_work<S::BM, S::BN>(p, work)) return;
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
    warp.finish_all(p, work);
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
#define MATMUL_LAYOUTS(tile, T)      \
    MATMUL_ASYNC(tile, kk, K, K, T)  \
    MATMUL_ASYNC(tile, kn, K, MN, T) \
    MATMUL_ASYNC(tile, mk, MN, K, T) \
    MATMUL_ASYNC(tile, mn, MN, MN, T)
#define MATMUL_DTYPE(T)              \
    MATMUL_LAYOUTS(128x256, T)       \
    MATMUL_LAYOUTS(192x192, T)       \
    MATMUL_LAYOUTS(128x192, T)       \
    MATMUL_LAYOUTS(96x192, T)        \
    MATMUL_LAYOUTS(128x128, T)       \
    MATMUL_LAYOUTS(64x64, T)         \
    MATMUL_LAYOUTS(32x64, T)         \
    MATMUL_ANY(128x128, T, MAX_RANK) \
    MATMUL_ANY(64x64, T, INLINE_RANK)

MATMUL_DTYPE(f16)
MATMUL_DTYPE(bf16)
