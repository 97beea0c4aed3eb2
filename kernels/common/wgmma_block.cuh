// The warps of a block of matmul_wgmma.cu: consumers, two producers, one that makes the barriers, and one left over.
#pragma once

#include "wgmma_mainloop.cuh"

// As many as there can be stages: straight code is sooner done than a loop over the stages that there are, or over lanes.
template <class S, class Work> __device__ __forceinline__ void make_barriers(const WgmmaParams& p, Ring ring) {
    const uint32_t blocks =
        S::HAS_CLUSTERS ? TileCluster::rows_of(p.cluster) + TileCluster::columns_of(p.cluster) - 1 : 1;
#pragma unroll
    for (uint32_t stage = 0; stage < MAX_STAGES; ++stage) {
        ptx::mbarrier_init(ring.full(stage), 2);
        ptx::mbarrier_init(ring.empty(stage), 4 * S::SHARING * blocks);
    }
    Work::make_barriers(ring.barriers);
    ptx::fence_mbarrier_init();
}

// `Work` says what is next, as Schedule does. `consume` is what a consumer warp does, `schedule` what the one does that made
// the barriers, and `aside` what a warp does that is left over.
template <class S, class Work, class Consume, class Scheduling, class Aside>
__device__ __forceinline__ void run_block(const WgmmaParams& p, Consume consume, Scheduling schedule, Aside aside) {
    constexpr uint32_t PRODUCER = 32 * S::WARPS;  // the first thread after the consumers
    const uint32_t shared = uint32_t(__cvta_generic_to_shared(wgmma_shared));
    const Ring ring{shared, p.stages};
    const bool in_cluster = S::HAS_CLUSTERS && p.cluster != TileCluster::ALONE;
    // Of all blocks of the cluster, or for the threads of this one that wait at `barrier`.
    const auto barriers_are_there = [&](uint32_t barrier, uint32_t threads) {
        if (in_cluster) {
            ptx::cluster_arrive();
            ptx::cluster_wait();
        } else {
            ptx::barrier_sync(barrier, threads);
        }
    };
    if (threadIdx.x < PRODUCER) {
        ptx::take_registers<S::CONSUMER_REGISTERS>();
        const TileCluster cluster = TileCluster::of<S>(p);
        Work work(p, cluster);
        barriers_are_there(CONSUMERS_START, PRODUCER + 32);
        work.begin(shared);
        consume(cluster, work, shared, ring);
        return;
    }
    ptx::give_registers<S::PRODUCER_REGISTERS>();
    const uint32_t warp = threadIdx.x / 32 - S::WARPS;
    if (warp < 2) {  // finds out what to do first while another makes the barriers
        if (ptx::elect()) ptx::tma_prefetch_map(warp == 0 ? p.a : p.b);
        const TileCluster cluster = TileCluster::of<S>(p);
        Work work(p, cluster);
        barriers_are_there(PRODUCERS_START, 96);
        if (!ptx::elect()) return;
        work.begin(shared);
        ptx::wait_for_grid_before();  // and with it all but Epilogue::load_bias
        if (warp == 0) {
            produce<S, false>(p, cluster, work, shared, ring);
        } else {
            produce<S, true>(p, cluster, work, shared, ring);
        }
    } else if (warp == 2) {
        if (ptx::elect()) make_barriers<S, Work>(p, ring);
        __syncwarp();
        if (in_cluster) {
            barriers_are_there(0, 0);
        } else {
            ptx::barrier_arrive(PRODUCERS_START, 96);
            ptx::barrier_arrive(CONSUMERS_START, PRODUCER + 32);
        }
        schedule(shared);
    } else {
        aside();
    }
}
