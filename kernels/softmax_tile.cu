// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax over a dimension that is not the last, of columns that softmax_panel.cu's words of 4 bytes do not
// fit, of float64, and of short columns of float32. Their neighbours lie side by side. The arithmetic is that of softmax.cu.
//
// Per element: one exponential, two with the halves, plus what the merging of partial columns takes; one read and one
// write (leave and find: two reads).
//
// A tile is some accesses of E elements wide, and as long as the columns. Its threads stand side by side and below each
// other, each with K rows in registers; they merge maxima and sums through shared memory. A tile too long for a block
// is that of a cluster of up to 16 (sm_90), which exchange theirs by distributed shared memory.
//
// Variants, as chosen in src/cuda/plan/softmax/tile.rs:
//   tileE        one half; four of float32; two of float64 where strides, addresses and the number of columns allow it,
//                else one: neighbouring threads touch neighbouring memory, whatever the inner size. Tiles are a line of 128
//                bytes wide, narrower if that lets them fit a cluster, wider if columns are short; rows of up to 512 bytes
//                are not divided, so that a tile is one piece of memory.
//   tileE_leave, for tiles so few that clusters would leave most of the device idle: slices of a tile first leave
//   tileE_find   their partials in memory from the caller's allocator, and a second launch finds them there.
// What fits none of these is done by softmax_strided.cu in two passes.
//
// Measured on an H200, share of a copy of the same bytes, float32, beside softmax_panel.cu: 2048x8x4096 dim 1 0.80 (0.67),
// 65536x16x64 dim 1 0.94 (0.62), 1024x16x4096 dim 1 0.88 (0.95), 8192x8192 dim 0 0.63 (0.81).
#include "ptx/cluster.cuh"
#include "softmax.cuh"

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

// E neighbouring elements as they come from memory.
template <class T, int E> struct Access {
    static constexpr int BYTES = E * sizeof(T), WORDS = BYTES < 4 ? 1 : BYTES / 4;
    uint32_t word[WORDS];

    static __device__ __forceinline__ Access load(const T* p, bool wanted) {
        Pack<T, WORDS * 4 / sizeof(T)> empty;
#pragma unroll
        for (auto& v : empty.v) v = convert<T>(-infinity<float>());
        Access access;
        __builtin_memcpy(&access, &empty, sizeof(access));
        ptx::load_global_if<BYTES>(wanted, p, access.word);
        return access;
    }
    template <class Out> __device__ __forceinline__ void widen(typename Math<Out>::C (&x)[E]) const {
        if constexpr (same_type<T, bf16> && same_type<typename Math<Out>::C, float>) {
#pragma unroll
            for (int k = 0; k < E; ++k) {
                x[k] = __uint_as_float(k % 2 ? word[k / 2] & 0xffff0000u : word[k / 2] << 16);
            }
        } else {
            Pack<T, E> pack;
            __builtin_memcpy(&pack, word, sizeof(pack));
#pragma unroll
            for (int k = 0; k < E; ++k) x[k] = ::widen<Out>(pack.v[k]);
        }
    }
};
template <class T, int E> __device__ __forceinline__ Access<T, E> forget(Access<T, E> access) {
#pragma unroll
    for (auto& word : access.word) word = forget(word);
    return access;
}

// What partials part, part + parts, ... of `count` come to, `pitch` apart.
template <class M, class C> __device__ __forceinline__ Partial<C> merge_column(const Partial<C>* from, uint32_t pitch,
                                                                               uint32_t part, uint32_t parts,
                                                                               uint32_t count) {
    auto all = Partial<C>::empty();
#pragma unroll 4
    for (uint32_t i = part; i < count; i += parts) all.max = larger(all.max, from[i * pitch].max);
    const C base = all.base();
#pragma unroll 4
    for (uint32_t i = part; i < count; i += parts) all.sum += from[i * pitch].sum * M::exp(from[i * pitch].max - base);
    return all;
}

// Whose partials make a column whole: the blocks' of a cluster; or those that one launch leaves and the next one finds.
enum class Share { cluster, leave, find };

