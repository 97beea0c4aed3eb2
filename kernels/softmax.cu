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
// A row may begin anywhere: single lanes take the elements before and behind its whole vectors. Where x and the result
// are aligned differently, warp and block store by element, and in the others lanes complete each other's vectors.
// Measurements: docs/measurements/softmax.md

#include "async_copy.cuh"
#include "row_views.cuh"

constexpr int WARP_THREADS = 64;

// ------------------------------------------------------------------------------- rows kept in registers

struct LaneGroup {
    static constexpr bool WARPS = false;  // whether lanes are those of whole warps
    int lanes;
    template <class C, class Op> __device__ __forceinline__ C reduce(C v, Op op, C*) const {
        return reduce_lanes(v, op, lanes);
    }
};
struct BlockGroup {
    static constexpr bool WARPS = true;
    template <class C, class Op> __device__ __forceinline__ C reduce(C v, Op op, C* scratch) const {
        return reduce_block(v, op, Op::template identity<C>(), scratch);
    }
};

// Subtracts `base` and adds up the exponentials, which take the values' place unless Log.
template <class M, bool Log, bool End, int V, int E, class C>
__device__ __forceinline__ C sum_of_exp(C (&v)[V][E], C& end, C base) {
    C sum = 0;
    const auto take = [&](C& x) {
        const C shifted = x - base, e = M::exp(shifted);
        sum += e;
        x = Log ? shifted : e;
    };
#pragma unroll
    for (int i = 0; i < V; ++i) {
#pragma unroll
        for (int k = 0; k < E; ++k) take(v[i][k]);
    }
    if (End) take(end);
    return sum;
}

// Rows row, row + row_step, ...: R of them, V vectors per thread each; `member` of `members` threads.
template <class Row, class In, class Out, int V, int R, class Group, int Rank>
__device__ __forceinline__ void rows_in_registers(const SoftmaxParams<Rank>& p, Group group, uint64_t row,
                                                  uint64_t row_step, int member, int members,
                                                  typename Math<Out>::C* scratch) {
    using M = Math<Out>;
    using C = typename M::C;
    constexpr int E = lanes_of<In>;
    Vector raw[R][V];
    In raw_end[R];
    int place[R];  // of the thread's element of the ends, if there are any
    Row rows[R];
    C v[R][V][E], end[R];

#pragma unroll
    for (int r = 0; r < R; ++r) {
        rows[r] = Row(p, row + r * row_step);
#pragma unroll
        for (int i = 0; i < V; ++i) raw[r][i] = rows[r].load(member + i * members);
        if constexpr (Row::ENDS) {
            place[r] = rows[r].end(member);
            raw_end[r] = rows[r].load_end(place[r]);
        }
    }
    C max[R], sum[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        max[r] = end[r] = -infinity<C>();
        if constexpr (Row::ENDS) max[r] = end[r] = widen<Out>(raw_end[r]);
#pragma unroll
        for (int i = 0; i < V; ++i) {
            widen_vector<In, Out>(raw[r][i], v[r][i]);
#pragma unroll
            for (int k = 0; k < E; ++k) max[r] = larger(max[r], v[r][i][k]);
        }
    }
#pragma unroll
    for (int r = 0; r < R; ++r) max[r] = group.reduce(max[r], Max(), scratch);
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const C base = Partial<C>{max[r], 0}.base();
        sum[r] = p.log ? sum_of_exp<M, true, Row::ENDS>(v[r], end[r], base)
                       : sum_of_exp<M, false, Row::ENDS>(v[r], end[r], base);
    }
#pragma unroll
    for (int r = 0; r < R; ++r) sum[r] = group.reduce(sum[r], Sum(), scratch + 32);
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const Finish<Out> finish(Partial<C>{max[r], sum[r]}, p.log);
        if constexpr (Row::ENDS) rows[r].store_end(place[r], finish.scaled(end[r]));
