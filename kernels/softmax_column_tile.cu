// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax over a dimension that is not the last: neighbouring columns are contiguous, in words of 4 or
// 8 bytes. The arithmetic is that of softmax.cu: one exponential an element, two for halves.
//
// A column tile is 128 or 64 bytes wide, or as wide as a short row, and as long as the columns. It lies in the shared
// memory of a block, or of the 2 to 16 blocks of a cluster (sm_90), a slice of the rows each. Threads go over words in
// order, so that accesses of a warp are contiguous. A thread computes maximum and sum while the second half loads, then
// the results. Partials go from lanes to warps to the cluster's blocks (distributed shared memory). One thread copies a
// contiguous slice (cp.async.bulk); other slices come in copies of up to 16 bytes with 256 bytes of L2 prefetch.
// column_tileB has words of B bytes. Chosen in src/cuda/plan/softmax/choose/columns.rs.
// Measurements: docs/measurements/softmax_column_tile.md
#include "column_exchange.cuh"
#include "column_tile.cuh"
#include "ptx/grid.cuh"

constexpr int THREADS = 256;  // at most
// Blocks that share a multiprocessor's registers.
#if __CUDA_ARCH__ == 900
constexpr int SHARING = 3;
#else
constexpr int SHARING = 2;
#endif

