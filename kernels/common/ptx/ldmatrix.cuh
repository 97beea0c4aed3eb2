// ldmatrix (sm_75): four 8x8 matrices of 16-bit elements from shared memory to a warp's registers.
#pragma once

#include <cstdint>

namespace ptx {

// Lane l gives the address of row l % 8 of matrix l / 8, and receives from matrix i, in r[i], elements
// 2 (l % 4) and 2 (l % 4) + 1 of row l / 4.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}

// The same with every matrix transposed: lane l receives elements of column l / 4.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t shared) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared)
                 : "memory");
}

}  // namespace ptx
