// The parameter struct and the arithmetic of the softmax kernels, and vectors of 16 bytes as elements.
#pragma once

#include "dtype.cuh"
#include "index.cuh"
#include "ptx/grid.cuh"
#include "ptx/math.cuh"
#include "reduce.cuh"

// Mirrored by SoftmaxParams in src/cuda/plan/softmax/rows.rs. The dimensions come last, and a kernel declares
// only as many of them as it can use: a launch copies only the declared ones.
template <int Rank> struct SoftmaxParams {
    uint64_t x, out;  // addresses
    uint64_t rows;
    uint64_t length;     // elements per row
    uint64_t tiles;      // units of work, each a block's
    uint32_t log;        // log_softmax
    uint32_t lane_bits;  // warp: 2^this lanes per row
    // x_access is 1 if all rows are whole vectors of x and of the result, one stride apart; out_access 0 if stores must be
    // element-wise.
    uint32_t x_access, out_access;
    int64_t x_stride, out_stride;  // along a row
    uint32_t stages;               // pipeline: rows in shared memory
    uint32_t per_thread;           // vectors in shared memory (of a stage). partial, combine: batches of a slice
    uint32_t x_tag, out_tag;
    uint32_t rank;           // at least 1
    uint32_t slices;         // partial, combine, grid: slices of a row, each a block's
    uint64_t x_low, x_high;  // rows: the addresses that x's elements span
    uint64_t partials;       // partial, combine: address of a Partial for every slice of every row
    Dim<2> dims[Rank];       // over rows; strides of x and out
};
static_assert(sizeof(SoftmaxParams<INLINE_RANK>) == 120 + 40 * INLINE_RANK, "");
static_assert(sizeof(SoftmaxParams<MAX_RANK>) == 120 + 40 * MAX_RANK && sizeof(SoftmaxParams<MAX_RANK>) < 4096, "");

// The arithmetic of a result type. Always exp(x - max): the form exp2(x * log2(e) - max * log2(e)) overflows
// for masks made of the smallest finite number, and loses digits.
template <class Out> struct Math {
    using C = float;
    static __device__ __forceinline__ float exp(float v) { return expf(v); }
    static __device__ __forceinline__ float log(float v) { return logf(v); }
    static __device__ __forceinline__ float reciprocal(float v) { return 1.0f / v; }
};
// The relative error of the approximations, 1e-5 for the smallest results, is far below a half's rounding;
// results below 1.2e-38 become 0.
struct HalfMath {
    using C = float;
    static __device__ __forceinline__ float exp(float v) { return ptx::exp2_approximate(v * 1.4426950408889634f); }
    static __device__ __forceinline__ float log(float v) { return logf(v); }
    static __device__ __forceinline__ float reciprocal(float v) { return __fdividef(1.0f, v); }
};
template <> struct Math<f16> : HalfMath {};
template <> struct Math<bf16> : HalfMath {};
template <> struct Math<f64> {
    using C = double;
    static __device__ __forceinline__ double exp(double v) { return ::exp(v); }
    static __device__ __forceinline__ double log(double v) { return ::log(v); }
    static __device__ __forceinline__ double reciprocal(double v) { return 1.0 / v; }
};

// exp(v - base) of many v. Their sum, or a factor of each, must be multiplied by the correction.
template <class Out> struct Exponential {
    using C = typename Math<Out>::C;
    C base;
    __device__ __forceinline__ explicit Exponential(C base) : base(base) {}
    __device__ __forceinline__ C operator()(C v) const { return Math<Out>::exp(v - base); }
    __device__ __forceinline__ C correction() const { return C(1); }
};
// Of values of a half type, in one multiply-add and 2^x. The rounding of `term` scales all of them alike, by at most 2:
// the correction undoes it. From 2^23 on other bf16 are equal to the base or so far away that any factor will do which
// overflows nowhere.
struct HalfExponential {
    float base, factor, term;
    __device__ __forceinline__ explicit HalfExponential(float base)
        : base(base), factor(fabsf(base) < 8388608.0f ? 1.4426950408889634f : 0.015625f), term(-base * factor) {}
    __device__ __forceinline__ float operator()(float v) const { return ptx::exp2_approximate(fmaf(v, factor, term)); }
    __device__ __forceinline__ float correction() const { return ptx::exp2_approximate(-fmaf(base, factor, term)); }
};
template <> struct Exponential<f16> : HalfExponential {
    using HalfExponential::HalfExponential;
};
template <> struct Exponential<bf16> : HalfExponential {
    using HalfExponential::HalfExponential;
};

