// targets: 90 100
//
// softmax and log_softmax of a few rows of half a megabyte or more, whose elements lie side by side: one launch in which
// all blocks run at the same time (a cooperative one), each with a slice of a row, and wait for each other once. The
// arithmetic is that of softmax.cu.
//
// Per element: two exponentials; one read and one write of what multiprocessors hold, on an H200 320 KB each and 42 MB
// together; of the rest, two reads.
//
// A thread asks for all that it will hold, in shared memory (cp.async) and in registers, before it waits for anything; what
// there is beyond is read last, and again first, out of L2 as far as that goes. Every block then sends the largest element
// and the sum of its slice to all others of its row. A message is one access of 16 bytes in memory from the caller's
// allocator, a word under a tag: no counter would be known to begin at zero there, and none of the module's could be shared
// by streams or by replays of a graph. Nobody else writes that tag, and the last block to have read the messages clears
// them. Sums are merged in an order that depends on the shape alone.
//
// Variants, as chosen in src/cuda/plan/softmax/choose.rs:
//   grid1         up to 4 granules of 16 bytes to a thread, all in registers.
//   grid3, grid2  any number: 12 (8 of float64) in registers, as many as there is room for in shared memory, then memory.
//
// Results are aligned as x is and of its dtype: otherwise the two launches of softmax_cluster.cu do it (8 x 2^21 from
// bf16 to float32 took 58 us in those, and 61 in this).
//
// Measured on an H200, cold L2, share of a copy of the same bytes, bf16 and float32, beside what was chosen before: 8 x 2^21
// 0.75, 0.75 (two launches 0.57, 0.58), 1 x 2^24 0.81, 0.76 (0.59, 0.57), 2 x 2^22 0.70, 0.80 (0.56, 0.60), 32 x 2^19 0.76,
// 0.75 (clusters 0.65, two launches 0.57), 3 x 1000003 0.79, 0.80 (0.70, 0.66), 1 x 2^20 0.58, 0.63 (0.57, 0.53), 1 x 2^27
// 0.61, 0.62 (0.54, 0.58), 64 x 2^18 0.77, 0.75 (clusters 0.77, 0.56); float64 1 x 2^24 0.58 (0.53).
// Rows of 512 KB or less are better off in clusters: bf16 16 x 2^18 0.61 (0.66), 64 x 128256 0.65 (0.71). Of the 28 us that
// 8 x 2^21 bf16 took between two events, blocks had their slices after 13, sent after 14, and had everybody's messages after
// 15.6; results took 7.5. An ordinary launch of the same kernel took as long as the cooperative one.
//
// Rejected, each measured beside it: to skip loads that a thread does not have by branches instead of predicates, 32 us
// instead of 28: the loads of one branch were waited for before the next; a common loop over chunks from wherever they lie,
// 32; 1024 threads, with half the registers each, 33; 28 copies of a thread under way instead of 16, the same in bf16, in
// float32 51 instead of 48; two blocks to a multiprocessor, 31; persistent blocks that go on with another row, for which
// softmax_staged.cu is faster (1024 x 262144 0.80, 0.82). That L2 lets go first of what is read once (createpolicy) is worth
// one to three percent here; the clusters' kernels took as much longer with it.

#include "chunk.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/message.cuh"
#include "ptx/policy.cuh"

constexpr int THREADS = 512;  // at most
constexpr int CHUNK = 4;      // granules that a thread has before it at once
constexpr int COPIES = 2;     // of a group, on their way to shared memory
constexpr int UNDER_WAY = 8;  // groups

