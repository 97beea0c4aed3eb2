// Contiguous elements in the registers of a thread, in the dtype of memory, and the largest of all that it has loaded.
#pragma once

#include "softmax.cuh"

// The elementwise maximum of two words of two halves.
template <class T> __device__ __forceinline__ uint32_t larger_halves(uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 800
    return same_type<T, bf16> ? ptx::max_bf16(a, b) : ptx::max_f16(a, b);
#else
    Pack<T, 2> p, q;
    __builtin_memcpy(&p, &a, sizeof(p));
    __builtin_memcpy(&q, &b, sizeof(q));
#pragma unroll
    for (int e = 0; e < 2; ++e) p.v[e] = convert<T>(larger(number(p.v[e]), number(q.v[e])));
    __builtin_memcpy(&a, &p, sizeof(p));
    return a;
#endif
}

// most = max(most, words), elementwise.
template <class T, int W> __device__ __forceinline__ void raise(uint32_t (&most)[W], const uint32_t (&words)[W]) {
    if constexpr (is_half<T>) {
#pragma unroll
        for (int k = 0; k < W; ++k) most[k] = larger_halves<T>(most[k], words[k]);
    } else {
        constexpr int E = W * 4 / sizeof(T);
        Pack<T, E> a, b;
        __builtin_memcpy(&a, most, sizeof(a));
        __builtin_memcpy(&b, words, sizeof(b));
#pragma unroll
        for (int e = 0; e < E; ++e) a.v[e] = larger(a.v[e], b.v[e]);
        __builtin_memcpy(most, &a, sizeof(a));
    }
}

// E contiguous elements: one access.
template <class T, int E> struct alignas(E * sizeof(T) < 4 ? 4 : E * sizeof(T)) Access {
    static constexpr int BYTES = E * sizeof(T), WORDS = BYTES < 4 ? 1 : BYTES / 4;
    uint32_t word[WORDS];

    // Elements that contribute nothing to a maximum, and to a sum.
    static __device__ __forceinline__ Access lowest() {
        Pack<T, WORDS * 4 / sizeof(T)> pack;
#pragma unroll
        for (auto& e : pack.v) e = convert<T>(-infinity<float>());
        Access access;
        __builtin_memcpy(&access, &pack, sizeof(access));
        return access;
    }
    static __device__ __forceinline__ Access zero() { return {}; }
    // Loads nothing unless `wanted`.
    __device__ __forceinline__ void load(const T* p, bool wanted) { ptx::load_global_if<BYTES>(wanted, p, word); }
    __device__ __forceinline__ void set(int e, T element) {
        Pack<T, WORDS * 4 / sizeof(T)> pack;
        __builtin_memcpy(&pack, word, sizeof(pack));
        pack.v[e] = element;
        __builtin_memcpy(word, &pack, sizeof(pack));
    }
    __device__ __forceinline__ void raise_to(const Access& other) { raise<T>(word, other.word); }
    template <class Out> __device__ __forceinline__ void widen(typename Math<Out>::C (&x)[E]) const {
        if constexpr (BYTES >= 4) {
            widen_words<T, Out>(word, x);
        } else {
            Pack<T, E> pack;
            __builtin_memcpy(&pack, word, sizeof(pack));
#pragma unroll
            for (int k = 0; k < E; ++k) x[k] = ::widen<Out>(pack.v[k]);
        }
    }
};
template <class T, int E> __device__ __forceinline__ Access<T, E> opaque(Access<T, E> access) {
#pragma unroll
    for (auto& word : access.word) word = opaque(word);
    return access;
}

// Adds accesses to the partials of their E columns, online.
template <class Out, class In, int E, int K>
__device__ __forceinline__ void accumulate_columns(const Access<In, E> (&raw)[K],
                                                   Partial<typename Math<Out>::C> (&columns)[E]) {
    using M = Math<Out>;
    using C = typename M::C;
    auto largest = raw[0];
#pragma unroll
    for (int k = 1; k < K; ++k) largest.raise_to(raw[k]);
    C seen[E];
    largest.template widen<Out>(seen);
#pragma unroll
    for (int e = 0; e < E; ++e) {
        const C before = columns[e].max;
        columns[e].max = larger(before, seen[e]);
        columns[e].sum *= M::exp(before - columns[e].base());
    }
    C sum[E] = {};  // in sums of sums, roundings of equal terms do not add up
#pragma unroll
    for (int k = 0; k < K; ++k) {
        C v[E];
        raw[k].template widen<Out>(v);
#pragma unroll
        for (int e = 0; e < E; ++e) sum[e] += M::exp(v[e] - columns[e].base());
    }
#pragma unroll
    for (int e = 0; e < E; ++e) columns[e].sum += sum[e];
}

// The largest of the elements that a thread has loaded.
template <class In, class Out> struct Largest {
    using C = typename Math<Out>::C;
    Vector each = empty_vector<In>();

    __device__ __forceinline__ void raise_to(const Vector& vector) { raise<In>(each.word, vector.word); }
    __device__ __forceinline__ C get() const {
        C v[lanes_of<In>];
        widen_vector<In, Out>(each, v);
        C largest = v[0];
#pragma unroll
        for (int e = 1; e < lanes_of<In>; ++e) largest = larger(largest, v[e]);
        return largest;
    }
};
