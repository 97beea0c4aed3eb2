// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax of long rows whose elements lie side by side: a row waits in the shared memory of a block, or of
// the 2 to 16 blocks of a cluster (sm_90), while it is computed. The arithmetic is that of softmax.cu.
//
// Per element: one exponential and a multiply-add, two exponentials of halves; one read and one write.
//
// A block that holds its part of a row in registers (softmax_cluster.cu) is large, and few of them share a multiprocessor;
// when its threads have not all as many granules, it is as large, and holds less. Shared memory holds 200 KB of a
// multiprocessor's rows and leaves the registers to as many warps as it takes to have loads of one row, the arithmetic of
// another and stores of a third under way. A thread asks for its own granules (cp.async) and goes over them three times,
// for the maximum, the sum and the results, so that nothing is waited for but its own copies and the other warps' partials.
// Rows may start anywhere and have any length: whole granules are staged, the ends are elements of single threads. Where
// the result is aligned otherwise, or its elements are larger, a thread reads from shared memory what an access of the
// result takes, whoever has staged it.
//
// Measured on an H200, cold L2, share of a copy of the same bytes, beside what was chosen before: bf16 21183 x 12672 0.94
// (cluster 0.85), 10000 x 25001 0.95 (pipeline 0.80), 4096 x 50257 0.93 (pipeline 0.79), 4096 x 65536 0.94 (0.91), 2048 x
// 131072 0.93 (0.87), 1024 x 262144 0.90 (0.81), 512 x 524288 0.82 (online 0.66); f32 10000 x 25001 0.94 (cluster 0.85),
// 4096 x 50257 0.94 (pipeline 0.83), 2048 x 131072 0.92 (0.88), 1024 x 262144 0.87 (cluster 0.56); f64 4096 x 32768 0.91
// (0.79). 16384 x 8192 of rows of 8195, result contiguous, bf16 0.91 (lanes that complete each other's stores 0.71), f16
// 0.92, f32 0.94; bf16 to f32 8192 x 16384 0.89, 2048 x 65536 0.88. What limits it: with one pass of an online sum instead
// of two passes, at 29 instructions an element of bf16, warps issued in 87 of 100 cycles. With half of them float32 rows of
// 50257 went from 0.90 to 0.94, others hardly moved. Of clusters of 16 there are 7 at a time, on 112 of 132
// multiprocessors, which is where rows of 1 MB stop.
//
// Rejected, each measured beside it: persistent blocks or clusters that prefetch the next row by bulk copies
// (cp.async.bulk) into 2 to 8 stages while registers hold the present one, 0.82 wherever there are enough rows, at any depth
// and cluster size (each block had a fixed share of the rows; not looked into further); the whole slice by bulk copies of
// many KB instead of cp.async, 0.88 of aligned rows, but 0.96 of 25001; by bulk copies of 4 KB, the same as cp.async; one
// multiply-add instead of a subtraction and a product before 2^x, the same.
//
// Counters (ncu) of 4096 x 65536 bf16 by clusters of four: DRAM at 79 of 100 (a copy reaches 85), 70 of 100 cycles issue, and
// of clusters of four and more some multiprocessors have none: 0.92 of all are busy (of two 0.99, of sixteen 0.87).

#include "async_copy.cuh"
#include "ptx/cluster.cuh"
#include "staged.cuh"

constexpr int THREADS = 512;       // at most
constexpr int U = 2;               // granules that a thread has under way between shared memory and registers
constexpr int MAX_PARTIALS = 256;  // warps of a cluster

