// Where the elements of an operand's tile lie in shared memory. Pure index arithmetic, also compiled for the host.
#pragma once

#include "tile_order.cuh"

// Which dimension of an operand has unit stride: k, or the one it shares with the result (m of a, n of b).
enum class Major { K, MN };

// The operand's place in the product, and with it the order of its four 8x8 matrices in one ldmatrix: a's
// fragment (16x16) wants both halves of m before the second half of k, b's two neighbouring fragments
// (16x8 each) both halves of k first.
enum class Side { A, B };

// MN x BK elements of BYTES each, 2 or 4, as rows of 16-byte vectors along the unit stride. Vectors are
// permuted within a row by an XOR with the row's number, so that what a warp reads together lies in
// different banks: eight rows of an 8x8 matrix of 16-bit elements at one vector column (ldmatrix), or four rows
// of eight 4-byte elements, two vectors each, where ldmatrix cannot transpose. Doubles have a tile of their own (dmma_tile.cuh).
template <int MN, int BK, int BYTES_EACH, Major MAJOR>
struct SharedTile {
    static constexpr int EACH = 16 / BYTES_EACH;  // elements of a vector
    static constexpr int ROWS = MAJOR == Major::K ? MN : BK;
    static constexpr int VECTORS = (MAJOR == Major::K ? BK : MN) / EACH;  // of a row
    static constexpr int ROW_BYTES = VECTORS * 16;
    static constexpr int BYTES = ROWS * ROW_BYTES;
    static constexpr bool TRANSPOSABLE = MAJOR == Major::K || BYTES_EACH == 2;  // by ldmatrix
    static constexpr int PERIOD = TRANSPOSABLE ? 8 : 4;  // rows after which the permutation repeats
    static_assert(VECTORS % (TRANSPOSABLE ? 4 : 8) == 0, "the permutation stays within a row");

    TILEWISE_HD static constexpr int swizzle(int row) {
        if (!TRANSPOSABLE) return (row & 3) * 2;
        return VECTORS % 8 == 4 ? (row >> 1) & 3 : row & 7;  // every other row begins in the middle of the 32 banks
    }

    // Byte offset of a vector.
    TILEWISE_HD static constexpr int offset(int row, int vector) {
        return row * ROW_BYTES + ((vector ^ swizzle(row)) << 4);
    }

    // Byte offset of element (mn, k).
    TILEWISE_HD static constexpr int element(int mn, int k) {
        const int row = MAJOR == Major::K ? mn : k, at = MAJOR == Major::K ? k : mn;
        return offset(row, at / EACH) + at % EACH * BYTES_EACH;
    }

    // A fragment is 16 elements of mn by 32 bytes of k: four matrices of 8 elements of mn by 16 bytes of k. Byte
    // offset of what a lane reads for the fragment at (mn, k = 0): the vector whose address it gives to ldmatrix, or,
    // where that cannot transpose, its own element of the first matrix.
    TILEWISE_HD static constexpr int fragment(Side side, int mn, int lane) {
        if (!TRANSPOSABLE) return element(mn + lane / 4, lane % 4);
        const int row = lane & 7, low = lane >> 3 & 1, high = lane >> 4;
        const int mn_half = (side == Side::A ? low : high) * 8, k_half = (side == Side::A ? high : low) * EACH;
        return MAJOR == Major::K ? element(mn + mn_half + row, k_half) : element(mn + mn_half, k_half + row);
    }

    // The same for the fragment 16 * i further along mn and 32 bytes * j along k, from the offset of the first:
    // across the unit stride whole rows; along it an XOR, which the permutation commutes with as long as mn is a
    // multiple of a power of two that is larger than 16 * i.
    TILEWISE_HD static constexpr int step(int fragment, int i, int j) {
        return MAJOR == Major::K ? (fragment ^ (j * 32)) + i * 16 * ROW_BYTES
                                 : (fragment ^ (i * 16 * BYTES_EACH)) + j * 2 * EACH * ROW_BYTES;
    }

    // Neighbouring pieces, of so many next to each other, that are steps from the first of them.
    TILEWISE_HD static constexpr int steps(int pieces) { return MAJOR == Major::K ? pieces : pieces & -pieces; }
    // Groups of so many steps after which all repeats, that many bytes further: the permutation stays within eight vectors.
    TILEWISE_HD static constexpr int cycle(int steps) { return steps < EACH / 2 ? EACH / 2 / steps : 1; }
    static constexpr int CYCLE_BYTES = 128;

    // From a lane's element of the first matrix to that of another, where ldmatrix cannot transpose.
    TILEWISE_HD static constexpr int half(int first, int mn_half, int k_half) {
        return (first ^ (mn_half * 8 * BYTES_EACH)) + k_half * EACH * ROW_BYTES;
    }
};
