// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax over a dimension that is not the last, in registers: odd numbers of columns of halves,
// float64, and short columns of float32; softmax_panel.cu has the others. The arithmetic is that of softmax.cu.
//
// Neighbouring columns are contiguous. A tile is some accesses of E elements wide and as long as the columns. Each
// thread holds K rows of E columns in registers; threads of a column merge maximum and sum through shared memory, and
// the up to 16 blocks of a cluster (sm_90) through distributed shared memory. Tiles are 128 bytes wide, narrower to fit
// a cluster, wider for short columns; rows of up to 512 bytes are not divided, so that a tile is one range of memory.
// Variants, chosen in src/cuda/plan/softmax/choose/columns.rs:
//   tileE                      E is 1 for halves, 4 for float32, 2 or 1 for float64; one read and one write.
//   tileE_leave, tileE_find    two launches (partial, combine) for few tiles; two reads, partials in the workspace.
// Measurements: docs/measurements/softmax_tile.md
#include "access.cuh"
#include "column_exchange.cuh"

// Threads that a block is declared to have; it has at most 512. It is the registers of a thread that are meant: on
// sm_90 80, so that three blocks of 256 fit a multiprocessor, or 96; elsewhere, where less than 128 would spill, 128.
template <class In, class Out>
#if __CUDA_ARCH__ == 900
inline constexpr int BOUND = sizeof(Out) == 8           ? 512
                             : sizeof(Out) > sizeof(In) ? 640
                                                        : 768;
#else
inline constexpr int BOUND = 512;
#endif

constexpr int RANK = INLINE_RANK + 1;

// Mirrored by TileParams in src/cuda/plan/softmax/tile.rs.
struct TileParams {
    uint64_t x, out;               // addresses
    uint64_t length;               // elements of a column
    uint64_t columns;              // side by side, a multiple of E
    uint64_t tiles;                // groups of `across` accesses side by side
    int64_t x_stride, out_stride;  // down a column
    uint64_t partials;             // leave, find: address of a Partial for every slice of every column of a tile
    uint32_t across;               // threads side by side
    uint32_t slice;                // rows of a block
    uint32_t slices;               // of a column: the blocks of a cluster, or those that leave partials
    uint32_t parts;                // threads that merge the partials of one column
    uint32_t log;
    uint32_t rank;      // of dims: at least 1
    Dim<2> dims[RANK];  // outer dimensions, then the tiles side by side; strides of x and out
};
static_assert(sizeof(TileParams) == 88 + 40 * RANK, "src/cuda/plan/softmax/tile.rs");

