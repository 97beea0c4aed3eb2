// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax of rows that begin or end within 16 aligned bytes, or are aligned otherwise than their
// results: 781 or 33 elements, odd row strides, x[1:]. The arithmetic is that of softmax.cu.
//
// Per element: one exponential; one read and one write.
//
// What is ragged about rows vanishes where they are taken together. The rows of a contiguous tensor are one piece of
// memory, and eight of them (four of float32) end where 16 bytes end: a block copies a tile of rows in whole 16-byte
// accesses, whatever their length, and reads its rows from shared memory, where any address is as good as another.
// Results go the same way back, so that x and the result need not be aligned alike. Only where rows have gaps between
// them each is a piece of memory of its own; the granules at its ends are then read together with what lies around
// them, and written by element. Nothing outside of the addresses that x's elements span is read.
//
// Variants, as chosen in src/cuda/plan/softmax/choose.rs:
//   raggedV   a group of 1 to 32 lanes, or the block, keeps a row in registers, V elements or fewer to a lane. Blocks
//             are persistent, and ask for a coming tile (cp.async) as soon as all have read theirs; the depth of that
//             pipeline can be forced: _core.force_softmax("ragged", 2).
//
// Measured on an H200, share of a copy of the same bytes, beside softmax.cu: 2^19 x 33 bf16 0.58 (0.31), f32 0.60 (0.91);
// 32768 x 781 bf16 0.51 (0.90), f32 0.79 (0.97); 32768 x 4095 bf16 0.47 (0.98), f32 0.73 (0.97). So it is the default for
// halves of fewer than 48 elements where softmax_short.cu is not for them, and where the result is aligned otherwise than
// x, which softmax.cu stores element by element. What holds it back has not been looked into.

#include "ragged.cuh"

constexpr int THREADS = 256;  // at most
constexpr int BATCH = 4;      // accesses of shared memory that a lane has under way

template <class In, class Out, int V> __device__ __forceinline__ void softmax_ragged(const RaggedParams<2>& p) {
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
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(const __grid_constant__ RaggedParams<2> p)
#define EXPORT(IN, OUT, NAME, FEW, MANY)                                         \
    KERNEL(4, softmax_ragged##FEW##_##NAME) { softmax_ragged<IN, OUT, FEW>(p); } \
    KERNEL(3, softmax_ragged##MANY##_##NAME) { softmax_ragged<IN, OUT, MANY>(p); }

EXPORT(f16, f16, f16, 16, 32)
EXPORT(bf16, bf16, bf16, 16, 32)
EXPORT(f32, f32, f32, 16, 32)
EXPORT(f64, f64, f64, 8, 16)
EXPORT(f16, f32, f16_f32, 16, 32)
EXPORT(bf16, f32, bf16_f32, 16, 32)
