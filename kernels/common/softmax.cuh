// What the softmax kernels share: the parameter struct, the arithmetic, and rows as sequences of 16-byte vectors.
#pragma once

#include "dtype.cuh"
#include "index.cuh"
#include "ptx/grid.cuh"
#include "ptx/math.cuh"
#include "reduce.cuh"

constexpr int INLINE_RANK = 4;
constexpr int MAX_RANK = 64;

// Mirrored by SoftmaxParams in src/cuda/plan/softmax/rows.rs. The dimensions come last, and a kernel declares
// only as many of them as it can use: what it does not declare is not copied by a launch.
template <int Rank> struct SoftmaxParams {
    uint64_t x, out;               // addresses
    uint64_t rows;                 // column: index space of the outer dimensions
    uint64_t length;               // elements per row
    uint64_t columns;              // column: neighbouring rows, one element apart
    uint64_t tiles;                // pieces of work for a block
    int64_t x_stride, out_stride;  // along a row
    uint32_t log;                  // log_softmax
    uint32_t lane_bits;  // warp: 2^this lanes per row. column: 2^this threads side by side, at most half of the block
    uint32_t stages;     // pipeline: rows in shared memory
    uint32_t slots;      // 16-byte slots of shared memory per thread (and stage); partial, combine: chunks of a slice
    // rows: x_access 1 if all are whole vectors of x and of the result, one stride apart; out_access 0 if stores must be
    // element-wise. column: bytes per access.
    uint32_t x_access, out_access;
    uint32_t x_tag, out_tag;
    uint32_t rank;           // at least 1
    uint32_t slices;         // partial, combine: pieces of a row, each a block's
    uint64_t x_low, x_high;  // rows: the addresses that x's elements span
    uint64_t partials;       // partial, combine: address of a Partial for every slice of every row
    Dim<2> dims[Rank];       // over rows; strides of x and out
};
static_assert(sizeof(SoftmaxParams<INLINE_RANK>) == 128 + 40 * INLINE_RANK, "");
static_assert(sizeof(SoftmaxParams<MAX_RANK>) == 128 + 40 * MAX_RANK && sizeof(SoftmaxParams<MAX_RANK>) < 4096, "");

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

// x in the arithmetic type, rounded to the result's dtype on the way.
template <class Out, class In> __device__ __forceinline__ typename Math<Out>::C widen(In v) {
    return static_cast<typename Math<Out>::C>(number(convert<Out>(v)));
}

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) { return fma(a, b, c); }

// What turns an element of a finished row into a result: exp(x - base) / sum, or x - base - log(sum). Both
// are one multiply-add, exact in one of its halves, so that no branch is needed at the end.
template <class Out> struct Finish {
    using M = Math<Out>;
    using C = typename M::C;
    C base, factor, term;
    bool log;

    __device__ __forceinline__ Finish() {}
    __device__ __forceinline__ Finish(const Partial<C>& row, bool log)
        : base(row.base()),
          factor(log ? C(1) : M::reciprocal(row.sum)),
          term(log ? -M::log(row.sum) : C(0)),
          log(log) {}

    // Lets `scaled` take what was computed with the base of one part of the row.
    __device__ __forceinline__ void rebase(const Partial<C>& part) {
        if (log) {
            term += part.base() - base;
        } else {
            factor *= M::exp(part.max - base);
        }
        base = part.base();
    }
    // From exp(x - base), or x - base.
    __device__ __forceinline__ Out scaled(C v) const { return convert<Out>(multiply_add(v, factor, term)); }
    __device__ __forceinline__ Out operator()(C x) const { return scaled(log ? x - base : M::exp(x - base)); }
};

// Takes a batch of elements into an online partial: one rescaling for all of them.
template <class Out, int N, class C>
__device__ __forceinline__ void take(Partial<C>& row, const C (&x)[N]) {
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

// The same value, but neither compiler knows it: what was computed from it before is computed again instead of being
// kept in registers. (An empty asm would stop only the first of the two.) Blocks are flat, threadIdx.y is 0.
__device__ __forceinline__ uint32_t forget(uint32_t v) { return v ^ threadIdx.y; }
__device__ __forceinline__ Vector forget(Vector g) {
#pragma unroll
    for (auto& word : g.word) word = forget(word);
    return g;
}

// Elements that count for nothing: -inf.
template <class In> __device__ __forceinline__ Vector empty_vector() {
    Pack<In, lanes_of<In>> empty;
#pragma unroll
    for (auto& e : empty.v) e = convert<In>(-infinity<float>());
    return Vector::of(empty);
}

// Elements of In, as words of memory, in the arithmetic type.
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
    Vector opaque = vector;
    if constexpr (!same_type<In, bf16>) ptx::hide(opaque.word);
    widen_words<In, Out>(opaque.word, x);
}

template <class Out, int E, class C>
__device__ __forceinline__ Pack<Out, E> finish_pack(const Finish<Out>& finish, const C (&x)[E]) {
    Pack<Out, E> pack;
#pragma unroll
    for (int k = 0; k < E; ++k) pack.v[k] = finish(x[k]);
    return pack;
}
