// Stands in for kernels/common/ptx/mbarrier.cuh.
#pragma once

#include "hopper.h"

namespace ptx {

inline void mbarrier_init(uint32_t barrier, uint32_t arrivals) { emulator::mbarrier_init(barrier, arrivals); }
inline void fence_mbarrier_init() {}
inline void mbarrier_arrive(uint32_t barrier) { emulator::mbarrier_arrive(barrier, 0); }
inline void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) { emulator::mbarrier_arrive(barrier, bytes); }
inline void mbarrier_wait(uint32_t barrier, uint32_t parity, emulator::Site site = emulator::Site::here()) {
    emulator::mbarrier_wait(barrier, parity, site);
}

}  // namespace ptx
