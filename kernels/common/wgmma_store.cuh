// The epilogue of float32 results of wgmma: bias, activation, residual, and stores of whole lines of 128 bytes, by way of shared
// memory; of results that lie as columns, of 64 bytes from registers.
#pragma once

#include "ptx/shared_pairs.cuh"
#include "wgmma_epilogue.cuh"

template <class S, EpilogueKind F> struct StoreEpilogue : Epilogue<S, F> {
    using Base = Epilogue<S, F>;
    using Accumulators = typename Base::Accumulators;
    using Base::p, Base::warp, Base::lane, Base::staging;
    static constexpr bool LOOP = Base::LOOP, PARTIAL = F == EpilogueKind::partial;
    static constexpr bool BIAS = F != EpilogueKind::none && !PARTIAL;
    static constexpr int UNIT = Base::UNIT, ALL = Base::ALL, COLUMNS = 2 * UNIT;
    static_assert(S::M_STEPS == 1 && COLUMNS * sizeof(float) == 128, "a unit's rows are lines");

    const RowsOfLane rows;

    __device__ __forceinline__ StoreEpilogue(const WgmmaParams& p, uint32_t shared)
        : Base(p, shared), rows(S::rows_of_lane(p, threadIdx.x % 32)) {}

    // Of this thread's first accumulator, within the tile.
    __device__ __forceinline__ int32_t thread_row() const { return Base::row_of(0) + rows.first; }
    __device__ __forceinline__ int32_t thread_col() const { return int32_t(lane % 4) * 2; }

    // Before a tile is multiplied: what is added to its results on the way to L2.
    __device__ __forceinline__ void prefetch(const Item& item) const {
        if (!LOOP || p.addends.residual == nullptr) return;
        ptx::wait_for_grid_before();
        const Place place = place_of(item, false);
        const bool down = p.addends.residual_row < p.addends.residual_col;
        const float* residual = residual_of(place);
        const int32_t rows = min(place.rows, 16), cols = min(place.cols, S::BN);
        // A line of 128 bytes for each lane: of a warp's columns, its rows are half of one.
        for (int32_t at = lane; at < (down ? cols : rows * (S::BN / 32)); at += 32) {
            const int32_t row = down ? 0 : at / (S::BN / 32), col = down ? at : at % (S::BN / 32) * 32;
            if (col < cols) ptx::prefetch_to_l2(residual + row * p.addends.residual_row + col * p.addends.residual_col);
        }
    }

    // A warm_up reads and writes nothing.
    __device__ __forceinline__ void write(const Accumulators& d, const Item& item, bool warm_up) const {
        const Place place = place_of(item, warm_up);
        const bool by_elements = LOOP && p.store_elements, down = S::MAY_BE_DOWN && p.down_columns && !by_elements;
        float bias[4], next_bias[4] = {};
        load_bias(next_bias, place, 0, down, by_elements);
#pragma unroll 1
        for (int at = 0; at < (warm_up ? 1 : ALL); ++at) {
            const int32_t first = at * COLUMNS;
            float taken[UNIT], v[4][4];
            Base::template take<0, ALL>(d, at, taken);
#pragma unroll
            for (int i = 0; i < 4; ++i) bias[i] = next_bias[i];
            load_bias(next_bias, place, first + COLUMNS, down, by_elements);
            if (down) {
                take_columns(v, taken, place, first, bias);
            } else {
                stage(taken);
                __syncwarp();
                if (by_elements) {
                    read_elements(v, place, first);
                } else {
                    read_rows(v, bias);
                }
                __syncwarp();
            }
            auto& all = reinterpret_cast<float (&)[UNIT]>(v);
            if constexpr (LOOP) {
                activate<float>(all, p.activation, p.negative_slope);
            } else if constexpr (BIAS) {
                if (p.activation == ACT_RELU) relu(all);
                if (p.activation == ACT_LEAKY_RELU) leaky_relu_of_fraction(all, p.negative_slope);
            }
            if (down) {
                store_columns(v, place, first);
            } else if (by_elements) {
                store_elements(all, place, first);
            } else {
                store_rows(v, place, first);
            }
        }
    }

private:
    // Of a warp's rows: the first result, strides in elements, how many rows and columns there are, and what the first is of in its
    // product. Partial sums of results that lie as columns lie so, too, for matmul_reduce.cu to take columns for rows; they are
    // padded to whole tiles.
    struct Place {
        float* results;
        int64_t row, col;
        int32_t rows, cols;
        int32_t first_row, first_col;
        uint32_t product;
        int64_t residual;  // where the product's begins
    };
    __device__ __forceinline__ Place place_of(const Item& item, bool warm_up) const {
        const int32_t row = item.row + Base::row_of(0), col = item.col;
        Place place{static_cast<float*>(p.out),
                    p.out_row,
                    p.out_col,
                    int32_t(p.m) - row,
                    int32_t(p.n) - col,
                    row,
                    col,
                    item.product,
                    0};
        if constexpr (PARTIAL) {
            const int64_t width = int64_t(p.order.tiles_n) * S::BN;
            const int64_t height = int64_t(p.order.tiles_m) * TileCluster::rows_of(p.cluster) * S::BM;
            const bool down = S::MAY_BE_DOWN && p.down_columns;
            place.results = p.partials + (int64_t(item.split) * p.products + item.product) * width * height;
            place.row = down ? 1 : width, place.col = down ? height : 1;
            place.rows = 16, place.cols = S::BN;
        } else {
#pragma unroll
            for (int k = 0; k < 3; ++k) {
                place.results += item.batch[k] * p.out_batch[k];
                if (LOOP) place.residual += item.batch[k] * p.residual_batch[k];
            }
        }
        if (warm_up) place.rows = 0;
        place.results += row * place.row + col * place.col;
        return place;
    }

    // Of a row or column of this warp's; 0: there is none.
    __device__ __forceinline__ float bias_of(const Place& place, int32_t row, int32_t col) const {
        const bool inside = p.bias != nullptr && row < place.rows && col < place.cols;
        const int64_t at = p.bias_by_row ? place.first_row + row : place.first_col + col;
        return inside ? static_cast<const float*>(p.bias)[at * p.bias_stride] : 0.0f;
    }
    // Of the rows or columns that read_rows has of a unit, or of the rows that take_columns has.
    __device__ __forceinline__ void load_bias(float (&bias)[4], const Place& place, int32_t first, bool down,
                                              bool by_elements) const {
        if constexpr (BIAS) {
            if (p.bias == nullptr || by_elements || (p.bias_by_row ? first > 0 : down)) return;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int32_t row = down ? rows.first + i : i * 4 + int32_t(lane) / 8;
                bias[i] = p.bias_by_row ? bias_of(place, row, 0) : bias_of(place, 0, first + int32_t(lane) % 8 * 4 + i);
            }
        }
    }

    // What is added to neighbours from a row and column of this warp's on, of which `count` exist; how many of them are stored.
    template <int N>
    __device__ __forceinline__ int32_t add(float (&v)[N], const Place& place, int32_t row, int32_t col, int32_t count,
                                           bool down, bool vector = true) const {
        if (!LOOP || !p.addends.any() || count <= 0) return count;
        Run<float, float> run(p.addends, place.first_row + row, place.first_col + col, place.product, place.residual,
                              down);
        run.residual_vector &= vector;
        return add_run(v, run, 1, count) ? count : 0;
    }
    // The same of a unit's COUNT times N neighbours, whose places `at` says: row, column, and how many exist. All is added before any
    // is stored: that may be where the others' residual lies, for all that the compiler knows.
    template <int COUNT, int N, class At>
    __device__ __forceinline__ void add_all(float (&v)[COUNT][N], int32_t (&counts)[COUNT], const Place& place,
                                            bool down, At at) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) counts[i] = at(i).count;
        if (!LOOP || !p.addends.any()) return;
        if (p.addends.residual_vector && p.addends.wide == nullptr) {  // then vectors are whole
            const float* residual = residual_of(place);
            uint32_t words[COUNT][N] = {};
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const float* from = residual + at(i).row * p.addends.residual_row + at(i).col * p.addends.residual_col;
                ptx::load_global_if<4 * N>(counts[i] > 0, from, words[i]);
            }
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
#pragma unroll
                for (int e = 0; e < N; ++e) v[i][e] += __uint_as_float(words[i][e]);
            }
            return;
        }
