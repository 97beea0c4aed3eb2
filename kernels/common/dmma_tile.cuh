// Where the doubles of an operand's tile lie in shared memory, and which of them a lane takes for an mma. With g = lane / 4
// and t = lane % 4 the instruction wants row g and row g + 8 of its left operand and column g of its right one at t of four k;
// which rows, columns and k of the tile these are is free. Pure index arithmetic.
#pragma once

#include "shared_tile.cuh"

// PAIRS: along k a lane reads two doubles at a time, as the left operand's along its rows; else one.
template <int MN, int BK, Major MAJOR, bool PAIRS> struct DoubleTile {
    static constexpr int EACH = 2;  // elements of a vector
    static constexpr int ROWS = MAJOR == Major::K ? MN : BK;
    static constexpr int VECTORS = (MAJOR == Major::K ? BK : MN) / EACH;  // of a row
    static constexpr int ROW_BYTES = VECTORS * 16, BYTES = ROWS * ROW_BYTES;
    static constexpr int PERIOD = MAJOR == Major::K ? PAIRS ? 2 : 4 : 8;  // rows after which the permutation repeats
    static_assert(VECTORS % 8 == 0, "the permutation stays within 128 bytes");

    // Vectors are permuted within 128 bytes, so that what lanes read together lies in different banks: two rows of four vectors
    // along k, or one half each of four rows of four, or two vectors of four even or odd k.
    TILEWISE_HD static constexpr int swizzle(int row) {
        if (MAJOR == Major::MN) return row & 6;
        return PAIRS ? (row & 1) * 4 : (row & 3) * 2;
    }
    // Byte offset of a vector.
    TILEWISE_HD static constexpr int offset(int row, int vector) {
        return row * ROW_BYTES + ((vector ^ swizzle(row)) << 4);
    }
    // Byte offset of element (mn, k).
    TILEWISE_HD static constexpr int element(int mn, int k) {
        const int row = MAJOR == Major::K ? mn : k, at = MAJOR == Major::K ? k : mn;
        return offset(row, at / EACH) + at % EACH * 8;
    }
    // Byte offset of a lane's first element of the fragment at (mn, k = 0), whose lanes' rows or columns are `apart`.
    TILEWISE_HD static constexpr int first(int mn, int apart, int lane) {
        const int t = lane % 4;
        return element(mn + lane / 4 * apart, t * 2 + (MAJOR == Major::K && !PAIRS ? t >> 1 : 0));
    }
    // The same for another, `mn` further (a multiple of 8 along k, of 16 or, of lanes one apart, of 8 otherwise) and at number
    // `four` of four k: of eight k even and odd ones, or, where single ones are read along k, the others.
    TILEWISE_HD static constexpr int at(int first, int mn, int four) {
        if (MAJOR == Major::K) return ((first ^ (four >> 1) * 64) ^ (four & 1) * 8) + mn * ROW_BYTES;
        return (first ^ mn % 16 * 8) + mn / 16 * 128 + (four >> 1) * 8 * ROW_BYTES + (four & 1) * ROW_BYTES;
    }
};
