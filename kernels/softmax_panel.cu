// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax over a dimension that is not the last: columns, whose neighbours lie side by side, in words of
// 4 or 8 bytes. The arithmetic is that of softmax.cu.
//
// Per element: one exponential, two of halves; one read and one write (leave and find: two reads).
//
// A panel is a line of 128 bytes of neighbouring columns wide, or half of it, or as wide as a short row, and as long as
// the columns are. It waits in the shared memory of a block, or of the 2 to 16 blocks of a cluster (sm_90), each with a
// slice of its rows, while it is computed. Threads stand side by side and below each other on the words of a slice, so that
// a warp's accesses of shared and of global memory are contiguous whatever the width; each goes over its own words for
// maximum and sum while the second half of the slice still loads, and once more for the results. Partials (maximum, sum) of
// a column are few: of the lanes that share it, then of the warps, then of the cluster's blocks by distributed shared
// memory. Slices in one piece of memory are asked for by one thread (cp.async.bulk), others in pieces of up to 16 bytes,
// with the 256 bytes around them for L2, for neighbours.
//
// Variants, as chosen in src/cuda/plan/softmax/panel.rs:
//   panelB         words of B bytes.
//   panelB_leave,  for panels that no cluster holds: slices first leave their partials in memory from the caller's
//   panelB_find    allocator, and a second launch, which may begin beside the first, finds them there.
// Columns of an odd number of halves, of float64, and short ones of float32 are those of softmax_tile.cu.
//
// Measured on an H200, cold L2, share of a copy of the same bytes, bf16 and f32, beside what was chosen before (registers,
// softmax_tile.cu): 8192x8192 dim 0 0.71, 0.81 (0.56, 0.63); 64x4096x64 dim 1 0.71, 0.79 (0.59, 0.46); 256x64x4096 dim 1
// 0.94, 0.98 (0.76, 0.94); 2048x512x8 dim 1 0.78, 0.92 (0.75, 0.91); 128x1000x100 dim 1 0.74, 0.75 (0.41, 0.55); 4096x4096x4
// dim 1 0.92, 0.94 (0.47, 0.79); 300x5000x34 dim 1 0.74, 0.79 (0.35, 0.23); 32768x4096 dim 0 0.56, 0.59 (0.35, 0.39). By two
// launches: 65536x16 dim 0, of 64 and 128 threads instead of the 256 there are now, 0.40, 0.47 (0.33, 0.40); 200000x64 dim 0
// 0.50, 0.43 (0.10, 0.11); where a cluster would do, 8192x8192 0.54, 0.56, still ahead of column in softmax_strided.cu (0.35,
// 0.34).
// What limits it: of 8192x8192 in bf16, staged and stored without any arithmetic or exchange, panels 64 bytes wide reach
// 0.84 (0.75 without the 256 bytes around), 128 bytes 0.88, 256 bytes 0.94; of 33000 cycles of a block in an earlier form, 12000
// were loading, 7000 maximum and sum, 8000 the exchange, half of that waiting for the slowest block, 6000 the results. 34 MB
// and less are done in little more than one round of blocks, which then all load and all compute at a time.
// Rejected, each measured beside it: four words of 4 bytes at once between shared memory and registers, and partials merged
// by lanes of a warp instead of a thread a column, together 0.65 of 8192x8192 bf16 instead of 0.69; 512 threads to 64 KB,
// 0.60; four chunks instead of two, 0.64 of 64x4096x64 bf16 instead of 0.71; prefetching another cluster's panel to L2, 0.60
// of 8192x8192 f32 instead of 0.70; cp.async in pieces of 16 bytes where one bulk copy would do, 0.76 of 2048x512x8 bf16
// instead of 0.80.
// Counters (ncu, cold, bf16 and f32) of 8192x8192 dim 0: DRAM at 56 and 68 of 100 (a copy reaches 85), L2 at 35 and 39,
// exponentials' unit at 46 and 20, 56 and 59 of 100 cycles issue, by 22 warps with 9.7 and 9.2 cycles from one
// instruction of a warp to its next, of which it waits 2.3 for copies and partials and 2.4 and 1.3 for shared memory;
// 0.89 and 0.85 of all multiprocessors are busy, some never: clusters of eight leave 8 of 132 out. 64x4096x64 dim 1: DRAM
// 34 and 56, 1.3 and 2.6 rounds of blocks; 2048x512x8: 28 and 44, 0.7 and 1.2 rounds; 128x1000x100: 32 and 44, 1.0 and
// 1.9. So no unit is at its limit: latencies of phases add up, and there are few rounds to hide them in.
// Also rejected: blocks that stay, in teams of 16 to 132 which exchange partials through memory or in clusters of 1 to
// 16, each with a ring of 2 to 12 slices that the copy engine fills (tensor maps, 64 to 512 bytes wide) and with the next
// slice's maximum and sum before the last one's results: 8192x8192 bf16 0.67 at best, of 47 combinations, 64x4096x64
// 0.64, 128x1000x96 0.65; blocks of a team wait for its slowest one at every slice. Rows as bulk copies take 57 cycles
// each, whatever their size. Partials sent to a cluster by a bulk copy each instead of by lanes: the same. Panels of 8
// and 16 bytes in clusters of 16: 65536x16 dim 0 0.36, 0.38 (0.45), 131072x16 0.31 (0.49).
#include "panel.cuh"
#include "ptx/cluster.cuh"
#include "ptx/grid.cuh"

