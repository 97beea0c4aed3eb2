// The tile of a block of matmul_wgmma.cu and the layout of its shared memory. Pure arithmetic, also compiled for the
// host: src/cuda/plan/matmul/wgmma/mod.rs has the same numbers and compares.
#pragma once

constexpr int BLOCK_K = 64;      // elements of k in a stage: rows of 128 bytes
constexpr int BOX_BYTES = 8192;  // 64 rows of 128 bytes: what one wgmma reads of a, or 64 columns of b
constexpr int MAX_STAGES = 16;
constexpr int HEADER_BYTES = 1024;     // barriers
constexpr int STORE_BYTES = 16 * 128;  // a warp's 16 rows of a box of the result

// A block computes (64 CONSUMERS M_STEPS) x BN: each of its consumer warpgroups M_STEPS times 64 rows and all columns. Or, in
// ping-pong, each of its two consumer warpgroups has every second tile alone: one stores while the other multiplies.
template <int CONSUMERS_, int M_STEPS_, int BN_, bool PING_PONG_ = false> struct WgmmaTile {
    static constexpr int CONSUMERS = CONSUMERS_, M_STEPS = M_STEPS_, BN = BN_;
    static constexpr bool PING_PONG = PING_PONG_;
    static constexpr int SHARING = PING_PONG ? 1 : CONSUMERS;  // consumers that have a tile between them
    static constexpr int BM = 64 * SHARING * M_STEPS;
    static constexpr int WARPS = 4 * CONSUMERS;   // that multiply
    static constexpr int BOXES = (BN + 63) / 64;  // of 64 columns; the last may be narrower
    static constexpr int TAIL = BN - 64 * (BOXES - 1);
    static constexpr int A_BYTES = BM * 128, B_BYTES = BOXES * BOX_BYTES;
    // Behind the barriers, a buffer for each warp, or all of the result at once in boxes of 64 columns of 64 rows.
    static constexpr int BUFFERS = WARPS * STORE_BYTES, RESULT = BM * BOXES * 128;
    static constexpr int STAGES_AT = HEADER_BYTES + BUFFERS;  // unless all of the result is
    static constexpr bool CAN_TMA_STORE = SHARING == 2 && M_STEPS == 1 && BN >= 192 && TAIL == 64;
    static_assert(BN % 8 == 0 && (!PING_PONG || CONSUMERS == 2), "");
};
