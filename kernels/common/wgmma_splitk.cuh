// Cluster split-K of matmul_wgmma.cu, matmul_bf16x6.cu and matmul_bf16x6_few.cu: the blocks of a cluster hold the k splits of a
// tile. Each stores its sums in its own shared memory, where the ring was, and then reduces its share of the tile through
// distributed shared memory, in the order of the splits, and applies the epilogue.
#pragma once

#include "wgmma_shape.cuh"

// By the consumers of all blocks of the cluster, once each is done with its split. What is stored at once are neighbours in a row
// of the tile, or, TRANSPOSED, in a column.
template <class S, bool TRANSPOSED = false>
__device__ __forceinline__ void reduce_splits(const WgmmaParams& p, const float (&d)[S::M_STEPS][S::ACCUMULATORS],
                                              const Item& item) {
    using T = typename S::Result;
    static_assert(TRANSPOSED || S::BN == 64 || S::BN == 128, "boxes are in order");
    // Floats from one line of neighbours to the next; those behind a line make the writes free of bank conflicts.
    constexpr int32_t STRIDE = TRANSPOSED ? S::BM + 4 : S::BN + 8;
    constexpr int32_t CONSUMERS = 32 * S::WARPS;
    float* sums = reinterpret_cast<float*>(wgmma_shared + S::STAGES_AT);
    // With a gate, half of the columns are its products, and the other half b's.
    const bool gated = !TRANSPOSED && (p.b_batches & GATED);
    const int32_t columns = gated ? S::BN / 2 : S::BN, first = gated ? item.col / 2 : item.col;
    const int32_t shift = ((TRANSPOSED ? S::BM : S::BN) == 64 ? 3 : 4) - gated;  // of vectors in a line
    const int32_t rows = min(int32_t(p.m) - item.row, S::BM), width = min(int32_t(p.n) - first, columns);
    const int32_t lines = TRANSPOSED ? width : rows, length = TRANSPOSED ? rows : width;
    const int32_t lane = threadIdx.x % 32, warpgroup = threadIdx.x / 128;
    constexpr int32_t SUMS = (TRANSPOSED ? S::BN : S::BM) * STRIDE;
    // Nobody multiplies from the ring any more.
    ptx::barrier_sync(RESULT_READY, CONSUMERS);
#pragma unroll
    for (int i = 0; i < S::M_STEPS; ++i) {
        const int32_t row =
            (warpgroup / S::K_GROUPS * S::M_STEPS + i) * 64 + threadIdx.x % 128 / 32 * 16 + S::row_of_lane(lane);
        float* at = sums + warpgroup % S::K_GROUPS * SUMS;
        at += TRANSPOSED ? row + lane % 4 * 2 * STRIDE : row * STRIDE + lane % 4 * 2;
#pragma unroll
        for (int group = 0; group < S::ACCUMULATORS / 4; ++group, at += TRANSPOSED ? 8 * STRIDE : 8) {
            const float* v = d[i] + group * 4;
            if constexpr (TRANSPOSED) {
                at[0] = v[0], at[STRIDE] = v[1], at[8] = v[2], at[STRIDE + 8] = v[3];
            } else {
                if (row < rows) *reinterpret_cast<float2*>(at) = make_float2(v[0], v[1]);
                if (row + 8 < rows) *reinterpret_cast<float2*>(at + 8 * STRIDE) = make_float2(v[2], v[3]);
            }
        }
    }
    const bool whole = S::MAY_BE_WHOLE && p.splits == 1;  // and no cluster
    if (whole) {
        ptx::barrier_sync(RESULT_READY, CONSUMERS);
    } else {
        ptx::cluster_sync();
    }
    const uint32_t splits = whole ? 1 : ptx::cluster_blocks(), rank = whole ? 0 : ptx::cluster_rank();
    const int64_t step = TRANSPOSED ? p.out_row : p.out_col;
    // One vector at a time: a longer loop body would be more instructions that no cache has.
    for (int32_t at = rank * CONSUMERS + threadIdx.x; at < lines << shift; at += splits * CONSUMERS) {
        const int32_t line = at >> shift, along = (at - (line << shift)) * 8;
        const int32_t row = TRANSPOSED ? along : line, col = TRANSPOSED ? line : along;
        if (along >= length) continue;
        const auto sum = [&](float (&v)[8], int32_t along) {
#pragma unroll 1
            for (uint32_t part = 0; part < splits * S::K_GROUPS; ++part) {
                const int32_t of_group = line * STRIDE + along + int32_t(part % S::K_GROUPS) * SUMS;
                const float* from = whole ? sums + of_group : ptx::in_block(sums + of_group, part / S::K_GROUPS);
                const float4 low = *reinterpret_cast<const float4*>(from);
                const float4 high = *reinterpret_cast<const float4*>(from + 4);
                v[0] += low.x, v[1] += low.y, v[2] += low.z, v[3] += low.w;
                v[4] += high.x, v[5] += high.y, v[6] += high.z, v[7] += high.w;
            }
        };
        float v[8] = {};
        sum(v, along);
        const int64_t bias_at = p.bias_by_row ? item.row + row : first + col;
        const int64_t bias_step = bool(p.bias_by_row) == TRANSPOSED ? p.bias_stride : 0;
        const T* bias = p.bias == nullptr ? nullptr : static_cast<const T*>(p.bias) + bias_at * p.bias_stride;
        T* out = static_cast<T*>(p.out) + (item.row + row) * p.out_row + (first + col) * p.out_col;
        int64_t residual_offset = 0;
#pragma unroll
        for (int k = 0; k < 3; ++k) {
            out += item.batch[k] * p.out_batch[k];
            residual_offset += item.batch[k] * p.residual_batch[k];
        }
        add_bias(v, bias, bias_step, length - along);
        activate<T>(v, p.activation, p.negative_slope);
        if (gated) {
            float w[8] = {};
            sum(w, along + columns);
            add_bias(w, bias == nullptr ? nullptr : bias + p.bias_up, bias_step, length - along);
#pragma unroll
            for (int e = 0; e < 8; ++e) v[e] *= w[e];
        }
        Run<T, float> run;
        if (p.addends.any()) {
            run = Run<T, float>(p.addends, item.row + row, first + col, item.product, residual_offset, TRANSPOSED);
        }
        if (add_run(v, run, 1, length - along)) store_run(v, out, step, length - along, !p.store_elements);
    }
    if (whole) return;
    // Nobody's shared memory goes while another block may read it. Relaxed, for what a thread has read it has added up by
    // now, and a release would wait for its stores.
    ptx::cluster_arrive();
    ptx::cluster_wait();
}
