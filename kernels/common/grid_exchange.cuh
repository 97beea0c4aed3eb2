// The exchange of partials between blocks of a cooperative launch that share a row: messages in the workspace, which is
// uninitialised.
#pragma once

#include "exchange.cuh"
#include "ptx/message.cuh"

template <class C> struct GridExchange {
    static constexpr int WORDS = sizeof(Partial<C>) / 8;  // of 8 bytes, of a partial
    static constexpr uint64_t TAG = 0x9b1f3ac5e07d4826;   // improbable in uninitialised memory
    struct alignas(16) Message {
        uint64_t word, tag;
    };
    uint32_t slices;
    Message* messages;  // [word][slice]
    uint32_t* readers;  // blocks that have read all messages

    __device__ __forceinline__ GridExchange(uint64_t partials, uint32_t row, uint32_t slices)
        : slices(slices),
          messages(reinterpret_cast<Message*>(partials) + static_cast<uint64_t>(row) * (WORDS * slices + 1)),
          readers(reinterpret_cast<uint32_t*>(messages + WORDS * slices)) {}

    // By one thread of each block.
    __device__ __forceinline__ void send(uint32_t slice, const Partial<C>& partial) const {
        if (slice == 0) {
            *readers = 0;  // before any block can have this message
            __threadfence();
        }
        uint64_t words[WORDS];
        __builtin_memcpy(words, &partial, sizeof(partial));
#pragma unroll
        for (int w = 0; w < WORDS; ++w) ptx::send_message(messages + w * slices + slice, words[w], TAG);
    }
    // Waits until the slice's block has sent.
    __device__ __forceinline__ Partial<C> collect(uint32_t slice) const {
        uint64_t words[WORDS];
#pragma unroll
        for (int w = 0; w < WORDS; ++w) words[w] = ptx::wait_for_message(messages + w * slices + slice, TAG);
        Partial<C> partial;
        __builtin_memcpy(&partial, words, sizeof(partial));
        return partial;
    }
    // By one thread, when its block has all messages: whether its block is the last of the row.
    __device__ __forceinline__ bool close() const {
        __threadfence();
        return atomicAdd(readers, 1) == slices - 1;
    }
    // By a warp of that last block: a later launch in the same memory must not find these messages.
    __device__ __forceinline__ void clear() const {
        for (uint32_t i = threadIdx.x; i < WORDS * slices; i += 32) messages[i] = {0, 0};
    }
};

// Merges the partials of a warp's lanes.
template <class M, class C> __device__ __forceinline__ Partial<C> merge_lanes(const Partial<C>& mine) {
    Partial<C> all = {reduce_warp(mine.max, Max()), 0};
    all.sum = reduce_warp(mine.sum * M::exp(mine.max - all.base()), Sum());
    return all;
}
