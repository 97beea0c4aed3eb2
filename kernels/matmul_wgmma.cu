// targets: 90a
//
// matmul of float16 and bfloat16 on Hopper's tensor cores (wgmma), summed in float32: out = act(a @ b + bias) + residual,
// or act(a @ gate + bias) * (a @ b + bias) + residual, where half of a tile's columns are the gate's.
//
// Persistent blocks take tiles in grouped order (common/tile_order.cuh). Two producer threads, one an operand, fill a
// ring of stages in shared memory by TMA (common/wgmma_mainloop.cuh); 1 to 3 consumer warpgroups multiply stages and
// apply the epilogue (common/wgmma_epilogue.cuh) while the producers load the next tile, and in ping-pong another
// consumer multiplies it. Clusters of two and four share boxes of a and b by multicast; or a cluster's blocks are the k
// splits of a tile and reduce through distributed shared memory (common/wgmma_splitk.cuh). Base and strides are
// multiples of 16 bytes; m, n, k are any. Variants, matmul_wgmma_{rows x columns of a tile}_{epilogue}_{dtype}:
// src/cuda/plan/matmul/wgmma/{mod,epilogue}.rs choose; `transpose`, of the transposed product: wgmma/transposed/mod.rs.
// Hazard: an arrival at another block's barrier must not be a release at cluster scope, which costs 1000 clocks a
// stage: it waits for all earlier accesses of the thread.
// Measurements: docs/measurements/matmul_wgmma.md

#include "wgmma_block.cuh"
#include "wgmma_epilogue.cuh"
#include "wgmma_splitk.cuh"
#include "wgmma_transposed.cuh"

template <class S, EpilogueKind F> struct EpilogueOf {
    using Type = Epilogue<S, F>;
};
template <class S> struct EpilogueOf<S, EpilogueKind::transpose> {
    using Type = TransposedEpilogue<S>;
};

// In ping-pong a warpgroup has every second item of its block, and multiplies it while the other stores the one before. A barrier
// for each says that it is its turn to multiply: the other arrives there when it has issued its last product. Otherwise all
// have every item.
template <class S> struct Turns {
    const uint32_t own = S::PING_PONG ? __shfl_sync(~0u, threadIdx.x / 128, 0) : 0;

    template <class Work> __device__ __forceinline__ Turns(Work& work, Ring& ring) {
        if (own == 0) return;
        ptx::barrier_arrive(TURN, 256);
        skip(work, ring);
    }
    __device__ __forceinline__ void wait() const {
        if (S::PING_PONG) ptx::barrier_sync(TURN + own, 256);
    }
    template <class Work> __device__ __forceinline__ void pass(const Work& work) const {
        if (S::PING_PONG && work.more()) ptx::barrier_arrive(TURN + (own ^ 1), 256);
    }
    template <class Work> __device__ __forceinline__ void next(Work& work, Ring& ring) const {
        work.next();
        if (S::PING_PONG) skip(work, ring);
    }

private:
    template <class Work> __device__ __forceinline__ static void skip(Work& work, Ring& ring) {
        if (!work.left()) return;
        ring.skip(work.item.k_end - work.item.k_begin);
        work.next();
    }
};

template <class S, EpilogueKind F, class Work>
__device__ __forceinline__ void consume(const WgmmaParams& p, const TileCluster& cluster, Work& work, uint32_t shared,
                                        Ring ring) {
    Accumulators<S> d;
    if constexpr (F == EpilogueKind::splitk) {
        multiply<S>(p, cluster, d, shared, ring, work.item.k_end - work.item.k_begin);
        reduce_splits<S>(p, d, work.item);
        return;
    }
    typename EpilogueOf<S, F>::Type epilogue(p, shared);
    const Turns<S> turns(work, ring);
    // Instruction-cache warm-up: the first time nothing is multiplied and nothing stored, so that the epilogue's instructions
    // arrive while the first boxes do. Instructions of the longer epilogues lie behind what a launch fetches, and arrive
    // later than the end of a long k; so those do it for a short k only. The second consumer in ping-pong always does: it waits for its
    // turn.
    constexpr bool IS_SHORT = F == EpilogueKind::none || F == EpilogueKind::transpose;
    constexpr uint32_t SHORT = IS_SHORT ? ~0u : Epilogue<S, F>::ANY ? 12 : 24;  // of k, in blocks
    for (bool warm_up = turns.own > 0 || p.split_blocks <= SHORT; work.left(); warm_up = false) {
        const Item& item = work.item;
        epilogue.load_bias(item, warm_up);
        if constexpr (Epilogue<S, F>::HELD) epilogue.load_residual(item, warm_up);
        const uint32_t blocks = warm_up ? 0 : item.k_end - item.k_begin;
        const auto prepare = [&](uint32_t block, const Ring&) {
            if constexpr (Epilogue<S, F>::RESIDUAL) epilogue.ask_for_residual(item, block, blocks);
        };
        if (!warm_up) turns.wait();
        multiply<S>(p, cluster, d, shared, ring, blocks, prepare, [&] {
            if (!warm_up) turns.pass(work);
        });
        epilogue.write(d, item, warm_up);
        if (!warm_up) turns.next(work, ring);
    }
    epilogue.sent();
    // Not earlier: the blocks of matmul_reduce would take the multiprocessors that have no tile.
    if (F == EpilogueKind::partial) ptx::let_next_grid_begin();
}

