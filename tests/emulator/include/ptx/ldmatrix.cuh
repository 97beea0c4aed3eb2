// Stands in for kernels/common/ptx/ldmatrix.cuh.
#pragma once

#include <cstring>

#include "emulator.h"

namespace ptx {

struct LdMatrix {
    uint32_t (&r)[4];
    uint32_t shared;
};

template <bool Transposed> void ldmatrix_of_warp(void* const (&lanes)[32], uint32_t) {
    uint16_t matrix[4][8][8];
    for (int lane = 0; lane < 32; ++lane) {
        const uint32_t shared = static_cast<LdMatrix*>(lanes[lane])->shared;
        memcpy(matrix[lane / 8][lane % 8], emulator::shared_pointer(shared, 16, 16), 16);
    }
    for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 4; ++i) {
            const int major = lane / 4, minor = lane % 4 * 2;
            const uint16_t low = Transposed ? matrix[i][minor][major] : matrix[i][major][minor];
            const uint16_t high = Transposed ? matrix[i][minor + 1][major] : matrix[i][major][minor + 1];
            static_cast<LdMatrix*>(lanes[lane])->r[i] = low | uint32_t(high) << 16;
        }
    }
}

inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t shared, emulator::Site site = emulator::Site::here()) {
    LdMatrix mine = {r, shared};
    emulator::together("ldmatrix", site, ~0u, true, &mine, ldmatrix_of_warp<false>);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t shared, emulator::Site site = emulator::Site::here()) {
    LdMatrix mine = {r, shared};
    emulator::together("ldmatrix.trans", site, ~0u, true, &mine, ldmatrix_of_warp<true>);
}

}  // namespace ptx
