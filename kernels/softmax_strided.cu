// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax of rows whose elements are not contiguous, or of rare pairs of dtypes, where no other kernel
// fits. The arithmetic is that of softmax.cu.
//
// Variants, chosen in src/cuda/plan/softmax/choose/columns.rs and choose.rs:
//   column    long columns with contiguous neighbours: a block takes `lanes` columns of vectors of 16 bytes. Its
//             threads walk down the dimension with a running maximum and sum each, and merge them through shared
//             memory. Rows that fit stay in shared memory for the second pass; the others are read twice.
//   general   any strides, any pair of dtypes, any number of dimensions: a block a row, two passes, element by element.
// Measurements: docs/measurements/softmax_strided.md

#include "softmax.cuh"

constexpr int THREADS = 256;
constexpr int BATCH = 4;  // loads in flight per thread

// ---------------------------------------------------------------------------------------------- column

// A vector of contiguous elements, of which `valid` exist, in accesses of `bytes`.
template <class T> __device__ __forceinline__ Vector load_columns(const T* p, int valid, uint32_t bytes) {
    constexpr int E = lanes_of<T>;
    if (valid == E && bytes >= 16) return load_vector<16>(p);
    if (valid == E && bytes == 8) return load_vector<8>(p);
    if (valid == E && bytes == 4) return load_vector<4>(p);
    Pack<T, E> pack;
#pragma unroll
    for (int k = 0; k < E; ++k) pack.v[k] = k < valid ? p[k] : convert<T>(-infinity<float>());
    return Vector::of(pack);
}
template <class T, int E>
__device__ __forceinline__ void store_columns(T* p, const Pack<T, E>& pack, int valid, uint32_t bytes) {
    if constexpr (E * sizeof(T) >= 16) {
        if (valid == E && bytes >= 16) return store_pack<T, E, 16>(p, pack);
    }
    if constexpr (sizeof(T) <= 4) {
        if (valid == E && bytes >= 8) return store_pack<T, E, 8>(p, pack);
    }
    if constexpr (sizeof(T) <= 2) {
        if (valid == E && bytes >= 4) return store_pack<T, E, 4>(p, pack);
    }
#pragma unroll
    for (int k = 0; k < E; ++k) {
        if (k < valid) p[k] = pack.v[k];
    }
}

template <class In, class Out> __device__ __forceinline__ void softmax_column(const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    constexpr int E = lanes_of<In>;
    extern __shared__ uint4 shared[];  // [vector of a thread][thread], then the exchange of partials
    auto* exchange =
        reinterpret_cast<Partial<C>*>(shared + p.per_thread * blockDim.x);  // [column of a thread][threads / 2]
    const int across = 1 << p.lane_bits, down = blockDim.x >> p.lane_bits;
    const int column = threadIdx.x & (across - 1), start = threadIdx.x >> p.lane_bits;
    const int64_t length = p.length, x_step = p.x_stride * down, out_step = p.out_stride * down;
    const uint64_t per_outer = (p.columns + across * E - 1) / (across * E);

    for (uint64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        const uint64_t outer = tile / per_outer;
        const int64_t first = ((tile - outer * per_outer) * across + column) * E;
        const int64_t left = static_cast<int64_t>(p.columns) - first;
        const int valid = left < 0 ? 0 : left < E ? static_cast<int>(left) : E;
        const auto o = locate(p.dims, p.rank, outer);
        const In* x = reinterpret_cast<const In*>(p.x) + o.at[0] + first + start * p.x_stride;
        Out* out = reinterpret_cast<Out*>(p.out) + o.at[1] + first + start * p.out_stride;
        const int64_t rounds = start < length ? (length - start + down - 1) / down : 0;

        Partial<C> partial[E];
#pragma unroll
        for (int e = 0; e < E; ++e) partial[e] = Partial<C>::empty();
        for (int64_t round = 0; round < rounds; round += BATCH) {
            Vector raw[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                raw[b] = load_columns(x + (round + b) * x_step, round + b < rounds ? valid : 0, p.x_access);
            }
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                if (round + b < p.per_thread)
                    store_shared_vector(shared + (round + b) * blockDim.x + threadIdx.x, raw[b]);
            }
            C v[BATCH][E];
#pragma unroll
            for (int b = 0; b < BATCH; ++b) widen_vector<In, Out>(raw[b], v[b]);
#pragma unroll
            for (int e = 0; e < E; ++e) {
                const C column_of_batch[BATCH] = {v[0][e], v[1][e], v[2][e], v[3][e]};
                accumulate<Out>(partial[e], column_of_batch);
            }
        }

        // A tree over the threads of a column: the lower half merges the partials of the upper half.
        for (int half = down / 2; half > 0; half /= 2) {
            __syncthreads();
#pragma unroll
            for (int e = 0; e < E; ++e) {
                if (start >= half && start < 2 * half)
                    exchange[e * (blockDim.x / 2) + threadIdx.x - half * across] = partial[e];
            }
            __syncthreads();
#pragma unroll
            for (int e = 0; e < E; ++e) {
                if (start < half) partial[e] = Merge<M>()(partial[e], exchange[e * (blockDim.x / 2) + threadIdx.x]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < E; ++e) {
            if (start == 0) exchange[e * (blockDim.x / 2) + column] = partial[e];
        }
        __syncthreads();
        Normalizer<Out> normalizer[E];
#pragma unroll
        for (int e = 0; e < E; ++e) normalizer[e] = Normalizer<Out>(exchange[e * (blockDim.x / 2) + column], p.log);

        // Backwards: the vectors read last are still in the caches.
        for (int64_t round = (rounds + BATCH - 1) / BATCH * BATCH - BATCH; round >= 0; round -= BATCH) {
            Vector raw[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                if (round + b < p.per_thread) {
                    raw[b] = load_shared_vector(shared + (round + b) * blockDim.x + threadIdx.x);
                } else {
                    raw[b] = load_columns(x + (round + b) * x_step, round + b < rounds ? valid : 0, p.x_access);
                }
            }
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                C v[E];
                widen_vector<In, Out>(raw[b], v);
                Pack<Out, E> pack;
#pragma unroll
                for (int e = 0; e < E; ++e) pack.v[e] = normalizer[e](v[e]);
                store_columns(out + (round + b) * out_step, pack, round + b < rounds ? valid : 0, p.out_access);
            }
        }
    }
}

