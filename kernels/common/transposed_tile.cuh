// Where a transposed operand's tile lies in shared memory. Pure index arithmetic, also compiled for the host.
#pragma once

#include "index.cuh"

// ROWS x COLUMNS elements of BYTES each, as columns of 8 slots of 16 bytes: 128 bytes of what the operand has side by
// side. A warp fills whole columns, and reads along rows: of elements of 2 bytes matrices of 8 x 8, of others an element
// here and there. The slots of a column are permuted so that neither meets a bank more often than it must: elements of 4
// and 8 bytes are read in twice as many passes as if there were no conflicts, or at most four times where a warp reads
// single elements of a row.
template <int BYTES> struct TransposedTile {
    static constexpr int EACH = 16 / BYTES;  // elements of a slot
    static constexpr int COLUMN_SLOTS = 8;
    static constexpr int ROWS = COLUMN_SLOTS * EACH, COLUMNS = 64;
    static constexpr int ROW_CHUNKS = COLUMNS / EACH;  // 16 bytes of the result
    static constexpr int SLOTS = COLUMNS * COLUMN_SLOTS;
    static constexpr bool MATRICES = BYTES == 2;

    TILEWISE_HD static constexpr int slot(int row, int column) {
        const int turn = column + column / EACH * (MATRICES ? 2 : 1);
        return column * COLUMN_SLOTS + ((row / EACH) ^ (turn % COLUMN_SLOTS));
    }
    // The i-th of a thread's chunks of the result, of THREADS threads. With matrices, a warp's are 8 rows of 4 chunks.
    template <int THREADS> TILEWISE_HD static constexpr int row_of(int thread, int i) {
        if (MATRICES) return unit_of<THREADS>(thread, i) / UNITS * 8 + thread % 32 / 4;
        return (thread + i * THREADS) / ROW_CHUNKS;
    }
    template <int THREADS> TILEWISE_HD static constexpr int column_of(int thread, int i) {
        if (MATRICES) return unit_of<THREADS>(thread, i) % UNITS * 32 + thread % 4 * EACH;
        return (thread + i * THREADS) % ROW_CHUNKS * EACH;
    }
    // The slot that a lane names for the matrices whose elements are a warp's i-th chunks: of matrix lane / 8, what will
    // be words lane / 8 of four chunks.
    template <int THREADS> TILEWISE_HD static constexpr int named_slot(int thread, int i) {
        const int unit = unit_of<THREADS>(thread, i), lane = thread % 32;
        return slot(unit / UNITS * 8, unit % UNITS * 32 + lane % 8 / 2 * EACH + lane / 8 * 2 + lane % 2);
    }

private:
    static constexpr int UNITS = COLUMNS / 32;
    template <int THREADS> TILEWISE_HD static constexpr int unit_of(int thread, int i) {
        return thread / 32 * (SLOTS / THREADS) + i;
    }
};
