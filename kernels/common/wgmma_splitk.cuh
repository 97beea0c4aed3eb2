// Cluster split-K of matmul_wgmma.cu and matmul_bf16x6.cu: the blocks of a cluster hold the k splits of a tile. Each stores its sums in its
// own shared memory, where the ring was, and then reduces its share of the tile through distributed shared memory, in
// the order of the splits, and applies the epilogue.
#pragma once

#include "wgmma_shape.cuh"

// By the consumers of all blocks of the cluster, once each is done with its split.
template <class S>
__device__ __forceinline__ void reduce_splits(const WgmmaParams& p, const float (&d)[S::M_STEPS][S::ACCUMULATORS],
                                              const Item& item) {
    using T = typename S::Result;
    static_assert(S::TAIL == 64, "boxes are in order");
    constexpr int32_t STRIDE = S::BN + 8;  // floats; 8 more make the writes free of bank conflicts
    constexpr int32_t CONSUMERS = 32 * S::WARPS;
    float* sums = reinterpret_cast<float*>(wgmma_shared + S::STAGES_AT);
    // With a gate, half of the columns are its products, and the other half b's.
    const bool gated = p.b_batches & GATED;
    const int32_t columns = gated ? S::BN / 2 : S::BN, first = gated ? item.col / 2 : item.col;
    const int32_t shift = (S::BN == 64 ? 3 : 4) - gated;  // of vectors in a row
    const int32_t rows = min(int32_t(p.m) - item.row, S::BM), width = min(int32_t(p.n) - first, columns);
    static_assert(S::BN == 64 || S::BN == 128, "");
    const int32_t lane = threadIdx.x % 32;
    // Nobody multiplies from the ring any more.
    ptx::barrier_sync(RESULT_READY, CONSUMERS);
#pragma unroll
    for (int i = 0; i < S::M_STEPS; ++i) {
        const int32_t row = (threadIdx.x / 128 * S::M_STEPS + i) * 64 + threadIdx.x % 128 / 32 * 16 + lane / 4;
        float* at = sums + row * STRIDE + lane % 4 * 2;
#pragma unroll
        for (int group = 0; group < S::ACCUMULATORS / 4; ++group, at += 8) {
            const float* v = d[i] + group * 4;
            if (row < rows) *reinterpret_cast<float2*>(at) = make_float2(v[0], v[1]);
            if (row + 8 < rows) *reinterpret_cast<float2*>(at + 8 * STRIDE) = make_float2(v[2], v[3]);
        }
    }
    ptx::cluster_sync();
    const uint32_t splits = ptx::cluster_blocks();
    // One vector at a time: a longer loop body would be more instructions that no cache has.
    for (int32_t at = ptx::cluster_rank() * CONSUMERS + threadIdx.x; at < rows << shift; at += splits * CONSUMERS) {
        const int32_t row = at >> shift, col = (at - (row << shift)) * 8;
        if (col >= width) continue;
        const auto sum = [&](float (&v)[8], int32_t col) {
#pragma unroll 1
            for (uint32_t split = 0; split < splits; ++split) {
                const float* from = ptx::in_block(sums + row * STRIDE + col, split);
                const float4 low = *reinterpret_cast<const float4*>(from);
                const float4 high = *reinterpret_cast<const float4*>(from + 4);
                v[0] += low.x, v[1] += low.y, v[2] += low.z, v[3] += low.w;
                v[4] += high.x, v[5] += high.y, v[6] += high.z, v[7] += high.w;
            }
        };
        float v[8] = {};
        sum(v, col);
        const int64_t along = p.bias_by_row ? item.row + row : first + col;
        const int64_t bias_step = p.bias_by_row ? 0 : p.bias_stride;
        const T* bias = p.bias == nullptr ? nullptr : static_cast<const T*>(p.bias) + along * p.bias_stride;
        T* out = static_cast<T*>(p.out) + (item.row + row) * p.out_row + (first + col) * p.out_col;
        int64_t residual_offset = 0;
#pragma unroll
        for (int k = 0; k < 3; ++k) {
            out += item.batch[k] * p.out_batch[k];
            residual_offset += item.batch[k] * p.residual_batch[k];
        }
        add_bias(v, bias, bias_step, width - col);
        activate<T>(v, p.activation, p.negative_slope);
        if (gated) {
            float w[8] = {};
            sum(w, col + columns);
            add_bias(w, bias == nullptr ? nullptr : bias + p.bias_up, bias_step, width - col);
#pragma unroll
            for (int e = 0; e < 8; ++e) v[e] *= w[e];
        }
        Run<T, float> run;
        if (p.addends.any()) {
            run = Run<T, float>(p.addends, item.row + row, first + col, item.product, residual_offset, false);
        }
        if (add_run(v, run, 1, width - col)) store_run(v, out, p.out_col, width - col, !p.store_elements);
    }
    // Nobody's shared memory goes while another block may read it. Relaxed, for what a thread has read it has added up by
    // now, and a release would wait for its stores.
    ptx::cluster_arrive();
    ptx::cluster_wait();
}