#pragma unroll
        for (int i = 0; i < COUNT; ++i) counts[i] = add(v[i], place, at(i).row, at(i).col, counts[i], down);
    }
    struct Neighbours {
        int32_t row, col, count;
    };
    __device__ __forceinline__ const float* residual_of(const Place& place) const {
        return static_cast<const float*>(p.addends.residual) + place.residual +
               place.first_row * p.addends.residual_row + place.first_col * p.addends.residual_col;
    }
    // `step`: from one to the next, of vectors that are not whole.
    template <int N>
    __device__ __forceinline__ static void store(const float (&v)[N], float* to, int64_t step, int32_t count) {
        if (LOOP ? count >= N : count > 0) ptx::store_global<4 * N>(to, reinterpret_cast<const uint32_t*>(v));
#pragma unroll
        for (int e = 0; LOOP && e < N - 1; ++e) {
            if (e < count && count < N) to[e * step] = v[e];
        }
    }

    // The 16-byte vectors of a row in a warp's buffer are permuted by an XOR, so that neither the writes of both kinds of
    // rows_of_lane nor the reads have bank conflicts.
    __device__ __forceinline__ static uint32_t permutation(uint32_t row) {
        return ((row ^ row >> 2) & 1) << 5 | (row >> 1 & 1) << 6;
    }
    __device__ __forceinline__ void stage(const float (&v)[UNIT]) const {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint32_t row = rows.first + half * rows.step, to = staging + row * 128, permuted = permutation(row);
#pragma unroll
            for (int group = 0; group < UNIT / 4; ++group) {  // of 8 columns
                const float* pair = v + group * 4 + half * 2;
                const uint32_t words[2] = {__float_as_uint(pair[0]), __float_as_uint(pair[1])};
                ptx::store_shared_8(to + ((group * 32 + lane % 4 * 8) ^ permuted), words);
            }
        }
    }

    // From the buffer: 8 lanes have 128 bytes of each row.
    __device__ __forceinline__ void read_rows(float (&v)[4][4], const float (&bias)[4]) const {
#pragma unroll
        for (int pass = 0; pass < 4; ++pass) {
            const uint32_t row = pass * 4 + lane / 8;
            uint32_t words[4];
            ptx::load_shared_16(staging + row * 128 + ((lane % 8 * 16) ^ permutation(row)), words);
#pragma unroll
            for (int e = 0; e < 4; ++e) v[pass][e] = __uint_as_float(words[e]);
        }
        if constexpr (BIAS) {
            if (p.bias == nullptr) return;
#pragma unroll
            for (int pass = 0; pass < 4; ++pass) {
#pragma unroll
                for (int e = 0; e < 4; ++e) v[pass][e] += p.bias_by_row ? bias[pass] : bias[e];
            }
        }
    }
    __device__ __forceinline__ void store_rows(float (&v)[4][4], const Place& place, int32_t first) const {
        const int32_t column = first + int32_t(lane % 8) * 4, row = lane / 8;
        int32_t counts[4];
        add_all(v, counts, place, false, [&](int pass) {
            return Neighbours{pass * 4 + row, column, pass * 4 + row < place.rows ? place.cols - column : 0};
        });
        float* to = place.results + row * place.row + column * place.col;
#pragma unroll
        for (int pass = 0; pass < 4; ++pass) store(v[pass], to + pass * 4 * place.row, 1, counts[pass]);
    }

    // Of rows that are no whole, aligned vectors: neighbouring lanes have neighbouring columns.
    __device__ __forceinline__ void read_elements(float (&v)[4][4], const Place& place, int32_t first) const {
        const int32_t column = first + int32_t(lane);
#pragma unroll
        for (uint32_t row = 0; row < 16; ++row) {
            v[row / 4][row % 4] =
                __uint_as_float(ptx::load_shared(staging + row * 128 + ((lane * 4) ^ permutation(row))));
        }
        if (p.bias == nullptr) return;
        const float of_column = p.bias_by_row ? 0.0f : bias_of(place, 0, column);
#pragma unroll
        for (int32_t row = 0; row < 16; ++row) {
            v[row / 4][row % 4] += p.bias_by_row ? bias_of(place, row, column) : of_column;
        }
    }
    // A column is a run.
    __device__ __forceinline__ void store_elements(float (&v)[16], const Place& place, int32_t first) const {
        const int32_t column = first + int32_t(lane), count = column < place.cols ? min(place.rows, 16) : 0;
        const int32_t stored = add(v, place, 0, column, count, true, false);
        float* to = place.results + column * place.col;
#pragma unroll
        for (int32_t row = 0; row < 16; ++row) {
            if (row < stored) to[row * place.row] = v[row];
        }
    }

    // Pairs of neighbours in columns.
    __device__ __forceinline__ static int32_t column_of_pair(int pair) { return pair / 2 * 8 + pair % 2; }
    __device__ __forceinline__ void take_columns(float (&v)[4][4], const float (&d)[UNIT], const Place& place,
                                                 int32_t first, const float (&bias)[4]) const {
#pragma unroll
        for (int pair = 0; pair < UNIT / 2; ++pair) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                float& to = v[pair / 2][pair % 2 * 2 + e];
                to = d[pair / 2 * 4 + pair % 2 + e * 2];
                if (!BIAS || p.bias == nullptr) continue;
                to += p.bias_by_row ? bias[e] : bias_of(place, 0, first + thread_col() + column_of_pair(pair));
            }
        }
    }
    __device__ __forceinline__ void store_columns(float (&v)[4][4], const Place& place, int32_t first) const {
        auto& pairs = reinterpret_cast<float (&)[UNIT / 2][2]>(v);
        const int32_t row = rows.first, column = first + thread_col();
        int32_t counts[UNIT / 2];
        add_all(pairs, counts, place, true, [&](int pair) {
            const int32_t at = column + column_of_pair(pair);
            return Neighbours{row, at, at < place.cols ? place.rows - row : 0};
        });
        float* to = place.results + row * place.row + column * place.col;
#pragma unroll
        for (int pair = 0; pair < UNIT / 2; ++pair) {
            store(pairs[pair], to + column_of_pair(pair) * place.col, place.row, counts[pair]);
        }
    }
};
