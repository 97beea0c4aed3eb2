// targets: 80 90 100 120 ptx:80
//
// matmul of few rows by a large matrix (a decoder's token step), or of a large matrix by few columns, for float16 and
// bfloat16 on tensor cores (mma.sync), summed in float32: out = act(a @ b + bias).
//
// Its time is that of reading the large operand, the weights, once. So k is split until all multiprocessors read, and a
// block keeps all stages of its ring but one in flight (48 KB of weights), two blocks a multiprocessor. The weights are
// the 16-row operand of every mma and the few rows its 8 columns, so that no tensor core row is wasted. From sm_90 on
// two k splits are a cluster, which reduces through distributed shared memory; more splits, and other devices, write
// partials to the workspace for matmul_reduce.cu. Partials are added in the order of the splits.
// Variants, matmul_skinny_{tile}_{layout}_{dtype}, chosen in src/cuda/plan/matmul/skinny/mod.rs:
//   tile    rows of the weights by few rows: 64x16.
//   layout  "k", "m": unit stride of the weights, in aligned vectors of 16 bytes. "anyk", "anym": any other weights,
//           through registers (common/gather_copier.cuh).
// Measurements: docs/measurements/matmul_skinny.md

#include "gather_copier.cuh"
#include "mma_block.cuh"
#include "skinny.cuh"

// The few rows: by asynchronous copies if they can be, else through registers.
template <class S> struct FewCopier {
    using T = typename S::T;
    bool vectors;
    AsyncCopier<T, S::BN, S::BK, Major::K, S::THREADS> async;
    GatherCopier<T, S::BN, S::BK, Major::K, S::THREADS> gather;

    __device__ __forceinline__ FewCopier(const SkinnyParams& params, const Work<T>& work)
        : vectors(params.b_vectors),
          async(work.b, params.product.b_col, work.cols),
          gather(work.b, params.product.b_col, params.product.b_row, work.cols) {}

    __device__ __forceinline__ void copy(uint32_t shared, int k_left, int part, int parts) {
        if (vectors) {
            async.copy(shared, k_left, part, parts);
        } else {
            gather.copy(shared, k_left, part, parts);
        }
    }
};

template <class S, Major A, bool ANY> __device__ __forceinline__ void matmul_skinny(const SkinnyParams& params) {
    ptx::wait_for_grid_before();
    using T = typename S::T;
    using Sums = SumTile<float, S::BM, S::BN>;
    static_assert(Sums::BYTES <= S::STAGES * S::template STAGE_BYTES<A, Major::K>, "the sums fit where the ring was");
    const auto& p = params.product;
    Work<T> work;
    const Split split = find_split<S::BM, S::BN>(params, work);
    Warp<S, A, Major::K> warp;
    if constexpr (ANY) {
        GatherCopier<T, S::BM, S::BK, A, S::THREADS> copy_a(work.a, p.a_row, p.a_col, work.rows);
        GatherCopier<T, S::BN, S::BK, Major::K, S::THREADS> copy_b(work.b, p.b_col, p.b_row, work.cols);
        multiply(warp, copy_a, copy_b, split.k);
    } else {
        AsyncCopier<T, S::BM, S::BK, A, S::THREADS> copy_a(work.a, A == Major::K ? p.a_row : p.a_col, work.rows);
        FewCopier<S> copy_b(params, work);
        multiply(warp, copy_a, copy_b, split.k);
    }

    float* sums = reinterpret_cast<float*>(shared_memory);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < S::WM / 16; ++i)
#pragma unroll
        for (int j = 0; j < S::WN / 8; ++j) {
            const float* v = warp.accumulator[i][j];
            float* at = sums + (warp.col + j * 8 + lane % 4 * 2) * Sums::STRIDE + warp.row + i * 16 + lane / 4;
            at[0] = v[0], at[Sums::STRIDE] = v[1], at[8] = v[2], at[Sums::STRIDE + 8] = v[3];
        }
    store_sums<S::BM, S::BN, 1, S::THREADS>(params, work, split, sums);
}

//                                                 BM  BN bytes WM  WN stages blocks
template <class T> using Tile64x16 = Shape<T, 64, 16, 256, 16, 16, 4, 2>;
template <class T> using Any64x16 = Shape<T, 64, 16, 128, 16, 16, 3, 4>;

#define SKINNY(tile, layout, Shape, A, ANY, T)                                          \
    extern "C" __global__ void __launch_bounds__(Shape<T>::THREADS, Shape<T>::BLOCKS)   \
        matmul_skinny_##tile##_##layout##_##T(const __grid_constant__ SkinnyParams p) { \
        matmul_skinny<Shape<T>, Major::A, ANY>(p);                                      \
    }
#define SKINNY_LAYOUTS(tile, T)              \
    SKINNY(tile, k, Tile##tile, K, false, T) \
    SKINNY(tile, m, Tile##tile, MN, false, T)
#define SKINNY_ANY(tile, T)                   \
    SKINNY(tile, anyk, Any##tile, K, true, T) \
    SKINNY(tile, anym, Any##tile, MN, true, T)
#define SKINNY_DTYPE(T)      \
    SKINNY_LAYOUTS(64x16, T) \
    SKINNY_ANY(64x16, T)

SKINNY_DTYPE(f16)
SKINNY_DTYPE(bf16)
