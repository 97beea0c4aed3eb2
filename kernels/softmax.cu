// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax of rows whose elements are contiguous. x is rounded to the result's dtype; all arithmetic is
// in float32 (float64 for float64) and rounded once: exp(x - max) / sum, or x - max - log(sum). x is read once in
// vectors of 16 bytes and the result is written once; only `online` reads part of a row twice.
//
// Variants, chosen by row length in src/cuda/plan/softmax/choose/mod.rs:
//   warpVxR   R rows at a time in the registers of a group of 1 to 32 lanes, V vectors a lane and row.
//   block     one row in the registers of a block of 32 to 1024 threads.
//   pipeline  persistent blocks, each with `stages` rows in shared memory (cp.async). A thread reads only its own
//             copies, so that only the reduction has a barrier. _core.force_softmax("pipeline", 2) forces the depth.
//   online    any length, two passes; the vectors that fit stay in shared memory between them.
// A row may begin anywhere: a lane each has the elements before and behind its whole vectors. Where x and the result
// are aligned differently, warp and block store by element, and the lanes of the others complete each other's vectors.
// Measurements: docs/measurements/softmax.md

#include "async_copy.cuh"
#include "row_views.cuh"

constexpr int WARP_THREADS = 64;

// ---------------------------------------------------------------------------------- rows in registers

struct LaneGroup {
    static constexpr bool WARPS = false;  // whether the lanes are whole warps
    int lanes;
    template <int R, class C, class Op> __device__ __forceinline__ void reduce(C (&v)[R], Op op, C*) const {
        reduce_lanes(v, op, lanes);
    }
};
struct BlockGroup {
    static constexpr bool WARPS = true;
    template <class C, class Op> __device__ __forceinline__ void reduce(C (&v)[1], Op op, C* scratch) const {
        v[0] = reduce_block(v[0], op, Op::template identity<C>(), scratch);
    }
};

// Whether it is log_softmax, where that is known when a kernel is compiled; else it is a bool.
template <bool Log> struct Known {
    __device__ __forceinline__ operator bool() const { return Log; }
};

// The sum of the exponentials, which replace the values, times a common factor; with Log it is 1, and v - base replaces
// them.
template <class Out, bool Log, bool Single, int V, int E, class C>
__device__ __forceinline__ C sum_of_exp(C (&v)[V][E], C& single, C base) {
    const Exponential<Out> exponential(base);
    C sum = 0;
    const auto accumulate = [&](C& x) {
        const C shifted = x - base, e = Log ? Math<Out>::exp(shifted) : exponential(x);
        sum += e;
        x = Log ? shifted : e;
    };
#pragma unroll
    for (int i = 0; i < V; ++i) {
#pragma unroll
        for (int k = 0; k < E; ++k) accumulate(v[i][k]);
    }
    if (Single) accumulate(single);
    return sum;
}

// R rows, row, row + row_step, ..., with V vectors of each per thread; by thread `member` of `members`.
template <class Row, class In, class Out, int V, int R, class Group, int Rank, class Log>
__device__ __forceinline__ void rows_in_registers(const SoftmaxParams<Rank>& p, Group group, uint64_t row,
                                                  uint64_t row_step, int member, int members,
                                                  typename Math<Out>::C* scratch, Log log) {
    using C = typename Math<Out>::C;
    constexpr int E = lanes_of<In>;
    Vector raw[R][V];
    In raw_single[R];
    int single_at[R];  // index of the thread's single, if it has one
    Row rows[R];
    C v[R][V][E], single[R];

#pragma unroll
    for (int r = 0; r < R; ++r) {
        rows[r] = Row(p, row + r * row_step);
#pragma unroll
        for (int i = 0; i < V; ++i) raw[r][i] = rows[r].load(member + i * members);
        if constexpr (Row::SINGLES) {
            single_at[r] = rows[r].single(member);
            raw_single[r] = rows[r].load_single(single_at[r]);
        }
    }
    C max[R], sum[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        max[r] = single[r] = -infinity<C>();
        if constexpr (Row::SINGLES) max[r] = single[r] = widen<Out>(raw_single[r]);
#pragma unroll
        for (int i = 0; i < V; ++i) {
            widen_vector<In, Out>(raw[r][i], v[r][i]);
#pragma unroll
            for (int k = 0; k < E; ++k) max[r] = larger(max[r], v[r][i][k]);
        }
    }
    group.reduce(max, Max(), scratch);
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const C base = Partial<C>{max[r], 0}.base();
        sum[r] = log ? sum_of_exp<Out, true, Row::SINGLES>(v[r], single[r], base)
                     : sum_of_exp<Out, false, Row::SINGLES>(v[r], single[r], base);
    }
    group.reduce(sum, Sum(), scratch + 32);
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const Normalizer<Out> normalizer(Partial<C>{max[r], sum[r]}, log);
        if constexpr (Row::SINGLES) rows[r].store_single(single_at[r], normalizer.scaled(single[r]));
