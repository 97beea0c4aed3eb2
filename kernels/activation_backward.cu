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
//   gated     both gradients of activation(saved) * up, of contiguous tensors; gated_vector, gated_element: with sums of both.
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
    uint64_t up, up_out;  // gated: the other factor and its gradient, as saved and out lie; bias then has two rows
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
    with_derivative(p.kind, slope, [&](auto derive, uint32_t kind) {
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
    with_derivative(p.kind, slope, [&](auto derive, uint32_t kind) {
#pragma unroll
        for (int i = 0; i < FLAT_VECTORS; ++i) {
            const uint64_t at = first + i * FLAT_THREADS;
            C x[E], y[E], z[E];
            widen<T>(g[i], x);
            widen<T>(v[i], y);
            widen<T>(u[i], z);
#pragma unroll
            for (int e = 0; e < E; ++e) z[e] *= derive(x[e], y[e]);
            activate<T>(y, kind, slope);
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
            activate<T>(y, kind, slope);
            up_out[i] = convert<T>(x * y[0]);
        }
    });
}

// What `derive` makes of a gradient x: of the factor that is activation(y) in x, and of the other, z, in y.
template <class T, int E, class C, class F>
__device__ __forceinline__ void both_gradients(F derive, C (&x)[E], C (&y)[E], const C (&z)[E], uint32_t kind,
                                               C slope) {
    C grad[E];
#pragma unroll
    for (int e = 0; e < E; ++e) {
        grad[e] = x[e];
        x[e] = z[e] * derive(x[e], y[e]);
    }
    activate<T>(y, kind, slope);
#pragma unroll
    for (int e = 0; e < E; ++e) y[e] *= grad[e];
}

// A thread's sums of E columns, to those of the block's threads that have the same. `row`: of the bias.
template <class T, int E, int Rank, class C>
__device__ __forceinline__ void add_threads(const ActivationParams<Rank>& p, C* sums, const C (&sum)[E], uint32_t row) {
    const uint32_t across = p.across, down = blockDim.x / across, d = threadIdx.x / across,
                   a = threadIdx.x - d * across;
    const uint32_t slice = blockIdx.x / p.tiles, tile = blockIdx.x - slice * p.tiles;
    const uint32_t wide = across * E, pitch = wide + 1;
    __syncthreads();  // what was there is read
    if (d < down) {
#pragma unroll
        for (int e = 0; e < E; ++e) sums[d * pitch + e * across + a] = sum[e];
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < wide; i += blockDim.x) {
        const uint32_t e = i / across;
        const uint64_t at = (static_cast<uint64_t>(tile) * across + i - e * across) * E + e;
        if (at >= p.columns) continue;
        C total = 0;
        for (uint32_t j = 0; j < down; ++j) total += sums[j * pitch + i];
        if (p.partials == 0) {
            pointer<T>(p.bias)[(row * p.columns + at) * p.bias_stride] = convert<T>(total);
        } else {
            const uint64_t slices = gridDim.x / p.tiles;
            pointer<C>(p.partials)[(row * slices + slice) * p.columns + at] = total;
        }
    }
}

// Columns of a slice of rows, which lie along the last of p.dims.
template <class T, int E, int Rank, bool GATED = false>
__device__ __forceinline__ void by_rows(const ActivationParams<Rank>& p) {
    ptx::wait_for_grid_before();
    using C = Arithmetic<T>;
    constexpr int OPERANDS = GATED ? 3 : 2;
    __shared__ union {
        uint4 slots[E > 1 ? AT_ONCE * OPERANDS * THREADS : 1];  // [access][operand][thread]
        C sums[THREADS * (E + 1)];  // [down][across * E, and one more against bank conflicts]
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
    // Elements of the other factor from those of saved, and of its gradient from those of out.
    const auto of_up = [&](const T* of_saved) {
        return pointer<const T>(p.up + (reinterpret_cast<uint64_t>(of_saved) - p.saved));
    };
    const auto of_up_out = [&](T* of_out) {
        return pointer<T>(p.up_out + (reinterpret_cast<uint64_t>(of_out) - p.out));
    };
    C sum[E] = {}, up_sum[GATED ? E : 1] = {};
    if constexpr (E > 1) {
        // A thread's own ring of slots, so that only its own copies are waited for.
        const auto slot = [&](int k, int operand) {
            return shared.slots + (k * OPERANDS + operand) * THREADS + threadIdx.x;
        };
        const auto ask = [&](int k, bool wanted) {
            if (wanted) copy_async(slot(k, 0), grad);
            if (wanted && p.saved != 0) copy_async(slot(k, 1), saved);
            if (GATED && wanted) copy_async(slot(k, 2), of_up(saved));
            commit_copies();
            grad += steps[0];
            saved += steps[1];
        };
#pragma unroll
        for (int k = 0; k < AT_ONCE; ++k) ask(k, rows > k * down);
#pragma unroll 1
        for (; rows > 0; rows -= AT_ONCE * down) {
            with_derivative(p.kind, slope, [&](auto derive, uint32_t kind) {
#pragma unroll 1
                for (int k = 0; k < AT_ONCE; ++k) {
                    wait_for_copies(AT_ONCE - 1);
                    if (rows > k * down) {
                        C x[E], y[E];
                        widen<T>(load_shared_vector(slot(k, 0)), x);
                        widen<T>(load_shared_vector(slot(k, 1)), y);
                        if constexpr (GATED) {
                            C z[E];
                            widen<T>(load_shared_vector(slot(k, 2)), z);
                            both_gradients<T>(derive, x, y, z, kind, slope);
                            store(of_up_out(out), y);
                        }
#pragma unroll
                        for (int e = 0; e < E; ++e) {
                            if constexpr (GATED) {
                                up_sum[e] += y[e];
                            } else {
                                x[e] = derive(x[e], y[e]);
                            }
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
            uint32_t u[GATED ? AT_ONCE : 1][sizeof(C) / 4] = {};
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                const bool wanted = rows > k * down;
                ptx::load_global_if<sizeof(T)>(wanted, grad, g[k]);
                ptx::load_global_if<sizeof(T)>(wanted && p.saved != 0, saved, v[k]);
                if constexpr (GATED) ptx::load_global_if<sizeof(T)>(wanted, of_up(saved), u[k]);
                grad += steps[0];
                saved += steps[1];
            }
            with_derivative(p.kind, slope, [&](auto derive, uint32_t kind) {
#pragma unroll
                for (int k = 0; k < AT_ONCE; ++k) {
                    C x[1] = {element<T>(g[k])}, y[1] = {element<T>(v[k])};
                    if constexpr (GATED) {
                        const C z[1] = {element<T>(u[k])};
                        both_gradients<T>(derive, x, y, z, kind, slope);
                        if (rows > k * down) {
                            up_sum[0] += y[0];
                            *of_up_out(out) = convert<T>(y[0]);
                        }
                    } else {
                        x[0] = derive(x[0], y[0]);
                    }
                    sum[0] += x[0];
                    if (p.out != 0 && rows > k * down) *out = convert<T>(x[0]);
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
            with_derivative(p.kind, slope, [&](auto derive, uint32_t kind) {
#pragma unroll
                for (int e = 0; e < E; ++e) {
                    if (column + e >= last) continue;
                    C x[1] = {number(grad[e])}, y[1] = {p.saved == 0 ? C(0) : number(saved[e])};
                    if constexpr (GATED) {
                        const C z[1] = {number(*of_up(saved + e))};
                        both_gradients<T>(derive, x, y, z, kind, slope);
                        up_sum[e] += y[0];
                        *of_up_out(out + e) = convert<T>(y[0]);
                    } else {
                        x[0] = derive(x[0], y[0]);
                    }
                    sum[e] += x[0];
                    if (p.out != 0) out[e] = convert<T>(x[0]);
                }
            });
        }
    }
    if (p.bias == 0) return;
    add_threads<T>(p, shared.sums, sum, 0);
    if constexpr (GATED) add_threads<T>(p, shared.sums, up_sum, 1);
}

template <class T> __device__ __forceinline__ void add_slices(const ActivationParams<INLINE_RANK>& p) {
    using C = Arithmetic<T>;
    __shared__ C sums[THREADS];
    const uint32_t down = THREADS / p.across, d = threadIdx.x / p.across, a = threadIdx.x - d * p.across;
    const uint64_t column = static_cast<uint64_t>(blockIdx.x) * p.across + a;
    // Of a gated product, those of up lie behind all of the others.
    const uint64_t columns = p.up == 0 ? p.columns : 2 * p.columns;
    const C* from = pointer<const C>(p.partials) + column;
    if (column >= p.columns) from += (p.slices - 1) * p.columns;
    ptx::wait_for_grid_before();
    C total = 0;
    if (column < columns) {
#pragma unroll 8
        for (uint32_t s = d; s < p.slices; s += down) total += from[s * p.columns];
    }
    sums[threadIdx.x] = total;
    __syncthreads();
    if (d != 0 || column >= columns) return;
    for (uint32_t i = 1; i < down; ++i) total += sums[i * p.across + a];
    pointer<T>(p.bias)[column * p.bias_stride] = convert<T>(total);
}

#define KERNEL(BOUNDS, NAME, RANK)                                                  \
    extern "C" __global__ void __launch_bounds__ BOUNDS activation_backward_##NAME( \
        const __grid_constant__ ActivationParams<RANK> p)
#define EXPORT(T)                                                                                                      \
    KERNEL((FLAT_THREADS, 8), flat_##T, INLINE_RANK) { flat<T>(p); }                                                   \
    KERNEL((THREADS, sizeof(T) == 8 ? 2 : 3), vector_##T, INLINE_RANK) { by_rows<T, lanes_of<T>, INLINE_RANK>(p); }    \
    KERNEL((THREADS, sizeof(T) == 8 ? 2 : 4), element_##T, MAX_RANK) { by_rows<T, 1, MAX_RANK>(p); }                   \
    KERNEL((FLAT_THREADS, 6), gated_##T, INLINE_RANK) { gated<T>(p); }                                                 \
    KERNEL((THREADS, 2), gated_vector_##T, INLINE_RANK) { by_rows<T, lanes_of<T>, INLINE_RANK, true>(p); }             \
    KERNEL((THREADS, sizeof(T) == 8 ? 1 : 2), gated_element_##T, INLINE_RANK) { by_rows<T, 1, INLINE_RANK, true>(p); } \
    KERNEL((THREADS), sums_##T, INLINE_RANK) { add_slices<T>(p); }

EXPORT(f16)
EXPORT(bf16)
EXPORT(f32)
EXPORT(f64)
