// What matmul_bf16x6.cu does between the ring and the epilogue: six products of bfloat16 parts for each block of k, their
// sum in float32, and float32 products instead where parts are not enough.
#pragma once

#include "bf16x3.cuh"
#include "reduce.cuh"
#include "wgmma_block.cuh"

// Mirrored in src/cuda/plan/matmul/wgmma/bf16x6/params.rs.
struct alignas(64) Bf16x6Params {
    WgmmaParams wgmma;  // of the parts
    // The operands themselves; strides in elements, batch dimensions innermost first.
    const float* a;
    const float* b;
    int64_t a_row, a_col, b_row, b_col;
    int64_t a_batch[3], b_batch[3];
    const uint32_t* extremes;  // of the operands, an Extremes of each block of matmul_split.cu
    uint32_t a_extremes, all_extremes;
    uint32_t k;
    uint32_t unused[3];
};
static_assert(sizeof(Bf16x6Params) == 1472 && offsetof(Bf16x6Params, a) == 1344, "mirrored in Rust");
static_assert(offsetof(Bf16x6Params, extremes) == 1440 && offsetof(Bf16x6Params, k) == 1456, "mirrored in Rust");

template <int CONSUMERS, int BN, int BLOCKS>
struct Bf16x6Shape : WgmmaShape<bf16, CONSUMERS, 1, BN, BLOCKS> {
    using Result = float;
    static constexpr uint32_t PLANES = PARTS;
    static constexpr bool HAS_CLUSTERS = false;
    static constexpr bool CAN_TMA_STORE = false;
};

// What a result must exceed, in shared memory behind the ring's barriers; and the barrier that says it is there.
__device__ __forceinline__ float* least_of_block() {
    return reinterpret_cast<float*>(wgmma_shared + 2 * MAX_STAGES * sizeof(uint64_t));
}
enum : uint32_t { LEAST_IS_THERE = RESULT_READY };

__device__ __forceinline__ Extremes extremes_of(const uint32_t* words, uint32_t begin, uint32_t end) {
    Extremes extremes;
#pragma unroll 4
    for (uint32_t i = begin + threadIdx.x % 32; i < end; i += 32) extremes.add(words[i]);
    extremes.reduce_warp();
    return extremes;
}

// Below it, results are made of products near float32's least number, which the tensor cores would cut off: 2^-100.
constexpr float SMALL_RESULT = 7.888609052210118e-31f;

// What a result must exceed. An element of which three parts leave a rest leaves less than 2^-134 of it: all of a sum at most k
// 2^-134 times the other operand's largest element. Where that may be seen in a result's 24 bits, parts are not enough; nor
// where all results are small.
__device__ __forceinline__ float least_result(const Extremes& a, const Extremes& b, uint32_t k) {
    constexpr float SCALE = 7.703719777548943e-34f;  // 2^-110
    float least = 0.0f;
    if (a.inexact) least += __uint_as_float(b.largest) * SCALE;
    if (b.inexact) least += __uint_as_float(a.largest) * SCALE;
    const float largest = __uint_as_float(a.largest) * __uint_as_float(b.largest) * float(k);
    return largest < SMALL_RESULT && a.largest > 0 && b.largest > 0 ? infinity<float>() : least * float(k);
}

// By one warp.
template <class S> __device__ __forceinline__ void find_least(const Bf16x6Params& p) {
    ptx::wait_for_grid_before();
    const Extremes a = extremes_of(p.extremes, 0, p.a_extremes);
    const Extremes b = extremes_of(p.extremes, p.a_extremes, p.all_extremes);
    if (threadIdx.x % 32 == 0) *least_of_block() = least_result(a, b, p.k);
    __syncwarp();
    ptx::barrier_arrive(LEAST_IS_THERE, 32 * S::WARPS + 32);
}

// The sums of a block of k: of the products of the largest parts, which are mostly exact, and of the others, which are less
// by 2^-8. The tensor cores round toward zero, so that in one sum they would lose up to a unit in the last place at a time.
template <class S> struct PartSums {
    float large[S::ACCUMULATORS], small[S::ACCUMULATORS];
};

