// targets: 75 80 90 100 120 ptx:75
//
// Gradients of softmax and log_softmax for rows whose elements are not contiguous, or of rare pairs of dtypes. The
// arithmetic is that of softmax_backward.cu.
//
// Variants, chosen in src/cuda/plan/softmax_backward/register_tile.rs:
//   register_tileE   columns are contiguous (dim is not the last): a block takes `across` contiguous accesses of E
//                    elements and a slice of the dimension; a batch of K rows of a thread is in registers. All batches
//                    of a slice but the last are read twice. The blocks of a cluster split the dimension and exchange
//                    sums (distributed shared memory).
//   register_tileE_partial, register_tileE_combine
//                    two launches, for few tiles and for columns that are longer than a cluster holds: the first writes
//                    the sums of slices to the workspace, the second, which may begin early, reads the slices again.
//   general          any strides, dtypes and rank: a block a row, two passes, element by element.
// Measurements: docs/measurements/softmax_backward_strided.md

#include "access.cuh"
#include "column_exchange.cuh"
#include "softmax_backward.cuh"

// --------------------------------------------------------------------------------------- register tile

constexpr int TILE_THREADS = 256;  // at most
constexpr int TILE_RANK = INLINE_RANK + 1;

// Mirrored by BackwardTileParams in src/cuda/plan/softmax_backward/params.rs.
struct BackwardTileParams {
    uint64_t grad, output, out;                      // addresses
    uint64_t length;                                 // elements of a column
    uint64_t columns;                                // contiguous, a multiple of E
    uint64_t tiles;                                  // each of `across` contiguous accesses
    int64_t grad_stride, output_stride, out_stride;  // down a column
    uint32_t across;                                 // threads along a row
    uint32_t batches;                                // of a block's slice, each K rows of every thread
    uint32_t merge_threads;                          // threads that add up the sums of one column
    uint32_t log;
    uint32_t rank;           // of dims, at least 1
    uint32_t slices;         // of a column: the blocks of a cluster, or of two launches
    uint64_t partials;       // partial, combine: address of a sum for every slice of every column of a tile
    Dim<3> dims[TILE_RANK];  // outer dimensions, then the tiles of a row; strides of grad, output and out
};
static_assert(sizeof(BackwardTileParams) == 104 + 48 * TILE_RANK, "src/cuda/plan/softmax_backward/params.rs");

// A thread's columns in a block's slice: its rows d, d + down, ... below `rows`.
template <class T> struct TileThread {
    const T* grad;
    const T* output;
    T* out;
    int64_t rows;
    int d, down;

    __device__ __forceinline__ TileThread(const BackwardTileParams& p, uint64_t tile, uint32_t rank, int64_t slice,
                                          int a, int e, int d, int down)
        : d(d), down(down) {
        const auto o = locate(p.dims, p.rank, tile);
        const int64_t begin = rank * slice, left = static_cast<int64_t>(p.length) - begin;
        const bool inside = d < down && (o.inner * p.across + a) * e < p.columns;
        rows = inside ? (left < slice ? left : slice) : 0;
        grad = reinterpret_cast<const T*>(p.grad) + o.at[0] + a * e + begin * p.grad_stride;
        output = reinterpret_cast<const T*>(p.output) + o.at[1] + a * e + begin * p.output_stride;
        out = reinterpret_cast<T*>(p.out) + o.at[2] + a * e + begin * p.out_stride;
    }
    __device__ __forceinline__ int64_t row(int64_t batch, int k, int batch_rows) const {
        return batch * batch_rows * down + k * down + d;
    }
};