// E columns of K rows per thread.
template <class In, class Out, int E, int K, Scope S>
__device__ __forceinline__ void softmax_tile(const TileParams& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    // Halves stay as they were loaded, at half the registers; the others make place for their exponentials.
    constexpr bool Keep = !is_half<In>;
    extern __shared__ uint4 shared[];
    __shared__ uint64_t mailbox_state;
    const int wide = p.across * E, pitch = wide | 1;  // odd: no bank conflicts among threads below each other
    const int down = blockDim.x / p.across, d = threadIdx.x / p.across, a = threadIdx.x - d * p.across;
    const ColumnExchange<MergePartials<M, C>, S> exchange(&mailbox_state, shared, wide, pitch, down, p.parts);

    exchange.cluster.open();
    uint32_t parity = 0;
    for (uint64_t index = blockIdx.x; index < p.tiles * p.slices; index += gridDim.x) {
        const uint64_t tile = index / p.slices;
        const uint32_t rank = index - tile * p.slices;
        exchange.announce();
        const auto o = locate(p.dims, p.rank, tile);
        const int64_t begin = static_cast<int64_t>(rank) * p.slice, left = static_cast<int64_t>(p.length) - begin;
        const bool inside = d < down && o.inner * wide + a * E < p.columns;
        // Of the thread: its rows are those below at d, d + down, ...
        const int rows = inside ? static_cast<int>(left < p.slice ? left : p.slice) : 0;
        const In* x = reinterpret_cast<const In*>(p.x) + o.at[0] + a * E + begin * p.x_stride;
        Access<In, E> raw[K];
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const int row = d + k * down;
            raw[k] = Access<In, E>::lowest();
            raw[k].load(x + row * p.x_stride, row < rows);
        }
        Partial<C> mine[E];
        C v[Keep ? K : 1][E];
#pragma unroll
        for (int e = 0; e < E; ++e) mine[e] = Partial<C>::empty();
#pragma unroll
        for (int k = 0; k < K; ++k) {
            auto& y = v[Keep ? k : 0];
            raw[k].template widen<Out>(y);
#pragma unroll
            for (int e = 0; e < E; ++e) mine[e].max = larger(mine[e].max, y[e]);
        }
#pragma unroll
        for (int k = 0; k < K; ++k) {
            auto& y = v[Keep ? k : 0];
            if (!Keep) forget(raw[k]).template widen<Out>(y);
#pragma unroll
            for (int e = 0; e < E; ++e) {
                const C shifted = y[e] - mine[e].base(), exponential = M::exp(shifted);
                mine[e].sum += exponential;
                y[e] = p.log ? shifted : exponential;
            }
        }

        if (S != Scope::combine && d < down) {
#pragma unroll
            for (int e = 0; e < E; ++e) exchange.of_groups[d * pitch + e * p.across + a] = mine[e];
        }
        exchange.merge(reinterpret_cast<Partial<C>*>(p.partials) + tile * p.slices * wide, p.slices, rank, parity);
        if (S == Scope::partial) continue;
        parity ^= 1;

        C base[E], last[E];  // the last operand: a factor, or a term of the logarithm
        if (d < down) {
#pragma unroll
            for (int e = 0; e < E; ++e) {
                Finish<Out> finish(exchange.of_columns[e * p.across + a], p.log);
                if (Keep) finish.rebase(mine[e]);
                base[e] = finish.base;
                last[e] = p.log ? finish.term : finish.factor;
            }
        }
        Out* out = reinterpret_cast<Out*>(p.out) + o.at[1] + a * E + begin * p.out_stride;
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const int row = forget(d) + k * down;
            auto& y = v[Keep ? k : 0];
            if (!Keep) forget(raw[k]).template widen<Out>(y);
            Pack<Out, E> results;
#pragma unroll
            for (int e = 0; e < E; ++e) {
                const C shifted = Keep ? y[e] : y[e] - base[e];
                results.v[e] = convert<Out>(p.log ? shifted + last[e] : (Keep ? shifted : M::exp(shifted)) * last[e]);
            }
            if (row >= rows) continue;
            if constexpr (E * sizeof(Out) < 4) {
                out[row * p.out_stride] = results.v[0];
            } else {
                store_pack(out + row * p.out_stride, results);
            }
        }
    }
}

#define KERNEL(IN, OUT, NAME) \
    extern "C" __global__ void __launch_bounds__((BOUND<IN, OUT>), 1) NAME(const __grid_constant__ TileParams p)
#define EXPORT(IN, OUT, NAME, E, K)                                                                     \
    KERNEL(IN, OUT, softmax_tile##E##_##NAME) { softmax_tile<IN, OUT, E, K, Scope::cluster>(p); }       \
    KERNEL(IN, OUT, softmax_tile##E##_leave_##NAME) { softmax_tile<IN, OUT, E, K, Scope::partial>(p); } \
    KERNEL(IN, OUT, softmax_tile##E##_find_##NAME) { softmax_tile<IN, OUT, E, K, Scope::combine>(p); }
// 128 bytes per thread, 32 of halves.
KERNEL(f32, f32, softmax_tile4_f32) { softmax_tile<f32, f32, 4, 8, Scope::cluster>(p); }
EXPORT(f16, f16, f16, 1, 16)
EXPORT(bf16, bf16, bf16, 1, 16)
EXPORT(f16, f32, f16_f32, 1, 16)
EXPORT(bf16, f32, bf16_f32, 1, 16)
EXPORT(f64, f64, f64, 2, 4)
EXPORT(f64, f64, f64, 1, 8)
