// The parameter struct of softmax_transposed.cu and softmax_transposed_short.cu, whose rows are contiguous in x or in the
// result and their elements in the other.
#pragma once

#include "row_views.cuh"

// Mirrored by TransposedParams in src/cuda/plan/softmax/transposed.rs.
struct TransposedParams {
    uint64_t x, out;               // addresses
    uint64_t length;               // elements of a row
    uint64_t beside;               // rows side by side
    int64_t x_stride, out_stride;  // along a row
    int64_t x_next, out_next;      // from a row to the one beside it
    uint64_t partials;             // leave, find: address of a Partial for every slice of every row of a tile
    uint32_t wide;                 // rows of a tile
    uint32_t beside_bits;          // 2^this lanes have pieces of 16 bytes side by side
    uint32_t group_bits;           // 2^this times so many are as wide as a tile
    uint32_t slice;                // elements of a block
    uint32_t slices;               // of a row: the blocks of a cluster, or those that leave partials
    uint32_t pitch;                // vectors of a row in shared memory
    uint32_t permuted;             // of a vector's number, the bits that rows permute
    uint32_t lane_bits;            // 2^this lanes go along a row
    uint32_t x_fit, out_fit;       // Fit: what accesses of 16 bytes fit
    uint32_t log;
    uint32_t rank;             // of dims: at least 1
    Divisor by_length;         // for run
    Dim<2> dims[INLINE_RANK];  // outer dimensions, then the tiles side by side; strides of x and out
};
static_assert(sizeof(TransposedParams) == 136 + 40 * INLINE_RANK, "src/cuda/plan/softmax/transposed.rs");

// What accesses of 16 bytes fit: nothing from its beginning; every row, or piece of rows; a tile, which is in one piece.
enum Fit : uint32_t { NONE, WHOLE, RUN };
