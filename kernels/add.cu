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

// ScalarY is a compile-time branch because a run-time one between the two operands' loads made the compiler wait for x
// before it asked for y.
template <class T, bool ScalarY>
__device__ __forceinline__ void add_tile(const AddParams<INLINE_RANK>& p, uint64_t tile) {
    constexpr int E = lanes_of<T>;
    const auto alpha = from_bits<Arithmetic<T>>(p.alpha);
    const auto scalar = from_bits<Arithmetic<T>>(p.scalar);
    const T* x = reinterpret_cast<const T*>(p.x);
    const T* y = reinterpret_cast<const T*>(p.y);
    T* out = reinterpret_cast<T*>(p.out);

    const uint64_t begin = tile * (blockDim.x * VECTORS), first = begin + threadIdx.x;
    if (begin >= p.vectors) {
        // The last tile: the elements before the first boundary and after the last, fewer than two vectors'.
        const uint64_t i = threadIdx.x < p.head ? threadIdx.x : p.vectors * E + threadIdx.x;
        if (i < p.elements) out[i] = sum(x[i], alpha, ScalarY ? scalar : widen(y[i]));
        return;
    }
    Vector a[VECTORS], b[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const uint64_t vector = first + i * blockDim.x;
        a[i] = b[i] = Vector{};
        ptx::load_global_if<16>(vector < p.vectors, x + p.head + vector * E, a[i].word);
        if (!ScalarY) ptx::load_global_if<16>(vector < p.vectors, y + p.head + vector * E, b[i].word);
    }
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const uint64_t vector = first + i * blockDim.x;
        auto sums = a[i].template unpack<T>();
        const auto addends = b[i].template unpack<T>();
#pragma unroll
        for (int k = 0; k < E; ++k) sums.v[k] = sum(sums.v[k], alpha, ScalarY ? scalar : widen(addends.v[k]));
        if (vector < p.vectors) store_pack(out + p.head + vector * E, sums);
    }
}

template <class T, bool Loop, bool ScalarY> __device__ __forceinline__ void add_tiles(const AddParams<INLINE_RANK>& p) {
    if (Loop) {
        for (uint64_t tile = blockIdx.x; tile < p.items; tile += gridDim.x) add_tile<T, ScalarY>(p, tile);
    } else {
        add_tile<T, ScalarY>(p, blockIdx.x);
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
