// The epilogue of matmul_wgmma.cu: bias, activation, gate, residual, one rounding, and stores, from accumulators in
// registers. A warp works alone on its 16 rows, except where TMA stores a warpgroup's rows from shared memory.
#pragma once

#include "ptx/ldmatrix.cuh"
#include "wgmma_shape.cuh"

template <class T> __device__ __forceinline__ uint32_t pack(float low, float high) {
    return same_type<T, f16> ? ptx::pack_f16(low, high) : ptx::pack_bf16(low, high);
}
template <class T> __device__ __forceinline__ float2 unpack(uint32_t word) {
    Pack<T, 2> pair;
    __builtin_memcpy(&pair, &word, sizeof(pair));
    return make_float2(number(pair.v[0]), number(pair.v[1]));
}

// The epilogue of a kernel. Each has a kernel of its own, to be short: instructions are fetched as data are.
// src/cuda/plan/matmul/wgmma/epilogue.rs chooses.
enum class EpilogueKind {
    none,            // nothing; all stores are whole vectors
    partial,         // nothing; sums of a k split are stored as they are
    bias_relu,       // bias, relu, leaky_relu of a slope that is_fraction(); still whole vectors
    splitk,          // everything, after the cluster has reduced its k splits (wgmma_splitk.cuh)
    general,         // all activations, and results by elements
    transpose,       // bias by row, relu, leaky_relu of results whose columns are whole vectors (wgmma_transposed.cuh)
    residual,        // as general, and a residual
    plain_residual,  // a bias, no activation, and a residual: by TMA, or in registers, of whole vectors
    gated,           // as residual, of a gated product: a thread has the accumulators of both its parts
};

