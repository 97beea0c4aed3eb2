// What a block of matmul_bf16x6_few.cu does: its warps' roles, and six products of bfloat16 parts for each block of k, which are
// made between shared memory and the tensor cores.
#pragma once

#include "ptx/shared_pairs.cuh"
#include "wgmma_bf16x6.cuh"

// ROW_GROUPS warpgroups have 64 rows of their own each; two of the same rows take every other block of k, and then every other
// stage of the ring, which has an even number. A stage is a block of k of both operands, in float32.
template <int ROW_GROUPS, int BN_> struct FewShape : WgmmaShape<bf16, 2, 1, BN_, 1> {
    using Result = float;
    static constexpr int K_GROUPS = 2 / ROW_GROUPS, BM = 64 * ROW_GROUPS;
    static constexpr uint32_t PLANES = PARTS;
    static constexpr bool HAS_CLUSTERS = false, MAY_BE_WHOLE = true;
    // Of the columns, a warpgroup's parts.
    static constexpr int PART_BYTES = BN_ * 128, OWN_BYTES = PARTS * PART_BYTES;
    static constexpr int STAGES_AT = HEADER_BYTES + 2 * OWN_BYTES;
    static constexpr int A_BYTES = BM * 256, B_BYTES = BN_ * 256;

    // Eight rows in an order by which eight lanes, of four of them, read 8 bytes each from all banks.
    static __device__ __forceinline__ int32_t row_of_lane(uint32_t lane) {
        return int32_t((lane / 4 % 4) * 2 + lane / 16);
    }
};
// Barriers by number: of a warpgroup.
enum : uint32_t { WARPGROUP = RESULT_READY + 1 };

// Splits a pair as matmul_split.cu does, but that what would be infinite is NaN in its parts, and so in the result, which is
// then computed in float32.
__device__ __forceinline__ uint32_t take_part_of_finite(float (&pair)[2]) {
    const uint32_t word = ptx::pack_bf16(pair[0], pair[1]);
    pair[0] -= __uint_as_float(word << 16);
    pair[1] -= __uint_as_float(word & 0xffff0000);
    return word;
}

// The extremes of what a thread has split: at least those of matmul_split.cu.
struct SplitExtremes {
    float largest = 0.0f;
    uint32_t smallest = ~0u;  // twice the bits of what is not 0, less 1

    __device__ __forceinline__ void see(uint32_t bits) {
        largest = fmaxf(largest, fabsf(__uint_as_float(bits)));
        smallest = min(smallest, bits + bits - 1);
    }
    // Of a warp. Three parts may leave a rest of what is below 2^-110.
    __device__ __forceinline__ Extremes of_warp() const {
        Extremes extremes;
        extremes.see(fminf(largest, 3.402823466e+38f));
        extremes.inexact = smallest < 2 * 0x08800000u - 1;
        extremes.reduce_warp();
        return extremes;
    }
};

// The parts of 64 of k of this warp's 16 rows, smallest first, as wgmma has them in registers.
template <class S>
__device__ __forceinline__ void split_rows(uint32_t (&a)[BLOCK_K / 16][PARTS][4], uint32_t stage, uint32_t first_row,
                                           bool mn_major, SplitExtremes& extremes) {
    const uint32_t lane = threadIdx.x % 32, row = first_row + S::row_of_lane(lane), pair = lane % 4;
    const auto split = [&](uint32_t (&words)[2], int step, int i) {
        extremes.see(words[0]);
        extremes.see(words[1]);
        float v[2] = {__uint_as_float(words[0]), __uint_as_float(words[1])};
#pragma unroll
        for (int part = PARTS - 1; part >= 0; --part) a[step][part][i] = take_part_of_finite(v);
    };
    if (mn_major) {
        // Boxes of 32 rows: a line of 128 bytes for each of k.
        const uint32_t box = stage + row / 32 * BOX_BYTES, at = row % 4 * 4, vector = row % 32 / 4;
#pragma unroll
        for (int step = 0; step < BLOCK_K / 16; ++step) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                uint32_t words[2];
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const uint32_t k = step * 16 + i / 2 * 8 + pair * 2 + e;
                    words[e] = ptx::load_shared(box + k * 128 + (((vector + i % 2 * 2) ^ k % 8) << 4) + at);
                }
                split(words, step, i);
            }
        }
    } else {
        // Boxes of 32 of k: a line of 128 bytes for each row.
        const uint32_t line = stage + row * 128 + pair % 2 * 8;
#pragma unroll
        for (int step = 0; step < BLOCK_K / 16; ++step) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t vector = step % 2 * 4 + i / 2 * 2 + pair / 2;
                uint32_t words[2];
                ptx::load_shared_8(line + step / 2 * (S::BM * 128) + i % 2 * (8 * 128) + ((vector ^ row % 8) << 4),
                                   words);
                split(words, step, i);
            }
        }
    }
}

