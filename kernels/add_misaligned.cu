// targets: 75 80 90 100 120 ptx:75
//
// out = x + alpha * y (as in add.cu) of one dtype, where the result and one operand are contiguous, but vectors of 16
// bytes do not fit all operands alike. 2 flops an element, and the traffic of add.cu.
//
// Variants, chosen in src/cuda/plan/add/misaligned.rs:
//   misaligned  contiguous operands that begin anywhere. A warp loads aligned contiguous vectors; what a lane's 16 bytes
//               of the result need of the next vector comes from the next lane by a shuffle. y may be a number.
//   repeated    rows of any length, to all of which one row is added. The result and the operand with rows are one range
//               of aligned vectors, in which the row's columns repeat. A thread takes vectors that begin in one
//               column, and keeps the elements of the row that it adds to them in registers.
// Measurements: docs/measurements/add_misaligned.md

#include "add.cuh"

constexpr int THREADS = 256;  // at most; small problems use fewer
// Vectors of a thread; Variant::vectors_per_thread in src/cuda/plan/add/layout.rs.
constexpr int MISALIGNED_VECTORS = 2, REPEATED_VECTORS = 2;

// N vectors of a lane, 32 vectors apart, and for the first lane the one after them.
template <class T, int N> struct Shuffled {
    uint32_t word[N + 1][4] = {};
    uint32_t past;

    // There are `count` vectors from `address` on.
    __device__ __forceinline__ void fetch(uint64_t address, uint64_t first, uint64_t count, bool wanted) {
        past = static_cast<uint32_t>(address) % 16;
        const char* low = reinterpret_cast<const char*>(address - past);
        const uint64_t vectors = wanted ? count + (past != 0) : 0;
#pragma unroll
        for (int i = 0; i <= N; ++i) {
            const uint64_t at = first + i * 32;
            ptx::load_global_if<16>(at < vectors && (i < N || threadIdx.x % 32 == 0), low + at * 16, word[i]);
        }
    }
    // Word: how many words lie before the first that is wanted.
    template <int Word> __device__ __forceinline__ void complete(Pack<T, lanes_of<T>> (&to)[N]) const {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            uint32_t all[8], whole[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                all[k] = word[i][k];
                // The last lane's neighbour is the first, of the next vectors.
                const uint32_t given = lane == 0 ? word[i + 1][k] : word[i][k];
                all[4 + k] = k < Word + (sizeof(T) < 4) ? __shfl_sync(~0u, given, (lane + 1) % 32) : 0;
            }
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                whole[k] = all[Word + k];
                if constexpr (sizeof(T) < 4) whole[k] = __funnelshift_r(whole[k], all[Word + k + 1], past % 4 * 8);
            }
            __builtin_memcpy(&to[i], whole, sizeof(whole));
        }
    }
    __device__ __forceinline__ void get(Pack<T, lanes_of<T>> (&to)[N]) const {
        switch (past / 4) {  // the same in the whole grid
        case 0: complete<0>(to); break;
        case 1: complete<1>(to); break;
        case 2: complete<2>(to); break;
        default: complete<3>(to); break;
        }
    }
};

// One element that is in no vector.
template <class T> __device__ __forceinline__ void add_one(const AddParams<INLINE_RANK>& p, uint64_t x, uint64_t y,
                                                           uint64_t out) {
    const auto b = p.y_size == 0 ? from_bits<Arithmetic<T>>(p.scalar) : widen(reinterpret_cast<const T*>(p.y)[y]);
    reinterpret_cast<T*>(p.out)[out] = sum(reinterpret_cast<const T*>(p.x)[x], from_bits<Arithmetic<T>>(p.alpha), b);
}
// The index of an element before or after the vectors, for the first block's threads; there are at most 64.
__device__ __forceinline__ bool outside(const AddParams<INLINE_RANK>& p, uint64_t inside, uint64_t& i) {
    i = threadIdx.x < p.head ? threadIdx.x : inside + threadIdx.x;
    return blockIdx.x == 0 && i < p.elements;
}

