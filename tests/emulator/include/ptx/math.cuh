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
inline uint32_t pack_f16(float low, float high) {
    return __float2half_rn(low).bits | uint32_t(__float2half_rn(high).bits) << 16;
}
inline uint32_t pack_bf16(float low, float high) {
    return __float2bfloat16_rn(low).bits | uint32_t(__float2bfloat16_rn(high).bits) << 16;
}
inline void hide(uint32_t (&)[4]) {}

}  // namespace ptx
