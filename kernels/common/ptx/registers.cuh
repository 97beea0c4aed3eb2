// setmaxnreg (sm_90a): warpgroups of a block redistribute the registers that it was launched with.
#pragma once

#include <cstdint>

namespace ptx {

// By all warps of a warpgroup, with the number a thread is to have afterwards: a multiple of 8, 24 to 256.
template <int REGISTERS> __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
// Waits until they are free.
template <int REGISTERS> __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}

}  // namespace ptx
