// Where the elements of an operand's tile lie in shared memory. Pure index arithmetic, also for the host.
#pragma once

#include "common/tile_order.cuh"

// Which dimension of an operand has unit stride: k, or the one it shares with the result (m of a, n of b).
enum class Major { K, MN };

// MN x BK 16-bit elements as rows of 16-byte chunks along the unit stride. Chunks are permuted within a
// row by an XOR with the row's number, so that the eight rows of an 8x8 matrix at one chunk column, which
// ldmatrix reads together, lie in eight different groups of four banks.
template <int MN, int BK, Major MAJOR>
struct SharedTile {
    static constexpr int ROWS = MAJOR == Major::K ? MN : BK;
    static constexpr int CHUNKS = (MAJOR == Major::K ? BK : MN) / 8;  // per row
    static constexpr int ROW_BYTES = CHUNKS * 16;
    static constexpr int BYTES = ROWS * ROW_BYTES;
    static_assert(CHUNKS >= 4 && (CHUNKS & (CHUNKS - 1)) == 0, "rows of 64 bytes or more, a power of two");

    // Two rows of 64 bytes share the 32 banks, so there the XOR changes every other row.
    TILEWISE_HOST_DEVICE static constexpr int swizzle(int row) {
        return CHUNKS == 4 ? (row >> 1) & 3 : row & 7;
    }

    // Byte offset of a chunk.
    TILEWISE_HOST_DEVICE static constexpr int offset(int row, int chunk) {
        return row * ROW_BYTES + ((chunk ^ swizzle(row)) << 4);
    }

    // Byte offset of the chunk that holds element (mn, k), the first of eight along the unit stride.
    TILEWISE_HOST_DEVICE static constexpr int element(int mn, int k) {
        return MAJOR == Major::K ? offset(mn, k / 8) : offset(k, mn / 8);
    }

    // The chunk 16 * i further along mn and 16 * j along k from `base`, which is element(mn, k) for some
    // k < 16 and some mn whose 16s within a power-of-two span that contains 16 * i are zero: along the
    // unit stride the step is then an XOR that the swizzle commutes with, across it whole rows.
    TILEWISE_HOST_DEVICE static constexpr int step(int base, int i, int j) {
        const int along = MAJOR == Major::K ? j : i;
        const int across = MAJOR == Major::K ? i : j;
        return (base ^ (along * 32)) + across * 16 * ROW_BYTES;
    }
};
