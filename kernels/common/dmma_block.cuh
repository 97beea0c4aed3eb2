// A block of warps that multiplies doubles on tensor cores (sm_80, sm_90): the ring and the loop of mma_block.cuh, with
// fragments of 16 x 8 and 8 x 8 doubles.
#pragma once

#include "dmma_tile.cuh"
#include "mma_block.cuh"

// The block's BM x BN tile of the result, 16 doubles (128 bytes) of k at a time, and the part of one warp: ROWS of the mma's
// left operand by COLUMNS of its right one.
template <int BM_, int BN_, int ROWS_, int COLUMNS_, int STAGES_, int BLOCKS_> struct DoubleShape {
    using T = double;
    static constexpr int BM = BM_, BN = BN_, BK = 16, ROWS = ROWS_, COLUMNS = COLUMNS_;
    static constexpr int STAGES = STAGES_;
    static constexpr int BLOCKS = BLOCKS_;  // wanted on one multiprocessor: bounds the registers
    static constexpr int THREADS = BM * BN / (ROWS * COLUMNS) * 32;
    static constexpr int K_STEPS = BK / 8, COPY_EVERY = K_STEPS;  // all copies before one step: fewer registers
    // k of a part whose products are summed alone, before they are added to the rest in `out`: with one chain of additions over
    // all of k, rounding errors would grow with the root of k.
    static constexpr int64_t PART_K = 1024;
    static_assert(ROWS % 16 == 0 && COLUMNS % 8 == 0, "whole fragments");
    static_assert(BM * BN <= STAGES * (BM + BN) * BK, "the result fits where the ring was");

    template <Major A> using SharedA = SharedTile<BM, BK, 8, A>;
    template <Major A, Major B> static constexpr uint32_t STAGE_BYTES = (BM + BN) * BK * 8;
};

// Which operand is the left one of an mma. In a lane's registers the left one's rows g and g + 8 at one k come next to each
// other, of the right one two k of a column; so the left one is b, and the product its transpose, where a has unit stride
// along k and b along n.
template <class S, Major A, Major B> struct Sides {
    static constexpr bool SWAPPED = A == Major::K && B == Major::MN;
    static constexpr bool PAIRS = A != B;
    using TileA = DoubleTile<S::BM, S::BK, A, PAIRS>;
    using TileB = DoubleTile<S::BN, S::BK, B, PAIRS>;
    static constexpr Major LEFT = SWAPPED ? B : A, RIGHT = SWAPPED ? A : B;
    using Left = DoubleTile<SWAPPED ? S::BN : S::BM, S::BK, LEFT, PAIRS>;
    using Right = DoubleTile<SWAPPED ? S::BM : S::BN, S::BK, RIGHT, PAIRS>;
    // A warp's part of the result.
    static constexpr int WM = SWAPPED ? S::COLUMNS : S::ROWS, WN = SWAPPED ? S::ROWS : S::COLUMNS;
    static_assert(S::BM % WM == 0 && S::BN % WN == 0, "whole warps");
    // From a lane's row of a fragment to its other one, and to the next lane's.
    static constexpr int OTHER_ROW = LEFT == Major::K ? 8 : 1, APART = LEFT == Major::K ? 1 : 2;
};

