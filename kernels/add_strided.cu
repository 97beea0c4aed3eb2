// targets: 75 80 90 100 120 ptx:75
//
// out = x + alpha * y (as in add.cu) of views: broadcast, sliced, permuted, misaligned, of mixed dtypes. 2 flops an
// element, and the traffic of add.cu; a broadcast operand is read from memory once.
//
// Variants, chosen in src/cuda/plan/add/layout.rs. In the first three the result's last dimension is contiguous, x and y
// step along it by one element or none, and a thread stores aligned vectors of 16 bytes; row ends move by element:
//   rows             one dtype, every row of x and y as far from a 16-byte boundary as the result's.
//   misaligned_rows  one dtype, rows that begin anywhere: each vector from the two aligned ones around it.
//   mixed            dtypes no wider than the result's: 16 bytes of the result against 16, 8, 4 or 2 of an operand.
//   strided          one dtype, any strides, up to 4 merged dimensions: neighbouring threads have neighbouring elements;
//                    strided_mixed of several dtypes, deep of any number of dimensions and elements (64-bit indices).
// Vectors of a thread are in different rows at one column, so that a broadcast row comes from L1; in one row if there are
// few. y may be a number.
// Measurements: docs/measurements/add_strided.md

#include "add.cuh"

constexpr int THREADS = 256;  // at most; small problems use fewer
// Vectors per thread, the last three of single elements; mirrored in src/cuda/plan/add/layout.rs.
constexpr int ROWS_VECTORS = 4, MISALIGNED_VECTORS = 2, MIXED_VECTORS = 2;
constexpr int STRIDED_VECTORS = 8, STRIDED_MIXED_VECTORS = 4, DEEP_VECTORS = 4;
// Blocks of `strided` that share a multiprocessor: one has few bytes on their way.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
template <class T> constexpr int STRIDED_BLOCKS = 4;
#else
template <class T> constexpr int STRIDED_BLOCKS = sizeof(T) < 8 ? 6 : 4;
#endif

// The ends of rows, and vectors beside which another's memory lies: element by element.
template <class Operand, int N, int Rank>
__device__ __forceinline__ void add_row_ends(const AddParams<Rank>& p, uint64_t x, uint64_t y, uint64_t out,
                                             int64_t first, uint32_t ends) {
    using T = typename Operand::type;
    constexpr int E = Operand::WIDTH, AT_ONCE = E < 4 ? E : 4;
    const Dim<3>& inner = p.dims[p.rank - 1];
    const Access ax = access_x(p), ay = access_y(p);
#pragma unroll 1
    for (int i = 0; i < N; ++i) {
#pragma unroll 1
        for (int j = 0; j < E && (ends >> i & 1); j += AT_ONCE) {
            typename Operand::Element a[AT_ONCE], b[AT_ONCE];
            uint32_t valid = 0;
#pragma unroll
            for (int k = 0; k < AT_ONCE; ++k) {
                const int64_t column = first + static_cast<int64_t>(i * p.vector_step) * E + j + k;
                const bool wanted = column >= 0 && column < static_cast<int64_t>(inner.size);
                a[k].fetch(x + i * p.steps[0] + (j + k) * inner.strides[0], wanted, ax);
                b[k].fetch(y + i * p.steps[1] + (j + k) * inner.strides[1], wanted, ay);
                valid |= static_cast<uint32_t>(wanted) << k;
            }
            add_fetched(p, a, b, out + i * p.steps[2] + j * sizeof(T), sizeof(T), valid);
        }
    }
}

