// targets: 75 80 90 100 120 ptx:75
//
// Gradients of softmax and log_softmax for short contiguous rows that are no multiple of 16 bytes (33 or 17 elements).
// The arithmetic is that of softmax_backward.cu; two reads and one write.
//
// As in softmax_short.cu a block copies its rows through shared memory in vectors of 16 bytes, and each thread has a
// row to itself. It reads grad and output from there twice, a word at a time, and writes the results over grad.
//
// The kernel has no variants; src/cuda/plan/softmax_backward/choose.rs chooses it.
// Measurements: docs/measurements/softmax_backward_short.md

#include "async_copy.cuh"
#include "softmax_backward.cuh"
#include "shared_reads.cuh"

constexpr int THREADS = 128;

template <class T> __device__ __forceinline__ void softmax_backward_short(const BackwardParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using C = typename Gradient<T, T>::C;
    constexpr int E = lanes_of<T>, U = UNIT<T>;
    extern __shared__ uint4 tile[];  // grad's vectors, then output's
    const Gradient<T, T> gradient = {p.log != 0};
    const int length = p.length;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * THREADS, left = p.rows - first;
    const int rows = left < THREADS ? static_cast<int>(left) : THREADS;
    const int elements = rows * length, vectors = elements / E;
    uint4* const outputs = tile + THREADS * length / E;
    const auto at = [&](uint64_t address) { return reinterpret_cast<T*>(address) + first * length; };
    const T *grad = at(p.grad), *output = at(p.output);
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        copy_async(tile + i, grad + i * E);
        copy_async(outputs + i, output + i * E);
    }
    T *const g = reinterpret_cast<T*>(tile), *const y = reinterpret_cast<T*>(outputs);
    for (int i = vectors * E + threadIdx.x; i < elements; i += THREADS) {
        g[i] = grad[i];
        y[i] = output[i];
    }
    commit_copies();
    wait_for_copies(0);
    __syncthreads();

    // The first and the last element of the row may share a word with a neighbouring row's.
    const bool mine = threadIdx.x < rows;
    const int begin = mine ? threadIdx.x * length : 0, end = mine ? begin + length : 0;
    const int from = (begin + U - 1) / U * U, to = end / U * U;
    const auto for_units = [&](auto f) {
        using Single = Unit<T, 1>;
        using Word = Unit<T, U>;
        if (begin < from) f(reinterpret_cast<Single*>(g + begin), reinterpret_cast<Single*>(y + begin));
#pragma unroll 4
        for (int i = from; i < to; i += U) f(reinterpret_cast<Word*>(g + i), reinterpret_cast<Word*>(y + i));
        if (from <= to && to < end) f(reinterpret_cast<Single*>(g + to), reinterpret_cast<Single*>(y + to));
    };
    C sum = 0;
    for_units([&](auto* grad, auto* output) {
        constexpr int N = sizeof(*grad) / sizeof(T);
        C wide_grad[N], wide_output[N], sums[N] = {};
        widen_unit<T>(*grad, wide_grad);
        widen_unit<T>(*output, wide_output);
        gradient.accumulate(wide_grad, wide_output, sums);
#pragma unroll
        for (C e : sums) sum += e;
    });
    for_units([&](auto* grad, auto* output) {
        constexpr int N = sizeof(*grad) / sizeof(T);
        C wide_grad[N], wide_output[N], sums[N];
        widen_unit<T>(*grad, wide_grad);
        widen_unit<T>(*output, wide_output);
#pragma unroll
        for (C& e : sums) e = sum;
        const auto results = gradient.results(wide_grad, wide_output, sums);
        __builtin_memcpy(grad, &results, sizeof(results));
    });
    __syncthreads();
    T* out = at(p.out);
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        ptx::store_global<16>(out + i * E, load_shared_vector(tile + i).word);
    }
    for (int i = vectors * E + threadIdx.x; i < elements; i += THREADS) out[i] = g[i];
}

#define EXPORT(T)                                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS)                                   \
        softmax_backward_short_##T(const __grid_constant__ BackwardParams<INLINE_RANK> p) { \
        softmax_backward_short<T>(p);                                                       \
    }

EXPORT(f16)
EXPORT(bf16)
EXPORT(f32)
