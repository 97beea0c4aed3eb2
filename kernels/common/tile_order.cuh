// The order in which a matmul's blocks visit the tiles of the result. The twin of
// src/cuda/plan/tile_order.rs, which compiles this file as plain C++ and compares the two.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TILEWISE_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define TILEWISE_HOST_DEVICE inline
#endif

struct Tile {
    uint32_t m, n;
};

// Bands of group_m rows of tiles, each band walked down its columns: blocks that run at the same time
// then share both rows of a and columns of b in L2. The last band may have fewer rows.
// Needs pid < num_m * num_n < 2^32 and 1 <= group_m <= num_m.
TILEWISE_HOST_DEVICE Tile tile_at(uint32_t pid, uint32_t num_m, uint32_t num_n, uint32_t group_m) {
    const uint32_t num_in_group = group_m * num_n;
    const uint32_t first_m = pid / num_in_group * group_m;
    const uint32_t group_size = num_m - first_m < group_m ? num_m - first_m : group_m;
    const uint32_t in_group = pid % num_in_group;
    return {first_m + in_group % group_size, in_group / group_size};
}