// K accesses of each input, `down` rows apart.
template <class T, int E, int K> struct Accesses {
    using G = Gradient<T, T>;
    using C = typename G::C;
    Access<T, E> grad[K], output[K];

    // Without `outputs` only what the sums of log_softmax need.
    __device__ __forceinline__ void load(const TileThread<T>& at, int64_t batch, const BackwardTileParams& p,
                                         bool outputs) {
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const int64_t row = at.row(batch, k, K);
            grad[k] = output[k] = Access<T, E>::zero();
            grad[k].load(at.grad + row * p.grad_stride, row < at.rows);
            output[k].load(at.output + row * p.output_stride, row < at.rows && outputs);
        }
    }
    __device__ __forceinline__ void accumulate(const G& gradient, C (&sum)[E]) const {
#pragma unroll
        for (int k = 0; k < K; ++k) {
            C g[E], y[E];
            grad[k].template widen<T>(g);
            output[k].template widen<T>(y);
            gradient.accumulate(g, y, sum);
        }
    }
    __device__ __forceinline__ void store(const TileThread<T>& at, int64_t batch, const BackwardTileParams& p,
                                          const G& gradient, const C (&sum)[E]) const {
#pragma unroll
        for (int k = 0; k < K; ++k) {
            auto packed_grad = grad[k], packed_output = output[k];
            if (is_half<T>) {  // so that no wide copies stay in registers
                packed_grad = opaque(packed_grad);
                packed_output = opaque(packed_output);
            }
            C g[E], y[E];
            packed_grad.template widen<T>(g);
            packed_output.template widen<T>(y);
            const auto results = gradient.results(g, y, sum);
            const int64_t row = at.row(batch, k, K);
            if (row >= at.rows) continue;
            if constexpr (E * sizeof(T) < 4) {
                at.out[row * p.out_stride] = results.v[0];
            } else {
                store_pack(at.out + row * p.out_stride, results);
            }
        }
    }
};

template <class T, int E, int K, Scope S>
__device__ __forceinline__ void softmax_backward_register_tile(const BackwardTileParams& p) {
    if (S != Scope::combine) ptx::wait_for_grid_before();
    // Not where three blocks share a multiprocessor (EXPORT: accesses of 8 bytes): they would all go to those that are
    // done first.
    if (S == Scope::partial && E * sizeof(T) != 8) ptx::let_next_grid_begin();
    using C = typename Gradient<T, T>::C;
    extern __shared__ uint4 shared[];
    __shared__ uint64_t exchange_barrier;
    const Gradient<T, T> gradient = {p.log != 0};
    const int width = p.across * E, pitch = width | 1;  // odd: no bank conflicts between threads of a column
    const int down = blockDim.x / p.across, d = threadIdx.x / p.across, a = threadIdx.x - d * p.across;
    const ColumnExchange<MergeSums<C>, S> exchange(&exchange_barrier, shared, width, pitch, down, p.merge_threads);

    exchange.cluster.open();
    uint32_t parity = 0;
    for (uint64_t index = blockIdx.x; index < p.tiles * p.slices; index += gridDim.x) {
        const uint64_t tile = index / p.slices;
        const uint32_t rank = index - tile * p.slices;
        exchange.announce();
        const int64_t slice = static_cast<int64_t>(p.batches) * K * down;
        const TileThread<T> at(p, tile, rank, slice, a, E, d, down);
        Accesses<T, E, K> accesses;
        C sum[E] = {};
        const int64_t last = p.batches - 1;
        if constexpr (S == Scope::combine) {
            accesses.load(at, last, p, true);
            ptx::wait_for_grid_before();  // before sums are read, and inputs overwritten that the first launch reads
        } else {
            for (int64_t b = 0; b <= last; ++b) {
                accesses.load(at, b, p, p.log == 0 || (S == Scope::cluster && b == last));
                accesses.accumulate(gradient, sum);
            }
        }

        if (S != Scope::combine && d < down) {
#pragma unroll
            for (int e = 0; e < E; ++e) exchange.of_groups[d * pitch + e * p.across + a] = sum[e];
        }
        exchange.merge(reinterpret_cast<C*>(p.partials) + tile * p.slices * width, p.slices, rank, parity);
        if (S == Scope::partial) continue;
        parity ^= 1;

        if (d < down) {
#pragma unroll
            for (int e = 0; e < E; ++e) sum[e] = exchange.of_columns[e * p.across + a];
        }
        // Backwards: the last batch is still in registers, and the batches before it are in the caches.
        accesses.store(at, last, p, gradient, sum);
        for (int64_t b = last - 1; b >= 0; --b) {
            accesses.load(at, b, p, true);
            accesses.store(at, b, p, gradient, sum);
        }
    }
}

