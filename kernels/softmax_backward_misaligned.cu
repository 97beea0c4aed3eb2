// targets: 75 80 90 100 120 ptx:75
//
// Gradients of softmax and log_softmax for misaligned rows: rows that begin or end inside a 16-byte vector, or grad,
// output and result with different alignments. The arithmetic is that of softmax_backward.cu; two reads and one write.
//
// As in softmax_misaligned.cu tiles of whole rows go through shared memory, so that global accesses are vectors of 16
// bytes. Only head and tail of rows that are not packed move by element.
//
// Variants, chosen in src/cuda/plan/softmax_backward/choose.rs:
//   misalignedV   a row in the registers of a group of 1 to 32 lanes, or of the block, up to V elements of each input a
//             lane. Blocks are persistent and prefetch a later tile (cp.async) as soon as all threads have read theirs.
// Measurements: docs/measurements/softmax_backward_misaligned.md

#include "misaligned.cuh"
#include "softmax_backward.cuh"

constexpr int THREADS = 256;  // at most
constexpr int BATCH = 4;      // units of each input that a lane reads at once

template <class In, class Out, int V>
__device__ __forceinline__ void softmax_backward_misaligned(const MisalignedParams<3>& p) {
    ptx::wait_for_grid_before();
    using G = Gradient<In, Out>;
    using C = typename G::C;
    constexpr int U = UNIT<In>, W = V / U;
    extern __shared__ uint4 shared[];  // [stage][stage_vectors], then the results
    __shared__ C scratch[32];
    const G gradient = {p.log != 0};
    const uint32_t lanes = p.lanes, group = threadIdx.x / lanes, lane = threadIdx.x - group * lanes;
    const auto fetch_tile = [&](uint64_t tile, uint4* inputs) {
        if (tile < p.tiles) {
            fetch<In, 0>(p, tile, inputs);
            fetch<In, 1>(p, tile, inputs);
        }
        commit_copies();
    };

    for (uint32_t stage = 0; stage < p.stages; ++stage) {
        fetch_tile(blockIdx.x + static_cast<uint64_t>(stage) * gridDim.x, shared + stage * p.stage_vectors);
    }
    uint32_t stage = 0;
    for (uint64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        wait_for_copies(p.stages - 1);
        __syncthreads();  // also waits until all have stored the tile before
        uint4* inputs = shared + stage * p.stage_vectors;
        const TileRows<In, 0, 3> rows(p, tile);
        const bool mine = group < rows.rows;
        const uint32_t row = mine ? group : 0, length = mine ? p.length : 0, begin = rows.shared_index(row);
        const uint32_t before = mine ? begin % U : 0;
        In* elements = reinterpret_cast<In*>(inputs);
        const LaneRow<In, U> grad(elements + begin, before, length, lane, lanes);
        const LaneRow<In, U> output(elements + TileRows<In, 1, 3>(p, tile).shared_index(row), before, length, lane,
                                    lanes);
        // Elements stay in their dtype, which for halves takes half of the registers, and are widened anew for every
        // use.
        Unit<In, U> g[W], y[W];
        Unit<In, 1> single_g = {convert<In>(0.0f)}, single_y = single_g;
        C sums[U] = {}, single_sum[1] = {}, wide_g[U], wide_y[U], single_wide_g[1], single_wide_y[1];
        if (grad.has_single) {
            single_g.v[0] = grad.first[grad.single];
            single_y.v[0] = output.first[output.single];
        }
        widen_unit<In>(single_g, single_wide_g);
        widen_unit<In>(single_y, single_wide_y);
        gradient.accumulate(single_wide_g, single_wide_y, single_sum);
#pragma unroll
        for (int b = 0; b < W; b += BATCH) {
            if (b >= p.units_per_lane) break;
#pragma unroll
            for (int i = b; i < b + BATCH; ++i) {
#pragma unroll
                for (int k = 0; k < U; ++k) g[i].v[k] = y[i].v[k] = convert<In>(0.0f);
                grad.template read<true>(i, g[i]);
                output.template read<false>(i, y[i]);
            }
#pragma unroll
            for (int i = b; i < b + BATCH; ++i) {
                widen_unit<In>(g[i], wide_g);
                widen_unit<In>(y[i], wide_y);
                gradient.accumulate(wide_g, wide_y, sums);
            }
        }
        C sum = single_sum[0];
#pragma unroll
        for (int k = 0; k < U; ++k) sum += sums[k];
        sum = lanes > 32 ? reduce_block(sum, Sum(), C(0), scratch) : reduce_lanes(sum, Sum(), lanes);
#pragma unroll
        for (int k = 0; k < U; ++k) sums[k] = sum;

        Out* results = reinterpret_cast<Out*>(shared) + TileRows<Out, 2, 3>(p, tile).shared_index(row);
        const LaneRow<Out, U> out(results, before, length, lane, lanes);
        if (out.has_single) {
            const C single_sums[1] = {sum};
            out.first[out.single] = gradient.results(single_wide_g, single_wide_y, single_sums).v[0];
        }
#pragma unroll
        for (int b = 0; b < W; b += BATCH) {
            if (b >= p.units_per_lane) break;
#pragma unroll
            for (int i = b; i < b + BATCH; ++i) {
                widen_unit<In>(g[i], wide_g);
                widen_unit<In>(y[i], wide_y);
                const auto pack = gradient.results(wide_g, wide_y, sums);
                Unit<Out, U> unit;
#pragma unroll
                for (int k = 0; k < U; ++k) unit.v[k] = pack.v[k];
                out.write(i, unit);
            }
        }
        __syncthreads();
        fetch_tile(tile + static_cast<uint64_t>(p.stages) * gridDim.x, inputs);
        store_tile<Out>(p, tile, shared);
        stage = stage + 1 == p.stages ? 0 : stage + 1;
    }
}

#define KERNEL(BLOCKS, NAME)                                      \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) \
        softmax_backward_##NAME(const __grid_constant__ MisalignedParams<3> p)
#define EXPORT(IN, OUT, NAME, FEW, MANY)                                                  \
    KERNEL(4, misaligned##FEW##_##NAME) { softmax_backward_misaligned<IN, OUT, FEW>(p); } \
    KERNEL(3, misaligned##MANY##_##NAME) { softmax_backward_misaligned<IN, OUT, MANY>(p); }

EXPORT(f16, f16, f16, 16, 32)
EXPORT(bf16, bf16, bf16, 16, 32)
EXPORT(f32, f32, f32, 8, 16)
EXPORT(f32, f16, f32_f16, 8, 16)
EXPORT(f32, bf16, f32_bf16, 8, 16)
