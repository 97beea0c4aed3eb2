// targets: 75 80 90 100 120 ptx:75
//
// Gradients through matmul's epilogue: out = grad * activation'(saved), and the sums of that over all rows, the
// gradient of a bias. In float32 (float64 for float64); sums are of unrounded terms; both are rounded once. Two reads
// and one write an element, or one read where only sums are wanted.
//
// Variants, chosen in src/cuda/plan/activation_backward/mod.rs:
//   flat      no sums, contiguous tensors: vectors of 16 bytes, a block for each tile, no loop.
//   vector    contiguous columns, rows with one alignment. `across` neighbouring threads have neighbouring vectors, and go
//             down a slice of the rows; each prefetches AT_ONCE vectors to its own ring in shared memory. Several rows of a contiguous misaligned tensor are taken as one longer row.
//   element   any strides and rank; AT_ONCE elements of each input in registers.
//   gated     both gradients of activation(saved) * up, of contiguous tensors: three reads and two writes an element.
//   sums      second launch for more than one slice: adds the slices' sums, in an order given by shape and device.
// Hazard: from sm_90 on sums may begin early, and waits for the first launch before it reads.
// Measurements: docs/measurements/activation_backward.md

#include "activation_gradient.cuh"
#include "async_copy.cuh"
#include "dtype.cuh"
#include "index.cuh"
#include "ptx/global.cuh"
#include "ptx/grid.cuh"

constexpr int THREADS = 256;                         // at most; of `vector`, `element` and `sums`
constexpr int FLAT_THREADS = 128, FLAT_VECTORS = 2;  // of each operand
constexpr int AT_ONCE = 4;                           // accesses of each operand, in `vector` and `element`

// Mirrored by ActivationParams in src/cuda/plan/activation_backward/mod.rs.
template <int Rank> struct ActivationParams {
    uint64_t grad, saved, out, bias;  // addresses; 0: there is none
    uint64_t partials;                // of the sums of every slice; 0: there is one slice, and its sums are the bias's
    uint64_t rows, columns;           // rows along the last of dims; flat: one row
    uint64_t last;                    // columns of the last row
    uint64_t slice;                   // rows of a slice
    int64_t grad_stride, saved_stride, out_stride, bias_stride;  // from column to column
    double slope;
    uint32_t kind;    // ActivationKind
    uint32_t across;  // threads along the columns
    uint32_t tiles;   // blocks along the columns
    uint32_t slices;  // of the rows, for each index of the other dims. sums: of all
    uint32_t rank;    // at least 1
    uint32_t unused;
    uint64_t up, up_out;  // gated: the other factor and its gradient
    Dim<3> dims[Rank];    // over rows; strides of grad, saved and out
};
static_assert(sizeof(ActivationParams<INLINE_RANK>) == 152 + 48 * INLINE_RANK, "");
static_assert(sizeof(ActivationParams<MAX_RANK>) == 152 + 48 * MAX_RANK && sizeof(ActivationParams<MAX_RANK>) < 4096,
              "");

template <class T> __device__ __forceinline__ T* pointer(uint64_t address) { return reinterpret_cast<T*>(address); }

template <class T> __device__ __forceinline__ void widen(const Vector& vector, Arithmetic<T> (&v)[lanes_of<T>]) {
    const auto pack = vector.unpack<T>();
#pragma unroll
    for (int e = 0; e < lanes_of<T>; ++e) v[e] = number(pack.v[e]);
}
template <class T> __device__ __forceinline__ void store(T* to, const Arithmetic<T> (&v)[lanes_of<T>]) {
    Pack<T, lanes_of<T>> pack;
#pragma unroll
    for (int e = 0; e < lanes_of<T>; ++e) pack.v[e] = convert<T>(v[e]);
    store_pack(to, pack);
}
template <class T> __device__ __forceinline__ Arithmetic<T> element(const uint32_t* word) {
    T v;
    __builtin_memcpy(&v, word, sizeof(v));
    return number(v);
}

