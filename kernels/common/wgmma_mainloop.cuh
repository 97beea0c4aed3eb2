// The two sides of matmul_wgmma.cu's ring of stages in shared memory: two producer threads that fill it by TMA, and
// consumer warpgroups that multiply from it into accumulators in registers.
#pragma once

#include "wgmma_shape.cuh"

// A producer, of a or of b: fills the operand's part of every stage as soon as the stage is empty, through all items. That
// is a box of the tile's rows of m or n by 64 of k, or boxes of 64 of m or n by 64 of k, as memory has its unit stride along
// k or along m or n. It never waits for anything else, so that the next tile's first stages arrive while this one's results
// are stored. Of the last row or column of tiles no more comes than there is: the engine takes about ten clocks for each row of
// a box that lies outside of the matrix.
template <class S, bool IS_B, class Work>
__device__ __forceinline__ void produce(const WgmmaParams& p, const TileCluster& cluster, Work& work, uint32_t shared,
                                        Ring ring) {
    constexpr int32_t ROWS = IS_B ? S::BN : S::BM;  // of m or n
    const bool mn_major = IS_B ? p.b_mn : p.a_mn;
    const uint32_t batches = IS_B ? p.b_batches : p.a_batches;
    const uint32_t whole_bytes = IS_B ? p.b_stage_bytes : p.a_stage_bytes;
    const uint32_t tail_bytes = IS_B ? p.b_tail_bytes : p.a_tail_bytes;
    const uint32_t tiles = IS_B ? p.order.tiles_n * cluster.columns - TileCluster::columns_beyond(p.cluster)
                                : p.order.tiles_m * cluster.rows - TileCluster::rows_beyond(p.cluster);
    const int32_t last_tile = int32_t(tiles - 1) * ROWS;
    const uint32_t sharing = IS_B ? cluster.rows : cluster.columns;
    const bool shares = S::HAS_CLUSTERS && sharing > 1;
    // Half of each box of b's rows is the gate's.
    const bool gated = IS_B && (batches & GATED);
    for (; work.left(); work.next()) {
        const auto& item = work.item;
        const int32_t own = IS_B ? item.col : item.row;
        const bool is_last = !decltype(work.item)::IS_CUT && own >= last_tile;
        // What of a cluster lies beyond the matrix has the last tile's: a block that waits for no bytes of the others would not
        // wait until they are done with the stage before.
        const int32_t tile = is_last ? last_tile : own;
        const uint32_t bytes = is_last ? tail_bytes : whole_bytes;
        const Boxes<S> place = Boxes<S>::of(p, tile);
        const int32_t mn = IS_B ? (tile + place.column(0)) >> gated : tile;
        const TensorMap& whole = IS_B ? p.b : p.a;
        // `ask` gets the barrier of each stage, where the operand lies in it, and the first k.
        const auto fill = [&](auto ask) {
            for (uint32_t block = item.k_begin; block < item.k_end; ++block) {
                const int32_t k = item.first_k() + int32_t(block) * S::STAGE_K;
                ptx::mbarrier_wait(ring.empty(ring.stage), ring.phase ^ 1);
                const uint32_t full = ring.full(ring.stage);
                ptx::mbarrier_arrive_expect(full, bytes);
                const uint32_t stage = shared + stages_at<S>(p) + ring.stage * (S::A_BYTES + S::B_BYTES);
                ask(full, stage + (IS_B ? S::A_BYTES : 0), k);
                ring.advance();
            }
        };
        // Most tiles, in as few instructions as can be.
        if (p.flat && !shares && !gated && bytes == whole_bytes) {
            fill([&](uint32_t full, uint32_t to, int32_t k) {
                if (!mn_major) {
                    ptx::tma_load_2d(to, whole, full, k, mn);
                    return;
                }
#pragma unroll
                for (int32_t i = 0; i < (ROWS + S::LINE - 1) / S::LINE; ++i) {
                    const bool tail = IS_B && S::TAIL < 64 && i == S::BOXES - 1;
                    const int32_t column = tail ? tile + place.column(i) : mn + i * S::LINE;
                    ptx::tma_load_2d(to + i * S::LINE_BOX_BYTES, tail ? p.b_tail : whole, full, column, k);
                }
            });
            continue;
        }
        // Each block that shares the operand asks for as many boxes as the others, for all of them; or for an equal part of
        // every box, where boxes are fewer.
        const uint32_t part = IS_B ? cluster.row : cluster.column;
        const bool whole_boxes = shares && mn_major && S::template has_whole_boxes<ROWS>(sharing);
        const uint16_t blocks = cluster.template sharing<IS_B>();
        // From the box's first row to this block's.
        const uint32_t box_rows = (mn_major ? S::STAGE_K : bytes / 128) >> TileCluster::shift(sharing);
        const int32_t skip = shares && !whole_boxes ? int32_t(part * box_rows) : 0;
        // This block's boxes, and how many lie between them.
        const int32_t first_box = whole_boxes ? int32_t(part) : 0, step = whole_boxes ? int32_t(sharing) : 1;
        if (p.flat && shares && !gated && bytes == whole_bytes && (!mn_major || whole_boxes)) {
            fill([&](uint32_t full, uint32_t to, int32_t k) {
                if (!mn_major) {
                    ptx::tma_multicast_2d(to + skip * 128, whole, full, k, mn + skip, blocks);
                    return;
                }
#pragma unroll 1
                for (int32_t i = first_box; i < ROWS / S::LINE; i += step) {
                    ptx::tma_multicast_2d(to + i * S::LINE_BOX_BYTES, whole, full, mn + i * S::LINE, k, blocks);
                }
            });
            continue;
        }
        int32_t batch[3];
#pragma unroll
        for (int d = 0; d < 3; ++d) batch[d] = batches >> d & 1 ? item.batch[d] : 0;
        fill([&](uint32_t full, uint32_t first, int32_t k) {
            const int32_t row = (mn_major ? k : mn) + skip;
            const auto ask = [&](const TensorMap& map, uint32_t to, int32_t column) {
                if (p.flat) {
                    if (!shares) {
                        ptx::tma_load_2d(to, map, full, column, row);
                    } else {
                        ptx::tma_multicast_2d(to, map, full, column, row, blocks);
                    }
                } else if (!shares) {
                    ptx::tma_load_5d(to, map, full, column, row, batch);
                } else {
                    ptx::tma_multicast_5d(to, map, full, column, row, batch, blocks);
                }
            };
            const bool tail = IS_B && S::TAIL < 64 && mn_major;
            const bool smaller = !mn_major && bytes != whole_bytes;
            const int32_t boxes =
                (mn_major && ROWS > S::LINE ? int32_t((bytes + S::LINE_BOX_BYTES - 1) / S::LINE_BOX_BYTES) >> gated
                                            : 1) -
                tail;
            // The gate's, then b's.
#pragma unroll 1
            for (int32_t half = gated; half >= 0; --half) {
                const uint32_t to = first + (gated && half == 0 ? S::B_BYTES / 2 : skip * 128);
                const int32_t column = mn_major ? mn : k;
                const TensorMap& own = half > 0 ? p.gate : smaller ? (IS_B ? p.b_tail : p.a_tail) : whole;
#pragma unroll 1
                for (int32_t i = first_box; i < boxes; i += step) {
                    ask(own, to + i * S::LINE_BOX_BYTES, column + i * S::LINE);
                }
                if (tail) { ask(p.b_tail, to + boxes * S::LINE_BOX_BYTES, tile + place.column(S::BOXES - 1)); }
            }
        });
    }
    // The barriers stay until no other block arrives at them any more: every stage is handed back.
    for (uint32_t i = 0; S::HAS_CLUSTERS && IS_B && !cluster.alone() && i < p.stages; ++i) {
        ptx::mbarrier_wait(ring.empty(ring.stage), ring.phase ^ 1);
        ring.advance();
    }
}

