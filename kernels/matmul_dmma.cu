// targets: 80 90
//
// matmul of float64 on the tensor cores that take it (compute capability 8.0 and 9.0): out = act(a @ b + bias). Each
// multiply-add is rounded to nearest, as by the pipelines. 2 m n k flops.
//
// The ring and the loop are those of matmul_mma.cu (common/mma_block.cuh); fragments are of doubles (common/dmma_block.cuh).
// Tiles come through shared memory by cp.async, in vectors of 16 bytes or one double at a time, and are read from there two
// neighbours at once. Of eight steps of k the even ones are summed first.
// Variants, matmul_dmma_{tile}_{layout}_f64, chosen in src/cuda/plan/matmul/blocks.rs:
//   layout  {k or m}{k or n}: the dimension of unit stride in a and in b. "any" before it: of the smaller stride, where rows
//           are misaligned or no stride is 1.
//   tile    128x64, two blocks a multiprocessor; 64x64 and 64x32 for fewer tiles.
// Measurements: docs/measurements/matmul_dmma.md

#include "dmma_block.cuh"

//                               BM  BN  WM  WN stages blocks
using Tile128x64 = DoubleShape<128, 64, 64, 32, 4, 2>;
using Tile64x64 = DoubleShape<64, 64, 32, 32, 4, 3>;
using Tile64x32 = DoubleShape<64, 32, 32, 16, 5, 3>;

#define MATMUL(tile, layout, a, b, ELEMENTS)                                                       \
    extern "C" __global__ void __launch_bounds__(Tile##tile::THREADS, Tile##tile::BLOCKS)          \
        matmul_dmma_##tile##_##layout##_f64(const __grid_constant__ MatmulParams<INLINE_RANK> p) { \
        matmul_doubles<Tile##tile, Major::a, Major::b, ELEMENTS>(p);                               \
    }
#define MATMUL_LAYOUTS(tile, any, ELEMENTS) \
    MATMUL(tile, any##kk, K, K, ELEMENTS)   \
    MATMUL(tile, any##kn, K, MN, ELEMENTS)  \
    MATMUL(tile, any##mk, MN, K, ELEMENTS)  \
    MATMUL(tile, any##mn, MN, MN, ELEMENTS)

MATMUL_LAYOUTS(128x64, , false)
MATMUL_LAYOUTS(64x64, , false)
MATMUL_LAYOUTS(64x32, , false)
MATMUL_LAYOUTS(64x64, any, true)
