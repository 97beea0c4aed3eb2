// targets: 90a
//
// matmul of float16 and bfloat16 with a gate, on Hopper's tensor cores, for a caller who wants gradients: the result
// act(a @ gate + bias) * (a @ b + bias), and both sums as they were before the activation, each rounded once.
//
// The ring, the blocks, their order and the accumulators are those of matmul_wgmma.cu with a gate, without pairs and k
// splits. The result is that of matmul_wgmma.cu, bit for bit.
// Variants, matmul_wgmma_training_{rows x columns of a block}_{dtype}: src/cuda/plan/matmul/wgmma/training.rs chooses.
// Measurements: docs/measurements/matmul_wgmma_training.md

#include "wgmma_block.cuh"
#include "wgmma_training.cuh"

template <class Element, int CONSUMERS, int BN, int BLOCKS>
struct TrainingShape : WgmmaShape<Element, CONSUMERS, 1, BN, BLOCKS> {
    static constexpr bool HAS_CLUSTERS = false;
};

template <class S> __device__ __forceinline__ void matmul_wgmma_training(const TrainingParams& all) {
    const WgmmaParams& p = all.wgmma;
    run_block<S, Schedule<S, false>>(
        p,
        [&](const TileCluster& cluster, auto& work, uint32_t shared, Ring ring) {
            Accumulators<S> d;
            TrainingEpilogue<S> epilogue(all, shared);
            for (; work.left(); work.next()) {
                const Item& item = work.item;
                epilogue.load_bias(item, false);
                multiply<S>(p, cluster, d, shared, ring, item.k_end - item.k_begin);
                epilogue.write(d, item);
            }
            epilogue.sent();
        },
        [](uint32_t) {}, [] {});
}

// Consumers, columns of which half are the gate's, blocks on a multiprocessor. The same list is TILES in
// src/cuda/plan/matmul/wgmma/training.rs.
#define EXPORT(T, NAME, ...)                                                                      \
    using Shape##NAME##T = TrainingShape<T, __VA_ARGS__>;                                         \
    extern "C" __global__ void __launch_bounds__(Shape##NAME##T::THREADS, Shape##NAME##T::BLOCKS) \
        matmul_wgmma_training_##NAME##_##T(const __grid_constant__ TrainingParams p) {            \
        matmul_wgmma_training<Shape##NAME##T>(p);                                                 \
    }

EXPORT(f16, 64x128, 1, 128, 2)
EXPORT(f16, 128x256, 2, 256, 1)
EXPORT(bf16, 64x128, 1, 128, 2)
EXPORT(bf16, 128x256, 2, 256, 1)
