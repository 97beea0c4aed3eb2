// What device code sees of the tensor cores: products of a whole warp, each lane's part by what it gives to `together`.
#pragma once

#include "emulator.h"

namespace __attribute__((visibility("default"))) emulator {

// m16n8k16 of halves, m16n8k8 of floats without the bits that a tf32 does not have.
struct Mma {
    float (&d)[4];
    const uint32_t (&a)[4];
    const uint32_t (&b)[2];
};
void mma_f16(void* const (&lanes)[32], uint32_t);
void mma_bf16(void* const (&lanes)[32], uint32_t);
void mma_tf32(void* const (&lanes)[32], uint32_t);

// m16n8k8
struct DoubleMma {
    double (&d)[4];
    const double (&a)[4];
    const double (&b)[2];
};
void mma_f64(void* const (&lanes)[32], uint32_t);

}  // namespace emulator