#pragma unroll
        for (int i = 0; i < V; ++i) {
            Pack<Out, E> pack;
#pragma unroll
            for (int k = 0; k < E; ++k) pack.v[k] = normalizer.scaled(v[r][i][k]);
            if constexpr (Row::SINGLES) {
                rows[r].template store<Group::WARPS>(member + i * members, pack, p.out_access);
            } else {
                rows[r].store(member + i * members, pack);
            }
        }
    }
}

template <class In, class Out, int V, int R> __device__ __forceinline__ void softmax_warp(
    const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    const int lanes = 1 << p.lane_bits, groups = WARP_THREADS >> p.lane_bits;
    const int group = threadIdx.x >> p.lane_bits, lane = threadIdx.x & (lanes - 1);
    const auto all = [&](auto row, auto log) {
        for (uint64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
            const uint64_t first = tile * (groups * R) + group;
            rows_in_registers<decltype(row), In, Out, V, R>(p, LaneGroup{lanes}, first, groups, lane, lanes, nullptr,
                                                            log);
        }
    };
    // Apart: most of a short row's time is instructions, of which either needs fewer than both.
    const auto of_kind = [&](auto log) { p.x_access ? all(WholeRow<In, Out>(), log) : all(Body<In, Out>(), log); };
    p.log ? of_kind(Known<true>()) : of_kind(Known<false>());
}

template <class In, class Out, int V> __device__ __forceinline__ void softmax_block(
    const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    __shared__ typename Math<Out>::C scratch[64];
    for (uint64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
        rows_in_registers<Body<In, Out>, In, Out, V, 1>(p, BlockGroup{}, row, 0, threadIdx.x, blockDim.x, scratch,
                                                        p.log != 0);
    }
}

// ------------------------------------------------------------------------------ rows in shared memory

// Copies a vector. The first and the last of a row include elements around the row, except at an edge of the tensor.
template <class In, class Out>
__device__ __forceinline__ void fetch_vector(const Row<In, Out, int>& row, int vector, bool edge, uint4* to) {
    const int i = row.first(vector);
    if (row.whole(i) || (i < row.length && !edge)) {
        copy_async(to, row.x + i);
    } else {
        store_shared_vector(to, row.load_elements(i));
    }
}

template <class In, class Out> __device__ __forceinline__ void softmax_pipeline(const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    constexpr int E = lanes_of<In>;
    extern __shared__ uint4 shared[];  // [stage][vector of a thread][thread]
    __shared__ Partial<C> scratch[2][32];
    const uint32_t stage_vectors = p.per_thread * blockDim.x;
    const auto buffer = [&](uint32_t stage, uint32_t i) {
        return shared + stage * stage_vectors + i * blockDim.x + threadIdx.x;
    };
    const auto vector = [&](uint32_t i) { return static_cast<int>(i * blockDim.x + threadIdx.x); };

    for (uint32_t stage = 0; stage < p.stages; ++stage) {
        const uint64_t coming = blockIdx.x + static_cast<uint64_t>(stage) * gridDim.x;
        if (coming < p.rows) {
            const auto row = row_at<In, Out, int>(p, coming);
            const bool edge = row.at_edge(p.x_low, p.x_high);
            for (uint32_t i = 0; i < p.per_thread; ++i) fetch_vector(row, vector(i), edge, buffer(stage, i));
        }
        commit_copies();
    }
    uint32_t stage = 0, parity = 0;
    for (uint64_t index = blockIdx.x; index < p.rows; index += gridDim.x) {
        wait_for_copies(p.stages - 1);
        const auto row = row_at<In, Out, int>(p, index);
        if (row.offset != 0 || row.length % E != 0) {
            // Elements around the row become -inf.
            for (int outermost : {0, (row.length + row.offset - 1) / E}) {
                const uint32_t i = outermost / blockDim.x;
                if (outermost % blockDim.x != threadIdx.x) continue;
                Vector raw = load_shared_vector(buffer(stage, i));
                row.complete(outermost, false, raw);
                store_shared_vector(buffer(stage, i), raw);
            }
        }
        auto partial = Partial<C>::empty();
        C v[E];
        for (uint32_t i = 0; i < p.per_thread; ++i) {
            widen_vector<In, Out>(load_shared_vector(buffer(stage, i)), v);
            accumulate<Out>(partial, v);
        }
        partial = reduce_block(partial, Merge<M>(), Partial<C>::empty(), scratch[parity]);
        const Normalizer<Out> normalizer(partial, p.log);

        const uint64_t coming = index + static_cast<uint64_t>(p.stages) * gridDim.x;
        const auto next = row_at<In, Out, int>(p, coming);
        const bool edge = next.at_edge(p.x_low, p.x_high);
        for (uint32_t i = 0; i < p.per_thread; ++i) {
            widen_vector<In, Out>(load_shared_vector(buffer(stage, i)), v);
            row.store_across_lanes(vector(i), normalize_pack(normalizer, v), p.out_access);
            if (coming < p.rows) fetch_vector(next, vector(i), edge, buffer(stage, i));
        }
        commit_copies();
        stage = stage + 1 == p.stages ? 0 : stage + 1;
        parity ^= 1;
    }
}