// The largest of all elements that a thread has seen. Halves are compared in pairs.
template <class In, class Out> struct Largest {
    using C = typename Math<Out>::C;
#if __CUDA_ARCH__ >= 800
    static constexpr bool PAIRS = is_half<In>;
#else
    static constexpr bool PAIRS = false;
#endif
    C value = -infinity<C>();
    Granule seen = empty_granule<In>();

    static __device__ __forceinline__ uint32_t pair(uint32_t a, uint32_t b) {
        if constexpr (same_type<In, bf16>) {
            return ptx::max_bf16(a, b);
        } else {
            return ptx::max_f16(a, b);
        }
    }
    __device__ __forceinline__ void look_at(const Granule& g) {
        if constexpr (PAIRS) {
#pragma unroll
            for (int k = 0; k < 4; ++k) seen.word[k] = pair(seen.word[k], g.word[k]);
        } else {
            C x[lanes_of<In>];
            widen_granule<In, Out>(g, x);
#pragma unroll
            for (C e : x) value = larger(value, e);
        }
    }
    __device__ __forceinline__ C get() const {
        C largest = value, x[lanes_of<In>];
        if constexpr (PAIRS) {
            widen_granule<In, Out>(seen, x);
#pragma unroll
            for (C e : x) largest = larger(largest, e);
        }
        return largest;
    }
};

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
    const ptx::Mailbox mailbox = {&mailbox_state};
    const uint32_t blocks = ptx::cluster_blocks(), rank = ptx::cluster_rank();
    const uint32_t warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (blocks > 1) {
        mailbox.open();
        if (threadIdx.x == 0) mailbox.expect(blocks * warps * sizeof(Partial<C>));
        ptx::cluster_arrive();
    }

    // This block's slice: `count` granules from `begin` on.
    const Body<In, Out> row(row_at<In, Out, int>(p, blockIdx.x / blocks));
    const int trips = p.slots, slice = trips * blockDim.x, begin = rank * slice, left = row.granules - begin;
    const int count = left < 0 ? 0 : left < slice ? left : slice;
    const In* x = row.x + static_cast<int64_t>(begin) * E;
    Out* const out = row.out + static_cast<int64_t>(begin) * E;
    const int end = rank == 0 ? row.end(threadIdx.x) : row.NO_END;
    uint4* const own = slots + threadIdx.x;  // a thread looks at no other's slots
    for (int i = threadIdx.x; i < slice; i += blockDim.x) {
        if (i < count) {
            copy_async(slots + i, x + i * E);
        } else {
            store_slot(slots + i, empty_granule<In>());
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
    for_slots([&](const uint4* slot, int) { largest.look_at(load_slot(slot)); });
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
        widen_granule<In, Out>(load_slot(slot), v);
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
            store_slot(slot, Granule::of(pack));
        }
    });
    mine.sum = reduce_lanes(mine.sum, Sum(), 32);

    if (blocks == 1) {
        if (lane == 0) partials[warp] = mine;
        __syncthreads();
    } else {
        ptx::cluster_wait();  // until the others have announced what they expect
        uint32_t words[sizeof(mine) / 4];
        __builtin_memcpy(words, &mine, sizeof(mine));
        if (lane < blocks) mailbox.send<sizeof(mine) / 4>(partials + rank * warps + warp, lane, words);
        mailbox.wait(0);
    }
    Finish<Out> finish(merge_all<M>(partials, blocks * warps), p.log);
    row.store_end(end, finish(last));
    if constexpr (Keep) finish.rebase(mine);
    const auto put = [&](auto result) {
        if (!across) {
            for_slots([&](const uint4* slot, int i) {
                C v[E];
                widen_granule<In, Out>(load_slot(slot), v);
                Pack<Out, E> pack;
#pragma unroll
                for (int k = 0; k < E; ++k) pack.v[k] = convert<Out>(result(v[k]));
                if (i < count) store_pack(out + i * E, pack);
            });
            return;
        }
        if (blocks > 1) __syncthreads();  // of one block, all have read the others' partials
        const In* staged = reinterpret_cast<const In*>(slots);
        const Accesses<Out> accesses(out, count * E);
        constexpr int F = accesses.F;
        for (int i = threadIdx.x; i < accesses.count; i += blockDim.x) {
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
        const int lone = accesses.lone(threadIdx.x);
        if (lone != accesses.NONE) out[lone] = convert<Out>(result(widen<Out>(staged[lone])));
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