template <class In, class Out, int BYTES>
__device__ __forceinline__ void softmax_column_tile(const ColumnTileParams& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    using W = Access<In, BYTES / sizeof(In)>;
    constexpr int E = BYTES / sizeof(In), N = 32 / BYTES;  // words that a thread reads at once
    // Exponentials replace the values where they have the same size. Halves are exponentiated twice.
    constexpr bool Keep = same_type<In, C>;
    extern __shared__ uint4 shared[];
    __shared__ uint64_t exchange_barrier, bars[COPY_GROUPS];
    const int words = p.words, width = words * E;
    const int down = blockDim.x / words, d = threadIdx.x / words, a = threadIdx.x - d * words;
    const bool lanes = words < 32 && 32 % words == 0;  // whether lanes of a warp share columns, the same in all warps
    const int groups = lanes ? blockDim.x / 32 : down;
    const ColumnExchange<MergePartials<M, C>, Scope::cluster> exchange(
        &exchange_barrier, shared + (p.slice * words * BYTES + 15) / 16, width, width, groups, p.merge_threads);
    const bool alone = groups == 1 && exchange.cluster.blocks == 1;

    exchange.open_and_announce();
    const uint32_t tile = blockIdx.x / p.slices, rank = blockIdx.x - tile * p.slices;
    const auto o = locate(p.dims, p.rank, static_cast<uint64_t>(tile));
    const int64_t begin = static_cast<int64_t>(rank) * p.slice, left = static_cast<int64_t>(p.length) - begin;
    const int64_t contiguous = p.columns - o.inner * width;
    Slice slice;
    slice.x = reinterpret_cast<const char*>(reinterpret_cast<const In*>(p.x) + o.at[0] + begin * p.x_stride);
    slice.x_pitch = p.x_stride * static_cast<int>(sizeof(In));
    slice.rows = left < 0 ? 0 : left < p.slice ? left : p.slice;
    slice.row_bytes = words * BYTES;
    slice.wanted = (contiguous < width ? contiguous : width) * sizeof(In);
    // Words of a thread in a copy group: a multiple of N, so that the groups of a packed tile begin at multiples of 16
    // bytes.
    const int group_words = ((slice.rows + down - 1) / down + COPY_GROUPS * N - 1) / (COPY_GROUPS * N) * N;
    slice.group_rows = group_words * down;
    const bool bulk = copy_slice(p, slice, reinterpret_cast<char*>(shared), bars);

    const bool inside = d < down && a * BYTES < slice.wanted;
    const int step = down * words, count = inside && d < slice.rows ? (slice.rows - d + down - 1) / down : 0;
    W* const own = reinterpret_cast<W*>(shared) + threadIdx.x;
    const auto load = [&](auto& w, int k) {
#pragma unroll
        for (int u = 0; u < static_cast<int>(sizeof(w) / sizeof(W)); ++u) w[u] = own[(k + u) * step];
    };
    Partial<C> mine[E];
    C tops[COPY_GROUPS][E];  // the largest up to each copy group: bases of the exponentials in shared memory
#pragma unroll
    for (int e = 0; e < E; ++e) mine[e] = Partial<C>::empty();
#pragma unroll
    for (int c = 0; c < COPY_GROUPS; ++c) {
        if (c == 0 || !bulk) {
            wait_for_copies(bulk ? 0 : COPY_GROUPS - 1 - c);
            __syncthreads();
        }
        if (BULK && bulk) ptx::mbarrier_wait(static_cast<uint32_t>(__cvta_generic_to_shared(bars + c)), 0);
        const int first = c * group_words,
                  end = c + 1 < COPY_GROUPS && first + group_words < count ? first + group_words : count;
        W largest = W::lowest();
        in_batches<N>(first, end, [&](auto n, int k) {
            W w[decltype(n)::value];
            load(w, k);
#pragma unroll
            for (auto& each : w) largest.raise_to(each);
        });
        C seen[E], base[E];
        largest.template widen<Out>(seen);
#pragma unroll
        for (int e = 0; e < E; ++e) {
            const C before = mine[e].max;
            tops[c][e] = mine[e].max = larger(before, seen[e]);
            base[e] = mine[e].base();
            if (c > 0) mine[e].sum *= M::exp(before - base[e]);
        }
        in_batches<N>(first, end, [&](auto n, int k) {
            W w[decltype(n)::value];
            load(w, k);
            C sum[E] = {};  // in sums of sums, roundings of equal terms do not add up
#pragma unroll
            for (auto& each : w) {
                C v[E];
                each.template widen<Out>(v);
#pragma unroll
                for (int e = 0; e < E; ++e) {
                    const C shifted = v[e] - base[e], exponential = M::exp(shifted);
                    sum[e] += exponential;
                    v[e] = p.log ? shifted : exponential;
                }
                if constexpr (Keep) __builtin_memcpy(&each, v, sizeof(each));
            }
#pragma unroll
            for (int e = 0; e < E; ++e) mine[e].sum += sum[e];
            if constexpr (Keep) {
#pragma unroll
                for (int u = 0; u < decltype(n)::value; ++u) own[(k + u) * step] = w[u];
            }
        });
    }
    if (lanes) {
#pragma unroll
        for (auto& each : mine) {
            const C own_max = each.max;
#pragma unroll
            for (int s = 16; s > 0; s /= 2) {
                if (s >= words) each.max = larger(each.max, shuffle_xor(each.max, s));
            }
            each.sum *= M::exp(own_max - each.base());
#pragma unroll
            for (int s = 16; s > 0; s /= 2) {
                if (s >= words) each.sum += shuffle_xor(each.sum, s);
            }
        }
    }

    if (!alone) {
        if (lanes ? threadIdx.x % 32 < words : d < down) {
            const int group = lanes ? threadIdx.x / 32 : d;
#pragma unroll
            for (int e = 0; e < E; ++e) exchange.of_groups[group * width + e * words + a] = mine[e];
        }
        exchange.merge(nullptr, p.slices, rank, 0);
    }

    Out* out = reinterpret_cast<Out*>(p.out) + o.at[1] + (begin + d) * p.out_stride + a * E;
    const int64_t out_step = down * p.out_stride;
    constexpr int STORE_GROUPS = Keep ? COPY_GROUPS : 1;
#pragma unroll
    for (int c = 0; c < STORE_GROUPS; ++c) {
        const int first = c * group_words,
                  end = c + 1 < STORE_GROUPS && first + group_words < count ? first + group_words : count;
        C base[E], scale[E];  // a factor, or for log_softmax a term
#pragma unroll
        for (int e = 0; e < E; ++e) {
            Partial<C> row = mine[e];
            if (!alone && inside) row = exchange.of_columns[e * words + a];
            Normalizer<Out> normalizer(row, p.log);
            if (Keep) normalizer.rebase({tops[c][e], 0});
            base[e] = normalizer.base;
            scale[e] = p.log ? normalizer.term : normalizer.factor;
        }
        const auto store = [&](auto result) {
            in_batches<N>(first, end, [&](auto n, int k) {
                W w[decltype(n)::value];
                load(w, k);
#pragma unroll
                for (const auto& each : w) {
                    C v[E];
                    each.template widen<Out>(v);
                    Pack<Out, E> results;
#pragma unroll
                    for (int e = 0; e < E; ++e) results.v[e] = convert<Out>(result(v[e], base[e], scale[e]));
                    store_pack(out, results);
                    out += out_step;
                }
            });
        };
        if (p.log) {
            store([](C v, C base, C term) { return (Keep ? v : v - base) + term; });
        } else {
            store([](C v, C base, C factor) { return (Keep ? v : M::exp(v - base)) * factor; });
        }
    }
}

#define KERNEL(NAME) \
    extern "C" __global__ void __launch_bounds__(THREADS, SHARING) NAME(const __grid_constant__ ColumnTileParams p)
#define EXPORT(IN, OUT, NAME, BYTES) \
    KERNEL(softmax_column_tile##BYTES##_##NAME) { softmax_column_tile<IN, OUT, BYTES>(p); }
#define EXPORTS(IN, OUT, NAME) EXPORT(IN, OUT, NAME, 4) EXPORT(IN, OUT, NAME, 8)

EXPORTS(f16, f16, f16)
EXPORTS(bf16, bf16, bf16)
EXPORTS(f32, f32, f32)
EXPORTS(f16, f32, f16_f32)
EXPORTS(bf16, f32, bf16_f32)
