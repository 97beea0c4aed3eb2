// Accesses of global memory, aligned to their size: of 2, 4, 8 or 16 bytes. In PTX, because the compiler is free to
// split a C++ vector store into words, and does.
#pragma once

#include <cstdint>

namespace ptx {

template <int Bytes> __device__ __forceinline__ void load_global(const void* p, uint32_t* w) {
    const uint64_t at = __cvta_generic_to_global(p);
    if constexpr (Bytes == 16) {
        asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                     : "l"(at));
    } else if constexpr (Bytes == 8) {
        asm volatile("ld.global.v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1]) : "l"(at));
    } else {
        asm volatile("ld.global.b32 %0, [%1];" : "=r"(w[0]) : "l"(at));
    }
}

// Leaves w as it is, and memory alone, unless `wanted`: one instruction without a branch, so that the loads of a loop
// stand side by side and none is waited for at the end of a branch. Also of 1 and 2 bytes, as a word.
template <int Bytes> __device__ __forceinline__ void load_global_if(bool wanted, const void* p, uint32_t* w) {
    const uint64_t at = __cvta_generic_to_global(p);
    const uint32_t flag = wanted;
    if constexpr (Bytes == 16) {
        asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p ld.global.v4.b32 {%0, %1, %2, %3}, [%4];}"
                     : "+r"(w[0]), "+r"(w[1]), "+r"(w[2]), "+r"(w[3])
                     : "l"(at), "r"(flag));
    } else if constexpr (Bytes == 8) {
        asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p ld.global.v2.b32 {%0, %1}, [%2];}"
                     : "+r"(w[0]), "+r"(w[1])
                     : "l"(at), "r"(flag));
    } else if constexpr (Bytes == 4) {
        asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.b32 %0, [%1];}"
                     : "+r"(w[0])
                     : "l"(at), "r"(flag));
    } else if constexpr (Bytes == 2) {
        asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.u16 %0, [%1];}"
                     : "+r"(w[0])
                     : "l"(at), "r"(flag));
    } else {
        asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p ld.global.u8 %0, [%1];}"
                     : "+r"(w[0])
                     : "l"(at), "r"(flag));
    }
}

template <int Bytes> __device__ __forceinline__ void store_global(void* p, const uint32_t* w) {
    const uint64_t at = __cvta_generic_to_global(p);
    if constexpr (Bytes == 16) {
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3])
                     : "memory");
    } else if constexpr (Bytes == 8) {
        asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(at), "r"(w[0]), "r"(w[1]) : "memory");
    } else {
        asm volatile("st.global.b32 [%0], %1;" ::"l"(at), "r"(w[0]) : "memory");
    }
}

// Nothing is stored unless `wanted`: a branch around a store keeps others from being issued beside it.
template <int Bytes> __device__ __forceinline__ void store_global_if(bool wanted, void* p, const uint32_t* w) {
    static_assert(Bytes == 16, "");
    asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p st.global.v4.b32 [%0], {%1, %2, %3, %4};}" ::"l"(
                     __cvta_generic_to_global(p)),
                 "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(uint32_t(wanted))
                 : "memory");
}

// Starts the way of the 32 bytes around p to L2.
__device__ __forceinline__ void prefetch_to_l2(const void* p) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(p)));
}

// 2 bytes, loaded here and not later.
__device__ __forceinline__ uint16_t load_global_half(const void* p) {
    uint16_t half;
    asm volatile("ld.global.b16 %0, [%1];" : "=h"(half) : "l"(__cvta_generic_to_global(p)) : "memory");
    return half;
}

}  // namespace ptx
