// Tiles of misaligned rows on their way through shared memory: what softmax_misaligned.cu and softmax_backward_misaligned.cu
// share. The last of a kernel's N operands is the result.
#pragma once

#include "async_copy.cuh"
#include "index.cuh"
#include "staged.cuh"

// Mirrored, as is MisalignedParams, in src/cuda/plan/misaligned/mod.rs.
struct MisalignedOperand {
    uint64_t address;
    uint64_t low, high;  // the addresses that its elements span
    uint32_t together;   // whether the rows of a tile lie one behind the other, as one piece of memory
    uint32_t pitch;      // slots of 16 bytes that are kept for a piece
    uint32_t begin;      // slot of the first piece: within a stage, or of the result within shared memory
    uint32_t unused;
    Divisor by_pitch;
};
template <int N> struct MisalignedParams {
    MisalignedOperand operands[N];
    uint64_t rows;
    uint64_t tiles;
    uint32_t length;       // elements of a row
    uint32_t tile_rows;    // groups of a block
    uint32_t lanes;        // of a group: a power of two up to 32, or all threads of the block
    uint32_t trips;        // accesses of shared memory that a lane makes for a row of one operand
    uint32_t stages;       // tiles in shared memory
    uint32_t stage_slots;  // of the inputs of a tile
    uint32_t log;
    uint32_t rank;             // of dims, at least 1
    Dim<N> dims[INLINE_RANK];  // over rows; strides of the operands
};
static_assert(sizeof(MisalignedParams<2>) == 2 * 56 + 48 + 40 * INLINE_RANK, "src/cuda/plan/misaligned/mod.rs");
static_assert(sizeof(MisalignedParams<3>) == 3 * 56 + 48 + 48 * INLINE_RANK, "src/cuda/plan/misaligned/mod.rs");

// The rows of a tile in operand I of N, as pieces of memory and in shared memory.
template <class T, int I, int N> struct Pieces {
    const MisalignedParams<N>& p;
    uint64_t first;  // row
    uint32_t rows;

    __device__ __forceinline__ Pieces(const MisalignedParams<N>& p, uint64_t tile) : p(p), first(tile * p.tile_rows) {
        const uint64_t left = p.rows - first;
        rows = left < p.tile_rows ? static_cast<uint32_t>(left) : p.tile_rows;
    }
    __device__ __forceinline__ uint64_t address(uint32_t row) const {
        const int64_t at = locate(p.dims, p.rank, first + row).at[I];
        return p.operands[I].address + at * static_cast<int64_t>(sizeof(T));
    }
    // Of a row's first element in shared memory.
    __device__ __forceinline__ uint32_t place(uint32_t row) const {
        const MisalignedOperand& operand = p.operands[I];
        const uint32_t begin = operand.together ? row * p.length : row * operand.pitch * lanes_of<T>;
        const auto before = static_cast<uint32_t>(address(operand.together ? 0 : row)) % 16 / sizeof(T);
        return operand.begin * lanes_of<T> + begin + before;
    }
    // A piece of memory: `count` vectors from `base` on, of which those from `first` to `last` may be moved whole, and
    // of the others only what lies between `begin` and `end`.
    struct Piece {
        uint64_t begin, end, base;
        uint32_t count, first, last;
    };
    __device__ __forceinline__ Piece piece(uint32_t row) const {
        const MisalignedOperand& operand = p.operands[I];
        Piece piece;
        piece.begin = address(row);
        piece.end = piece.begin + static_cast<uint64_t>(operand.together ? rows : 1) * p.length * sizeof(T);
        piece.base = piece.begin / 16 * 16;
        piece.count = static_cast<uint32_t>((piece.end - piece.base + 15) / 16);
        if (I == N - 1) {
            piece.first = piece.begin > piece.base;
            piece.last = static_cast<uint32_t>((piece.end - piece.base) / 16);
        } else {
            // An input's, with what lies around the piece; but nothing outside of the addresses that its elements span.
            piece.first = piece.base < operand.low;
            piece.last = piece.count - (piece.base + piece.count * 16ull > operand.high);
        }
        return piece;
    }
    // Calls f(slot of shared memory, vector of the piece, piece) for those of a thread.
    template <class F> __device__ __forceinline__ void for_vectors(F f) const {
        const MisalignedOperand& operand = p.operands[I];
        if (operand.together) {
            const Piece all = piece(0);
#pragma unroll 2
            for (uint32_t i = threadIdx.x; i < all.count; i += blockDim.x) f(operand.begin + i, i, all);
            return;
        }
#pragma unroll 1
        for (uint32_t i = threadIdx.x; i < rows * operand.pitch; i += blockDim.x) {
            const uint32_t row = operand.by_pitch.quotient(i), vector = i - row * operand.pitch;
            const Piece own = piece(row);
            if (vector < own.count) f(operand.begin + i, vector, own);
        }
    }
};

