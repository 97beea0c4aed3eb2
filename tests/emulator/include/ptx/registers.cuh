// Stands in for kernels/common/ptx/registers.cuh. Registers are not counted.
#pragma once

namespace ptx {

template <int REGISTERS> void give_registers() {
    static_assert(REGISTERS % 8 == 0 && REGISTERS >= 24 && REGISTERS <= 256, "");
}
template <int REGISTERS> void take_registers() { give_registers<REGISTERS>(); }

}  // namespace ptx
