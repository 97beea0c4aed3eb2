// Stands in for kernels/common/ptx/shared_pairs.cuh.
#pragma once

#include <cstring>

#include "emulator.h"
#include "hopper.h"

namespace ptx {

inline void load_shared_8(uint32_t shared, uint32_t (&w)[2]) {
    memcpy(w, emulator::shared_pointer(shared, 8, 8), 8);
}
inline void store_shared_8(uint32_t shared, const uint32_t (&w)[2]) {
    memcpy(emulator::shared_pointer(shared, 8, 8), w, 8);
    emulator::wrote_shared(shared, 8);
}

}  // namespace ptx
