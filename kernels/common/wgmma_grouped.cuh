// What grouped_matmul_wgmma.cu has otherwise than matmul_wgmma.cu: a warp of each block finds the block's tiles among those
// of all groups, and hands them by a ring of slots in shared memory to the warps that load and multiply.
#pragma once

#include "group_cursor.cuh"
#include "wgmma_block.cuh"
#include "wgmma_epilogue.cuh"

// Mirrored in src/cuda/plan/matmul/wgmma/grouped.rs.
struct alignas(64) GroupedWgmmaParams {
    WgmmaParams wgmma;  // of all groups together
    Groups groups;
    uint32_t unused[4];
};
static_assert(sizeof(GroupedWgmmaParams) == 1408 && offsetof(GroupedWgmmaParams, groups) == 1344, "mirrored in Rust");

template <class Element, int CONSUMERS, int M_STEPS, int BN, int BLOCKS>
struct GroupedShape : WgmmaShape<Element, CONSUMERS, M_STEPS, BN, BLOCKS> {
    static constexpr bool HAS_CLUSTERS = false;
};

// Slots behind the ring's barriers, each of 32 bytes; and their barriers.
constexpr uint32_t SLOTS = 4, SLOTS_AT = 2 * MAX_STAGES * 8, SLOT_BARRIERS_AT = SLOTS_AT + SLOTS * 32;
static_assert(SLOT_BARRIERS_AT + SLOTS * 16 <= HEADER_BYTES, "");

__device__ __forceinline__ const Groups& groups_of(const WgmmaParams& p) {
    return reinterpret_cast<const GroupedWgmmaParams&>(p).groups;
}

// A tile of a group. DEPTH: the groups are of k.
template <bool DEPTH> struct GroupedItem : Item {
    static constexpr bool IS_CUT = true;
    int32_t end, begin_k;  // of the group's rows; of its k
    uint32_t tail;         // k of the last block that are the group's; 0: all
    int32_t in_result[3];

    __device__ __forceinline__ int32_t first_k() const { return DEPTH ? begin_k : 0; }
    __device__ __forceinline__ int32_t end_row(const WgmmaParams& p) const { return DEPTH ? int32_t(p.m) : end; }
    template <class T> __device__ __forceinline__ const T* bias(const WgmmaParams& p) const {
        return static_cast<const T*>(p.bias) + int64_t(product) * groups_of(p).bias_group;
    }
    __device__ __forceinline__ const int32_t (&result_batch() const)[3] { return in_result; }
    // Rows of no group are zeros.
    __device__ __forceinline__ bool is_rest(const WgmmaParams& p) const { return product == groups_of(p).count; }
};

struct Slots {
    uint32_t shared;
    uint32_t slot = 0, phase = 0;

    __device__ __forceinline__ uint32_t at() const { return shared + SLOTS_AT + slot * 32; }
    __device__ __forceinline__ uint32_t full() const { return shared + SLOT_BARRIERS_AT + slot * 8; }
    __device__ __forceinline__ uint32_t empty() const { return shared + SLOT_BARRIERS_AT + (SLOTS + slot) * 8; }
    __device__ __forceinline__ void advance() {
        if (++slot == SLOTS) {
            slot = 0;
            phase ^= 1;
        }
    }
};
constexpr uint32_t NO_MORE = ~0u;
// A barrier by number, behind those of wgmma_shape.cuh: without ping-pong RESULT_READY + 2 is the last.
constexpr uint32_t CLEARED = RESULT_READY + 3;

// As Schedule: the items that find_items hands out, for a consumer warp or a producer's thread.
template <class S, bool DEPTH> struct GroupedWork {
    GroupedItem<DEPTH> item;
    Slots slots = {};
    bool there = false;

    __device__ __forceinline__ GroupedWork(const WgmmaParams&, const TileCluster&) {}
    __device__ __forceinline__ static void make_barriers(uint32_t shared) {
        Slots slots{shared};
#pragma unroll
        for (uint32_t i = 0; i < SLOTS; ++i, slots.advance()) {
            ptx::mbarrier_init(slots.full(), 1);
            ptx::mbarrier_init(slots.empty(), S::WARPS + 2);
        }
    }
    __device__ __forceinline__ void begin(uint32_t shared) {
        slots.shared = shared;
        next();
    }
    __device__ __forceinline__ bool left() const { return there; }
    __device__ __forceinline__ void next() {
        ptx::mbarrier_wait(slots.full(), slots.phase);
        uint32_t low[4], high[4];
        ptx::load_shared_16(slots.at(), low);
        ptx::load_shared_16(slots.at() + 16, high);
        if (threadIdx.x >= 32 * S::WARPS) {  // of a producer warp one thread is here
            ptx::mbarrier_arrive(slots.empty());
        } else {
            __syncwarp();
            if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(slots.empty());
        }
        slots.advance();
        there = low[0] != NO_MORE;
        item.product = low[0];
        item.row = int32_t(low[1]);
        item.col = int32_t(low[2]);
        item.end = int32_t(low[3]);
        item.begin_k = int32_t(high[0]);
        item.k_begin = item.split = 0;
        item.k_end = high[1];
        item.tail = high[2];
        item.batch[0] = int32_t(item.product);
        item.batch[1] = item.batch[2] = 0;
        item.in_result[0] = DEPTH ? int32_t(item.product) : 0;
        item.in_result[1] = item.in_result[2] = 0;
    }
};

