// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax of long rows whose elements lie side by side: where a block of softmax.cu would be alone on its
// multiprocessor or read the row twice, and where one block to a row would leave most of the device idle. The arithmetic
// is that of softmax.cu.
//
// Per element: one or two exponentials; cluster one read and one write, split two reads (the second from L2, where x
// fits it) and one write.
//
// Variants, as chosen in src/cuda/plan/softmax/choose.rs:
//   cluster    a row in the registers of a block, or of the 2 to 16 blocks of a cluster (sm_90), which exchange the
//              largest element and the sum of each of their warps by distributed shared memory, once. Up to 2^16
//              granules of 16 bytes.
//   leaveV,    two launches for a few rows that no cluster can hold and softmax_grid.cu does not take, or on a GPU without
//   findV      clusters: the slices of all rows, spread over the device, first leave their maximum and sum in memory that
//              comes from the caller's allocator, and the second launch finds them there. (Without that memory the slices
//              could leave them in the result, but not where the result is x itself.) From sm_90 on the second launch may
//              begin beside the first: its blocks ask for their part of x, and wait for the first launch's end before they
//              look for partials. No block of the first waits for any. V granules per thread at once.
// Rows may start anywhere and have any length. Loads are always of whole granules: at a row's ends together with
// elements of its neighbours, which count as -inf, and only at the ends of the tensor element by element. Where the
// result is aligned otherwise than x, lanes complete each other's stores in find; in cluster, which has no register
// left for that, results are stored by element. cluster is for rows of which every thread has all its granules, and for
// few rows; others are softmax_staged.cu's, which has the figures of both.
//
// Measured on an H200, cold L2, share of a copy of the same bytes, beside pipeline in softmax.cu. bf16: 16384 x 16384 0.97
// by clusters of two (0.87), 8192 x 32768 0.94 (0.89); f32: 8192 x 32768 0.98 (0.90), 4096 x 65536 0.95 (0.94), 1024 x
// 262144 0.57, because a block of 512 threads is alone on its multiprocessor. 21183 x 12672 bf16 0.85. Rejected: to skip
// the granules behind a row's end, which cost rows of 16384 four percent of their speed.
// A few long rows in two launches, two blocks to a multiprocessor, beside three and no overlap: 1 x 2^20 bf16 0.58 (0.45),
// f32 0.50 (0.46); 1 x 2^24 bf16 0.57 (0.56), f32 0.57 (0.55); 8 x 2^21 bf16 0.61 (0.59), f32 0.57 (0.56). In find a second
// chunk under way while one is stored does not fit the registers of two blocks; where it did (one dtype, no rows that lie
// otherwise) those rows took 0.64 and 0.66.
#include "chunk.cuh"
#include "ptx/cluster.cuh"
#include "ptx/grid.cuh"

// Threads that a block is declared to have; it has at most 512. It is the registers of a thread that are meant: on
// sm_90 80, so that three blocks of 256 fit a multiprocessor; elsewhere, where less than 128 would spill, 128.
#if __CUDA_ARCH__ == 900
constexpr int BOUND = 768;
#else
constexpr int BOUND = 512;
#endif
constexpr int V = 8;  // granules per thread
constexpr int SPLIT_THREADS = 256;
constexpr int MAX_PARTIALS = 256;  // warps of a cluster