// Issues the products of a block of k, smallest first, in three groups: with each, one more stage is done with. The three
// other products of two parts are less than what float32 rounds off.
template <class S, bool A_MN, bool B_MN>
__device__ __forceinline__ void multiply_parts(PartSums<S>& d, const uint32_t (&a_tiles)[PARTS],
                                               const uint32_t (&b_tiles)[PARTS], bool accumulate_small) {
    constexpr uint32_t A_STEP = A_MN ? 16 * 128 : 32, B_STEP = B_MN ? 16 * 128 : 32;
    // By stages: the first has the smallest part.
    constexpr int A[6] = {1, 0, 2, 1, 2, 2}, B[6] = {1, 2, 0, 2, 1, 2};
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < 6; ++i) {
        const uint64_t a = ptx::wgmma_tile<A_MN>(a_tiles[A[i]]), b = ptx::wgmma_tile<B_MN>(b_tiles[B[i]]);
#pragma unroll
        for (int k = 0; k < BLOCK_K / 16; ++k) {
            ptx::Wgmma<S::BN>::template add<bf16, A_MN, B_MN>(
                i == 5 ? d.large : d.small, ptx::wgmma_tile_at(a, k * A_STEP), ptx::wgmma_tile_at(b, k * B_STEP),
                k > 0 || (i == 0 ? accumulate_small : i < 5));
        }
        if (i == 2 || i == 4 || i == 5) ptx::wgmma_commit();
    }
}

// Waits for the three stages of the next block of k and issues their products.
template <class S>
__device__ __forceinline__ void multiply_block(const WgmmaParams& p, PartSums<S>& d, uint32_t shared, uint32_t own_rows,
                                               Ring& ring, bool accumulate_small) {
    uint32_t a[PARTS], b[PARTS];
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
        ptx::mbarrier_wait(ring.full(ring.stage), ring.phase);
        const uint32_t stage = shared + S::STAGES_AT + ring.stage * (S::A_BYTES + S::B_BYTES);
        a[i] = stage + own_rows;
        b[i] = stage + S::A_BYTES;
        ring.advance();
    }
    ptx::wgmma_pin(d.large);
    ptx::wgmma_pin(d.small);
    if (p.a_mn) {
        if (p.b_mn) {
            multiply_parts<S, true, true>(d, a, b, accumulate_small);
        } else {
            multiply_parts<S, true, false>(d, a, b, accumulate_small);
        }
    } else if (p.b_mn) {
        multiply_parts<S, false, true>(d, a, b, accumulate_small);
    } else {
        multiply_parts<S, false, false>(d, a, b, accumulate_small);
    }
}

template <int N> __device__ __forceinline__ void add_sums(float (&sum)[N], const float (&part)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += part[i];
}

// Blocks of k whose small products are one sum: of so many, what the tensor cores cut off is still less than what float32
// rounds off.
constexpr uint32_t SMALL_BLOCKS = 4;

// One item's products, summed over its blocks of k: each block's sums are the tensor cores', and are added to `sum`, rounded
// to nearest.
template <class S>
__device__ __forceinline__ void multiply_bf16x6(const WgmmaParams& p, float (&sum)[S::ACCUMULATORS], uint32_t shared,
                                                Ring& ring, uint32_t blocks) {
    const bool tells = threadIdx.x % 32 == 0;
    const uint32_t own_rows = __shfl_sync(~0u, threadIdx.x / 128, 0) * BOX_BYTES;
    // One of the last three stages.
    const auto hand_back = [&](uint32_t part) {
        const uint32_t stage = ring.stage + part + (ring.stage + part < PARTS ? ring.stages : 0) - PARTS;
        if (tells) ptx::mbarrier_arrive(ring.empty(stage));
    };
#pragma unroll
    for (int i = 0; i < S::ACCUMULATORS; ++i) sum[i] = 0.0f;
    PartSums<S> d;
    for (uint32_t block = 0; block < blocks; ++block) {
        multiply_block<S>(p, d, shared, own_rows, ring, block % SMALL_BLOCKS > 0);
        ptx::wgmma_wait<2>();
        hand_back(0);
        ptx::wgmma_wait<1>();
        hand_back(1);
        ptx::wgmma_wait<0>();
        hand_back(2);
        ptx::wgmma_pin(d.large);
        ptx::wgmma_pin(d.small);
        if (block % SMALL_BLOCKS == SMALL_BLOCKS - 1 || block + 1 == blocks) add_sums(d.large, d.small);
        add_sums(sum, d.large);
    }
}

