// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax of short transposed rows: elements of a row are contiguous in one of x and result, and there
// the rows are packed (channels last). The arithmetic is that of softmax.cu: two exponentials an element.
//
// A thread has a row, or E rows of halves in one access. The rows of a block are one range of the packed tensor, which
// goes through shared memory in vectors of 16 bytes, with the same offset from a 16-byte boundary as in global memory.
// The other tensor is read or written directly; x is read twice more, from L1 or shared memory. Neighbouring threads
// are E row lengths apart in shared memory: an odd number of words has no bank conflicts, four times an odd number has
// four-way conflicts. Rows that are multiples of 16 bytes are for softmax_transposed.cu.
//
// Variants, chosen in src/cuda/plan/softmax/choose/transposed.rs:
//   inE, outE    x, or the result, has the E rows of a thread contiguous.
// Measurements: docs/measurements/softmax_transposed_short.md
#include "async_copy.cuh"
#include "ptx/grid.cuh"
#include "transposed.cuh"

constexpr int THREADS = 128;  // at most

template <bool FIRST, class A, class B> struct Either {
    using type = A;
    static __device__ __forceinline__ const A* of(const A* a, const B*) { return a; }
};
template <class A, class B> struct Either<false, A, B> {
    using type = B;
    static __device__ __forceinline__ const B* of(const A*, const B* b) { return b; }
};

// E contiguous elements in one access.
template <int E, class T> __device__ __forceinline__ Pack<T, E> load_word(const T* from) {
    if constexpr (sizeof(T) * E >= 4) {
        return load_pack<T, E>(from);
    } else {
        const uint16_t half = ptx::load_global_half(from);
        Pack<T, E> pack;
        __builtin_memcpy(&pack, &half, sizeof(pack));
        return pack;
    }
}
template <class T, int E> __device__ __forceinline__ void store_word(T* to, const Pack<T, E>& pack) {
    if constexpr (sizeof(T) * E >= 4) {
        store_pack(to, pack);
    } else {
        *to = pack.v[0];
    }
}

// Calls f(i, v) for the elements i, i + 1, ... of the thread's rows, U at a time: the loads of all U come first.
template <int U, class Load, class F> __device__ __forceinline__ void along(int length, Load load, F f) {
    int i = 0;
#pragma unroll 1
    for (; i + U <= length; i += U) {
        decltype(load(0)) v[U];
#pragma unroll
        for (int k = 0; k < U; ++k) v[k] = load(i + k);
#pragma unroll
        for (int k = 0; k < U; ++k) f(i + k, v[k]);
    }
#pragma unroll 1
    for (; i < length; ++i) f(i, load(i));
}

template <class In, class Out, int E, bool TRANSPOSED_IN>
__device__ __forceinline__ void softmax_transposed_short(const TransposedParams& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    using Packed = typename Either<TRANSPOSED_IN, Out, In>::type;
    constexpr int U = 8;
    extern __shared__ uint4 shared[];
    const auto o = locate(p.dims, p.rank, static_cast<uint64_t>(blockIdx.x));
    const int length = p.length;
    const int64_t rest = p.contiguous_rows - o.inner * p.tile_rows;
    const int rows = rest < p.tile_rows ? rest : p.tile_rows, all = rows * length, row = threadIdx.x * E;
    const In* const x = reinterpret_cast<const In*>(p.x) + o.at[0];
    Out* const out = reinterpret_cast<Out*>(p.out) + o.at[1];
    constexpr int N = lanes_of<Packed>;
    // The packed rows have the same offset from a 16-byte boundary in shared memory as in global memory. whole(vector,
    // element) is called for whole vectors, single(element) for the elements of others.
    const Packed* const global = Either<TRANSPOSED_IN, Out, In>::of(out, x);
    const int before = offset_in_vector(global);
    Packed* const local = reinterpret_cast<Packed*>(shared) + before;
    Packed* const own = local + row * length;
    const auto over_packed = [&](auto whole, auto single) {
        for (int g = threadIdx.x; g * N < before + all; g += blockDim.x) {
            const int i = g * N - before;
            if (i >= 0 && i + N <= all) {
                whole(shared + g, i);
            } else {
                for (int k = i < 0 ? 0 : i; k < i + N && k < all; ++k) single(k);
            }
        }
    };

    if constexpr (!TRANSPOSED_IN) {
        over_packed([&](uint4* vector, int i) { copy_async(vector, x + i); }, [&](int i) { local[i] = x[i]; });
        commit_copies();
        wait_for_copies(0);
        __syncthreads();
    }
    if (row < rows) {
        const auto load = [&](int i) {
            if constexpr (TRANSPOSED_IN) {
                return load_word<E>(x + row + i * p.x_stride);
            } else {
                Pack<In, E> pack;
#pragma unroll
                for (int e = 0; e < E; ++e) pack.v[e] = own[e * length + i];
                return pack;
            }
        };
        const auto widened = [](const Pack<In, E>& pack, int e) { return widen<Out>(pack.v[e]); };
        Partial<C> mine[E];
#pragma unroll
        for (auto& each : mine) each = Partial<C>::empty();
        along<U>(length, load, [&](int, const Pack<In, E>& pack) {
#pragma unroll
            for (int e = 0; e < E; ++e) mine[e].max = larger(mine[e].max, widened(pack, e));
        });
        C base[E];
#pragma unroll
        for (int e = 0; e < E; ++e) base[e] = mine[e].base();
        along<U>(length, load, [&](int, const Pack<In, E>& pack) {
#pragma unroll
            for (int e = 0; e < E; ++e) mine[e].sum += M::exp(widened(pack, e) - base[e]);
        });
        Normalizer<Out> normalizer[E];
#pragma unroll
        for (int e = 0; e < E; ++e) normalizer[e] = Normalizer<Out>(mine[e], p.log);
        along<U>(length, load, [&](int i, const Pack<In, E>& pack) {
            Pack<Out, E> results;
#pragma unroll
            for (int e = 0; e < E; ++e) results.v[e] = normalizer[e](widened(pack, e));
            if constexpr (TRANSPOSED_IN) {
#pragma unroll
                for (int e = 0; e < E; ++e) own[e * length + i] = results.v[e];
            } else {
                store_word(out + row + i * p.out_stride, results);
            }
        });
    }
    if constexpr (TRANSPOSED_IN) {
        __syncthreads();
        over_packed([&](uint4* vector, int i) { ptx::store_global<16>(out + i, load_shared_vector(vector).word); },
                    [&](int i) { out[i] = local[i]; });
    }
}

#define KERNEL(NAME) \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ TransposedParams p)
#define EXPORT(IN, OUT, NAME, E)                                                                       \
    KERNEL(softmax_transposed_short_in##E##_##NAME) { softmax_transposed_short<IN, OUT, E, true>(p); } \
    KERNEL(softmax_transposed_short_out##E##_##NAME) { softmax_transposed_short<IN, OUT, E, false>(p); }
#define EXPORT_HALVES(IN, OUT, NAME) EXPORT(IN, OUT, NAME, 1) EXPORT(IN, OUT, NAME, 2)

EXPORT_HALVES(f16, f16, f16)
EXPORT_HALVES(bf16, bf16, bf16)
EXPORT(f32, f32, f32, 1)
EXPORT_HALVES(f16, f32, f16_f32)
EXPORT_HALVES(bf16, f32, bf16_f32)