template <class S> using Accumulators = float[S::M_STEPS][S::ACCUMULATORS];

// Issues the products of so many stages as one group. Which dimension has unit stride is part of the instruction, so there
// is a version for each layout; a branch for each group costs nothing beside hundreds of clocks of products, and saves
// three kernels of four. (A loop for each layout would have ptxas serialise wgmma, C7515.)
template <class S, bool A_MN, bool B_MN, int STAGES>
__device__ __forceinline__ void multiply_group(Accumulators<S>& d, const uint32_t (&a_tiles)[STAGES],
                                               const uint32_t (&b_tiles)[STAGES], bool accumulate) {
    // From one k of 16 to the next: 32 bytes along a row, or 16 rows.
    constexpr uint32_t A_STEP = A_MN ? 16 * 128 : 32, B_STEP = B_MN ? 16 * 128 : 32;
    ptx::wgmma_fence();
#pragma unroll
    for (int stage = 0; stage < STAGES; ++stage) {
        const uint64_t a = ptx::wgmma_tile<A_MN>(a_tiles[stage]), b = ptx::wgmma_tile<B_MN>(b_tiles[stage]);
#pragma unroll
        for (int k = 0; k < BLOCK_K / 16; ++k) {
#pragma unroll
            for (int i = 0; i < S::M_STEPS; ++i) {
                ptx::Wgmma<S::BN>::template add<typename S::T, A_MN, B_MN>(
                    d[i], ptx::wgmma_tile_at(a, i * BOX_BYTES + k * A_STEP), ptx::wgmma_tile_at(b, k * B_STEP),
                    accumulate || stage + k > 0);
            }
        }
    }
    ptx::wgmma_commit();
}