// The parts of 64 of k of the columns, smallest first, to `own`, as wgmma reads them. Of each column, four neighbours a thread.
template <class S>
__device__ __forceinline__ void split_columns(uint32_t own, uint32_t from, uint32_t columns, SplitExtremes& extremes) {
    constexpr uint32_t VECTORS = S::BN * 16;
#pragma unroll
    for (uint32_t first = 0; first < VECTORS; first += 128) {
        const uint32_t at = first + threadIdx.x % 128, column = at / 16, vector = at % 16;
        if (column >= columns) break;
        uint32_t words[4];
        ptx::load_shared_16(from + vector / 8 * S::PART_BYTES + column * 128 + ((vector % 8 ^ column % 8) << 4), words);
        float low[2] = {__uint_as_float(words[0]), __uint_as_float(words[1])};
        float high[2] = {__uint_as_float(words[2]), __uint_as_float(words[3])};
#pragma unroll
        for (int i = 0; i < 4; ++i) extremes.see(words[i]);
        const uint32_t to = own + column * 128 + ((vector / 2 ^ column % 8) << 4) + vector % 2 * 8;
#pragma unroll
        for (int part = PARTS - 1; part >= 0; --part) {
            const uint32_t pairs[2] = {take_part_of_finite(low), take_part_of_finite(high)};
            ptx::store_shared_8(to + part * S::PART_BYTES, pairs);
        }
    }
}

// As multiply_parts, of rows in registers.
template <class S>
__device__ __forceinline__ void multiply_split_rows(PartSums<S>& d, const uint32_t (&a)[BLOCK_K / 16][PARTS][4],
                                                    uint32_t b_parts, bool accumulate_small) {
    constexpr int A[6] = {1, 0, 2, 1, 2, 2}, B[6] = {1, 2, 0, 2, 1, 2};
    ptx::wgmma_pin(d.large);
    ptx::wgmma_pin(d.small);
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 6; ++i) {
        const uint64_t b = ptx::wgmma_tile<false>(b_parts + B[i] * S::PART_BYTES);
#pragma unroll
        for (int k = 0; k < BLOCK_K / 16; ++k) {
            ptx::WgmmaOfRegisters<S::BN>::template add<bf16>(i == 5 ? d.large : d.small, a[k][A[i]],
                                                             ptx::wgmma_tile_at(b, k * 32),
                                                             k > 0 || (i == 0 ? accumulate_small : i < 5));
        }
    }
    ptx::wgmma_commit();
}

// What a warpgroup has seen of its rows and columns.
struct SplitOperands {
    SplitExtremes rows, columns;
};

// This warpgroup's products of an item, summed as multiply_bf16x6 does. A stage is handed back when it is split.
template <class S>
__device__ __forceinline__ void multiply_few(const WgmmaParams& p, const Item& item, float (&sum)[S::ACCUMULATORS],
                                             uint32_t shared, Ring ring, SplitOperands& seen) {
    const uint32_t group = __shfl_sync(~0u, threadIdx.x / 128, 0), blocks = (item.k_end - item.k_begin) / PARTS;
    const uint32_t first_row = group / S::K_GROUPS * 64 + threadIdx.x % 128 / 32 * 16;
    const uint32_t own = shared + HEADER_BYTES + group * S::OWN_BYTES;
    const uint32_t columns = min(int32_t(p.n) - item.col, S::BN);
#pragma unroll
    for (int i = 0; i < S::ACCUMULATORS; ++i) sum[i] = 0.0f;
    PartSums<S> d;
    uint32_t small = 0;  // blocks whose small products are in d.small
    for (uint32_t block = 0; block < blocks; ++block, ring.advance()) {
        if (block % S::K_GROUPS != group % S::K_GROUPS) continue;
        ptx::mbarrier_wait(ring.full(ring.stage), ring.phase);
        const uint32_t stage = shared + S::STAGES_AT + ring.stage * (S::A_BYTES + S::B_BYTES);
        // All four warps' products of the block before this are done.
        ptx::barrier_sync(WARPGROUP + group, 128);
        split_columns<S>(own, stage + S::A_BYTES, columns, seen.columns);
        uint32_t a[BLOCK_K / 16][PARTS][4];
        split_rows<S>(a, stage, first_row, p.a_mn, seen.rows);
        ptx::fence_async_proxy();
        ptx::barrier_sync(WARPGROUP + group, 128);
        if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(ring.empty(ring.stage));
        multiply_split_rows<S>(d, a, own, small > 0);
        ptx::wgmma_wait<0>();
        ptx::wgmma_pin(d.large);
        ptx::wgmma_pin(d.small);
#pragma unroll
        for (int k = 0; k < BLOCK_K / 16; ++k) {
#pragma unroll
            for (int part = 0; part < PARTS; ++part) ptx::wgmma_pin(a[k][part]);
        }
        if (++small == SMALL_BLOCKS || block + S::K_GROUPS >= blocks) {
            add_sums(d.large, d.small);
            small = 0;
        }
        add_sums(sum, d.large);
    }
}

