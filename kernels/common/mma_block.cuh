// A block of warps that multiplies on tensor cores (mma.sync, sm_80 and newer) and sums in float32: global memory to a
// ring of buffers in shared memory, fragments in registers, then the epilogue. Kernel files differ in element types and
// in how operands reach shared memory.
#pragma once

#include "matmul.cuh"
#include "mma_operand.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "shared_tile.cuh"

extern __shared__ __align__(128) uint8_t shared_memory[];

// The block's BM x BN tile of the result, BK elements (K_BYTES) of k at a time, the WM x WN part of one warp, and
// the ring of STAGES buffers.
template <class T_, int BM_, int BN_, int K_BYTES, int WM_, int WN_, int STAGES_, int BLOCKS_>
struct Shape {
    using T = T_;
    static constexpr int BM = BM_, BN = BN_, BK = K_BYTES / sizeof(T), WM = WM_, WN = WN_;
    static constexpr int STAGES = STAGES_;
    static constexpr int BLOCKS = BLOCKS_;  // wanted on one multiprocessor: bounds the registers
    static constexpr int WARPS_N = BN / WN, WARPS = BM / WM * WARPS_N, THREADS = WARPS * 32;
    static constexpr int K_STEPS = K_BYTES / 32;  // an mma takes 32 bytes of k
    // Steps from one part of the next tile's copies to another: fewer parts, where sums take the registers.
    static constexpr int COPY_EVERY = WM * WN > 64 * 64 ? 2 : 1;
    static constexpr bool ADDENDS =
        BM * BN < 192 * 192;  // the plan sends what is added to other tiles: no registers are left
    static_assert(WM % 16 == 0 && WN % 16 == 0 && K_STEPS % 2 == 0, "whole pieces, two sets of fragments");

    template <Major A> using SharedA = SharedTile<BM, BK, sizeof(T), A>;
    template <Major B> using SharedB = SharedTile<BN, BK, sizeof(T), B>;
    template <Major A, Major B> static constexpr uint32_t STAGE_BYTES = SharedA<A>::BYTES + SharedB<B>::BYTES;

    // The strip of shared memory through which a warp hands over 16 rows of its accumulators, in floats.
    static constexpr int STRIP_ROW = WN + 8;  // 8 more make the writes free of bank conflicts
    static constexpr int STRIP_BYTES = 16 * STRIP_ROW * sizeof(float);
    static_assert(WARPS * STRIP_BYTES <= STAGES * (BM + BN) * K_BYTES, "the strips fit where the ring was");
};

// One warp's part of the result, and two sets of fragments: one to multiply, one on its way.
template <class S, Major A, Major B> struct Warp {
    using T = typename S::T;
    static constexpr int MT = S::WM / 16, NT = S::WN / 8;

    float accumulator[MT][NT][4] = {};
    uint32_t a[2][MT][4], b[2][NT / 2][4];
    int row, col;  // within the tile
    FragmentReader<typename S::template SharedA<A>, A, Side::A, MT> a_reader;
    FragmentReader<typename S::template SharedB<B>, B, Side::B, NT / 2> b_reader;

    __device__ __forceinline__ Warp()
        : row(threadIdx.x / 32 / S::WARPS_N * S::WM),
          col(threadIdx.x / 32 % S::WARPS_N * S::WN),
          a_reader(row),
          b_reader(col) {}

    // Fragments of step k_step of the buffer at `shared`.
    __device__ __forceinline__ void read(int set, uint32_t shared, int k_step) {
#pragma unroll
        for (int i = 0; i < MT; ++i) a_reader.read(a[set][i], shared, i, k_step);
        shared += S::template SharedA<A>::BYTES;
#pragma unroll
        for (int i = 0; i < NT / 2; ++i) b_reader.read(b[set][i], shared, i, k_step);
    }

    __device__ __forceinline__ void multiply(int set) {
        if constexpr (sizeof(T) == 4) {
            for (auto& fragment : a[set])
                for (uint32_t& word : fragment) word = ptx::to_tf32(word);
            for (auto& fragment : b[set])
                for (uint32_t& word : fragment) word = ptx::to_tf32(word);
        }
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int j = 0; j < NT; ++j) {
                const uint32_t fragment[2] = {b[set][j / 2][j % 2 * 2], b[set][j / 2][j % 2 * 2 + 1]};
                if constexpr (sizeof(T) == 4)
                    ptx::mma_m16n8k8_tf32(accumulator[i][j], a[set][i], fragment);
                else
                    ptx::mma_m16n8k16<T>(accumulator[i][j], a[set][i], fragment);
            }
    }

    // Applies the epilogue and writes the result, 16 rows at a time through the warp's own strip, so that a row's neighbours
    // are written together. The loop is not unrolled, to keep the activations' code small: the accumulators move
    // up instead.
    template <class Params> __device__ __forceinline__ void apply_epilogue_to_all(const Params& p,
                                                                                  const Work<T>& work) {
        constexpr int LANES = S::WN / 4;  // on one row, four columns each
        float* strip = reinterpret_cast<float*>(shared_memory + threadIdx.x / 32 * S::STRIP_BYTES);
        const int lane = threadIdx.x % 32;
        const int step = p.out_vector ? 1 : LANES;
        const int first = p.out_vector ? lane % LANES * 4 : lane % LANES;
#pragma unroll 1
        for (int i = 0; i < MT; ++i) {
#pragma unroll
            for (int j = 0; j < NT; ++j) {
                float* at = strip + lane / 4 * S::STRIP_ROW + j * 8 + lane % 4 * 2;
                const float* v = accumulator[0][j];
                *reinterpret_cast<float2*>(at) = make_float2(v[0], v[1]);
                *reinterpret_cast<float2*>(at + 8 * S::STRIP_ROW) = make_float2(v[2], v[3]);
            }
            __syncwarp();
#pragma unroll 1
            for (int r = lane < 32 / LANES * LANES ? lane / LANES : 16; r < 16; r += 32 / LANES) {
                const float* at = strip + r * S::STRIP_ROW + first;
                float v[4];
                if (p.out_vector) {
                    const float4 four = *reinterpret_cast<const float4*>(at);
                    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
                } else {
#pragma unroll
                    for (int e = 0; e < 4; ++e) v[e] = at[e * LANES];
                }
                apply_epilogue<S::ADDENDS>(p, work, row + i * 16 + r, col + first, step, v);
            }
            __syncwarp();
#pragma unroll
            for (int next = 1; next < MT; ++next)
#pragma unroll
                for (int j = 0; j < NT; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) accumulator[next - 1][j][e] = accumulator[next][j][e];
        }
    }
};