// How the blocks of a row tell each other their partials.
template <class C> struct Mail {
    static constexpr int WORDS = sizeof(Partial<C>) / 8;  // of a partial
    static constexpr uint64_t TAG = 0x9b1f3ac5e07d4826;   // no memory holds it by chance
    struct alignas(16) Message {
        uint64_t word, tag;
    };
    uint32_t slices;
    Message* messages;  // [word][slice]
    uint32_t* readers;  // blocks that have seen all messages

    __device__ __forceinline__ Mail(uint64_t partials, uint32_t row, uint32_t slices)
        : slices(slices),
          messages(reinterpret_cast<Message*>(partials) + static_cast<uint64_t>(row) * (WORDS * slices + 1)),
          readers(reinterpret_cast<uint32_t*>(messages + WORDS * slices)) {}

    // By one thread of each block.
    __device__ __forceinline__ void send(uint32_t slice, const Partial<C>& partial) const {
        if (slice == 0) {
            *readers = 0;  // for whoever has this message
            __threadfence();
        }
        uint64_t words[WORDS];
        __builtin_memcpy(words, &partial, sizeof(partial));
#pragma unroll
        for (int w = 0; w < WORDS; ++w) ptx::send_message(messages + w * slices + slice, words[w], TAG);
    }
    __device__ __forceinline__ Partial<C> wait(uint32_t slice) const {
        uint64_t words[WORDS];
#pragma unroll
        for (int w = 0; w < WORDS; ++w) words[w] = ptx::wait_for_message(messages + w * slices + slice, TAG);
        Partial<C> partial;
        __builtin_memcpy(&partial, words, sizeof(partial));
        return partial;
    }
    // By one thread, when its block has all messages: whether it is the last of the row's to say so.
    __device__ __forceinline__ bool leave() const {
        __threadfence();
        return atomicAdd(readers, 1) == slices - 1;
    }
    // By a warp of that block: whoever gets this memory again must not take old messages for its own.
    __device__ __forceinline__ void clear() const {
        for (uint32_t i = threadIdx.x; i < WORDS * slices; i += 32) messages[i] = {0, 0};
    }
};

// Of the lanes of a warp.
template <class M, class C> __device__ __forceinline__ Partial<C> merge_lanes(const Partial<C>& mine) {
    Partial<C> all = {reduce_lanes(mine.max, Max(), 32), 0};
    all.sum = reduce_lanes(mine.sum * M::exp(mine.max - all.base()), Sum(), 32);
    return all;
}