// x in the arithmetic type, rounded to the result's dtype on the way.
template <class Out, class In> __device__ __forceinline__ typename Math<Out>::C widen(In v) {
    return static_cast<typename Math<Out>::C>(number(convert<Out>(v)));
}

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) { return fma(a, b, c); }

// Computes results from the maximum and sum of a whole row: exp(x - base) / sum, or x - base - log(sum). Both are one
// multiply-add with a factor of 1 or a term of 0, so the last step needs no branch.
template <class Out> struct Normalizer {
    using M = Math<Out>;
    using C = typename M::C;
    C base, factor, term;
    bool log;

    __device__ __forceinline__ Normalizer() {}
    __device__ __forceinline__ Normalizer(const Partial<C>& row, bool log)
        : base(row.base()),
          factor(log ? C(1) : M::reciprocal(row.sum)),
          term(log ? -M::log(row.sum) : C(0)),
          log(log) {}

    // From here on `scaled` accepts values that were computed with the base of one slice of the row.
    __device__ __forceinline__ void rebase(const Partial<C>& slice) {
        if (log) {
            term += slice.base() - base;
        } else {
            factor *= M::exp(slice.max - base);
        }
        base = slice.base();
    }
    // From exp(x - base), or x - base.
    __device__ __forceinline__ Out scaled(C v) const { return convert<Out>(multiply_add(v, factor, term)); }
    __device__ __forceinline__ Out operator()(C x) const { return scaled(log ? x - base : M::exp(x - base)); }
};

// Adds a batch of elements to an online partial, with one rescaling for all of them.
template <class Out, int N, class C>
__device__ __forceinline__ void accumulate(Partial<C>& row, const C (&x)[N]) {
    using M = Math<Out>;
    Partial<C> next = {row.max, 0};
#pragma unroll
    for (int k = 0; k < N; ++k) next.max = larger(next.max, x[k]);
    const C base = next.base();
#pragma unroll
    for (int k = 0; k < N; ++k) next.sum += M::exp(x[k] - base);
    next.sum += row.sum * M::exp(row.max - base);
    row = next;
}

// The same value, which neither nvcc nor ptxas recognises as the same: they compute again what depends on it, instead
// of keeping it in registers. (An empty asm would stop only nvcc.) Blocks are flat, threadIdx.y is 0.
__device__ __forceinline__ uint32_t opaque(uint32_t v) { return v ^ threadIdx.y; }
__device__ __forceinline__ Vector opaque(Vector g) {
#pragma unroll
    for (auto& word : g.word) word = opaque(word);
    return g;
}

// Elements that contribute nothing: -inf.
template <class In> __device__ __forceinline__ Vector empty_vector() {
    Pack<In, lanes_of<In>> empty;
#pragma unroll
    for (auto& e : empty.v) e = convert<In>(-infinity<float>());
    return Vector::of(empty);
}

// Converts words of memory, elements of In, to the arithmetic type.
template <class In, class Out, int W>
__device__ __forceinline__ void widen_words(const uint32_t (&word)[W], typename Math<Out>::C (&x)[W * 4 / sizeof(In)]) {
    if constexpr (same_type<In, bf16> && same_type<typename Math<Out>::C, float>) {
        // One instruction an element.
#pragma unroll
        for (int k = 0; k < W; ++k) {
            x[2 * k] = __uint_as_float(word[k] << 16);
            x[2 * k + 1] = __uint_as_float(word[k] & 0xffff0000u);
        }
    } else {
        Pack<In, W * 4 / sizeof(In)> pack;
        __builtin_memcpy(&pack, word, sizeof(pack));
#pragma unroll
        for (int k = 0; k < int(W * 4 / sizeof(In)); ++k) x[k] = widen<Out>(pack.v[k]);
    }
}
template <class In, class Out>
__device__ __forceinline__ void widen_vector(const Vector& vector, typename Math<Out>::C (&x)[lanes_of<In>]) {
    Vector hidden = vector;
    if constexpr (!same_type<In, bf16>) ptx::hide(hidden.word);
    widen_words<In, Out>(hidden.word, x);
}

template <class Out, int E, class C>
__device__ __forceinline__ Pack<Out, E> normalize_pack(const Normalizer<Out>& normalizer, const C (&x)[E]) {
    Pack<Out, E> pack;
#pragma unroll
    for (int k = 0; k < E; ++k) pack.v[k] = normalizer(x[k]);
    return pack;
}
