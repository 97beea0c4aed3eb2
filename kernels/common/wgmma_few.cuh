// What a block of matmul_wgmma_few.cu does: its parameters, its warps' roles, and its epilogue.
#pragma once

#include "wgmma_shape.cuh"

// out[i, j] = act(sum over k of a[i, k] b[k, j] + bias) + residual, of few columns, which lie along k; gated, act(gate @ b + bias) *
// (a @ b + bias) + residual. Strides in elements. Mirrored in src/cuda/plan/matmul/wgmma/few/params.rs.
struct alignas(64) FewParams {
    // Two lines of the constant caches, each of which takes as long as several stages. First what there is to know before the end.
    Divisor by_columns;  // tiles side by side
    uint32_t tiles_n;
    uint32_t stages;
    uint32_t k_blocks;  // stages; of gated products, for both
    uint32_t a_mn;      // rows lie along m, not along k
    // That arrive for a stage: for most tiles, and for the last row or column of them.
    uint16_t a_bytes, a_tail_bytes;
    uint16_t b_bytes, b_tail_bytes;
    uint32_t m, n;
    uint32_t activation;
    float negative_slope;
    uint32_t store_elements;   // columns of the result that are no whole, aligned 16-byte vectors
    uint32_t residual_vector;  // those of the residual may be read at once
    const void* bias;          // by row; null: none
    int64_t bias_row;
    void* out;
    int64_t out_row, out_col;
    const void* residual;  // null: none
    int64_t residual_row, residual_col;
    TensorMap a, a_tail, b, b_tail;
    // Of gated products: `bias` is the gate's, and a's lies so many elements behind it.
    TensorMap gate, gate_tail;
    int64_t bias_up;
};
static_assert(sizeof(FewParams) == 960 && offsetof(FewParams, bias) == 64 && offsetof(FewParams, a) == 128 &&
                  offsetof(FewParams, bias_up) == 896,
              "mirrored in Rust");

// 64 rows and BN columns of the result. Two warpgroups take every other stage, of 128 of k, and then stages of their own of the
// ring, which has an even number. GATED: the first one's are the gate's, and each has all of k.
template <class Element, int BN_, bool GATED_ = false> struct FewTile {
    using T = Element;
    static constexpr bool GATED = GATED_;
    static constexpr int BM = 64, BN = BN_, WARPGROUPS = 2, WARPS = 4 * WARPGROUPS, THREADS = 32 * WARPS + 128;
    static constexpr int K_BOXES = 2;
    static constexpr int A_BOX_BYTES = BM * 128, B_BOX_BYTES = BN * 128;
    static constexpr int A_BYTES = K_BOXES * A_BOX_BYTES, STAGE_BYTES = A_BYTES + K_BOXES * B_BOX_BYTES;
    static constexpr int ACCUMULATORS = BN / 2;
    // Of a warpgroup's sums, in shared memory: floats of a column, with those that make writes free of bank conflicts.
    static constexpr int COLUMN = BM + 4, SUMS = BN * COLUMN;
    static_assert(WARPGROUPS * SUMS * sizeof(float) <= 4 * STAGE_BYTES, "four stages at least");
};

// Of rows or columns from the first: whether they are the last there are.
template <class S, bool IS_B> __device__ __forceinline__ bool is_last_few(const FewParams& p, int32_t first) {
    return uint32_t(first) + (IS_B ? S::BN : S::BM) >= (IS_B ? p.n : p.m);
}

template <bool IS_B> __device__ __forceinline__ const TensorMap& map_few(const FewParams& p, bool is_last) {
    return IS_B ? (is_last ? p.b_tail : p.b) : (is_last ? p.a_tail : p.a);
}
__device__ __forceinline__ const TensorMap& map_of_gate(const FewParams& p, bool is_last) {
    return is_last ? p.gate_tail : p.gate;
}