constexpr int THREADS = 256;  // at most
// Blocks that share a multiprocessor's registers.
#if __CUDA_ARCH__ == 900
constexpr int SHARING = 3;
#else
constexpr int SHARING = 2;
#endif

// What partials part, part + parts, ... of `count` come to, `pitch` apart.
template <class M, class C> __device__ __forceinline__ Partial<C> merge_column(const Partial<C>* from, int pitch,
                                                                               int part, int parts, int count) {
    constexpr int N = 8;  // at once: their exponentials do not wait for each other
    auto all = Partial<C>::empty();
#pragma unroll 1
    for (int i = part; i < count; i += N * parts) {
        Partial<C> some[N], next = all;
#pragma unroll
        for (int k = 0; k < N; ++k) {
            const int at = i + k * parts;
            some[k] = Partial<C>::empty();
            if (at < count) some[k] = from[at * pitch];
        }
#pragma unroll
        for (int k = 0; k < N; ++k) next.max = larger(next.max, some[k].max);
        next.sum *= M::exp(all.max - next.base());
#pragma unroll
        for (int k = 0; k < N; ++k) next.sum += some[k].sum * M::exp(some[k].max - next.base());
        all = next;
    }
    return all;
}

// Whose partials make a column whole: the blocks' of a cluster; or those that one launch leaves and the next one finds.
enum class Share { cluster, leave, find };

