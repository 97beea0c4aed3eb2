// Named barriers for some of a block's warps, of which some may only arrive; and a barrier for the lanes of a warp.
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

// True for one lane of a warp, by all of its lanes (sm_90). Unlike for a comparison of threadIdx, ptxas knows that what
// the branch leads to is done by one thread.
__device__ __forceinline__ bool elect() {
    uint32_t elected;
    asm volatile(
        "{\n"
        ".reg .pred elected;\n"
        "elect.sync _|elected, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, elected;\n"
        "}"
        : "=r"(elected));
    return elected;
}

}  // namespace ptx