template <class S, EpilogueKind F> struct Epilogue {
    using T = typename S::Result;
    using Accumulators = float[S::M_STEPS][S::ACCUMULATORS];
    static constexpr bool GATE = F == EpilogueKind::gated, PLAIN = F == EpilogueKind::plain_residual;
    static constexpr bool RESIDUAL = GATE || PLAIN || F == EpilogueKind::residual;
    static constexpr bool LOOP = F == EpilogueKind::general;
    static constexpr bool ANY = LOOP || (RESIDUAL && !PLAIN);  // all activations, and results by elements
    static constexpr int BIASES = S::BOXES > S::M_STEPS ? S::BOXES : S::M_STEPS;
    // Accumulators of a thread that it looks at together: 16 columns, or in a loop as many as there are registers for; of
    // float32 a line of 128 bytes.
    static constexpr int ALL_ACCUMULATORS = S::M_STEPS * S::ACCUMULATORS;
    static constexpr int IN_LOOP = ALL_ACCUMULATORS > 128 ? 8 : ALL_ACCUMULATORS == 96 ? 16 : 32;
    static constexpr int UNIT = same_type<T, float> ? 16 : LOOP ? IN_LOOP : 8;
    // Of a step's results. With a gate the first half of the accumulators are its products, and the others b's.
    static constexpr int ACCUMULATORS = GATE ? S::ACCUMULATORS / 2 : S::ACCUMULATORS;
    static constexpr int BOXES = GATE ? S::BOXES / 2 : S::BOXES;
    static constexpr int UNITS_OF_BOX = 32 / UNIT, UNITS = (ACCUMULATORS + UNIT - 1) / UNIT, ALL = S::M_STEPS * UNITS;
    // The residual of a small tile is in registers before its results are there.
    static constexpr bool HELD = RESIDUAL && !GATE && !S::CAN_TMA_STORE;
    static_assert(!HELD || ALL_ACCUMULATORS <= 64, "");
    static_assert(!GATE || (S::BOXES % 2 == 0 && S::TAIL == 64), "");
    static_assert(!PLAIN || S::CAN_TMA_STORE || HELD, "");

    const WgmmaParams& p;
    const uint32_t warp, lane;
    const uint32_t staging_begin, staging;  // shared addresses of all buffers, and of this warp's
    uint32_t bias_first[BIASES], bias_second[BIASES];
    uint32_t residual[HELD ? ALL_ACCUMULATORS / 8 : 1][4];  // beside each accumulator, neighbours in a word
    uint32_t residual_phase = 0;
    uint32_t asked, ask_at,
        ask_step;  // boxes of the residual asked for by TMA; the block of k of the next, and from there

    __device__ __forceinline__ Epilogue(const WgmmaParams& p, uint32_t shared)
        : p(p),
          warp(__shfl_sync(~0u, threadIdx.x / 32, 0)),
          lane(threadIdx.x % 32),
          staging_begin(shared + HEADER_BYTES),
          staging(staging_begin + warp * STORE_BYTES) {
        if constexpr (RESIDUAL && S::CAN_TMA_STORE) {
            if (p.addends.residual_vector == BY_TMA) {
                if (warp % 4 == 0 && ptx::elect()) {
                    ptx::mbarrier_init(residual_is_there(), 1);
                    ptx::fence_mbarrier_init();
                }
                ptx::barrier_sync(RESULT_READY + warp / 4, 128);
            }
        }
    }
    // The barrier that completes when the residual of the warpgroup's rows has arrived by TMA, behind the ring's.
    __device__ __forceinline__ uint32_t residual_is_there() const {
        return staging_begin - HEADER_BYTES + 512 + warp / 4 * 8;
    }

    // Of an item's first result.
    template <class Item> __device__ __forceinline__ static int32_t column_of(const Item& item) {
        return GATE ? item.col / 2 : item.col;
    }
    // First of this warp's 16 rows in step i, within the tile.
    __device__ __forceinline__ int32_t row_of(int i) const {
        return ((S::PING_PONG ? 0 : warp / 4) * S::M_STEPS + i) * 64 + warp % 4 * 16;
    }

    // Asks for the tile's bias, which arrives while the tile is multiplied: nothing here may look at what is loaded, nor
    // branch once something is, or each load is waited for, before the first product. Two values for each register of a box: by columns,
    // lane l asks for 2 l and 2 l + 1 of each box, and hands them out when they are added; by rows, for the two rows of
    // a step that the lane has accumulators of.
    template <class Item> __device__ __forceinline__ void load_bias(const Item& item, bool warm_up) {
        if (F == EpilogueKind::none || F == EpilogueKind::partial) return;
        const bool by_row = p.bias_by_row;
        const auto place = Boxes<S>::of(p, column_of(item));
        const uint32_t size = p.bias == nullptr || warm_up ? 0 : by_row ? p.m : p.n;
        if (size > 0) ptx::wait_for_grid_before();  // the operands, for which others wait, come later
#pragma unroll
        for (int i = 0; i < BIASES; ++i) {
            const int32_t row = item.row + row_of(i < S::M_STEPS ? i : 0) + int32_t(lane / 4);
            const int32_t col = column_of(item) + place.column(i < S::BOXES ? i % BOXES : 0) + int32_t(lane) * 2;
            const uint32_t first = by_row ? row : col, second = by_row ? row + 8 : col + 1;
            const T* bias = item.template bias<T>(p) + (GATE && i >= BOXES ? p.bias_up : 0);
            bias_first[i] = bias_second[i] = 0;
            ptx::load_global_if<2>(first < size, bias + first * p.bias_stride, &bias_first[i]);
            ptx::load_global_if<2>(second < size, bias + second * p.bias_stride, &bias_second[i]);
        }
    }

    // Where the residual of this warp's rows begins.
    template <class Item> __device__ __forceinline__ const T* residual_of(const Item& item) const {
        const T* at = static_cast<const T*>(p.addends.residual) + (item.row + row_of(0)) * p.addends.residual_row +
                      column_of(item) * p.addends.residual_col;
#pragma unroll
        for (int k = 0; k < 3; ++k) at += item.result_batch()[k] * p.residual_batch[k];
        return at;
    }
    // Asks for the tile's residual, which arrives while the tile is multiplied, as load_bias does.
    template <class Item> __device__ __forceinline__ void load_residual(const Item& item, bool warm_up) {
        if (p.addends.residual_vector != 1 || warm_up) return;
        ptx::wait_for_grid_before();
        const auto place = Boxes<S>::of(p, column_of(item));
        const int32_t columns = int32_t(p.n) - column_of(item) - int32_t(lane % 4) * 2;
        const T* from = residual_of(item) + int64_t(lane / 4) * p.addends.residual_row + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < S::M_STEPS; ++i, from += 64 * p.addends.residual_row) {
            const int32_t rows = int32_t(p.m) - item.row - row_of(i) - int32_t(lane / 4);
#pragma unroll
            for (int group = 0; group < ACCUMULATORS / 4; ++group) {
                const int32_t column = place.column(group / 8) + group % 8 * 8;
#pragma unroll
                for (int down = 0; down < 2; ++down) {
                    ptx::load_global_if<4>(down * 8 < rows && column < columns,
                                           from + down * 8 * p.addends.residual_row + column,
                                           &residual[(i * ACCUMULATORS + group * 4) / 8][group % 2 * 2 + down]);
                }
            }
        }
    }
    // While a tile is multiplied, one thread of a warpgroup asks for the residual of its rows, to where their results will lie:
    // late enough that the tile before it has long been taken from there, and a box at a time over all of k, at other times in
    // other blocks.
    template <class Item>
    __device__ __forceinline__ void ask_for_residual(const Item& item, uint32_t block, uint32_t blocks) {
        constexpr uint32_t LATE = 8;
        if (!S::CAN_TMA_STORE || p.addends.residual_vector != BY_TMA || warp % 4 != 0) return;
        if (block == 0) {
            asked = 0;
            ask_at = min(LATE, blocks - 1);
            ask_step = max(1u, (blocks - ask_at) / BOXES);
            ask_at += (blockIdx.x * 2 + warp / 4) % 8 * ask_step / 8;
        }
        const bool last = block + 1 == blocks;
        if (asked == BOXES || (block < ask_at && !last)) return;
        const int32_t row = item.row + int32_t(warp / 4) * 64, first = column_of(item);
        const uint32_t boxes = min(uint32_t(BOXES), uint32_t(int32_t(p.n) - first + 63) / 64);
        const uint32_t end = last ? BOXES : asked + 1;
        if (ptx::elect()) {
            if (asked == 0) {
                ptx::wait_for_grid_before();
                ptx::tma_store_wait_read();
                ptx::mbarrier_arrive_expect(residual_is_there(), boxes * BOX_BYTES);
            }
            int32_t batch[3];
#pragma unroll
            for (int d = 0; d < 3; ++d) batch[d] = p.residual_batches >> d & 1 ? item.batch[d] : 0;
            const uint32_t to = staging_begin + warp / 4 * BOXES * BOX_BYTES;
#pragma unroll 1
            for (uint32_t box = asked; box < min(end, boxes); ++box) {
                if (p.flat) {
                    ptx::tma_load_2d(to + box * BOX_BYTES, p.residual, residual_is_there(), first + box * 64, row);
                } else {
                    ptx::tma_load_5d(to + box * BOX_BYTES, p.residual, residual_is_there(), first + box * 64, row,
                                     batch);
                }
            }
        }
        asked = end;
        ask_at += ask_step;
    }
    // Unit `part` of some that lie as the accumulators do.
    template <int N>
    __device__ __forceinline__ void add_words(float (&v)[UNIT], const uint32_t (&words)[N][4], int part) const {
#pragma unroll
        for (int k = 0; k < UNIT / 8; ++k) {  // of 16 columns
#pragma unroll
            for (int q = 0; q < 4; ++q) {
                const float2 pair = unpack<T>(words[part * (UNIT / 8) + k][q]);
                v[k * 8 + q * 2] += pair.x;
                v[k * 8 + q * 2 + 1] += pair.y;
            }
        }
    }
    // The residual of a unit: `words` of a box that came by TMA, registers, or elements beside results at `column` within the
    // tile.
    template <class Item>
    __device__ __forceinline__ void add_residual(float (&v)[UNIT], const Item& item, int i, int unit, int32_t column,
                                                 const uint32_t (&words)[4][4], int part) const {
        if (!HELD && p.addends.residual_vector == BY_TMA) {
            add_words(v, words, part);
            return;
        }
        if constexpr (HELD) {
            if (PLAIN || p.addends.residual_vector == 1) {
                add_words(v, residual, i * UNITS + unit);
                return;
            }
        }
        const int32_t row = lane / 4, rows = int32_t(p.m) - item.row - row_of(i);
        column += part * (UNIT / 4) * 8 + lane % 4 * 2;
        const int32_t columns = int32_t(p.n) - column_of(item) - column;
        const T* from = residual_of(item) + (i * 64 + row) * p.addends.residual_row + column * p.addends.residual_col;
#pragma unroll
        for (int e = 0; e < UNIT; ++e) {
            const int32_t down = e / 2 % 2 * 8, along = e / 4 * 8 + e % 2;
            if (row + down < rows && along < columns) {
                v[e] += number(from[down * p.addends.residual_row + along * p.addends.residual_col]);
            }
        }
    }
    // A box's residual from shared memory as the accumulators lie, all at once, for the latency. Afterwards results may lie there.
    __device__ __forceinline__ void take_residual(uint32_t (&words)[4][4], uint32_t box) const {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const uint32_t row = lane % 16, vector = k * 2 + lane / 16;
            ptx::ldmatrix_x4(words[k], box + row * 128 + ((vector ^ row % 8) << 4));
        }
        __syncwarp();
    }

    // A tile's sums to where their residual has arrived, which is added, and from there by TMA: whoever sees the residual knows
    // that the tile before it is gone.
    template <class Item>
    __device__ __forceinline__ void add_and_send(Accumulators& d, const Item& item, bool warm_up) {
        if (p.bias != nullptr && !warm_up) add_bias(d);
        if (!warm_up) {
            ptx::mbarrier_wait(residual_is_there(), residual_phase);
            residual_phase ^= 1;
        }
        const uint32_t result = staging_begin + warp / 4 * BOXES * BOX_BYTES;
        uint32_t words[4][4];  // of a box's residual
#pragma unroll
        for (int at = 0; at < ALL; ++at) {
            const int box = at / UNITS_OF_BOX, part = at % UNITS_OF_BOX;
            const uint32_t to = result + box * BOX_BYTES + warp % 4 * STORE_BYTES;
            if (part == 0) take_residual(words, to);
            float v[UNIT];
            take<0, ALL>(d, at, v);
            add_words(v, words, part);
            stage(v, to, part);
        }
        send(p.result, result, warp % 4 == 0 && ptx::elect() && !warm_up, item);
    }

    // What a tile's sums become. In two ways: each warp writes its 16 rows of 64 columns, by way of a buffer of its own; or
    // each warpgroup puts its 64 rows together in shared memory, from where the copy engine takes them while the next tile is
    // multiplied. A warm_up writes nothing, and of a loop one warp of four calculates, so that instructions for both come at
    // once.
    template <class Item> __device__ __forceinline__ void write(Accumulators& d, const Item& item, bool warm_up) {
        if (F == EpilogueKind::partial) {
            if (!warm_up) store_partials(d, item);
            return;
        }
        if constexpr (PLAIN && S::CAN_TMA_STORE) {
            add_and_send(d, item, warm_up);
            return;
        }
        if ((F == EpilogueKind::bias_relu || RESIDUAL) && !warm_up) {
            if (p.bias != nullptr) add_bias(d);
#pragma unroll
            for (int i = 0; i < S::M_STEPS; ++i) {
                if constexpr (RESIDUAL && !PLAIN) {
                    auto& v = reinterpret_cast<float (&)[ACCUMULATORS]>(d[i]);
                    activate<T>(v, p.activation, p.negative_slope);
#pragma unroll
                    for (int e = 0; GATE && e < ACCUMULATORS; ++e) v[e] *= d[i][ACCUMULATORS + e];
                } else if constexpr (!PLAIN) {
                    if (p.activation == ACT_RELU) relu(d[i]);
                    if (p.activation == ACT_LEAKY_RELU) leaky_relu_of_fraction(d[i], p.negative_slope);
                }
            }
        }
        // What a warm_up adds is nowhere written.
        const bool adds = PLAIN || (RESIDUAL && p.addends.residual != nullptr && !warm_up);
        const bool by_tma = S::CAN_TMA_STORE && adds && p.addends.residual_vector == BY_TMA;
        const bool has_result = S::CAN_TMA_STORE && p.tma_store;
        const uint32_t result = staging_begin + warp / 4 * BOXES * BOX_BYTES;
        const bool leader = warp % 4 == 0 && ptx::elect();
        // The copy engine would write the rows of the next group, too.
        const bool tma_store = has_result && !(Item::IS_CUT && item.row + int32_t(warp / 4 + 1) * 64 > item.end_row(p));
        const uint32_t buffer = Item::IS_CUT && has_result ? result + warp % 4 * STORE_BYTES : staging;
        if (has_result) {
            if (leader && !by_tma) ptx::tma_store_wait_read();
            ptx::barrier_sync(RESULT_READY + warp / 4, 128);
        }
        if (by_tma) {
            ptx::mbarrier_wait(residual_is_there(), residual_phase);
            residual_phase ^= 1;
        }
        const int32_t first_column = column_of(item);
        const auto place = Boxes<S>::of(p, first_column);
        T* out = static_cast<T*>(p.out) + (item.row + row_of(0)) * p.out_row + first_column * p.out_col;
#pragma unroll
        for (int k = 0; k < 3; ++k) out += item.result_batch()[k] * p.out_batch[k];
        uint32_t words[4][4];  // of a box's residual
#pragma unroll(LOOP ? 1 : ALL)
        for (int at = 0; at < (LOOP && warm_up ? UNITS_OF_BOX : ALL); ++at) {
            const int i = at / UNITS, unit = at % UNITS, box = unit / UNITS_OF_BOX, part = unit % UNITS_OF_BOX;
            const uint32_t to = tma_store ? result + box * BOX_BYTES + warp % 4 * STORE_BYTES : buffer;
            if (by_tma && part == 0) take_residual(words, to);
            float v[UNIT];
            take<0, ALL>(d, at, v);
            if (LOOP && (!warm_up || warp % 4 == 1)) {
                if (p.bias != nullptr) add_bias(v, bias_of<0>(p.bias_by_row ? i : box), part);
                activate<T>(v, p.activation, p.negative_slope);
            }
            if (adds) add_residual(v, item, i, unit, place.column(box), words, part);
            stage(v, to, part);
            if (!tma_store && (part == UNITS_OF_BOX - 1 || unit == UNITS - 1)) {
                const int32_t column = place.column(box), end = column + (box == BOXES - 1 ? S::TAIL : 64);
                store_box(buffer, out + i * 64 * p.out_row + column * p.out_col,
                          warm_up ? 0 : item.end_row(p) - item.row - row_of(i),
                          min(int32_t(p.n) - first_column, end) - column);
            }
        }
        if (tma_store) send(p.result, result, leader && !warm_up, item);
    }

    // The accumulators of unit `at`, counted through all steps of rows. Registers have no index at run time: by branches, each
    // of which halves those of [FIRST, END). (One comparison after the other becomes a predicated copy of every accumulator,
    // a switch a table in memory.)
    template <int FIRST, int END> __device__ __forceinline__ void take(const Accumulators& d, int at,
                                                                       float (&v)[UNIT]) const {
        if constexpr (END - FIRST > 1) {
            constexpr int MIDDLE = (FIRST + END) / 2;
            if (at < MIDDLE) {
                take<FIRST, MIDDLE>(d, at, v);
            } else {
                take<MIDDLE, END>(d, at, v);
            }
        } else {
            constexpr int I = FIRST / UNITS, FROM = FIRST % UNITS * UNIT;
#pragma unroll
            for (int e = 0; e < UNIT; ++e) v[e] = FROM + e < ACCUMULATORS ? d[I][FROM + e] : 0.0f;
        }
    }
    // Both values of step or box `which`, counted from AT.
    template <int AT> __device__ __forceinline__ uint32_t bias_of(int which) const {
        const uint32_t pair = bias_first[AT] | bias_second[AT] << 16;
        if constexpr (AT + 1 < BIASES) return which == AT ? pair : bias_of<AT + 1>(which);
        return pair;
    }

    template <int N> __device__ __forceinline__ void add_row_bias(float (&v)[N], uint32_t bias) const {
        const float2 rows = unpack<T>(bias);
#pragma unroll
        for (int at = 0; at < N; ++at) v[at] += at / 2 % 2 ? rows.y : rows.x;
    }
    template <int N> __device__ __forceinline__ void add_column_bias(float (&v)[N], uint32_t bias, int part) const {
#pragma unroll
        for (int group = 0; group < N / 4; ++group) {  // of 8 columns
            const float2 columns = unpack<T>(__shfl_sync(~0u, bias, (part * (N / 4) + group) * 4 + lane % 4));
            v[group * 4] += columns.x;
            v[group * 4 + 1] += columns.y;
            v[group * 4 + 2] += columns.x;
            v[group * 4 + 3] += columns.y;
        }
    }
    __device__ __forceinline__ void add_bias(float (&v)[UNIT], uint32_t bias, int part) const {
        if (p.bias_by_row) {
            add_row_bias(v, bias);
        } else {
            add_column_bias(v, bias, part);
        }
    }
    __device__ __forceinline__ void add_bias(Accumulators& d) const {
        if (p.bias_by_row) {
#pragma unroll
            for (int i = 0; i < S::M_STEPS; ++i) add_row_bias(d[i], bias_first[i] | bias_second[i] << 16);
            return;
        }
        constexpr int OF_STEP = S::ACCUMULATORS / UNIT;  // of a gate and of b
#pragma unroll
        for (int at = 0; at < S::M_STEPS * OF_STEP; ++at) {
            const int i = at / OF_STEP, unit = at % OF_STEP, box = unit / UNITS_OF_BOX;
            add_column_bias(reinterpret_cast<float (&)[UNIT]>(d[i][unit * UNIT]),
                            bias_first[box] | bias_second[box] << 16, unit % UNITS_OF_BOX);
        }
    }

    // As rows of 128 bytes, 16-byte vectors permuted by an XOR with the row, as the copy engine has it, and so that neither
    // stmatrix nor the reads have bank conflicts.
    __device__ __forceinline__ void stage(const float (&v)[UNIT], uint32_t to, int part) const {
        const uint32_t row = lane % 16, first = (to + row * 128) | ((lane / 16 ^ row % 8) << 4);
#pragma unroll
        for (int k = 0; k < UNIT / 8; ++k) {  // of 16 columns
            uint32_t words[4];
#pragma unroll
            for (int q = 0; q < 4; ++q) words[q] = pack<T>(v[k * 8 + q * 2], v[k * 8 + q * 2 + 1]);
            ptx::stmatrix_x4(first ^ uint32_t(part * (UNIT / 8) + k) << 5, words);
        }
    }

    // A box's rows from the warp's buffer: 8 lanes write 128 bytes of each.
    __device__ __forceinline__ void store_box(uint32_t buffer, T* out, int32_t rows, int32_t width) const {
        __syncwarp();
        // A vector that ends outside the result is written by elements.
        if (ANY && (p.store_elements || (width < 64 && width % 8 != 0))) {
            copy_elements(buffer, out, rows, width);
        } else {
            const int32_t row = lane / 8, vector = lane % 8, end = vector * 8 < width ? rows : 0;
            const uint32_t from = (buffer + row * 128) | (vector ^ row) << 4;
            T* to = out + row * p.out_row + vector * 8;
#pragma unroll
            for (int pass = 0; pass < 4; ++pass) {
                uint32_t words[4];
                ptx::load_shared_16((from ^ pass % 2 << 6) + pass * 512, words);
                ptx::store_global_if<16>(row + pass * 4 < end, to + pass * 4 * p.out_row, words);
            }
        }
        __syncwarp();
    }

    // All of a warpgroup's boxes to the tensor of `map`, by one of its threads.
    template <class Item>
    __device__ __forceinline__ void send(const TensorMap& map, uint32_t result, bool sender, const Item& item) const {
        ptx::fence_async_proxy();
        ptx::barrier_sync(RESULT_READY + warp / 4, 128);
        const int32_t row = item.row + int32_t(warp / 4) * 64;
        if (!sender || row >= item.end_row(p)) return;
#pragma unroll 1
        for (int32_t box = 0; box < BOXES; ++box) {
            const int32_t column = column_of(item) + box * 64;
            if (column >= int32_t(p.n)) break;
            if (p.flat) {
                ptx::tma_store_2d(map, result + box * BOX_BYTES, column, row);
            } else {
                ptx::tma_store_5d(map, result + box * BOX_BYTES, column, row, item.result_batch());
            }
        }
        ptx::tma_store_commit();
    }
    // At the end, by all.
    __device__ __forceinline__ void sent() const {
        if (S::CAN_TMA_STORE && p.tma_store && warp % 4 == 0 && ptx::elect()) ptx::tma_store_wait_read();
    }

    // For rows that are no whole, aligned vectors: a warp's neighbouring lanes write neighbouring columns.
    __device__ __forceinline__ void copy_elements(uint32_t buffer, T* out, int32_t rows, int32_t width) const {
#pragma unroll 1
        for (int row = 0; row < min(rows, 16); ++row, out += p.out_row) {
#pragma unroll
            for (int c = lane; c < 64; c += 32) {
                const uint16_t bits =
                    ptx::load_shared_half(buffer + row * 128 + (((c / 8) ^ row % 8) << 4) + c % 8 * 2);
                if (c < width) *reinterpret_cast<uint16_t*>(out + c * p.out_col) = bits;
            }
        }
    }

    // Sums of a k split in float, for matmul_reduce.cu to add. Padded to whole tiles.
    __device__ __forceinline__ void store_partials(const Accumulators& d, const Item& item) const {
        const uint64_t width = uint64_t(p.order.tiles_n) * TileCluster::columns_of(p.cluster) * S::BN;
        const uint64_t height = uint64_t(p.order.tiles_m) * TileCluster::rows_of(p.cluster) * S::BM;
        const uint64_t plane = uint64_t(item.split) * p.products + item.product;
        const uint64_t row = item.row + row_of(0) + lane / 4;
        const auto place = Boxes<S>::of(p, item.col);
        float* out = p.partials + (plane * height + row) * width + item.col + lane % 4 * 2;
#pragma unroll
        for (int i = 0; i < S::M_STEPS; ++i, out += 64 * width) {
#pragma unroll
            for (int group = 0; group < S::ACCUMULATORS / 4; ++group) {
                const float* v = d[i] + group * 4;
                float* at = out + place.column(group / 8) + group % 8 * 8;
                // By the instruction itself: where columns depend on narrow_first, a float2 is stored as two floats.
#pragma unroll
                for (int down = 0; down < 2; ++down) {
                    const uint32_t pair[2] = {__float_as_uint(v[down * 2]), __float_as_uint(v[down * 2 + 1])};
                    ptx::store_global<8>(at + down * 8 * width, pair);
                }
            }
        }
    }
};
