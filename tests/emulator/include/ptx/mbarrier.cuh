// Stands in for kernels/common/ptx/mbarrier.cuh.
#pragma once

#include "hopper.h"

namespace ptx {

inline void mbarrier_init(uint32_t barrier, uint32_t arrivals) { emulator::mbarrier_init(barrier, arrivals); }
inline void fence_mbarrier_init() { emulator::mbarrier_publish(); }
inline void mbarrier_arrive(uint32_t barrier) { emulator::mbarrier_arrive(barrier, 0); }
inline uint32_t mbarrier_of_block(uint32_t barrier, uint32_t rank) { return emulator::mbarrier_of_block(barrier, rank); }
inline void mbarrier_arrive_there(uint32_t barrier) { emulator::mbarrier_arrive_there(barrier); }
inline void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) { emulator::mbarrier_arrive(barrier, bytes); }
inline void mbarrier_wait(uint32_t barrier, uint32_t parity, emulator::Site site = emulator::Site::here()) {
    emulator::mbarrier_wait(barrier, parity, site);
}

}  // namespace ptx
