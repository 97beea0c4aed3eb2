// Numbered barriers of some of a block's warps, among whom may be some that only say that they were there.
#pragma once

#include <cstdint>

namespace ptx {

// `threads` counts those that wait and those that only arrive. What they wrote before is visible to those that wait.
__device__ __forceinline__ void barrier_sync(uint32_t id, uint32_t threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t id, uint32_t threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace ptx
