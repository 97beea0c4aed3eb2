// The two sides of the ring of stages in matmul_wgmma.cu: one thread that fills it, and warpgroups that multiply.
#pragma once

#include "wgmma_shape.cuh"

// Loads one operand's box or boxes of a stage, or this block's half of each for a pair, to both of its blocks. K-major:
// `Rows` rows of m or n, each 64 elements of k. MN-major: panels of 64 elements of m or n, each of 64 rows of k.
template <int Rows>
__device__ __forceinline__ void load_operand(const WgmmaParams& p, const TensorMap& map, bool mn_major, uint32_t shared,
                                             uint32_t barrier, int32_t mn, int32_t k, const int32_t (&batch)[3],
                                             Pair pair) {
    const int32_t skip = int32_t(pair.rank) * ((mn_major ? BLOCK_K : Rows) / 2);
    const auto load = [&](uint32_t at, int32_t x, int32_t y) {
        at += skip * 128;
        y += skip;
        if (pair.blocks > 1) {
            if (p.batched) {
                ptx::tma_multicast_5d(at, map, barrier, x, y, batch, 0b11);
            } else {
                ptx::tma_multicast_2d(at, map, barrier, x, y, 0b11);
            }
        } else if (p.batched) {
            ptx::tma_load_5d(at, map, barrier, x, y, batch);
        } else {
            ptx::tma_load_2d(at, map, barrier, x, y);
        }
    };
    if (mn_major) {
#pragma unroll
        for (int i = 0; i < (Rows + 63) / 64; ++i) load(shared + i * PANEL_BYTES, mn + 64 * i, k);
    } else {
        load(shared, k, mn);
    }
}

// The producer: fills every stage as soon as it is empty, through all items, and never waits for anything else, so
// that the next tile's first stages arrive while this one's results are stored.
template <class S>
__device__ __forceinline__ void produce(const WgmmaParams& p, const Pair& pair, Schedule<S>& work, uint32_t shared,
                                        Ring ring) {
    for (; work.left(); work.next()) {
        const Item& item = work.item;
        int32_t batch_a[3], batch_b[3];
#pragma unroll
        for (int d = 0; d < 3; ++d) {
            batch_a[d] = p.a_batches >> d & 1 ? item.batch[d] : 0;
            batch_b[d] = p.b_batches >> d & 1 ? item.batch[d] : 0;
        }
        for (uint32_t k = item.k_begin; k < item.k_end; ++k) {
            ptx::mbarrier_wait(ring.empty(ring.stage), ring.phase ^ 1);
            const uint32_t a = shared + S::STAGES_AT + ring.stage * (S::A_BYTES + S::B_BYTES), b = a + S::A_BYTES;
            const uint32_t full = ring.full(ring.stage);
            ptx::mbarrier_arrive_expect(full, p.stage_bytes);
            load_operand<S::BM>(p, p.a, p.a_mn, a, full, item.row, k * BLOCK_K, batch_a, Pair{});
            load_operand<S::BN>(p, p.b, p.b_mn, b, full, item.col, k * BLOCK_K, batch_b, pair);
            ring.advance();
        }
    }
    // The barriers stay until the other block does not arrive at them any more: every stage is handed back.
    for (uint32_t i = 0; pair.blocks > 1 && i < p.stages; ++i) {
        ptx::mbarrier_wait(ring.empty(ring.stage), ring.phase ^ 1);
        ring.advance();
    }
}

template <class S> using Accumulators = float[S::M_STEPS][S::ACCUMULATORS];

// Issues the products of one stage as one group. Which dimension has unit stride is part of the instruction, so there
// is a version for each layout; a branch for each stage costs nothing beside hundreds of clocks of products, and saves
// three kernels of four. (A loop for each layout would have ptxas serialise wgmma, C7515.)
template <class S, bool A_MN, bool B_MN>
__device__ __forceinline__ void multiply_stage(Accumulators<S>& d, uint32_t a_tile, uint32_t b_tile, bool accumulate) {
    // From one k of 16 to the next: 32 bytes along a row, or 16 rows.
    constexpr uint32_t A_STEP = A_MN ? 16 * 128 : 32, B_STEP = B_MN ? 16 * 128 : 32;
    ptx::wgmma_fence();
#pragma unroll
    for (int k = 0; k < BLOCK_K / 16; ++k) {
#pragma unroll
        for (int i = 0; i < S::M_STEPS; ++i) {
            const uint64_t a = ptx::wgmma_tile<A_MN>(a_tile + i * PANEL_BYTES + k * A_STEP);
            const uint64_t b = ptx::wgmma_tile<B_MN>(b_tile + k * B_STEP);
            ptx::Wgmma<S::BN>::template add<typename S::T, A_MN, B_MN>(d[i], a, b, accumulate || k > 0);
        }
    }
    ptx::wgmma_commit();
}

// One item's products, summed over its blocks of k, for this warpgroup's rows. One group of wgmma stays under way
// while the next is issued; a stage is handed back when the group that reads it is done, which is known once the group
// behind it has been issued and all but one have been waited for.
template <class S>
__device__ __forceinline__ void multiply(const WgmmaParams& p, const Pair& pair, Accumulators<S>& d, uint32_t shared,
                                         Ring& ring, uint32_t blocks) {
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t own_rows = __shfl_sync(~0u, threadIdx.x / 128, 0) * S::M_STEPS * PANEL_BYTES;
    // A lane for each block that is told.
    const bool tells = lane < pair.blocks;
    const uint32_t there = tells ? ptx::mbarrier_of_block(shared, lane) - shared : 0;
    const auto release = [&](uint32_t stage) {
        if (tells) ptx::mbarrier_arrive_there(ring.empty(stage) + there);
    };
    uint32_t previous = 0;
    for (uint32_t block = 0; block < blocks; ++block) {
        ptx::mbarrier_wait(ring.full(ring.stage), ring.phase);
        const uint32_t stage = shared + S::STAGES_AT + ring.stage * (S::A_BYTES + S::B_BYTES);
        const uint32_t a = stage + own_rows, b = stage + S::A_BYTES;
#pragma unroll
        for (int i = 0; i < S::M_STEPS; ++i) ptx::wgmma_pin(d[i]);
        // The first block overwrites what the accumulators held.
        if (p.a_mn) {
            if (p.b_mn) {
                multiply_stage<S, true, true>(d, a, b, block > 0);
            } else {
                multiply_stage<S, true, false>(d, a, b, block > 0);
            }
        } else if (p.b_mn) {
            multiply_stage<S, false, true>(d, a, b, block > 0);
        } else {
            multiply_stage<S, false, false>(d, a, b, block > 0);
        }
        ptx::wgmma_wait<1>();
        if (block > 0) release(previous);
        previous = ring.stage;
        ring.advance();
    }
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < S::M_STEPS; ++i) ptx::wgmma_pin(d[i]);
    release(previous);
}
