// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax of long contiguous rows, several blocks a row. The arithmetic is that of softmax.cu.
//
// Variants, chosen in src/cuda/plan/softmax/choose/mod.rs and choose/long.rs:
//   cluster             a row of up to 2^16 vectors in the registers of a block or of the 2 to 16 blocks of a cluster
//                       (sm_90). Warps exchange maximum and sum once, through distributed shared memory. x is read
//                       once.
//   partial, combine    two launches for few rows that no cluster holds: the first writes maximum and sum of each slice
//                       to the workspace, the second reads x again.
// A row may begin anywhere. In a cluster a thread each has the elements before and behind its whole vectors; the two
// launches load whole vectors, which may include elements of other rows, except at the edges of the tensor. Where the
// result is aligned differently, lanes complete each other's vectors in combine, and cluster stores by element.
// Hazard: from sm_90 on combine may begin early. It loads x, then waits for the first launch before it reads partials.
// Measurements: docs/measurements/softmax_cluster.md
#include "access.cuh"
#include "online_partial.cuh"
#include "exchange.cuh"
#include "ptx/grid.cuh"

constexpr int THREADS = 512;  // at most
// Blocks of so many threads that share a multiprocessor, where no registers spill: a thread has 64, else 128.
#if __CUDA_ARCH__ >= 800
constexpr int SHARING = 2;
#else
constexpr int SHARING = 1;
#endif
#if __CUDA_ARCH__ == 900
constexpr int SHARING_F64 = 2;
#else
constexpr int SHARING_F64 = 1;
#endif
constexpr int V = 8;  // vectors per thread
// Two launches: the most threads of a block, and vectors that a thread loads at once.
constexpr int SPLIT_THREADS = 384, SPLIT_V = 4;
constexpr int MAX_PARTIALS = 256;  // warps of a cluster

template <class In, class Out> __device__ __forceinline__ void softmax_cluster(const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    constexpr int E = lanes_of<In>;
    // Halves stay halves, in half the registers, and are widened and exponentiated a second time; exponentials replace
    // values of the other dtypes.
    constexpr bool Keep = !is_half<In>;
    alignas(16) __shared__ Partial<C> partials[MAX_PARTIALS];  // [block of the cluster, warp]
    __shared__ uint64_t exchange_barrier;
    const RowExchange<C> exchange(&exchange_barrier);
    const uint32_t blocks = exchange.blocks, rank = exchange.rank;
    exchange.open_and_announce();

    // A warp has contiguous vectors and a lane every 32nd of them, from `first` on: offsets are constants.
    const Body<In, Out> row(row_at<In, Out, int>(p, blockIdx.x >> __popc(blocks - 1)));
    const int first = (rank * exchange.warps + exchange.warp) * V * 32 + exchange.lane, left = row.vectors - first;
    const In* const x = row.x + first * E;
    Vector raw[V];
#pragma unroll
    for (int i = 0; i < V; ++i) {
        raw[i] = empty_vector<In>();
        ptx::load_global_if<16>(i * 32 < left, x + i * 32 * E, raw[i].word);
    }
    const int single_at = rank == 0 ? row.single(threadIdx.x) : row.NO_SINGLE;
    C single = widen<Out>(row.load_single(single_at));
    Largest<In, Out> largest;
#pragma unroll
    for (int i = 0; i < V; ++i) largest.raise_to(raw[i]);
    Partial<C> mine = {reduce_warp(larger(largest.get(), single), Max()), 0};
    const Exponential<Out> exponential(mine.base());
    C v[Keep ? V : 1][E];
    mine.sum = exponential(single);
#pragma unroll
    for (int i = 0; i < V; ++i) {
        auto& each = v[Keep ? i : 0];
        widen_vector<In, Out>(raw[i], each);
        C sum = 0;  // of a vector: in sums of sums, roundings of equal terms do not add up
#pragma unroll
        for (C& e : each) {
            const C power = exponential(e);
            sum += power;
            if (Keep) e = p.log ? e - exponential.base : power;
        }
        mine.sum += sum;
    }
    mine.sum = reduce_warp(mine.sum, Sum()) * exponential.correction();

    // Every warp sends its partial to the shared memory of every block of the cluster, and merges all partials when
    // they have arrived.
    Normalizer<Out> normalizer(exchange.template merge<M>(partials, mine, 0), p.log);
    row.store_single(single_at, normalizer(single));
    if (Keep) normalizer.rebase(mine);
    Out* const out = row.out + first * E;
    const auto store = [&](auto result) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
            auto& each = v[Keep ? i : 0];
            if (!Keep) widen_vector<In, Out>(opaque(raw[i]), each);
            Pack<Out, E> pack;
#pragma unroll
            for (int k = 0; k < E; ++k) pack.v[k] = convert<Out>(result(each[k]));
            if (i * 32 >= left) return;
            if (p.out_access) {
                store_pack(out + i * 32 * E, pack);
            } else {
#pragma unroll
                for (int k = 0; k < E; ++k) out[i * 32 * E + k] = pack.v[k];
            }
        }
    };
    if (Keep) {
        store([&](C v) { return multiply_add(v, normalizer.factor, normalizer.term); });
    } else if (p.log) {
        store([&](C v) { return (v - normalizer.base) + normalizer.term; });
    } else {
        const Exponential<Out> of_row(normalizer.base);
        const C factor = normalizer.factor * of_row.correction();
        store([&](C v) { return of_row(v) * factor; });
    }
}

