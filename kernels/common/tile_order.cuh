// The order in which a matmul's blocks take the tiles of the result. src/cuda/plan/tile_order.rs is the same in Rust;
// its tests compile this file as plain C++ and compare the two.
#pragma once

#include <cstdint>

#include "index.cuh"

struct Tile {
    uint32_t m, n;
};

// Bands of group_m rows of tiles, each band walked down its columns: blocks that run at the same time
// then share both rows of a and columns of b in L2. The last band may have fewer rows.
struct TileOrder {
    Divisor by_band;       // tiles of a band
    Divisor by_rows;       // of tiles, of a band
    Divisor by_last_rows;  // of the last band
    uint32_t tiles_m, tiles_n;
    uint32_t group_m;  // 1 to tiles_m
    uint32_t unused;

    // Of pid < tiles_m * tiles_n < 2^31.
    TILEWISE_HD Tile at(uint32_t pid) const {
        const uint32_t first_m = by_band.quotient(pid) * group_m;
        const uint32_t in_band = pid - first_m * tiles_n;
        const bool last = tiles_m - first_m < group_m;
        const uint32_t n = (last ? by_last_rows : by_rows).quotient(in_band);
        return {first_m + in_band - n * (last ? tiles_m - first_m : group_m), n};
    }
};
static_assert(sizeof(TileOrder) == 64, "mirrored in src/cuda/plan/tile_order.rs");
