// wgmma (sm_90a): four warps multiply a 64 x 16 tile by a 16 x N tile (of floats 64 x 8 by 8 x N), both in shared memory, and add to 64 x N
// accumulators in their registers. The instruction only starts the work; accumulators may be looked at after the
// group it belongs to has been waited for.
//
// Thread t of the four warps holds in d[i] the element of row 16 (t / 32) + t % 32 / 4 + 8 (i / 2 % 2) and column
// 8 (i / 4) + 2 (t % 4) + i % 2.
#pragma once

#include "dtype.cuh"

namespace ptx {

// Orders the registers' earlier uses before wgmma's, which reads and writes them behind the compiler's back.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `PENDING` groups are still under way.
template <int PENDING> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving accesses to accumulators, or to an operand's registers, across this point.
template <int N> __device__ __forceinline__ void wgmma_pin(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> __device__ __forceinline__ void wgmma_pin(uint32_t (&a)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+r"(a[i])::"memory");
}

// The 64 bits that describe a tile in shared memory, of rows of 128 bytes whose 16-byte vectors are permuted by an
// XOR with the row's number within a group of eight (SWIZZLE_128B; so the tile starts on 1024 bytes):
//   bits 0 to 13   address / 16
//   bits 16 to 29  K-major: ignored. MN-major: bytes / 16 from one box of 64 elements of m or n to the next
//   bits 32 to 45  bytes / 16 from one group of eight rows to the next
//   bits 62 to 63  1: swizzle of 128 bytes
template <bool MN_MAJOR> __device__ __forceinline__ uint64_t wgmma_tile(uint32_t shared) {
    constexpr uint64_t BOX = MN_MAJOR ? 64 * 128 / 16 : 1;
    return uint64_t(1) << 62 | uint64_t(8 * 128 / 16) << 32 | BOX << 16 | (shared & 0x3FFFF) >> 4;
}

// The same tile so many bytes further in shared memory, whose end is not reached.
__device__ __forceinline__ uint64_t wgmma_tile_at(uint64_t tile, uint32_t bytes) { return tile + bytes / 16; }

// d = a b + (accumulate ? d : 0), for tiles as described above, each K-major or MN-major.
template <int N> struct Wgmma;

// Registers and operands by the eight; then the first so many of them.
#define R0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define R1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define R2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define R3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define R4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define R5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define R6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define R7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define R8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define R9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define R10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define R11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define R12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define R13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define R14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define R15 "%120, %121, %122, %123, %124, %125, %126, %127"
// Halves of R4, R5, R6 and R9.
#define R4A "%32, %33, %34, %35"
#define R5A "%40, %41, %42, %43"
#define R6A "%48, %49, %50, %51"
#define R9A "%72, %73, %74, %75"
#define D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define D(i) D4(i), D4(i + 4)
#define REGISTERS_4 "%0, %1, %2, %3"
#define OPERANDS_4 D4(0)
#define REGISTERS_8 R0
#define OPERANDS_8 D(0)
#define REGISTERS_16 R0 ", " R1
#define OPERANDS_16 D(0), D(8)
#define REGISTERS_32 R0 ", " R1 ", " R2 ", " R3
#define OPERANDS_32 D(0), D(8), D(16), D(24)
#define REGISTERS_36 REGISTERS_32 ", " R4A
#define OPERANDS_36 OPERANDS_32, D4(32)
#define REGISTERS_44 REGISTERS_32 ", " R4 ", " R5A
#define OPERANDS_44 OPERANDS_32, D(32), D4(40)
#define REGISTERS_48 REGISTERS_32 ", " R4 ", " R5
#define OPERANDS_48 OPERANDS_32, D(32), D(40)
#define REGISTERS_52 REGISTERS_48 ", " R6A
#define OPERANDS_52 OPERANDS_48, D4(48)
#define REGISTERS_56 REGISTERS_48 ", " R6
#define OPERANDS_56 OPERANDS_48, D(48)
#define REGISTERS_64 REGISTERS_56 ", " R7
#define OPERANDS_64 OPERANDS_56, D(56)
#define REGISTERS_76 REGISTERS_64 ", " R8 ", " R9A
#define OPERANDS_76 OPERANDS_64, D(64), D4(72)
#define REGISTERS_80 REGISTERS_64 ", " R8 ", " R9
#define OPERANDS_80 OPERANDS_64, D(64), D(72)
#define REGISTERS_88 REGISTERS_80 ", " R10
#define OPERANDS_88 OPERANDS_80, D(80)
#define REGISTERS_96 REGISTERS_88 ", " R11
#define OPERANDS_96 OPERANDS_88, D(88)
#define REGISTERS_112 REGISTERS_96 ", " R12 ", " R13
#define OPERANDS_112 OPERANDS_96, D(96), D(104)
#define REGISTERS_128 REGISTERS_112 ", " R14 ", " R15
#define OPERANDS_128 OPERANDS_112, D(112), D(120)

// clang-format off
#define INSTRUCTION(TYPE, N, COUNT, A, B, ACCUMULATE, TRANSPOSE_A, TRANSPOSE_B)                                     \
    asm volatile(                                                                                                   \
        "{\n"                                                                                                       \
        ".reg .pred accumulate;\n"                                                                                  \
        "setp.ne.b32 accumulate, %" #ACCUMULATE ", 0;\n"                                                            \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" REGISTERS_##COUNT "}, %" #A ", %" #B   \
        ", accumulate, 1, 1, %" #TRANSPOSE_A ", %" #TRANSPOSE_B ";\n"                                               \
        "}"                                                                                                         \
        : OPERANDS_##COUNT                                                                                          \
        : "l"(a), "l"(b), "r"(uint32_t(accumulate)), "n"(int(A_MN)), "n"(int(B_MN)))
// clang-format on

// Of floats, whose upper 19 bits count (TF32), 8 of k, K-major.
// clang-format off
#define INSTRUCTION_TF32(N, COUNT, A, B, ACCUMULATE, TRANSPOSE_A, TRANSPOSE_B)                                      \
    asm volatile(                                                                                                   \
        "{\n"                                                                                                       \
        ".reg .pred accumulate;\n"                                                                                  \
        "setp.ne.b32 accumulate, %" #ACCUMULATE ", 0;\n"                                                            \
        "wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" REGISTERS_##COUNT "}, %" #A ", %" #B            \
        ", accumulate, 1, 1;\n"                                                                                     \
        "}"                                                                                                         \
        : OPERANDS_##COUNT                                                                                          \
        : "l"(a), "l"(b), "r"(uint32_t(accumulate)))
// clang-format on

// The 64 x 16 tile of bfloat16 in registers: thread t of the four warps holds in a[i] row 16 (t / 32) + t % 32 / 4 + 8 (i % 2),
// and of k 8 (i / 2) + 2 (t % 4) and the next. Of floats 64 x 8: the same row, and 4 (i / 2) + t % 4 of k.
// clang-format off
#define INSTRUCTION_REGISTERS(TYPE, B_LAYOUT, N, COUNT, A0, A1, A2, A3, B, ACCUMULATE)                              \
    asm volatile(                                                                                                   \
        "{\n"                                                                                                       \
        ".reg .pred accumulate;\n"                                                                                  \
        "setp.ne.b32 accumulate, %" #ACCUMULATE ", 0;\n"                                                            \
        "wgmma.mma_async.sync.aligned.m64n" #N TYPE " {" REGISTERS_##COUNT "}, "                                    \
        "{%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", accumulate, 1, 1" B_LAYOUT ";\n"                        \
        "}"                                                                                                         \
        : OPERANDS_##COUNT                                                                                          \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(uint32_t(accumulate)))
// clang-format on

template <int N> struct WgmmaOfRegisters;
#define WIDTH_OF_REGISTERS(N, COUNT, ...)                                                                 \
    template <> struct WgmmaOfRegisters<N> {                                                              \
        template <class T>                                                                                \
        static __device__ __forceinline__ void add(float (&d)[COUNT], const uint32_t (&a)[4], uint64_t b, \
                                                   bool accumulate) {                                     \
            if constexpr (same_type<T, f32>) {                                                            \
                INSTRUCTION_REGISTERS("k8.f32.tf32.tf32", "", N, COUNT, __VA_ARGS__);                     \
            } else {                                                                                      \
                INSTRUCTION_REGISTERS("k16.f32.bf16.bf16", ", 0", N, COUNT, __VA_ARGS__);                 \
            }                                                                                             \
        }                                                                                                 \
    };
WIDTH_OF_REGISTERS(8, 4, 4, 5, 6, 7, 8, 9)
WIDTH_OF_REGISTERS(16, 8, 8, 9, 10, 11, 12, 13)
WIDTH_OF_REGISTERS(32, 16, 16, 17, 18, 19, 20, 21)
WIDTH_OF_REGISTERS(64, 32, 32, 33, 34, 35, 36, 37)
WIDTH_OF_REGISTERS(128, 64, 64, 65, 66, 67, 68, 69)
WIDTH_OF_REGISTERS(256, 128, 128, 129, 130, 131, 132, 133)

#define WIDTH(N, COUNT, ...)                                                                                     \
    template <> struct Wgmma<N> {                                                                                \
        template <class T, bool A_MN, bool B_MN>                                                                 \
        static __device__ __forceinline__ void add(float (&d)[COUNT], uint64_t a, uint64_t b, bool accumulate) { \
            if constexpr (same_type<T, f32>) {                                                                   \
                static_assert(!A_MN && !B_MN, "");                                                               \
                INSTRUCTION_TF32(N, COUNT, __VA_ARGS__);                                                         \
            } else if constexpr (same_type<T, f16>) {                                                            \
                INSTRUCTION("f16", N, COUNT, __VA_ARGS__);                                                       \
            } else {                                                                                             \
                INSTRUCTION("bf16", N, COUNT, __VA_ARGS__);                                                      \
            }                                                                                                    \
        }                                                                                                        \
    };

// The operands behind the accumulators, by number: a, b, accumulate, and whether a and b are transposed.
WIDTH(8, 4, 4, 5, 6, 7, 8)
WIDTH(16, 8, 8, 9, 10, 11, 12)
WIDTH(32, 16, 16, 17, 18, 19, 20)
WIDTH(64, 32, 32, 33, 34, 35, 36)
WIDTH(72, 36, 36, 37, 38, 39, 40)
WIDTH(88, 44, 44, 45, 46, 47, 48)
WIDTH(96, 48, 48, 49, 50, 51, 52)
WIDTH(104, 52, 52, 53, 54, 55, 56)
WIDTH(112, 56, 56, 57, 58, 59, 60)
WIDTH(128, 64, 64, 65, 66, 67, 68)
WIDTH(152, 76, 76, 77, 78, 79, 80)
WIDTH(160, 80, 80, 81, 82, 83, 84)
WIDTH(176, 88, 88, 89, 90, 91, 92)
WIDTH(192, 96, 96, 97, 98, 99, 100)
WIDTH(224, 112, 112, 113, 114, 115, 116)
WIDTH(256, 128, 128, 129, 130, 131, 132)

#undef D
#undef D4
#undef WIDTH
#undef WIDTH_OF_REGISTERS
#undef INSTRUCTION
#undef INSTRUCTION_REGISTERS
#undef INSTRUCTION_TF32

}  // namespace ptx
