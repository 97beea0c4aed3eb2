// cp.async (sm_80): global to shared memory past the registers, in order of commit groups.
#pragma once

#include <cstdint>

namespace ptx {

// Copies the first `bytes` (0 to 16) and writes zeros for the rest; with 0 nothing is read. Goes past L1,
// and asks L2 for the whole 128-byte line: the next k tile wants the other half.
__device__ __forceinline__ void cp_async_16(uint32_t shared, const void* global, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
                 "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void cp_async_8(uint32_t shared, const void* global, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared), "l"(global), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void cp_async_4(uint32_t shared, const void* global, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `PENDING` of this thread's groups are still under way.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

}  // namespace ptx
