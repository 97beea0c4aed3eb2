// As shared.cuh, of 8 bytes, aligned to that.
#pragma once

#include <cstdint>

namespace ptx {

__device__ __forceinline__ void load_shared_8(uint32_t shared, uint32_t (&w)[2]) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "r"(shared) : "memory");
}
__device__ __forceinline__ void store_shared_8(uint32_t shared, const uint32_t (&w)[2]) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(shared), "r"(w[0]), "r"(w[1]) : "memory");
}

}  // namespace ptx
