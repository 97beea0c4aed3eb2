// targets: 90a
//
// matmul of float32 on Hopper's tensor cores where the caller permits TF32 (precision="tf32"): out = act(a @ b + bias).
// The copy engine rounds what it loads to the 19 bits that the tensor cores read; sums are float32.
//
// The ring, the blocks and their order are those of matmul_wgmma.cu; a stage holds 32 of k. wgmma takes floats K-major only, so operands of other layouts, or off 16 bytes, are copied first
// (matmul_repack.cu). Results go from registers to memory (common/wgmma_store.cuh).
// Variants, matmul_wgmma_tf32_{rows x columns of a block}_{epilogue}_f32: src/cuda/plan/matmul/wgmma/tf32/mod.rs chooses.
// Measurements: docs/measurements/matmul_wgmma_tf32.md

#include "wgmma_block.cuh"
#include "wgmma_store.cuh"

template <int CONSUMERS, int BN, int BLOCKS> struct Tf32Shape : WgmmaShape<float, CONSUMERS, 1, BN, BLOCKS> {
    static constexpr uint32_t PLANES = 2;  // a block of k is 64 floats
    // Results go from registers to memory.
    static constexpr int STAGES_AT = HEADER_BYTES;
    static constexpr bool CAN_TMA_STORE = false;
};

template <class S, EpilogueKind F> __device__ __forceinline__ void matmul_wgmma_tf32(const WgmmaParams& p) {
    run_block<S, Schedule<S, false>>(
        p,
        [&](const Pair& pair, auto& work, uint32_t shared, Ring ring) {
            Accumulators<S> d;
            // Instruction-cache warm-up: the first time nothing is multiplied and nothing stored.
            for (bool warm_up = true; work.left(); warm_up = false) {
                const Item& item = work.item;
                multiply<S>(p, pair, d, shared, ring, warm_up ? 0 : item.k_end - item.k_begin);
                if (warm_up) ptx::wait_for_grid_before();  // for bias, and before stores
                StoreEpilogue<S, F>(p, shared).write(d, item, warm_up);
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
