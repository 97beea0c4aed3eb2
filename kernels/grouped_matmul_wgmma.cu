// targets: 90a
//
// grouped_matmul of float16 and bfloat16 on Hopper's tensor cores: for each group out = act(a @ b + bias), where groups are
// of rows of a, or of k; or act(a @ gate + bias) * (a @ b + bias), where half of a tile's columns are the gate's.
// It is matmul_wgmma.cu (its ring, products and epilogue) but for which tile comes next.
//
// The warp that makes the barriers then reads the groups' ends in device memory, 32 at a time, and hands this block's
// tiles, every gridDim.x-th of all groups', to producers and consumers by slots in shared memory
// (common/wgmma_grouped.cuh), a few tiles ahead of them. One tensor map shows all of an operand: a box may hold rows of
// the next group, which are multiplied and not stored, or k of it, which are cleared first. Along the unit stride a box
// must begin at a multiple of 16 bytes: so rows are cut of an a contiguous along k, and k of operands that are not.
// Variants, grouped_matmul_wgmma_{rows or depth}_{rows x columns of a block}_{epilogue}_{dtype}:
// src/cuda/plan/matmul/wgmma/grouped.rs chooses the tile by the mean group.
// Hazard: a group's last rows must not go by TMA, which would write the next group's.
// Measurements: docs/measurements/grouped_matmul_wgmma.md

#include "wgmma_grouped.cuh"

template <class S, EpilogueKind F, bool DEPTH>
__device__ __forceinline__ void grouped_matmul_wgmma(const GroupedWgmmaParams& p) {
    run_block<S, GroupedWork<S, DEPTH>>(
        p.wgmma,
        [&](const TileCluster& cluster, auto& work, uint32_t shared, Ring ring) {
            Accumulators<S> d;
            Epilogue<S, F> epilogue(p.wgmma, shared);
            const int32_t own_row = epilogue.row_of(0) / 64 * 64;
            for (; work.left(); work.next()) {
                const auto& item = work.item;
                if (!DEPTH && S::CONSUMERS > 1 && item.row + own_row >= item.end) {
                    pass_over<S>(ring, item.k_end);
                    continue;
                }
                epilogue.load_bias(item, !DEPTH && item.is_rest(p.wgmma));
                multiply_grouped<S, DEPTH>(p.wgmma, cluster, d, shared, ring, item);
                epilogue.write(d, item, false);
            }
            epilogue.sent();
        },
        [&](uint32_t shared) { find_items<S, DEPTH>(p, shared); }, [] {});
}

#define EXPORT_KERNEL(T, NAME, EPILOGUE, FORM, DEPTH)                                                           \
    extern "C" __global__ void __launch_bounds__(Shape##NAME##T::THREADS, Shape##NAME##T::BLOCKS)               \
        grouped_matmul_wgmma_##FORM##_##NAME##_##EPILOGUE##_##T(const __grid_constant__ GroupedWgmmaParams p) { \
        grouped_matmul_wgmma<Shape##NAME##T, EpilogueKind::EPILOGUE, DEPTH>(p);                                 \
    }
#define EXPORT_ROWS(T, NAME, ...)                        \
    using Shape##NAME##T = GroupedShape<T, __VA_ARGS__>; \
    EXPORT_KERNEL(T, NAME, none, rows, false)            \
    EXPORT_KERNEL(T, NAME, bias_relu, rows, false)       \
    EXPORT_KERNEL(T, NAME, general, rows, false)
#define EXPORT_BOTH(T, NAME, ...)             \
    EXPORT_ROWS(T, NAME, __VA_ARGS__)         \
    EXPORT_KERNEL(T, NAME, none, depth, true) \
    EXPORT_KERNEL(T, NAME, general, depth, true)

#define EXPORT_GATED(T)                           \
    EXPORT_KERNEL(T, 64x128, gated, rows, false)  \
    EXPORT_KERNEL(T, 128x256, gated, rows, false) \
    EXPORT_KERNEL(T, 128x256, gated, depth, true)

// Some of the tiles of matmul_wgmma.cu. The same list is TILES in src/cuda/plan/matmul/wgmma/grouped.rs.
#define TILES(T)                          \
    EXPORT_ROWS(T, 64x128, 1, 1, 128, 2)  \
    EXPORT_BOTH(T, 128x128, 2, 1, 128, 1) \
    EXPORT_ROWS(T, 128x192, 2, 1, 192, 1) \
    EXPORT_BOTH(T, 128x256, 2, 1, 256, 1)

TILES(f16)
TILES(bf16)
EXPORT_GATED(f16)
EXPORT_GATED(bf16)
