// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax of misaligned rows: rows that begin or end inside a 16-byte vector, or x and result with
// different alignments (781 or 33 elements, odd row strides, x[1:]). The arithmetic is that of softmax.cu.
//
// A block copies a tile of rows between global and shared memory in vectors of 16 bytes, and reads its rows from shared
// memory, where alignment does not matter. Eight contiguous rows (four of float32) end at a 16-byte boundary whatever
// their length. Rows with gaps between them are copied one by one: their first and last vectors include neighbouring
// elements, and head and tail of results are stored by element. No load leaves the range of addresses that x spans.
//
// Variants, chosen in src/cuda/plan/softmax/choose/mod.rs:
//   misalignedV   a row in the registers of a group of 1 to 32 lanes, or of the block, up to V elements a lane. Blocks
//                 are persistent and prefetch later tiles (cp.async); _core.force_softmax("misaligned", 2) forces the
//                 depth.
// Measurements: docs/measurements/softmax_misaligned.md

#include "misaligned.cuh"

constexpr int THREADS = 256;  // at most
constexpr int BATCH = 4;      // units that a lane reads at once

template <class In, class Out, int V> __device__ __forceinline__ void softmax_misaligned(const MisalignedParams<2>& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    constexpr int U = UNIT<In>, W = V / U;
    extern __shared__ uint4 shared[];  // [stage][stage_vectors], then the results
    __shared__ C scratch[64];
    const bool whole_block = p.lanes > 32;
    const uint32_t lanes = p.lanes, group = threadIdx.x / lanes, lane = threadIdx.x - group * lanes;
    const auto reduce = [&](C v, auto op, C* of) {
        return whole_block ? reduce_block(v, op, decltype(op)::template identity<C>(), of) : reduce_lanes(v, op, lanes);
    };

    for (uint32_t stage = 0; stage < p.stages; ++stage) {
        const uint64_t coming = blockIdx.x + static_cast<uint64_t>(stage) * gridDim.x;
        if (coming < p.tiles) fetch<In, 0>(p, coming, shared + stage * p.stage_vectors);
        commit_copies();
    }
    uint32_t stage = 0;
    for (uint64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        wait_for_copies(p.stages - 1);
        __syncthreads();  // also waits until all have stored the tile before
        uint4* inputs = shared + stage * p.stage_vectors;
        const TileRows<In, 0, 2> x_rows(p, tile);
        const bool mine = group < x_rows.rows;
        const uint32_t row = mine ? group : 0, length = mine ? p.length : 0, begin = x_rows.shared_index(row);
        const uint32_t before = mine ? begin % U : 0;
        const LaneRow<In, U> x(reinterpret_cast<In*>(inputs) + begin, before, length, lane, lanes);
        C v[W][U], single = -infinity<C>();
        if (x.has_single) single = widen<Out>(x.first[x.single]);
        C max = single;
#pragma unroll
        for (int b = 0; b < W; b += BATCH) {
            if (b >= p.units_per_lane) break;
            Unit<In, U> read[BATCH];
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
#pragma unroll
                for (auto& e : read[i].v) e = convert<In>(-infinity<float>());
                x.template read<true>(b + i, read[i]);
            }
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                widen_unit<Out>(read[i], v[b + i]);
#pragma unroll
                for (int k = 0; k < U; ++k) max = larger(max, v[b + i][k]);
            }
        }
        max = reduce(max, Max(), scratch);
        const C base = Partial<C>{max, 0}.base();
        C sum = 0;
        const auto accumulate = [&](C& e) {
            const C shifted = e - base, exponential = M::exp(shifted);
            sum += exponential;
            e = p.log ? shifted : exponential;
        };
        accumulate(single);
#pragma unroll
        for (int b = 0; b < W; b += BATCH) {
            if (b >= p.units_per_lane) break;
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
#pragma unroll
                for (int k = 0; k < U; ++k) accumulate(v[b + i][k]);
            }
        }
        sum = reduce(sum, Sum(), scratch + 32);

        const Normalizer<Out> normalizer(Partial<C>{max, sum}, p.log);
        Out* results = reinterpret_cast<Out*>(shared) + TileRows<Out, 1, 2>(p, tile).shared_index(row);
        const LaneRow<Out, U> y(results, before, length, lane, lanes);
        if (y.has_single) y.first[y.single] = normalizer.scaled(single);
#pragma unroll
        for (int b = 0; b < W; b += BATCH) {
            if (b >= p.units_per_lane) break;
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                Unit<Out, U> unit;
#pragma unroll
                for (int k = 0; k < U; ++k) unit.v[k] = normalizer.scaled(v[b + i][k]);
                y.write(b + i, unit);
            }
        }
        __syncthreads();
        const uint64_t coming = tile + static_cast<uint64_t>(p.stages) * gridDim.x;
        if (coming < p.tiles) fetch<In, 0>(p, coming, inputs);
        commit_copies();
        store_tile<Out>(p, tile, shared);
        stage = stage + 1 == p.stages ? 0 : stage + 1;
    }
}

#define KERNEL(BLOCKS, NAME) \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(const __grid_constant__ MisalignedParams<2> p)
#define EXPORT(IN, OUT, NAME, FEW, MANY)                                                 \
    KERNEL(4, softmax_misaligned##FEW##_##NAME) { softmax_misaligned<IN, OUT, FEW>(p); } \
    KERNEL(3, softmax_misaligned##MANY##_##NAME) { softmax_misaligned<IN, OUT, MANY>(p); }

EXPORT(f16, f16, f16, 16, 32)
EXPORT(bf16, bf16, bf16, 16, 32)
EXPORT(f32, f32, f32, 16, 32)
EXPORT(f16, f32, f16_f32, 16, 32)
EXPORT(bf16, f32, bf16_f32, 16, 32)
