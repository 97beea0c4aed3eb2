// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax of long contiguous rows, in shared memory, where the result is aligned differently or has larger
// elements; others are faster in softmax_cluster.cu. The arithmetic is that of softmax.cu: one exponential an element, two
// for fp16/bf16; one read and one write.
//
// A row lies in the shared memory of a block, or of the 2 to 16 blocks of a cluster (sm_90). A thread copies its own
// vectors (cp.async) and passes over them three times: maximum, sum, results. So it waits only for its own copies and
// for the partials of other warps; a cluster exchanges partials through distributed shared memory. A row may begin
// anywhere: a thread each has the elements before and behind its whole vectors. Where the result is aligned differently
// or has larger elements, a thread reads vectors that other threads copied, behind one more barrier.
//
// The kernel has no variants; src/cuda/plan/softmax/choose/long.rs chooses it and the cluster size.
// Measurements: docs/measurements/softmax_smem.md

#include "access.cuh"
#include "async_copy.cuh"
#include "exchange.cuh"
#include "shared_reads.cuh"

constexpr int THREADS = 512;       // at most
constexpr int U = 2;               // vectors that a thread loads from shared memory at once
constexpr int MAX_PARTIALS = 256;  // warps of a cluster

template <class In, class Out> __device__ __forceinline__ void softmax_smem(const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    constexpr int E = lanes_of<In>;
    // Exponentials replace the values where they have the same size. Halves are exponentiated twice.
    constexpr bool Keep = same_type<In, C>;
    extern __shared__ uint4 shared[];                          // [vector of a thread][thread]
    alignas(16) __shared__ Partial<C> partials[MAX_PARTIALS];  // [block of the cluster, warp]
    __shared__ uint64_t exchange_barrier;
    const RowExchange<C> exchange(&exchange_barrier);
    const uint32_t blocks = exchange.blocks, rank = exchange.rank;
    exchange.open_and_announce();

    // This block's slice: `count` vectors from `begin` on.
    const Body<In, Out> row(row_at<In, Out, int>(p, blockIdx.x / blocks));
    const int per_thread = p.per_thread, slice = per_thread * blockDim.x, begin = rank * slice,
              left = row.vectors - begin;
    const int count = left < 0 ? 0 : left < slice ? left : slice;
    const In* x = row.x + static_cast<int64_t>(begin) * E;
    Out* const out = row.out + static_cast<int64_t>(begin) * E;
    const int single_at = rank == 0 ? row.single(threadIdx.x) : row.NO_SINGLE;
    uint4* const own = shared + threadIdx.x;  // a thread reads no other's vectors, except for stores of `across`
    for (int i = threadIdx.x; i < slice; i += blockDim.x) {
        if (i < count) {
            copy_async(shared + i, x + i * E);
        } else {
            store_shared_vector(shared + i, empty_vector<In>());
        }
    }
    commit_copies();
    C single = widen<Out>(row.load_single(single_at));
    wait_for_copies(0);

    Largest<In, Out> largest;
    const auto for_vectors = [&](auto f) {
        uint4* vector = own;
#pragma unroll 1
        for (int t = 0, i = threadIdx.x; t < per_thread; t += U) {
#pragma unroll
            for (int u = 0; u < U; ++u, vector += blockDim.x, i += blockDim.x) f(vector, i);
        }
    };
    for_vectors([&](const uint4* vector, int) { largest.raise_to(load_shared_vector(vector)); });
    const bool across =
        sizeof(In) != sizeof(Out) || !p.out_access;  // threads store results of vectors that others copied
    Partial<C> mine = {larger(largest.get(), single), 0};
    if (Keep && across) {
        // Then all exponentials in shared memory must have one base.
        __shared__ C scratch[32];
        mine.max = reduce_block(mine.max, Max(), -infinity<C>(), scratch);
    } else {
        mine.max = reduce_warp(mine.max, Max());
    }
    const C base = mine.base();
    mine.sum = M::exp(single - base);
    for_vectors([&](uint4* vector, int) {
        C v[E], sum = 0;  // of a vector: in sums of sums, roundings of equal terms do not add up
        widen_vector<In, Out>(load_shared_vector(vector), v);
#pragma unroll
        for (C& e : v) {
            const C shifted = e - base;
            e = M::exp(shifted);
            sum += e;
            if (Keep && p.log) e = shifted;
        }
        mine.sum += sum;
        if constexpr (Keep) {
            Pack<In, E> pack;
            __builtin_memcpy(&pack, v, sizeof(pack));
            store_shared_vector(vector, Vector::of(pack));
        }
    });
    mine.sum = reduce_warp(mine.sum, Sum());

    Normalizer<Out> normalizer(exchange.template merge<M>(partials, mine, 0), p.log);
    row.store_single(single_at, normalizer(single));
    if constexpr (Keep) normalizer.rebase(mine);
    const auto store = [&](auto result) {
        if (!across) {
            for_vectors([&](const uint4* vector, int i) {
                C v[E];
                widen_vector<In, Out>(load_shared_vector(vector), v);
                Pack<Out, E> pack;
#pragma unroll
                for (int k = 0; k < E; ++k) pack.v[k] = convert<Out>(result(v[k]));
                if (i < count) store_pack(out + i * E, pack);
            });
            return;
        }
        if (blocks > 1) __syncthreads();  // with one block, `merge` had a barrier
        const In* elements = reinterpret_cast<const In*>(shared);
        constexpr int F = lanes_of<Out>;
        const HeadAndTail<F> accesses = head_and_tail_of(out, count * E);
        for (int i = threadIdx.x; i < accesses.vectors; i += blockDim.x) {
            const int first = accesses.head + i * F;
            uint32_t word[F * sizeof(In) / 4];
            read_unaligned<In, F>(elements + first, word);
            C v[F];
            widen_words<In, Out>(word, v);
            Pack<Out, F> pack;
#pragma unroll
            for (int k = 0; k < F; ++k) pack.v[k] = convert<Out>(result(v[k]));
            store_pack(out + first, pack);
        }
        const int index = accesses.single_in_row(threadIdx.x);
        if (index != accesses.NO_SINGLE) out[index] = convert<Out>(result(widen<Out>(elements[index])));
    };
    if (Keep) {
        store([&](C v) { return multiply_add(v, normalizer.factor, normalizer.term); });
    } else if (p.log) {
        store([&](C v) { return (v - normalizer.base) + normalizer.term; });
    } else {
        store([&](C v) { return M::exp(v - normalizer.base) * normalizer.factor; });
    }
}

#define EXPORT(IN, OUT, NAME)                                                       \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                        \
        softmax_smem_##NAME(const __grid_constant__ SoftmaxParams<INLINE_RANK> p) { \
        softmax_smem<IN, OUT>(p);                                                   \
    }

EXPORT(f16, f16, f16)
EXPORT(bf16, bf16, bf16)
EXPORT(f32, f32, f32)
EXPORT(f64, f64, f64)
EXPORT(f16, f32, f16_f32)
EXPORT(bf16, f32, bf16_f32)
