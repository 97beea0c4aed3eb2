// Arithmetic that CUDA C++ has no function for, or none that is this cheap; and a fence for the compiler.
#pragma once

#include <cstdint>

namespace ptx {

// 2^v to about 2 ulp; results below 1.2e-38 become 0.
__device__ __forceinline__ float exp2_approximate(float v) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

// The larger one, NaN if one of them is: one instruction from sm_80 on.
__device__ __forceinline__ float max_nan(float v, float w) {
#if __CUDA_ARCH__ >= 800
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(v), "f"(w));
    return r;
#else
    return v < w ? w : v;
#endif
}

// Words of which the compiler may no longer think that it knows what they are made of.
__device__ __forceinline__ void hide(uint32_t (&word)[4]) {
    asm("" : "+r"(word[0]), "+r"(word[1]), "+r"(word[2]), "+r"(word[3]));
}

// Two floats rounded to nearest even, `low` in the lower half (sm_80).
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
    uint32_t word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    uint32_t word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

// The larger of each of two halves; of a number and NaN the number (sm_80).
__device__ __forceinline__ uint32_t max_f16(uint32_t a, uint32_t b) {
    uint32_t word;
    asm("max.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
}
__device__ __forceinline__ uint32_t max_bf16(uint32_t a, uint32_t b) {
    uint32_t word;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
    return word;
}

}  // namespace ptx