// By the warp that schedules: the tiles of this block, every gridDim.x-th of all.
template <class S, bool DEPTH>
__device__ __forceinline__ void find_items(const GroupedWgmmaParams& p, uint32_t shared) {
    ptx::wait_for_grid_before();
    const bool tells = threadIdx.x % 32 == 0;
    const uint32_t all_blocks = p.wgmma.split_blocks;
    Slots slots{shared};
    GroupCursor<S::BM> cursor(p.groups);
    for (uint32_t index = blockIdx.x;; index += gridDim.x) {
        GroupTile tile;
        const bool there = cursor.find(index, tile);
        if (tells) {
            const uint32_t depth = uint32_t(tile.end - tile.begin);
            const uint32_t blocks = DEPTH ? (depth + BLOCK_K - 1) / BLOCK_K : all_blocks;
            const uint32_t low[4] = {there ? tile.group : NO_MORE, (DEPTH ? 0 : uint32_t(tile.begin)) + tile.m * S::BM,
                                     tile.n * S::BN, uint32_t(tile.end)};
            const uint32_t high[4] = {uint32_t(tile.begin), tile.group == p.groups.count ? 0 : blocks,
                                      DEPTH ? depth % BLOCK_K : 0, 0};
            ptx::mbarrier_wait(slots.empty(), slots.phase ^ 1);
            ptx::store_shared_16(slots.at(), low);
            ptx::store_shared_16(slots.at() + 16, high);
            ptx::mbarrier_arrive(slots.full());
        }
        if (!there) return;
        __syncwarp();
        slots.advance();
    }
}

// Zeros for what of a stage's operand lies behind the first `tail` of k, which is another group's or beyond all. By all
// consumers; `boxes` of 64 rows of k.
template <class S> __device__ __forceinline__ void clear_behind(uint32_t operand, uint32_t boxes, uint32_t tail) {
    const uint32_t zeros[4] = {};
    const uint32_t vectors = (64 - tail) * 8;
    for (uint32_t at = threadIdx.x; at < boxes * vectors; at += 32 * S::WARPS) {
        ptx::store_shared_16(operand + at / vectors * BOX_BYTES + tail * 128 + at % vectors * 16, zeros);
    }
}

// In place of multiply, by a warpgroup whose rows are all behind the group's last: hands back the stages.
template <class S> __device__ __forceinline__ void pass_over(Ring& ring, uint32_t blocks) {
    for (uint32_t block = 0; block < blocks; ++block) {
        ptx::mbarrier_wait(ring.full(ring.stage), ring.phase);
        __syncwarp();
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ring.empty(ring.stage));
        ring.advance();
    }
}

// An item's products. Of a group whose k is no whole blocks, the last block is cleared of what is not the group's.
template <class S, bool DEPTH>
__device__ __forceinline__ void multiply_grouped(const WgmmaParams& p, const TileCluster& cluster, Accumulators<S>& d,
                                                 uint32_t shared, Ring& ring, const GroupedItem<DEPTH>& item) {
    multiply<S>(p, cluster, d, shared, ring, item.k_end, [&](uint32_t block, const Ring& at) {
        if (!DEPTH || item.tail == 0 || block + 1 != item.k_end) return;
        ptx::mbarrier_wait(at.full(at.stage), at.phase);
        const uint32_t stage = shared + stages_at<S>(p) + at.stage * (S::A_BYTES + S::B_BYTES);
        clear_behind<S>(stage, S::BM / 64, item.tail);
        clear_behind<S>(stage + S::A_BYTES, S::BOXES, item.tail);
        __syncwarp();
        ptx::fence_async_proxy();
        ptx::barrier_sync(CLEARED, 32 * S::WARPS);
    });
    if (item.k_end == 0) {
#pragma unroll
        for (int i = 0; i < S::M_STEPS; ++i)
#pragma unroll
            for (int j = 0; j < S::ACCUMULATORS; ++j) d[i][j] = 0.0f;
    }
}
