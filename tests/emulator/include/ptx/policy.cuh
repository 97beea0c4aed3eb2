// Stands in for kernels/common/ptx/policy.cuh.
#pragma once

#include "cp_async.cuh"
#include "global.cuh"

namespace ptx {

inline uint64_t read_once() { return 0; }
inline void load_global_if_by(bool wanted, const void* p, uint32_t* w, uint64_t) { load_global_if<16>(wanted, p, w); }
inline void cp_async_16_by(uint32_t shared, const void* global, uint64_t) { cp_async_16(shared, global); }

}  // namespace ptx