// KEPT: chunks of a thread in registers. ALL: there are more, in shared memory, and beyond that.
template <class T, int KEPT, bool ALL>
__device__ __forceinline__ void softmax_grid(const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using M = Math<T>;
    using C = typename M::C;
    constexpr int E = lanes_of<T>;
    extern __shared__ uint4 slots[];                  // [granule of a thread][thread]
    __shared__ Partial<C> partials[2][THREADS / 32];  // of warps, of slices
    const uint32_t index = blockIdx.x / p.slices, rank = blockIdx.x % p.slices;
    const Mail<C> mail(p.partials, index, p.slices);
    uint4* const own = slots + threadIdx.x;  // a thread looks at no other's slots
    const int threads = blockDim.x, held = ALL ? p.slots : 0;

    // This block's slice: `count` granules from `begin` on, whole lines of memory where the row begins with one.
    const Body<T, T> row(row_at<T, T, int>(p, index));
    const int slice = ((row.granules + p.slices - 1) / p.slices + 7) / 8 * 8;
    const int begin = rank * slice, left = row.granules - begin;
    const int count = left < 0 ? 0 : left < slice ? left : slice;
    const T* x = row.x + static_cast<int64_t>(begin) * E;
    T* out = row.out + static_cast<int64_t>(begin) * E;
    const int end = rank == 0 ? row.end(threadIdx.x) : row.NO_END;
    // A thread's granules, one in `threads`: `held` in shared memory, KEPT chunks in registers, the others read twice.
    const int trips = (count + threads - 1) / threads, again = held + KEPT * CHUNK;
    const int own_count = (count - static_cast<int>(threadIdx.x) + threads - 1) / threads;
    const auto of = [&](int t) { return t * threads + static_cast<int>(threadIdx.x); };
    const uint64_t once = ptx::read_once();
    const auto ask = [&](int t) {
#pragma unroll
        for (int k = 0; k < COPIES; ++k) {
            if (t + k < held && t + k < own_count) {
                const uint64_t to = __cvta_generic_to_shared(own + (t + k) * threads);
                ptx::cp_async_16_by(static_cast<uint32_t>(to), x + of(t + k) * E, once);
            }
        }
        ptx::cp_async_commit();
    };
    const auto load = [&](int t) {
        Granule g = empty_granule<T>();
        ptx::load_global_if<16>(t < own_count, x + of(t) * E, g.word);
        return g;
    };
    const auto load_held = [&](int t) {
        return t < held && t < own_count ? load_slot(own + t * threads) : empty_granule<T>();
    };

    // Everything is asked for before anything is waited for, and without a branch between one load and the next.
    if constexpr (ALL) {
#pragma unroll 1
        for (int g = 0; g < UNDER_WAY; ++g) ask(g * COPIES);
    }
    Granule kept[KEPT][CHUNK];
#pragma unroll
    for (int j = 0; j < KEPT * CHUNK; ++j) {
        Granule& g = kept[j / CHUNK][j % CHUNK];
        g = empty_granule<T>();
        ptx::load_global_if_by(held + j < own_count, x + of(held + j) * E, g.word, once);
    }
    const C last = widen<T>(row.load_end(end));
    Partial<C> mine = {last, last == -infinity<C>() ? C(0) : C(1)};
    if constexpr (ALL) {
#pragma unroll 1
        for (int t = 0; t < held; t += COPIES) {
            ptx::cp_async_wait<UNDER_WAY - 1>();
            Granule raw[COPIES];
#pragma unroll
            for (int k = 0; k < COPIES; ++k) raw[k] = load_held(t + k);
            take_chunk<T, T>(mine, raw);
            ask(t + UNDER_WAY * COPIES);
        }
    }
#pragma unroll
    for (int j = 0; j < KEPT; ++j) {
        if (held + j * CHUNK < trips) take_chunk<T, T>(mine, kept[j]);
    }
    if constexpr (ALL) {
#pragma unroll 1
        for (int t = again; t < trips; t += CHUNK) {
            Granule raw[CHUNK];
#pragma unroll
            for (int k = 0; k < CHUNK; ++k) raw[k] = load(t + k);
            take_chunk<T, T>(mine, raw);
        }
    }

    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, senders = (p.slices + 31) / 32;
    mine = merge_lanes<M>(mine);
    if (lane == 0) partials[0][warp] = mine;
    __syncthreads();
    if (warp == 0) {
        mine = merge_all<M>(partials[0], threads / 32);
        if (lane == 0) mail.send(rank, mine);
    }
    if (warp < senders) {
        auto of_slice = Partial<C>::empty();
        if (threadIdx.x < p.slices) of_slice = mail.wait(threadIdx.x);
        of_slice = merge_lanes<M>(of_slice);
        if (lane == 0) partials[1][warp] = of_slice;
    }
    __syncthreads();
    bool last_reader = false;
    if (threadIdx.x == 0) last_reader = mail.leave();
    const Finish<T> finish(merge_all<M>(partials[1], senders), p.log);
    row.store_end(end, finish(last));

    const auto put_all = [&](auto result) {
        const auto put = [&](const Granule& g, int t) {
            C v[E];
            widen_granule<T, T>(g, v);
            Pack<T, E> pack;
#pragma unroll
            for (int k = 0; k < E; ++k) pack.v[k] = convert<T>(result(v[k]));
            if (t < own_count) store_pack(out + of(t) * E, pack);
        };
        if constexpr (ALL) {
            // Backwards: what was read last is still in L2.
#pragma unroll 1
            for (int t = again + ((trips - again + CHUNK - 1) / CHUNK - 1) * CHUNK; t >= again; t -= CHUNK) {
                Granule raw[CHUNK];
#pragma unroll
                for (int k = 0; k < CHUNK; ++k) raw[k] = load(t + k);
#pragma unroll
                for (int k = 0; k < CHUNK; ++k) put(raw[k], t + k);
            }
        }
#pragma unroll
        for (int j = 0; j < KEPT; ++j) {
            if (held + j * CHUNK < trips) {
#pragma unroll
                for (int k = 0; k < CHUNK; ++k) put(kept[j][k], held + j * CHUNK + k);
            }
        }
        if constexpr (ALL) {
#pragma unroll 1
            for (int t = 0; t < held; t += CHUNK) {
                Granule raw[CHUNK];
#pragma unroll
                for (int k = 0; k < CHUNK; ++k) raw[k] = load_held(t + k);
#pragma unroll
                for (int k = 0; k < CHUNK; ++k) put(raw[k], t + k);
            }
        }
    };
    if (p.log) {
        put_all([&](C v) { return (v - finish.base) + finish.term; });
    } else {
        put_all([&](C v) { return M::exp(v - finish.base) * finish.factor; });
    }
    if (warp == 0 && __shfl_sync(~0u, last_reader, 0)) mail.clear();
}

#define KERNEL(NAME) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ SoftmaxParams<INLINE_RANK> p)
#define EXPORT(T, KEPT)                                         \
    KERNEL(softmax_grid1_##T) { softmax_grid<T, 1, false>(p); } \
    KERNEL(softmax_grid##KEPT##_##T) { softmax_grid<T, KEPT, true>(p); }

EXPORT(f16, 3)
EXPORT(bf16, 3)
EXPORT(f32, 3)
EXPORT(f64, 2)
