// Where the elements of an operand's tile lie in shared memory. Pure index arithmetic, also for the host.
#pragma once

#include "tile_order.cuh"

// Which dimension of an operand has unit stride: k, or the one it shares with the result (m of a, n of b).
enum class Major { K, MN };

// The operand's place in the product, and with it the order of its four 8x8 matrices in one ldmatrix: a's
// fragment (16x16) wants both halves of m before the second half of k, b's two neighbouring fragments
// (16x8 each) both halves of k first.
enum class Side { A, B };

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
    TILEWISE_HOST_DEVICE static constexpr int swizzle(int row) { return CHUNKS == 4 ? (row >> 1) & 3 : row & 7; }

    // Byte offset of a chunk.
    TILEWISE_HOST_DEVICE static constexpr int offset(int row, int chunk) {
        return row * ROW_BYTES + ((chunk ^ swizzle(row)) << 4);
    }

    // Byte offset of the chunk that holds element (mn, k), the first of eight along the unit stride.
    TILEWISE_HOST_DEVICE static constexpr int element(int mn, int k) {
        return MAJOR == Major::K ? offset(mn, k / 8) : offset(k, mn / 8);
    }

    // The chunk whose address a lane gives to ldmatrix for the 16 x 16 piece at (mn, k = 0), as byte offset.
    TILEWISE_HOST_DEVICE static constexpr int fragment(Side side, int mn, int lane) {
        const int row = lane & 7, low = lane >> 3 & 1, high = lane >> 4;
        const int mn_half = (side == Side::A ? low : high) * 8, k_half = (side == Side::A ? high : low) * 8;
        return MAJOR == Major::K ? element(mn + mn_half + row, k_half) : element(mn + mn_half, k_half + row);
    }

    // The same for the piece 16 * i further along mn and 16 * j along k, from the offset of the first. Across
    // the unit stride that is whole rows; along it an XOR, which the swizzle commutes with as long as
    // mn is a multiple of a power of two that is larger than 16 * i.
    TILEWISE_HOST_DEVICE static constexpr int step(int fragment, int i, int j) {
        const int along = MAJOR == Major::K ? j : i, across = MAJOR == Major::K ? i : j;
        return (fragment ^ (along * 32)) + across * 16 * ROW_BYTES;
    }
};
