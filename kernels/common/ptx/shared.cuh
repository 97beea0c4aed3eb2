// Plain loads from shared memory by the 32-bit addresses that cp.async, ldmatrix and stmatrix take.
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

}  // namespace ptx