template <class In, class Out, int BYTES, Share S> __device__ __forceinline__ void softmax_panel(const PanelParams& p) {
    if (S != Share::find) ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    using W = Word<In, Out, BYTES>;
    constexpr int E = W::E, N = 32 / BYTES;  // words under way between shared memory and registers
    // Exponentials take the values' place where they are of its size. Halves are exponentiated twice.
    constexpr bool Keep = same_type<In, C> && S != Share::find;
    extern __shared__ uint4 shared[];
    __shared__ uint64_t mailbox_state, bars[CHUNKS];
    const ptx::Mailbox mailbox = {&mailbox_state};
    const int blocks = S == Share::cluster ? ptx::cluster_blocks() : 1;
    const int words = p.words, wide = words * E;
    const int down = blockDim.x / words, d = threadIdx.x / words, a = threadIdx.x - d * words;
    const bool lanes = words < 32 && 32 % words == 0;  // lanes of a warp share columns, all alike
    const int groups = lanes ? blockDim.x / 32 : down;
    const bool alone = groups == 1 && blocks == 1 && S == Share::cluster;
    auto* of_groups = reinterpret_cast<Partial<C>*>(shared + (p.slice * words * BYTES + 15) / 16);  // [groups][wide]
    auto* of_parts =
        of_groups + (S == Share::find || alone ? 0 : groups) * wide;  // [parts][wide], if there are several
    auto* of_blocks = of_parts + (p.parts > 1 ? p.parts : 0) * wide;  // [blocks][wide], likewise
    auto* of_columns = of_blocks + (blocks > 1 ? blocks : 0) * wide;  // [wide]

    if (S == Share::leave) ptx::let_next_grid_begin();
    if (blocks > 1) {
        mailbox.open();
        if (threadIdx.x == 0) mailbox.expect(blocks * wide * sizeof(Partial<C>));
        ptx::cluster_arrive();
    }
    const uint32_t panel = blockIdx.x / p.slices, rank = blockIdx.x - panel * p.slices;
    const auto o = locate(p.dims, p.rank, static_cast<uint64_t>(panel));
    const int64_t begin = static_cast<int64_t>(rank) * p.slice, left = static_cast<int64_t>(p.length) - begin;
    const int64_t beside = p.columns - o.inner * wide;
    Slice slice;
    slice.x = reinterpret_cast<const char*>(reinterpret_cast<const In*>(p.x) + o.at[0] + begin * p.x_stride);
    slice.x_pitch = p.x_stride * static_cast<int>(sizeof(In));
    slice.rows = left < 0 ? 0 : left < p.slice ? left : p.slice;
    slice.row_bytes = words * BYTES;
    slice.wanted = (beside < wide ? beside : wide) * sizeof(In);
    // In words of a thread: whole batches, so that chunks in one piece begin at multiples of 16 bytes too.
    const int chunk = ((slice.rows + down - 1) / down + CHUNKS * N - 1) / (CHUNKS * N) * N;
    slice.chunk = chunk * down;
    const bool bulk = stage(p, slice, reinterpret_cast<char*>(shared), bars);

    const bool inside = d < down && a * BYTES < slice.wanted;
    const int step = down * words, count = inside && d < slice.rows ? (slice.rows - d + down - 1) / down : 0;
    W* const own = reinterpret_cast<W*>(shared) + threadIdx.x;
    const auto load = [&](auto& w, int k) {
#pragma unroll
        for (int u = 0; u < static_cast<int>(sizeof(w) / sizeof(W)); ++u) w[u] = own[(k + u) * step];
    };
    Partial<C> mine[E];
    C tops[CHUNKS][E];  // the largest up to each chunk: bases of the exponentials that were kept
#pragma unroll
    for (int e = 0; e < E; ++e) mine[e] = Partial<C>::empty();
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
        if (c == 0 || !bulk) {
            wait_for_copies(bulk ? 0 : CHUNKS - 1 - c);
            __syncthreads();
        }
        if (BULK && bulk) ptx::mbarrier_wait(static_cast<uint32_t>(__cvta_generic_to_shared(bars + c)), 0);
        if (S == Share::find) continue;
        const int first = c * chunk, end = c + 1 < CHUNKS && first + chunk < count ? first + chunk : count;
        W largest = W::lowest();
        in_batches<N>(first, end, [&](auto n, int k) {
            W w[decltype(n)::value];
            load(w, k);
#pragma unroll
            for (auto& each : w) largest.rise_to(each);
        });
        C seen[E], base[E];
        largest.widen(seen);
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
#pragma unroll
            for (auto& each : w) {
                C v[E];
                each.widen(v);
#pragma unroll
                for (int e = 0; e < E; ++e) {
                    const C shifted = v[e] - base[e], exponential = M::exp(shifted);
                    mine[e].sum += exponential;
                    v[e] = p.log ? shifted : exponential;
                }
                if constexpr (Keep) __builtin_memcpy(&each, v, sizeof(each));
            }
            if constexpr (Keep) {
#pragma unroll
                for (int u = 0; u < decltype(n)::value; ++u) own[(k + u) * step] = w[u];
            }
        });
    }
    if (lanes && S != Share::find) {
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
        auto* left_behind = reinterpret_cast<Partial<C>*>(p.partials) + static_cast<uint64_t>(panel) * p.slices * wide;
        const Partial<C>* merged = S == Share::find ? left_behind : of_groups;
        int merging = S == Share::find ? p.slices : groups;
        if (S == Share::find) {
            // The launch before has written nothing but partials, so that x could be asked for already; but where the result
            // is x, it must have read it.
            ptx::wait_for_grid_before();
        } else if (lanes ? threadIdx.x % 32 < words : d < down) {
            const int group = lanes ? threadIdx.x / 32 : d;
#pragma unroll
            for (int e = 0; e < E; ++e) of_groups[group * wide + e * words + a] = mine[e];
        }
        __syncthreads();
        if (p.parts > 1) {
            for (int i = threadIdx.x; i < static_cast<int>(p.parts) * wide; i += blockDim.x) {
                const int part = i / wide, column = i - part * wide;
                of_parts[i] = merge_column<M>(merged + column, wide, part, p.parts, merging);
            }
            __syncthreads();
            merged = of_parts;
            merging = p.parts;
        }
        if (blocks > 1) ptx::cluster_wait();  // until the others have announced what they expect
        for (int column = threadIdx.x; column < wide; column += blockDim.x) {
            const auto all = merge_column<M>(merged + column, wide, 0, 1, merging);
            if (S == Share::leave) left_behind[rank * wide + column] = all;
            if (blocks == 1) of_columns[column] = all;
            uint32_t sent[sizeof(all) / 4];
            __builtin_memcpy(sent, &all, sizeof(all));
#pragma unroll 4
            for (int b = 0; b < (blocks > 1 ? blocks : 0); ++b) {
                mailbox.send<sizeof(all) / 4>(of_blocks + rank * wide + column, b, sent);
            }
        }
        if (S == Share::leave) return;
        if (blocks > 1) {
            mailbox.wait(0);
            for (int column = threadIdx.x; column < wide; column += blockDim.x) {
                of_columns[column] = merge_column<M>(of_blocks + column, wide, 0, 1, blocks);
            }
        }
        __syncthreads();
    }

    Out* out = reinterpret_cast<Out*>(p.out) + o.at[1] + (begin + d) * p.out_stride + a * E;
    const int64_t out_step = down * p.out_stride;
    constexpr int PARTS = Keep ? CHUNKS : 1;
