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

    // The end of a part of k: adds what `out` holds of earlier parts, and writes the sums there or, of the last part, the
    // result. Each thread takes its sums from its own place in shared memory, in loops: for short code and few registers.
    template <class Params>
    __device__ __forceinline__ void finish_part(const Params& p, const Work<double>& work, bool first, bool last) {
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
        const bool vectors = p.out_vector && row + S::WM <= work.rows && col + S::WN <= work.cols;
        constexpr int TOGETHER = 4;  // loads under way
        for (int at = 0; !first && at < FOURS; at += TOGETHER) {
            Pack<double, 4> earlier[TOGETHER];
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i) earlier[i] = load_four(p, work, at + i, vectors);
#pragma unroll
            for (int i = 0; i < TOGETHER; ++i)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    double2& sums = own[((at + i) * 2 + half) * S::THREADS];
                    const double* add = earlier[i].v + half * 2;
                    sums = make_double2(sums.x + add[0], sums.y + add[1]);
                }
        }
#pragma unroll 1
        for (int at = 0; at < FOURS; ++at) {
            const double2 low = own[at * 2 * S::THREADS], high = own[(at * 2 + 1) * S::THREADS];
            double v[4] = {low.x, low.y, high.x, high.y};
            if (last)
                apply_epilogue(p, work, row_of(at), col_of(at), 1, v);
            else
                store_result(p, work, row_of(at), col_of(at), 1, v);
        }
    }

private:
    // A lane has so many fours of neighbouring columns. Where they are within the tile.
    static constexpr int FOURS = MT * NT * 2;
    __device__ __forceinline__ int row_of(int at) const {
        return row + at / (NT * 2) * 16 + threadIdx.x % 32 / 4 * 2 + at % 2;
    }
    __device__ __forceinline__ int col_of(int at) const { return col + at / 2 % NT * 16 + threadIdx.x % 4 * 4; }

    template <class Params>
    __device__ __forceinline__ Pack<double, 4> load_four(const Params& p, const Work<double>& work, int at,
                                                         bool vectors) const {
        const int r = row_of(at), c = col_of(at);
        const double* from = work.out + (work.row + r) * p.out_row + (work.col + c) * p.out_col;
        if (vectors) return load_pack<double, 4>(from);
        Pack<double, 4> four = {};
#pragma unroll
        for (int e = 0; e < 4; ++e)
            if (r < work.rows && c + e < work.cols) four.v[e] = from[e * p.out_col];
        return four;
    }
};

// The products of k from `begin` on, p.part_k of them or what is left. ELEMENTS: operands of any strides; otherwise of whole,
// aligned 16-byte vectors along A and B.
template <bool ELEMENTS, class S, Major A, Major B, class Params>
__device__ __forceinline__ void multiply_part(DoubleWarp<S, A, B>& warp, const Params& p, int64_t begin) {
    Work<double> work;
    find_work<S::BM, S::BN>(p, work);
    const int64_t &a_lead = A == Major::K ? p.a_row : p.a_col, &a_unit = A == Major::K ? p.a_col : p.a_row;
    const int64_t &b_lead = B == Major::K ? p.b_col : p.b_row, &b_unit = B == Major::K ? p.b_row : p.b_col;
    const double *a = work.a + begin * p.a_col, *b = work.b + begin * p.b_row;
    const int k = int(min(p.k - begin, int64_t(p.part_k)));
    if constexpr (ELEMENTS) {
        DoubleCopier<S::BM, S::BK, A, S::THREADS> copy_a(a, a_lead, work.rows, a_unit);
        DoubleCopier<S::BN, S::BK, B, S::THREADS> copy_b(b, b_lead, work.cols, b_unit);
        multiply(warp, copy_a, copy_b, k);
    } else {
        AsyncCopier<double, S::BM, S::BK, A, S::THREADS> copy_a(a, a_lead, work.rows);
        AsyncCopier<double, S::BN, S::BK, B, S::THREADS> copy_b(b, b_lead, work.cols);
        multiply(warp, copy_a, copy_b, k);
    }
}

// Sums of parts of k are added up in `out`: with one chain of additions over all of k, rounding errors would grow with the root
// of k, and of terms of one sign with k itself.
template <class S, Major A, Major B, bool ELEMENTS, class Params>
__device__ __forceinline__ void matmul_doubles(const Params& p) {
    ptx::wait_for_grid_before();
    Work<double> work;
    if (!find_work<S::BM, S::BN>(p, work)) return;
    for (int part = 0;; ++part) {
        const int64_t begin = part * int64_t(p.part_k);
        DoubleWarp<S, A, B> warp;
        multiply_part<ELEMENTS>(warp, p, begin);
        find_work<S::BM, S::BN>(p, work);  // again: for no registers of it meanwhile
        const bool last = p.k - begin <= p.part_k;
        warp.finish_part(p, work, part == 0, last);
        if (last) return;
        __syncthreads();  // the ring is where the sums were
    }
}