// --------------------------------------------------------------------------------------------- general

// Acc: f32, or f64 for a float64 result.
template <class Acc> __device__ __forceinline__ Acc load_any(uint64_t base, int64_t offset, uint32_t tag,
                                                             uint32_t out_tag) {
    Acc v;
    with_type(tag, [&](auto type) { v = convert<Acc>(reinterpret_cast<const decltype(type)*>(base)[offset]); });
    if (out_tag == TAG_F16) v = convert<Acc>(convert<f16>(v));
    if (out_tag == TAG_BF16) v = convert<Acc>(convert<bf16>(v));
    return v;
}

template <class Acc> __device__ __forceinline__ void softmax_general(const SoftmaxParams<MAX_RANK>& p) {
    ptx::wait_for_grid_before();
    __shared__ Partial<Acc> scratch[2][32];
    uint32_t parity = 0;
    const int64_t length = p.length;
    for (uint64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const auto o = locate(p.dims, p.rank, row);
        auto partial = Partial<Acc>::empty();
        for (int64_t i = threadIdx.x; i < length; i += BATCH * blockDim.x) {
            Acc v[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                const int64_t at = i + b * blockDim.x;
                v[b] =
                    at < length ? load_any<Acc>(p.x, o.at[0] + at * p.x_stride, p.x_tag, p.out_tag) : -infinity<Acc>();
            }
            accumulate<Acc>(partial, v);
        }
        partial = reduce_block(partial, Merge<Math<Acc>>(), Partial<Acc>::empty(), scratch[parity]);
        parity ^= 1;
        const Normalizer<Acc> normalizer(partial, p.log);
        for (int64_t i = threadIdx.x; i < length; i += blockDim.x) {
            const Acc r = normalizer(load_any<Acc>(p.x, o.at[0] + i * p.x_stride, p.x_tag, p.out_tag));
            with_float_type(p.out_tag, [&](auto type) {
                using T = decltype(type);
                reinterpret_cast<T*>(p.out)[o.at[1] + i * p.out_stride] = convert<T>(r);
            });
        }
    }
}

// -------------------------------------------------------------------------------------------- exported

#define EXPORT(IN, OUT, NAME)                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS, sizeof(OUT) == 8 ? 1 : 2)   \
        softmax_column_##NAME(const __grid_constant__ SoftmaxParams<INLINE_RANK> p) { \
        softmax_column<IN, OUT>(p);                                                   \
    }

EXPORT(f16, f16, f16)
EXPORT(bf16, bf16, bf16)
EXPORT(f32, f32, f32)
EXPORT(f64, f64, f64)
EXPORT(f16, f32, f16_f32)
EXPORT(bf16, f32, bf16_f32)

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    softmax_general_f32(const __grid_constant__ SoftmaxParams<MAX_RANK> p) {
    softmax_general<f32>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    softmax_general_f64(const __grid_constant__ SoftmaxParams<MAX_RANK> p) {
    softmax_general<f64>(p);
}
