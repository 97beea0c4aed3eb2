// targets: 75 80 90 100 120 ptx:75
//
// out = x + alpha * y, elementwise, of contiguous tensors of one dtype. Operands are converted to the result's dtype;
// the sum is computed in float32 for halves (float64 for float64, wrapping for integers, logical or for bool) and
// rounded once. int8 runs the kernels of uint8. Other layouts: add_misaligned.cu, add_strided.cu, add_transposed.cu.
//
// 2 flops an element; 3 element sizes of traffic, 2 where y is a number. A thread loads VECTORS (2) vectors of 16 bytes
// of each operand before it uses the first; all data stays in registers.
//
// Variants, chosen in src/cuda/plan/add/mod.rs, for pointers with one offset from a 16-byte boundary:
//   vector       fixed grid: a block for each tile, no loop.
//   vector_loop  grid-stride loop over tiles, for what no grid holds and as the other classic schedule.
// Measurements: docs/measurements/add.md

#include "add.cuh"

constexpr int THREADS = 256;  // at most; small problems use fewer
constexpr int VECTORS = 2;

// Full: no vector of this tile is beyond the end. ScalarY is a compile-time branch because a run-time one
// between the two operands' loads made the compiler wait for x before it asked for y.
template <class T, bool Full, bool ScalarY>
__device__ __forceinline__ void add_tile(const AddParams<INLINE_RANK>& p, uint64_t first, uint64_t vectors) {
    constexpr int E = lanes_of<T>;
    const auto alpha = from_bits<Arithmetic<T>>(p.alpha);
    const auto scalar = from_bits<Arithmetic<T>>(p.scalar);
    const T* x = reinterpret_cast<const T*>(p.x) + p.head;
    const T* y = reinterpret_cast<const T*>(p.y) + p.head;
    T* out = reinterpret_cast<T*>(p.out) + p.head;

    const auto inside = [&](int i) { return Full || first + i * blockDim.x < vectors; };
    const auto at = [&](int i) { return (first + i * blockDim.x) * E; };
    Pack<T, E> a[VECTORS], b[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (!inside(i)) continue;
        a[i] = load_pack<T, E>(x + at(i));
        if (!ScalarY) b[i] = load_pack<T, E>(y + at(i));
    }
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (!inside(i)) continue;
#pragma unroll
        for (int k = 0; k < E; ++k) a[i].v[k] = sum(a[i].v[k], alpha, ScalarY ? scalar : widen(b[i].v[k]));
        store_pack(out + at(i), a[i]);
    }
}

template <class T, bool Loop, bool ScalarY> __device__ __forceinline__ void add_tiles(const AddParams<INLINE_RANK>& p) {
    constexpr int E = lanes_of<T>;
    const uint64_t vectors = (p.elements - p.head) / E;
    const uint64_t per_tile = blockDim.x * VECTORS, full_tiles = vectors / per_tile;
    uint64_t tile = blockIdx.x;
    if constexpr (Loop) {
#pragma unroll 1
        for (; tile < full_tiles; tile += gridDim.x) {
            add_tile<T, true, ScalarY>(p, tile * per_tile + threadIdx.x, vectors);
        }
    } else if (tile < full_tiles) {
        add_tile<T, true, ScalarY>(p, tile * per_tile + threadIdx.x, vectors);
    }
    if (tile == full_tiles) add_tile<T, false, ScalarY>(p, tile * per_tile + threadIdx.x, vectors);

    // Fewer than 16 bytes before the first boundary and after the last.
    const uint64_t body = vectors * E;
    if (blockIdx.x == 0 && threadIdx.x < p.elements - body) {
        const uint64_t i = threadIdx.x < p.head ? threadIdx.x : body + threadIdx.x;
        const auto b = ScalarY ? from_bits<Arithmetic<T>>(p.scalar) : widen(reinterpret_cast<const T*>(p.y)[i]);
        const T a = reinterpret_cast<const T*>(p.x)[i];
        reinterpret_cast<T*>(p.out)[i] = sum(a, from_bits<Arithmetic<T>>(p.alpha), b);
    }
}

template <class T, bool Loop> __device__ __forceinline__ void add_vector(const AddParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    if (p.y_size == 0) {
        add_tiles<T, Loop, true>(p);
    } else {
        add_tiles<T, Loop, false>(p);
    }
}

#define EXPORT(T, NAME)                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, 4)                       \
        add_vector_##NAME(const __grid_constant__ AddParams<INLINE_RANK> p) {      \
        add_vector<T, false>(p);                                                   \
    }                                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 4)                       \
        add_vector_loop_##NAME(const __grid_constant__ AddParams<INLINE_RANK> p) { \
        add_vector<T, true>(p);                                                    \
    }

FOR_ALL_DTYPES(EXPORT)
