// Stands in for kernels/common/ptx/stmatrix.cuh.
#pragma once

#include <cstring>

#include "hopper.h"

namespace ptx {

struct StMatrix {
    const uint32_t (&r)[4];
    uint32_t shared;
};

inline void stmatrix_x4(uint32_t shared, const uint32_t (&r)[4], emulator::Site site = emulator::Site::here()) {
    StMatrix mine = {r, shared};
    emulator::together("stmatrix", site, ~0u, true, &mine, [](void* const (&lanes)[32], uint32_t) {
        for (int row = 0; row < 32; ++row) {
            uint32_t words[4];
            for (int t = 0; t < 4; ++t) words[t] = static_cast<StMatrix*>(lanes[row % 8 * 4 + t])->r[row / 8];
            const uint32_t to = static_cast<StMatrix*>(lanes[row])->shared;
            memcpy(emulator::shared_pointer(to, 16, 16), words, 16);
        }
    });
    emulator::wrote_shared(shared, 16);
}

inline void stmatrix_x4_transposed(uint32_t shared, const uint32_t (&r)[4],
                                   emulator::Site site = emulator::Site::here()) {
    StMatrix mine = {r, shared};
    emulator::together("stmatrix", site, ~0u, true, &mine, [](void* const (&lanes)[32], uint32_t) {
        for (int column = 0; column < 32; ++column) {
            uint16_t elements[8];
            for (int row = 0; row < 8; ++row) {
                const uint32_t pair = static_cast<StMatrix*>(lanes[row * 4 + column % 8 / 2])->r[column / 8];
                elements[row] = uint16_t(pair >> column % 2 * 16);
            }
            const uint32_t to = static_cast<StMatrix*>(lanes[column])->shared;
            memcpy(emulator::shared_pointer(to, 16, 16), elements, 16);
        }
    });
    emulator::wrote_shared(shared, 16);
}

}  // namespace ptx
