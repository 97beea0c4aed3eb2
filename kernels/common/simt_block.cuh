// A block that multiplies without tensor cores: tiles in shared memory, accumulators in registers. Kernel files differ
// in tiles and in how results are stored.
#pragma once

#include "matmul.cuh"
#include "ptx/cp_async.cuh"

// The block's BM x BN tile of the result, BK steps of k at a time, the TM x TN part of one thread, the LANES_M x LANES_N
// threads of a warp, and the ring of STAGES buffers. Where the tile has fewer parts than the block has threads, GROUPS of
// warps take turns at the steps of k, and each ends with a sum of its own.
template <class Acc_, int BM_, int BN_, int BK_, int TM_, int TN_, int LANES_M_, int THREADS_, int STAGES_>
struct SimtShape {
    using Acc = Acc_;
    static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = TN_;
    static constexpr int THREADS = THREADS_, STAGES = STAGES_;
    // Elements of one 16-byte read of shared memory: a thread's rows and columns come in runs of VEC, the
    // runs of a warp's threads side by side, so that every such read is free of bank conflicts.
    static constexpr int VEC = 16 / sizeof(Acc);
    static constexpr int LANES_M = LANES_M_, LANES_N = 32 / LANES_M;
    static constexpr int WM = LANES_M * TM, WN = LANES_N * TN;              // of one warp
    static constexpr int ROW_RUN = LANES_M * VEC, COL_RUN = LANES_N * VEC;  // from a thread's run to its next
    static constexpr int WARPS_N = BN / WN, WARPS = BM / WM * WARPS_N, GROUPS = THREADS / 32 / WARPS;
    // Whether a thread has registers for two sums. k of a part whose products are summed alone before they are added to the
    // rest: with one chain of additions over all of k, rounding errors would grow with the root of k.
    static constexpr bool TWO_SUMS = TM * TN * sizeof(Acc) <= 128;
    static constexpr int PART_K = TWO_SUMS ? 256 : 1024;
    static_assert(GROUPS * WARPS * 32 == THREADS && TM % VEC == 0 && TN % VEC == 0 && BK % GROUPS == 0, "");
};

// Starts the copy of one element to shared memory, or of a zero if it is not valid. Where the types differ,
// and before sm_80, there is nothing asynchronous: the element goes through a register, and other blocks'
// arithmetic hides the wait.
template <class T, class Acc>
__device__ __forceinline__ void copy_element(Acc* shared, const T* global, bool valid) {
#if __CUDA_ARCH__ >= 800
    if constexpr (sizeof(T) == sizeof(Acc)) {
        const uint32_t to = uint32_t(__cvta_generic_to_shared(shared));
        ptx::cp_async<sizeof(T)>(to, global, valid);
        return;
    }
#endif
    *shared = valid ? convert<Acc>(*global) : Acc(0);
}

__device__ __forceinline__ void commit() {
#if __CUDA_ARCH__ >= 800
    ptx::cp_async_commit();
#endif
}

template <int PENDING>
__device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 800
    ptx::cp_async_wait<PENDING>();
#endif
}

// One operand on its way to shared memory, laid out [k][mn]. `mn` is the dimension it shares with the
// result. Neighbouring threads read along the smaller stride; every thread's elements are (mn, k) plus
// multiples of one step, whichever that is.
template <class T, class Acc, int MN, int BK, int THREADS>
struct Copier {
    static constexpr int COUNT = MN * BK / THREADS;
    static_assert(THREADS % MN == 0 && THREADS % BK == 0 && COUNT * THREADS == MN * BK, "every thread copies alike");
    static constexpr int ROW = MN + 16 / sizeof(Acc);  // padded, still aligned to 16 bytes
    using Buffer = Acc[BK][ROW];

    const T* source;  // this thread's first element of the next tile
    int k, offset;    // of that element, in the tile and in shared memory
    int room;         // how far the operand's mn reaches past it

    __device__ __forceinline__ Copier(const T* tile, int64_t mn_stride, int64_t k_stride, int mn_left, bool k_fast) {
        const int t = threadIdx.x;
        const int mn = k_fast ? t / BK : t % MN;
        k = k_fast ? t % BK : t / MN;
        source = tile + mn * mn_stride + k * k_stride;
        offset = k * ROW + mn;
        room = mn_left - mn;
    }

    // Starts the copies of the next tile, of which k_left steps of k exist.
    __device__ __forceinline__ void copy(Buffer& shared, int64_t mn_stride, int64_t k_stride, int k_left, bool k_fast) {
        Acc* first = &shared[0][0] + offset;
        if (k_fast)
            copy_along<THREADS / BK, 0>(first, THREADS / BK * mn_stride, k_left);
        else
            copy_along<0, THREADS / MN>(first, THREADS / MN * k_stride, k_left);
        source += BK * k_stride;
    }

private:
    template <int MN_STEP, int K_STEP>
    __device__ __forceinline__ void copy_along(Acc* shared, int64_t step, int k_left) const {
        const T* from = source;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const bool valid = i * MN_STEP < room && k < k_left - i * K_STEP;
            copy_element(shared + i * (K_STEP * ROW + MN_STEP), from, valid);
            from += step;
        }
    }
};