template <class In, class Out> __device__ __forceinline__ void softmax_cluster(const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    constexpr int E = lanes_of<In>;
    // Halves stay as they were loaded, at half the registers, and are widened and exponentiated a second time; the
    // others make place for their exponentials.
    constexpr bool Keep = !is_half<In>;
    alignas(16) __shared__ Partial<C> partials[2][MAX_PARTIALS];  // [round][block of the cluster, warp]
    __shared__ uint64_t mailbox_state;
    const ptx::Mailbox mailbox = {&mailbox_state};
    const uint32_t blocks = ptx::cluster_blocks(), rank = ptx::cluster_rank();
    const uint32_t warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (blocks > 1) mailbox.open();

    uint32_t parity = 0;
    for (uint64_t index = blockIdx.x / blocks; index < p.rows; index += gridDim.x / blocks) {
        if (blocks > 1) {
            if (threadIdx.x == 0) mailbox.expect(blocks * warps * sizeof(Partial<C>));
            ptx::cluster_arrive();
        }
        const auto row = row_at<In, Out, int>(p, index);
        const bool edge = row.at_edge(p.x_low, p.x_high);
        int granule = rank * V * blockDim.x + threadIdx.x;
        Granule raw[V];
#pragma unroll
        for (int i = 0; i < V; ++i) raw[i] = row.load_around(granule + i * blockDim.x, edge);
        granule = forget(granule);
        auto mine = Partial<C>::empty();
        C v[Keep ? V : 1][E];
#pragma unroll
        for (int i = 0; i < V; ++i) {
            auto& x = v[Keep ? i : 0];
            row.complete(granule + i * blockDim.x, edge, raw[i]);
            widen_granule<In, Out>(raw[i], x);
#pragma unroll
            for (int k = 0; k < E; ++k) mine.max = larger(mine.max, x[k]);
        }
        mine.max = reduce_lanes(mine.max, Max(), 32);
        const C base = mine.base();
#pragma unroll
        for (int i = 0; i < V; ++i) {
            auto& x = v[Keep ? i : 0];
            if (!Keep) widen_granule<In, Out>(forget(raw[i]), x);
#pragma unroll
            for (int k = 0; k < E; ++k) {
                const C shifted = x[k] - base, exponential = M::exp(shifted);
                mine.sum += exponential;
                x[k] = p.log ? shifted : exponential;
            }
        }
        mine.sum = reduce_lanes(mine.sum, Sum(), 32);

        // Every warp puts its partial into the shared memory of every block of the cluster, and when all have come
        // adds up all of them for itself.
        auto* slots = partials[parity];
        if (blocks == 1) {
            if (lane == 0) slots[warp] = mine;
            __syncthreads();
        } else {
            ptx::cluster_wait();  // until the others have announced what they expect
            uint32_t words[sizeof(mine) / 4];
            __builtin_memcpy(words, &mine, sizeof(mine));
            if (lane < blocks) mailbox.send<sizeof(mine) / 4>(slots + rank * warps + warp, lane, words);
            mailbox.wait(parity);
        }
        Finish<Out> finish(merge_all<M>(slots, blocks * warps), p.log);
        if (Keep) finish.rebase(mine);
        granule = forget(granule);
#pragma unroll
        for (int i = 0; i < V; ++i) {
            auto& x = v[Keep ? i : 0];
            if (!Keep) widen_granule<In, Out>(forget(raw[i]), x);
            Pack<Out, E> pack;
#pragma unroll
            for (int k = 0; k < E; ++k) pack.v[k] = Keep ? finish.scaled(x[k]) : finish(x[k]);
            row.store(granule + i * blockDim.x, pack, p.out_access);
        }
        parity ^= 1;
    }
}

// ----------------------------------------------------------------------------------------------- split

// The slices of a row have equally many chunks of V granules per thread; those at its end may lie beyond it.
template <class In, class Out, int V> struct Slice {
    Row<In, Out, int64_t> row;
    int64_t first;
    int64_t chunks;
    bool edge;

    __device__ __forceinline__ Slice(const SoftmaxParams<INLINE_RANK>& p, uint64_t index)
        : row(row_at<In, Out, int64_t>(p, index / p.slices)), chunks(p.slots) {
        first = static_cast<int64_t>(index % p.slices) * chunks * V * blockDim.x + threadIdx.x;
        edge = row.at_edge(p.x_low, p.x_high);
    }
    __device__ __forceinline__ int64_t granule(int64_t chunk, int i) const {
        return first + (chunk * V + i) * blockDim.x;
    }
    __device__ __forceinline__ void load(int64_t chunk, Granule (&raw)[V]) const {
#pragma unroll
        for (int i = 0; i < V; ++i) raw[i] = row.load_around(granule(chunk, i), edge);
    }
    __device__ __forceinline__ void complete(int64_t chunk, Granule (&raw)[V]) const {
#pragma unroll
        for (int i = 0; i < V; ++i) row.complete(granule(chunk, i), edge, raw[i]);
    }
};

