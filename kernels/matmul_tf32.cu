// targets: 80 100 120 ptx:80
//
// matmul of float32 on tensor cores where the caller permits it (precision="tf32"): operands are rounded to 10 bits of
// mantissa on their way to the tensor core, sums are float32. out = act(a @ b + bias), 2 m n k flops.
//
// The blocks are those of matmul_mma.cu with twice the bytes an element. Operands need aligned rows of 16-byte vectors;
// others are multiplied in full precision by matmul_simt.cu. ldmatrix cannot transpose 4-byte elements: operands
// without unit stride along k are read from shared memory one element at a time.
//
// Variants, matmul_tf32_{tile}_{layout}_f32, are named and chosen as in matmul_mma.cu. Compute capability 9.0 has
// matmul_wgmma_tf32.cu instead.
// Measurements: docs/measurements/matmul_tf32.md

#include "mma_block.cuh"

//                                      BM   BN  bytes WM  WN stages blocks
using Tile128x128 = Shape<f32, 128, 128, 64, 64, 64, 3, 2>;
using Tile64x64 = Shape<f32, 64, 64, 128, 32, 32, 3, 4>;

#define MATMUL(tile, layout, a, b)                                                                 \
    extern "C" __global__ void __launch_bounds__(Tile##tile::THREADS, Tile##tile::BLOCKS)          \
        matmul_tf32_##tile##_##layout##_f32(const __grid_constant__ MatmulParams<INLINE_RANK> p) { \
        matmul_async<Tile##tile, Major::a, Major::b>(p);                                           \
    }
#define MATMUL_LAYOUTS(tile) \
    MATMUL(tile, kk, K, K)   \
    MATMUL(tile, kn, K, MN)  \
    MATMUL(tile, mk, MN, K)  \
    MATMUL(tile, mn, MN, MN)

MATMUL_LAYOUTS(128x128)
MATMUL_LAYOUTS(64x64)
