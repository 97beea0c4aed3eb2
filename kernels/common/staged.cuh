// Rows in shared memory, read an element or two at a time, or from wherever the elements of a result's aligned access lie.
#pragma once

#include "softmax.cuh"

// What a thread reads from shared memory at once: two halves, or one element.
template <class T> inline constexpr int UNIT = is_half<T> ? 2 : 1;
template <class T, int U> struct alignas(sizeof(T) * U) Unit {
    T v[U];
};
// In the arithmetic type, rounded to Out on the way.
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

// N neighbouring elements, 8, 16 or 32 bytes of them, whose first may be any: of the words around them, which are read 8
// bytes at a time, those that they are in, moved down by half a word if they begin in the middle of one.
template <class T, int N>
__device__ __forceinline__ void read_staged(const T* from, uint32_t (&word)[N * sizeof(T) / 4]) {
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

// The elements of a piece of a result: those before its first aligned access of 16 bytes, `accesses`, and those behind.
template <class T> struct Accesses {
    static constexpr int F = lanes_of<T>;
    int head, count, elements;

    __device__ __forceinline__ Accesses(const T* first, int elements) : elements(elements) {
        const int skipped = -static_cast<uint32_t>(reinterpret_cast<uint64_t>(first)) % 16 / sizeof(T);
        head = skipped < elements ? skipped : elements;
        count = static_cast<uint32_t>(elements - head) / F;
    }
    // The k-th element in no access; NONE if there are not as many. There are less than 2 F.
    static constexpr int NONE = -1;
    __device__ __forceinline__ int lone(int k) const {
        const int at = k < head ? k : k + count * F;
        return at < elements ? at : NONE;
    }
};