// Whether a result of this warp is not finite, as of an infinite operand, of which parts are NaN, or where a product of
// parts rounded up overflowed; or so small that parts are not enough, or products of them below float32's least.
template <class S>
__device__ __forceinline__ bool needs_float32(const WgmmaParams& p, const float (&sum)[S::ACCUMULATORS],
                                              const Item& item, int32_t row, int32_t col, float least) {
    bool needs = false;
    if (least <= 0.0f && item.row + S::BM <= int32_t(p.m) && item.col + S::BN <= int32_t(p.n)) {
        float zero = 0.0f;        // NaN if one is not finite
        uint32_t smallest = ~0u;  // twice the bits of what is not 0, less 1
#pragma unroll
        for (int i = 0; i < S::ACCUMULATORS; ++i) {
            const uint32_t bits = __float_as_uint(sum[i]);
            zero = fmaf(sum[i], 0.0f, zero);
            smallest = min(smallest, bits + bits - 1);
        }
        needs = !(zero == 0.0f) || smallest < 2 * __float_as_uint(SMALL_RESULT) - 1;
    } else {  // beyond the result lies anything
#pragma unroll
        for (int i = 0; i < S::ACCUMULATORS; ++i) {
            const float v = fabsf(sum[i]);
            const bool inside = row + i / 2 % 2 * 8 < int32_t(p.m) && col + i / 4 * 8 + i % 2 < int32_t(p.n);
            needs |= inside && (v < least || !(v <= 3.402823466e+38f) || (v < SMALL_RESULT && v != 0.0f));
        }
    }
    return __any_sync(~0u, needs);
}

// The same products in float32, summed in the same blocks of k, from `first_block` of the item's on one for each of K_GROUPS:
// slower, from operands in memory.
template <class S>
__device__ __forceinline__ void multiply_float32(const Bf16x6Params& p, float (&sum)[S::ACCUMULATORS], const Item& item,
                                                 int32_t row, int32_t col, uint32_t first_block = 0) {
    const float* a = p.a;
    const float* b = p.b;
#pragma unroll
    for (int i = 0; i < 3; ++i) a += item.batch[i] * p.a_batch[i], b += item.batch[i] * p.b_batch[i];
    const int32_t m = int32_t(p.wgmma.m), n = int32_t(p.wgmma.n);
    // Beyond the result the last row's.
    const int64_t eight_rows = (min(row + 8, m - 1) - min(row, m - 1)) * p.a_row;
    // So many accumulators at a time and steps of k, for the registers of their operands.
    constexpr int COUNT = S::ACCUMULATORS < 16 ? S::ACCUMULATORS : 16, STEPS = 4;
    const uint32_t begin = item.k_begin / PARTS + first_block;
#pragma unroll
    for (int first = 0; first < S::ACCUMULATORS; first += COUNT) {
        float (&own)[COUNT] = reinterpret_cast<float (&)[COUNT]>(sum[first]);
        const float* a_at = a + min(row, m - 1) * p.a_row + int64_t(begin) * BLOCK_K * p.a_col;
        const float* b_column = b + (col + first * 2) * p.b_col + int64_t(begin) * BLOCK_K * p.b_row;
        const int32_t columns = n - col - first * 2;
        float part[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) own[i] = 0.0f;
#pragma unroll 1
        for (uint32_t block = begin; block < item.k_end / PARTS; block += S::K_GROUPS) {
#pragma unroll
            for (int i = 0; i < COUNT; ++i) part[i] = 0.0f;
            const uint32_t end = min(p.k, (block + 1) * BLOCK_K);
#pragma unroll 1
            for (uint32_t k = block * BLOCK_K; k < end; k += STEPS) {
                uint32_t low[STEPS] = {}, high[STEPS] = {}, right[STEPS][COUNT / 2] = {};
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
                    const bool inside = k + step < end;
                    const float* from = b_column;
                    ptx::load_global_if<4>(inside, a_at, &low[step]);
                    ptx::load_global_if<4>(inside, a_at + eight_rows, &high[step]);
#pragma unroll
                    for (int i = 0; i < COUNT / 2; i += 2, from += 8 * p.b_col) {
                        ptx::load_global_if<4>(inside && i * 4 < columns, from, &right[step][i]);
                        ptx::load_global_if<4>(inside && i * 4 + 1 < columns, from + p.b_col, &right[step][i + 1]);
                    }
                    a_at += p.a_col, b_column += p.b_row;
                }
#pragma unroll
                for (int step = 0; step < STEPS; ++step) {
#pragma unroll
                    for (int i = 0; i < COUNT; ++i) {
                        const uint32_t left = i / 2 % 2 ? high[step] : low[step];
                        const uint32_t by = right[step][i / 4 * 2 + i % 2];
                        part[i] = fmaf(__uint_as_float(left), __uint_as_float(by), part[i]);
                    }
                }
            }
            add_sums(own, part);
            a_at += (S::K_GROUPS - 1) * BLOCK_K * p.a_col, b_column += (S::K_GROUPS - 1) * BLOCK_K * p.b_row;
        }
    }
}
