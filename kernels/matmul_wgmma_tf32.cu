// targets: 90a
//
// matmul of float32 on Hopper's tensor cores where the caller permits TF32 (precision="tf32"): out = act(a @ b + bias).
// The copy engine rounds what it loads to the 19 bits that the tensor cores read; sums are float32.
//
// The ring, the blocks and their order are those of matmul_wgmma.cu; a stage holds 32 of k. wgmma takes floats from shared memory
// K-major only: rows that lie across k come by registers (common/wgmma_rows_across.cuh), and columns that do are the rows of the
// transposed product. Where both lie across k, or an operand is off 16 bytes, one is copied first (matmul_repack.cu). Results are
// those of common/wgmma_store.cuh.
// Variants, matmul_wgmma_tf32_{rows x columns of a block}_{epilogue}_f32: src/cuda/plan/matmul/wgmma/tf32/mod.rs chooses.
// Measurements: docs/measurements/matmul_wgmma_tf32.md

#include "wgmma_block.cuh"
#include "wgmma_rows_across.cuh"
#include "wgmma_store.cuh"

template <int CONSUMERS, int BN, int BLOCKS> struct Tf32Shape : WgmmaShape<float, CONSUMERS, 1, BN, BLOCKS> {
    static constexpr uint32_t PLANES = 2;  // a block of k is 64 floats
    static constexpr bool CAN_TMA_STORE = false, MAY_BE_DOWN = true;

    static __device__ __forceinline__ RowsOfLane rows_of_lane(const WgmmaParams& p, uint32_t lane) {
        return p.a_mn ? RowsOfLane{int32_t(lane / 4) * 2, 1} : RowsOfLane{int32_t(lane / 4), 8};
    }
};

template <class S, EpilogueKind F> __device__ __forceinline__ void matmul_wgmma_tf32(const WgmmaParams& p) {
    run_block<S, Schedule<S, false>>(
        p,
        [&](const TileCluster& cluster, auto& work, uint32_t shared, Ring ring) {
            Accumulators<S> d;
            // Instruction-cache warm-up: the first time nothing is multiplied and nothing stored.
            for (bool warm_up = true; work.left(); warm_up = false) {
                const Item& item = work.item;
                const uint32_t blocks = warm_up ? 0 : item.k_end - item.k_begin;
                const StoreEpilogue<S, F> epilogue(p, shared);
                if (!warm_up) epilogue.prefetch(item);
                if (p.a_mn) {
                    multiply_across<S>(p, cluster, d, shared, ring, blocks);
                } else {
                    multiply<S>(p, cluster, d, shared, ring, blocks);
                }
                if (warm_up) ptx::wait_for_grid_before();  // for bias, and before stores
                epilogue.write(d, item, warm_up);
                if (!warm_up) work.next();
            }
            if (F == EpilogueKind::partial) ptx::let_next_grid_begin();
        },
        [](uint32_t) {}, [] {});
}

#define EXPORT_EPILOGUE(NAME, EPILOGUE)                                                      \
    extern "C" __global__ void __launch_bounds__(Shape##NAME::THREADS, Shape##NAME::BLOCKS)  \
        matmul_wgmma_tf32_##NAME##_##EPILOGUE##_f32(const __grid_constant__ WgmmaParams p) { \
        matmul_wgmma_tf32<Shape##NAME, EpilogueKind::EPILOGUE>(p);                           \
    }
// Consumers, columns, blocks on a multiprocessor. The same list is TILES in src/cuda/plan/matmul/wgmma/tf32/mod.rs.
#define EXPORT(NAME, ...)                       \
    using Shape##NAME = Tf32Shape<__VA_ARGS__>; \
    EXPORT_EPILOGUE(NAME, none)                 \
    EXPORT_EPILOGUE(NAME, partial)              \
    EXPORT_EPILOGUE(NAME, bias_relu)            \
    EXPORT_EPILOGUE(NAME, general)

EXPORT(64x64, 1, 64, 2)
EXPORT(128x64, 2, 64, 1)
EXPORT(128x128, 2, 128, 1)
EXPORT(128x256, 2, 256, 1)
