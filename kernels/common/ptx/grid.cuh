// Launches that overlap (sm_90). Ours may begin before the work queued before them is done (src/cuda/launch.rs): the driver
// queues such a launch in less time. So every kernel waits before it touches memory, most as their first statement; only
// the second of two launches may do sooner what the first leaves alone, and the first then begins in its turn. Work of
// others that begins early and never waits for what is before it would be as much in ours' way as in each other's. Before
// sm_90 no launch begins early.
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
