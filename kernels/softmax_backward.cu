// targets: 75 80 90 100 120 ptx:75
//
// Gradients of softmax and log_softmax for rows whose elements are contiguous: from dy, the gradient of the result y,
// they are y * (dy - sum(y * dy)) or dy - exp(y) * sum(dy), in float32 (float64 for float64), rounded once. Both inputs
// are read once in vectors of 16 bytes; `long` and `combine` read some of them twice.
//
// Variants, chosen by row length in src/cuda/plan/softmax_backward/choose.rs:
//   warpVxR           R rows at a time in the registers of a group of 1 to 32 lanes, V vectors of each input a lane.
//   cluster           a row in the registers of 1 to 16 blocks, which exchange sums through distributed shared memory.
//   buffered          the same for longer rows, or many with odd ends: batches before the last stay in shared memory.
//   long              the same for any length: batches before the last are read again, last to first.
//   partial, combine  two launches for few long rows: the first writes the sums of slices to the workspace.
// A row may begin anywhere: the elements before and behind its whole vectors are loaded and stored one by one, and so
// is an operand that is aligned differently from grad.
// Measurements: docs/measurements/softmax_backward.md

#include "async_copy.cuh"
#include "exchange.cuh"
#include "softmax_backward.cuh"

constexpr int WARP_THREADS = 128;
constexpr int BLOCK_THREADS = 512;  // at most
constexpr int BLOCK_VECTORS = 4, BUFFERED_VECTORS = 2, LONG_VECTORS = 6;

// ---------------------------------------------------------------------------------- rows in registers

// V vectors of grad and of output, `members` apart, of one row and thread. They stay in their dtype, which for halves
// takes half of the registers, and are widened anew for every use.
template <class In, class Out, class Index, int V> struct ThreadVectors {
    using G = Gradient<In, Out>;
    using C = typename G::C;
    static constexpr int E = lanes_of<In>;
    Vector grad[V], output[V];

    __device__ __forceinline__ void load(const GradientRow<In, Out, Index>& row, Index first, int members,
                                         uint32_t output_access) {
#pragma unroll
        for (int i = 0; i < V; ++i) row.load(first + i * members, output_access, grad[i], output[i]);
    }
    __device__ __forceinline__ void complete(const GradientRow<In, Out, Index>& row, Index first, int members,
                                             uint32_t output_access) {
        if (!row.incomplete(output_access)) return;
#pragma unroll
        for (int i = 0; i < V; ++i) row.complete(first + i * members, output_access, grad[i], output[i]);
    }
    __device__ __forceinline__ void accumulate(const G& gradient, C (&sum)[E]) const {
#pragma unroll
        for (int i = 0; i < V; ++i) {
            C g[E], y[E];
            widen_vector<In, In>(grad[i], g);
            widen_vector<In, In>(output[i], y);
            gradient.accumulate(g, y, sum);
        }
    }
    __device__ __forceinline__ void store(const GradientRow<In, Out, Index>& row, Index first, int members,
                                          uint32_t out_access, const G& gradient, C sum) const {
        C sums[E];
#pragma unroll
        for (int k = 0; k < E; ++k) sums[k] = sum;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            C g[E], y[E];
            widen_vector<In, In>(is_half<In> ? opaque(grad[i]) : grad[i], g);
            widen_vector<In, In>(is_half<In> ? opaque(output[i]) : output[i], y);
            row.store(first + i * members, gradient.results(g, y, sums), out_access);
        }
    }
};

