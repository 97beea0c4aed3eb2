// targets: 90a
//
// What the kernels do with clusters of two blocks, small, and with one mistake each: cases of test_pairs.py.

#include <cstdint>

#include "ptx/cluster.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"

enum Mistake : uint32_t {
    none,
    no_fence,               // after mbarrier.init
    others_not_waited_for,  // before a stage is filled again
    leaves_early,           // while the other still arrives
    box_outside_of_cluster,
    arrives_outside_of_cluster,
    arrives_at_no_barrier,
    arrives_at_returned,
    announces_too_much,
    address_as_own,    // of the cluster
    waits_for_nobody,  // in a launch that may begin before the one before it is done
};

struct alignas(64) Params {
    TensorMap map;  // rows of 32 uint32_t, box of 4
    uint32_t* out;  // [block][item][8 rows][32]
    uint32_t items, mistake;
};

constexpr uint32_t STAGES = 2, HALF = 4 * 128, FULL = 64, EMPTY = 128;  // bytes

// Both blocks load half of every item of 8 rows for both. Warp 0 copies them to `out`, warp 1 loads, warp 2 returns.
__global__ void __launch_bounds__(96) pairs(const __grid_constant__ Params p) {
    extern __shared__ __align__(1024) unsigned char shared_bytes[];
    const uint32_t shared = uint32_t(__cvta_generic_to_shared(shared_bytes));
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, rank = ptx::cluster_rank();
    const uint32_t full = shared + FULL, empty = shared + EMPTY;
    const bool alone = p.mistake == others_not_waited_for;
    if (warp == 2) return;
    if (threadIdx.x == 0) {
        for (uint32_t s = 0; s < STAGES; ++s) {
            ptx::mbarrier_init(full + s * 8, 1);
            ptx::mbarrier_init(empty + s * 8, alone ? 1 : 2);
        }
        if (p.mistake != no_fence) ptx::fence_mbarrier_init();
    }
    __syncwarp();
    ptx::cluster_arrive();
    ptx::cluster_wait();
    if (p.mistake == arrives_at_returned && rank == 1) return;
    const auto parity = [](uint32_t item) { return item / STAGES & 1; };
    if (warp == 1) {
        if (lane != 0) return;
        for (uint32_t item = 0; item < p.items; ++item) {
            const uint32_t s = item % STAGES, at = shared + 1024 + s * 2 * HALF + rank * HALF;
            ptx::mbarrier_wait(empty + s * 8, parity(item) ^ 1);
            ptx::mbarrier_arrive_expect(full + s * 8, 2 * HALF + (p.mistake == announces_too_much ? 16 : 0));
            const uint16_t blocks = p.mistake == box_outside_of_cluster ? 0b101 : 0b11;
            ptx::tma_multicast_2d(at, p.map, full + s * 8, 0, int32_t(item * 8 + rank * 4), blocks);
        }
        if (p.mistake == leaves_early) return;
        for (uint32_t item = p.items; item < p.items + STAGES; ++item) {
            ptx::mbarrier_wait(empty + item % STAGES * 8, parity(item) ^ 1);
        }
        return;
    }
    const uint32_t other = p.mistake == arrives_outside_of_cluster ? 2 : lane;
    const uint32_t there = lane < 2 ? ptx::mbarrier_of_block(shared, other) - shared : 0;
    for (uint32_t item = 0; item < p.items; ++item) {
        const uint32_t s = item % STAGES;
        ptx::mbarrier_wait(full + s * 8, parity(item));
        for (uint32_t row = lane / 8; row < 8; row += 4) {
            uint32_t words[4];
            ptx::load_shared_16(shared + 1024 + s * 2 * HALF + row * 128 + lane % 8 * 16, words);
            uint32_t* const to = p.out + ((rank * p.items + item) * 8 + row) * 32 + lane % 8 * 4;
            for (int i = 0; i < 4; ++i) to[i] = words[i];
        }
        __syncwarp();
        const uint32_t barrier = empty + s * 8 + (p.mistake == arrives_at_no_barrier ? 32 : 0);
        if (p.mistake == address_as_own && lane == 1) ptx::mbarrier_arrive(barrier + there);
        if (alone ? lane == rank : lane < 2) ptx::mbarrier_arrive_there(barrier + there);
    }
}