template <class In, class Out, int V> __device__ __forceinline__ void softmax_leave(
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
        Granule raw[V], next[V] = {};
        slice.load(0, raw);
        for (int64_t c = 0; c < slice.chunks; ++c) {
            if (c + 1 < slice.chunks) slice.load(c + 1, next);
            slice.complete(c, raw);
            take_chunk<In, Out>(mine, raw);
#pragma unroll
            for (int i = 0; i < V; ++i) raw[i] = next[i];
        }
        mine = reduce_block(mine, Merge<M>(), Partial<C>::empty(), partials[parity]);
        if (threadIdx.x == 0) reinterpret_cast<Partial<C>*>(p.partials)[index] = mine;
        parity ^= 1;
    }
}

template <class In, class Out, int V> __device__ __forceinline__ void softmax_find(
    const SoftmaxParams<INLINE_RANK>& p) {
    using M = Math<Out>;
    using C = typename M::C;
    for (uint64_t i = blockIdx.x; i < p.rows * p.slices; i += gridDim.x) {
        // Backwards: what was read last is still in the caches.
        const uint64_t index = p.rows * p.slices - 1 - i;
        const Slice<In, Out, V> slice(p, index);
        Granule raw[V];
        slice.load(slice.chunks - 1, raw);
        // The launch before has written nothing but partials, so that x could be asked for already; but where the result
        // is x, it must have read it.
        ptx::wait_for_grid_before();
        const auto* partials = reinterpret_cast<const Partial<C>*>(p.partials) + index / p.slices * p.slices;
        const Finish<Out> finish(merge_all<M>(partials, p.slices), p.log);
        for (int64_t c = slice.chunks - 1; c >= 0; --c) {
            if (c + 1 < slice.chunks) slice.load(c, raw);
            slice.complete(c, raw);
#pragma unroll
            for (int i = 0; i < V; ++i) {
                C x[lanes_of<In>];
                widen_granule<In, Out>(raw[i], x);
                slice.row.store_across(slice.granule(c, i), finish_pack(finish, x), p.out_access);
            }
        }
    }
}

// Two blocks of the launches to a multiprocessor: those of the second begin beside those of the first.
#define KERNEL(THREADS, BLOCKS, NAME)                             \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) \
        NAME(const __grid_constant__ SoftmaxParams<INLINE_RANK> p)
#define EXPORT(IN, OUT, NAME)                                                         \
    KERNEL(BOUND, 1, softmax_cluster_##NAME) { softmax_cluster<IN, OUT>(p); }         \
    KERNEL(SPLIT_THREADS, 2, softmax_leave2_##NAME) { softmax_leave<IN, OUT, 2>(p); } \
    KERNEL(SPLIT_THREADS, 2, softmax_find2_##NAME) { softmax_find<IN, OUT, 2>(p); }   \
    KERNEL(SPLIT_THREADS, 2, softmax_leave8_##NAME) { softmax_leave<IN, OUT, 8>(p); } \
    KERNEL(SPLIT_THREADS, 2, softmax_find8_##NAME) { softmax_find<IN, OUT, 8>(p); }

EXPORT(f16, f16, f16)
EXPORT(bf16, bf16, bf16)
EXPORT(f32, f32, f32)
EXPORT(f64, f64, f64)
EXPORT(f16, f32, f16_f32)
EXPORT(bf16, f32, bf16_f32)