// Brings tiles in by copies of single doubles, two for each vector, of any strides.
template <int MN, int BK, Major MAJOR, int THREADS, class Tile>
struct DoubleCopier : AsyncCopier<double, MN, BK, MAJOR, THREADS, Tile> {
    using Base = AsyncCopier<double, MN, BK, MAJOR, THREADS, Tile>;
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

// One warp's part of the result, and two sets of fragments.
template <class S, Major A, Major B> struct DoubleWarp {
    using Side = Sides<S, A, B>;
    using Left = typename Side::Left;
    using Right = typename Side::Right;
    static constexpr int MT = S::ROWS / 16, NT = S::COLUMNS / 8;

    double accumulator[MT][NT][4] = {};  // [half of rows * 2 + half of columns]
    double left[2][MT][4], right[2][NT][2];
    int row, col;  // within the tile, of a and b
    uint32_t left_first, right_first;

    __device__ __forceinline__ DoubleWarp()
        : row(threadIdx.x / 32 / (S::BN / Side::WN) * Side::WM),
          col(threadIdx.x / 32 % (S::BN / Side::WN) * Side::WN) {
        const int lane = threadIdx.x % 32;
        left_first = Left::first(Side::SWAPPED ? col : row, Side::APART, lane);
        right_first = Right::first(Side::SWAPPED ? row : col, 1, lane);
    }

    // Fragments of step k_step of the buffer at `shared`.
    __device__ __forceinline__ void read(int set, uint32_t shared, int k_step) {
        constexpr uint32_t A_BYTES = S::template SharedA<A>::BYTES;
        const uint32_t at_left = shared + (Side::SWAPPED ? A_BYTES : 0), at_right = shared + (Side::SWAPPED ? 0 : A_BYTES);
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int i = 0; i < MT; ++i) {
                double(&to)[4] = left[set][i];
                const uint32_t from = at_left + Left::at(left_first, i * 16, k_step * 2 + half);
                if constexpr (Side::LEFT == Major::MN) {
                    ptx::load_shared_doubles(from, to[half * 2], to[half * 2 + 1]);
                } else {
                    to[half * 2] = ptx::load_shared_double(from);
                    to[half * 2 + 1] = ptx::load_shared_double(from + 8 * Left::ROW_BYTES);
                }
            }
#pragma unroll
        for (int j = 0; j < NT; ++j) {
            double(&to)[2] = right[set][j];
            const auto from = [&](int half) { return at_right + Right::at(right_first, j * 8, k_step * 2 + half); };
            if constexpr (Side::RIGHT == Major::K && Side::PAIRS) {
                ptx::load_shared_doubles(from(0), to[0], to[1]);
            } else {
                to[0] = ptx::load_shared_double(from(0));
                to[1] = ptx::load_shared_double(from(1));
            }
        }
    }

    __device__ __forceinline__ void multiply(int set) {
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int j = 0; j < NT; ++j) ptx::mma_m16n8k8_f64(accumulator[i][j], left[set][i], right[set][j]);
    }

    // Adds to the sums what `out` holds of earlier parts of k.
    template <class Params> __device__ __forceinline__ void add_earlier(const Params& p, const Work<double>& work) {
        constexpr int BATCH = 4 / INNER;
#pragma unroll
        for (int first = 0; first < OUTER; first += BATCH) {
            Pack<double, 2> stored[BATCH * 2][INNER] = {};
#pragma unroll
            for (int o = 0; o < BATCH * 2; ++o)
                each_pair(p, work, first + o / 2, o % 2, [&](int n, const double* from, int count) {
                    if (p.out_vector && count >= 2) {
                        stored[o][n] = load_pack<double, 2>(from);
                        return;
                    }
#pragma unroll
                    for (int e = 0; e < 2; ++e) {
                        if (e < count) stored[o][n].v[e] = from[e * p.out_col];
                    }
                });
#pragma unroll
            for (int o = 0; o < BATCH * 2; ++o)
#pragma unroll
                for (int n = 0; n < INNER; ++n)
#pragma unroll
                    for (int e = 0; e < 2; ++e) sum(first + o / 2, n, o % 2, e) += stored[o][n].v[e];
        }
    }

    // The end of a part of k that is not the last: sums go to `out`, and begin again.
    template <class Params> __device__ __forceinline__ void store_part(const Params& p, const Work<double>& work) {
#pragma unroll
        for (int o = 0; o < OUTER * 2; ++o)
            each_pair(p, work, o / 2, o % 2, [&](int n, double* to, int count) {
                Pack<double, 2> sums;
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    double& last = sum(o / 2, n, o % 2, e);
                    sums.v[e] = last;
                    last = 0.0;
                }
                if (p.out_vector && count >= 2) {
                    store_pack(to, sums);
                    return;
                }
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    if (e < count) to[e * p.out_col] = sums.v[e];
                }
            });
    }

    // Each thread takes its sums from its own place in shared memory, in a loop: for the activations' code to be short.
    template <class Params>
    __device__ __forceinline__ void apply_epilogue_to_all(const Params& p, const Work<double>& work) {
        double2* own = reinterpret_cast<double2*>(shared_memory) + threadIdx.x;
#pragma unroll
        for (int o = 0; o < OUTER * 2; ++o)
#pragma unroll
            for (int n = 0; n < INNER; ++n)
                own[(o * INNER + n) * S::THREADS] =
                    make_double2(sum(o / 2, n, o % 2, 0), sum(o / 2, n, o % 2, 1));
#pragma unroll 1
        for (int at = 0; at < OUTER * 2 * INNER; ++at) {
            const double2 pair = own[at * S::THREADS];
            double v[2] = {pair.x, pair.y};
            const int o = at / INNER, n = at % INNER;
            apply_epilogue(p, work, row_of(o / 2, o % 2), first_column() + n * COLUMN_STEP, 1, v);
        }
    }

