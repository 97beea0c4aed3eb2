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

}  // namespace ptx
