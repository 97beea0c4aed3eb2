// targets: 90a
//
// matmul of few columns in float32 on Hopper's tensor cores, with float32's accuracy: out = act(a @ b + bias) + residual; few
// rows are the columns of the transposed product.
//
// As matmul_bf16x6.cu, but that both operands are split between shared memory and the tensor cores, which take the rows from
// registers (common/wgmma_bf16x6_few.cuh): a is read once, where it is, and the time is that of reading it.
// A block has one tile, for all of k or, in a cluster, a part of it; results are those of common/wgmma_splitk.cuh.
// Variants, matmul_bf16x6_few_{rows x columns of a block}_f32: src/cuda/plan/matmul/wgmma/bf16x6/few/mod.rs chooses.
// Hazard: a warpgroup that waits for every other phase of a barrier would take the phase before for it; so the stages of the ring
// are its own or both warpgroups'.
// Measurements: docs/measurements/matmul_bf16x6_few.md

#include "wgmma_splitk.cuh"

#include "wgmma_bf16x6_few.cuh"

#define EXPORT(NAME, ...)                                                        \
    using Shape##NAME = FewShape<__VA_ARGS__>;                                   \
    extern "C" __global__ void __launch_bounds__(Shape##NAME::THREADS, 1)        \
        matmul_bf16x6_few_##NAME##_f32(const __grid_constant__ Bf16x6Params p) { \
        run_few<Shape##NAME>(p);                                                 \
    }

// Warpgroups side by side, columns. The same list is TILES in src/cuda/plan/matmul/wgmma/bf16x6/few/mod.rs.
EXPORT(64x8, 1, 8)
EXPORT(64x16, 1, 16)
EXPORT(64x32, 1, 32)
EXPORT(64x64, 1, 64)
EXPORT(128x8, 2, 8)
EXPORT(128x16, 2, 16)
EXPORT(128x32, 2, 32)
EXPORT(128x64, 2, 64)