// E columns of K rows per thread.
template <class In, class Out, int E, int K, Share S>
__device__ __forceinline__ void softmax_tile(const TileParams& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    // Halves stay as they were loaded, at half the registers; the others make place for their exponentials.
    constexpr bool Keep = !is_half<In>;
    extern __shared__ uint4 shared[];
    __shared__ uint64_t mailbox_state;
    const ptx::Mailbox mailbox = {&mailbox_state};
    const uint32_t blocks = S == Share::cluster ? ptx::cluster_blocks() : 1;
    const uint32_t wide = p.across * E, pitch = wide | 1;  // odd: no bank conflicts among threads below each other
    const int down = blockDim.x / p.across, d = threadIdx.x / p.across, a = threadIdx.x - d * p.across;
    auto* of_threads = reinterpret_cast<Partial<C>*>(shared);  // [down][pitch]
    auto* of_parts = of_threads + down * pitch;                // [parts][wide]
    auto* of_blocks = of_parts + p.parts * wide;               // [blocks][wide]
    auto* of_columns = of_blocks + blocks * wide;              // [wide]

    if (blocks > 1) mailbox.open();
    uint32_t parity = 0;
    for (uint64_t index = blockIdx.x; index < p.tiles * p.slices; index += gridDim.x) {
        const uint64_t tile = index / p.slices;
        const uint32_t rank = index - tile * p.slices;
        if (blocks > 1) {
            if (threadIdx.x == 0) mailbox.expect(blocks * wide * sizeof(Partial<C>));
            ptx::cluster_arrive();
        }
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
            raw[k] = Access<In, E>::load(x + row * p.x_stride, row < rows);
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

        // First what the threads of a column have, then what the blocks of the cluster have.
        auto* left_behind = reinterpret_cast<Partial<C>*>(p.partials) + tile * p.slices * wide;
        if (S != Share::find && d < down) {
#pragma unroll
            for (int e = 0; e < E; ++e) of_threads[d * pitch + e * p.across + a] = mine[e];
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < p.parts * wide; i += blockDim.x) {
            const uint32_t part = i / wide, column = i - part * wide;
            of_parts[i] = S == Share::find ? merge_column<M>(left_behind + column, wide, part, p.parts, p.slices)
                                           : merge_column<M>(of_threads + column, pitch, part, p.parts, down);
        }
        __syncthreads();
        if (blocks > 1) ptx::cluster_wait();  // until the others have announced what they expect
        for (uint32_t column = threadIdx.x; column < wide; column += blockDim.x) {
            const auto all = merge_column<M>(of_parts + column, wide, 0, 1, p.parts);
            of_columns[column] = all;
            if (S == Share::leave) left_behind[rank * wide + column] = all;
            uint32_t words[sizeof(all) / 4];
            __builtin_memcpy(words, &all, sizeof(all));
            for (uint32_t b = 0; blocks > 1 && b < blocks; ++b) {
                mailbox.send<sizeof(all) / 4>(of_blocks + rank * wide + column, b, words);
            }
        }
        if (S == Share::leave) continue;
        if (blocks > 1) {
            mailbox.wait(parity);
            for (uint32_t column = threadIdx.x; column < wide; column += blockDim.x) {
                of_columns[column] = merge_column<M>(of_blocks + column, wide, 0, 1, blocks);
            }
        }
        __syncthreads();
        parity ^= 1;

        C base[E], last[E];  // the last operand: a factor, or a term of the logarithm
        if (d < down) {
#pragma unroll
            for (int e = 0; e < E; ++e) {
                Finish<Out> finish(of_columns[e * p.across + a], p.log);
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
#define EXPORT(IN, OUT, NAME, E, K)                                                                   \
    KERNEL(IN, OUT, softmax_tile##E##_##NAME) { softmax_tile<IN, OUT, E, K, Share::cluster>(p); }     \
    KERNEL(IN, OUT, softmax_tile##E##_leave_##NAME) { softmax_tile<IN, OUT, E, K, Share::leave>(p); } \
    KERNEL(IN, OUT, softmax_tile##E##_find_##NAME) { softmax_tile<IN, OUT, E, K, Share::find>(p); }
// 128 bytes per thread, 32 of halves.
KERNEL(f32, f32, softmax_tile4_f32) { softmax_tile<f32, f32, 4, 8, Share::cluster>(p); }
EXPORT(f16, f16, f16, 1, 16)
EXPORT(bf16, bf16, bf16, 1, 16)
EXPORT(f16, f32, f16_f32, 1, 16)
EXPORT(bf16, f32, bf16_f32, 1, 16)
EXPORT(f64, f64, f64, 2, 4)
EXPORT(f64, f64, f64, 1, 8)
