// targets: 75 80 90 100 120 ptx:75
//
// Gradients of softmax and log_softmax for long rows of which grad, output and result are aligned differently. The
// arithmetic is that of softmax_backward.cu; two reads and one write.
//
// As in softmax_smem.cu a row is in the shared memory of a block, or of the 2 to 16 blocks of a cluster (sm_90):
// whole vectors of each input with the input's own alignment (cp.async), single elements of head and tail. A thread
// reads from there the elements of its aligned stores, twice: for the sum and for the results. So alignments and dtypes
// of the three tensors may differ. Blocks of a cluster exchange sums through distributed shared memory.
//
// The kernel has no variants; src/cuda/plan/softmax_backward/choose.rs chooses it and the cluster size.
// Measurements: docs/measurements/softmax_backward_smem.md

#include "async_copy.cuh"
#include "exchange.cuh"
#include "softmax_backward.cuh"
#include "shared_reads.cuh"

constexpr int THREADS = 512;     // at most
constexpr int MAX_CLUSTER = 16;  // blocks

// The vectors around `count` elements of a row from `first` on, on their way to shared memory.
template <class T> struct SliceCopy {
    static constexpr int E = lanes_of<T>;
    const T* row;
    Vectors<T, int> all;
    int past, begin, vectors;  // elements of the first vector before the slice; its index; all
    T* to;

    __device__ __forceinline__ SliceCopy(const T* row, int length, int first, int count, uint4* shared)
        : row(row),
          all(row, length),
          past(offset_in_vector(row + first)),
          begin(first - past),
          vectors((past + count + E - 1) / E),
          to(reinterpret_cast<T*>(shared)) {}
    // Starts the copies of whole vectors of the row.
    __device__ __forceinline__ void start() const {
        for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
            if (all.whole(begin + i * E)) copy_async(reinterpret_cast<uint4*>(to) + i, row + begin + i * E);
        }
    }
    // An element of the first or last vector where it is no whole vector of the row: from where, and to where.
    struct Edge {
        const T* from;
        T* to;
    };
    __device__ __forceinline__ Edge edge(bool last, int element) const {
        const int vector = last ? vectors - 1 : 0, at = begin + vector * E, i = at + element;
        const bool single = (vectors > 1 || !last) && !all.whole(at) && i >= 0 && i < all.length;
        return {single ? row + i : nullptr, to + vector * E + element};
    }
    __device__ __forceinline__ const T* first() const { return to + past; }
};

template <class In, class Out>
__device__ __forceinline__ void softmax_backward_smem(const BackwardParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using C = typename Gradient<In, Out>::C;
    constexpr int F = lanes_of<Out>;
    extern __shared__ uint4
        shared[];  // of grad, then of output: a slice and one vector more, since slices may be misaligned
    __shared__ C scratch[32];
    __shared__ Total<C> totals[MAX_CLUSTER];
    __shared__ uint64_t exchange_barrier;
    const Gradient<In, Out> gradient = {p.log != 0};
    const ClusterExchange<Total<C>> exchange(&exchange_barrier);
    const uint32_t blocks = exchange.blocks, rank = ptx::cluster_rank();
    exchange.open_and_announce(1);

    // This block's slice: `count` accesses of the result, `first` the first element.
    const GradientRow<In, Out, int> row(p, blockIdx.x / blocks);
    const HeadAndTail<F> accesses = head_and_tail_of(row.out, row.length);
    const int slice = p.slice_size, begin = rank * slice, left = accesses.vectors - begin;
    const int count = left < 0 ? 0 : left < slice ? left : slice, first = accesses.head + begin * F;
    constexpr int E = lanes_of<In>;
    const SliceCopy<In> of_grad(row.grad, row.length, first, count * F, shared);
    const SliceCopy<In> of_output(row.output, row.length, first, count * F, shared + slice * F / E + 1);
    if (count > 0) {
        of_grad.start();
        of_output.start();
    }
    commit_copies();
    // Elements that no copy has, behind all copies, which would wait for them, and all at once.
    const int single = rank == 0 ? accesses.single_in_row(threadIdx.x) : accesses.NO_SINGLE;
    In single_elements[2] = {convert<In>(0.0f), convert<In>(0.0f)};
    if (single != accesses.NO_SINGLE) {
        single_elements[0] = row.grad[single];
        single_elements[1] = row.output[single];
    }
    if (count > 0 && threadIdx.x < 4 * E) {
        const bool last = threadIdx.x / E % 2;
        const int element = threadIdx.x % E;
        const auto edge = threadIdx.x < 2 * E ? of_grad.edge(last, element) : of_output.edge(last, element);
        if (edge.from) *edge.to = *edge.from;
    }
    C single_grad[1] = {widen<In>(single_elements[0])}, single_output[1] = {widen<In>(single_elements[1])};
    C single_sum[1] = {0};
    gradient.accumulate(single_grad, single_output, single_sum);
    const In *const grad = of_grad.first(), *const output = of_output.first();
    wait_for_copies(0);
    __syncthreads();

    const auto for_accesses = [&](auto f) {
        for (int i = threadIdx.x; i < count; i += blockDim.x) {
            uint32_t word[F * sizeof(In) / 4];
            C g[F], y[F];
            read_unaligned<In, F>(grad + i * F, word);
            widen_words<In, In>(word, g);
            read_unaligned<In, F>(output + i * F, word);
            widen_words<In, In>(word, y);
            f(i, g, y);
        }
    };
    C sums[F] = {};
    for_accesses([&](int, const C(&g)[F], const C(&y)[F]) { gradient.accumulate(g, y, sums); });
    C sum = single_sum[0];
#pragma unroll
    for (C e : sums) sum += e;
    sum = add_blocks(exchange, totals, rank, reduce_block(sum, Sum(), C(0), scratch), 0);
#pragma unroll
    for (C& e : sums) e = sum;
    Out* const out = row.out + first;
    for_accesses([&](int i, const C(&g)[F], const C(&y)[F]) { store_pack(out + i * F, gradient.results(g, y, sums)); });
    if (single != accesses.NO_SINGLE) {
        single_sum[0] = sum;
        row.out[single] = gradient.results(single_grad, single_output, single_sum).v[0];
    }
}

#define EXPORT(IN, OUT, NAME)                                                                 \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                  \
        softmax_backward_smem_##NAME(const __grid_constant__ BackwardParams<INLINE_RANK> p) { \
        softmax_backward_smem<IN, OUT>(p);                                                    \
    }

EXPORT(f16, f16, f16)
EXPORT(bf16, bf16, bf16)
EXPORT(f32, f32, f32)
EXPORT(f64, f64, f64)
EXPORT(f32, f16, f32_f16)
EXPORT(f32, bf16, f32_bf16)
