// Launches that overlap (sm_90): the second of two may be told to begin while the first still runs, and then waits for it
// where it needs what that has written. Before sm_90 no launch begins early.
#pragma once

namespace ptx {

// From now on the next launch's blocks may take the places that this one's leave, once all of its blocks have said so.
__device__ __forceinline__ void let_next_grid_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until the launch before is done, and what it wrote is visible.
__device__ __forceinline__ void wait_for_grid_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace ptx
