// Stands in for kernels/common/ptx/cp_async.cuh.
#pragma once

#include "emulator.h"

namespace ptx {

inline void cp_async_16(uint32_t shared, const void* global) { emulator::copy_async(shared, global, 16, true); }
template <int BYTES> void cp_async_around(uint32_t shared, const void* global) {
    static_assert(BYTES == 4 || BYTES == 8 || BYTES == 16, "");
    emulator::copy_async(shared, global, BYTES, true);
}
inline void cp_async_16(uint32_t shared, const void* global, bool valid) {
    emulator::copy_async(shared, global, 16, valid);
}
template <int BYTES> void cp_async(uint32_t shared, const void* global, bool valid) {
    static_assert(BYTES == 4 || BYTES == 8, "");
    emulator::copy_async(shared, global, BYTES, valid);
}
inline void cp_async_commit() { emulator::commit_copies(); }
template <int PENDING> void cp_async_wait() { emulator::wait_for_copies(PENDING); }

}  // namespace ptx
