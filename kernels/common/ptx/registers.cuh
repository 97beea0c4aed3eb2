// Registers: what the compiler keeps in them, and setmaxnreg (sm_90a), by which warpgroups of a block redistribute those that it
// was launched with.
#pragma once

#include <cstdint>

namespace ptx {

// The same number or address, of which the compiler knows nothing: what follows from it is computed where it is needed, and not
// kept in registers until then.
__device__ __forceinline__ uint32_t opaque(uint32_t v) {
    asm volatile("" : "+r"(v));
    return v;
}
__device__ __forceinline__ const char* opaque(const char* v) {
    asm volatile("" : "+l"(v));
    return v;
}

// By all warps of a warpgroup, with the number a thread is to have afterwards: a multiple of 8, 24 to 256.
template <int REGISTERS> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
// Waits until they are free.
template <int REGISTERS> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

}  // namespace ptx
