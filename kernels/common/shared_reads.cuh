// Reads of misaligned elements in shared memory: one or two at a time, or the elements of an aligned store.
#pragma once

#include "row_views.cuh"

// Elements that a thread reads from shared memory at once: two halves, or one element.
template <class T> inline constexpr int UNIT = is_half<T> ? 2 : 1;
template <class T, int U> struct alignas(sizeof(T) * U) Unit {
    T v[U];
};
// The unit in the arithmetic type, rounded to Out on the way.
template <class Out, class In, int U>
__device__ __forceinline__ void widen_unit(const Unit<In, U>& unit, typename Math<Out>::C (&x)[U]) {
    if constexpr (U * sizeof(In) % 4 == 0) {
        uint32_t word[U * sizeof(In) / 4];
        __builtin_memcpy(word, &unit, sizeof(word));
        widen_words<In, Out>(word, x);
    } else {
#pragma unroll
        for (int k = 0; k < U; ++k) x[k] = widen<Out>(unit.v[k]);
    }
}

// N contiguous elements, 8, 16 or 32 bytes, at any element. The words that contain them are read 8 bytes at a time, and
// shifted down by half a word if the first element begins in the middle of a word.
template <class T, int N>
__device__ __forceinline__ void read_unaligned(const T* from, uint32_t (&word)[N * sizeof(T) / 4]) {
    constexpr int WORDS = N * sizeof(T) / 4;
    const uint32_t past = static_cast<uint32_t>(reinterpret_cast<uint64_t>(from)) % 8;
    const auto* pairs = reinterpret_cast<const uint2*>(from - past / sizeof(T));
    uint32_t around[WORDS + 2];
#pragma unroll
    for (int k = 0; k < WORDS; k += 2) {
        const uint2 pair = pairs[k / 2];
        around[k] = pair.x;
        around[k + 1] = pair.y;
    }
    if (past == 0) {
#pragma unroll
        for (int k = 0; k < WORDS; ++k) word[k] = around[k];
        return;
    }
    const uint2 pair = pairs[WORDS / 2];
    around[WORDS] = pair.x;
    around[WORDS + 1] = pair.y;
    if constexpr (sizeof(T) <= 4) {
#pragma unroll
        for (int k = 0; k < WORDS + 1; ++k) around[k] = past & 4 ? around[k + 1] : around[k];
    }
    if constexpr (sizeof(T) == 2) {
#pragma unroll
        for (int k = 0; k < WORDS; ++k) around[k] = __funnelshift_r(around[k], around[k + 1], past % 4 * 8);
    }
#pragma unroll
    for (int k = 0; k < WORDS; ++k) word[k] = around[k];
}

// The whole vectors of a contiguous result, and its head and tail.
template <class T> __device__ __forceinline__ HeadAndTail<lanes_of<T>> head_and_tail_of(const T* first, int elements) {
    return {static_cast<int>(-static_cast<uint32_t>(reinterpret_cast<uint64_t>(first)) % 16 / sizeof(T)), elements};
}
