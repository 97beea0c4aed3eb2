// Tiles of misaligned rows, copied between global and shared memory in vectors: for softmax_misaligned.cu and
// softmax_backward_misaligned.cu. The last of a kernel's N operands is the result.
#pragma once

#include "async_copy.cuh"
#include "index.cuh"
#include "shared_reads.cuh"

// Mirrored, as is MisalignedParams, in src/cuda/plan/misaligned/mod.rs.
struct MisalignedOperand {
    uint64_t address;
    uint64_t low, high;  // the addresses that its elements span
    uint32_t packed;     // whether the rows of a tile are one contiguous range; else each row is a range
    uint32_t pitch;      // vectors of shared memory for a range
    uint32_t begin;      // vector of the first range: within a stage, or of the result within shared memory
    uint32_t unused;
    Divisor by_pitch;
};
template <int N> struct MisalignedParams {
    MisalignedOperand operands[N];
    uint64_t rows;
    uint64_t tiles;
    uint32_t length;          // elements of a row
    uint32_t tile_rows;       // groups of a block
    uint32_t lanes;           // of a group: a power of two up to 32, or all threads of the block
    uint32_t units_per_lane;  // of a row of one operand
    uint32_t stages;          // tiles in shared memory
    uint32_t stage_vectors;   // of the inputs of a tile
    uint32_t log;
    uint32_t rank;             // of dims, at least 1
    Dim<N> dims[INLINE_RANK];  // over rows; strides of the operands
};
static_assert(sizeof(MisalignedParams<2>) == 2 * 56 + 48 + 40 * INLINE_RANK, "src/cuda/plan/misaligned/mod.rs");
static_assert(sizeof(MisalignedParams<3>) == 3 * 56 + 48 + 48 * INLINE_RANK, "src/cuda/plan/misaligned/mod.rs");

// The rows of a tile of operand I of N, as ranges of global memory and in shared memory.
template <class T, int I, int N> struct TileRows {
    const MisalignedParams<N>& p;
    uint64_t first;  // row
    uint32_t rows;

    __device__ __forceinline__ TileRows(const MisalignedParams<N>& p, uint64_t tile) : p(p), first(tile * p.tile_rows) {
        const uint64_t left = p.rows - first;
        rows = left < p.tile_rows ? static_cast<uint32_t>(left) : p.tile_rows;
    }
    __device__ __forceinline__ uint64_t address(uint32_t row) const {
        const int64_t at = locate(p.dims, p.rank, first + row).at[I];
        return p.operands[I].address + at * static_cast<int64_t>(sizeof(T));
    }
    // The index of a row's first element in shared memory.
    __device__ __forceinline__ uint32_t shared_index(uint32_t row) const {
        const MisalignedOperand& operand = p.operands[I];
        const uint32_t begin = operand.packed ? row * p.length : row * operand.pitch * lanes_of<T>;
        const auto before = static_cast<uint32_t>(address(operand.packed ? 0 : row)) % 16 / sizeof(T);
        return operand.begin * lanes_of<T> + begin + before;
    }
    // A range of global memory, `begin` to `end`, in `count` vectors from `base` on. Vectors `first` to `last` may be
    // copied whole; of the others only the elements within the range.
    struct Range {
        uint64_t begin, end, base;
        uint32_t count, first, last;
    };
    __device__ __forceinline__ Range range(uint32_t row) const {
        const MisalignedOperand& operand = p.operands[I];
        Range range;
        range.begin = address(row);
        range.end = range.begin + static_cast<uint64_t>(operand.packed ? rows : 1) * p.length * sizeof(T);
        range.base = range.begin / 16 * 16;
        range.count = static_cast<uint32_t>((range.end - range.base + 15) / 16);
        if (I == N - 1) {
            range.first = range.begin > range.base;
            range.last = static_cast<uint32_t>((range.end - range.base) / 16);
        } else {
            // Vectors of an input may include neighbouring elements, but no address outside of `low` to `high`.
            range.first = range.base < operand.low;
            range.last = range.count - (range.base + range.count * 16ull > operand.high);
        }
        return range;
    }
    // Calls f(vector of shared memory, vector of the range, range) for the vectors of a thread.
    template <class F> __device__ __forceinline__ void for_vectors(F f) const {
        const MisalignedOperand& operand = p.operands[I];
        if (operand.packed) {
            const Range all = range(0);
#pragma unroll 2
            for (uint32_t i = threadIdx.x; i < all.count; i += blockDim.x) f(operand.begin + i, i, all);
            return;
        }
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < rows * operand.pitch; i += blockDim.x) {
            const uint32_t row = operand.by_pitch.quotient(i), vector = i - row * operand.pitch;
            const Range own = range(row);
            if (vector < own.count) f(operand.begin + i, vector, own);
        }
    }
};