// A vector that is not to be moved whole, between two places of which `global` is in the piece.
template <class T, class Piece>
__device__ __forceinline__ void move_elements(const Piece& piece, uint64_t global, const T* from, T* to) {
#pragma unroll 1
    for (int k = 0; k < lanes_of<T>; ++k) {
        const uint64_t at = global + k * sizeof(T);
        if (at >= piece.begin && at < piece.end) to[k] = from[k];
    }
}

// Asks for an input.
template <class T, int I, int N>
__device__ __forceinline__ void fetch(const MisalignedParams<N>& p, uint64_t tile, uint4* slots) {
    Pieces<T, I, N>(p, tile).for_vectors([&](uint32_t slot, uint32_t vector, const auto& piece) {
        const uint64_t from = piece.base + vector * 16ull;
        if (vector >= piece.first && vector < piece.last) {
            copy_async(slots + slot, reinterpret_cast<const void*>(from));
        } else {
            move_elements(piece, from, reinterpret_cast<const T*>(from), reinterpret_cast<T*>(slots + slot));
        }
    });
}

// Writes the result.
template <class T, int N>
__device__ __forceinline__ void put(const MisalignedParams<N>& p, uint64_t tile, const uint4* slots) {
    Pieces<T, N - 1, N>(p, tile).for_vectors([&](uint32_t slot, uint32_t vector, const auto& piece) {
        const uint64_t to = piece.base + vector * 16ull;
        if (vector >= piece.first && vector < piece.last) {
            ptx::store_global<16>(reinterpret_cast<void*>(to), load_slot(slots + slot).word);
        } else {
            move_elements(piece, to, reinterpret_cast<const T*>(slots + slot), reinterpret_cast<T*>(to));
        }
    });
}

// A row of shared memory as a lane sees it: perhaps a lone element before the first unit, units, every `lanes`-th of
// which is the lane's, and perhaps a lone element behind the last. The first lane has the first lone element, the last
// lane the last; with units of one element there are none.
template <class T, int U> struct LaneRow {
    T* first;  // unit
    uint32_t units, lane, lanes;
    int lone;  // where the lane's lone element lies, if it has one
    bool has_lone;
    bool aligned;  // whether a unit is one access; else it is one an element

    // `before`: elements before the first unit.
    __device__ __forceinline__ LaneRow(T* row, uint32_t before, uint32_t length, uint32_t lane, uint32_t lanes)
        : first(row + before),
          units((length - before) / U),
          lane(lane),
          lanes(lanes),
          aligned(U == 1 || reinterpret_cast<uint64_t>(first) % sizeof(Unit<T, U>) == 0) {
        const bool at_end = lane == lanes - 1 && (length - before) % U != 0;
        lone = at_end ? static_cast<int>(U * units) : -1;
        has_lone = U > 1 && (at_end || (lane == 0 && before != 0));
    }
    __device__ __forceinline__ bool has(uint32_t trip) const { return lane + trip * lanes < units; }
    __device__ __forceinline__ T* at(uint32_t trip) const { return first + (lane + trip * lanes) * U; }
    // Leaves `unit` as it is where the lane has none.
    template <bool Aligned> __device__ __forceinline__ void read(uint32_t trip, Unit<T, U>& unit) const {
        if (!has(trip)) return;
        if (Aligned || aligned) {
            unit = *reinterpret_cast<const Unit<T, U>*>(at(trip));
        } else {
#pragma unroll
            for (int k = 0; k < U; ++k) unit.v[k] = at(trip)[k];
        }
    }
    __device__ __forceinline__ void write(uint32_t trip, const Unit<T, U>& unit) const {
        if (!has(trip)) return;
        if (aligned) {
            *reinterpret_cast<Unit<T, U>*>(at(trip)) = unit;
        } else {
#pragma unroll
            for (int k = 0; k < U; ++k) at(trip)[k] = unit.v[k];
        }
    }
};
