// targets: 75 80 90 100 120 ptx:75
//
// matmul of few rows by a large matrix, or of a large matrix by few columns, without tensor cores and from any strides:
// out = act(a @ b + bias). float32, float64 in IEEE multiply-adds; fp16 and bf16 summed in float32, for devices before sm_80.
//
// As in matmul_skinny.cu k is split until all multiprocessors read; common/skinny.cuh reduces the splits. A block is
// that of matmul_simt.cu (common/simt_block.cuh) with tiles as narrow as the few rows: 128x8 takes 8 multiply-adds an
// element of the weights, and an H200 has time for 26 of float32 while one arrives. Each element is a cp.async of its
// own, or four are, where both operands are contiguous along k (common/simt_block_k.cuh).
//
// Variants, matmul_skinny_simt_{tile}_{dtype}, chosen in src/cuda/plan/matmul/skinny/mod.rs:
//   128x8, 64x8 (float64)    up to 8 few rows; two or four groups of warps take turns at k.
//   128x32, 64x32 (float64)  more; 128x64, of float32, more than 32.
//   128x32_k, 128x64_k       the same of float32 operands that are both contiguous along k, in vectors of 16 bytes.
// Measurements: docs/measurements/matmul_skinny_simt.md

#include "simt_block_k.cuh"
#include "skinny.cuh"

template <class T, class S, class Block> __device__ __forceinline__ void matmul_skinny(const SkinnyParams& params) {
    ptx::wait_for_grid_before();
    using Acc = typename S::Acc;
    using Sums = SumTile<Acc, S::BM, S::BN>;
    __shared__ __align__(16) typename Block::Shared shared;
    static_assert(S::GROUPS * Sums::BYTES <= sizeof(shared), "the sums fit where the buffers were");

    Work<T> work;
    const Split split = find_split<S::BM, S::BN>(params, work);
    Block block;
    block.multiply(params.product, work, shared, split.k);  // a split is short (src/cuda/plan/matmul/skinny)

    Acc* sums = reinterpret_cast<Acc*>(&shared);
    Acc* own = sums + (block.group * S::BN + block.col) * Sums::STRIDE + block.row;
#pragma unroll
    for (int j = 0; j < S::TN; ++j)
#pragma unroll
        for (int i = 0; i < S::TM; ++i) {
            own[Block::col_at(j) * Sums::STRIDE + Block::row_at(i)] = block.accumulator[i][j];
        }
    store_sums<S::BM, S::BN, S::GROUPS, S::THREADS>(params, work, split, sums);
}

// Without asynchronous copies (before sm_80), more than one buffer to read and one to write would only cost blocks.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
constexpr int stages(int) { return 2; }
#else
constexpr int stages(int n) { return n; }
#endif

//                                  BM  BN  BK TM TN lanes threads stages
using Float128x8 = SimtShape<float, 128, 8, 16, 4, 4, 16, 128, stages(5)>;
using Float128x32 = SimtShape<float, 128, 32, 16, 8, 4, 4, 128, stages(4)>;
using Float128x64 = SimtShape<float, 128, 64, 16, 8, 8, 4, 128, 3>;  // whose sums need as much everywhere
using Float128x32K = SimtShape<float, 128, 32, 16, 8, 4, 4, 128, 3>;
using Double64x8 = SimtShape<double, 64, 8, 16, 4, 4, 16, 128, stages(4)>;
using Double64x32 = SimtShape<double, 64, 32, 16, 4, 4, 4, 128, stages(3)>;

#define EXPORT(tile, T, S, BLOCKS, ...)                                           \
    extern "C" __global__ void __launch_bounds__(S::THREADS, BLOCKS)              \
        matmul_skinny_simt_##tile##_##T(const __grid_constant__ SkinnyParams p) { \
        matmul_skinny<T, S, __VA_ARGS__>(p);                                      \
    }
#define SKINNY(tile, T, Acc, BLOCKS) EXPORT(tile, T, Acc##tile, BLOCKS, SimtBlock<T, Acc##tile>)
SKINNY(128x8, f32, Float, 4)
SKINNY(128x32, f32, Float, 4)
SKINNY(128x64, f32, Float, 3)
EXPORT(128x32_k, f32, Float128x32K, 4, SimtBlockK<Float128x32K>)
EXPORT(128x64_k, f32, Float128x64, 3, SimtBlockK<Float128x64>)
SKINNY(64x8, f64, Double, 4)
SKINNY(64x32, f64, Double, 4)

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 800
SKINNY(128x8, f16, Float, 4)
SKINNY(128x32, f16, Float, 4)
SKINNY(128x8, bf16, Float, 4)
SKINNY(128x32, bf16, Float, 4)
#endif
