// targets: 75 80 90 100 120 ptx:75
//
// Gradients through matmul's epilogue: out = grad * activation'(saved), and the sums of that over all rows, which are
// the gradient of a bias. In float32 (float64 for float64); sums are of unrounded terms; both are rounded once.
//
// Per element: the derivative of one activation; two reads and one write, or one read where only sums are wanted.
//
// Variants, as chosen in src/cuda/plan/activation_backward.rs:
//   vector    16-byte accesses: columns lie side by side, and all rows are aligned alike.
//   element   any strides and any number of dimensions.
// In both, a block's threads take `across` accesses side by side, and go down the rows of a slice with K accesses of
// each input in flight; what the threads of a column have summed up meets in shared memory. Where there are several
// slices, each leaves its sums in memory, and
//   sums      adds those up, in the order of the slices.
//
// Measured on an H200, 4096 x 14336, share of a copy of the same bytes, bf16 and f32: relu 0.88, 0.94; silu 0.81, 0.79;
// gelu 0.70, 0.71; gelu_tanh 0.75, 0.88; silu with the bias's gradient 0.79, 0.80. 65536 x 257 with it 0.28, 0.45:
// element by element.

#include "dtype.cuh"
#include "epilogue.cuh"
#include "index.cuh"
#include "ptx/global.cuh"

constexpr int THREADS = 256;
constexpr int MAX_RANK = 64, INLINE_RANK = 4;

// Mirrored by ActivationParams in src/cuda/plan/activation_backward.rs.
template <int Rank> struct ActivationParams {
    uint64_t grad, saved, out, bias;  // addresses; 0: there is none
    uint64_t partials;                // of the sums of every slice, if there are several
    uint64_t rows, columns;
    uint64_t slice;                                              // rows of a slice
    int64_t grad_stride, saved_stride, out_stride, bias_stride;  // from column to column
    double slope;
    uint32_t kind;    // ActivationKind
    uint32_t across;  // threads side by side
    uint32_t tiles;   // blocks side by side
    uint32_t slices;
    uint32_t rank;  // at least 1
    uint32_t unused;
    Dim<3> dims[Rank];  // over rows; strides of grad, saved and out
};
static_assert(sizeof(ActivationParams<INLINE_RANK>) == 128 + 48 * INLINE_RANK, "");
static_assert(sizeof(ActivationParams<MAX_RANK>) == 128 + 48 * MAX_RANK && sizeof(ActivationParams<MAX_RANK>) < 4096,
              "");

template <class T> using Arithmetic = decltype(number(T{}));

__device__ __forceinline__ float exp_of(float v) { return expf(v); }
__device__ __forceinline__ double exp_of(double v) { return exp(v); }
__device__ __forceinline__ float tanh_of(float v) { return tanhf(v); }
__device__ __forceinline__ double tanh_of(double v) { return tanh(v); }
__device__ __forceinline__ float erfc_of(float v) { return erfcf(v); }
__device__ __forceinline__ double erfc_of(double v) { return erfc(v); }

// The derivatives of gelu, its tanh form and silu; of the second, 1 + tanh u is 2 sigmoid(2 u). T: what the gradient is
// rounded to. For halves by approximations whose errors of 1e-6 are far below that rounding: with the exact functions an
// H200 moved 0.41, 0.66 and 0.56 of what a copy does.
template <class T, class C> __device__ __forceinline__ C sigmoid(C v) {
    if constexpr (is_half<T>) {
        return __fdividef(1.0f, 1.0f + __expf(-v));
    } else {
        return C(1) / (C(1) + exp_of(-v));
    }
}
template <class T, class C> __device__ __forceinline__ C derivative_of_gelu(C v) {
    constexpr C DENSITY = C(0.39894228040143267794);  // of the normal distribution at 0
    if constexpr (is_half<T>) {
        const GeluTail tail = gelu_tail(v);
        return (v > 0.0f ? 1.0f - tail.above : tail.above) + v * (DENSITY * tail.exponential);
    } else {
        const C share = C(0.5) * erfc_of(v * C(-0.70710678118654752440));
        return share + v * (DENSITY * exp_of(C(-0.5) * v * v));
    }
}
template <class T, class C> __device__ __forceinline__ C derivative_of_gelu_tanh(C v) {
    constexpr C ROOT = C(0.79788456080286535588);  // of 2 / pi
    const C square = v * v, u = ROOT * v * (C(1) + C(0.044715) * square);
    const C slope = ROOT * (C(1) + C(3 * 0.044715) * square);
    if constexpr (is_half<T>) {
        const C share = sigmoid<T>(C(2) * u);
        return share + C(2) * v * (share * (C(1) - share)) * slope;
    } else {
        const C t = tanh_of(u);
        return C(0.5) * (C(1) + t + v * (C(1) - t * t) * slope);
    }
}
template <class T, class C> __device__ __forceinline__ C derivative_of_silu(C v) {
    const C share = sigmoid<T>(v);
    return share * (C(1) + v * (C(1) - share));
}

