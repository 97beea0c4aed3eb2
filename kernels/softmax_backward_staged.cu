// targets: 75 80 90 100 120 ptx:75
//
// Gradients of softmax and log_softmax for long rows of which grad, output and result do not begin or end alike with 16
// aligned bytes. The arithmetic is that of softmax_backward.cu.
//
// Per element: a multiply-add or two, and one exponential for log_softmax; two reads and one write.
//
// As in softmax_staged.cu a row waits in the shared memory of a block, or of the 2 to 8 blocks of a cluster (sm_90): whole
// granules of each input as it lies (cp.async), by elements only at the row's ends. From there a thread reads what
// aligned accesses of the result take, twice: for the sum, and for the results. So the three may lie in any way to each
// other, and their types may differ. It is also for long rows that lie alike, but whose ends are elements: a cluster's
// registers are full only if every thread has as many granules.
//
// Measured on an H200, cold L2, share of a copy of the same bytes: grad and output sliced from rows of 8195, result
// contiguous, 16384 x 8192 bf16 0.76 (softmax_backward_ragged.cu 0.52), f32 0.95 (0.87); 8192 x 25001 bf16 0.87, f32 0.92;
// 4096 x 50257, all alike, bf16 0.94 (cluster in softmax_backward.cu 0.92), f32 0.95 (0.92). With all alike and aligned 32768
// x 4096 bf16 0.99 (1.00), f32 1.00 (1.03). What of halves it loses otherwise is the moving of words in registers; to keep
// them there for the second use was no faster (bf16 0.75), and slower for f32 (0.79), as fewer blocks fit.

#include "async_copy.cuh"
#include "ptx/cluster.cuh"
#include "softmax_backward.cuh"
#include "staged.cuh"

constexpr int THREADS = 512;     // at most
constexpr int MAX_CLUSTER = 16;  // blocks

// Stages the row's elements from `first` on, `count` of them, and says where the first has come to lie.
template <class T>
__device__ __forceinline__ const T* stage(const T* row, int length, int first, int count, uint4* slots) {
    constexpr int E = lanes_of<T>;
    const int past = static_cast<uint32_t>(reinterpret_cast<uint64_t>(row + first)) % 16 / sizeof(T);
    const int granules = (past + count + E - 1) / E;
    for (int i = threadIdx.x; i < granules; i += blockDim.x) {
        const int at = first - past + i * E;
        if (at >= 0 && at <= length - E) {
            copy_async(slots + i, row + at);
        } else {
            // All of them at once: one after the other took a third of the kernel's time.
            Pack<T, E> pack;
#pragma unroll
            for (int k = 0; k < E; ++k) {
                const bool inside = at + k >= 0 && at + k < length;
                pack.v[k] = inside ? row[at + k] : convert<T>(0.0f);
            }
            store_slot(slots + i, Granule::of(pack));
        }
    }
    return reinterpret_cast<const T*>(slots) + past;
}

template <class In, class Out>
__device__ __forceinline__ void softmax_backward_staged(const BackwardParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using C = typename Gradient<In, Out>::C;
    constexpr int F = lanes_of<Out>;
    struct alignas(8) Letter {
        C sum;
    };
    extern __shared__ uint4 slots[];  // of grad, then of output: for a slice, and one for where it begins in a granule
    __shared__ C scratch[32];
    __shared__ Letter letters[MAX_CLUSTER];
    __shared__ uint64_t mailbox_state;
    const ptx::Mailbox mailbox = {&mailbox_state};
    const Gradient<In, Out> gradient = {p.log != 0};
    const uint32_t blocks = ptx::cluster_blocks(), rank = ptx::cluster_rank();
    if (blocks > 1) {
        mailbox.open();
        if (threadIdx.x == 0) mailbox.expect(blocks * sizeof(Letter));
        ptx::cluster_arrive();
    }

    // This block's slice: `count` accesses of the result, `first` the first element.
    const GradientRow<In, Out, int> row(p, blockIdx.x / blocks);
    const Accesses<Out> accesses(row.out, row.length);
    const int slice = p.chunks, begin = rank * slice, left = accesses.count - begin;
    const int count = left < 0 ? 0 : left < slice ? left : slice, first = accesses.head + begin * F;
    const In *grad = reinterpret_cast<const In*>(slots), *output = grad;
    if (count > 0) {
        grad = stage(row.grad, row.length, first, count * F, slots);
        output = stage(row.output, row.length, first, count * F, slots + slice * F / lanes_of<In> + 1);
    }
    commit_copies();
    const int lone = rank == 0 ? accesses.lone(threadIdx.x) : accesses.NONE;
    C lone_grad[1] = {0}, lone_output[1] = {0}, lone_sum[1] = {0};
    if (lone != accesses.NONE) {
        lone_grad[0] = widen<In>(row.grad[lone]);
        lone_output[0] = widen<In>(row.output[lone]);
        gradient.take(lone_grad, lone_output, lone_sum);
    }
    wait_for_copies(0);
    __syncthreads();

    const auto for_accesses = [&](auto f) {
        for (int i = threadIdx.x; i < count; i += blockDim.x) {
            uint32_t word[F * sizeof(In) / 4];
            C g[F], y[F];
            read_staged<In, F>(grad + i * F, word);
            widen_words<In, In>(word, g);
            read_staged<In, F>(output + i * F, word);
            widen_words<In, In>(word, y);
            f(i, g, y);
        }
    };
    C sums[F] = {};
    for_accesses([&](int, const C(&g)[F], const C(&y)[F]) { gradient.take(g, y, sums); });
    C sum = lone_sum[0];
#pragma unroll
    for (C e : sums) sum += e;
    sum = reduce_block(sum, Sum(), C(0), scratch);
    if (blocks > 1) {
        ptx::cluster_wait();  // until the others have announced what they expect
        if (threadIdx.x < blocks) {
            const Letter letter = {sum};
            uint32_t words[sizeof(Letter) / 4];
            __builtin_memcpy(words, &letter, sizeof(letter));
            mailbox.send<sizeof(Letter) / 4>(&letters[rank], threadIdx.x, words);
        }
        mailbox.wait(0);
        sum = 0;
        for (uint32_t b = 0; b < blocks; ++b) sum += letters[b].sum;
    }
#pragma unroll
    for (C& e : sums) e = sum;
    Out* const out = row.out + first;
    for_accesses([&](int i, const C(&g)[F], const C(&y)[F]) { store_pack(out + i * F, gradient.results(g, y, sums)); });
    if (lone != accesses.NONE) {
        lone_sum[0] = sum;
        row.out[lone] = gradient.results(lone_grad, lone_output, lone_sum).v[0];
    }
}

#define EXPORT(IN, OUT, NAME)                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                                    \
        softmax_backward_staged_##NAME(const __grid_constant__ BackwardParams<INLINE_RANK> p) { \
        softmax_backward_staged<IN, OUT>(p);                                                    \
    }

EXPORT(f16, f16, f16)
EXPORT(bf16, bf16, bf16)
EXPORT(f32, f32, f32)
EXPORT(f64, f64, f64)
EXPORT(f32, f16, f32_f16)
EXPORT(f32, bf16, f32_bf16)
EXPORT(f16, f32, f16_f32)
EXPORT(bf16, f32, bf16_f32)
