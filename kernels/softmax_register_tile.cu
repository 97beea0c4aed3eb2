// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax over a dimension that is not the last, in registers: odd numbers of columns of halves,
// float64, and short columns of float32; softmax_column_tile.cu has the others. The arithmetic is that of softmax.cu.
//
// Neighbouring columns are contiguous. A tile is some accesses of E elements wide and as long as the columns. Each
// thread has K rows of E columns in registers; threads of a column merge maximum and sum through shared memory. Tiles
// are 128 bytes wide, narrower to fit a block, wider for short columns; rows of up to 512 bytes are not divided, so that
// a tile is one range of memory. E is 1 for 16-bit elements, 4 for float32, 2 or 1 for float64. Chosen in
// src/cuda/plan/softmax/choose/columns.rs.
// Measurements: docs/measurements/softmax_register_tile.md
#include "access.cuh"
#include "column_exchange.cuh"

// The declared number of threads, which bounds the registers of a thread; a block has at most 512. On sm_90 a thread
// gets 80 registers, so that three blocks of 256 fit a multiprocessor, or 96; elsewhere 128, since fewer would spill.
template <class In, class Out>
#if __CUDA_ARCH__ == 900
inline constexpr int BOUND = sizeof(Out) == 8           ? 512
                             : sizeof(Out) > sizeof(In) ? 640
                                                        : 768;
#else
inline constexpr int BOUND = 512;
#endif

constexpr int RANK = INLINE_RANK + 1;

// Mirrored by RegisterTileParams in src/cuda/plan/softmax/register_tile.rs.
struct RegisterTileParams {
    uint64_t x, out;               // addresses
    uint64_t length;               // elements of a column
    uint64_t columns;              // contiguous, a multiple of E
    uint64_t tiles;                // each of `across` contiguous accesses
    int64_t x_stride, out_stride;  // down a column
    uint32_t across;               // threads along a row
    uint32_t merge_threads;        // threads that merge the partials of one column
    uint32_t log;
    uint32_t rank;      // of dims: at least 1
    Dim<2> dims[RANK];  // outer dimensions, then the tiles of a row; strides of x and out
};
static_assert(sizeof(RegisterTileParams) == 72 + 40 * RANK, "src/cuda/plan/softmax/register_tile.rs");

// E columns of K rows per thread.
template <class In, class Out, int E, int K>
__device__ __forceinline__ void softmax_register_tile(const RegisterTileParams& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    // Halves stay halves, in half the registers; exponentials replace values of the other dtypes.
    constexpr bool Keep = !is_half<In>;
    extern __shared__ uint4 shared[];
    const int width = p.across * E, pitch = width | 1;  // odd: no bank conflicts between threads of a column
    const int down = blockDim.x / p.across, d = threadIdx.x / p.across, a = threadIdx.x - d * p.across;
    const ColumnExchange<MergePartials<M, C>, Scope::block> exchange(nullptr, shared, width, pitch, down,
                                                                     p.merge_threads);

    for (uint64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        const auto o = locate(p.dims, p.rank, tile);
        const bool inside = d < down && o.inner * width + a * E < p.columns;
        // The thread has rows d, d + down, ... below this.
        const int rows = inside ? static_cast<int>(p.length) : 0;
        const In* x = reinterpret_cast<const In*>(p.x) + o.at[0] + a * E;
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
            if (!Keep) opaque(raw[k]).template widen<Out>(y);
#pragma unroll
            for (int e = 0; e < E; ++e) {
                const C shifted = y[e] - mine[e].base(), exponential = M::exp(shifted);
                mine[e].sum += exponential;
                y[e] = p.log ? shifted : exponential;
            }
        }

        if (d < down) {
#pragma unroll
            for (int e = 0; e < E; ++e) exchange.of_groups[d * pitch + e * p.across + a] = mine[e];
        }
        exchange.merge(nullptr, 1, 0, 0);

        C base[E], scale[E];  // a factor, or for log_softmax a term
        if (d < down) {
#pragma unroll
            for (int e = 0; e < E; ++e) {
                Normalizer<Out> normalizer(exchange.of_columns[e * p.across + a], p.log);
                if (Keep) normalizer.rebase(mine[e]);
                base[e] = normalizer.base;
                scale[e] = p.log ? normalizer.term : normalizer.factor;
            }
        }
        Out* out = reinterpret_cast<Out*>(p.out) + o.at[1] + a * E;
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const int row = opaque(d) + k * down;
            auto& y = v[Keep ? k : 0];
            if (!Keep) opaque(raw[k]).template widen<Out>(y);
            Pack<Out, E> results;
#pragma unroll
            for (int e = 0; e < E; ++e) {
                const C shifted = Keep ? y[e] : y[e] - base[e];
                results.v[e] = convert<Out>(p.log ? shifted + scale[e] : (Keep ? shifted : M::exp(shifted)) * scale[e]);
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

#define EXPORT(IN, OUT, NAME, E, K)                                                       \
    extern "C" __global__ void __launch_bounds__((BOUND<IN, OUT>), 1)                     \
        softmax_register_tile##E##_##NAME(const __grid_constant__ RegisterTileParams p) { \
        softmax_register_tile<IN, OUT, E, K>(p);                                          \
    }
// 128 bytes per thread, 32 of halves.
EXPORT(f32, f32, f32, 4, 8)
EXPORT(f16, f16, f16, 1, 16)
EXPORT(bf16, bf16, bf16, 1, 16)
EXPORT(f16, f32, f16_f32, 1, 16)
EXPORT(bf16, f32, bf16_f32, 1, 16)
EXPORT(f64, f64, f64, 2, 4)
EXPORT(f64, f64, f64, 1, 8)
