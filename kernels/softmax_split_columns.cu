// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax over a dimension that is not the last, in two launches: for columns that are longer than the
// blocks of a cluster hold, and for too few columns to keep the device busy. The arithmetic is that of softmax.cu.
//
// Neighbouring columns are contiguous. A block takes `across` accesses of E elements along a row and a slice of the
// rows; a thread loads K rows of its access at a time. The first launch writes maximum and sum of every slice to the
// workspace. The second merges those of its columns and reads the slices again, the last rows first: these are still in
// the caches. Chosen in src/cuda/plan/softmax/choose/columns.rs.
// Hazard: the second launch may begin early. It waits for the first before it reads partials or overwrites x.
// Measurements: docs/measurements/softmax_split_columns.md
#include "access.cuh"
#include "column_exchange.cuh"

constexpr int THREADS = 256;  // at most
constexpr int RANK = INLINE_RANK + 1;

// Mirrored by SplitColumnsParams in src/cuda/plan/softmax/split_columns.rs.
struct SplitColumnsParams {
    uint64_t x, out;               // addresses
    uint64_t length;               // elements of a column
    uint64_t columns;              // contiguous, a multiple of E
    int64_t x_stride, out_stride;  // down a column
    uint64_t partials;             // address of a Partial for every slice of every column of a tile
    uint32_t across;               // threads along a row
    uint32_t batches;              // of a slice, each K rows of every thread
    uint32_t slices;               // of a column
    uint32_t merge_threads;        // threads that merge the partials of one column
    uint32_t log;
    uint32_t rank;      // of dims: at least 1
    Dim<2> dims[RANK];  // outer dimensions, then the tiles of a row; strides of x and out
};
static_assert(sizeof(SplitColumnsParams) == 80 + 40 * RANK, "src/cuda/plan/softmax/split_columns.rs");

template <class In, class Out, int E, int K, Scope S>
__device__ __forceinline__ void softmax_split_columns(const SplitColumnsParams& p) {
    if (S == Scope::partial) {
        ptx::wait_for_grid_before();
        ptx::let_next_grid_begin();
    }
    using M = Math<Out>;
    using C = typename M::C;
    extern __shared__ uint4 shared[];
    const int width = p.across * E, pitch = width | 1;  // odd: no bank conflicts between threads of a column
    const int down = blockDim.x / p.across, d = threadIdx.x / p.across, a = threadIdx.x - d * p.across;
    const ColumnExchange<MergePartials<M, C, 16>, S> exchange(nullptr, shared, width, pitch, down, p.merge_threads);
    const uint32_t tile = blockIdx.x / p.slices, rank = blockIdx.x - tile * p.slices;
    const auto o = locate(p.dims, p.rank, static_cast<uint64_t>(tile));
    const int64_t slice = static_cast<int64_t>(p.batches) * K * down, begin = rank * slice;
    const int64_t left = static_cast<int64_t>(p.length) - begin;
    // The thread has rows d, d + down, ... below this.
    const int64_t rows = d < down && o.inner * width + a * E < p.columns ? (left < slice ? left : slice) : 0;
    const In* const x = reinterpret_cast<const In*>(p.x) + o.at[0] + a * E + begin * p.x_stride;

    Access<In, E> raw[K];
    const auto load = [&](int64_t batch) {
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const int64_t row = (batch * K + k) * down + d;
            raw[k] = Access<In, E>::lowest();
            raw[k].load(x + row * p.x_stride, row < rows);
        }
    };
    auto* const partials = reinterpret_cast<Partial<C>*>(p.partials) + static_cast<uint64_t>(tile) * p.slices * width;
    if constexpr (S == Scope::partial) {
        Partial<C> mine[E];
#pragma unroll
        for (auto& each : mine) each = Partial<C>::empty();
        for (int64_t b = 0; b < p.batches; ++b) {
            load(b);
            accumulate_columns<Out>(raw, mine);
        }
        if (d < down) {
#pragma unroll
            for (int e = 0; e < E; ++e) exchange.of_groups[d * pitch + e * p.across + a] = mine[e];
        }
        exchange.merge(partials, p.slices, rank, 0);
        return;
    }

    const int64_t last = p.batches - 1;
    load(last);
    ptx::wait_for_grid_before();
    exchange.merge(partials, p.slices, rank, 0);
    C base[E], scale[E];  // a factor, or for log_softmax a term
    if (d < down) {
#pragma unroll
        for (int e = 0; e < E; ++e) {
            const Normalizer<Out> normalizer(exchange.of_columns[e * p.across + a], p.log);
            base[e] = normalizer.base;
            scale[e] = p.log ? normalizer.term : normalizer.factor;
        }
    }
    Out* const out = reinterpret_cast<Out*>(p.out) + o.at[1] + a * E + begin * p.out_stride;
    const auto store = [&](int64_t batch) {
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const int64_t row = (batch * K + k) * down + d;
            C v[E];
            raw[k].template widen<Out>(v);
            Pack<Out, E> results;
#pragma unroll
            for (int e = 0; e < E; ++e) {
                const C shifted = v[e] - base[e];
                results.v[e] = convert<Out>(p.log ? shifted + scale[e] : M::exp(shifted) * scale[e]);
            }
            if (row >= rows) continue;
            if constexpr (E * sizeof(Out) < 4) {
                out[row * p.out_stride] = results.v[0];
            } else {
                store_pack(out + row * p.out_stride, results);
            }
        }
    };
    store(last);
    for (int64_t b = last - 1; b >= 0; --b) {
        load(b);
        store(b);
    }
}

#define KERNEL(NAME) \
    extern "C" __global__ void __launch_bounds__(THREADS, 2) NAME(const __grid_constant__ SplitColumnsParams p)
#define EXPORT(IN, OUT, NAME, E, K)                                                                                \
    KERNEL(softmax_split_columns##E##_partial_##NAME) { softmax_split_columns<IN, OUT, E, K, Scope::partial>(p); } \
    KERNEL(softmax_split_columns##E##_combine_##NAME) { softmax_split_columns<IN, OUT, E, K, Scope::combine>(p); }
#define OF_16_BITS(IN, OUT, NAME) \
    EXPORT(IN, OUT, NAME, 8, 8)   \
    EXPORT(IN, OUT, NAME, 4, 8)   \
    EXPORT(IN, OUT, NAME, 2, 16)  \
    EXPORT(IN, OUT, NAME, 1, 16)

OF_16_BITS(f16, f16, f16)
OF_16_BITS(bf16, bf16, bf16)
OF_16_BITS(f16, f32, f16_f32)
OF_16_BITS(bf16, f32, bf16_f32)
EXPORT(f32, f32, f32, 4, 8)
EXPORT(f32, f32, f32, 1, 16)
EXPORT(f64, f64, f64, 2, 4)
EXPORT(f64, f64, f64, 1, 8)