// --------------------------------------------------------------------------------------------- general

constexpr int GENERAL_THREADS = 256;

// Acc: f32, or f64 if an operand is float64.
template <class Acc> __device__ __forceinline__ Acc load_any(uint64_t base, int64_t offset, uint32_t tag) {
    Acc v;
    with_float_type(tag, [&](auto type) { v = convert<Acc>(reinterpret_cast<const decltype(type)*>(base)[offset]); });
    return v;
}

template <class Acc>
__device__ __forceinline__ void softmax_backward_general(const BackwardParams<MAX_RANK>& p) {
    ptx::wait_for_grid_before();
    __shared__ Acc scratch[2][32];
    const Gradient<Acc, Acc> gradient = {p.log != 0};
    uint32_t parity = 0;
    const int64_t length = p.length;
    for (uint64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const auto o = locate(p.dims, p.rank, row);
        const auto load = [&](int64_t i, Acc(&grad)[1], Acc(&output)[1]) {
            grad[0] = load_any<Acc>(p.grad, o.at[0] + i * p.grad_stride, p.in_tag);
            output[0] = load_any<Acc>(p.output, o.at[1] + i * p.output_stride, p.in_tag);
        };
        Acc sum[1] = {}, grad[1], output[1];
#pragma unroll 4
        for (int64_t i = threadIdx.x; i < length; i += blockDim.x) {
            load(i, grad, output);
            gradient.accumulate(grad, output, sum);
        }
        sum[0] = reduce_block(sum[0], Sum(), Acc(0), scratch[parity]);
        parity ^= 1;
        for (int64_t i = threadIdx.x; i < length; i += blockDim.x) {
            load(i, grad, output);
            const Acc result = gradient.results(grad, output, sum).v[0];
            with_float_type(p.out_tag, [&](auto type) {
                using T = decltype(type);
                reinterpret_cast<T*>(p.out)[o.at[2] + i * p.out_stride] = convert<T>(result);
            });
        }
    }
}

// -------------------------------------------------------------------------------------------- exported

#define TILE(BLOCKS, VARIANT, T, E, K, SCOPE)                                      \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, BLOCKS)             \
        softmax_backward_##VARIANT(const __grid_constant__ BackwardTileParams p) { \
        softmax_backward_register_tile<T, E, K, Scope::SCOPE>(p);                  \
    }
// Blocks that share a multiprocessor. With two, `combine` would spill float64.
template <class T, int BLOCKS> inline constexpr int COMBINING = sizeof(T) == 8 ? 1 : BLOCKS;
// Rows at once in two launches: with 16 one block alone would have registers for them.
template <int K> inline constexpr int OF_SLICE = K < 8 ? K : 8;
#define EXPORT(T, E, K, BLOCKS)                                         \
    TILE(BLOCKS, register_tile##E##_##T, T, E, K, cluster)              \
    TILE(2, register_tile##E##_partial_##T, T, E, OF_SLICE<K>, partial) \
    TILE((COMBINING<T, BLOCKS>), register_tile##E##_combine_##T, T, E, OF_SLICE<K>, combine)
// 128 bytes of each input per thread, or less where that would be many accesses.
#define HALVES(T)      \
    EXPORT(T, 8, 8, 2) \
    EXPORT(T, 4, 4, 3) \
    EXPORT(T, 2, 8, 2) \
    EXPORT(T, 1, 16, 2)

HALVES(f16)
HALVES(bf16)
EXPORT(f32, 4, 8, 2)
EXPORT(f32, 2, 4, 3)
EXPORT(f32, 1, 8, 2)
EXPORT(f64, 2, 8, 2)
EXPORT(f64, 1, 4, 3)

extern "C" __global__ void __launch_bounds__(GENERAL_THREADS, 2)
    softmax_backward_general_f32(const __grid_constant__ BackwardParams<MAX_RANK> p) {
    softmax_backward_general<f32>(p);
}
extern "C" __global__ void __launch_bounds__(GENERAL_THREADS, 2)
    softmax_backward_general_f64(const __grid_constant__ BackwardParams<MAX_RANK> p) {
    softmax_backward_general<f64>(p);
}