template <class In, class Out> __device__ __forceinline__ void softmax_online(const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    constexpr int E = lanes_of<In>, BATCH = 4;
    extern __shared__ uint4 shared[];  // [vector of a thread][thread]
    __shared__ Partial<C> scratch[2][32];
    uint32_t parity = 0;
    for (uint64_t index = blockIdx.x; index < p.rows; index += gridDim.x) {
        const auto row = row_at<In, Out, int64_t>(p, index);
        const int64_t vectors = (p.length + row.offset + E - 1) / E;
        const int64_t rounds = (vectors + blockDim.x - 1) / blockDim.x;  // of one vector per thread
        auto partial = Partial<C>::empty();
        for (int64_t round = 0; round < rounds; round += BATCH) {
            Vector raw[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; ++b) raw[b] = row.load((round + b) * blockDim.x + threadIdx.x);
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                if (round + b < p.per_thread)
                    store_shared_vector(shared + (round + b) * blockDim.x + threadIdx.x, raw[b]);
                C v[E];
                widen_vector<In, Out>(raw[b], v);
                accumulate<Out>(partial, v);
            }
        }
        partial = reduce_block(partial, Merge<M>(), Partial<C>::empty(), scratch[parity]);
        parity ^= 1;
        const Normalizer<Out> normalizer(partial, p.log);
        // Backwards: the vectors read last are still in the caches.
        for (int64_t round = (rounds - 1) / BATCH * BATCH; round >= 0; round -= BATCH) {
            Vector raw[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                const int64_t vector = (round + b) * blockDim.x + threadIdx.x;
                raw[b] = round + b < p.per_thread ? load_shared_vector(shared + vector) : row.load(vector);
            }
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                C v[E];
                widen_vector<In, Out>(raw[b], v);
                row.store_across_lanes((round + b) * blockDim.x + threadIdx.x, normalize_pack(normalizer, v),
                                       p.out_access);
            }
        }
    }
}

// -------------------------------------------------------------------------------------------- exported

#define KERNEL(THREADS, NAME) \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ SoftmaxParams<INLINE_RANK> p)

// 32 values per thread, 16 of float64, fit the registers.
#define EXPORT(IN, OUT, NAME, BLOCK_VECTORS)                                         \
    KERNEL(WARP_THREADS, softmax_warp1x2_##NAME) { softmax_warp<IN, OUT, 1, 2>(p); } \
    KERNEL(WARP_THREADS, softmax_warp2x1_##NAME) { softmax_warp<IN, OUT, 2, 1>(p); } \
    KERNEL(WARP_THREADS, softmax_warp4x1_##NAME) { softmax_warp<IN, OUT, 4, 1>(p); } \
    KERNEL(1024, softmax_block_##NAME) { softmax_block<IN, OUT, BLOCK_VECTORS>(p); } \
    KERNEL(1024, softmax_pipeline_##NAME) { softmax_pipeline<IN, OUT>(p); }          \
    KERNEL(1024, softmax_online_##NAME) { softmax_online<IN, OUT>(p); }

EXPORT(f16, f16, f16, 4)
EXPORT(bf16, bf16, bf16, 4)
EXPORT(f32, f32, f32, 8)
EXPORT(f64, f64, f64, 4)
EXPORT(f16, f32, f16_f32, 4)
EXPORT(bf16, f32, bf16_f32, 4)
