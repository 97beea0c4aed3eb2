// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax of short contiguous rows that are no multiple of 16 bytes (33 or 17 elements). The arithmetic
// is that of softmax.cu: one exponential an element, one read and one write.
//
// A block copies its rows, which are one range of memory, through shared memory in vectors of 16 bytes. In shared
// memory each thread has a row to itself: no lane is idle, and no reduction crosses threads. The row lies in the
// thread's registers; results go back the way x came. Neighbouring threads read words one row length apart. An odd
// number of halves or words has no bank conflicts, twice an odd number has two-way conflicts; rows that are multiples
// of 16 bytes are for softmax.cu.
//
// Variants, chosen in src/cuda/plan/softmax/choose/mod.rs:
//   shortW   rows that touch up to W words of 4 bytes.
// Measurements: docs/measurements/softmax_short.md
#include "async_copy.cuh"
#include "softmax.cuh"

constexpr int THREADS = 128;

// W: words of 4 bytes that a row may touch.
template <class T, int W> __device__ __forceinline__ void softmax_short(const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using M = Math<T>;
    using C = typename M::C;
    constexpr int E = lanes_of<T>, U = 4 / sizeof(T);  // elements of a vector, and of a word
    extern __shared__ uint4 tile[];
    const int length = p.length;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * THREADS, left = p.rows - first;
    const int rows = left < THREADS ? static_cast<int>(left) : THREADS;
    const T* x = reinterpret_cast<const T*>(p.x) + first * length;
    T* out = reinterpret_cast<T*>(p.out) + first * length;
    T* const shared_elements = reinterpret_cast<T*>(tile);
    uint32_t* const shared_words = reinterpret_cast<uint32_t*>(tile);
    const int elements = rows * length, vectors = elements / E;
    for (int i = threadIdx.x; i < vectors; i += THREADS) copy_async(tile + i, x + i * E);
    for (int i = vectors * E + threadIdx.x; i < elements; i += THREADS) shared_elements[i] = x[i];
    commit_copies();
    wait_for_copies(0);
    __syncthreads();

    // The words of a row. Half of the first, and of the last, may be of a neighbouring row.
    const bool mine = threadIdx.x < rows;
    const int begin = mine ? threadIdx.x * length : 0, end = begin + length;
    const int word = begin / U, words = (end - 1) / U - word + 1;
    const bool begins_inside = begin % U != 0, ends_inside = end % U != 0;  // of a word
    const auto inside = [&](int i, int k) {
        return U == 1 || (k == 0 ? i > 0 || !begins_inside : i < words - 1 || !ends_inside);
    };
    C v[W][U], max = -infinity<C>();
#pragma unroll
    for (int i = 0; i < W; ++i) {
        if (i >= words) break;
        Pack<T, U> pack;
        __builtin_memcpy(&pack, shared_words + word + i, sizeof(pack));
#pragma unroll
        for (int k = 0; k < U; ++k) {
            v[i][k] = inside(i, k) ? widen<T>(pack.v[k]) : -infinity<C>();
            max = larger(max, v[i][k]);
        }
    }
    const C base = Partial<C>{max, 0}.base();
    C sum = 0;
#pragma unroll
    for (int i = 0; i < W; ++i) {
        if (i >= words) break;
#pragma unroll
        for (int k = 0; k < U; ++k) {
            const C shifted = v[i][k] - base, e = M::exp(shifted);
            sum += e;
            v[i][k] = p.log ? shifted : e;
        }
    }
    const Normalizer<T> normalizer(Partial<C>{max, sum}, p.log);
    __syncthreads();  // until all have read
    if (mine) {
#pragma unroll
        for (int i = 0; i < W; ++i) {
            if (i >= words) break;
            Pack<T, U> pack;
#pragma unroll
            for (int k = 0; k < U; ++k) pack.v[k] = normalizer.scaled(v[i][k]);
            if (inside(i, 0) && inside(i, U - 1)) {
                __builtin_memcpy(shared_words + word + i, &pack, sizeof(pack));
            } else {
#pragma unroll
                for (int k = 0; k < U; ++k) {
                    if (inside(i, k)) shared_elements[(word + i) * U + k] = pack.v[k];
                }
            }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < vectors; i += THREADS) {
        ptx::store_global<16>(out + i * E, load_shared_vector(tile + i).word);
    }
    for (int i = vectors * E + threadIdx.x; i < elements; i += THREADS) out[i] = shared_elements[i];
}

#define KERNEL(NAME) \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ SoftmaxParams<INLINE_RANK> p)
#define EXPORT(T)                                            \
    KERNEL(softmax_short9_##T) { softmax_short<T, 9>(p); }   \
    KERNEL(softmax_short17_##T) { softmax_short<T, 17>(p); } \
    KERNEL(softmax_short33_##T) { softmax_short<T, 33>(p); }

EXPORT(f16)
EXPORT(bf16)
EXPORT(f32)
