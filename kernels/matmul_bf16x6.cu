// targets: 90a
//
// matmul of float32 on Hopper's tensor cores, with float32's accuracy: out = act(a @ b + bias).
//
// matmul_split.cu has made three bfloat16 parts of each element. Blocks, producers and ring are those of matmul_wgmma.cu; a
// stage holds one part of both operands. The consumers multiply six pairs of parts, smallest first (common/wgmma_bf16x6.cuh):
// the sum of 64 of k is the tensor cores', and is added to float32 registers, rounded to nearest. Results are those of
// common/wgmma_store.cuh.
// Variants, matmul_bf16x6_{rows x columns of a block}_{epilogue}_f32: src/cuda/plan/matmul/wgmma/bf16x6/mod.rs chooses.
// Hazard: a result that is not finite, or so small that parts below bfloat16's least exponent would matter, is computed
// again by its warp, with float32 multiply-adds from the operands themselves. So infinities, NaN, overflow and subnormal
// numbers are float32's.
// Measurements: docs/measurements/matmul_bf16x6.md

#include "wgmma_bf16x6.cuh"
#include "wgmma_splitk.cuh"
#include "wgmma_store.cuh"

template <class S, EpilogueKind F> __device__ __forceinline__ void matmul_bf16x6(const Bf16x6Params& p) {
    const WgmmaParams& wgmma = p.wgmma;
    run_block<S, Schedule<S, F == EpilogueKind::splitk>>(
        wgmma,
        [&](const TileCluster&, auto& work, uint32_t shared, Ring ring) {
            constexpr bool SPLITK = F == EpilogueKind::splitk;
            // Instruction-cache warm-up: the first time nothing is multiplied and nothing stored, while the operands are
            // split.
            constexpr float WARM_UP = -2.0f, NOT_KNOWN = -1.0f;
            float least = SPLITK ? NOT_KNOWN : WARM_UP;
            while (work.left()) {
                const Item& item = work.item;
                float sum[1][S::ACCUMULATORS];
                const uint32_t blocks = (item.k_end - item.k_begin) / PARTS;
                multiply_bf16x6<S>(wgmma, sum[0], shared, ring, least == WARM_UP ? 0 : blocks);
                if (least == NOT_KNOWN) {
                    ptx::wait_for_grid_before();
                    ptx::barrier_sync(LEAST_IS_THERE, 32 * S::WARPS + 32);
                    least = *least_of_block();
                }
                const StoreEpilogue<S, F> epilogue(wgmma, shared);  // here, for no registers of it during the products
                const int32_t row = item.row + epilogue.thread_row(), col = item.col + epilogue.thread_col();
                if (needs_float32<S>(wgmma, sum[0], item, row, col, least)) {
                    multiply_float32<S>(p, sum[0], item, row, col);
                }
                if constexpr (SPLITK) {
                    reduce_splits<S>(wgmma, sum, item);
                    return;
                } else {
                    epilogue.write(sum, item, least == WARM_UP);
                    if (least == WARM_UP) {
                        least = NOT_KNOWN;
                    } else {
                        work.next();
                    }
                }
            }
            if (F == EpilogueKind::partial) ptx::let_next_grid_begin();
        },
        [](uint32_t) {}, [&] { find_least<S>(p); });
}

#define EXPORT_EPILOGUE(NAME, EPILOGUE)                                                     \
    extern "C" __global__ void __launch_bounds__(Shape##NAME::THREADS, Shape##NAME::BLOCKS) \
        matmul_bf16x6_##NAME##_##EPILOGUE##_f32(const __grid_constant__ Bf16x6Params p) {   \
        matmul_bf16x6<Shape##NAME, EpilogueKind::EPILOGUE>(p);                              \
    }
// Consumers, columns, blocks on a multiprocessor. The same list is TILES in
// src/cuda/plan/matmul/wgmma/bf16x6/mod.rs.
#define EXPORT(NAME, ...)                         \
    using Shape##NAME = Bf16x6Shape<__VA_ARGS__>; \
    EXPORT_EPILOGUE(NAME, none)                   \
    EXPORT_EPILOGUE(NAME, partial)                \
    EXPORT_EPILOGUE(NAME, splitk)                 \
    EXPORT_EPILOGUE(NAME, bias_relu)              \
    EXPORT_EPILOGUE(NAME, general)

EXPORT(64x64, 1, 64, 2)
EXPORT(128x64, 2, 64, 1)
EXPORT(128x128, 2, 128, 1)
