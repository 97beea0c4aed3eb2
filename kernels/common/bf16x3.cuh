// float32 as the sum of three bfloat16: the parts, and when they are not enough.
#pragma once

#include "dtype.cuh"

constexpr int PARTS = 3;

// Takes from two numbers their bfloat16 parts, rounded to nearest (toward zero where that would be infinite), and leaves
// the rest, which is exact.
__device__ __forceinline__ uint32_t take_part(float (&pair)[2]) {
    uint32_t word = ptx::pack_bf16(pair[0], pair[1]);
    if ((word & 0x7fff) == 0x7f80) word = (word & 0xffff0000) | __float_as_uint(pair[0]) >> 16;
    if ((word & 0x7fff0000) == 0x7f800000) word = (word & 0xffff) | (__float_as_uint(pair[1]) & 0xffff0000);
    pair[0] -= __uint_as_float(word << 16);
    pair[1] -= __uint_as_float(word & 0xffff0000);
    return word;
}

// The largest finite magnitude of some numbers, and whether three parts leave a rest of one. As a word: the magnitude's
// bits, the last of which says that.
struct Extremes {
    uint32_t largest = 0;
    bool inexact = false;

    __device__ __forceinline__ void see(float v) {
        const uint32_t bits = __float_as_uint(v) & 0x7fffffff;
        if (bits < 0x7f800000) largest = max(largest, bits);
    }
    __device__ __forceinline__ void rest(float v) { inexact |= v != 0.0f; }
    __device__ __forceinline__ void add(uint32_t word) {
        largest = max(largest, word & ~1u);
        inexact |= word & 1;
    }
    __device__ __forceinline__ uint32_t word() const { return (largest & ~1u) | uint32_t(inexact); }

    // Over the lanes of a warp.
    __device__ __forceinline__ void reduce_warp() {
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2) add(__shfl_xor_sync(~0u, word(), lanes));
    }
    // Over the warps of a block; its first thread gets the result.
    __device__ __forceinline__ void reduce_block(uint32_t* scratch) {
        reduce_warp();
        if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = word();
        __syncthreads();
        for (uint32_t warp = 0; threadIdx.x == 0 && warp < blockDim.x / 32; ++warp) add(scratch[warp]);
    }
};