private:
    // A lane's sums are pairs of neighbouring columns of the result: in each of two rows of OUTER fragments there are INNER
    // pairs, a fragment's columns apart.
    static constexpr int OUTER = Side::SWAPPED ? NT : MT, INNER = Side::SWAPPED ? MT : NT;
    static constexpr int COLUMN_STEP = Side::SWAPPED ? 16 : 8;

    __device__ __forceinline__ double& sum(int o, int n, int half, int e) {
        return Side::SWAPPED ? accumulator[n % MT][o % NT][e * 2 + half] : accumulator[o % MT][n % NT][half * 2 + e];
    }
    // Within the tile.
    __device__ __forceinline__ int row_of(int o, int half) const {
        const int lane = threadIdx.x % 32;
        if (Side::SWAPPED) return row + o * 8 + lane % 4 * 2 + half;
        return row + o * 16 + lane / 4 * Side::APART + half * Side::OTHER_ROW;
    }
    __device__ __forceinline__ int first_column() const {
        const int lane = threadIdx.x % 32;
        return col + (Side::SWAPPED ? lane / 4 : lane % 4) * 2;
    }

    // Where a row's pairs lie in `out`, and how many of a pair there are.
    template <class Params, class F>
    __device__ __forceinline__ void each_pair(const Params& p, const Work<double>& work, int o, int half, F f) {
        const int r = row_of(o, half), c = first_column();
        double* at = work.out + (work.row + r) * p.out_row + (work.col + c) * p.out_col;
        const int count = r < work.rows ? work.cols - c : 0;
#pragma unroll
        for (int n = 0; n < INNER; ++n)
            f(n, at + n * COLUMN_STEP * p.out_col, count - n * COLUMN_STEP);
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
    using TileA = typename Sides<S, A, B>::TileA;
    using TileB = typename Sides<S, A, B>::TileB;
    DoubleWarp<S, A, B> warp;
    const auto between = [&](int64_t left) {
        Work<double> work;  // again: for no registers of it meanwhile
        find_work<S::BM, S::BN>(p, work);
        if (p.k - left > S::PART_K) warp.add_earlier(p, work);
        warp.store_part(p, work);
    };
    if constexpr (ELEMENTS) {
        DoubleCopier<S::BM, S::BK, A, S::THREADS, TileA> copy_a(work.a, a_lead, work.rows, a_unit);
        DoubleCopier<S::BN, S::BK, B, S::THREADS, TileB> copy_b(work.b, b_lead, work.cols, b_unit);
        multiply(warp, copy_a, copy_b, p.k, between);
    } else {
        AsyncCopier<double, S::BM, S::BK, A, S::THREADS, TileA> copy_a(work.a, a_lead, work.rows);
        AsyncCopier<double, S::BN, S::BK, B, S::THREADS, TileB> copy_b(work.b, b_lead, work.cols);
        multiply(warp, copy_a, copy_b, p.k, between);
    }
    find_work<S::BM, S::BN>(p, work);
    if (p.k > S::PART_K) warp.add_earlier(p, work);
    warp.apply_epilogue_to_all(p, work);
}