template <class T> __device__ __forceinline__ void flat(const ActivationParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    constexpr int E = lanes_of<T>;
    const auto slope = static_cast<Arithmetic<T>>(p.slope);
    const T *grad = pointer<const T>(p.grad), *saved = pointer<const T>(p.saved);
    T* out = pointer<T>(p.out);
    const uint64_t vectors = p.columns / E;
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * (FLAT_THREADS * FLAT_VECTORS) + threadIdx.x;
    Vector g[FLAT_VECTORS] = {}, v[FLAT_VECTORS] = {};
#pragma unroll
    for (int i = 0; i < FLAT_VECTORS; ++i) {
        const uint64_t at = first + i * FLAT_THREADS;
        ptx::load_global_if<16>(at < vectors, grad + at * E, g[i].word);
        ptx::load_global_if<16>(at < vectors, saved + at * E, v[i].word);
    }
    with_derivative(p.kind, slope, [&](auto derive) {
#pragma unroll
        for (int i = 0; i < FLAT_VECTORS; ++i) {
            const uint64_t at = first + i * FLAT_THREADS;
            Arithmetic<T> x[E], y[E];
            widen<T>(g[i], x);
            widen<T>(v[i], y);
#pragma unroll
            for (int e = 0; e < E; ++e) x[e] = derive(x[e], y[e]);
            if (at < vectors) store(out + at * E, x);
        }
        // Fewer than 16 bytes after the last vector.
        const uint64_t i = vectors * E + threadIdx.x;
        if (blockIdx.x == 0 && i < p.columns) out[i] = convert<T>(derive(number(grad[i]), number(saved[i])));
    });
}

// p.last vectors of p.columns elements, and what is behind them element by element.
template <class T> __device__ __forceinline__ void gated(const ActivationParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using C = Arithmetic<T>;
    constexpr int E = lanes_of<T>;
    const auto slope = static_cast<C>(p.slope);
    const T *grad = pointer<const T>(p.grad), *saved = pointer<const T>(p.saved), *up = pointer<const T>(p.up);
    T *out = pointer<T>(p.out), *up_out = pointer<T>(p.up_out);
    const uint64_t first = static_cast<uint64_t>(blockIdx.x) * (FLAT_THREADS * FLAT_VECTORS) + threadIdx.x;
    Vector g[FLAT_VECTORS] = {}, v[FLAT_VECTORS] = {}, u[FLAT_VECTORS] = {};
#pragma unroll
    for (int i = 0; i < FLAT_VECTORS; ++i) {
        const uint64_t at = first + i * FLAT_THREADS;
        ptx::load_global_if<16>(at < p.last, grad + at * E, g[i].word);
        ptx::load_global_if<16>(at < p.last, saved + at * E, v[i].word);
        ptx::load_global_if<16>(at < p.last, up + at * E, u[i].word);
    }
    with_derivative(p.kind, slope, [&](auto derive) {
#pragma unroll
        for (int i = 0; i < FLAT_VECTORS; ++i) {
            const uint64_t at = first + i * FLAT_THREADS;
            C x[E], y[E], z[E];
            widen<T>(g[i], x);
            widen<T>(v[i], y);
            widen<T>(u[i], z);
#pragma unroll
            for (int e = 0; e < E; ++e) z[e] *= derive(x[e], y[e]);
            activate<T>(y, p.kind, slope);
#pragma unroll
            for (int e = 0; e < E; ++e) y[e] *= x[e];
            if (at < p.last) {
                store(out + at * E, z);
                store(up_out + at * E, y);
            }
        }
        const uint64_t step = static_cast<uint64_t>(gridDim.x) * FLAT_THREADS;
        uint64_t i = p.last * E + static_cast<uint64_t>(blockIdx.x) * FLAT_THREADS + threadIdx.x;
        for (; i < p.columns; i += step) {
            const C x = number(grad[i]);
            C y[1] = {number(saved[i])};
            out[i] = convert<T>(number(up[i]) * derive(x, y[0]));
            activate<T>(y, p.kind, slope);
            up_out[i] = convert<T>(x * y[0]);
        }
    });
}

