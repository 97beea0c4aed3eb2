// targets: 75 80 90 100 120 ptx:75
//
// out = x + alpha * y (as in add.cu) where x, y or both are transposed to the result: the result's last dimension is
// contiguous, theirs is another. One dtype, up to 4 merged dimensions. 2 flops and 3 element sizes an element.
//
// A block computes a tile of the result: 64 columns, and as many rows as 128 bytes of the transposed operand hold. That
// operand goes through shared memory in vectors of 16 bytes on both sides, so that each sector is read once, and past the
// registers where its vectors start on boundaries; the other operand loads meanwhile. Elements of 2 bytes leave shared
// memory as transposed 8 x 8 matrices (ldmatrix). Where the result's rows are misaligned, threads store neighbouring
// single elements.
//
// The kernel has no variants; src/cuda/plan/add/layout.rs chooses it.
// Measurements: docs/measurements/add_transposed.md

#include "add.cuh"
#include "async_copy.cuh"
#include "ptx/ldmatrix.cuh"
#include "transposed_tile.cuh"

constexpr int THREADS = 256;
// Of a multiprocessor; one of sm_75 holds no more.
#if __CUDA_ARCH__ == 750
template <class T> inline constexpr int BLOCKS = sizeof(T) == 1 ? 3 : 4;
#else
template <class T> inline constexpr int BLOCKS = sizeof(T) == 1 ? 3 : sizeof(T) == 8 ? 4 : 5;
#endif

template <class T> struct Tile : TransposedTile<sizeof(T)> {
    static constexpr int EACH_THREAD = TransposedTile<sizeof(T)>::VECTORS / THREADS;
};

// A transposed operand's tile to shared memory: in vectors that start on boundaries, and element by element at the tile's
// ends.
template <class T>
__device__ __forceinline__ void copy_transposed(uint4* tile, uint64_t base, int64_t stride, int rows, int columns) {
    using L = Tile<T>;
    constexpr int E = L::EACH;
#pragma unroll
    for (int i = 0; i < L::EACH_THREAD; ++i) {
        const int at = threadIdx.x + i * THREADS, column = at / L::COLUMN_VECTORS, row = at % L::COLUMN_VECTORS * E;
        const T* from = reinterpret_cast<const T*>(base + column * stride) + row;
        uint4* to = &tile[L::vector_at(row, column)];
        if (column < columns && row + E <= rows) {
            copy_async(to, from);
        } else {
#pragma unroll 1
            for (int k = 0; k < E; ++k) {
                reinterpret_cast<T*>(to)[k] = column < columns && row + k < rows ? from[k] : T{};
            }
        }
    }
}

// The same in vectors that start anywhere, and element by element also beside memory that is not the operand's.
template <class T>
__device__ __forceinline__ void load_transposed(uint4* tile, uint64_t base, int64_t stride, int rows, int columns,
                                                const Access& access) {
    using L = Tile<T>;
    using Operand = Misaligned<T>;
    constexpr int E = L::EACH;
    Operand vectors[L::EACH_THREAD];
    uint32_t whole = 0;
#pragma unroll
    for (int i = 0; i < L::EACH_THREAD; ++i) {
        const int at = threadIdx.x + i * THREADS, column = at / L::COLUMN_VECTORS, row = at % L::COLUMN_VECTORS * E;
        const uint64_t address = base + column * stride + row * sizeof(T);
        const bool fits = column < columns && row + E <= rows && Operand::fits(address, access);
        vectors[i].fetch(address, fits, access);
        whole |= static_cast<uint32_t>(fits) << i;
    }
    Pack<T, E> packs[L::EACH_THREAD];
    Operand::get(vectors, packs, access);
#pragma unroll
    for (int i = 0; i < L::EACH_THREAD; ++i) {
        const int at = threadIdx.x + i * THREADS, column = at / L::COLUMN_VECTORS, row = at % L::COLUMN_VECTORS * E;
        if (!(whole >> i & 1)) {
            packs[i] = {};
            const T* from = reinterpret_cast<const T*>(base + column * stride) + row;
#pragma unroll
            for (int k = 0; k < E; ++k) {
                if (column < columns && row + k < rows) packs[i].v[k] = from[k];
            }
        }
        store_shared_vector(&tile[L::vector_at(row, column)], Vector::of(packs[i]));
    }
}

