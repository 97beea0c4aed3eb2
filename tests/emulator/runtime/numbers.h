// A tensor core's numbers by their bits, and sums of their products.
#pragma once

#include <cstdint>
#include <cstring>

#include "../include/cuda_bf16.h"
#include "../include/cuda_fp16.h"

namespace emulator {

inline double of_f16(uint16_t bits) { return __half2float({bits}); }
inline double of_bf16(uint16_t bits) { return __bfloat162float({bits}); }
inline double of_tf32(uint32_t bits) {
    bits &= 0xffffe000u;  // there are no more
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

// sums[row][column] += a[row][k] b[k][column] for 16 rows and 8 columns; products are exact, and so are their sums but
// for what doubles cannot hold. Sums of four rows stay in the machine's registers.
inline void add_products(const double* a, const double* b, unsigned b_step, unsigned K, double (&sums)[16][8]) {
    typedef double Four __attribute__((vector_size(32), aligned(8), may_alias));
    const auto four = [](double* p) -> Four& { return *reinterpret_cast<Four*>(p); };
    for (unsigned row = 0; row < 16; row += 4) {
        Four s[4][2];
        for (unsigned r = 0; r < 4; ++r) {
            for (unsigned half = 0; half < 2; ++half) s[r][half] = four(&sums[row + r][half * 4]);
        }
        for (unsigned k = 0; k < K; ++k) {
            const Four low = *reinterpret_cast<const Four*>(b + k * b_step);
            const Four high = *reinterpret_cast<const Four*>(b + k * b_step + 4);
            for (unsigned r = 0; r < 4; ++r) {
                const double factor = a[(row + r) * K + k];
                s[r][0] += factor * low;
                s[r][1] += factor * high;
            }
        }
        for (unsigned r = 0; r < 4; ++r) {
            for (unsigned half = 0; half < 2; ++half) four(&sums[row + r][half * 4]) = s[r][half];
        }
    }
}

}  // namespace emulator
