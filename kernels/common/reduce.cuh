// Reductions over the lanes of a warp and the warps of a block. Every thread gets the result; the order of
// the operations depends on the shape alone, so results repeat bit by bit.
#pragma once

#include <cstdint>

template <class C> __device__ __forceinline__ C infinity() { return static_cast<C>(__int_as_float(0x7f800000)); }

__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }

struct Max {
    template <class C> __device__ __forceinline__ C operator()(C a, C b) const { return larger(a, b); }
    template <class C> static __device__ __forceinline__ C identity() { return -infinity<C>(); }
};
struct Sum {
    template <class C> __device__ __forceinline__ C operator()(C a, C b) const { return a + b; }
    template <class C> static __device__ __forceinline__ C identity() { return C(0); }
};

// A row, or part of one, seen online: its largest element and the sum of exp(x - max).
template <class C> struct Partial {
    C max;
    C sum;

    static __device__ __forceinline__ Partial empty() { return {-infinity<C>(), C(0)}; }

    // What is subtracted in exponents. An empty part, or one that is all -inf, has no finite maximum: it
    // must contribute exp(-inf) = 0, not exp(-inf - -inf) = NaN, to a row that is finite elsewhere.
    __device__ __forceinline__ C base() const { return max == -infinity<C>() ? C(0) : max; }
};

// `Exp` is the exponential of the result's precision.
template <class Exp> struct Merge {
    template <class C> __device__ __forceinline__ Partial<C> operator()(Partial<C> a, Partial<C> b) const {
        Partial<C> r = {larger(a.max, b.max), 0};
        const C base = r.base();
        r.sum = a.sum * Exp::exp(a.max - base) + b.sum * Exp::exp(b.max - base);
        return r;
    }
};

template <class C> __device__ __forceinline__ C shuffle_xor(C v, int lanes) { return __shfl_xor_sync(~0u, v, lanes); }
template <class C> __device__ __forceinline__ Partial<C> shuffle_xor(Partial<C> v, int lanes) {
    v.max = __shfl_xor_sync(~0u, v.max, lanes);
    v.sum = __shfl_xor_sync(~0u, v.sum, lanes);
    return v;
}

// Over the lanes of a warp.
template <class V, class Op> __device__ __forceinline__ V reduce_warp(V v, Op op) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) v = op(v, shuffle_xor(v, step));
    return v;
}

// Each of R values over aligned groups of `lanes` (a power of two) lanes. All 32 lanes of the warp must take part. Near
// lanes first, so that few lanes leave at once: branches around single steps cost more than the steps.
template <int R, class C, class Op> __device__ __forceinline__ void reduce_lanes(C (&v)[R], Op op, int lanes) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        if (step >= lanes) return;
#pragma unroll
        for (C& each : v) each = op(each, shuffle_xor(each, step));
    }
}
template <class C, class Op> __device__ __forceinline__ C reduce_lanes(C v, Op op, int lanes) {
    C each[1] = {v};
    reduce_lanes(each, op, lanes);
    return each[0];
}

// Over a block of whole warps, with one barrier. `scratch` has 32 entries and may be used again once the
// block has passed another barrier; `identity` stands in for the warps that the block does not have.
template <class V, class Op> __device__ __forceinline__ V reduce_block(V v, Op op, V identity, V* scratch) {
    v = reduce_warp(v, op);
    const int warps = blockDim.x / 32;
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x % 32 < warps ? scratch[threadIdx.x % 32] : identity;
    return reduce_warp(v, op);
}
