// float16 as CUDA's header has it: a type without arithmetic, and conversions that round to nearest even.
#pragma once

#include <cstdint>
#include <cstring>

struct alignas(2) __half {
    uint16_t bits;
};
struct alignas(4) __half2 {
    __half x, y;
};

inline float __half2float(__half h) {
    // The exponent moves by a multiplication, which is exact and takes subnormals along.
    const uint32_t rest = uint32_t(h.bits & 0x7fff) << 13;
    uint32_t word = rest;
    float f;
    memcpy(&f, &word, 4);
    f *= 0x1p112f;
    memcpy(&word, &f, 4);
    if (rest >= 0x0f800000) word = rest | 0x7f800000;  // infinity, NaN
    word |= uint32_t(h.bits & 0x8000) << 16;
    memcpy(&f, &word, 4);
    return f;
}

inline __half __float2half_rn(float f) {
    uint32_t word;
    memcpy(&word, &f, 4);
    const uint16_t sign = word >> 16 & 0x8000;
    word &= 0x7fffffff;
    if (word > 0x7f800000) return {0x7fff};
    if (word >= 0x477ff000) return {uint16_t(sign | 0x7c00)};  // 65520 and more
    if (word < 0x38800000) {
        // Subnormal: adding 0.5 leaves its multiples of 2^-24 in the lowest bits, rounded by the addition.
        memcpy(&f, &word, 4);
        f += 0.5f;
        memcpy(&word, &f, 4);
        return {uint16_t(sign | (word - 0x3f000000))};
    }
    return {uint16_t(sign | ((word - 0x38000000 + 0xfff + (word >> 13 & 1)) >> 13))};
}
inline __half __float2half(float f) { return __float2half_rn(f); }