template <class T> __device__ __forceinline__ T element(const uint4* tile, int row, int column) {
    using L = Tile<T>;
    return reinterpret_cast<const T*>(&tile[L::vector_at(row, column)])[row % L::EACH];
}

// The tile that a block computes.
struct Place {
    uint64_t x, y, out;  // addresses of the tile's first elements
    int rows, columns;   // of the tile that there are
};

template <class T> __device__ __forceinline__ Place place(const AddParams<INLINE_RANK>& p) {
    using L = Tile<T>;
    const Dim<3>&inner = p.dims[p.rank - 1], &second = p.dims[p.rank - 2];
    const uint32_t line = p.by_vectors.quotient(blockIdx.x),
                   column_tile = blockIdx.x - line * static_cast<uint32_t>(p.vectors);
    const uint32_t outer = p.by_groups.quotient(line), row_tile = line - outer * static_cast<uint32_t>(p.groups);
    const int64_t row = static_cast<int64_t>(row_tile) * L::ROWS,
                  column = static_cast<int64_t>(column_tile) * L::COLUMNS;
    Offsets<3, uint32_t> at = {};
    if (p.rank > 2) at = locate(p.dims, p.rank - 2, outer);
    for (int k = 0; k < 3; ++k) at.at[k] += row * second.strides[k] + column * inner.strides[k];
    const auto left = [](uint64_t size, int64_t from, int most) {
        const int64_t rest = static_cast<int64_t>(size) - from;
        return rest < most ? static_cast<int>(rest) : most;
    };
    return {p.x + at.at[0], p.y + at.at[1], p.out + at.at[2], left(second.size, row, L::ROWS),
            left(inner.size, column, L::COLUMNS)};
}

// A transposed operand's elements for the i-th of a thread's vectors, in `row` and from `column` on.
template <class T>
__device__ __forceinline__ Pack<T, Tile<T>::EACH> transposed_vector(const uint4* tile, int i, int row, int column) {
    using L = Tile<T>;
    Pack<T, L::EACH> pack;
    if constexpr (L::MATRICES) {
        uint32_t word[4];
        const uint4* row_of_matrix = tile + L::template matrix_row<THREADS>(threadIdx.x, i);
        ptx::ldmatrix_x4_trans(word, static_cast<uint32_t>(__cvta_generic_to_shared(row_of_matrix)));
        __builtin_memcpy(&pack, word, sizeof(pack));
    } else {
#pragma unroll
        for (int k = 0; k < L::EACH; ++k) pack.v[k] = element<T>(tile, row, column + k);
    }
    return pack;
}

