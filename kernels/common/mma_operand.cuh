// One operand of a tensor-core matmul: from global memory through shared memory to fragments in registers. `mn` is the
// dimension that the operand shares with the result: m of a, n of b.
#pragma once

#include "ptx/cp_async.cuh"
#include "ptx/ldmatrix.cuh"
#include "ptx/shared.cuh"
#include "shared_tile.cuh"

// Brings tiles in by asynchronous copies of 16 bytes along the operand's unit stride. Rows are aligned to
// that and hold whole vectors. Every thread copies the same vector column of every ROW_STEP-th row, top down, so that all
// it needs is one pointer on the move; and every COLUMNS-th from there on, of rows that are no power of two long.
template <class T, int MN, int BK, Major MAJOR, int THREADS>
struct AsyncCopier {
    using Shared = SharedTile<MN, BK, sizeof(T), MAJOR>;
    static constexpr int COLUMNS = Shared::VECTORS & -Shared::VECTORS;  // that threads next to each other copy
    static constexpr int EACH_ROW = Shared::VECTORS / COLUMNS;          // copies of a thread and row
    static constexpr int ROW_STEP = THREADS / COLUMNS;
    static constexpr int COUNT = Shared::ROWS / ROW_STEP * EACH_ROW;  // copies a thread and tile
    static_assert(THREADS % COLUMNS == 0 && Shared::ROWS % ROW_STEP == 0, "every thread copies alike");
    static_assert(EACH_ROW == 1 || MAJOR == Major::MN, "along k, rows are short");
    static_assert(ROW_STEP % Shared::PERIOD == 0 || Shared::PERIOD % ROW_STEP == 0, "an XOR permutes a thread's rows");

    const T* source;   // this thread's next vector
    int64_t row_step;  // elements from one of its rows to the next
    int64_t turn;      // from past the last row of a tile to the first of the next
    int k;             // of its first vector
    int mn_left;       // from its first vector to the operand's end
    uint32_t offset;   // of its first vector in shared memory

    // `tile` is element (0, k = 0) of the tile, `lead` the stride of the dimension that has no unit stride.
    __device__ __forceinline__ AsyncCopier(const T* tile, int64_t lead, int mn_left)
        : row_step(lead * ROW_STEP) {
        const int row = threadIdx.x / COLUMNS, vector = threadIdx.x % COLUMNS;
        source = tile + row * lead + vector * Shared::EACH;
        offset = Shared::offset(row, vector);
        turn = MAJOR == Major::K ? BK - MN * lead : 0;
        k = MAJOR == Major::K ? vector * Shared::EACH : row;
        this->mn_left = mn_left - (MAJOR == Major::K ? row : vector * Shared::EACH);
    }

    // Starts the copies number i with i * parts / COUNT == part; the parts of a tile must come in order.
    // k_left steps of k exist, possibly none; outside the operand the copies write zeros.
    __device__ __forceinline__ void copy(uint32_t shared, int k_left, int part, int parts) {
        const int rows = MAJOR == Major::K ? (k < k_left ? mn_left : 0) : (mn_left > 0 ? k_left - k : 0);
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (i * parts / COUNT != part) continue;
            const int row = i / EACH_ROW * ROW_STEP, column = i % EACH_ROW * COLUMNS;
            const bool there = row < rows && (column == 0 || column * Shared::EACH < mn_left);
            const uint32_t to = shared + row_offset(row) + column * 16;
            ptx::cp_async_16(to, source + column * Shared::EACH, there);
            if (i % EACH_ROW + 1 == EACH_ROW) source += row_step;
        }
        if (MAJOR == Major::K && part + 1 == parts) source += turn;
    }

    // In shared memory, of this thread's vector in one of its rows.
    __device__ __forceinline__ uint32_t row_offset(int row) const {
        return (offset ^ (Shared::swizzle(row) << 4)) + row * Shared::ROW_BYTES;
    }
};

// Brings tiles in element by element through registers, from any strides, into the K-major image.
// Neighbouring threads read along the smaller stride.
template <class T, int MN, int BK, int THREADS>
struct ElementCopier {
    using Shared = SharedTile<MN, BK, sizeof(T), Major::K>;
    static constexpr int COUNT = MN * BK / THREADS;  // elements a thread and tile
    static_assert(BK == 32 && THREADS % MN == 0 && COUNT % 8 == 0, "a warp reads a row, or a thread a vector");
    static constexpr int ROW_STEP = THREADS / BK, VECTOR_STEP = THREADS / MN;  // from element to element
    static_assert(ROW_STEP % Shared::PERIOD == 0, "every row of a thread is permuted alike");