// The sum over k of a tile, in `warp`. The copiers fill buffers: copies run STAGES - 1 tiles of k ahead of the
// arithmetic, fragments one step. Afterwards nobody uses the ring any more.
template <template <class, Major, Major> class W, class S, Major A, Major B, class CopierA, class CopierB, class K>
__device__ __forceinline__ void multiply(W<S, A, B>& warp, CopierA& copy_a, CopierB& copy_b, K k) {
    constexpr int STAGES = S::STAGES, STEPS = S::K_STEPS, EVERY = S::COPY_EVERY, PARTS = STEPS / EVERY;
    constexpr uint32_t STAGE_BYTES = S::template STAGE_BYTES<A, B>;
    const uint32_t shared = uint32_t(__cvta_generic_to_shared(shared_memory));

    // A tile's copies start in parts, each before a step's arithmetic, so as not to crowd it out. `left` is k from
    // that tile on; past the end they write zeros.
    const auto fetch = [&](K left, int stage, int part, int parts) {
        const int k_left = int(min(left, K(S::BK)));
        copy_a.copy(shared + stage * STAGE_BYTES, k_left, part, parts);
        copy_b.copy(shared + stage * STAGE_BYTES + S::template SharedA<A>::BYTES, k_left, part, parts);
        if (part + 1 == parts) ptx::cp_async_commit();
    };

    int read_stage = 0, write_stage = STAGES - 1;
    if (k > 0) {
#pragma unroll 1
        for (int stage = 0; stage < STAGES - 1; ++stage) fetch(k - stage * S::BK, stage, 0, 1);
        ptx::cp_async_wait<STAGES - 2>();
        __syncthreads();
        warp.read(0, shared, 0);
        fetch(k - (STAGES - 1) * S::BK, write_stage, 0, PARTS);
    }
    for (K left = k; left > 0; left -= S::BK) {
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            const bool last = step == STEPS - 1;
            if (last) {
                // Everyone has read the last of this tile into registers: after the barrier its buffer is free. The
                // next tile has arrived: all but the STAGES - 2 newest have.
                ptx::cp_async_wait<STAGES - 2>();
                __syncthreads();
                write_stage = read_stage;
                read_stage = read_stage + 1 == STAGES ? 0 : read_stage + 1;
            }
            // Past the last tile this reads zeros, and nothing uses them.
            const int next = (step + 1) % STEPS;
            warp.read(next % 2, shared + read_stage * STAGE_BYTES, next);
            if (next % EVERY == 0) fetch(left - (STAGES - !last) * S::BK, write_stage, next / EVERY, PARTS);
            warp.multiply(step % 2);
        }
    }
    // A wait is only for what was committed, and the last parts were not: their zeros would land in what the epilogue
    // lays over the buffers.
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
}

// Operands that consist of whole, aligned 16-byte vectors along A and B.
template <class S, Major A, Major B, class Params>
__device__ __forceinline__ void multiply_async(const Params& p, const Work<typename S::T>& work) {
    using T = typename S::T;
    AsyncCopier<T, S::BM, S::BK, A, S::THREADS> copy_a(work.a, A == Major::K ? p.a_row : p.a_col, work.rows);
    AsyncCopier<T, S::BN, S::BK, B, S::THREADS> copy_b(work.b, B == Major::K ? p.b_col : p.b_row, work.cols);
    Warp<S, A, B> warp;
    multiply(warp, copy_a, copy_b, p.k);
    warp.apply_epilogue_to_all(p, work);
}
template <class S, Major A, Major B, class Params> __device__ __forceinline__ void matmul_async(const Params& p) {
    ptx::wait_for_grid_before();
    Work<typename S::T> work;
    if (find_work<S::BM, S::BN>(p, work)) multiply_async<S, A, B>(p, work);
}