// By one thread: fills an operand's part of every stage.
template <class S, bool IS_B>
__device__ __forceinline__ void produce_few(const FewParams& p, int32_t first, uint32_t shared, Ring ring) {
    const bool is_last = is_last_few<S, IS_B>(p, first);
    const uint32_t bytes = IS_B ? (is_last ? p.b_tail_bytes : p.b_bytes) : (is_last ? p.a_tail_bytes : p.a_bytes);
    const TensorMap &own = map_few<IS_B>(p, is_last), &gate = S::GATED && !IS_B ? map_of_gate(p, is_last) : own;
    const bool mn_major = !IS_B && p.a_mn;
    for (uint32_t stage = 0; stage < p.k_blocks; ++stage, ring.advance()) {
        const uint32_t block = S::GATED ? stage / 2 : stage;
        const TensorMap& map = S::GATED && stage % 2 == 0 ? gate : own;
        ptx::mbarrier_wait(ring.empty(ring.stage), ring.phase ^ 1);
        const uint32_t full = ring.full(ring.stage);
        const uint32_t to = shared + HEADER_BYTES + ring.stage * S::STAGE_BYTES + (IS_B ? S::A_BYTES : 0);
        ptx::mbarrier_arrive_expect(full, bytes);
#pragma unroll
        for (int32_t i = 0; i < S::K_BOXES; ++i) {
            const int32_t k = (int32_t(block) * S::K_BOXES + i) * BLOCK_K;
            const uint32_t at = to + i * (IS_B ? S::B_BOX_BYTES : S::A_BOX_BYTES);
            ptx::tma_load_2d(at, map, full, mn_major ? first : k, mn_major ? k : first);
        }
    }
}

// Issues the products of a stage as one group.
template <class S, bool A_MN>
__device__ __forceinline__ void multiply_few(float (&d)[S::ACCUMULATORS], uint32_t stage, bool accumulate) {
    constexpr uint32_t A_STEP = A_MN ? 16 * 128 : 32;  // from one k of 16 to the next
    ptx::wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::K_BOXES; ++i) {
        const uint64_t a = ptx::wgmma_tile<A_MN>(stage + i * S::A_BOX_BYTES);
        const uint64_t b = ptx::wgmma_tile<false>(stage + S::A_BYTES + i * S::B_BOX_BYTES);
#pragma unroll
        for (int k = 0; k < BLOCK_K / 16; ++k) {
            ptx::Wgmma<S::BN>::template add<typename S::T, A_MN, false>(
                d, ptx::wgmma_tile_at(a, k * A_STEP), ptx::wgmma_tile_at(b, k * 32), accumulate || i + k > 0);
        }
    }
    ptx::wgmma_commit();
}