    const T* source;  // this thread's first element of the next tile
    int64_t mn_step, k_step;
    int mn, k;  // of that element
    int mn_left;
    bool k_fast;
    uint16_t loaded[COUNT];

    __device__ __forceinline__ ElementCopier(const T* tile, int64_t mn_step, int64_t k_step, int mn_left, bool k_fast)
        : mn_step(mn_step), k_step(k_step), mn_left(mn_left), k_fast(k_fast) {
        mn = k_fast ? threadIdx.x / BK : threadIdx.x % MN;
        k = k_fast ? threadIdx.x % BK : threadIdx.x / MN * 8;
        source = tile + mn * mn_step + k * k_step;
    }

    // Reads the next tile's elements, zeros where it leaves the operand.
    __device__ __forceinline__ void load(int k_left) {
        const uint16_t* from = reinterpret_cast<const uint16_t*>(source);
        if (k_fast) {
            const int rows = k < k_left ? mn_left - mn : 0;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                loaded[i] = i * ROW_STEP < rows ? *from : uint16_t(0);
                from += ROW_STEP * mn_step;
            }
        } else {
            const int steps = mn < mn_left ? k_left - k : 0;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                loaded[i] = i / 8 * 8 * VECTOR_STEP + i % 8 < steps ? *from : uint16_t(0);
                from += i % 8 == 7 ? (VECTOR_STEP * 8 - 7) * k_step : k_step;
            }
        }
        source += BK * k_step;
    }

    // Writes them to shared memory: single elements along a row, or whole vectors of k.
    __device__ __forceinline__ void store(uint8_t* shared) const {
        if (k_fast) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                uint8_t* at = shared + Shared::element(mn, k) + i * ROW_STEP * Shared::ROW_BYTES;
                *reinterpret_cast<uint16_t*>(at) = loaded[i];
            }
        } else {
#pragma unroll
            for (int c = 0; c < COUNT; c += 8) {
                uint4 packed;
                packed.x = loaded[c] | uint32_t(loaded[c + 1]) << 16;
                packed.y = loaded[c + 2] | uint32_t(loaded[c + 3]) << 16;
                packed.z = loaded[c + 4] | uint32_t(loaded[c + 5]) << 16;
                packed.w = loaded[c + 6] | uint32_t(loaded[c + 7]) << 16;
                *reinterpret_cast<uint4*>(shared + Shared::element(mn, k + c * VECTOR_STEP)) = packed;
            }
        }
    }
};

// Reads pieces of a tile as fragments: 16 elements of mn by 32 bytes of k.
template <class Shared, Major MAJOR, Side SIDE, int PIECES>
struct FragmentReader {
    static constexpr int STEPS = Shared::steps(PIECES), CYCLE = Shared::cycle(STEPS);
    static constexpr int BASES = PIECES / STEPS < CYCLE ? PIECES / STEPS : CYCLE;
    static_assert(PIECES == STEPS || STEPS <= Shared::EACH / 2, "groups of steps stay within a cycle");
    uint32_t bases[BASES];

    // `first` is the warp's first row of a, or column of b, within the tile.
    __device__ __forceinline__ explicit FragmentReader(int first) {
#pragma unroll
        for (int i = 0; i < BASES; ++i) bases[i] = Shared::fragment(SIDE, first + 16 * STEPS * i, threadIdx.x % 32);
    }

    // Rows (columns) first + 16 i to + 15, bytes of k from 32 j to + 31.
    __device__ __forceinline__ void read(uint32_t (&fragment)[4], uint32_t shared, int i, int j) const {
        const uint32_t base = bases[i / STEPS % CYCLE];
        shared += i / STEPS / CYCLE * Shared::CYCLE_BYTES;
        i %= STEPS;
        const uint32_t address = shared + Shared::step(base, i, j);
        if constexpr (MAJOR == Major::K) {
            ptx::ldmatrix_x4(fragment, address);
        } else if constexpr (Shared::TRANSPOSABLE) {
            ptx::ldmatrix_x4_trans(fragment, address);
        } else {
#pragma unroll
            for (int low = 0; low < 2; ++low)
#pragma unroll
                for (int high = 0; high < 2; ++high) {
                    const int at = SIDE == Side::A ? Shared::half(Shared::step(base, i, j), low, high)
                                                   : Shared::half(Shared::step(base, i, j), high, low);
                    fragment[high * 2 + low] = ptx::load_shared(shared + at);
                }
        }
    }
};
