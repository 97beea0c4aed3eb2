// A block of warps that multiplies doubles on tensor cores (sm_80, sm_90): the ring and the loop of mma_block.cuh, with
// fragments of 16 x 8 and 8 x 8 doubles.
#pragma once

#include "mma_block.cuh"

// The block's BM x BN tile of the result, 16 doubles (128 bytes) of k at a time, the WM x WN part of one warp.
template <int BM_, int BN_, int WM_, int WN_, int STAGES_, int BLOCKS_> struct DoubleShape {
    using T = double;
    static constexpr int BM = BM_, BN = BN_, BK = 16, WM = WM_, WN = WN_;
    static constexpr int STAGES = STAGES_;
    static constexpr int BLOCKS = BLOCKS_;  // wanted on one multiprocessor: bounds the registers
    static constexpr int WARPS_N = BN / WN, WARPS = BM / WM * WARPS_N, THREADS = WARPS * 32;
    static constexpr int K_STEPS = BK / 8, COPY_EVERY = K_STEPS;  // all copies before one step: fewer registers
    // k of a part whose products are summed alone, before they are added to the rest in `out`: with one chain of additions over
    // all of k, rounding errors would grow with the root of k.
    static constexpr int64_t PART_K = 1024;
    static_assert(WM % 16 == 0 && WN % 16 == 0, "whole fragments");
    static_assert(BM * BN <= STAGES * (BM + BN) * BK, "the result fits where the ring was");

    template <Major A> using SharedA = DoubleTile<BM, BK, A>;
    template <Major B> using SharedB = DoubleTile<BN, BK, B>;
    template <Major A, Major B> static constexpr uint32_t STAGE_BYTES = SharedA<A>::BYTES + SharedB<B>::BYTES;
};

// Brings tiles in by copies of single doubles, two for each vector, of any strides.
template <int MN, int BK, Major MAJOR, int THREADS> struct DoubleCopier : AsyncCopier<double, MN, BK, MAJOR, THREADS> {
    using Base = AsyncCopier<double, MN, BK, MAJOR, THREADS>;
    static_assert(Base::EACH_ROW == 1, "");
    const int64_t& unit;  // one of the kernel's parameters, where it is: for fewer registers

    __device__ __forceinline__ DoubleCopier(const double* tile, int64_t lead, int mn_left, const int64_t& unit)
        : Base(tile, lead, mn_left, unit), unit(unit) {}

    __device__ __forceinline__ void copy(uint32_t shared, int k_left, int part, int parts) {
        const int k = k_left - this->k;
        const int rows = MAJOR == Major::K ? this->mn_left : k, along = MAJOR == Major::K ? k : this->mn_left;
#pragma unroll
        for (int i = 0; i < Base::COUNT; ++i) {
            if (i * parts / Base::COUNT != part) continue;
            const int row = i * Base::ROW_STEP;
            const uint32_t to = shared + this->row_offset(row);
            ptx::cp_async<8>(to, this->source, row < rows && 0 < along);
            ptx::cp_async<8>(to + 8, this->source + unit, row < rows && 1 < along);
            this->source += this->row_step;
        }
        if (MAJOR == Major::K && part + 1 == parts) this->source += this->turn;
    }
};

__device__ __forceinline__ double2 load_shared_doubles(uint32_t at) {
    uint32_t w[4];
    ptx::load_shared_16(at, w);
    double2 v;
    __builtin_memcpy(&v, w, 16);
    return v;
}

