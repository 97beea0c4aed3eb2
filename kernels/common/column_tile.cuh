// Slices of column tiles, copied to shared memory in two groups of rows, and read from there as words of 4 or 8 bytes.
// The parameter struct of softmax_column_tile.cu.
#pragma once

#include "access.cuh"
#include "async_copy.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"

constexpr int COPY_GROUPS = 2;  // of a slice, each waited for by itself
constexpr int RANK = INLINE_RANK + 1;
#if __CUDA_ARCH__ >= 900
constexpr bool BULK = true;
#else
constexpr bool BULK = false;
#endif

// Mirrored by ColumnTileParams in src/cuda/plan/softmax/column_tile.rs.
struct ColumnTileParams {
    uint64_t x, out;               // addresses
    uint64_t length;               // elements of a column
    uint64_t columns;              // contiguous
    int64_t x_stride, out_stride;  // down a column
    uint32_t words;                // of a tile's row
    uint32_t row_copies;           // copies of a tile's row; 0: its rows are packed
    uint32_t access;               // bytes of a copy
    uint32_t slice;                // rows of a block
    uint32_t slices;               // of a column: the blocks of a cluster
    uint32_t merge_threads;        // threads that merge the partials of one column
    uint32_t log;
    uint32_t rank;      // of dims: at least 1
    Dim<2> dims[RANK];  // outer dimensions, then the tiles of a row; strides of x and out
};
static_assert(sizeof(ColumnTileParams) == 80 + 40 * RANK, "src/cuda/plan/softmax/column_tile.rs");

// Calls f(n, k) for k to `end`, N at a time, then the rest one by one.
template <int N> struct Count {
    static constexpr int value = N;
};
template <int N, class F> __device__ __forceinline__ void in_batches(int k, int end, F f) {
#pragma unroll 1
    for (; k + N <= end; k += N) f(Count<N>(), k);
#pragma unroll 1
    for (; k < end; ++k) f(Count<1>(), k);
}

// A block's slice of a column tile in global memory.
struct Slice {
    const char* x;
    int64_t x_pitch;  // bytes from row to row
    int rows, row_bytes;
    int wanted;      // bytes of a row: fewer where the columns end within the tile
    int group_rows;  // of a copy group
};

// Starts the copies of a slice in COPY_GROUPS groups of `group_rows` rows. Returns whether each group completes a
// barrier of `bars`; else it is one group of each thread's cp.async.
__device__ __forceinline__ bool copy_slice(const ColumnTileParams& p, const Slice& s, char* to, uint64_t* bars) {
    const int whole = s.rows * s.row_bytes, access = p.access, t = threadIdx.x;
    const char* x = s.x;
    int stride = blockDim.x, count = whole / access, per_group = s.group_rows * s.row_bytes / access;
    int64_t step = static_cast<int64_t>(stride) * access;
    if (p.row_copies == 0) {
        const int rest = count * access + t * 4;
        if (rest < whole) copy_async_of<4>(to + rest, x + rest);
        if (BULK && access == 16) {
            const auto bar = [&](int c) { return static_cast<uint32_t>(__cvta_generic_to_shared(bars + c)); };
            if (t == 0) {
                for (int c = 0; c < COPY_GROUPS; ++c) ptx::mbarrier_init(bar(c), 1);
                ptx::fence_mbarrier_init();
                for (int c = 0, from = 0; c < COPY_GROUPS; ++c) {
                    const int end = c + 1 < COPY_GROUPS && from + per_group < count ? from + per_group : count;
                    ptx::mbarrier_arrive_expect(bar(c), (end - from) * 16);
                    const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(to + from * 16));
                    if (end > from) ptx::bulk_load(shared, x + from * 16, (end - from) * 16, bar(c));
                    from = end;
                }
            }
            commit_copies();
            return true;
        }
        x += t * access;
    } else {
        const int row = t / static_cast<int>(p.row_copies), copy = t - row * p.row_copies, rows = stride / p.row_copies;
        stride = rows * p.row_copies;
        if (row >= rows || copy * access >= s.wanted) count = 0;
        x += row * s.x_pitch + copy * access;
        step = rows * s.x_pitch;
    }
    const auto copies = [&](auto bytes) {
        constexpr int BYTES = decltype(bytes)::value;
        int i = t;
#pragma unroll
        for (int c = 1; c <= COPY_GROUPS; ++c) {
            const int end = c < COPY_GROUPS && c * per_group < count ? c * per_group : count;
#pragma unroll 4
            for (; i < end; i += stride) {
                copy_async_of<BYTES>(to + i * BYTES, x);
                x += step;
            }
            commit_copies();
        }
    };
    if (access == 16) {
        copies(Count<16>());
    } else if (access == 8) {
        copies(Count<8>());
    } else {
        copies(Count<4>());
    }
    return false;
}
