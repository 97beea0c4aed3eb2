// Plain accesses of shared memory by the 32-bit addresses that cp.async, ldmatrix and stmatrix take.
#pragma once

#include <cstdint>

namespace ptx {

__device__ __forceinline__ uint32_t load_shared(uint32_t shared) {
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(shared) : "memory");
    return word;
}

__device__ __forceinline__ uint16_t load_shared_half(uint32_t shared) {
    uint16_t half;
    asm volatile("ld.shared.b16 %0, [%1];" : "=h"(half) : "r"(shared) : "memory");
    return half;
}

// 16 bytes, aligned to that.
__device__ __forceinline__ void load_shared_16(uint32_t shared, uint32_t (&w)[4]) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(shared)
                 : "memory");
}
__device__ __forceinline__ void store_shared_16(uint32_t shared, const uint32_t (&w)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
}

__device__ __forceinline__ double load_shared_double(uint32_t shared) {
    double v;
    asm volatile("ld.shared.f64 %0, [%1];" : "=d"(v) : "r"(shared) : "memory");
    return v;
}
// Two, aligned to 16 bytes.
__device__ __forceinline__ void load_shared_doubles(uint32_t shared, double& v, double& w) {
    asm volatile("ld.shared.v2.f64 {%0, %1}, [%2];" : "=d"(v), "=d"(w) : "r"(shared) : "memory");
}

}  // namespace ptx
