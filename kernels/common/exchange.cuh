// How blocks that share a row, or some columns, make one result of what each of them has: the largest element and the sum of
// exponentials of a softmax, or the sum of a gradient.
#pragma once

#include "ptx/cluster.cuh"
#include "reduce.cuh"

// Which blocks share: those of a cluster, if there are several, through distributed shared memory; or those of one launch,
// `partial`, that store their results for the next launch, `combine`. (Those of a cooperative launch: grid_exchange.cuh.)
enum class Scope { cluster, partial, combine };

// A sum, as large as the smallest message.
template <class C> struct alignas(8) Total {
    C sum;
};

// Messages of type V, of 8 or 16 bytes, between the blocks of a cluster, in rounds. Without other blocks only `blocks` is of
// use.
template <class V, Scope S = Scope::cluster> struct ClusterExchange {
    const ptx::Mailbox mailbox;
    const uint32_t blocks;

    // `state`: in shared memory.
    __device__ __forceinline__ explicit ClusterExchange(uint64_t* state)
        : mailbox{state}, blocks(S == Scope::cluster ? ptx::cluster_blocks() : 1) {}

    // By all threads, before the first round.
    __device__ __forceinline__ void open() const {
        if (blocks > 1) mailbox.open();
    }
    // By all threads, at the beginning of a round: so many messages will come from each block, this one too.
    __device__ __forceinline__ void announce(uint32_t messages) const {
        if (blocks > 1) {
            if (threadIdx.x == 0) mailbox.expect(blocks * messages * sizeof(V));
            ptx::cluster_arrive();
        }
    }
    // Both, where there is one round.
    __device__ __forceinline__ void open_to(uint32_t messages) const {
        if (blocks > 1) {
            mailbox.open();
            announce(messages);
        }
    }
    // By all threads, before the first message: until the other blocks have announced theirs.
    __device__ __forceinline__ void wait_to_send() const { ptx::cluster_wait(); }
    // To slots[at] of a block's shared memory.
    __device__ __forceinline__ void send(V* slots, uint32_t at, uint32_t block, const V& message) const {
        uint32_t words[sizeof(V) / 4];
        __builtin_memcpy(words, &message, sizeof(V));
        mailbox.send<sizeof(V) / 4>(slots + at, block, words);
    }
    // Until all messages of the round are there. The parity of rounds alternates.
    __device__ __forceinline__ void collect(uint32_t parity) const { mailbox.wait(parity); }
};

// All of `count` partials, to every lane of the warp, in an order that depends on `count` alone.
template <class M, class C> __device__ __forceinline__ Partial<C> merge_all(const Partial<C>* partials,
                                                                            uint32_t count) {
    auto all = Partial<C>::empty();
    for (uint32_t i = threadIdx.x % 32; i < count; i += 32) all.max = larger(all.max, partials[i].max);
    all.max = reduce_lanes(all.max, Max(), 32);
    const C base = all.base();
    for (uint32_t i = threadIdx.x % 32; i < count; i += 32) all.sum += partials[i].sum * M::exp(partials[i].max - base);
    all.sum = reduce_lanes(all.sum, Sum(), 32);
    return all;
}

// One row: what every warp of all blocks has of it becomes the row's.
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
    __device__ __forceinline__ void open_to() const { Base::open_to(warps); }
    // `slots` has room for a partial of all warps.
    template <class M>
    __device__ __forceinline__ Partial<C> merge(Partial<C>* slots, const Partial<C>& mine, uint32_t parity) const {
        if (this->blocks == 1) {
            if (lane == 0) slots[warp] = mine;
            __syncthreads();
        } else {
            this->wait_to_send();
            if (lane < this->blocks) this->send(slots, rank * warps + warp, lane, mine);
            this->collect(parity);
        }
        return merge_all<M>(slots, this->blocks * warps);
    }
};

// A row's sum, of what every block has of it: this one, the one of this rank, `sum`. `slots` has room for all blocks.
template <class C, Scope S>
__device__ __forceinline__ C add_blocks(const ClusterExchange<Total<C>, S>& exchange, Total<C>* slots, uint32_t rank,
                                        C sum, uint32_t parity) {
    if (exchange.blocks > 1) {
        exchange.wait_to_send();
        if (threadIdx.x < exchange.blocks) exchange.send(slots, rank, threadIdx.x, {sum});
        exchange.collect(parity);
        sum = 0;
        for (uint32_t b = 0; b < exchange.blocks; ++b) sum += slots[b].sum;
    }
    return sum;
}
