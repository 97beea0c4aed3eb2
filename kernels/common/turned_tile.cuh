// Where a transposed operand's tile lies in shared memory. Pure index arithmetic, also for the host.
#pragma once

#include "index.cuh"

// ROWS x COLUMNS elements of BYTES each, as columns of 8 slots of 16 bytes: 128 bytes of what the operand has side by
// side. A warp fills whole columns, and reads along rows, an element here and there. The slots of a column are permuted
// so that neither meets a bank more often than it must: elements of 4 and 8 bytes are read in twice as many passes as
// if there were no conflicts, or at most four times where a warp reads single elements of a row.
template <int BYTES> struct TurnedTile {
    static constexpr int EACH = 16 / BYTES;  // elements of a slot
    static constexpr int COLUMN_SLOTS = 8;
    static constexpr int ROWS = COLUMN_SLOTS * EACH, COLUMNS = 64;
    static constexpr int ROW_CHUNKS = COLUMNS / EACH;  // 16 bytes of the result
    static constexpr int SLOTS = COLUMNS * COLUMN_SLOTS;

    TILEWISE_HD static constexpr int slot(int row, int column) {
        return column * COLUMN_SLOTS + ((row / EACH) ^ ((column + column / EACH) % COLUMN_SLOTS));
    }
};
