// cp.async (sm_80): global to shared memory past the registers, in order of commit groups.
#pragma once

#include <cstdint>

namespace ptx {

// 16 bytes past L1.
__device__ __forceinline__ void cp_async_16(uint32_t shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// 4, 8 or 16 bytes, and the 256 bytes around them for L2: neighbours will ask for the rest. The 16 go past L1.
template <int BYTES> __device__ __forceinline__ void cp_async_around(uint32_t shared, const void* global) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], %2;" ::"r"(shared), "l"(global), "n"(BYTES)
                     : "memory");
    }
}

// 16 bytes, or zeros without reading anything. Goes past L1, and asks L2 for the whole 128-byte line: the
// next k tile wants the other half.
__device__ __forceinline__ void cp_async_16(uint32_t shared, const void* global, bool valid) {
    asm volatile(
        "{\n"
        ".reg .pred ignore;\n"
        "setp.eq.u32 ignore, %2, 0;\n"
        "cp.async.cg.shared.global.L2::128B [%0], [%1], 16, ignore;\n"
        "}" ::"r"(shared),
        "l"(global), "r"(uint32_t(valid))
        : "memory");
}

// 4 or 8 bytes, or zeros; through L1.
template <int BYTES>
__device__ __forceinline__ void cp_async(uint32_t shared, const void* global, bool valid) {
    static_assert(BYTES == 4 || BYTES == 8, "");
    asm volatile(
        "{\n"
        ".reg .pred ignore;\n"
        "setp.eq.u32 ignore, %2, 0;\n"
        "cp.async.ca.shared.global [%0], [%1], %3, ignore;\n"
        "}" ::"r"(shared),
        "l"(global), "r"(uint32_t(valid)), "n"(BYTES)
        : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `PENDING` of this thread's groups are still under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

}  // namespace ptx