// One warp's part of the result, and two sets of fragments. Rows and columns come in pairs: a lane's rows g and g + 8 of a
// fragment are the tile's 2 g and 2 g + 1, and so are columns g of two fragments next to each other. So a lane has four
// neighbouring columns, and reads two neighbours at a time, whichever dimension has the unit stride.
template <class S, Major A, Major B> struct DoubleWarp {
    static constexpr int MT = S::WM / 16, NT = S::WN / 16;

    double accumulator[MT][NT][2][4] = {};
    double a[2][MT][4], b[2][NT][4];  // [k of 4][half of mn]
    int row, col;                     // within the tile
    uint32_t a_first, b_first;

    __device__ __forceinline__ DoubleWarp()
        : row(threadIdx.x / 32 / S::WARPS_N * S::WM),
          col(threadIdx.x / 32 % S::WARPS_N * S::WN),
          a_first(S::template SharedA<A>::fragment(row, threadIdx.x % 32)),
          b_first(S::template SharedB<B>::fragment(col, threadIdx.x % 32)) {}

    template <class Shared, Major MAJOR>
    static __device__ __forceinline__ void read_fragment(double (&fragment)[4], uint32_t at) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const double2 v = load_shared_doubles(at + i * Shared::ROW_BYTES);
            fragment[MAJOR == Major::K ? i : 2 * i] = v.x;
            fragment[MAJOR == Major::K ? 2 + i : 2 * i + 1] = v.y;
        }
    }

    // Fragments of step k_step of the buffer at `shared`.
    __device__ __forceinline__ void read(int set, uint32_t shared, int k_step) {
        using SharedA = typename S::template SharedA<A>;
        using SharedB = typename S::template SharedB<B>;
#pragma unroll
        for (int i = 0; i < MT; ++i) read_fragment<SharedA, A>(a[set][i], shared + SharedA::step(a_first, i, k_step));
        shared += SharedA::BYTES;
#pragma unroll
        for (int i = 0; i < NT; ++i) read_fragment<SharedB, B>(b[set][i], shared + SharedB::step(b_first, i, k_step));
    }

    __device__ __forceinline__ void multiply(int set) {
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int j = 0; j < NT; ++j)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const double fragment[2] = {b[set][j][half], b[set][j][2 + half]};
                    ptx::mma_m16n8k8_f64(accumulator[i][j][half], a[set][i], fragment);
                }
    }

    // Adds to the sums what `out` holds of earlier parts of k.
    template <class Params> __device__ __forceinline__ void add_earlier(const Params& p, const Work<double>& work) {
#pragma unroll
        for (int i = 0; i < MT; ++i) {
            Pack<double, 4> stored[NT][2] = {};
            each_four(p, work, i, [&](int j, int half, const double* from, int count) {
                if (p.out_vector && count >= 4) {
                    stored[j][half] = load_pack<double, 4>(from);
                    return;
                }
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if (e < count) stored[j][half].v[e] = from[e * p.out_col];
                }
            });
#pragma unroll
            for (int j = 0; j < NT; ++j)
#pragma unroll
                for (int e = 0; e < 8; ++e) accumulator[i][j][e % 2][e / 2] += stored[j][e / 4].v[e % 4];
        }
    }

    // The end of a part of k that is not the last: sums go to `out`, and begin again.
    template <class Params> __device__ __forceinline__ void store_part(const Params& p, const Work<double>& work) {
#pragma unroll
        for (int i = 0; i < MT; ++i)
            each_four(p, work, i, [&](int j, int half, double* to, int count) {
                Pack<double, 4> sums;
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    double& sum = accumulator[i][j][e % 2][half * 2 + e / 2];
                    sums.v[e] = sum;
                    sum = 0.0;
                }
                if (p.out_vector && count >= 4) {
                    store_pack(to, sums);
                    return;
                }
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if (e < count) to[e * p.out_col] = sums.v[e];
                }
            });
    }

    // Each thread takes its sums from its own place in shared memory, in a loop: for the activations' code to be short.
    template <class Params>
    __device__ __forceinline__ void apply_epilogue_to_all(const Params& p, const Work<double>& work) {
        const int lane = threadIdx.x % 32;
        double2* own = reinterpret_cast<double2*>(shared_memory) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int j = 0; j < NT; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const auto& v = accumulator[i][j];
                    own[((i * NT + j) * 4 + e) * S::THREADS] = make_double2(v[0][e], v[1][e]);
                }
#pragma unroll 1
        for (int at = 0; at < MT * NT * 2; ++at) {
            const double2 low = own[at * 2 * S::THREADS], high = own[(at * 2 + 1) * S::THREADS];
            double v[4] = {low.x, low.y, high.x, high.y};
            const int i = at / (NT * 2), j = at / 2 % NT, half = at % 2;
            apply_epilogue(p, work, row + i * 16 + lane / 4 * 2 + half, col + j * 16 + lane % 4 * 4, 1, v);
        }
    }

private:
    // Where a lane's fours of fragments i lie in `out`, and how many of a four there are.
    template <class Params, class F>
    __device__ __forceinline__ void each_four(const Params& p, const Work<double>& work, int i, F f) {
        const int lane = threadIdx.x % 32, first = row + i * 16 + lane / 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            double* out = work.out + (work.row + first + half) * p.out_row;
#pragma unroll
            for (int j = 0; j < NT; ++j) {
                const int column = col + j * 16 + lane % 4 * 4;
                f(j, half, out + (work.col + column) * p.out_col, first + half < work.rows ? work.cols - column : 0);
            }
        }
    }
};

// ELEMENTS: operands of any strides; otherwise of whole, aligned 16-byte vectors along A and B.
template <class S, Major A, Major B, bool ELEMENTS, class Params>
__device__ __forceinline__ void matmul_doubles(const Params& p) {
    ptx::wait_for_grid_before();
    Work<double> work;
    if (!find_work<S::BM, S::BN>(p, work)) return;
    const int64_t &a_lead = A == Major::K ? p.a_row : p.a_col, &a_unit = A == Major::K ? p.a_col : p.a_row;
    const int64_t &b_lead = B == Major::K ? p.b_col : p.b_row, &b_unit = B == Major::K ? p.b_row : p.b_col;
    DoubleWarp<S, A, B> warp;
    const auto between = [&](int64_t left) {
        Work<double> work;  // again: for no registers of it meanwhile
        find_work<S::BM, S::BN>(p, work);
        if (p.k - left > S::PART_K) warp.add_earlier(p, work);
        warp.store_part(p, work);
    };
    if constexpr (ELEMENTS) {
        DoubleCopier<S::BM, S::BK, A, S::THREADS> copy_a(work.a, a_lead, work.rows, a_unit);
        DoubleCopier<S::BN, S::BK, B, S::THREADS> copy_b(work.b, b_lead, work.cols, b_unit);
        multiply(warp, copy_a, copy_b, p.k, between);
    } else {
        AsyncCopier<double, S::BM, S::BK, A, S::THREADS> copy_a(work.a, a_lead, work.rows);
        AsyncCopier<double, S::BN, S::BK, B, S::THREADS> copy_b(work.b, b_lead, work.cols);
        multiply(warp, copy_a, copy_b, p.k, between);
    }
    find_work<S::BM, S::BN>(p, work);
    if (p.k > S::PART_K) warp.add_earlier(p, work);
    warp.apply_epilogue_to_all(p, work);
}
