// Stands in for kernels/common/ptx/math.cuh.
#pragma once

#include <math.h>

#include <cstdint>

namespace ptx {

inline float exp2_approximate(float v) {
    const float r = exp2f(v);
    return r < 0x1p-126f ? 0.0f : r;
}
inline void hide(uint32_t (&)[4]) {}

}  // namespace ptx
