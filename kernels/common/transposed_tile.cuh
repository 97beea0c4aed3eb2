// Where a transposed operand's tile lies in shared memory. Pure index arithmetic, also compiled for the host.
#pragma once

#include "index.cuh"

// ROWS x COLUMNS elements of BYTES each, as columns of 8 vectors of 16 bytes: 128 contiguous bytes of the operand. A warp
// fills whole columns, and reads along rows: matrices of 8 x 8 of elements of 2 bytes, single elements of others. The
// vectors of a column are permuted against bank conflicts: elements of 4 and 8 bytes are read in twice as many passes as
// without conflicts, or at most four times where a warp reads single elements of a row.
template <int BYTES> struct TransposedTile {
    static constexpr int EACH = 16 / BYTES;  // elements of a vector
    static constexpr int COLUMN_VECTORS = 8;
    static constexpr int ROWS = COLUMN_VECTORS * EACH, COLUMNS = 64;
    static constexpr int ROW_VECTORS = COLUMNS / EACH;  // 16 bytes of the result
    static constexpr int VECTORS = COLUMNS * COLUMN_VECTORS;
    static constexpr bool MATRICES = BYTES == 2;

    TILEWISE_HD static constexpr int vector_at(int row, int column) {
        const int turn = column + column / EACH * (MATRICES ? 2 : 1);
        return column * COLUMN_VECTORS + ((row / EACH) ^ (turn % COLUMN_VECTORS));
    }
    // The i-th of a thread's vectors of the result, of THREADS threads. With matrices, a warp's are 8 rows of 4 vectors.
    template <int THREADS> TILEWISE_HD static constexpr int row_of(int thread, int i) {
        if (MATRICES) return unit_of<THREADS>(thread, i) / UNITS * 8 + thread % 32 / 4;
        return (thread + i * THREADS) / ROW_VECTORS;
    }
    template <int THREADS> TILEWISE_HD static constexpr int column_of(int thread, int i) {
        if (MATRICES) return unit_of<THREADS>(thread, i) % UNITS * 32 + thread % 4 * EACH;
        return (thread + i * THREADS) % ROW_VECTORS * EACH;
    }
    // The vector whose address a lane gives to ldmatrix for a warp's i-th vectors: a row of matrix lane / 8, which becomes
    // word lane / 8 of four vectors.
    template <int THREADS> TILEWISE_HD static constexpr int matrix_row(int thread, int i) {
        const int unit = unit_of<THREADS>(thread, i), lane = thread % 32;
        return vector_at(unit / UNITS * 8, unit % UNITS * 32 + lane % 8 / 2 * EACH + lane / 8 * 2 + lane % 2);
    }

private:
    static constexpr int UNITS = COLUMNS / 32;
    template <int THREADS> TILEWISE_HD static constexpr int unit_of(int thread, int i) {
        return thread / 32 * (VECTORS / THREADS) + i;
    }
};
