// Loads with an L2 eviction policy (sm_80).
#pragma once

#include <cstdint>

namespace ptx {

// What is read but once leaves L2 before anything else.
__device__ __forceinline__ uint64_t read_once() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

// 16 bytes to registers, or nothing, as load_global_if of global.cuh; and to shared memory, as cp_async_16 of cp_async.cuh.
__device__ __forceinline__ void load_global_if_by(bool wanted, const void* p, uint32_t* w, uint64_t policy) {
    const uint64_t at = __cvta_generic_to_global(p);
    const uint32_t flag = wanted;
    asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.L2::cache_hint.v4.b32 {%0, %1, %2, %3}, [%4], %6;}"
                 : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3])
                 : "l"(at), "r"(flag), "l"(policy));
}
__device__ __forceinline__ void cp_async_16_by(uint32_t shared, const void* global, uint64_t policy) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "l"(policy)
                 : "memory");
}

}  // namespace ptx
