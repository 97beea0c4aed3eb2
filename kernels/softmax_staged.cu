// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax of long contiguous rows, kept in shared memory. The arithmetic is that of softmax.cu: one
// exponential an element, two for halves; one read and one write.
//
// A row lies in the shared memory of a block, or of the 2 to 16 blocks of a cluster (sm_90). A thread copies its own
// vectors (cp.async) and passes over them three times: maximum, sum, results. So it waits only for its own copies and
// for the partials of other warps; a cluster exchanges those through distributed shared memory. Registers stay free for
// more warps than in softmax_cluster.cu: one row loads while another is computed and a third is stored. A row may begin
// anywhere: single threads take the elements before and behind its whole vectors. Where the result is aligned
// differently or has larger elements, a thread reads vectors that other threads copied, behind one more barrier.
//
// The kernel has no variants; src/cuda/plan/softmax/choose/long.rs chooses it and the cluster size.
// Measurements: docs/measurements/softmax_staged.md

#include "access.cuh"
#include "async_copy.cuh"
#include "exchange.cuh"
#include "staged.cuh"

constexpr int THREADS = 512;       // at most
constexpr int U = 2;               // vectors that a thread has under way between shared memory and registers
constexpr int MAX_PARTIALS = 256;  // warps of a cluster

template <class In, class Out> __device__ __forceinline__ void softmax_staged(const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    constexpr int E = lanes_of<In>;
    // Exponentials take the values' place where they are of its size. Halves are exponentiated twice.
    constexpr bool Keep = same_type<In, C>;
    extern __shared__ uint4 slots[];                           // [slot][thread]
    alignas(16) __shared__ Partial<C> partials[MAX_PARTIALS];  // [block of the cluster, warp]
    __shared__ uint64_t mailbox_state;
    const RowExchange<C> exchange(&mailbox_state);
    const uint32_t blocks = exchange.blocks, rank = exchange.rank;
    exchange.open_to();

    // This block's slice: `count` vectors from `begin` on.
    const Body<In, Out> row(row_at<In, Out, int>(p, blockIdx.x / blocks));
    const int trips = p.slots, slice = trips * blockDim.x, begin = rank * slice, left = row.vectors - begin;
    const int count = left < 0 ? 0 : left < slice ? left : slice;
    const In* x = row.x + static_cast<int64_t>(begin) * E;
    Out* const out = row.out + static_cast<int64_t>(begin) * E;
    const int end = rank == 0 ? row.end(threadIdx.x) : row.NO_END;
    uint4* const own = slots + threadIdx.x;  // a thread looks at no other's slots
    for (int i = threadIdx.x; i < slice; i += blockDim.x) {
        if (i < count) {
            copy_async(slots + i, x + i * E);
        } else {
            store_slot(slots + i, empty_vector<In>());
        }
    }
    commit_copies();
    C last = widen<Out>(row.load_end(end));
    wait_for_copies(0);

    Largest<In, Out> largest;
    const auto for_slots = [&](auto f) {
        uint4* slot = own;
#pragma unroll 1
        for (int t = 0, i = threadIdx.x; t < trips; t += U) {
#pragma unroll
            for (int u = 0; u < U; ++u, slot += blockDim.x, i += blockDim.x) f(slot, i);
        }
    };
    for_slots([&](const uint4* slot, int) { largest.raise_to(load_slot(slot)); });
    const bool across = sizeof(In) != sizeof(Out) || !p.out_access;  // threads store results of what others have staged
    Partial<C> mine = {larger(largest.get(), last), 0};
    if (Keep && across) {
        // Then exponentials that are kept must be of one base.
        __shared__ C scratch[32];
        mine.max = reduce_block(mine.max, Max(), -infinity<C>(), scratch);
    } else {
        mine.max = reduce_lanes(mine.max, Max(), 32);
    }
    const C base = mine.base();
    mine.sum = M::exp(last - base);
    for_slots([&](uint4* slot, int) {
        C v[E];
        widen_vector<In, Out>(load_slot(slot), v);
#pragma unroll
        for (C& e : v) {
            const C shifted = e - base;
            e = M::exp(shifted);
            mine.sum += e;
            if (Keep && p.log) e = shifted;
        }
        if constexpr (Keep) {
            Pack<In, E> pack;
            __builtin_memcpy(&pack, v, sizeof(pack));
            store_slot(slot, Vector::of(pack));
        }
    });
    mine.sum = reduce_lanes(mine.sum, Sum(), 32);

    Finish<Out> finish(exchange.template merge<M>(partials, mine, 0), p.log);
    row.store_end(end, finish(last));
    if constexpr (Keep) finish.rebase(mine);
    const auto put = [&](auto result) {
        if (!across) {
            for_slots([&](const uint4* slot, int i) {
                C v[E];
                widen_vector<In, Out>(load_slot(slot), v);
                Pack<Out, E> pack;
#pragma unroll
                for (int k = 0; k < E; ++k) pack.v[k] = convert<Out>(result(v[k]));
                if (i < count) store_pack(out + i * E, pack);
            });
            return;
        }
        if (blocks > 1) __syncthreads();  // of one block, all have read the others' partials
        const In* staged = reinterpret_cast<const In*>(slots);
        constexpr int F = lanes_of<Out>;
        const Ends<F> accesses = ends_of(out, count * E);
        for (int i = threadIdx.x; i < accesses.vectors; i += blockDim.x) {
            const int first = accesses.head + i * F;
            uint32_t word[F * sizeof(In) / 4];
            read_staged<In, F>(staged + first, word);
            C v[F];
            widen_words<In, Out>(word, v);
            Pack<Out, F> pack;
#pragma unroll
            for (int k = 0; k < F; ++k) pack.v[k] = convert<Out>(result(v[k]));
            store_pack(out + first, pack);
        }
        const int lone = accesses.end_element(threadIdx.x);
        if (lone != accesses.NO_END) out[lone] = convert<Out>(result(widen<Out>(staged[lone])));
    };
    if (Keep) {
        put([&](C v) { return multiply_add(v, finish.factor, finish.term); });
    } else if (p.log) {
        put([&](C v) { return (v - finish.base) + finish.term; });
    } else {
        put([&](C v) { return M::exp(v - finish.base) * finish.factor; });
    }
}

#define EXPORT(IN, OUT, NAME)                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                          \
        softmax_staged_##NAME(const __grid_constant__ SoftmaxParams<INLINE_RANK> p) { \
        softmax_staged<IN, OUT>(p);                                                   \
    }

EXPORT(f16, f16, f16)
EXPORT(bf16, bf16, bf16)
EXPORT(f32, f32, f32)
EXPORT(f64, f64, f64)
EXPORT(f16, f32, f16_f32)
EXPORT(bf16, f32, bf16_f32)
