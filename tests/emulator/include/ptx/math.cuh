// Stands in for kernels/common/ptx/math.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

#include <cstdint>

namespace ptx {

inline float exp2_approximate(float v) {
    const float r = exp2f(v);
    return r < 0x1p-126f ? 0.0f : r;
}
inline float max_nan(float v, float w) { return isnan(v) || isnan(w) ? NAN : fmaxf(v, w); }
inline uint32_t pack_f16(float low, float high) {
    return __float2half_rn(low).bits | uint32_t(__float2half_rn(high).bits) << 16;
}
inline uint32_t pack_bf16(float low, float high) {
    return __float2bfloat16_rn(low).bits | uint32_t(__float2bfloat16_rn(high).bits) << 16;
}
template <class T> uint32_t max_halves(uint32_t a, uint32_t b, float (*number)(T), T (*half)(float)) {
    const auto larger = [&](uint32_t x, uint32_t y) {
        T p, q;
        p.bits = static_cast<uint16_t>(x);
        q.bits = static_cast<uint16_t>(y);
        return uint32_t{half(fmaxf(number(p), number(q))).bits};
    };
    return larger(a, b) | larger(a >> 16, b >> 16) << 16;
}
inline uint32_t max_f16(uint32_t a, uint32_t b) { return max_halves<__half>(a, b, __half2float, __float2half_rn); }
inline uint32_t max_bf16(uint32_t a, uint32_t b) {
    return max_halves<__nv_bfloat16>(a, b, __bfloat162float, __float2bfloat16_rn);
}
inline void hide(uint32_t (&)[4]) {}

}  // namespace ptx