// ----------------------------------------------------------------------------------------------- split

// All slices of a row have the same number of batches of V vectors per thread; the last may be past the row's end.
template <class In, class Out, int V> struct Slice {
    Row<In, Out, int64_t> row;
    int64_t first;
    int64_t batches;
    bool edge;

    __device__ __forceinline__ Slice(const SoftmaxParams<INLINE_RANK>& p, uint64_t index)
        : row(row_at<In, Out, int64_t>(p, index / p.slices)), batches(p.per_thread) {
        first = static_cast<int64_t>(index % p.slices) * batches * V * blockDim.x + threadIdx.x;
        edge = row.at_edge(p.x_low, p.x_high);
    }
    __device__ __forceinline__ int64_t vector(int64_t batch, int i) const {
        return first + (batch * V + i) * blockDim.x;
    }
    __device__ __forceinline__ void load(int64_t batch, Vector (&raw)[V]) const {
#pragma unroll
        for (int i = 0; i < V; ++i) raw[i] = row.load_around(vector(batch, i), edge);
    }
    __device__ __forceinline__ void complete(int64_t batch, Vector (&raw)[V]) const {
#pragma unroll
        for (int i = 0; i < V; ++i) row.complete(vector(batch, i), edge, raw[i]);
    }
};

template <class In, class Out, int V> __device__ __forceinline__ void softmax_partial(
    const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    __shared__ Partial<C> partials[2][32];
    ptx::let_next_grid_begin();
    uint32_t parity = 0;
    for (uint64_t index = blockIdx.x; index < p.rows * p.slices; index += gridDim.x) {
        const Slice<In, Out, V> slice(p, index);
        auto mine = Partial<C>::empty();
        Vector raw[V], next[V] = {};
        slice.load(0, raw);
        for (int64_t b = 0; b < slice.batches; ++b) {
            if (b + 1 < slice.batches) slice.load(b + 1, next);
            slice.complete(b, raw);
            accumulate_vectors<In, Out>(mine, raw);
#pragma unroll
            for (int i = 0; i < V; ++i) raw[i] = next[i];
        }
        mine = reduce_block(mine, Merge<M>(), Partial<C>::empty(), partials[parity]);
        if (threadIdx.x == 0) reinterpret_cast<Partial<C>*>(p.partials)[index] = mine;
        parity ^= 1;
    }
}

template <class In, class Out, int V> __device__ __forceinline__ void softmax_combine(
    const SoftmaxParams<INLINE_RANK>& p) {
    using M = Math<Out>;
    using C = typename M::C;
    for (uint64_t i = blockIdx.x; i < p.rows * p.slices; i += gridDim.x) {
        // Backwards: the vectors read last are still in the caches.
        const uint64_t index = p.rows * p.slices - 1 - i;
        const Slice<In, Out, V> slice(p, index);
        Vector raw[V];
        slice.load(slice.batches - 1, raw);
        // The first launch writes only partials, so x may be loaded before this wait; but it reads x, which the result
        // overwrites if it is in place.
        ptx::wait_for_grid_before();
        const auto* partials = reinterpret_cast<const Partial<C>*>(p.partials) + index / p.slices * p.slices;
        const Normalizer<Out> normalizer(merge_all<M>(partials, p.slices), p.log);
        for (int64_t b = slice.batches - 1; b >= 0; --b) {
            if (b + 1 < slice.batches) slice.load(b, raw);
            slice.complete(b, raw);
#pragma unroll
            for (int i = 0; i < V; ++i) {
                C x[lanes_of<In>];
                widen_vector<In, Out>(raw[i], x);
                slice.row.store_across_lanes(slice.vector(b, i), normalize_pack(normalizer, x), p.out_access);
            }
        }
    }
}

// Two blocks of the launches share a multiprocessor, so that blocks of the second run next to blocks of the first.
#define KERNEL(THREADS, BLOCKS, NAME)                             \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) \
        NAME(const __grid_constant__ SoftmaxParams<INLINE_RANK> p)
#define EXPORT(IN, OUT, NAME, SHARING)                                                         \
    KERNEL(THREADS, SHARING, softmax_cluster_##NAME) { softmax_cluster<IN, OUT>(p); }          \
    KERNEL(SPLIT_THREADS, 2, softmax_partial_##NAME) { softmax_partial<IN, OUT, SPLIT_V>(p); } \
    KERNEL(SPLIT_THREADS, 2, softmax_combine_##NAME) { softmax_combine<IN, OUT, SPLIT_V>(p); }

EXPORT(f16, f16, f16, SHARING)
EXPORT(bf16, bf16, bf16, SHARING)
EXPORT(f32, f32, f32, SHARING)
EXPORT(f64, f64, f64, SHARING_F64)
EXPORT(f16, f32, f16_f32, SHARING)
EXPORT(bf16, f32, bf16_f32, SHARING)
