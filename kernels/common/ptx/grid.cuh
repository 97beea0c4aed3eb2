// Programmatic dependent launch (sm_90). A kernel may begin before the work queued before it is done
// (src/cuda/queue.rs), because the driver queues such a launch in less time.
//
// Hazard: every kernel waits before it touches memory, most as their first statement. Only the second of two launches
// may read earlier what the first leaves alone, and the first then waits in its turn. Before sm_90 no launch begins
// early.
#pragma once

namespace ptx {

// From now on the next launch's blocks may take the places that this one's leave, once all of its blocks have said so:
// after wait_for_grid_before(), so that they find done what this one has waited for.
__device__ __forceinline__ void let_next_grid_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until what was queued before is done, and what it wrote is visible. Of a launch's threads one must: others rely on it.
__device__ __forceinline__ void wait_for_grid_before() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace ptx
