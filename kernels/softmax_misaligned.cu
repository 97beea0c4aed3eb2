// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax of misaligned rows: rows that begin or end inside a 16-byte vector, or x and result with
// different alignments (781 or 33 elements, odd row strides, x[1:]). The arithmetic is that of softmax.cu.
//
// A block copies a tile of rows between global and shared memory in vectors of 16 bytes, and reads its rows from shared
// memory, where alignment does not matter. Eight contiguous rows (four of float32) end at a 16-byte boundary whatever
// their length. Rows with gaps between them are copied one by one: vectors at their ends include neighbouring elements,
// and the ends of results are stored by element. No load leaves the range of addresses that x spans.
//
// Variants, chosen in src/cuda/plan/softmax/choose/mod.rs:
//   misalignedV   a row in the registers of a group of 1 to 32 lanes, or of the block, up to V elements a lane. Blocks are
//             persistent and prefetch later tiles (cp.async); _core.force_softmax("misaligned", 2) forces the depth.
// Measurements: docs/measurements/softmax_misaligned.md

#include "misaligned.cuh"

constexpr int THREADS = 256;  // at most
constexpr int BATCH = 4;      // accesses of shared memory that a lane has under way

template <class In, class Out, int V> __device__ __forceinline__ void softmax_misaligned(const MisalignedParams<2>& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    constexpr int U = UNIT<In>, W = V / U;
    extern __shared__ uint4 slots[];  // [stage][stage_slots], then the results
    __shared__ C scratch[64];
    const bool whole_block = p.lanes > 32;
    const uint32_t lanes = p.lanes, group = threadIdx.x / lanes, lane = threadIdx.x - group * lanes;
    const auto reduce = [&](C v, auto op, C* of) {
        return whole_block ? reduce_block(v, op, decltype(op)::template identity<C>(), of) : reduce_lanes(v, op, lanes);
    };

    for (uint32_t stage = 0; stage < p.stages; ++stage) {
        const uint64_t coming = blockIdx.x + static_cast<uint64_t>(stage) * gridDim.x;
        if (coming < p.tiles) fetch<In, 0>(p, coming, slots + stage * p.stage_slots);
        commit_copies();
    }
    uint32_t stage = 0;
    for (uint64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        wait_for_copies(p.stages - 1);
        __syncthreads();  // also until all have put the tile before
        uint4* staged = slots + stage * p.stage_slots;
        const Pieces<In, 0, 2> x_rows(p, tile);
        const bool mine = group < x_rows.rows;
        const uint32_t row = mine ? group : 0, length = mine ? p.length : 0, place = x_rows.place(row);
        const uint32_t before = mine ? place % U : 0;
        const LaneRow<In, U> x(reinterpret_cast<In*>(staged) + place, before, length, lane, lanes);
        C v[W][U], lone = -infinity<C>();
        if (x.has_lone) lone = widen<Out>(x.first[x.lone]);
        C max = lone;
#pragma unroll
        for (int b = 0; b < W; b += BATCH) {
            if (b >= p.trips) break;
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
        const auto take = [&](C& e) {
            const C shifted = e - base, exponential = M::exp(shifted);
            sum += exponential;
            e = p.log ? shifted : exponential;
        };
        take(lone);
#pragma unroll
        for (int b = 0; b < W; b += BATCH) {
            if (b >= p.trips) break;
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
#pragma unroll
                for (int k = 0; k < U; ++k) take(v[b + i][k]);
            }
        }
        sum = reduce(sum, Sum(), scratch + 32);

        const Finish<Out> finish(Partial<C>{max, sum}, p.log);
        Out* results = reinterpret_cast<Out*>(slots) + Pieces<Out, 1, 2>(p, tile).place(row);
        const LaneRow<Out, U> y(results, before, length, lane, lanes);
        if (y.has_lone) y.first[y.lone] = finish.scaled(lone);
#pragma unroll
        for (int b = 0; b < W; b += BATCH) {
            if (b >= p.trips) break;
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                Unit<Out, U> unit;
#pragma unroll
                for (int k = 0; k < U; ++k) unit.v[k] = finish.scaled(v[b + i][k]);
                y.write(b + i, unit);
            }
        }
        __syncthreads();
        const uint64_t coming = tile + static_cast<uint64_t>(p.stages) * gridDim.x;
        if (coming < p.tiles) fetch<In, 0>(p, coming, staged);
        commit_copies();
        put<Out>(p, tile, slots);
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