template <class S, EpilogueKind F> __device__ __forceinline__ void matmul_wgmma(const WgmmaParams& p) {
    run_block<S, Schedule<S, F == EpilogueKind::splitk>>(
        p,
        [&](const TileCluster& cluster, auto& work, uint32_t shared, Ring ring) {
            consume<S, F>(p, cluster, work, shared, ring);
        },
        [](uint32_t) {}, [] {});
}

#define EXPORT_EPILOGUE(T, NAME, EPILOGUE)                                                        \
    extern "C" __global__ void __launch_bounds__(Shape##NAME##T::THREADS, Shape##NAME##T::BLOCKS) \
        matmul_wgmma_##NAME##_##EPILOGUE##_##T(const __grid_constant__ WgmmaParams p) {           \
        matmul_wgmma<Shape##NAME##T, EpilogueKind::EPILOGUE>(p);                                  \
    }
#define EXPORT(T, NAME, ...)                           \
    using Shape##NAME##T = WgmmaShape<T, __VA_ARGS__>; \
    EXPORT_EPILOGUE(T, NAME, none)                     \
    EXPORT_EPILOGUE(T, NAME, partial)                  \
    EXPORT_EPILOGUE(T, NAME, bias_relu)                \
    EXPORT_EPILOGUE(T, NAME, general)
#define EXPORT_PING_PONG(T, NAME, ...)                       \
    using Shape##NAME##T = WgmmaShape<T, __VA_ARGS__, true>; \
    EXPORT_EPILOGUE(T, NAME, none)                           \
    EXPORT_EPILOGUE(T, NAME, bias_relu)                      \
    EXPORT_EPILOGUE(T, NAME, general)

// Consumers, 64 rows of each so many times, columns, blocks on a multiprocessor. The same list is TILES in
// src/cuda/plan/matmul/wgmma/mod.rs.
#define TILES(T)                     \
    EXPORT(T, 64x64, 1, 1, 64, 2)    \
    EXPORT(T, 64x128, 1, 1, 128, 2)  \
    EXPORT(T, 64x256, 1, 1, 256, 1)  \
    EXPORT(T, 128x64, 2, 1, 64, 2)   \
    EXPORT(T, 128x96, 2, 1, 96, 1)   \
    EXPORT(T, 192x96, 3, 1, 96, 1)   \
    EXPORT(T, 128x112, 2, 1, 112, 1) \
    EXPORT(T, 128x128, 2, 1, 128, 1) \
    EXPORT(T, 128x160, 2, 1, 160, 1) \
    EXPORT(T, 128x176, 2, 1, 176, 1) \
    EXPORT(T, 128x192, 2, 1, 192, 1) \
    EXPORT(T, 128x224, 2, 1, 224, 1) \
    EXPORT(T, 128x256, 2, 1, 256, 1) \
    EXPORT(T, 192x128, 3, 1, 128, 1) \
    EXPORT(T, 192x192, 3, 1, 192, 1) \
    EXPORT(T, 256x128, 2, 2, 128, 1) \
    EXPORT(T, 256x192, 2, 2, 192, 1) \
    EXPORT_PING_PONG(T, 128x128pingpong, 2, 2, 128, 1)

// Cluster split-K for small tiles, which few rows take; a residual for large tiles that have it come by TMA, and small ones;
// a gate where half of the columns are whole boxes.
#define MORE_EPILOGUES(T)                       \
    EXPORT_EPILOGUE(T, 64x64, splitk)           \
    EXPORT_EPILOGUE(T, 64x128, splitk)          \
    EXPORT_EPILOGUE(T, 128x64, splitk)          \
    EXPORT_EPILOGUE(T, 128x128, splitk)         \
    EXPORT_EPILOGUE(T, 64x64, residual)         \
    EXPORT_EPILOGUE(T, 64x128, residual)        \
    EXPORT_EPILOGUE(T, 128x128, residual)       \
    EXPORT_EPILOGUE(T, 128x192, residual)       \
    EXPORT_EPILOGUE(T, 128x256, residual)       \
    EXPORT_EPILOGUE(T, 64x64, plain_residual)   \
    EXPORT_EPILOGUE(T, 64x128, plain_residual)  \
    EXPORT_EPILOGUE(T, 128x128, plain_residual) \
    EXPORT_EPILOGUE(T, 128x192, plain_residual) \
    EXPORT_EPILOGUE(T, 128x256, plain_residual) \
    EXPORT_EPILOGUE(T, 64x128, gated)           \
    EXPORT_EPILOGUE(T, 64x256, gated)           \
    EXPORT_EPILOGUE(T, 128x128, gated)          \
    EXPORT_EPILOGUE(T, 128x256, gated)          \
    EXPORT_EPILOGUE(T, 192x128, gated)          \
    EXPORT_EPILOGUE(T, 256x128, gated)

// Whose columns are few rows of the caller's matrix: the same list is TILES in
// src/cuda/plan/matmul/wgmma/transposed/mod.rs.
#define EXPORT_TRANSPOSED(T, NAME, ...)                \
    using Shape##NAME##T = WgmmaShape<T, __VA_ARGS__>; \
    EXPORT_EPILOGUE(T, NAME, transpose)
#define TRANSPOSED(T)                           \
    EXPORT_TRANSPOSED(T, 128x72, 2, 1, 72, 1)   \
    EXPORT_TRANSPOSED(T, 128x88, 2, 1, 88, 1)   \
    EXPORT_TRANSPOSED(T, 128x104, 2, 1, 104, 1) \
    EXPORT_TRANSPOSED(T, 128x152, 2, 1, 152, 1)

TILES(f16)
TILES(bf16)
TRANSPOSED(f16)
TRANSPOSED(bf16)
MORE_EPILOGUES(f16)
MORE_EPILOGUES(bf16)
