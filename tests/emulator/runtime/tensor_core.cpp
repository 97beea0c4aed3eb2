// Products of a warp that are done at once.
#include "../include/tensor_core.h"

#include <cmath>

#include "numbers.h"

namespace emulator {

namespace {

// Of element `e` of four that a lane has of the 16 rows and 8 columns.
unsigned row_of(unsigned lane, unsigned e) { return lane / 4 + e / 2 * 8; }
unsigned column_of(unsigned lane, unsigned e) { return lane % 4 * 2 + e % 2; }

// EACH elements of a and b in a register.
template <unsigned EACH, class Convert> void multiply(void* const (&lanes)[32], Convert convert) {
    constexpr unsigned K = 8 * EACH;
    double a[16][K], b[K][8], sums[16][8];
    for (unsigned lane = 0; lane < 32; ++lane) {
        const auto& mine = *static_cast<Mma*>(lanes[lane]);
        const unsigned g = lane / 4, t = lane % 4;
        for (unsigned i = 0; i < EACH; ++i) {
            for (unsigned word = 0; word < 4; ++word) {
                a[g + word % 2 * 8][(t + word / 2 * 4) * EACH + i] = convert(mine.a[word], i);
            }
            for (unsigned word = 0; word < 2; ++word) b[(t + word * 4) * EACH + i][g] = convert(mine.b[word], i);
        }
        for (unsigned e = 0; e < 4; ++e) sums[row_of(lane, e)][column_of(lane, e)] = mine.d[e];
    }
    add_products(a[0], b[0], 8, K, sums);
    for (unsigned lane = 0; lane < 32; ++lane) {
        const auto& mine = *static_cast<Mma*>(lanes[lane]);
        for (unsigned e = 0; e < 4; ++e) mine.d[e] = float(sums[row_of(lane, e)][column_of(lane, e)]);
    }
}

}  // namespace

void mma_f16(void* const (&lanes)[32], uint32_t) {
    multiply<2>(lanes, [](uint32_t word, unsigned i) { return of_f16(uint16_t(word >> (16 * i))); });
}
void mma_bf16(void* const (&lanes)[32], uint32_t) {
    multiply<2>(lanes, [](uint32_t word, unsigned i) { return of_bf16(uint16_t(word >> (16 * i))); });
}
void mma_tf32(void* const (&lanes)[32], uint32_t) {
    multiply<1>(lanes, [](uint32_t word, unsigned) { return of_tf32(word); });
}

// Each product is added with one rounding, in the order of k.
void mma_f64(void* const (&lanes)[32], uint32_t) {
    double a[16][8], b[8][8], sums[16][8];
    for (unsigned lane = 0; lane < 32; ++lane) {
        const auto& mine = *static_cast<DoubleMma*>(lanes[lane]);
        for (unsigned k = 0; k < 2; ++k) {
            for (unsigned half = 0; half < 2; ++half) a[lane / 4 + half * 8][lane % 4 + k * 4] = mine.a[k * 2 + half];
            b[lane % 4 + k * 4][lane / 4] = mine.b[k];
        }
        for (unsigned e = 0; e < 4; ++e) sums[row_of(lane, e)][column_of(lane, e)] = mine.d[e];
    }
    for (unsigned row = 0; row < 16; ++row) {
        for (unsigned k = 0; k < 8; ++k) {
            for (unsigned column = 0; column < 8; ++column) {
                sums[row][column] = std::fma(a[row][k], b[k][column], sums[row][column]);
            }
        }
    }
    for (unsigned lane = 0; lane < 32; ++lane) {
        const auto& mine = *static_cast<DoubleMma*>(lanes[lane]);
        for (unsigned e = 0; e < 4; ++e) mine.d[e] = sums[row_of(lane, e)][column_of(lane, e)];
    }
}

}  // namespace emulator
