// Stands in for kernels/common/ptx/registers.cuh.
#pragma once

#include "hopper.h"

namespace ptx {

template <int REGISTERS> void take_registers(emulator::Site site = emulator::Site::here()) {
    static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256, "");
    emulator::resize_registers(REGISTERS, site);
}
template <int REGISTERS> void give_registers(emulator::Site site = emulator::Site::here()) {
    take_registers<REGISTERS>(site);
}

}  // namespace ptx
