// Copies tiles of 16-bit elements to shared memory through registers, from any strides and any alignment. A thread
// loads one stage ahead of the stage that the block multiplies.
#pragma once

#include "ptx/global.cuh"
#include "ptx/shared.cuh"
#include "shared_tile.cuh"

// Fills the same image as AsyncCopier (mma_operand.cuh), in vectors of eight elements along k (K-major) or along mn.
// Eight neighbours that all exist are read as words, of which the outer two are halves where the address is odd; other
// elements one by one. A tile's loads start with its first part and are waited for with its last, so that the
// arithmetic between hides them.
template <class T, int MN, int BK, Major MAJOR, int THREADS> struct GatherCopier {
    using Shared = SharedTile<MN, BK, sizeof(T), MAJOR>;
    static constexpr int ROW_STEP = THREADS / Shared::VECTORS;
    static constexpr int COUNT = Shared::ROWS / ROW_STEP;  // vectors a thread and tile
    static_assert(sizeof(T) == 2, "halves");
    static_assert(THREADS % Shared::VECTORS == 0 && Shared::ROWS % ROW_STEP == 0, "every thread copies alike");
    static_assert(ROW_STEP % Shared::PERIOD == 0, "every row of a thread is permuted alike");

    const uint16_t* source;  // this thread's next vector
    int64_t step;            // from element to element of a vector
    int64_t row_step;        // from one of its rows to the next
    int64_t turn;            // from past the last row of a tile to the first of the next
    int row, first;          // of its first vector: its place across and along vectors
    int mn_left;
    uint32_t offset;              // of its first vector in shared memory
    uint32_t loaded[COUNT][8];    // words of neighbours, then the outer halves; or eight elements
    uint32_t whole = 0, odd = 0;  // a bit for each vector: all neighbours, which begin in the middle of a word

    // `tile` is element (0, k = 0) of the tile.
    __device__ __forceinline__ GatherCopier(const T* tile, int64_t mn_step, int64_t k_step, int mn_left)
        : row(threadIdx.x / Shared::VECTORS), first(threadIdx.x % Shared::VECTORS * 8), mn_left(mn_left) {
        const int64_t lead = MAJOR == Major::K ? mn_step : k_step;
        step = MAJOR == Major::K ? k_step : mn_step;
        source = reinterpret_cast<const uint16_t*>(tile) + row * lead + first * step;
        row_step = lead * ROW_STEP;
        turn = MAJOR == Major::K ? BK * step - MN * lead : 0;
        offset = Shared::offset(row, first / 8);
    }

    __device__ __forceinline__ void copy(uint32_t shared, int k_left, int part, int parts) {
        if (part == 0) load(k_left);
        if (part + 1 == parts) store(shared);
    }

private:
    __device__ __forceinline__ void load(int k_left) {
        const int rows = (MAJOR == Major::K ? mn_left : k_left) - row;
        const int along = (MAJOR == Major::K ? k_left : mn_left) - first;
        whole = odd = 0;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int count = i * ROW_STEP < rows ? along : 0;
            const bool words = step == 1 && count >= 8;
            const bool misaligned = words && reinterpret_cast<uint64_t>(source) % 4 != 0;
            whole |= uint32_t(words) << i;
            odd |= uint32_t(misaligned) << i;
#pragma unroll
            for (int j = 0; j < 8; ++j) loaded[i][j] = 0;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                ptx::load_global_if<4>(words && !(misaligned && j == 3), source + misaligned + 2 * j, &loaded[i][j]);
            }
            ptx::load_global_if<2>(misaligned, source, &loaded[i][4]);
            ptx::load_global_if<2>(misaligned, source + 7, &loaded[i][5]);
            if (step != 1 || count < 8) {
#pragma unroll
                for (int j = 0; j < 8; ++j) ptx::load_global_if<2>(j < count, source + j * step, &loaded[i][j]);
            }
            source += row_step;
        }
        source += turn;
    }

    __device__ __forceinline__ void store(uint32_t shared) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const uint32_t* w = loaded[i];
            uint32_t word[4];
            if (odd >> i & 1) {
                word[0] = w[4] | w[0] << 16;
                word[1] = w[0] >> 16 | w[1] << 16;
                word[2] = w[1] >> 16 | w[2] << 16;
                word[3] = w[2] >> 16 | w[5] << 16;
            } else {
                const bool words = whole >> i & 1;
#pragma unroll
                for (int j = 0; j < 4; ++j) word[j] = words ? w[j] : w[2 * j] | w[2 * j + 1] << 16;
            }
            ptx::store_shared_16(shared + offset + i * ROW_STEP * Shared::ROW_BYTES, word);
        }
    }
};
