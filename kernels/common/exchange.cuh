// The exchange of partials between blocks that share a row or some columns: maximum and sum of exponentials of a
// softmax, or the sum of a gradient.
#pragma once

#include "ptx/cluster.cuh"
#include "reduce.cuh"

// How blocks exchange: not at all; the blocks of a cluster through distributed shared memory; or two launches through
// the workspace, `partial`, which stores partials, and `combine`, which reads them. (A cooperative launch:
// grid_exchange.cuh.)
enum class Scope { block, cluster, partial, combine };

// A sum, as large as the smallest message.
template <class C> struct alignas(8) Total {
    C sum;
};

// Messages of type V, of 8 or 16 bytes, between the blocks of a cluster, in rounds. Where `blocks` is 1, there are
// none.
template <class V, Scope S = Scope::cluster> struct ClusterExchange {
    const ptx::TransactionBarrier barrier;
    const uint32_t blocks;

    // `state`: in shared memory.
    __device__ __forceinline__ explicit ClusterExchange(uint64_t* state)
        : barrier{state}, blocks(S == Scope::cluster ? ptx::cluster_blocks() : 1) {}

    // By all threads, before the first round.
    __device__ __forceinline__ void open() const {
        if (blocks > 1) barrier.open();
    }
    // By all threads, at the beginning of a round: each block, this one included, will send `messages` messages.
    __device__ __forceinline__ void announce(uint32_t messages) const {
        if (blocks > 1) {
            if (threadIdx.x == 0) barrier.expect(blocks * messages * sizeof(V));
            ptx::cluster_arrive();
        }
    }
    // Both, where there is one round.
    __device__ __forceinline__ void open_and_announce(uint32_t messages) const {
        if (blocks > 1) {
            barrier.open();
            announce(messages);
        }
    }
    // By all threads, before the first message: waits until all other blocks have announced.
    __device__ __forceinline__ void wait_to_send() const { ptx::cluster_wait(); }
    // To buffer[at] in the shared memory of `block`.
    __device__ __forceinline__ void send(V* buffer, uint32_t at, uint32_t block, const V& message) const {
        uint32_t words[sizeof(V) / 4];
        __builtin_memcpy(words, &message, sizeof(V));
        barrier.send<sizeof(V) / 4>(buffer + at, block, words);
    }
    // Waits for all messages of the round. The parity of rounds alternates.
    __device__ __forceinline__ void collect(uint32_t parity) const { barrier.wait(parity); }
};

// Merges the values first, first + step, ... of `count` values that are `pitch` apart: partials.
template <class M, class T, int AT_ONCE = 8> struct MergePartials {
    using C = T;
    using Value = Partial<C>;
    using Message = Partial<C>;
    static __device__ __forceinline__ Value merge(const Value* from, uint32_t pitch, uint32_t first, uint32_t step,
                                                  uint32_t count) {
        // Values at a time, so that their exponentials do not wait for each other; as many as registers allow.
        constexpr int N = sizeof(C) == 8 ? AT_ONCE / 4 : AT_ONCE;
        auto all = Value::empty();
#pragma unroll 1
        for (uint32_t i = first; i < count; i += N * step) {
            Value some[N], next = all;
#pragma unroll
            for (int k = 0; k < N; ++k) {
                const uint32_t at = i + k * step;
                some[k] = Value::empty();
                if (at < count) some[k] = from[at * pitch];
            }
#pragma unroll
            for (int k = 0; k < N; ++k) next.max = larger(next.max, some[k].max);
            next.sum *= M::exp(all.max - next.base());
#pragma unroll
            for (int k = 0; k < N; ++k) next.sum += some[k].sum * M::exp(some[k].max - next.base());
            all = next;
        }
        return all;
    }
};

// Merges `count` partials, for every lane of the warp, in an order that depends on `count` alone.
template <class M, class C> __device__ __forceinline__ Partial<C> merge_all(const Partial<C>* partials,
                                                                            uint32_t count) {
    const uint32_t lane = threadIdx.x % 32;
    auto all = Partial<C>::empty();
    if (lane < count) all = partials[lane];
    const C own = all.max;
    for (uint32_t i = lane + 32; i < count; i += 32) all.max = larger(all.max, partials[i].max);
    all.max = reduce_warp(all.max, Max());
    const C base = all.base();
    all.sum *= M::exp(own - base);
    for (uint32_t i = lane + 32; i < count; i += 32) all.sum += partials[i].sum * M::exp(partials[i].max - base);
    all.sum = reduce_warp(all.sum, Sum());
    return all;
}

// The same for partials in global memory, of which many are on their way at a time; few have no use for that.
template <class M, class C> __device__ __forceinline__ Partial<C> merge_slices(const Partial<C>* partials,
                                                                               uint32_t count) {
    if (count <= 64) return merge_all<M>(partials, count);
    auto all = MergePartials<M, C>::merge(partials, 1, threadIdx.x % 32, 32, count);
    const C own = all.max;
    all.max = reduce_warp(own, Max());
    all.sum = reduce_warp(all.sum * M::exp(own - all.base()), Sum());
    return all;
}

// The exchange of one row: merges the partials of all warps of all blocks.
template <class C> struct RowExchange : ClusterExchange<Partial<C>> {
    using Base = ClusterExchange<Partial<C>>;
    const uint32_t rank, warps, warp, lane;

    __device__ __forceinline__ explicit RowExchange(uint64_t* state)
        : Base(state),
          rank(ptx::cluster_rank()),
          warps(blockDim.x / 32),
          warp(threadIdx.x / 32),
          lane(threadIdx.x % 32) {}

    __device__ __forceinline__ void announce() const { Base::announce(warps); }
    __device__ __forceinline__ void open_and_announce() const { Base::open_and_announce(warps); }
    // `buffer` has room for a partial of every warp.
    template <class M>
    __device__ __forceinline__ Partial<C> merge(Partial<C>* buffer, const Partial<C>& mine, uint32_t parity) const {
        if (this->blocks == 1) {
            if (lane == 0) buffer[warp] = mine;
            __syncthreads();
        } else {
            this->wait_to_send();
            if (lane < this->blocks) this->send(buffer, rank * warps + warp, lane, mine);
            this->collect(parity);
        }
        return merge_all<M>(buffer, this->blocks * warps);
    }
};

// Adds the sums of all blocks; `sum` is this block's, at `rank`. `buffer` has room for all blocks.
template <class C, Scope S>
__device__ __forceinline__ C add_blocks(const ClusterExchange<Total<C>, S>& exchange, Total<C>* buffer, uint32_t rank,
                                        C sum, uint32_t parity) {
    if (exchange.blocks > 1) {
        exchange.wait_to_send();
        if (threadIdx.x < exchange.blocks) exchange.send(buffer, rank, threadIdx.x, {sum});
        exchange.collect(parity);
        sum = 0;
        for (uint32_t b = 0; b < exchange.blocks; ++b) sum += buffer[b].sum;
    }
    return sum;
}
