// The exchange of some columns side by side: groups of a block's threads have rows of all of them, and so have the blocks that
// share them.
#pragma once

#include "exchange.cuh"

// What values part, part + parts, ... of `count` come to, `pitch` apart: of partials.
template <class M, class T> struct MergePartials {
    using C = T;
    using Value = Partial<C>;
    using Message = Partial<C>;
    static __device__ __forceinline__ Value merge(const Value* from, uint32_t pitch, uint32_t part, uint32_t parts,
                                                  uint32_t count) {
        // At once, so that their exponentials do not wait for each other; as many as registers allow.
        constexpr int N = sizeof(C) == 8 ? 2 : 8;
        auto all = Value::empty();
#pragma unroll 1
        for (uint32_t i = part; i < count; i += N * parts) {
            Value some[N], next = all;
#pragma unroll
            for (int k = 0; k < N; ++k) {
                const uint32_t at = i + k * parts;
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
// Of sums.
template <class T> struct MergeSums {
    using C = T;
    using Value = C;
    using Message = Total<C>;
    static __device__ __forceinline__ C merge(const C* from, uint32_t pitch, uint32_t part, uint32_t parts,
                                              uint32_t count) {
        C sum = 0;
#pragma unroll 4
        for (uint32_t i = part; i < count; i += parts) sum += from[i * pitch];
        return sum;
    }
};

// Before `merge`, groups put what they have of the columns into `of_groups`; after it, columns are whole in `of_columns`.
template <class Merger, Scope S> struct ColumnExchange {
    using Value = typename Merger::Value;
    using Message = typename Merger::Message;
    ClusterExchange<Message, S> cluster;
    uint32_t wide;           // columns
    uint32_t pitch, groups;  // values from a group to the next
    uint32_t parts;          // threads that merge one column
    Message* of_blocks;      // [blocks][wide], if there are several
    Value* of_groups;        // [groups][pitch], but to combine
    Value* of_parts;         // [parts][wide], if there are several, or to combine
    Value* of_columns;       // [wide]

    __device__ __forceinline__ ColumnExchange(uint64_t* state, void* shared, uint32_t wide, uint32_t pitch,
                                              uint32_t groups, uint32_t parts)
        : cluster(state), wide(wide), pitch(pitch), groups(groups), parts(parts) {
        of_blocks = static_cast<Message*>(shared);
        of_groups = reinterpret_cast<Value*>(of_blocks + (cluster.blocks > 1 ? cluster.blocks : 0) * wide);
        of_parts = of_groups + (S == Scope::combine ? 0 : groups) * pitch;
        of_columns = of_parts + (S == Scope::combine || parts > 1 ? parts : 0) * wide;
    }
    __device__ __forceinline__ void announce() const { cluster.announce(wide); }
    __device__ __forceinline__ void open() const { cluster.open_to(wide); }

    // By all threads. `partials`: of these columns in memory, [slice][column], where this block has slice `rank` of `slices`.
    __device__ __forceinline__ void merge(Value* partials, uint32_t slices, uint32_t rank, uint32_t parity) const {
        const uint32_t blocks = cluster.blocks;
        const Value* from = S == Scope::combine ? partials : of_groups;
        uint32_t step = S == Scope::combine ? wide : pitch, count = S == Scope::combine ? slices : groups;
        __syncthreads();
        if (S == Scope::combine || parts > 1) {
            for (uint32_t i = threadIdx.x; i < parts * wide; i += blockDim.x) {
                const uint32_t part = i / wide, column = i - part * wide;
                of_parts[i] = Merger::merge(from + column, step, part, parts, count);
            }
            __syncthreads();
            from = of_parts;
            step = wide;
            count = parts;
        }
        if (blocks > 1) cluster.wait_to_send();
        for (uint32_t column = threadIdx.x; column < wide; column += blockDim.x) {
            const Value all = Merger::merge(from + column, step, 0, 1, count);
            if (S == Scope::partial) partials[rank * wide + column] = all;
            if (blocks == 1) of_columns[column] = all;
#pragma unroll 4
            for (uint32_t b = 0; b < (blocks > 1 ? blocks : 0); ++b) {
                cluster.send(of_blocks, rank * wide + column, b, Message{all});
            }
        }
        if (blocks > 1) {
            cluster.collect(parity);
            constexpr int EACH = sizeof(Message) / sizeof(Value);
            for (uint32_t column = threadIdx.x; column < wide; column += blockDim.x) {
                const auto* messages = reinterpret_cast<const Value*>(of_blocks + column);
                of_columns[column] = Merger::merge(messages, EACH * wide, 0, 1, blocks);
            }
        }
        __syncthreads();
    }
};