// This warpgroup's sums of products, which are zeros where it has no stage.
template <class S>
__device__ __forceinline__ void sum_few(const FewParams& p, float (&d)[S::ACCUMULATORS], uint32_t shared,
                                        uint32_t group) {
    const auto next = [&](Ring& ring) {
        ring.stage += S::WARPGROUPS;
        if (ring.stage >= ring.stages) {
            ring.stage = group;
            ring.phase ^= 1;
        }
    };
    Ring ring{shared, p.stages, group}, multiplied = ring;
    for (uint32_t block = group; block < p.k_blocks; block += S::WARPGROUPS) {
        ptx::mbarrier_wait(ring.full(ring.stage), ring.phase);
        const uint32_t stage = shared + HEADER_BYTES + ring.stage * S::STAGE_BYTES;
        ptx::wgmma_pin(d);
        if (p.a_mn) {
            multiply_few<S, true>(d, stage, block > group);
        } else {
            multiply_few<S, false>(d, stage, block > group);
        }
        ptx::wgmma_wait<1>();
        if (block > group) {
            if (threadIdx.x % 32 == 0) ptx::mbarrier_arrive(multiplied.empty(multiplied.stage));
            next(multiplied);
        }
        next(ring);
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(d);
    if (p.k_blocks > group) return;
#pragma unroll
    for (int i = 0; i < S::ACCUMULATORS; ++i) d[i] = 0.0f;
}

// A thread's vectors of 8 rows are the same rows of several columns, so that their bias is loaded once, before the products.
// ANY: activations with exponentials, too, whose instructions take as long to arrive as a stage.
template <class S, bool ANY> struct FewEpilogue {
    using T = typename S::T;
    const FewParams& p;
    const int32_t row, col, along;  // the tile's first, and the vector's first within it
    float bias[8] = {}, bias_up[8] = {};

    __device__ __forceinline__ FewEpilogue(const FewParams& p, int32_t row, int32_t col)
        : p(p), row(row), col(col), along(int32_t(threadIdx.x % (S::BM / 8)) * 8) {
        if (p.bias == nullptr) return;
        const T* from = static_cast<const T*>(p.bias) + (row + along) * p.bias_row;
        add_bias(bias, from, p.bias_row, rows_left());
        if constexpr (S::GATED) add_bias(bias_up, from + p.bias_up, p.bias_row, rows_left());
    }
    __device__ __forceinline__ int32_t rows_left() const { return int32_t(p.m) - row - along; }

    // By all consumers, with their sums.
    __device__ __forceinline__ void write(const float (&d)[S::ACCUMULATORS]) const {
        constexpr uint32_t CONSUMERS = 32 * S::WARPS;
        float* sums = reinterpret_cast<float*>(wgmma_shared + HEADER_BYTES);
        const uint32_t lane = threadIdx.x % 32;
        // Nobody multiplies from the ring any more.
        ptx::barrier_sync(RESULT_READY, CONSUMERS);
        float* to =
            sums + threadIdx.x / 128 * S::SUMS + threadIdx.x % 128 / 32 * 16 + lane / 4 + lane % 4 * 2 * S::COLUMN;
#pragma unroll
        for (int i = 0; i < S::ACCUMULATORS; ++i) to[(i / 4 * 8 + i % 2) * S::COLUMN + i / 2 % 2 * 8] = d[i];
        ptx::barrier_sync(RESULT_READY, CONSUMERS);
        const int32_t columns = min(int32_t(p.n) - col, S::BN), count = rows_left();
        if (count <= 0) return;
        for (int32_t column = threadIdx.x / (S::BM / 8); column < columns; column += CONSUMERS / (S::BM / 8)) {
            float v[8], w[8];  // of the warpgroups
            const float* from = sums + column * S::COLUMN + along;
#pragma unroll
            for (int e = 0; e < 8; ++e) {
                w[e] = from[S::SUMS + e];
                v[e] = from[e] + (S::GATED ? 0.0f : w[e]) + bias[e];
            }
            if constexpr (ANY) {
                activate<T>(v, p.activation, p.negative_slope);
            } else {
                rectify(v, p.activation, p.negative_slope);
            }
            if constexpr (S::GATED) {
#pragma unroll
                for (int e = 0; e < 8; ++e) v[e] *= w[e] + bias_up[e];
            }
            Run<T, float> run;
            if (p.residual != nullptr) {
                run.residual = static_cast<const T*>(p.residual) + (row + along) * p.residual_row +
                               (col + column) * p.residual_col;
                run.residual_step = p.residual_row;
                run.residual_vector = p.residual_vector;
            }
            T* out = static_cast<T*>(p.out) + (row + along) * p.out_row + (col + column) * p.out_col;
            if (add_run(v, run, 1, count)) store_run(v, out, p.out_row, count, !p.store_elements);
        }
    }
};

template <class S, bool ANY> __device__ __forceinline__ void run_few(const FewParams& p) {
    const uint32_t shared = uint32_t(__cvta_generic_to_shared(wgmma_shared));
    const Ring ring{shared, p.stages};
    const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const uint32_t tile_m = p.by_columns.quotient(blockIdx.x), tile_n = blockIdx.x - tile_m * p.tiles_n;
    const int32_t row = int32_t(tile_m) * S::BM, col = int32_t(tile_n) * S::BN;
    if (warp == S::WARPS + 2) {
        if (ptx::elect()) {
            // As many as there can be: straight code is sooner done than a loop.
#pragma unroll
            for (uint32_t stage = 0; stage < MAX_STAGES; ++stage) {
                ptx::mbarrier_init(ring.full(stage), 2);
                ptx::mbarrier_init(ring.empty(stage), S::WARPS / S::WARPGROUPS);
            }
            ptx::fence_mbarrier_init();
        }
        __syncwarp();
    } else if (warp >= S::WARPS) {
        const bool is_b = warp == S::WARPS + 1, is_gate = S::GATED && warp == S::WARPS + 3;
        const bool is_last = is_b ? is_last_few<S, true>(p, col) : is_last_few<S, false>(p, row);
        const TensorMap& weights = is_gate ? map_of_gate(p, is_last) : map_few<false>(p, is_last);
        if (ptx::elect()) ptx::tma_prefetch_map(is_b ? map_few<true>(p, is_last) : weights);
    }
    __syncthreads();
    if (warp >= S::WARPS) {
        if (warp > S::WARPS + 1 || !ptx::elect()) return;
        ptx::wait_for_grid_before();
        if (warp == S::WARPS) {
            produce_few<S, false>(p, row, shared, ring);
        } else {
            produce_few<S, true>(p, col, shared, ring);
        }
        return;
    }
    ptx::wait_for_grid_before();
    const FewEpilogue<S, ANY> epilogue(p, row, col);
    float d[S::ACCUMULATORS];
    sum_few<S>(p, d, shared, warp / 4);
    epilogue.write(d);
}
