// An operand of a matmul and its copy in the workspace, of elements of 16 bits: where a vector of the copy comes from.
#pragma once

#include <cstdint>

#include "index.cuh"

// A vector of 8 elements of the copy.
struct RepackVector {
    uint64_t product;   // of the copy's batch
    uint32_t row, col;  // of its first element
    int64_t from;       // offset of that element in the operand
};

// Mirrored in src/cuda/plan/matmul/repack.rs. Strides in elements.
struct RepackOperand {
    const void* from;
    void* to;
    int64_t row_stride, col_stride;
    int64_t batch_stride[3];  // innermost first
    uint64_t vectors;         // of 8 elements, that are written
    Divisor by_across, by_rows, by_batch[2];
    uint32_t rows, cols;     // of the copy with its padding; of the operand
    uint32_t across;         // vectors of a row, with its padding
    uint32_t batch_size[2];  // of the two inner dimensions
    uint32_t from_rows;      // of the operand

    __device__ __forceinline__ RepackVector at(uint64_t index) const {
        const uint64_t line = by_across.quotient(index);
        const uint32_t col = uint32_t(index - line * across) * 8;
        const uint64_t product = by_rows.quotient(line);
        const uint64_t row = line - product * rows;
        const uint64_t middle = by_batch[0].quotient(product), outer = by_batch[1].quotient(middle);
        const int64_t offset = int64_t(row) * row_stride + int64_t(col) * col_stride +
                               int64_t(product - middle * batch_size[0]) * batch_stride[0] +
                               int64_t(middle - outer * batch_size[1]) * batch_stride[1] +
                               int64_t(outer) * batch_stride[2];
        return {product, uint32_t(row), col, offset};
    }
};
static_assert(sizeof(RepackOperand) == 152, "mirrored in Rust");