// 16 bytes of the result at a time.
template <class T>
__device__ __forceinline__ void add_vectors(const AddParams<INLINE_RANK>& p, const Place& t,
                                            uint4 (&tile)[2][Tile<T>::VECTORS]) {
    using L = Tile<T>;
    constexpr int E = L::EACH;
    const Dim<3>&inner = p.dims[p.rank - 1], &second = p.dims[p.rank - 2];
    const bool x_transposed = p.flags & X_TRANSPOSED, y_transposed = p.flags & Y_TRANSPOSED;
    // The operand that is not transposed, if there is one.
    const uint64_t straight = x_transposed ? t.y : t.x;
    const int64_t stride = second.strides[x_transposed ? 1 : 0], step = inner.strides[x_transposed ? 1 : 0];
    Access access = x_transposed ? access_y(p) : access_x(p);
    if (x_transposed && y_transposed) access.size = 0;
    Own<T, E> others[L::EACH_THREAD];
#pragma unroll
    for (int i = 0; i < L::EACH_THREAD; ++i) {
        const int row = L::template row_of<THREADS>(threadIdx.x, i),
                  column = L::template column_of<THREADS>(threadIdx.x, i);
        others[i].fetch(straight + row * stride + column * step, row < t.rows && column < t.columns, access);
    }
    if (x_transposed) copy_transposed<T>(tile[0], t.x, inner.strides[0], t.rows, t.columns);
    if (y_transposed) copy_transposed<T>(tile[1], t.y, inner.strides[1], t.rows, t.columns);
    commit_copies();
    wait_for_copies(0);
    __syncthreads();
    Pack<T, E> other[L::EACH_THREAD];
    Own<T, E>::get(others, other, access);
    const auto alpha = from_bits<Arithmetic<T>>(p.alpha);
#pragma unroll
    for (int i = 0; i < L::EACH_THREAD; ++i) {
        const int row = L::template row_of<THREADS>(threadIdx.x, i),
                  column = L::template column_of<THREADS>(threadIdx.x, i);
        Pack<T, E> a = other[i], b = other[i];
        if (x_transposed) a = transposed_vector<T>(tile[0], i, row, column);
        if (y_transposed) b = transposed_vector<T>(tile[1], i, row, column);
#pragma unroll
        for (int k = 0; k < E; ++k) a.v[k] = sum(a.v[k], alpha, widen(b.v[k]));
        if (row < t.rows && column < t.columns) {
            store_pack(reinterpret_cast<T*>(t.out + row * second.strides[2]) + column, a);
        }
    }
}

// An element of the result at a time, of operands that start anywhere.
template <class T>
__device__ __forceinline__ void add_elements(const AddParams<INLINE_RANK>& p, const Place& t,
                                             uint4 (&tile)[2][Tile<T>::VECTORS]) {
    using L = Tile<T>;
    const Dim<3>&inner = p.dims[p.rank - 1], &second = p.dims[p.rank - 2];
    const bool x_transposed = p.flags & X_TRANSPOSED, y_transposed = p.flags & Y_TRANSPOSED;
    if (x_transposed) load_transposed<T>(tile[0], t.x, inner.strides[0], t.rows, t.columns, access_x(p));
    if (y_transposed) load_transposed<T>(tile[1], t.y, inner.strides[1], t.rows, t.columns, access_y(p));
    __syncthreads();
    const auto alpha = from_bits<Arithmetic<T>>(p.alpha);
#pragma unroll 4
    for (int i = threadIdx.x; i < L::ROWS * L::COLUMNS; i += THREADS) {
        const int row = i / L::COLUMNS, column = i % L::COLUMNS;
        if (row >= t.rows || column >= t.columns) continue;
        const auto straight = [&](uint64_t base, int operand) {
            return *reinterpret_cast<const T*>(base + row * second.strides[operand] + column * inner.strides[operand]);
        };
        const T a = x_transposed ? element<T>(tile[0], row, column) : straight(t.x, 0);
        const T b = y_transposed ? element<T>(tile[1], row, column) : straight(t.y, 1);
        reinterpret_cast<T*>(t.out + row * second.strides[2])[column] = sum(a, alpha, widen(b));
    }
}

template <class T> __device__ __forceinline__ void add_transposed(const AddParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    __shared__ uint4 tile[2][Tile<T>::VECTORS];
    const Place t = place<T>(p);
    if (p.flags & ALIGNED) {
        add_vectors<T>(p, t, tile);
    } else {
        add_elements<T>(p, t, tile);
    }
}

#define EXPORT(T, NAME)                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS<T>)              \
        add_transposed_##NAME(const __grid_constant__ AddParams<INLINE_RANK> p) { \
        add_transposed<T>(p);                                                     \
    }

FOR_ALL_DTYPES(EXPORT)
