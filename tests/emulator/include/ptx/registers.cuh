// Stands in for kernels/common/ptx/registers.cuh.
#pragma once

#include "hopper.h"

namespace ptx {

inline uint32_t opaque(uint32_t v) { return v; }
inline const char* opaque(const char* v) { return v; }

template <int REGISTERS> void take_registers(emulator::Site site = emulator::Site::here()) {
    static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256, "");
    emulator::resize_registers(REGISTERS, site);
}
template <int REGISTERS> void give_registers(emulator::Site site = emulator::Site::here()) {
    take_registers<REGISTERS>(site);
}

}  // namespace ptx
