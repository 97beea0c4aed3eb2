// One operand of a tensor-core matmul on its way from global memory through shared memory to fragments.
// `mn` is the dimension the operand shares with the result: m of a, n of b.
#pragma once

#include "common/ptx/cp_async.cuh"
#include "common/ptx/ldmatrix.cuh"
#include "common/shared_tile.cuh"

// Brings tiles in by asynchronous copies of 16 bytes along the operand's unit stride. Rows are aligned to
// that and hold whole chunks. Every thread copies the same chunk column of every ROW_STEP-th row, top down,
// so that all it needs is one pointer on the move.
template <typename T, int MN, int BK, Major MAJOR, int THREADS>
struct AsyncCopier {
    using Shared = SharedTile<MN, BK, MAJOR>;
    static constexpr int ROW_STEP = THREADS / Shared::CHUNKS;
    static constexpr int COUNT = Shared::ROWS / ROW_STEP;  // copies a thread and tile
    static_assert(THREADS % Shared::CHUNKS == 0 && Shared::ROWS % ROW_STEP == 0, "every thread copies alike");
    static_assert(ROW_STEP % 8 == 0, "the swizzle repeats after 8 rows");

    const T* source;   // this thread's next chunk
    int64_t row_step;  // elements from one of its rows to the next
    int64_t turn;      // from past the last row of a tile to the first of the next
    int along, across;
    uint32_t offset;   // of its first chunk in shared memory

    // `tile` is element (0, k = 0) of the tile, `lead` the stride of the dimension that has no unit stride.
    __device__ __forceinline__ AsyncCopier(const T* tile, int64_t lead, int mn_left) : row_step(lead * ROW_STEP) {
        const int row = threadIdx.x / Shared::CHUNKS, chunk = threadIdx.x % Shared::CHUNKS;
        source = tile + row * lead + chunk * 8;
        offset = Shared::offset(row, chunk);
        if (MAJOR == Major::K) {
            turn = BK - MN * lead;
            along = chunk * 8;
            across = mn_left - row;
        } else {
            turn = 0;
            along = 0;
            across = chunk * 8 < mn_left ? row : BK;
        }
    }

    // Starts the copies number i with i * parts / COUNT == part; the parts of a tile must come in order.
    // k_left steps of k exist, possibly none; outside the operand the copies write zeros.
    __device__ __forceinline__ void copy(uint32_t shared, int k_left, int part, int parts) {
        const int rows = MAJOR == Major::K ? (along < k_left ? across : 0) : k_left - across;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            if (i * parts / COUNT != part) continue;
            ptx::cp_async_16(shared + offset + i * ROW_STEP * Shared::ROW_BYTES, source, i * ROW_STEP < rows);
            source += row_step;
        }
        if (MAJOR == Major::K && part + 1 == parts) source += turn;
    }
};

// Brings tiles in element by element through registers, from any strides, into the K-major image.
// Neighbouring threads read along the smaller stride.
template <typename T, int MN, int BK, int THREADS>
struct ElementCopier {
    using Shared = SharedTile<MN, BK, Major::K>;
    static constexpr int COUNT = MN * BK / THREADS;  // elements a thread
    static_assert(BK == 32 && THREADS % MN == 0 && COUNT % 8 == 0, "a warp reads a row, a thread a chunk");

    const T* source;
    int64_t mn_step, k_step;
    int mn_left;
    bool k_fast;
    uint16_t held[COUNT];

    __device__ __forceinline__ ElementCopier(const T* tile, int64_t mn_step, int64_t k_step, int mn_left, bool k_fast)
        : source(tile), mn_step(mn_step), k_step(k_step), mn_left(mn_left), k_fast(k_fast) {}

    // Reads the next tile's elements, zeros where it leaves the operand.
    __device__ __forceinline__ void load(int k_left) {
        if (k_fast) {
            const int k = threadIdx.x % BK;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) read(i, threadIdx.x / BK + i * (THREADS / BK), k, k_left);
        } else {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) read(i, threadIdx.x % MN, chunk(i / 8) * 8 + i % 8, k_left);
        }
        source += BK * k_step;
    }

    // Writes them to shared memory: single elements along a row, or whole chunks of k.
    __device__ __forceinline__ void store(uint8_t* shared) const {
        if (k_fast) {
            const int k = threadIdx.x % BK;
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const int mn = threadIdx.x / BK + i * (THREADS / BK);
                *reinterpret_cast<uint16_t*>(shared + Shared::element(mn, k) + k % 8 * 2) = held[i];
            }
        } else {
#pragma unroll
            for (int c = 0; c < COUNT / 8; ++c) {
                uint4 packed;
                packed.x = held[c * 8] | uint32_t(held[c * 8 + 1]) << 16;
                packed.y = held[c * 8 + 2] | uint32_t(held[c * 8 + 3]) << 16;
                packed.z = held[c * 8 + 4] | uint32_t(held[c * 8 + 5]) << 16;
                packed.w = held[c * 8 + 6] | uint32_t(held[c * 8 + 7]) << 16;
                *reinterpret_cast<uint4*>(shared + Shared::offset(threadIdx.x % MN, chunk(c))) = packed;
            }
        }
    }

private:
    __device__ __forceinline__ static int chunk(int c) { return threadIdx.x / MN + c * (THREADS / MN); }

    __device__ __forceinline__ void read(int i, int mn, int k, int k_left) {
        const uint16_t* from = reinterpret_cast<const uint16_t*>(source) + mn * mn_step + k * k_step;
        held[i] = mn < mn_left && k < k_left ? *from : uint16_t(0);
    }
};

// The order of an operand's four 8x8 matrices in one ldmatrix: a's fragment (16x16) wants both halves of m
// before the second half of k, b's two neighbouring fragments (16x8 each) both halves of k first.
enum class Side { A, B };

// Reads 16 x 16 pieces of a tile as fragments.
template <int MN, int BK, Major MAJOR, Side SIDE>
struct FragmentReader {
    using Shared = SharedTile<MN, BK, MAJOR>;
    uint32_t base;

    // `first` is the warp's first row of a, or column of b, within the tile.
    __device__ __forceinline__ explicit FragmentReader(int first) : base(lane_base(first, threadIdx.x % 32)) {}

    // The chunk whose address this lane gives, at k = 0.
    TILEWISE_HOST_DEVICE static uint32_t lane_base(int first, int lane) {
        const int row = lane & 7, low = lane >> 3 & 1, high = lane >> 4;
        const int mn = first + (SIDE == Side::A ? low : high) * 8;
        const int k = (SIDE == Side::A ? high : low) * 8;
        return MAJOR == Major::K ? Shared::element(mn + row, k) : Shared::element(mn, k + row);
    }

    // Rows (columns) first + 16 i to + 15, k from 16 j to + 15.
    __device__ __forceinline__ void read(uint32_t (&fragment)[4], uint32_t shared, int i, int j) const {
        const uint32_t address = shared + Shared::step(base, i, j);
        if (MAJOR == Major::K) ptx::ldmatrix_x4(fragment, address);
        else ptx::ldmatrix_x4_trans(fragment, address);
    }
};