// Multiplies gradients by the activation's derivative. Of NaN, relu passes the gradient on, as in torch.
template <class T, int N, class C>
__device__ __forceinline__ void derive(C (&grad)[N], const C (&v)[N], uint32_t kind, C slope) {
    switch (kind) {
    case ACT_RELU:
#pragma unroll
        for (int i = 0; i < N; ++i) grad[i] = v[i] <= C(0) ? C(0) : grad[i];
        break;
    case ACT_LEAKY_RELU:
#pragma unroll
        for (int i = 0; i < N; ++i) grad[i] = v[i] > C(0) ? grad[i] : grad[i] * slope;
        break;
    case ACT_GELU:
#pragma unroll
        for (int i = 0; i < N; ++i) grad[i] *= derivative_of_gelu<T>(v[i]);
        break;
    case ACT_GELU_TANH:
#pragma unroll
        for (int i = 0; i < N; ++i) grad[i] *= derivative_of_gelu_tanh<T>(v[i]);
        break;
    case ACT_SILU:
#pragma unroll
        for (int i = 0; i < N; ++i) grad[i] *= derivative_of_silu<T>(v[i]);
        break;
    default: break;
    }
}

// E elements, `stride` apart: in one access if E is more than one, for which they must lie side by side. 0 unless
// `wanted`.
template <class T, int E> __device__ __forceinline__ void load(const T* p, bool wanted, Pack<T, E>& to) {
    uint32_t word[E * sizeof(T) < 4 ? 1 : E * sizeof(T) / 4] = {};
    ptx::load_global_if<E * sizeof(T)>(wanted, p, word);
    __builtin_memcpy(&to, word, sizeof(to));
}
template <class T, int E> __device__ __forceinline__ void widen(const Pack<T, E>& pack, Arithmetic<T> (&v)[E]) {
#pragma unroll
    for (int e = 0; e < E; ++e) v[e] = number(pack.v[e]);
}

template <class T, int E, int Rank>
__device__ __forceinline__ void activation_backward(const ActivationParams<Rank>& p) {
    using C = Arithmetic<T>;
    constexpr int K = 4;
    __shared__ C sums[THREADS * (E + 1)];  // [down][across * E, and one more against bank conflicts]
    const int down = THREADS / p.across, d = threadIdx.x / p.across, a = threadIdx.x - d * p.across;
    const uint32_t slice = blockIdx.x / p.tiles, tile = blockIdx.x - slice * p.tiles;
    const int64_t column = (static_cast<int64_t>(tile) * p.across + a) * E;
    const uint64_t begin = slice * p.slice, left = p.rows - begin;
    const uint64_t rows = d < down && column < p.columns ? (left < p.slice ? left : p.slice) : 0;
    C sum[E] = {};
    for (uint64_t first = d; first < rows; first += K * down) {
        Pack<T, E> grad[K], saved[K];
        int64_t out[K];
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const uint64_t row = first + k * down;
            const auto o = locate(p.dims, p.rank, begin + (row < rows ? row : first));
            load(reinterpret_cast<const T*>(p.grad) + o.at[0] + column * p.grad_stride, row < rows, grad[k]);
            load(reinterpret_cast<const T*>(p.saved) + o.at[1] + column * p.saved_stride, row < rows && p.saved != 0,
                 saved[k]);
            out[k] = o.at[2] + column * p.out_stride;
        }
#pragma unroll
        for (int k = 0; k < K; ++k) {
            C g[E], v[E];
            widen(grad[k], g);
            widen(saved[k], v);
            derive<T>(g, v, p.kind, static_cast<C>(p.slope));
#pragma unroll
            for (int e = 0; e < E; ++e) sum[e] += g[e];
            if (p.out == 0 || first + k * down >= rows) continue;
            T* to = reinterpret_cast<T*>(p.out) + out[k];
            if constexpr (E == 1) {
                *to = convert<T>(g[0]);
            } else {
                Pack<T, E> pack;
#pragma unroll
                for (int e = 0; e < E; ++e) pack.v[e] = convert<T>(g[e]);
                store_pack(to, pack);
            }
        }
    }
    if (p.bias == 0) return;

    const uint32_t wide = p.across * E, pitch = wide + 1;
    if (d < down) {
#pragma unroll
        for (int e = 0; e < E; ++e) sums[d * pitch + e * p.across + a] = sum[e];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < wide; i += THREADS) {
        const uint32_t e = i / p.across;
        const uint64_t at = (static_cast<uint64_t>(tile) * p.across + i - e * p.across) * E + e;
        if (at >= p.columns) continue;
        C total = 0;
        for (int row = 0; row < down; ++row) total += sums[row * pitch + i];
        if (p.slices == 1) {
            reinterpret_cast<T*>(p.bias)[at * p.bias_stride] = convert<T>(total);
        } else {
            reinterpret_cast<C*>(p.partials)[slice * p.columns + at] = total;
        }
    }
}

template <class T> __device__ __forceinline__ void add_slices(const ActivationParams<INLINE_RANK>& p) {
    using C = Arithmetic<T>;
    const uint64_t column = static_cast<uint64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (column >= p.columns) return;
    C total = 0;
#pragma unroll 8
    for (uint32_t s = 0; s < p.slices; ++s) total += reinterpret_cast<const C*>(p.partials)[s * p.columns + column];
    reinterpret_cast<T*>(p.bias)[column * p.bias_stride] = convert<T>(total);
}

#define KERNEL(NAME, RANK)                                \
    extern "C" __global__ void __launch_bounds__(THREADS) \
        activation_backward_##NAME(const __grid_constant__ ActivationParams<RANK> p)
#define EXPORT(T)                                                                            \
    KERNEL(vector_##T, INLINE_RANK) { activation_backward<T, lanes_of<T>, INLINE_RANK>(p); } \
    KERNEL(element_##T, MAX_RANK) { activation_backward<T, 1, MAX_RANK>(p); }                \
    KERNEL(sums_##T, INLINE_RANK) { add_slices<T>(p); }

EXPORT(f16)
EXPORT(bf16)
EXPORT(f32)
EXPORT(f64)
