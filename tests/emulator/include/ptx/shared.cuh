// Stands in for kernels/common/ptx/shared.cuh.
#pragma once

#include <cstring>

#include "emulator.h"

namespace ptx {

inline uint32_t load_shared(uint32_t shared) {
    return *static_cast<const uint32_t*>(emulator::shared_pointer(shared, 4, 4));
}
inline uint16_t load_shared_half(uint32_t shared) {
    return *static_cast<const uint16_t*>(emulator::shared_pointer(shared, 2, 2));
}
inline void load_shared_16(uint32_t shared, uint32_t (&w)[4]) {
    memcpy(w, emulator::shared_pointer(shared, 16, 16), 16);
}
inline void store_shared_16(uint32_t shared, const uint32_t (&w)[4]) {
    memcpy(emulator::shared_pointer(shared, 16, 16), w, 16);
}
inline double load_shared_double(uint32_t shared) {
    return *static_cast<const double*>(emulator::shared_pointer(shared, 8, 8));
}
inline void load_shared_doubles(uint32_t shared, double& v, double& w) {
    const auto* from = static_cast<const double*>(emulator::shared_pointer(shared, 16, 16));
    v = from[0], w = from[1];
}

}  // namespace ptx