// `COUNT` of a thread's values of one row of shared memory: runs of VEC, `stride` apart.
template <int VEC, int COUNT, class Acc>
__device__ __forceinline__ void read_runs(Acc (&v)[COUNT], const Acc* row, int stride) {
    struct alignas(16) Run {
        Acc element[VEC];
    };
#pragma unroll
    for (int run = 0; run < COUNT / VEC; ++run) {
        const Run r = *reinterpret_cast<const Run*>(row + run * stride);
#pragma unroll
        for (int e = 0; e < VEC; ++e) v[run * VEC + e] = r.element[e];
    }
}

// Between parts of k, where they are one sum.
struct NoSums {
    __device__ __forceinline__ void operator()(int) const {}
};

// A block's buffers, and the sums of one thread.
template <class T, class S> struct SimtBlock {
    using Acc = typename S::Acc;
    using CopierA = Copier<T, Acc, S::BM, S::BK, S::THREADS>;
    using CopierB = Copier<T, Acc, S::BN, S::BK, S::THREADS>;
    struct Shared {
        typename CopierA::Buffer a[S::STAGES];
        typename CopierB::Buffer b[S::STAGES];
    };

    int group, row, col;  // which steps of k are this thread's; where its part of the tile begins
    Acc accumulator[S::TM][S::TN] = {};

    __device__ __forceinline__ SimtBlock() {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int part = S::GROUPS > 1 ? warp % S::WARPS : warp;
        group = S::GROUPS > 1 ? warp / S::WARPS : 0;
        row = part / S::WARPS_N * S::WM + lane / S::LANES_N * S::VEC;
        col = part % S::WARPS_N * S::WN + lane % S::LANES_N * S::VEC;
    }

    // Of a thread's i-th row and j-th column, from its first.
    __device__ __forceinline__ static int row_at(int i) { return i / S::VEC * S::ROW_RUN + i % S::VEC; }
    __device__ __forceinline__ static int col_at(int j) { return j / S::VEC * S::COL_RUN + j % S::VEC; }

    // Adds the products of `k` steps of k. Afterwards nobody uses the buffers any more. `between` is called after each part
    // of k but the last, with its number.
    template <class Params, class Between = NoSums>
    __device__ __forceinline__ void multiply(const Params& p, const Work<T>& work, Shared& shared, int64_t k,
                                             Between between = {}) {
        CopierA copy_a(work.a, p.a_row, p.a_col, work.rows, p.a_k_fast);
        CopierB copy_b(work.b, p.b_col, p.b_row, work.cols, p.b_k_fast);
        const int tiles = int((k + S::BK - 1) / S::BK);
        const auto fetch = [&](int tile, int stage) {
            if (tile < tiles) {
                const int left = int(min(int64_t(S::BK), k - int64_t(tile) * S::BK));
                copy_a.copy(shared.a[stage], p.a_row, p.a_col, left, p.a_k_fast);
                copy_b.copy(shared.b[stage], p.b_col, p.b_row, left, p.b_k_fast);
            }
            commit();
        };
#pragma unroll
        for (int tile = 0; tile < S::STAGES - 1; ++tile) fetch(tile, tile);
        constexpr int TILES_OF_PART = S::PART_K / S::BK;
        int stage = 0;
        for (int tile = 0; tile < tiles; ++tile) {
            if (tile > 0 && tile % TILES_OF_PART == 0) between(tile / TILES_OF_PART - 1);
            // This tile has arrived, and everyone is done with the previous one: its buffer is free.
            wait<S::STAGES - 2>();
            __syncthreads();
            fetch(tile + S::STAGES - 1, stage == 0 ? S::STAGES - 1 : stage - 1);
#pragma unroll
            for (int i = 0; i < S::BK / S::GROUPS; ++i) {
                const int step = i * S::GROUPS + group;
                Acc a[S::TM], b[S::TN];
                read_runs<S::VEC>(a, &shared.a[stage][step][row], S::ROW_RUN);
                read_runs<S::VEC>(b, &shared.b[stage][step][col], S::COL_RUN);
#pragma unroll
                for (int m = 0; m < S::TM; ++m)
#pragma unroll
                    for (int n = 0; n < S::TN; ++n) accumulator[m][n] = fma(a[m], b[n], accumulator[m][n]);
            }
            stage = stage + 1 == S::STAGES ? 0 : stage + 1;
        }
        __syncthreads();
    }
};
