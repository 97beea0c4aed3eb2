// targets: 75 80 90 100 120 ptx:75
//
// Gradients of softmax and log_softmax with respect to x, for rows whose elements lie side by side: from dy, the
// gradient of the result y, y * (dy - sum(y * dy)) or dy - exp(y) * sum(dy), in float32 (float64 for float64),
// rounded once.
//
// Per element: a multiply-add or two, and one exponential for log_softmax; two reads and one write, until a row is too
// long for the variant `long`, which then reads part of it twice.
//
// Variants, as chosen in src/cuda/plan/softmax_backward/mod.rs by row length:
//   warpVxR   a group of 1 to 32 lanes keeps R rows at a time in registers, V 16-byte granules of each input per lane
//             and row. All of them are loaded before the first is used.
//   cluster   a cluster of 1 to 8 blocks keeps one row in registers; every block sends its sum to the others' shared
//             memory.
//   long      the same, for any length: the chunks before the last are read again for the results, from the last to
//             the first.
//   leave, find   two launches for few long rows, which clusters would leave most of the GPU idle for: the first leaves
//             the sums of a row's slices in memory, the second adds them up and reads the slices again.
// Rows may start anywhere and have any length: a row's partial first and last granules move by element, as do those
// of an operand that lies otherwise than grad. What is better for many such rows: softmax_backward_short.cu for few elements,
// softmax_backward_staged.cu for many, softmax_backward_ragged.cu between them.
//
// Measured on an H200, cold L2, share of a copy of the same bytes: bf16 and f32, N = 1024 to 65536, 0.96 to 1.03; 781 bf16
// 0.89, 4 x 131072 0.71 and 0.52.

#include "ptx/cluster.cuh"
#include "softmax_backward.cuh"

constexpr int WARP_THREADS = 128;
constexpr int BLOCK_THREADS = 512;  // at most
constexpr int BLOCK_VECTORS = 4, LONG_VECTORS = 6;

// ------------------------------------------------------------------------------- rows kept in registers

