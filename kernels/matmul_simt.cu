// targets: 75 80 90 100 120 ptx:75
//
// matmul without tensor cores, any strides: out = act(a @ b + bias).
//   float32   IEEE products and sums (fused multiply-add), on every device
//   float64   the same in double
//   float16, bfloat16   summed in float, only for devices before sm_80; later ones run matmul_mma.cu
//
// 256 threads share a BM x BN tile of the result; each owns TM x TN of it in registers, so that TM + TN
// values read from shared memory feed TM * TN multiply-adds. Two buffers: the next BK steps of k are read
// into registers during the arithmetic of the present ones, widened, and written across one barrier later.
//
// Variants, matmul_simt_{tile}_{dtype}; src/cuda/plan/matmul.rs chooses:
//   128x128  8 x 8 a thread: 64 multiply-adds for 16 values read; for results that fill the device
//   64x64    4 x 4 a thread: four times the blocks for smaller results, and float64 always (registers)
//
// Per product: 2 m n k flops; size (m k + k n + m n) bytes at least.

#include "matmul.cuh"
#include "ptx/cp_async.cuh"

template <class Acc_, int BM_, int BN_, int BK_, int TM_, int TN_>
struct Shape {
    using Acc = Acc_;
    static constexpr int BM = BM_, BN = BN_, BK = BK_, TM = TM_, TN = TN_;
    static constexpr int THREADS = 256, STAGES = 3;
    // Elements of one 16-byte read of shared memory: a thread's rows and columns come in runs of VEC, the
    // runs of a warp's 4 x 8 threads side by side, so that every such read is free of bank conflicts.
    static constexpr int VEC = 16 / sizeof(Acc);
    static constexpr int LANES_M = 4, LANES_N = 8;
    static constexpr int WM = LANES_M * TM, WN = LANES_N * TN;  // of one warp
    static constexpr int WARPS_N = BN / WN;
    static_assert(BM / WM * WARPS_N * 32 == THREADS && TM % VEC == 0 && TN % VEC == 0, "");
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

template <class T, class S, class Params> __device__ __forceinline__ void matmul(const Params& p) {
    using Acc = typename S::Acc;
    using CopierA = Copier<T, Acc, S::BM, S::BK, S::THREADS>;
    using CopierB = Copier<T, Acc, S::BN, S::BK, S::THREADS>;
    __shared__ __align__(16) typename CopierA::Buffer shared_a[S::STAGES];
    __shared__ __align__(16) typename CopierB::Buffer shared_b[S::STAGES];

    // Shared memory keeps it for the end: in registers it would cost the large tile its second block.
    __shared__ Work<T> kept;
    Work<T> work;
    if (!find_work<S::BM, S::BN>(p, work)) return;
    if (threadIdx.x == 0) kept = work;
    CopierA copy_a(work.a, p.a_row, p.a_col, work.rows, p.a_k_fast);
    CopierB copy_b(work.b, p.b_col, p.b_row, work.cols, p.b_k_fast);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row = warp / S::WARPS_N * S::WM + lane / S::LANES_N * S::VEC;
    const int col = warp % S::WARPS_N * S::WN + lane % S::LANES_N * S::VEC;
    constexpr int ROW_RUN = S::LANES_M * S::VEC, COL_RUN = S::LANES_N * S::VEC;  // from run to run
    Acc accumulator[S::TM][S::TN] = {};

    const int tiles = int((p.k + S::BK - 1) / S::BK);
    const auto fetch = [&](int tile, int stage) {
        if (tile < tiles) {
            const int left = int(min(int64_t(S::BK), p.k - int64_t(tile) * S::BK));
            copy_a.copy(shared_a[stage], p.a_row, p.a_col, left, p.a_k_fast);
            copy_b.copy(shared_b[stage], p.b_col, p.b_row, left, p.b_k_fast);
        }
        commit();
    };
#pragma unroll
    for (int tile = 0; tile < S::STAGES - 1; ++tile) fetch(tile, tile);
    int stage = 0;
    for (int tile = 0; tile < tiles; ++tile) {
        // This tile has arrived, and everyone is done with the previous one: its buffer is free.
        wait<S::STAGES - 2>();
        __syncthreads();
        fetch(tile + S::STAGES - 1, stage == 0 ? S::STAGES - 1 : stage - 1);
#pragma unroll
        for (int k = 0; k < S::BK; ++k) {
            Acc a[S::TM], b[S::TN];
            read_runs<S::VEC>(a, &shared_a[stage][k][row], ROW_RUN);
            read_runs<S::VEC>(b, &shared_b[stage][k][col], COL_RUN);
#pragma unroll
            for (int i = 0; i < S::TM; ++i)
#pragma unroll
                for (int j = 0; j < S::TN; ++j) accumulator[i][j] = fma(a[i], b[j], accumulator[i][j]);
        }
        stage = stage + 1 == S::STAGES ? 0 : stage + 1;
    }

    __syncthreads();
    work = kept;
    // A row at a time. Not unrolled, to keep the activations' code small: the accumulators move up instead.
#pragma unroll 1
    for (int i = 0; i < S::TM; ++i) {
#pragma unroll
        for (int run = 0; run < S::TN / S::VEC; ++run) {
            Acc v[S::VEC];
#pragma unroll
            for (int e = 0; e < S::VEC; ++e) v[e] = accumulator[0][run * S::VEC + e];
            finish(p, work, row + i / S::VEC * ROW_RUN + i % S::VEC, col + run * COL_RUN, 1, v);
        }
#pragma unroll
        for (int next = 1; next < S::TM; ++next)
#pragma unroll
            for (int j = 0; j < S::TN; ++j) accumulator[next - 1][j] = accumulator[next][j];
    }
}

//                              BM   BN  BK  TM TN
using Float128x128 = Shape<float, 128, 128, 8, 8, 8>;
using Float64x64 = Shape<float, 64, 64, 16, 4, 4>;
using Double64x64 = Shape<double, 64, 64, 8, 4, 4>;

#define MATMUL(tile, T, S, BLOCKS, RANK)                                         \
    extern "C" __global__ void __launch_bounds__(S::THREADS, BLOCKS)             \
        matmul_simt_##tile##_##T(const __grid_constant__ MatmulParams<RANK> p) { \
        matmul<T, S>(p);                                                         \
    }
MATMUL(128x128, f32, Float128x128, 2, MAX_RANK)
MATMUL(64x64, f32, Float64x64, 3, INLINE_RANK)
MATMUL(64x64, f64, Double64x64, 2, MAX_RANK)

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 800
MATMUL(128x128, f16, Float128x128, 2, MAX_RANK)
MATMUL(64x64, f16, Float64x64, 3, INLINE_RANK)
MATMUL(128x128, bf16, Float128x128, 2, MAX_RANK)
MATMUL(64x64, bf16, Float64x64, 3, INLINE_RANK)
#endif