// Columns of a slice of rows, which lie along the last of p.dims.
template <class T, int E, int Rank>
__device__ __forceinline__ void by_rows(const ActivationParams<Rank>& p) {
    ptx::wait_for_grid_before();
    using C = Arithmetic<T>;
    __shared__ union {
        uint4 slots[E > 1 ? AT_ONCE * 2 * THREADS : 1];  // [access][operand][thread]
        C sums[THREADS * (E + 1)];                       // [down][across * E, and one more against bank conflicts]
    } shared;
    ptx::let_next_grid_begin();
    const auto slope = static_cast<C>(p.slope);
    const int32_t down = blockDim.x / p.across, d = threadIdx.x / p.across, a = threadIdx.x - d * p.across;
    const uint32_t slice = blockIdx.x / p.tiles, tile = blockIdx.x - slice * p.tiles;
    const uint32_t outer = slice / p.slices, inner = slice - outer * p.slices;
    const int64_t column = (static_cast<int64_t>(tile) * p.across + a) * E, last = p.last;
    const uint64_t begin = inner * p.slice, left = p.rows - begin;
    // The last row may be shorter.
    const bool shortened = inner == p.slices - 1 && column + E > last;
    int64_t rows = static_cast<int64_t>(left < p.slice ? left : p.slice) - shortened - d;
    if (d >= down || column >= static_cast<int64_t>(p.columns)) rows = 0;

    const int64_t* stride = p.dims[p.rank - 1].strides;
    Offsets<3, uint64_t> at = {};
    if (p.rank > 1) at = locate(p.dims, p.rank - 1, static_cast<uint64_t>(outer));
    const T* grad = pointer<const T>(p.grad) + at.at[0] + (begin + d) * stride[0] + column * p.grad_stride;
    const T* saved = pointer<const T>(p.saved) + at.at[1] + (begin + d) * stride[1] + column * p.saved_stride;
    T* out = pointer<T>(p.out) + at.at[2] + (begin + d) * stride[2] + column * p.out_stride;
    const int64_t steps[] = {stride[0] * down, stride[1] * down, stride[2] * down};
    C sum[E] = {};
    if constexpr (E > 1) {
        // A thread's own ring of slots, so that only its own copies are waited for.
        const auto slot = [&](int k, int operand) { return shared.slots + (k * 2 + operand) * THREADS + threadIdx.x; };
        const auto ask = [&](int k, bool wanted) {
            if (wanted) copy_async(slot(k, 0), grad);
            if (wanted && p.saved != 0) copy_async(slot(k, 1), saved);
            commit_copies();
            grad += steps[0];
            saved += steps[1];
        };
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) ask(k, rows > k * down);
#pragma unroll 1
        for (; rows > 0; rows -= AT_ONCE * down) {
            with_derivative(p.kind, slope, [&](auto derive) {
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k) {
                    wait_for_copies(AT_ONCE - 1);
                    if (rows > k * down) {
                        C x[E], y[E];
                        widen<T>(load_shared_vector(slot(k, 0)), x);
                        widen<T>(load_shared_vector(slot(k, 1)), y);
#pragma unroll
                        for (int e = 0; e < E; ++e) {
                            x[e] = derive(x[e], y[e]);
                            sum[e] += x[e];
                        }
                        if (p.out != 0) store(out, x);
                        out += steps[2];
                    }
                    ask(k, rows > (AT_ONCE + k) * down);
                }
            });
        }
        wait_for_copies(0);
    } else {
        for (; rows > 0; rows -= AT_ONCE * down) {
            uint32_t g[AT_ONCE][sizeof(C) / 4] = {}, v[AT_ONCE][sizeof(C) / 4] = {};
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                const bool wanted = rows > k * down;
                ptx::load_global_if<sizeof(T)>(wanted, grad, g[k]);
                ptx::load_global_if<sizeof(T)>(wanted && p.saved != 0, saved, v[k]);
                grad += steps[0];
                saved += steps[1];
            }
            with_derivative(p.kind, slope, [&](auto derive) {
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k) {
                    const C x = derive(element<T>(g[k]), element<T>(v[k]));
                    sum[0] += x;
                    if (p.out != 0 && rows > k * down) *out = convert<T>(x);
                    out += steps[2];
                }
            });
        }
    }
    if constexpr (E > 1) {
        // What of the shorter row is no whole access.
        if (shortened && d == 0 && column < last) {
            const int64_t row = p.rows - 1;
            grad = pointer<const T>(p.grad) + row * stride[0] + column;
            saved = pointer<const T>(p.saved) + row * stride[1] + column;
            out = pointer<T>(p.out) + row * stride[2] + column;
            with_derivative(p.kind, slope, [&](auto derive) {
#pragma unroll
                for (int e = 0; e < E; ++e) {
                    if (column + e >= last) continue;
                    const C x = derive(number(grad[e]), p.saved == 0 ? C(0) : number(saved[e]));
                    sum[e] += x;
                    if (p.out != 0) out[e] = convert<T>(x);
                }
            });
        }
    }
    if (p.bias == 0) return;

    const uint32_t wide = p.across * E, pitch = wide + 1;
    __syncthreads();  // the last slot is read
    if (d < down) {
#pragma unroll
        for (int e = 0; e < E; ++e) shared.sums[d * pitch + e * p.across + a] = sum[e];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < wide; i += blockDim.x) {
        const uint32_t e = i / p.across;
        const uint64_t at = (static_cast<uint64_t>(tile) * p.across + i - e * p.across) * E + e;
        if (at >= p.columns) continue;
        C total = 0;
        for (int32_t row = 0; row < down; ++row) total += shared.sums[row * pitch + i];
        if (p.partials == 0) {
            pointer<T>(p.bias)[at * p.bias_stride] = convert<T>(total);
        } else {
            pointer<C>(p.partials)[slice * p.columns + at] = total;
        }
    }
}