// A thread's N vectors have one alignment: their rows, or their places in the row, are multiples of 16 bytes of the result
// apart.
template <class Operand, int N, class Index, int Rank>
__device__ __forceinline__ void add_rows(const AddParams<Rank>& p) {
    ptx::wait_for_grid_before();
    constexpr int E = Operand::WIDTH;
    const Dim<3>&inner = p.dims[p.rank - 1], &rows = p.dims[p.rank - 2];
    const Index item = static_cast<Index>(blockIdx.x) * static_cast<Index>(p.span) + threadIdx.x;
    if (item >= p.items) return;
    const Index line = p.by_vectors.quotient(item), vector = item - line * static_cast<Index>(p.vectors);
    const Index outer = p.by_groups.quotient(line), group = line - outer * static_cast<Index>(p.groups);
    const Index row = group * p.group_step;
    Offsets<3, Index> at = {};
    if (p.rank > 2) at = locate(p.dims, p.rank - 2, outer);
    for (int k = 0; k < 3; ++k) at.at[k] += static_cast<int64_t>(row) * rows.strides[k];
    // Vectors start on 16-byte boundaries of the result.
    const uint32_t past = static_cast<uint32_t>(p.out + at.at[2]) % 16 / sizeof(typename Operand::type);
    const int64_t first = static_cast<int64_t>(vector) * E - (E == 1 ? 0 : past);
    for (int k = 0; k < 3; ++k) at.at[k] += first * inner.strides[k];
    const uint64_t x = p.x + at.at[0], y = p.y + at.at[1], out = p.out + at.at[2];
    const int64_t columns = static_cast<int64_t>(inner.size);

    const Access ax = access_x(p), ay = access_y(p);
    Operand a[N], b[N];
    uint32_t whole = 0, ends = 0;
    // Step by step, or all addresses are held at once.
    uint64_t from_x = x, from_y = y;
#pragma unroll
    for (int i = 0; i < N; ++i) {
        const int64_t from = first + static_cast<int64_t>(i * p.vector_step) * E;
        const bool some = row + static_cast<Index>(i * p.row_step) < static_cast<Index>(rows.size) && from < columns;
        bool fits = some && from >= 0 && from + E <= columns;
        // Within a row its neighbours are its own.
        if (Operand::NEIGHBOURS && fits && (from < E || from + 2 * E > columns)) {
            fits = Operand::fits(from_x, ax) && Operand::fits(from_y, ay);
        }
        whole |= static_cast<uint32_t>(fits) << i;
        ends |= static_cast<uint32_t>(some && !fits) << i;
        a[i].fetch(from_x, fits, ax);
        b[i].fetch(from_y, fits, ay);
        from_x += p.steps[0];
        from_y += p.steps[1];
    }
    add_fetched(p, a, b, out, p.steps[2], whole);
    if constexpr (E > 1) {
        if (ends != 0) add_row_ends<Operand, N>(p, x, y, out, first, ends);
    }
}

#define EXPORT(T, NAME)                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 3)                           \
        add_rows_##NAME(const __grid_constant__ AddParams<INLINE_RANK> p) {            \
        add_rows<Own<T, lanes_of<T>>, ROWS_VECTORS, uint32_t>(p);                      \
    }                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 3)                           \
        add_misaligned_rows_##NAME(const __grid_constant__ AddParams<INLINE_RANK> p) { \
        add_rows<Misaligned<T>, MISALIGNED_VECTORS, uint32_t>(p);                      \
    }                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, STRIDED_BLOCKS<T>)           \
        add_strided_##NAME(const __grid_constant__ AddParams<INLINE_RANK> p) {         \
        add_rows<Own<T, 1>, STRIDED_VECTORS, uint32_t>(p);                             \
    }                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                           \
        add_deep_##NAME(const __grid_constant__ AddParams<MAX_RANK> p) {               \
        if (same_type<T, boolean> || (p.flags & SAME_DTYPE)) {                         \
            add_rows<Own<T, 1>, DEEP_VECTORS, uint64_t>(p);                            \
        } else if constexpr (!same_type<T, boolean>) {                                 \
            add_rows<Tagged<T, 1>, DEEP_VECTORS, uint64_t>(p);                         \
        }                                                                              \
    }
// Nothing but bool becomes bool.
#define EXPORT_MIXED(T, NAME)                                                        \
    extern "C" __global__ void __launch_bounds__(THREADS, sizeof(T) < 4 ? 3 : 4)     \
        add_mixed_##NAME(const __grid_constant__ AddParams<INLINE_RANK> p) {         \
        add_rows<Tagged<T, lanes_of<T>>, MIXED_VECTORS, uint32_t>(p);                \
    }                                                                                \
    extern "C" __global__ void __launch_bounds__(THREADS, 4)                         \
        add_strided_mixed_##NAME(const __grid_constant__ AddParams<INLINE_RANK> p) { \
        add_rows<Tagged<T, 1>, STRIDED_MIXED_VECTORS, uint32_t>(p);                  \
    }

FOR_ALL_DTYPES(EXPORT)
FOR_NUMERIC_DTYPES(EXPORT_MIXED)
