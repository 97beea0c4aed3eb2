// Rows in chunks: V vectors of 16 bytes to each thread at once.
#pragma once

#include "row_views.cuh"

// Takes a chunk into an online partial: one rescaling for all of it. Vectors are widened twice, so that their elements need
// no registers meanwhile.
template <class In, class Out, int V, class C>
__device__ __forceinline__ void take_chunk(Partial<C>& mine, const Vector (&raw)[V]) {
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
        widen_vector<In, Out>(forget(raw[i]), x);
#pragma unroll
        for (C e : x) next.sum += M::exp(e - base);
    }
    next.sum += mine.sum * M::exp(mine.max - base);
    mine = next;
}
