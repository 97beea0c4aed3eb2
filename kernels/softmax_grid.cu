// targets: 90 100
//
// softmax and log_softmax of few contiguous rows of 0.5 MB or more in one cooperative launch, a slice of a row to each
// block. The arithmetic is that of softmax.cu: two exponentials an element. The vectors that fit registers and shared
// memory (cp.async) are read once (320 KB a multiprocessor on an H200); the others are read twice, partly from L2.
//
// A thread starts the loads of all these vectors before it waits. Each block then sends maximum and sum of its slice to
// all blocks of its row: 16 bytes in the workspace, a word and a tag. Partials are merged in a fixed order.
// Variants, chosen in src/cuda/plan/softmax/choose/long.rs:
//   grid1         up to 4 vectors a thread, all in registers.
//   grid3, grid2  any number: 12 (8 of float64) in registers, then shared memory, then global memory.
// Hazards: blocks wait for each other, so all must be resident. The workspace is uninitialised, so a tag instead of a
// counter says that a message is there; the last block of a row to read the messages clears them for the next launch.
// Where x and result differ in dtype or alignment, softmax_cluster.cu's two launches run instead.
// Measurements: docs/measurements/softmax_grid.md

#include "online_partial.cuh"
#include "grid_exchange.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/policy.cuh"

constexpr int THREADS = 512;  // at most
constexpr int BATCH = 4;      // vectors that a thread loads at once
constexpr int COPIES = 2;     // to shared memory, of a group
constexpr int IN_FLIGHT = 8;  // groups

