// Stands in for kernels/common/ptx/global.cuh.
#pragma once

#include <cstring>

#include "emulator.h"

namespace ptx {

template <int Bytes> void load_global(const void* p, uint32_t* w) {
    emulator::check_global(p, Bytes);
    memcpy(w, p, Bytes);
}
template <int Bytes> void load_global_if(bool wanted, const void* p, uint32_t* w) {
    if (!wanted) return;
    emulator::check_global(p, Bytes);
    if (Bytes < 4) w[0] = 0;
    memcpy(w, p, Bytes);
}
inline void prefetch_to_l2(const void* p) { emulator::check_global(p, 1); }
inline uint16_t load_global_half(const void* p) {
    emulator::check_global(p, 2);
    return *static_cast<const uint16_t*>(p);
}
template <int Bytes> void store_global(void* p, const uint32_t* w) {
    emulator::check_global(p, Bytes);
    memcpy(p, w, Bytes);
}
template <int Bytes> void store_global_if(bool wanted, void* p, const uint32_t* w) {
    if (wanted) store_global<Bytes>(p, w);
}

}  // namespace ptx
