// Stands in for kernels/common/ptx/barrier.cuh.
#pragma once

#include "hopper.h"

namespace ptx {

inline void barrier_sync(uint32_t id, uint32_t threads, emulator::Site site = emulator::Site::here()) {
    emulator::barrier(id, threads, site);
}
inline void barrier_arrive(uint32_t id, uint32_t threads, emulator::Site site = emulator::Site::here()) {
    emulator::barrier_arrive(id, threads, site);
}

inline bool elect(emulator::Site site = emulator::Site::here()) {
    bool elected = false;
    emulator::together("elect", site, ~0u, true, &elected,
                       [](void* const (&lanes)[32], uint32_t) { *static_cast<bool*>(lanes[0]) = true; });
    return elected;
}

}  // namespace ptx
