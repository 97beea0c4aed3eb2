// Stands in for kernels/common/ptx/global.cuh.
#pragma once

#include <cstring>

#include "emulator.h"

namespace ptx {

template <int Bytes> void load_global(const void* p, uint32_t* w) {
    emulator::check_global(p, Bytes);
    memcpy(w, p, Bytes);
}
template <int Bytes> void store_global(void* p, const uint32_t* w) {
    emulator::check_global(p, Bytes);
    memcpy(p, w, Bytes);
}

}  // namespace ptx
