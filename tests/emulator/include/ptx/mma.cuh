// Stands in for kernels/common/ptx/mma.cuh, which says what lies where. Sums are exact up to one rounding to float
// for each mma; a tensor core's own are a little worse.
#pragma once

#include "dtype.cuh"
#include "tensor_core.h"

namespace ptx {

template <class T>
void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  emulator::Site site = emulator::Site::here()) {
    emulator::Mma mine = {d, a, b};
    const auto product = std::is_same_v<T, f16> ? emulator::mma_f16 : emulator::mma_bf16;
    emulator::together("mma.m16n8k16", site, ~0u, true, &mine, product);
}
inline void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                             emulator::Site site = emulator::Site::here()) {
    emulator::Mma mine = {d, a, b};
    emulator::together("mma.m16n8k8", site, ~0u, true, &mine, emulator::mma_tf32);
}
inline void mma_m16n8k8_f64(double (&d)[4], const double (&a)[4], const double (&b)[2],
                            emulator::Site site = emulator::Site::here()) {
    emulator::DoubleMma mine = {d, a, b};
    emulator::together("mma.m16n8k8", site, ~0u, true, &mine, emulator::mma_f64);
}

// Ties away from zero; infinities and NaN stay what they are.
inline uint32_t to_tf32(uint32_t bits) {
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}

}  // namespace ptx
