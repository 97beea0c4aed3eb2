// Which tile of which group a block of grouped_matmul computes, from offsets in device memory.
#pragma once

#include <cstdint>

// What the offsets cut: rows of a and of the result, or k; nothing of a batch. Mirrored in
// src/cuda/plan/matmul/grouped/params.rs, as is Groups.
enum : uint32_t { CUT_ROWS, CUT_DEPTH, CUT_NOTHING };

struct Groups {
    const int32_t* offsets;  // null of a batch
    int64_t offsets_step;    // in elements
    int64_t bias_group;      // elements from a group's bias to the next
    uint32_t count;
    uint32_t cut;
    int32_t total;              // the size that is cut
    uint32_t tiles_m, tiles_n;  // of a group; tiles_m unless rows are cut
    uint32_t group_m;           // rows of tiles in a band, as in tile_order.cuh
};
static_assert(sizeof(Groups) == 48, "mirrored in Rust");

struct GroupTile {
    uint32_t group;      // the number of groups: rows that no group has
    int32_t begin, end;  // of the group, along what is cut
    uint32_t m, n;       // of the tile within it
};

// The tiles of all groups, one group behind the other, by numbers that only grow. By a warp: each lane knows one of 32
// neighbouring groups. Offsets are taken for their running maximum within what they cut, so that no group reaches beyond it.
template <uint32_t TILE_ROWS> struct GroupCursor {
    const Groups& groups;
    uint32_t first = 0;        // group of lane 0
    int32_t begin, end;        // of this lane's group
    uint32_t before, through;  // tiles of the groups before it, and of those with it

    __device__ __forceinline__ explicit GroupCursor(const Groups& groups) : groups(groups) { load(0, 0); }

    // False behind the last tile, and of the same answer for all lanes.
    __device__ __forceinline__ bool find(uint32_t index, GroupTile& tile) {
        for (;;) {
            const uint32_t last = __shfl_sync(~0u, through, 31);
            if (index < last) break;
            if (first + 32 > groups.count) return false;
            first += 32;
            load(__shfl_sync(~0u, end, 31), last);
        }
        const int lane = __ffs(__ballot_sync(~0u, index < through)) - 1;
        tile.group = first + lane;
        tile.begin = __shfl_sync(~0u, begin, lane);
        tile.end = __shfl_sync(~0u, end, lane);
        const uint32_t tiles_before = __shfl_sync(~0u, before, lane);
        const uint32_t tiles_m = groups.cut == CUT_ROWS ? tiles_of(tile.end - tile.begin) : groups.tiles_m;
        const uint32_t in_group = index - tiles_before;
        const uint32_t band = in_group / (groups.group_m * groups.tiles_n);
        const uint32_t in_band = in_group - band * (groups.group_m * groups.tiles_n);
        const uint32_t rows = min(groups.group_m, tiles_m - band * groups.group_m);
        tile.n = in_band / rows;
        tile.m = band * groups.group_m + in_band - tile.n * rows;
        return true;
    }

private:
    __device__ __forceinline__ static uint32_t tiles_of(int32_t rows) {
        return (uint32_t(rows) + TILE_ROWS - 1) / TILE_ROWS;
    }
    // The groups from `first` on, behind one that ends at `last_end`, with so many tiles before them.
    __device__ __forceinline__ void load(int32_t last_end, uint32_t tiles_before) {
        const uint32_t lane = threadIdx.x % 32, group = first + lane;
        end = groups.cut == CUT_NOTHING ? 0 : groups.total;
        if (group < groups.count && groups.offsets != nullptr) {
            end = min(groups.offsets[int64_t(group) * groups.offsets_step], groups.total);
        }
        end = max(end, last_end);
#pragma unroll
        for (uint32_t step = 1; step < 32; step *= 2) {
            const int32_t other = __shfl_up_sync(~0u, end, step);
            if (lane >= step) end = max(end, other);
        }
        const int32_t ends_before = __shfl_up_sync(~0u, end, 1);
        begin = lane == 0 ? last_end : ends_before;
        // Behind the last group, of rows that no group has.
        uint32_t tiles = group < groups.count ? groups.tiles_m * groups.tiles_n : 0;
        if (groups.cut == CUT_ROWS) tiles = tiles_of(end - begin) * groups.tiles_n;
        through = tiles;
#pragma unroll
        for (uint32_t step = 1; step < 32; step *= 2) {
            const uint32_t other = __shfl_up_sync(~0u, through, step);
            if (lane >= step) through += other;
        }
        through += tiles_before;
        before = through - tiles;
    }
};
