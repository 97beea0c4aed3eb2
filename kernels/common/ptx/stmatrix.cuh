// stmatrix (sm_90): four 8x8 matrices of 16-bit elements from a warp's registers to shared memory.
#pragma once

#include <cstdint>

namespace ptx {

// The reverse of ldmatrix_x4: lane l gives the address of row l % 8 of matrix l / 8, and of matrix i holds in r[i]
// the elements 2 (l % 4) and 2 (l % 4) + 1 of row l / 4.
__device__ __forceinline__ void stmatrix_x4(uint32_t shared, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
}
// The same of the transposed matrices: lane l gives the address of column l % 8 of matrix l / 8.
__device__ __forceinline__ void stmatrix_x4_transposed(uint32_t shared, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(r[0]),
                 "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
}

}  // namespace ptx