// By one thread: fills an operand's part of every stage, in boxes of 32 of k, of words of 16 bits, two of each element; or of 32
// rows.
template <class S, bool IS_B>
__device__ __forceinline__ void produce_few(const WgmmaParams& p, const Item& item, uint32_t shared, Ring ring) {
    const int32_t tiles = IS_B ? p.order.tiles_n : p.order.tiles_m, first = IS_B ? item.col : item.row;
    constexpr int32_t WIDTH = IS_B ? S::BN : S::BM;
    const bool is_last = first >= (tiles - 1) * WIDTH;
    const uint32_t whole_bytes = IS_B ? p.b_stage_bytes : p.a_stage_bytes;
    const uint32_t bytes = !is_last ? whole_bytes : IS_B ? p.b_tail_bytes : p.a_tail_bytes;
    const bool mn_major = !IS_B && p.a_mn;
    const TensorMap& tail = IS_B ? p.b_tail : p.a_tail;
    const TensorMap& map = !mn_major && bytes != whole_bytes ? tail : IS_B ? p.b : p.a;
    for (uint32_t block = item.k_begin / PARTS; block < item.k_end / PARTS; ++block, ring.advance()) {
        ptx::mbarrier_wait(ring.empty(ring.stage), ring.phase ^ 1);
        const uint32_t full = ring.full(ring.stage);
        const uint32_t to = shared + S::STAGES_AT + ring.stage * (S::A_BYTES + S::B_BYTES) + (IS_B ? S::A_BYTES : 0);
        ptx::mbarrier_arrive_expect(full, bytes);
        if (mn_major) {
            const int32_t boxes = int32_t(bytes / BOX_BYTES);
            for (int32_t i = 0; i < boxes; ++i) {
                ptx::tma_load_2d(to + i * BOX_BYTES, map, full, (first + i * 32) * 2, int32_t(block) * BLOCK_K);
            }
        } else {
#pragma unroll
            for (int32_t i = 0; i < 2; ++i) {
                ptx::tma_load_2d(to + i * WIDTH * 128, map, full, (int32_t(block) * 2 + i) * BLOCK_K, first);
            }
        }
    }
}

template <class S> __device__ __forceinline__ void run_few(const Bf16x6Params& p) {
    const WgmmaParams& wgmma = p.wgmma;
    const uint32_t shared = uint32_t(__cvta_generic_to_shared(wgmma_shared));
    const Ring ring{shared, wgmma.stages};
    const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const TileCluster alone{};
    const Schedule<S, true> work(wgmma, alone);
    const Item& item = work.item;
    if (threadIdx.x == 0) {
        for (uint32_t stage = 0; stage < wgmma.stages; ++stage) {
            ptx::mbarrier_init(ring.full(stage), 2);
            ptx::mbarrier_init(ring.empty(stage), S::WARPS / S::K_GROUPS);
        }
        ptx::fence_mbarrier_init();
    }
    __syncthreads();
    if (warp >= S::WARPS) {
        ptx::give_registers<S::PRODUCER_REGISTERS>();
        if (warp > S::WARPS + 1 || !ptx::elect()) return;
        ptx::wait_for_grid_before();
        if (warp == S::WARPS) {
            produce_few<S, false>(wgmma, item, shared, ring);
        } else {
            produce_few<S, true>(wgmma, item, shared, ring);
        }
        return;
    }
    ptx::take_registers<S::CONSUMER_REGISTERS>();
    float sum[1][S::ACCUMULATORS];
    SplitOperands seen;
    multiply_few<S>(wgmma, item, sum[0], shared, ring, seen);
    const uint32_t lane = threadIdx.x % 32, group = warp / 4;
    // Of its columns each warp has seen some.
    uint32_t* words = reinterpret_cast<uint32_t*>(least_of_block());
    const Extremes rows = seen.rows.of_warp(), some_columns = seen.columns.of_warp();
    if (lane == 0) words[warp] = some_columns.word();
    ptx::barrier_sync(WARPGROUP + group, 128);
    Extremes columns;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) columns.add(words[group * 4 + i]);
    const float least = least_result(rows, columns, p.k);
    const int32_t row = item.row + int32_t(group / S::K_GROUPS * 64 + warp % 4 * 16) + S::row_of_lane(lane);
    const int32_t col = item.col + int32_t(lane % 4) * 2;
    ptx::wait_for_grid_before();
    if (needs_float32<S>(wgmma, sum[0], item, row, col, least)) {
        multiply_float32<S>(p, sum[0], item, row, col, group % S::K_GROUPS);
    }
    reduce_splits<S, true>(wgmma, sum, item);
}