// The batches of a thread before its last, in shared memory: `count` vectors of grad and of output, `members` apart in
// the row. A thread reads only its own copies.
template <class In, class Out> struct BufferedVectors {
    using G = Gradient<In, Out>;
    using C = typename G::C;
    using Row = GradientRow<In, Out, int>;
    static constexpr int E = lanes_of<In>;
    const Row& row;
    const G& gradient;
    uint4* own;
    int first, members, count;
    uint32_t output_access;

    __device__ __forceinline__ uint4* grad(int i) const { return own + 2 * i * members; }
    __device__ __forceinline__ uint4* output(int i) const { return grad(i) + members; }

    __device__ __forceinline__ void copy() const {
#pragma unroll 2
        for (int i = 0; i < count; ++i) {
            const int at = row.first(first + i * members);
            const bool whole = row.whole(at), output_whole = whole && output_access != 0;
            if (whole) copy_async(grad(i), row.grad + at);
            if (!whole) store_shared_vector(grad(i), Vector{});
            if (output_whole) copy_async(output(i), row.output + at);
            if (!output_whole) store_shared_vector(output(i), Vector{});
        }
        commit_copies();
    }
    __device__ __forceinline__ void accumulate(C (&sum)[E]) const {
        const bool incomplete = row.incomplete(output_access);
#pragma unroll 2
        for (int i = 0; i < count; ++i) {
            Vector g = load_shared_vector(grad(i)), y = load_shared_vector(output(i));
            if (incomplete) {
                row.complete(first + i * members, output_access, g, y);
                store_shared_vector(grad(i), g);
                store_shared_vector(output(i), y);
            }
            C grads[E], outputs[E];
            widen_vector<In, In>(g, grads);
            widen_vector<In, In>(y, outputs);
            gradient.accumulate(grads, outputs, sum);
        }
    }
    __device__ __forceinline__ void store(uint32_t out_access, C sum) const {
        C sums[E];
#pragma unroll
        for (int k = 0; k < E; ++k) sums[k] = sum;
#pragma unroll 2
        for (int i = 0; i < count; ++i) {
            C grads[E], outputs[E];
            widen_vector<In, In>(load_shared_vector(grad(i)), grads);
            widen_vector<In, In>(load_shared_vector(output(i)), outputs);
            row.store(first + i * members, gradient.results(grads, outputs, sums), out_access);
        }
    }
};

template <class C, int N> __device__ __forceinline__ C total(C (&v)[N]) {
#pragma unroll
    for (int width = N / 2; width > 0; width /= 2) {
#pragma unroll
        for (int k = 0; k < width; ++k) v[k] += v[k + width];
    }
    return v[0];
}

template <class In, class Out, int V, int R>
__device__ __forceinline__ void softmax_backward_warp(const BackwardParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using C = typename Gradient<In, Out>::C;
    const Gradient<In, Out> gradient = {p.log != 0};
    const int lanes = 1 << p.lane_bits, groups = WARP_THREADS >> p.lane_bits;
    const int group = threadIdx.x >> p.lane_bits, lane = threadIdx.x & (lanes - 1);
    for (uint64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        GradientRow<In, Out, int> row[R];
        ThreadVectors<In, Out, int, V> vectors[R];
        C sum[R];
#pragma unroll
        for (int r = 0; r < R; ++r) {
            row[r] = GradientRow<In, Out, int>(p, tile * (groups * R) + group + r * groups);
            vectors[r].load(row[r], lane, lanes, p.output_access);
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
            vectors[r].complete(row[r], lane, lanes, p.output_access);
            C sums[lanes_of<In>] = {};
            vectors[r].accumulate(gradient, sums);
            sum[r] = total(sums);
        }
        reduce_lanes(sum, Sum(), lanes);
#pragma unroll
        for (int r = 0; r < R; ++r) vectors[r].store(row[r], lane, lanes, p.out_access, gradient, sum[r]);
    }
}

