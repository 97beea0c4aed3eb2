// targets: 90a
//
// matmul of few rows in float16 and bfloat16 on Hopper's tensor cores (wgmma): out = act(a @ b + bias) + residual. The few rows
// are the columns of the transposed product, 8 to 64 in a tile; the weights are its rows, 64 at a time.
//
// A block has one tile and all of k (common/wgmma_few.cuh): no k splits, no clusters, and no more code and parameters than one tile
// takes, for what a launch still has to fetch is a fifth of a short matmul. The rest of a long one is reading the weights.
// Two producer threads, one an operand, fill a ring of stages by TMA; two consumer warpgroups take every other stage and add
// their sums in shared memory. With a gate, every other stage is the gate's, and act(a @ gate + bias) meets a @ b + bias there.
// Base and strides are multiples of 16 bytes; the few rows lie along k.
// Variants, matmul_wgmma_few_{rows x columns of a block}_{epilogue}_{dtype}: src/cuda/plan/matmul/wgmma/few/mod.rs chooses.
// Hazard: as in matmul_bf16x6_few.cu, the stages of the ring are a warpgroup's own; each has two, or it would wait for itself.
// Measurements: docs/measurements/matmul_wgmma_few.md

#include "wgmma_few.cuh"

#define EXPORT_EPILOGUE(T, BN, EPILOGUE, ANY, GATED)                                       \
    extern "C" __global__ void __launch_bounds__(FewTile<T, BN>::THREADS, 2)               \
        matmul_wgmma_few_64x##BN##_##EPILOGUE##_##T(const __grid_constant__ FewParams p) { \
        run_few<FewTile<T, BN, GATED>, ANY>(p);                                            \
    }
#define EXPORT(T, BN)                               \
    EXPORT_EPILOGUE(T, BN, bias_relu, false, false) \
    EXPORT_EPILOGUE(T, BN, general, true, false)    \
    EXPORT_EPILOGUE(T, BN, gated, true, true)

// The same list is TILES in src/cuda/plan/matmul/wgmma/few/mod.rs.
#define TILES(T)  \
    EXPORT(T, 8)  \
    EXPORT(T, 16) \
    EXPORT(T, 32) \
    EXPORT(T, 64)

TILES(f16)
TILES(bf16)
