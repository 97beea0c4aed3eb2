// bfloat16 as CUDA's header has it.
#pragma once

#include <cstdint>
#include <cstring>

struct alignas(2) __nv_bfloat16 {
    uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};

inline float __bfloat162float(__nv_bfloat16 h) {
    const uint32_t word = uint32_t(h.bits) << 16;
    float f;
    memcpy(&f, &word, 4);
    return f;
}
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
    uint32_t word;
    memcpy(&word, &f, 4);
    if ((word & 0x7fffffff) > 0x7f800000) return {0x7fff};
    return {uint16_t((word + 0x7fff + (word >> 16 & 1)) >> 16)};
}
inline __nv_bfloat16 __float2bfloat16(float f) { return __float2bfloat16_rn(f); }
