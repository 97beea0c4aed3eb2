// targets: 75 80 90 100 120 ptx:75
//
// Gradients of softmax and log_softmax for long rows with different alignments of grad, output and result, or with ends
// inside a 16-byte vector. The arithmetic is that of softmax_backward.cu; two reads and one write.
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

// Starts the copies of `count` elements of the row from `first` on. Returns the first element's address in shared
// memory.
template <class T>
__device__ __forceinline__ const T* copy_slice(const T* row, int length, int first, int count, uint4* shared) {
    constexpr int E = lanes_of<T>;
    const int past = offset_in_vector(row + first);
    const Vectors<T, int> all(row, length);
    const int vectors = (past + count + E - 1) / E;
    for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
        const int at = first - past + i * E;
        if (all.whole(at)) {
            copy_async(shared + i, row + at);
        } else {
            // Loads all elements at once, so that no load waits for the one before.
            store_shared_vector(shared + i, all.load_elements(row, at, 0.0f));
        }
    }
    return reinterpret_cast<const T*>(shared) + past;
}

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
    const In *grad = reinterpret_cast<const In*>(shared), *output = grad;
    if (count > 0) {
        grad = copy_slice(row.grad, row.length, first, count * F, shared);
        output = copy_slice(row.output, row.length, first, count * F, shared + slice * F / lanes_of<In> + 1);
    }
    commit_copies();
    const int single = rank == 0 ? accesses.single_in_row(threadIdx.x) : accesses.NO_SINGLE;
    C single_grad[1] = {0}, single_output[1] = {0}, single_sum[1] = {0};
    if (single != accesses.NO_SINGLE) {
        single_grad[0] = widen<In>(row.grad[single]);
        single_output[0] = widen<In>(row.output[single]);
        gradient.accumulate(single_grad, single_output, single_sum);
    }
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