template <class T> __device__ __forceinline__ void add_misaligned(const AddParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    constexpr int E = lanes_of<T>, N = MISALIGNED_VECTORS;
    const uint64_t before = p.head * sizeof(T);
    const uint64_t warp = (static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
    const uint64_t first = warp * (32 * N) + threadIdx.x % 32;
    Shuffled<T, N> a, b;
    a.fetch(p.x + before, first, p.items, true);
    b.fetch(p.y + before, first, p.items, p.y_size != 0);
    Pack<T, E> x[N], y[N];
    a.get(x);
    b.get(y);
    const auto alpha = from_bits<Arithmetic<T>>(p.alpha), scalar = from_bits<Arithmetic<T>>(p.scalar);
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int k = 0; k < E; ++k) x[i].v[k] = sum(x[i].v[k], alpha, p.y_size == 0 ? scalar : widen(y[i].v[k]));
        const uint64_t at = first + i * 32;
        if (at < p.items) store_pack(reinterpret_cast<T*>(p.out + before) + at * E, x[i]);
    }
    uint64_t i;
    if (outside(p, p.items * E, i)) add_one<T>(p, i, i, i);
}

// RowX: x is the row.
template <class T, bool RowX> __device__ __forceinline__ void add_repeated(const AddParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    constexpr int E = lanes_of<T>, N = REPEATED_VECTORS;
    const Dim<3>& inner = p.dims[p.rank - 1];
    const auto columns = static_cast<uint32_t>(inner.size);
    const auto column_of = [&](uint64_t i) { return static_cast<uint32_t>(i - inner.divisor.quotient(i) * columns); };
    const auto alpha = from_bits<Arithmetic<T>>(p.alpha);
    const uint64_t vectors = (p.elements - p.head) / E, before = p.head * sizeof(T);
    const uint32_t item = blockIdx.x * blockDim.x + threadIdx.x;
    if (item < p.items) {
        const uint32_t group = p.by_vectors.quotient(item), place = item - group * static_cast<uint32_t>(p.vectors);
        const char* full = reinterpret_cast<const char*>((RowX ? p.y : p.x) + before);
        const T* row = reinterpret_cast<const T*>(RowX ? p.x : p.y);
        const uint64_t first = static_cast<uint64_t>(group) * p.vectors + place, step = p.groups * p.vectors;
        Vector vector[N] = {};
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const uint64_t at = first + i * step;
            ptx::load_global_if<16>(at < vectors, full + at * 16, vector[i].word);
        }
        const uint32_t column = column_of(p.head + place * static_cast<uint64_t>(E));
        T added[E];
#pragma unroll
        for (int k = 0; k < E; ++k) added[k] = row[column + k < columns ? column + k : column + k - columns];
#pragma unroll
        for (int i = 0; i < N; ++i) {
            Pack<T, E> pack = vector[i].unpack<T>();
#pragma unroll
            for (int k = 0; k < E; ++k) {
                pack.v[k] = RowX ? sum(added[k], alpha, widen(pack.v[k])) : sum(pack.v[k], alpha, widen(added[k]));
            }
            const uint64_t at = first + i * step;
            if (at < vectors) store_pack(reinterpret_cast<T*>(p.out + before) + at * E, pack);
        }
    }
    uint64_t i;
    if (outside(p, vectors * E, i)) add_one<T>(p, RowX ? column_of(i) : i, RowX ? i : column_of(i), i);
}

#define KERNEL(NAME) \
    extern "C" __global__ void __launch_bounds__(THREADS, 4) NAME(const __grid_constant__ AddParams<INLINE_RANK> p)
#define EXPORT(T, NAME)                                     \
    KERNEL(add_misaligned_##NAME) { add_misaligned<T>(p); } \
    KERNEL(add_repeated_##NAME) {                           \
        if (p.flags & ROW_X) {                              \
            add_repeated<T, true>(p);                       \
        } else {                                            \
            add_repeated<T, false>(p);                      \
        }                                                   \
    }

FOR_ALL_DTYPES(EXPORT)