template <class T> __device__ __forceinline__ void add_slices(const ActivationParams<INLINE_RANK>& p) {
    using C = Arithmetic<T>;
    __shared__ C sums[THREADS];
    const uint32_t down = THREADS / p.across, d = threadIdx.x / p.across, a = threadIdx.x - d * p.across;
    const uint64_t column = static_cast<uint64_t>(blockIdx.x) * p.across + a;
    ptx::wait_for_grid_before();
    C total = 0;
    if (column < p.columns) {
#pragma unroll 8
        for (uint32_t s = d; s < p.slices; s += down) total += pointer<const C>(p.partials)[s * p.columns + column];
    }
    sums[threadIdx.x] = total;
    __syncthreads();
    if (d != 0 || column >= p.columns) return;
    for (uint32_t i = 1; i < down; ++i) total += sums[i * p.across + a];
    pointer<T>(p.bias)[column * p.bias_stride] = convert<T>(total);
}

#define KERNEL(BOUNDS, NAME, RANK)                                                  \
    extern "C" __global__ void __launch_bounds__ BOUNDS activation_backward_##NAME( \
        const __grid_constant__ ActivationParams<RANK> p)
#define EXPORT(T)                                                                                                   \
    KERNEL((FLAT_THREADS, 8), flat_##T, INLINE_RANK) { flat<T>(p); }                                                \
    KERNEL((THREADS, sizeof(T) == 8 ? 2 : 3), vector_##T, INLINE_RANK) { by_rows<T, lanes_of<T>, INLINE_RANK>(p); } \
    KERNEL((THREADS, sizeof(T) == 8 ? 2 : 4), element_##T, MAX_RANK) { by_rows<T, 1, MAX_RANK>(p); }                \
    KERNEL((FLAT_THREADS, 6), gated_##T, INLINE_RANK) { gated<T>(p); }                                              \
    KERNEL((THREADS), sums_##T, INLINE_RANK) { add_slices<T>(p); }

EXPORT(f16)
EXPORT(bf16)
EXPORT(f32)
EXPORT(f64)