// Waits for the next stages of the ring and issues their products, for this warpgroup's rows.
template <class S, int STAGES>
__device__ __forceinline__ void multiply_stages(const WgmmaParams& p, Accumulators<S>& d, uint32_t shared,
                                                uint32_t own_rows, Ring& ring, bool accumulate) {
    uint32_t a[STAGES], b[STAGES];
#pragma unroll
    for (int i = 0; i < STAGES; ++i) {
        ptx::mbarrier_wait(ring.full(ring.stage), ring.phase);
        const uint32_t stage = shared + stages_at<S>(p) + ring.stage * (S::A_BYTES + S::B_BYTES);
        a[i] = stage + own_rows;
        b[i] = stage + S::A_BYTES;
        ring.advance();
    }
#pragma unroll
    for (int i = 0; i < S::M_STEPS; ++i) ptx::wgmma_pin(d[i]);
    if constexpr (same_type<typename S::T, f32>) {  // K-major only
        multiply_group<S, false, false>(d, a, b, accumulate);
    } else if (p.a_mn) {
        if (p.b_mn) {
            multiply_group<S, true, true>(d, a, b, accumulate);
        } else {
            multiply_group<S, true, false>(d, a, b, accumulate);
        }
    } else if (p.b_mn) {
        multiply_group<S, false, true>(d, a, b, accumulate);
    } else {
        multiply_group<S, false, false>(d, a, b, accumulate);
    }
}

// What a warpgroup has multiplied, to be handed back to the producers, here and in the blocks that load for this one.
struct HandBack {
    Ring read;   // the first stage that has not been handed back
    bool tells;  // a lane for each block that is told
    uint32_t there;

    __device__ __forceinline__ HandBack(const TileCluster& cluster, uint32_t shared, const Ring& ring) : read(ring) {
        // Those of the own column of tiles, and then the others of the own row.
        const uint32_t lane = threadIdx.x % 32, column = lane - cluster.rows;
        const bool in_column = lane < cluster.rows;
        tells = in_column || (column < cluster.columns && column != cluster.column);
        const uint32_t rank = in_column ? cluster.rank_of(lane, cluster.column) : cluster.rank_of(cluster.row, column);
        there = tells && !cluster.alone() ? ptx::mbarrier_of_block(shared, rank) - shared : 0;
    }
    __device__ __forceinline__ void next() {
        if (tells) ptx::mbarrier_arrive_there(read.empty(read.stage) + there);
        read.advance();
    }
};

// One item's products, summed over its blocks of k. One group of wgmma stays under way while the next is issued; a
// group's stages are handed back when it is done, which is known once the group behind it has been issued and all but one
// have been waited for. `prepare` gets each block's number, and the ring at its stage, before it is multiplied; `issued` is
// called when the last product has been issued.
struct Nothing {
    __device__ __forceinline__ void operator()(uint32_t, const Ring&) const {}
    __device__ __forceinline__ void operator()() const {}
};
template <class S, class Prepare = Nothing, class Issued = Nothing>
__device__ __forceinline__ void multiply(const WgmmaParams& p, const TileCluster& cluster, Accumulators<S>& d,
                                         uint32_t shared, Ring& ring, uint32_t blocks, Prepare prepare = {},
                                         Issued issued = {}) {
    const uint32_t own_rows = S::PING_PONG ? 0 : __shfl_sync(~0u, threadIdx.x / 128, 0) * S::M_STEPS * BOX_BYTES;
    HandBack multiplied(cluster, shared, ring);
    const uint32_t most = p.stages >= 4 * S::GROUP ? S::GROUP : 1;
    uint32_t under_way = 0;
    const auto hand_back = [&] {
#pragma unroll
        for (uint32_t i = 0; i < S::GROUP; ++i) {
            if (i < under_way) multiplied.next();
        }
    };
    for (uint32_t block = 0; block < blocks;) {
        prepare(block, ring);
        // The first block overwrites what the accumulators held.
        const uint32_t group = block + most <= blocks ? most : 1;
        if (group == S::GROUP) {
            multiply_stages<S, S::GROUP>(p, d, shared, own_rows, ring, block > 0);
        } else {
            multiply_stages<S, 1>(p, d, shared, own_rows, ring, block > 0);
        }
        ptx::wgmma_wait<1>();
        hand_back();
        under_way = group;
        block += group;
    }
    issued();
    ptx::wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < S::M_STEPS; ++i) ptx::wgmma_pin(d[i]);
    hand_back();
}