// `slices` blocks have a slice of a row each, in one batch of V vectors per thread or several.
template <class In, class Out, class Index, int V, Scope S, bool Keeps = false>
__device__ __forceinline__ void softmax_backward_slices(const BackwardParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using C = typename Gradient<In, Out>::C;
    __shared__ C scratch[2][32];
    __shared__ Total<C> totals[2][16];  // [round][block of the cluster]
    __shared__ uint64_t exchange_barrier;
    const Gradient<In, Out> gradient = {p.log != 0};
    const ClusterExchange<Total<C>, S> exchange(&exchange_barrier);
    extern __shared__ uint4 shared[];  // buffered: [vector of a thread][grad, output][thread]
    const int members = blockDim.x, last = Keeps || sizeof(Index) == 8 ? p.slice_size - 1 : 0;
    const Index batch = V * members;
    exchange.open();
    const auto buffered = [&](const auto& row, int begin) -> BufferedVectors<In, Out> {
        return {row, gradient, shared + threadIdx.x, begin, members, V * last, p.output_access};
    };
    uint32_t parity = 0;
    for (uint64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        const uint64_t index = p.slices == 1 ? tile : tile / p.slices;
        const uint32_t rank = tile - index * p.slices;
        exchange.announce(1);
        const GradientRow<In, Out, Index> row(p, index);
        const Index begin = static_cast<Index>(rank) * (last + 1) * batch + threadIdx.x;
        ThreadVectors<In, Out, Index, V> vectors;
        C sum = 0;
        if constexpr (S == Scope::combine) {
            const auto* partials = reinterpret_cast<const C*>(p.partials) + index * p.slices;
            for (uint32_t i = threadIdx.x; i < p.slices; i += members) sum += partials[i];
            vectors.load(row, begin + last * batch, members, p.output_access);
            vectors.complete(row, begin + last * batch, members, p.output_access);
        } else {
            C sums[lanes_of<In>] = {};
            if constexpr (Keeps) buffered(row, begin).copy();
            for (int b = Keeps ? last : 0; b <= last; ++b) {
                vectors.load(row, begin + b * batch, members, p.output_access);
                vectors.complete(row, begin + b * batch, members, p.output_access);
                vectors.accumulate(gradient, sums);
            }
            if constexpr (Keeps) {
                wait_for_copies(0);
                buffered(row, begin).accumulate(sums);
            }
            sum = total(sums);
        }
        sum = reduce_block(sum, Sum(), C(0), scratch[parity]);
        if constexpr (S == Scope::partial) {
            if (threadIdx.x == 0) reinterpret_cast<C*>(p.partials)[tile] = sum;
        }
        sum = add_blocks(exchange, totals[parity], rank, sum, parity);
        parity ^= 1;
        if constexpr (S == Scope::partial) continue;
        // Backwards: the last batch is still in registers, and the batches before it are in the caches.
        vectors.store(row, opaque(begin + last * batch), members, p.out_access, gradient, sum);
        if constexpr (Keeps) buffered(row, begin).store(p.out_access, sum);
        for (int b = Keeps ? -1 : last - 1; b >= 0; --b) {
            vectors.load(row, begin + b * batch, members, p.output_access);
            vectors.complete(row, begin + b * batch, members, p.output_access);
            vectors.store(row, begin + b * batch, members, p.out_access, gradient, sum);
        }
    }
}

// -------------------------------------------------------------------------------------------- exported

#define KERNEL(THREADS, BLOCKS, NAME)                             \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) \
        softmax_backward_##NAME(const __grid_constant__ BackwardParams<INLINE_RANK> p)

// At least two blocks of `cluster` and `buffered` share a multiprocessor, so that one row is loaded while another is
// stored.
#define SLICES(BLOCKS, VARIANT, IN, OUT, NAME, ...) \
    KERNEL(BLOCK_THREADS, BLOCKS, VARIANT##_##NAME) { softmax_backward_slices<IN, OUT, __VA_ARGS__>(p); }
#define EXPORT(IN, OUT, NAME)                                                            \
    KERNEL(WARP_THREADS, 1, warp1x2_##NAME) { softmax_backward_warp<IN, OUT, 1, 2>(p); } \
    KERNEL(WARP_THREADS, 1, warp2x1_##NAME) { softmax_backward_warp<IN, OUT, 2, 1>(p); } \
    KERNEL(WARP_THREADS, 1, warp4x1_##NAME) { softmax_backward_warp<IN, OUT, 4, 1>(p); } \
    SLICES(2, cluster, IN, OUT, NAME, int, BLOCK_VECTORS, Scope::cluster)                \
    SLICES(2, buffered, IN, OUT, NAME, int, BUFFERED_VECTORS, Scope::cluster, true)      \
    SLICES(1, long, IN, OUT, NAME, int64_t, LONG_VECTORS, Scope::cluster)                \
    SLICES(1, partial, IN, OUT, NAME, int64_t, LONG_VECTORS, Scope::partial)             \
    SLICES(1, combine, IN, OUT, NAME, int64_t, LONG_VECTORS, Scope::combine)

EXPORT(f16, f16, f16)
EXPORT(bf16, bf16, bf16)
EXPORT(f32, f32, f32)
EXPORT(f64, f64, f64)
EXPORT(f32, f16, f32_f16)
EXPORT(f32, bf16, f32_bf16)