// REGISTER_BATCHES: batches of a thread in registers. MORE: it has other vectors in shared memory, or read twice.
template <class T, int REGISTER_BATCHES, bool MORE>
__device__ __forceinline__ void softmax_grid(const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using M = Math<T>;
    using C = typename M::C;
    constexpr int E = lanes_of<T>;
    extern __shared__ uint4 shared[];                 // [vector of a thread][thread]
    __shared__ Partial<C> partials[2][THREADS / 32];  // of warps, of slices
    const uint32_t index = blockIdx.x / p.slices, rank = blockIdx.x % p.slices;
    const GridExchange<C> exchange(p.partials, index, p.slices);
    uint4* const own = shared + threadIdx.x;  // a thread reads no other's vectors
    const int threads = blockDim.x, in_shared = MORE ? p.per_thread : 0;

    // This block's slice: `count` vectors from `begin` on, whole lines of memory if the row begins at a line.
    const Body<T, T> row(row_at<T, T, int>(p, index));
    const int slice = ((row.vectors + p.slices - 1) / p.slices + 7) / 8 * 8;
    const int begin = rank * slice, left = row.vectors - begin;
    const int count = left < 0 ? 0 : left < slice ? left : slice;
    const T* x = row.x + static_cast<int64_t>(begin) * E;
    T* out = row.out + static_cast<int64_t>(begin) * E;
    const int single_at = rank == 0 ? row.single(threadIdx.x) : row.NO_SINGLE;
    // A thread has every `threads`-th vector: `in_shared` in shared memory, then REGISTER_BATCHES batches in registers.
    // Vectors from `read_twice` on are read twice.
    const int per_thread = (count + threads - 1) / threads, read_twice = in_shared + REGISTER_BATCHES * BATCH;
    const int own_count = (count - static_cast<int>(threadIdx.x) + threads - 1) / threads;
    const auto vector = [&](int t) { return t * threads + static_cast<int>(threadIdx.x); };
    const uint64_t once = ptx::read_once();
    const auto copy_group = [&](int t) {
#pragma unroll
        for (int k = 0; k < COPIES; ++k) {
            if (t + k < in_shared && t + k < own_count) {
                const uint64_t to = __cvta_generic_to_shared(own + (t + k) * threads);
                ptx::cp_async_16_by(static_cast<uint32_t>(to), x + vector(t + k) * E, once);
            }
        }
        ptx::cp_async_commit();
    };
    const auto load = [&](int t) {
        Vector g = empty_vector<T>();
        ptx::load_global_if<16>(t < own_count, x + vector(t) * E, g.word);
        return g;
    };
    const auto load_copied = [&](int t) {
        return t < in_shared && t < own_count ? load_shared_vector(own + t * threads) : empty_vector<T>();
    };

    // All loads are issued before the first is waited for, and without a branch between one load and the next.
    if constexpr (MORE) {
#pragma unroll 1
        for (int g = 0; g < IN_FLIGHT; ++g) copy_group(g * COPIES);
    }
    Vector in_registers[REGISTER_BATCHES][BATCH];
#pragma unroll
    for (int j = 0; j < REGISTER_BATCHES * BATCH; ++j) {
        Vector& g = in_registers[j / BATCH][j % BATCH];
        g = empty_vector<T>();
        ptx::load_global_if_by(in_shared + j < own_count, x + vector(in_shared + j) * E, g.word, once);
    }
    const C single = widen<T>(row.load_single(single_at));
    Partial<C> mine = {single, single == -infinity<C>() ? C(0) : C(1)};
    if constexpr (MORE) {
#pragma unroll 1
        for (int t = 0; t < in_shared; t += COPIES) {
            ptx::cp_async_wait<IN_FLIGHT - 1>();
            Vector raw[COPIES];
#pragma unroll
            for (int k = 0; k < COPIES; ++k) raw[k] = load_copied(t + k);
            accumulate_vectors<T, T>(mine, raw);
            copy_group(t + IN_FLIGHT * COPIES);
        }
    }
#pragma unroll
    for (int j = 0; j < REGISTER_BATCHES; ++j) {
        if (in_shared + j * BATCH < per_thread) accumulate_vectors<T, T>(mine, in_registers[j]);
    }
    if constexpr (MORE) {
#pragma unroll 1
        for (int t = read_twice; t < per_thread; t += BATCH) {
            Vector raw[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; ++k) raw[k] = load(t + k);
            accumulate_vectors<T, T>(mine, raw);
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
    const Normalizer<T> normalizer(merge_all<M>(partials[1], senders), p.log);
    row.store_single(single_at, normalizer(single));

    const auto store_all = [&](auto result) {
        const auto store = [&](const Vector& g, int t) {
            C v[E];
            widen_vector<T, T>(g, v);
            Pack<T, E> pack;
#pragma unroll
            for (int k = 0; k < E; ++k) pack.v[k] = convert<T>(result(v[k]));
            if (t < own_count) store_pack(out + vector(t) * E, pack);
        };
        if constexpr (MORE) {
            // Backwards: the vectors read last are still in L2.
#pragma unroll 1
            for (int t = read_twice + ((per_thread - read_twice + BATCH - 1) / BATCH - 1) * BATCH; t >= read_twice;
                 t -= BATCH) {
                Vector raw[BATCH];
#pragma unroll
                for (int k = 0; k < BATCH; ++k) raw[k] = load(t + k);
#pragma unroll
                for (int k = 0; k < BATCH; ++k) store(raw[k], t + k);
            }
        }
#pragma unroll
        for (int j = 0; j < REGISTER_BATCHES; ++j) {
            if (in_shared + j * BATCH < per_thread) {
#pragma unroll
                for (int k = 0; k < BATCH; ++k) store(in_registers[j][k], in_shared + j * BATCH + k);
            }
        }
        if constexpr (MORE) {
#pragma unroll 1
            for (int t = 0; t < in_shared; t += BATCH) {
                Vector raw[BATCH];
#pragma unroll
                for (int k = 0; k < BATCH; ++k) raw[k] = load_copied(t + k);
#pragma unroll
                for (int k = 0; k < BATCH; ++k) store(raw[k], t + k);
            }
        }
    };
    if (p.log) {
        store_all([&](C v) { return (v - normalizer.base) + normalizer.term; });
    } else {
        store_all([&](C v) { return M::exp(v - normalizer.base) * normalizer.factor; });
    }
    if (warp == 0 && __shfl_sync(~0u, last_reader, 0)) exchange.clear();
}

#define KERNEL(NAME) \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ SoftmaxParams<INLINE_RANK> p)
#define EXPORT(T, REGISTER_BATCHES)                             \
    KERNEL(softmax_grid1_##T) { softmax_grid<T, 1, false>(p); } \
    KERNEL(softmax_grid##REGISTER_BATCHES##_##T) { softmax_grid<T, REGISTER_BATCHES, true>(p); }

EXPORT(f16, 3)
EXPORT(bf16, 3)
EXPORT(f32, 3)
EXPORT(f64, 2)
