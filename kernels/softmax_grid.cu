// targets: 90 100
//
// softmax and log_softmax of few contiguous rows of 0.5 MB or more in one cooperative launch, a slice of a row to each
// block. The arithmetic is that of softmax.cu: two exponentials an element. What shared memory (cp.async) and registers
// hold is read once (320 KB a multiprocessor on an H200); the rest of a slice is read twice, partly from L2.
//
// A thread asks for everything that it will hold before it waits. Each block then sends maximum and sum of its slice to
// all blocks of its row: 16 bytes in the workspace, a word and a tag. Partials are merged in a fixed order.
// Variants, chosen in src/cuda/plan/softmax/choose/long.rs:
//   grid1         up to 4 vectors a thread, all in registers.
//   grid3, grid2  any number: 12 (8 of float64) in registers, then shared memory, then global memory.
// Hazards: blocks wait for each other, so all must be resident. The workspace is uninitialised, so a tag instead of a
// counter says that a message is there; the last block of a row to read the messages clears them for the next launch.
// Where x and result differ in dtype or alignment, softmax_cluster.cu's two launches run instead.
// Measurements: docs/measurements/softmax_grid.md

#include "chunk.cuh"
#include "grid_exchange.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/policy.cuh"

constexpr int THREADS = 512;  // at most
constexpr int CHUNK = 4;      // vectors that a thread has before it at once
constexpr int COPIES = 2;     // of a group, on their way to shared memory
constexpr int UNDER_WAY = 8;  // groups

// KEPT: chunks of a thread in registers. ALL: there are more, in shared memory, and beyond that.
template <class T, int KEPT, bool ALL>
__device__ __forceinline__ void softmax_grid(const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using M = Math<T>;
    using C = typename M::C;
    constexpr int E = lanes_of<T>;
    extern __shared__ uint4 slots[];                  // [vector of a thread][thread]
    __shared__ Partial<C> partials[2][THREADS / 32];  // of warps, of slices
    const uint32_t index = blockIdx.x / p.slices, rank = blockIdx.x % p.slices;
    const GridExchange<C> exchange(p.partials, index, p.slices);
    uint4* const own = slots + threadIdx.x;  // a thread looks at no other's slots
    const int threads = blockDim.x, held = ALL ? p.slots : 0;

    // This block's slice: `count` vectors from `begin` on, whole lines of memory where the row begins with one.
    const Body<T, T> row(row_at<T, T, int>(p, index));
    const int slice = ((row.vectors + p.slices - 1) / p.slices + 7) / 8 * 8;
    const int begin = rank * slice, left = row.vectors - begin;
    const int count = left < 0 ? 0 : left < slice ? left : slice;
    const T* x = row.x + static_cast<int64_t>(begin) * E;
    T* out = row.out + static_cast<int64_t>(begin) * E;
    const int end = rank == 0 ? row.end(threadIdx.x) : row.NO_END;
    // A thread's vectors, one in `threads`: `held` in shared memory, KEPT chunks in registers, the others read twice.
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
        Vector g = empty_vector<T>();
        ptx::load_global_if<16>(t < own_count, x + of(t) * E, g.word);
        return g;
    };
    const auto load_held = [&](int t) {
        return t < held && t < own_count ? load_slot(own + t * threads) : empty_vector<T>();
    };

    // Everything is asked for before anything is waited for, and without a branch between one load and the next.
    if constexpr (ALL) {
#pragma unroll 1
        for (int g = 0; g < UNDER_WAY; ++g) ask(g * COPIES);
    }
    Vector kept[KEPT][CHUNK];
#pragma unroll
    for (int j = 0; j < KEPT * CHUNK; ++j) {
        Vector& g = kept[j / CHUNK][j % CHUNK];
        g = empty_vector<T>();
        ptx::load_global_if_by(held + j < own_count, x + of(held + j) * E, g.word, once);
    }
    const C last = widen<T>(row.load_end(end));
    Partial<C> mine = {last, last == -infinity<C>() ? C(0) : C(1)};
    if constexpr (ALL) {
#pragma unroll 1
        for (int t = 0; t < held; t += COPIES) {
            ptx::cp_async_wait<UNDER_WAY - 1>();
            Vector raw[COPIES];
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
            Vector raw[CHUNK];
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
        if (lane == 0) exchange.send(rank, mine);
    }
    if (warp < senders) {
        auto of_slice = Partial<C>::empty();
        if (threadIdx.x < p.slices) of_slice = exchange.collect(threadIdx.x);
        of_slice = merge_lanes<M>(of_slice);
        if (lane == 0) partials[1][warp] = of_slice;
    }
    __syncthreads();
    bool last_reader = false;
    if (threadIdx.x == 0) last_reader = exchange.close();
    const Finish<T> finish(merge_all<M>(partials[1], senders), p.log);
    row.store_end(end, finish(last));

    const auto put_all = [&](auto result) {
        const auto put = [&](const Vector& g, int t) {
            C v[E];
            widen_vector<T, T>(g, v);
            Pack<T, E> pack;
#pragma unroll
            for (int k = 0; k < E; ++k) pack.v[k] = convert<T>(result(v[k]));
            if (t < own_count) store_pack(out + of(t) * E, pack);
        };
        if constexpr (ALL) {
            // Backwards: what was read last is still in L2.
#pragma unroll 1
            for (int t = again + ((trips - again + CHUNK - 1) / CHUNK - 1) * CHUNK; t >= again; t -= CHUNK) {
                Vector raw[CHUNK];
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
                Vector raw[CHUNK];
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
    if (warp == 0 && __shfl_sync(~0u, last_reader, 0)) exchange.clear();
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
