// The online softmax of a batch of vectors in a thread's registers.
#pragma once

#include "row_views.cuh"

// Adds V vectors to an online partial, with one rescaling for all of them. Each vector is widened twice, so that its
// wide elements occupy no registers in between.
template <class In, class Out, int V, class C>
__device__ __forceinline__ void accumulate_vectors(Partial<C>& mine, const Vector (&raw)[V]) {
    using M = Math<Out>;
    Partial<C> next = {mine.max, 0};
    C x[lanes_of<In>];
#pragma unroll
    for (int i = 0; i < V; ++i) {
        widen_vector<In, Out>(raw[i], x);
#pragma unroll
        for (C e : x) next.max = larger(next.max, e);
    }
    const C base = next.base();
#pragma unroll
    for (int i = 0; i < V; ++i) {
        widen_vector<In, Out>(opaque(raw[i]), x);
#pragma unroll
        for (C e : x) next.sum += M::exp(e - base);
    }
    next.sum += mine.sum * M::exp(mine.max - base);
    mine = next;
}
