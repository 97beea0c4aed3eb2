// A block of warps that multiplies doubles on tensor cores (sm_80, sm_90): global memory to a ring of buffers in shared memory,
// fragments of 16 x 8 and 8 x 8 doubles in registers, then the epilogue. Registers decide: a product waits until all before it
// have begun, and what it shares registers with waits for it.
#pragma once

#include "dmma_tile.cuh"
#include "matmul.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "ptx/registers.cuh"
#include "ptx/shared.cuh"

extern __shared__ __align__(128) uint8_t shared_memory[];

// The block's BM x BN tile of the result, 16 doubles (128 bytes) of k at a time, and the part of one warp: ROWS of the mma's
// left operand by COLUMNS of its right one.
template <int BM_, int BN_, int ROWS_, int COLUMNS_, int STAGES_, int BLOCKS_> struct DoubleShape {
    using T = double;
    static constexpr int BM = BM_, BN = BN_, BK = 16, ROWS = ROWS_, COLUMNS = COLUMNS_;
    static constexpr int STAGES = STAGES_;
    static constexpr int BLOCKS = BLOCKS_;  // wanted on one multiprocessor: bounds the registers
    static constexpr int THREADS = BM * BN / (ROWS * COLUMNS) * 32;
    // k of a part whose products are summed alone, before they are added to the rest in `out`: with one chain of additions over
    // all of k, rounding errors would grow with the root of k.
    static constexpr int64_t PART_K = 1024;
    static_assert(ROWS % 16 == 0 && COLUMNS % 8 == 0, "whole fragments");
    static_assert(BM * BN <= STAGES * (BM + BN) * BK, "the result fits where the ring was");

    static constexpr int A_BYTES = BM * BK * 8, STAGE_BYTES = (BM + BN) * BK * 8;
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

// Brings tiles in, each thread the same vector of every ROW_STEP-th row, top down. ELEMENTS: by copies of single doubles, two
// for each vector, of any strides; otherwise of whole, aligned vectors.
template <class Tile, Major MAJOR, int THREADS, bool ELEMENTS> struct DoubleCopier {
    static constexpr int ROW_STEP = THREADS / Tile::VECTORS, COUNT = Tile::ROWS / ROW_STEP;
    static_assert(THREADS % Tile::VECTORS == 0 && Tile::ROWS % ROW_STEP == 0, "every thread copies alike");
    static_assert(ROW_STEP % Tile::PERIOD == 0 || Tile::PERIOD % ROW_STEP == 0, "an XOR permutes a thread's rows");

    const char* source;          // this thread's first vector of the next tile
    const int64_t &lead, &unit;  // strides from row to row and along a row: the kernel's parameters, for fewer registers
    uint32_t offset;             // of that vector in shared memory
    int row, along;              // one of them its k, the other what is left of mn from there

    // `tile` is element (0, k = 0) of the tile.
    __device__ __forceinline__ DoubleCopier(const double* tile, const int64_t& lead, const int64_t& unit, int mn_left)
        : lead(lead), unit(unit) {
        const int r = threadIdx.x / Tile::VECTORS, at = threadIdx.x % Tile::VECTORS * 2;
        source = reinterpret_cast<const char*>(tile + r * lead + at * (ELEMENTS ? unit : 1));
        offset = Tile::offset(r, at / 2);
        row = MAJOR == Major::K ? mn_left - r : r;
        along = MAJOR == Major::K ? at : mn_left - at;
    }

    // k_left steps of k exist, possibly none; outside the operand the copies write zeros.
    __device__ __forceinline__ void copy(uint32_t shared, int k_left) {
        const int rows = MAJOR == Major::K ? row : k_left - row, there = MAJOR == Major::K ? k_left - along : along;
        const int whole = there > 0 ? rows : 0, second = there > 1 ? rows : 0;
        const char* from = source;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int r = i * ROW_STEP;
            const uint32_t to = shared + (offset ^ (Tile::swizzle(r) << 4)) + r * Tile::ROW_BYTES;
            if (ELEMENTS) {
                ptx::cp_async<8>(to, from, r < whole);
                ptx::cp_async<8>(to + 8, from + unit * 8, r < second);
            } else {
                ptx::cp_async_16(to, from, r < whole);
            }
            from = ptx::opaque(from + lead * (ROW_STEP * 8));
        }
        source = MAJOR == Major::MN ? from : source + (ELEMENTS ? unit * (Tile::VECTORS * 16) : Tile::VECTORS * 16);
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
    uint32_t left_first, right_first;

    __device__ __forceinline__ DoubleWarp() {
        const int lane = threadIdx.x % 32, row = row_of_warp(threadIdx.x), col = col_of_warp(threadIdx.x);
        left_first = Left::first(Side::SWAPPED ? col : row, Side::APART, lane);
        right_first = Right::first(Side::SWAPPED ? row : col, 1, lane);
    }

    // Fragments of eight k, number k_step of the buffer at `shared`.
    __device__ __forceinline__ void read(int set, uint32_t shared, int k_step) {
        const uint32_t at_left = shared + (Side::SWAPPED ? S::A_BYTES : 0);
        const uint32_t at_right = shared + (Side::SWAPPED ? 0 : S::A_BYTES);
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

    // The end of a part of k that is not the last: sums, with those of earlier parts that `out` holds, go there and begin
    // again.
    template <class Params>
    __device__ __forceinline__ void store_part(const Params& p, const Work<double>& work, bool earlier) {
        each_batch(p, work, earlier, [&](int o, int n, Pack<double, 2> sums, double* to, int count) {
            sum(o / 2, n, o % 2, 0) = sum(o / 2, n, o % 2, 1) = 0.0;
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
        each_batch(p, work, p.k > S::PART_K, [&](int o, int n, const Pack<double, 2>& sums, const double*, int) {
            own[(o * INNER + n) * S::THREADS] = make_double2(sums.v[0], sums.v[1]);
        });
#pragma unroll 1
        for (int at = 0; at < OUTER * 2 * INNER; ++at) {
            const double2 pair = own[at * S::THREADS];
            double v[2] = {pair.x, pair.y};
            const int o = at / INNER, n = at % INNER;
            apply_epilogue(p, work, row_of(threadIdx.x, o), first_column(threadIdx.x) + n * COLUMN_STEP, 1, v);
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
    // Where a warp's part begins in the tile.
    static __device__ __forceinline__ int row_of_warp(int thread) { return thread / 32 / (S::BN / Side::WN) * Side::WM; }
    static __device__ __forceinline__ int col_of_warp(int thread) { return thread / 32 % (S::BN / Side::WN) * Side::WN; }
    // Where a thread's pairs lie in the tile.
    static __device__ __forceinline__ int row_of(int thread, int o) {
        const int row = row_of_warp(thread) + (Side::SWAPPED ? o / 2 * 8 + o % 2 : o / 2 * 16 + o % 2 * Side::OTHER_ROW);
        return row + (Side::SWAPPED ? thread % 4 * 2 : thread % 32 / 4 * Side::APART);
    }
    static __device__ __forceinline__ int first_column(int thread) {
        return col_of_warp(thread) + (Side::SWAPPED ? thread % 32 / 4 : thread % 4) * 2;
    }

    // Calls f for every pair of sums, with what `out` holds of earlier parts, with where it lies there, and how much of it
    // there is. A batch is loaded together.
    template <class Params, class F>
    __device__ __forceinline__ void each_batch(const Params& p, const Work<double>& work, bool earlier, F f) {
        constexpr int BATCH = 8 / INNER;  // rows
        const int thread = ptx::opaque(threadIdx.x), column = first_column(thread);
#pragma unroll
        for (int first = 0; first < OUTER * 2; first += BATCH) {
            Pack<double, 2> stored[BATCH][INNER] = {};
            const auto at = [&](int i) {
                return work.out + (work.row + row_of(thread, first + i)) * p.out_row + (work.col + column) * p.out_col;
            };
            const auto count = [&](int i) {
                return row_of(thread, first + i) < work.rows ? work.cols - column : 0;
            };
            if (earlier) {
#pragma unroll
                for (int i = 0; i < BATCH; ++i)
#pragma unroll
                    for (int n = 0; n < INNER; ++n) {
                        const double* from = at(i) + n * COLUMN_STEP * p.out_col;
                        const int there = count(i) - n * COLUMN_STEP;
                        if (p.out_vector && there >= 2) {
                            stored[i][n] = load_pack<double, 2>(from);
                            continue;
                        }
#pragma unroll
                        for (int e = 0; e < 2; ++e) {
                            if (e < there) stored[i][n].v[e] = from[e * p.out_col];
                        }
                    }
            }
#pragma unroll
            for (int i = 0; i < BATCH; ++i)
#pragma unroll
                for (int n = 0; n < INNER; ++n) {
                    const int o = first + i;
#pragma unroll
                    for (int e = 0; e < 2; ++e) stored[i][n].v[e] += sum(o / 2, n, o % 2, e);
                    f(o, n, stored[i][n], at(i) + n * COLUMN_STEP * p.out_col, count(i) - n * COLUMN_STEP);
                }
        }
    }
};

// The sum over k of a tile, in `warp`. Copies run STAGES steps of BK ahead of the arithmetic, fragments eight k. Afterwards
// nobody uses the ring any more. `between` is called after each part of k but the last, with the steps left; the first part
// may be short. All that the loop counts is the steps left: more would take registers.
template <class S, Major A, Major B, class CopierA, class CopierB, class Between>
__device__ __forceinline__ void multiply(DoubleWarp<S, A, B>& warp, CopierA& copy_a, CopierB& copy_b,
                                         const int64_t& k, Between between) {
    constexpr int STAGES = S::STAGES, BK = S::BK;
    const uint32_t shared = uint32_t(__cvta_generic_to_shared(shared_memory));
    const auto fetch = [&](uint32_t stage, int64_t left) {
        const int k_left = left > 1 ? BK : left == 1 ? (int(k) - 1) % BK + 1 : 0;
        copy_a.copy(stage, k_left);
        copy_b.copy(stage + S::A_BYTES, k_left);
        ptx::cp_async_commit();
    };
    int64_t left = (k + BK - 1) / BK;
    uint32_t stage = shared;
    if (left > 0) {
#pragma unroll 1
        for (int i = 0; i < STAGES; ++i) fetch(shared + i * S::STAGE_BYTES, left - i);
        ptx::cp_async_wait<STAGES - 1>();
        __syncthreads();
    }
#pragma unroll 1
    while (left > 0) {
        warp.read(0, stage, 0);
#pragma unroll 1
        do {
            warp.read(1, stage, 1);
            warp.multiply(0);
            // Everyone has read the last of this buffer: after the barrier it is free. The next one is filled: all but the
            // STAGES - 2 newest are. Copies come before the reads, for whose registers their addresses can have.
            ptx::cp_async_wait<STAGES - 2>();
            __syncthreads();
            fetch(stage, left - STAGES);
            stage = stage == shared + (STAGES - 1) * S::STAGE_BYTES ? shared : stage + S::STAGE_BYTES;
            warp.read(0, stage, 0);  // past the end zeros, which nothing uses
            warp.multiply(1);
            --left;
        } while (left % (S::PART_K / BK) != 0);
        if (left > 0) between(left);
    }
    ptx::cp_async_wait<0>();
    __syncthreads();
}

// ELEMENTS: operands of any strides; otherwise of whole, aligned 16-byte vectors along A and B.
template <class S, Major A, Major B, bool ELEMENTS, class Params>
__device__ __forceinline__ void matmul_doubles(const Params& p) {
    ptx::wait_for_grid_before();
    Work<double> work;
    if (!find_work<S::BM, S::BN>(p, work)) return;
    using Side = Sides<S, A, B>;
    DoubleCopier<typename Side::TileA, A, S::THREADS, ELEMENTS> copy_a(
        work.a, A == Major::K ? p.a_row : p.a_col, A == Major::K ? p.a_col : p.a_row, work.rows);
    DoubleCopier<typename Side::TileB, B, S::THREADS, ELEMENTS> copy_b(
        work.b, B == Major::K ? p.b_col : p.b_row, B == Major::K ? p.b_row : p.b_col, work.cols);
    DoubleWarp<S, A, B> warp;
    multiply(warp, copy_a, copy_b, p.k, [&](int64_t left) {
        Work<double> work;  // again: for no registers of it meanwhile
        find_tile<S::BM, S::BN>(p, uint64_t(blockIdx.y) * gridDim.x + ptx::opaque(blockIdx.x), work);
        warp.store_part(p, work, p.k - left * S::BK > S::PART_K);
    });
    find_work<S::BM, S::BN>(p, work);
    warp.apply_epilogue_to_all(p, work);
}