// Granules of grad and output: V of each per thread and row, `members` apart. They stay as they were loaded, which for
// halves takes half of the registers, and are widened anew for every use.
template <class In, class Out, class Index, int V> struct Granules {
    using G = Gradient<In, Out>;
    using C = typename G::C;
    static constexpr int E = lanes_of<In>;
    Granule grad[V], output[V];

    __device__ __forceinline__ void load(const GradientRow<In, Out, Index>& row, Index first, int members,
                                         uint32_t output_access) {
#pragma unroll
        for (int i = 0; i < V; ++i) row.load(first + i * members, output_access, grad[i], output[i]);
    }
    __device__ __forceinline__ void complete(const GradientRow<In, Out, Index>& row, Index first, int members,
                                             uint32_t output_access) {
        if (!row.ragged(output_access)) return;
#pragma unroll
        for (int i = 0; i < V; ++i) row.complete(first + i * members, output_access, grad[i], output[i]);
    }
    __device__ __forceinline__ void take(const G& gradient, C (&sum)[E]) const {
#pragma unroll
        for (int i = 0; i < V; ++i) {
            C g[E], y[E];
            widen_granule<In, In>(grad[i], g);
            widen_granule<In, In>(output[i], y);
            gradient.take(g, y, sum);
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
            widen_granule<In, In>(is_half<In> ? forget(grad[i]) : grad[i], g);
            widen_granule<In, In>(is_half<In> ? forget(output[i]) : output[i], y);
            row.store(first + i * members, gradient.results(g, y, sums), out_access);
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
        Granules<In, Out, int, V> granules[R];
        C sum[R];
#pragma unroll
        for (int r = 0; r < R; ++r) {
            row[r] = GradientRow<In, Out, int>(p, tile * (groups * R) + group + r * groups);
            granules[r].load(row[r], lane, lanes, p.output_access);
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
            granules[r].complete(row[r], lane, lanes, p.output_access);
            C sums[lanes_of<In>] = {};
            granules[r].take(gradient, sums);
            sum[r] = total(sums);
        }
#pragma unroll
        for (int r = 0; r < R; ++r) sum[r] = reduce_lanes(sum[r], Sum(), lanes);
#pragma unroll
        for (int r = 0; r < R; ++r) granules[r].store(row[r], lane, lanes, p.out_access, gradient, sum[r]);
    }
}

// Whose sums make a row whole: the blocks' of a cluster; or those that one launch leaves in memory and the next finds.
enum class Share { cluster, leave, find };

// A row to `slices` blocks, a slice of it to each, in one chunk or several.
template <class In, class Out, class Index, int V, Share S>
__device__ __forceinline__ void softmax_backward_slices(const BackwardParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using C = typename Gradient<In, Out>::C;
    struct alignas(8) Letter {
        C sum;
    };
    __shared__ C scratch[2][32];
    __shared__ Letter letters[2][16];  // [round][block of the cluster]
    __shared__ uint64_t mailbox_state;
    const Gradient<In, Out> gradient = {p.log != 0};
    const ptx::Mailbox mailbox = {&mailbox_state};
    const uint32_t blocks = S == Share::cluster ? ptx::cluster_blocks() : 1;
    const int members = blockDim.x, last = sizeof(Index) == 8 ? p.chunks - 1 : 0;
    const Index chunk = V * members;
    if (blocks > 1) mailbox.open();
    uint32_t parity = 0;
    for (uint64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        const uint64_t index = p.slices == 1 ? tile : tile / p.slices;
        const uint32_t rank = tile - index * p.slices;
        if (blocks > 1) {
            if (threadIdx.x == 0) mailbox.expect(blocks * sizeof(Letter));
            ptx::cluster_arrive();
        }
        const GradientRow<In, Out, Index> row(p, index);
        const Index begin = static_cast<Index>(rank) * (last + 1) * chunk + threadIdx.x;
        Granules<In, Out, Index, V> granules;
        C sum = 0;
        if constexpr (S == Share::find) {
            const auto* partials = reinterpret_cast<const C*>(p.partials) + index * p.slices;
            for (uint32_t i = threadIdx.x; i < p.slices; i += members) sum += partials[i];
            granules.load(row, begin + last * chunk, members, p.output_access);
            granules.complete(row, begin + last * chunk, members, p.output_access);
        } else {
            C sums[lanes_of<In>] = {};
            for (int c = 0; c <= last; ++c) {
                granules.load(row, begin + c * chunk, members, p.output_access);
                granules.complete(row, begin + c * chunk, members, p.output_access);
                granules.take(gradient, sums);
            }
            sum = total(sums);
        }
        sum = reduce_block(sum, Sum(), C(0), scratch[parity]);
        if constexpr (S == Share::leave) {
            if (threadIdx.x == 0) reinterpret_cast<C*>(p.partials)[tile] = sum;
        }
        if (blocks > 1) {
            ptx::cluster_wait();  // until the others have announced what they expect
            if (threadIdx.x < blocks) {
                const Letter letter = {sum};
                uint32_t words[sizeof(Letter) / 4];
                __builtin_memcpy(words, &letter, sizeof(letter));
                mailbox.send<sizeof(Letter) / 4>(&letters[parity][rank], threadIdx.x, words);
            }
            mailbox.wait(parity);
            sum = 0;
            for (uint32_t b = 0; b < blocks; ++b) sum += letters[parity][b].sum;
        }
        parity ^= 1;
        if constexpr (S == Share::leave) continue;
        // Backwards: the last chunk is still in registers, and those before it in the caches.
        granules.store(row, forget(begin + last * chunk), members, p.out_access, gradient, sum);
        for (int c = last - 1; c >= 0; --c) {
            granules.load(row, begin + c * chunk, members, p.output_access);
            granules.complete(row, begin + c * chunk, members, p.output_access);
            granules.store(row, begin + c * chunk, members, p.out_access, gradient, sum);
        }
    }
}

// -------------------------------------------------------------------------------------------- exported

#define KERNEL(THREADS, BLOCKS, NAME)                             \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) \
        softmax_backward_##NAME(const __grid_constant__ BackwardParams<INLINE_RANK> p)

// `cluster` has two blocks on a multiprocessor at the least, so that one row is loaded while another is stored.
#define SLICES(BLOCKS, VARIANT, IN, OUT, NAME, INDEX, V, SHARE) \
    KERNEL(BLOCK_THREADS, BLOCKS, VARIANT##_##NAME) { softmax_backward_slices<IN, OUT, INDEX, V, Share::SHARE>(p); }
#define EXPORT(IN, OUT, NAME)                                                            \
    KERNEL(WARP_THREADS, 1, warp1x2_##NAME) { softmax_backward_warp<IN, OUT, 1, 2>(p); } \
    KERNEL(WARP_THREADS, 1, warp2x1_##NAME) { softmax_backward_warp<IN, OUT, 2, 1>(p); } \
    KERNEL(WARP_THREADS, 1, warp4x1_##NAME) { softmax_backward_warp<IN, OUT, 4, 1>(p); } \
    SLICES(2, cluster, IN, OUT, NAME, int, BLOCK_VECTORS, cluster)                       \
    SLICES(1, long, IN, OUT, NAME, int64_t, LONG_VECTORS, cluster)                       \
    SLICES(1, leave, IN, OUT, NAME, int64_t, LONG_VECTORS, leave)                        \
    SLICES(1, find, IN, OUT, NAME, int64_t, LONG_VECTORS, find)

EXPORT(f16, f16, f16)
EXPORT(bf16, bf16, bf16)
EXPORT(f32, f32, f32)
EXPORT(f64, f64, f64)
EXPORT(f32, f16, f32_f16)
EXPORT(f32, bf16, f32_bf16)
EXPORT(f16, f32, f16_f32)
EXPORT(bf16, f32, bf16_f32)