#pragma unroll
        for (int i = 0; i < V; ++i) {
            Pack<Out, E> pack;
#pragma unroll
            for (int k = 0; k < E; ++k) pack.v[k] = finish.scaled(v[r][i][k]);
            if constexpr (Row::ENDS) {
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
    const auto all = [&](auto row) {
        for (uint64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
            const uint64_t first = tile * (groups * R) + group;
            rows_in_registers<decltype(row), In, Out, V, R>(p, LaneGroup{lanes}, first, groups, lane, lanes, nullptr);
        }
    };
    if (p.x_access) {
        all(WholeRow<In, Out>());
    } else {
        all(Body<In, Out>());
    }
}

template <class In, class Out, int V> __device__ __forceinline__ void softmax_block(
    const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    __shared__ typename Math<Out>::C scratch[64];
    for (uint64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
        rows_in_registers<Body<In, Out>, In, Out, V, 1>(p, BlockGroup{}, row, 0, threadIdx.x, blockDim.x, scratch);
    }
}

// --------------------------------------------------------------------------- rows kept in shared memory

// Those at the ends together with what lies around the row, except at an edge of the tensor.
template <class In, class Out>
__device__ __forceinline__ void fetch_vector(const Row<In, Out, int>& row, int vector, bool edge, uint4* slot) {
    const int i = row.first(vector);
    if (row.whole(i) || (i < row.length && !edge)) {
        copy_async(slot, row.x + i);
    } else {
        store_slot(slot, row.load_part(i));
    }
}

template <class In, class Out> __device__ __forceinline__ void softmax_pipeline(const SoftmaxParams<INLINE_RANK>& p) {
    ptx::wait_for_grid_before();
    using M = Math<Out>;
    using C = typename M::C;
    constexpr int E = lanes_of<In>;
    extern __shared__ uint4 slots[];  // [stage][slot][thread]
    __shared__ Partial<C> scratch[2][32];
    const uint32_t slots_per_stage = p.slots * blockDim.x;
    const auto slot = [&](uint32_t stage, uint32_t s) {
        return slots + stage * slots_per_stage + s * blockDim.x + threadIdx.x;
    };
    const auto vector = [&](uint32_t s) { return static_cast<int>(s * blockDim.x + threadIdx.x); };

    for (uint32_t stage = 0; stage < p.stages; ++stage) {
        const uint64_t coming = blockIdx.x + static_cast<uint64_t>(stage) * gridDim.x;
        if (coming < p.rows) {
            const auto row = row_at<In, Out, int>(p, coming);
            const bool edge = row.at_edge(p.x_low, p.x_high);
            for (uint32_t s = 0; s < p.slots; ++s) fetch_vector(row, vector(s), edge, slot(stage, s));
        }
        commit_copies();
    }
    uint32_t stage = 0, parity = 0;
    for (uint64_t index = blockIdx.x; index < p.rows; index += gridDim.x) {
        wait_for_copies(p.stages - 1);
        const auto row = row_at<In, Out, int>(p, index);
        if (row.shift != 0 || row.length % E != 0) {
            // What lies around the row becomes -inf.
            for (int end : {0, (row.length + row.shift - 1) / E}) {
                const uint32_t s = end / blockDim.x;
                if (end % blockDim.x != threadIdx.x) continue;
                Vector raw = load_slot(slot(stage, s));
                row.complete(end, false, raw);
                store_slot(slot(stage, s), raw);
            }
        }
        auto partial = Partial<C>::empty();
        C v[E];
        for (uint32_t s = 0; s < p.slots; ++s) {
            widen_vector<In, Out>(load_slot(slot(stage, s)), v);
            take<Out>(partial, v);
        }
        partial = reduce_block(partial, Merge<M>(), Partial<C>::empty(), scratch[parity]);
        const Finish<Out> finish(partial, p.log);

        const uint64_t coming = index + static_cast<uint64_t>(p.stages) * gridDim.x;
        const auto next = row_at<In, Out, int>(p, coming);
        const bool edge = next.at_edge(p.x_low, p.x_high);
        for (uint32_t s = 0; s < p.slots; ++s) {
            widen_vector<In, Out>(load_slot(slot(stage, s)), v);
            row.store_across(vector(s), finish_pack(finish, v), p.out_access);
            if (coming < p.rows) fetch_vector(next, vector(s), edge, slot(stage, s));
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
    extern __shared__ uint4 slots[];  // [slot][thread]
    __shared__ Partial<C> scratch[2][32];
    uint32_t parity = 0;
    for (uint64_t index = blockIdx.x; index < p.rows; index += gridDim.x) {
        const auto row = row_at<In, Out, int64_t>(p, index);
        const int64_t vectors = (p.length + row.shift + E - 1) / E;
        const int64_t rounds = (vectors + blockDim.x - 1) / blockDim.x;  // of one vector per thread
        auto partial = Partial<C>::empty();
        for (int64_t round = 0; round < rounds; round += BATCH) {
            Vector raw[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; ++b) raw[b] = row.load((round + b) * blockDim.x + threadIdx.x);
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                if (round + b < p.slots) store_slot(slots + (round + b) * blockDim.x + threadIdx.x, raw[b]);
                C v[E];
                widen_vector<In, Out>(raw[b], v);
                take<Out>(partial, v);
            }
        }
        partial = reduce_block(partial, Merge<M>(), Partial<C>::empty(), scratch[parity]);
        parity ^= 1;
        const Finish<Out> finish(partial, p.log);
        // Backwards: what was read last is still in the caches.
        for (int64_t round = (rounds - 1) / BATCH * BATCH; round >= 0; round -= BATCH) {
            Vector raw[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                const int64_t vector = (round + b) * blockDim.x + threadIdx.x;
                raw[b] = round + b < p.slots ? load_slot(slots + vector) : row.load(vector);
            }
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                C v[E];
                widen_vector<In, Out>(raw[b], v);
                row.store_across((round + b) * blockDim.x + threadIdx.x, finish_pack(finish, v), p.out_access);
            }
        }
    }
}

// -------------------------------------------------------------------------------------------- exported

#define KERNEL(THREADS, NAME) \
    extern "C" __global__ void __launch_bounds__(THREADS) NAME(const __grid_constant__ SoftmaxParams<INLINE_RANK> p)

// 32 values per thread, 16 of float64, are the registers' share.
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
