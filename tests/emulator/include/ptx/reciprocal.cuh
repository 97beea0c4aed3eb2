// Stands in for kernels/common/ptx/reciprocal.cuh.
#pragma once

namespace ptx {

inline float reciprocal_approximate(float v) {
    const float r = 1.0f / v;
    return r > -0x1p-126f && r < 0x1p-126f ? 0.0f : r;
}

}  // namespace ptx