// Copies the elements of a vector that are in the range; `global` is the vector's address in global memory.
template <class T, class Range>
__device__ __forceinline__ void copy_elements(const Range& range, uint64_t global, const T* from, T* to) {
#pragma unroll 1
    for (int k = 0; k < lanes_of<T>; ++k) {
        const uint64_t at = global + k * sizeof(T);
        if (at >= range.begin && at < range.end) to[k] = from[k];
    }
}

// Starts the copies of an input's tile.
template <class T, int I, int N>
__device__ __forceinline__ void fetch(const MisalignedParams<N>& p, uint64_t tile, uint4* shared) {
    TileRows<T, I, N>(p, tile).for_vectors([&](uint32_t to, uint32_t vector, const auto& range) {
        const uint64_t from = range.base + vector * 16ull;
        if (vector >= range.first && vector < range.last) {
            copy_async(shared + to, reinterpret_cast<const void*>(from));
        } else {
            copy_elements(range, from, reinterpret_cast<const T*>(from), reinterpret_cast<T*>(shared + to));
        }
    });
}

// Stores the result's tile.
template <class T, int N>
__device__ __forceinline__ void store_tile(const MisalignedParams<N>& p, uint64_t tile, const uint4* shared) {
    TileRows<T, N - 1, N>(p, tile).for_vectors([&](uint32_t from, uint32_t vector, const auto& range) {
        const uint64_t to = range.base + vector * 16ull;
        if (vector >= range.first && vector < range.last) {
            ptx::store_global<16>(reinterpret_cast<void*>(to), load_shared_vector(shared + from).word);
        } else {
            copy_elements(range, to, reinterpret_cast<const T*>(shared + from), reinterpret_cast<T*>(to));
        }
    });
}

// A lane's elements of a row in shared memory: every `lanes`-th unit, and singles, elements before the first and behind
// the last unit. The first lane has the single before, the last lane the single behind; units of one element leave no
// singles.
template <class T, int U> struct LaneRow {
    T* first;  // unit
    uint32_t units, lane, lanes;
    int single;  // index of the lane's single, if it has one
    bool has_single;
    bool aligned;  // whether a unit is one access; else each element is one

    // `before`: elements before the first unit.
    __device__ __forceinline__ LaneRow(T* row, uint32_t before, uint32_t length, uint32_t lane, uint32_t lanes)
        : first(row + before),
          units((length - before) / U),
          lane(lane),
          lanes(lanes),
          aligned(U == 1 || reinterpret_cast<uint64_t>(first) % sizeof(Unit<T, U>) == 0) {
        const bool at_end = lane == lanes - 1 && (length - before) % U != 0;
        single = at_end ? static_cast<int>(U * units) : -1;
        has_single = U > 1 && (at_end || (lane == 0 && before != 0));
    }
    __device__ __forceinline__ bool has(uint32_t i) const { return lane + i * lanes < units; }
    __device__ __forceinline__ T* at(uint32_t i) const { return first + (lane + i * lanes) * U; }
    // Reads the lane's i-th unit; without one, `unit` keeps its value.
    template <bool Aligned> __device__ __forceinline__ void read(uint32_t i, Unit<T, U>& unit) const {
        if (!has(i)) return;
        if (Aligned || aligned) {
            unit = *reinterpret_cast<const Unit<T, U>*>(at(i));
        } else {
#pragma unroll
            for (int k = 0; k < U; ++k) unit.v[k] = at(i)[k];
        }
    }
    __device__ __forceinline__ void write(uint32_t i, const Unit<T, U>& unit) const {
        if (!has(i)) return;
        if (aligned) {
            *reinterpret_cast<Unit<T, U>*>(at(i)) = unit;
        } else {
#pragma unroll
            for (int k = 0; k < U; ++k) at(i)[k] = unit.v[k];
        }
    }
};
