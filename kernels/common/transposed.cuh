// The parameter struct of softmax_transposed.cu and softmax_transposed_short.cu: elements of a row are contiguous in
// one of x and result, and rows are contiguous in the other.
#pragma once

#include "row_views.cuh"

// Mirrored by TransposedParams in src/cuda/plan/softmax/transposed.rs.
struct TransposedParams {
    uint64_t x, out;               // addresses
    uint64_t length;               // elements of a row
    uint64_t contiguous_rows;      // of x or of the result
    int64_t x_stride, out_stride;  // along a row
    int64_t x_next, out_next;      // from a row to the next of the contiguous rows
    uint64_t partials;             // partial, combine: address of a Partial for every slice of every row of a tile
    uint32_t tile_rows;
    uint32_t across_bits;     // 2^this lanes have contiguous vectors across rows
    uint32_t group_bits;      // 2^this groups of these lanes have all rows of a tile
    uint32_t slice;           // elements of a block
    uint32_t slices;          // of a row: the blocks of a cluster, or of two launches
    uint32_t pitch;           // vectors of a row in shared memory
    uint32_t swizzle_mask;    // the bits of a vector's index that the swizzle changes
    uint32_t lane_bits;       // 2^this lanes go along a row
    uint32_t x_fit, out_fit;  // Fit
    uint32_t log;
    uint32_t rank;             // of dims: at least 1
    Divisor by_length;         // for PACKED
    Dim<2> dims[INLINE_RANK];  // outer dimensions, then the tiles of the contiguous rows; strides of x and out
};
static_assert(sizeof(TransposedParams) == 136 + 40 * INLINE_RANK, "src/cuda/plan/softmax/transposed.rs");

// Where accesses of 16 bytes are aligned: nowhere; at every row, or vector across rows; at every tile, whose rows are
// packed.
enum Fit : uint32_t { NONE, WHOLE, PACKED };
