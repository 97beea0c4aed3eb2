// The exchange of contiguous columns: each group of a block's threads has partials of all of them, and so has each
// block that shares them.
#pragma once

#include "exchange.cuh"

// As MergePartials, for sums.
template <class T> struct MergeSums {
    using C = T;
    using Value = C;
    using Message = Total<C>;
    static __device__ __forceinline__ C merge(const C* from, uint32_t pitch, uint32_t first, uint32_t step,
                                              uint32_t count) {
        // Values at a time, so that their loads do not wait for each other.
        constexpr int N = sizeof(C) == 8 ? 8 : 16;
        C sum = 0;
#pragma unroll 1
        for (uint32_t i = first; i < count; i += N * step) {
            C some[N];
#pragma unroll
            for (int k = 0; k < N; ++k) {
                const uint32_t at = i + k * step;
                some[k] = 0;
                if (at < count) some[k] = from[at * pitch];
            }
#pragma unroll
            for (int k = 0; k < N; ++k) sum += some[k];
        }
        return sum;
    }
};

// Before `merge` each group stores its values of the columns to `of_groups`; after it `of_columns` has the columns'
// values.
template <class Merger, Scope S> struct ColumnExchange {
    using Value = typename Merger::Value;
    using Message = typename Merger::Message;
    ClusterExchange<Message, S> cluster;
    uint32_t width;          // columns
    uint32_t pitch, groups;  // values from one group to the next
    uint32_t merge_threads;  // threads that merge one column
    Message* of_blocks;      // [blocks][width], if there are several
    Value* of_groups;        // [groups][pitch], except in combine
    Value* of_threads;       // [merge_threads][width], if there are several, or in combine
    Value* of_columns;       // [width]

    __device__ __forceinline__ ColumnExchange(uint64_t* state, void* shared, uint32_t width, uint32_t pitch,
                                              uint32_t groups, uint32_t merge_threads)
        : cluster(state), width(width), pitch(pitch), groups(groups), merge_threads(merge_threads) {
        of_blocks = static_cast<Message*>(shared);
        of_groups = reinterpret_cast<Value*>(of_blocks + (cluster.blocks > 1 ? cluster.blocks : 0) * width);
        of_threads = of_groups + (S == Scope::combine ? 0 : groups) * pitch;
        of_columns = of_threads + (S == Scope::combine || merge_threads > 1 ? merge_threads : 0) * width;
    }
    __device__ __forceinline__ void announce() const { cluster.announce(width); }
    __device__ __forceinline__ void open_and_announce() const { cluster.open_and_announce(width); }

    // By all threads. `partials`: [slice][column] of these columns in the workspace; this block has slice `rank` of
    // `slices`.
    __device__ __forceinline__ void merge(Value* partials, uint32_t slices, uint32_t rank, uint32_t parity) const {
        const uint32_t blocks = cluster.blocks;
        const Value* from = S == Scope::combine ? partials : of_groups;
        uint32_t step = S == Scope::combine ? width : pitch, count = S == Scope::combine ? slices : groups;
        __syncthreads();
        if (S == Scope::combine || merge_threads > 1) {
            for (uint32_t i = threadIdx.x; i < merge_threads * width; i += blockDim.x) {
                const uint32_t thread = i / width, column = i - thread * width;
                of_threads[i] = Merger::merge(from + column, step, thread, merge_threads, count);
            }
            __syncthreads();
            from = of_threads;
            step = width;
            count = merge_threads;
        }
        if (blocks > 1) cluster.wait_to_send();
        for (uint32_t column = threadIdx.x; column < width; column += blockDim.x) {
            const Value all = Merger::merge(from + column, step, 0, 1, count);
            if (S == Scope::partial) partials[rank * width + column] = all;
            if (blocks == 1) of_columns[column] = all;
#pragma unroll 4
            for (uint32_t b = 0; b < (blocks > 1 ? blocks : 0); ++b) {
                cluster.send(of_blocks, rank * width + column, b, Message{all});
            }
        }
        if (blocks > 1) {
            cluster.collect(parity);
            constexpr int EACH = sizeof(Message) / sizeof(Value);
            for (uint32_t column = threadIdx.x; column < width; column += blockDim.x) {
                const auto* messages = reinterpret_cast<const Value*>(of_blocks + column);
                of_columns[column] = Merger::merge(messages, EACH * width, 0, 1, blocks);
            }
        }
        __syncthreads();
    }
};
