// 1 / v in one instruction.
#pragma once

namespace ptx {

// To 1 ulp; of numbers beyond 8.5e37 it is 0.
__device__ __forceinline__ float reciprocal_approximate(float v) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

}  // namespace ptx