#pragma unroll
    for (int c = 0; c < PARTS; ++c) {
        const int first = c * chunk, end = c + 1 < PARTS && first + chunk < count ? first + chunk : count;
        C base[E], last[E];  // the last operand: a factor, or a term of the logarithm
#pragma unroll
        for (int e = 0; e < E; ++e) {
            Partial<C> row = mine[e];
            if (!alone && inside) row = of_columns[e * words + a];
            Finish<Out> finish(row, p.log);
            if (Keep) finish.rebase({tops[c][e], 0});
            base[e] = finish.base;
            last[e] = p.log ? finish.term : finish.factor;
        }
        const auto put = [&](auto result) {
            in_batches<N>(first, end, [&](auto n, int k) {
                W w[decltype(n)::value];
                load(w, k);
#pragma unroll
                for (const auto& each : w) {
                    C v[E];
                    each.widen(v);
                    Pack<Out, E> results;
#pragma unroll
                    for (int e = 0; e < E; ++e) results.v[e] = convert<Out>(result(v[e], base[e], last[e]));
                    store_pack(out, results);
                    out += out_step;
                }
            });
        };
        if (p.log) {
            put([](C v, C base, C term) { return (Keep ? v : v - base) + term; });
        } else {
            put([](C v, C base, C factor) { return (Keep ? v : M::exp(v - base)) * factor; });
        }
    }
}

#define KERNEL(NAME) \
    extern "C" __global__ void __launch_bounds__(THREADS, SHARING) NAME(const __grid_constant__ PanelParams p)
#define EXPORT(IN, OUT, NAME, BYTES)                                                                \
    KERNEL(softmax_panel##BYTES##_##NAME) { softmax_panel<IN, OUT, BYTES, Share::cluster>(p); }     \
    KERNEL(softmax_panel##BYTES##_leave_##NAME) { softmax_panel<IN, OUT, BYTES, Share::leave>(p); } \
    KERNEL(softmax_panel##BYTES##_find_##NAME) { softmax_panel<IN, OUT, BYTES, Share::find>(p); }
#define EXPORTS(IN, OUT, NAME) EXPORT(IN, OUT, NAME, 4) EXPORT(IN, OUT, NAME, 8)

EXPORTS(f16, f16, f16)
EXPORTS(bf16, bf16, bf16)
EXPORTS(f32, f32, f32)
EXPORTS(f16, f32, f16_f32)
EXPORTS(bf16, f32, bf16_f32)
