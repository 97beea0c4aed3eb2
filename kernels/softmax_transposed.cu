// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax of transposed tensors: the elements of a row are contiguous in x or in the result, and the
// rows in the other. The arithmetic is that of softmax.cu.
//
// A tile is some rows (64 contiguous bytes of them where there are as many) and a slice of their elements. It lies row
// by row in shared memory, where lanes go along rows for maximum and sum. It is transposed on its way in or out: a lane
// has vectors of 16 bytes across rows, and four lanes fill whole sectors. Vectors of a row are permuted by the row's
// index, against bank conflicts. The blocks of a cluster (sm_90) exchange partials through distributed shared memory.
// Variants, chosen in src/cuda/plan/softmax/choose/transposed.rs:
//   in, out              transposed while loaded or stored; a row in a block or a cluster; one read and one write.
//   ..._leave, ..._find  two launches (partial, combine) for rows that no cluster holds; two reads. find may begin
//                        early: it waits for the first launch before it reads partials.
// Misaligned rows move in their whole vectors and single end elements, misaligned vectors across rows by element.
// Measurements: docs/measurements/softmax_transposed.md
#include "access.cuh"
#include "async_copy.cuh"
#include "exchange.cuh"
#include "ptx/grid.cuh"
#include "transposed.cuh"

constexpr int THREADS = 256;  // at most
// Blocks that share a multiprocessor's registers.
#if __CUDA_ARCH__ == 900
template <class In> inline constexpr int SHARING = sizeof(In) == 8 ? 3 : 4;
#else
template <class In> inline constexpr int SHARING = 2;
#endif

// Rows in shared memory, in vectors.
template <class In> struct Tile {
    static constexpr int E = lanes_of<In>;
    uint4* vectors;
    int pitch, permuted;

    // Rows E apart meet in a bank; eight elements, as many as go along a row in one access, take sizeof(In) / 2 vectors.
    __device__ __forceinline__ int turn(int row) const { return row / E * static_cast<int>(sizeof(In)) / 2 & permuted; }
    __device__ __forceinline__ uint4* vector(int row, int g) const { return vectors + row * pitch + (g ^ turn(row)); }
    __device__ __forceinline__ In* element(int row, int i) const {
        return reinterpret_cast<In*>(vectors + row * pitch) + (i ^ turn(row) * E);
    }
};

// f(row, first, step) for what a thread has of a transposed tile: the `N` rows side by side from `row` on, and of them the
// elements first, first + step, ...
template <int N, class F> __device__ __forceinline__ void over_pieces(const TransposedParams& p, F f) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int piece = lane & ((1 << p.beside_bits) - 1), below = lane >> p.beside_bits, below_bits = 5 - p.beside_bits;
    const int groups = 1 << p.group_bits, first = warp >> p.group_bits;
    const int step = groups < warps ? warps >> p.group_bits : 1;
#pragma unroll 1
    for (int group = warp & (groups - 1); group < groups; group += warps) {
        f(((group << p.beside_bits) + piece) * N, (first << below_bits) + below, step << below_bits);
    }
}

template <bool PREFETCHED, class In> __device__ __forceinline__ void load_transposed(const TransposedParams& p,
                                                                                     const Tile<In>& tile, const In* x,
                                                                                     int rows, int elements) {
    constexpr int E = Tile<In>::E, U = 4;
    over_pieces<E>(p, [&](int row, int first, int step) {
        if (row >= rows) return;
        const bool whole = row + E <= rows && p.x_fit == WHOLE;
        x += row;
        if (PREFETCHED && whole) {
            // Else a thread would wait for memory at every few pieces.
            for (int i = first; i < elements; i += step) ptx::prefetch_to_l2(x + i * p.x_stride);
        }
#pragma unroll 1
        for (int i = first; i < elements; i += U * step) {
            Vector pieces[U];
#pragma unroll
            for (int k = 0; k < U; ++k) {
                const int element = i + k * step;
                pieces[k] = {};
                ptx::load_global_if<16>(whole && element < elements, x + element * p.x_stride, pieces[k].word);
            }
#pragma unroll
            for (int k = 0; k < U; ++k) {
                const int element = i + k * step;
                if (element >= elements) break;
                auto pack = pieces[k].template unpack<In>();
                if (!whole) {
#pragma unroll
                    for (int e = 0; e < E; ++e) {
                        if (row + e < rows) pack.v[e] = x[element * p.x_stride + e];
                    }
                }
                In* const to = tile.element(row, element);
#pragma unroll
                for (int e = 0; e < E; ++e) to[e * tile.pitch * E] = pack.v[e];
            }
        }
        x -= row;
    });
}

// Elements of a row lie side by side: f(row, lane, lanes).
template <class F> __device__ __forceinline__ void over_rows(const TransposedParams& p, int rows, F f) {
    const int lanes = 1 << p.lane_bits, lane = threadIdx.x & (lanes - 1);
    // As many times for every lane of a warp, some without a row.
    const int first = threadIdx.x >> p.lane_bits, step = blockDim.x >> p.lane_bits;
#pragma unroll 1
    for (int r = 0; r < rows; r += step) f(r + first, lane, lanes);
}

template <bool B> struct Flag {
    static constexpr bool value = B;
};

// Elements of a tile in one piece, one after the other.
template <class In> struct Walk {
    const Tile<In>& tile;
    int row, i, elements, turn;
    In* first;  // of the row

    __device__ __forceinline__ Walk(const TransposedParams& p, const Tile<In>& tile, int at)
        : tile(tile), row(p.by_length.quotient(static_cast<uint32_t>(at))), elements(p.length) {
        i = at - row * elements;
        turn = tile.turn(row) * Tile<In>::E;
        first = tile.element(row, turn);
    }
    __device__ __forceinline__ In& element() const { return first[i ^ turn]; }
    // Whether that was the row's last.
    __device__ __forceinline__ bool step() {
        const bool last = ++i == elements;
        i = last ? 0 : i;
        row += last;
        first += last ? tile.pitch * Tile<In>::E : 0;
        turn = tile.turn(row) * Tile<In>::E;
        return last;
    }
};

template <class In> __device__ __forceinline__ void load_run(const TransposedParams& p, const Tile<In>& tile,
                                                             const In* x, int rows, int elements) {
    constexpr int E = Tile<In>::E, U = 4;
    const int all = rows * elements, whole = all / E;
#pragma unroll 1
    for (int g = threadIdx.x; g < whole; g += U * blockDim.x) {
        Vector raw[U];
#pragma unroll
        for (int k = 0; k < U; ++k) {
            const int at = g + k * blockDim.x;
            raw[k] = {};
            ptx::load_global_if<16>(at < whole, x + at * E, raw[k].word);
        }
#pragma unroll
        for (int k = 0; k < U; ++k) {
            const int at = g + k * blockDim.x;
            if (at >= whole) break;
            const auto pack = raw[k].template unpack<In>();
            Walk<In> walk(p, tile, at * E);
#pragma unroll
            for (int e = 0; e < E; ++e) {
                walk.element() = pack.v[e];
                walk.step();
            }
        }
    }
    for (int at = whole * E + threadIdx.x; at < all; at += blockDim.x) { Walk<In>(p, tile, at).element() = x[at]; }
}

template <class In> __device__ __forceinline__ void load_straight(const TransposedParams& p, const Tile<In>& tile,
                                                                  const In* x, int rows, int elements) {
    constexpr int E = Tile<In>::E, U = 4;
    if (p.x_fit == RUN) return load_run(p, tile, x, rows, elements);
    over_rows(p, rows, [&](int row, int lane, int lanes) {
        if (row >= rows) return;
        const In* const from = x + row * p.x_next;
        if (p.x_fit == WHOLE) {
            const int whole = elements / E;
#pragma unroll 4
            for (int g = lane; g < whole; g += lanes) copy_async(tile.vector(row, g), from + g * E);
            for (int i = whole * E + lane; i < elements; i += lanes) *tile.element(row, i) = from[i];
            return;
        }
        const int before = misaligned(from);
#pragma unroll 1
        for (int i = lane * E - before; i < elements; i += U * lanes * E) {
            Vector raw[U];
#pragma unroll
            for (int k = 0; k < U; ++k) {
                const int at = i + k * lanes * E;
                raw[k] = {};
                ptx::load_global_if<16>(at >= 0 && at + E <= elements, from + at, raw[k].word);
            }
#pragma unroll
            for (int k = 0; k < U; ++k) {
                const int at = i + k * lanes * E;
                auto pack = raw[k].template unpack<In>();
                const bool whole = at >= 0 && at + E <= elements;
#pragma unroll
                for (int e = 0; e < E; ++e) {
                    if (at + e < 0 || at + e >= elements) continue;
                    if (!whole) pack.v[e] = from[at + e];
                    *tile.element(row, at + e) = pack.v[e];
                }
            }
        }
    });
    commit_copies();
    wait_for_copies(0);
}

// What a row's elements are finished with: a factor, or a term of the logarithm. Done: they are results already.
template <class Out, bool DONE> struct Finishing {
    using C = typename Math<Out>::C;
    C base, last;

    template <class In> __device__ __forceinline__ Out operator()(In v, bool log) const {
        if constexpr (DONE) {
            return v;
        } else {
            return of_wide(widen<Out>(v), log);
        }
    }
    __device__ __forceinline__ Out of_wide(C v, bool log) const {
        return convert<Out>(log ? (v - base) + last : Math<Out>::exp(v - base) * last);
    }
    __device__ __forceinline__ void get(const Partial<C>* of_rows, int row) {
        if constexpr (!DONE) {
            base = of_rows[row].max;
            last = of_rows[row].sum;
        }
    }
};

template <bool DONE, class In, class Out> __device__ __forceinline__ void store_run(
    const TransposedParams& p, const Tile<In>& tile, const Partial<typename Math<Out>::C>* of_rows, Out* out, int rows,
    int elements) {
    constexpr int N = lanes_of<Out>;
    const int all = rows * elements, whole = all / N;
#pragma unroll 1
    for (int g = threadIdx.x; g < whole; g += blockDim.x) {
        Walk<In> walk(p, tile, g * N);
        Finishing<Out, DONE> finishing;
        finishing.get(of_rows, walk.row);
        Pack<Out, N> results;
#pragma unroll
        for (int e = 0; e < N; ++e) {
            results.v[e] = finishing(walk.element(), p.log);
            if (walk.step() && walk.row < rows) finishing.get(of_rows, walk.row);
        }
        store_pack(out + g * N, results);
    }
    for (int at = whole * N + threadIdx.x; at < all; at += blockDim.x) {
        const Walk<In> walk(p, tile, at);
        Finishing<Out, DONE> finishing;
        finishing.get(of_rows, walk.row);
        out[at] = finishing(walk.element(), p.log);
    }
}

template <bool DONE, class In, class Out> __device__ __forceinline__ void store_straight(
    const TransposedParams& p, const Tile<In>& tile, const Partial<typename Math<Out>::C>* of_rows, Out* out, int rows,
    int elements) {
    constexpr int E = Tile<In>::E, N = lanes_of<Out>;
    if (p.out_fit == RUN) return store_run<DONE>(p, tile, of_rows, out, rows, elements);
    over_rows(p, rows, [&](int row, int lane, int lanes) {
        if (row >= rows) return;
        Finishing<Out, DONE> finishing;
        finishing.get(of_rows, row);
        Out* const to = out + row * p.out_next;
        const auto result = [&](int i) { return finishing(*tile.element(row, i), p.log); };
        if (p.out_fit == WHOLE) {
            const int whole = elements / E;
#pragma unroll 2
            for (int g = lane; g < whole; g += lanes) {
                const Vector vector = load_slot(tile.vector(row, g));
                if constexpr (DONE) {
                    ptx::store_global<16>(to + g * E, vector.word);
                } else {
                    typename Math<Out>::C v[E];
                    widen_vector<In, Out>(vector, v);
                    Pack<Out, E> results;
#pragma unroll
                    for (int e = 0; e < E; ++e) results.v[e] = finishing.of_wide(v[e], p.log);
                    store_pack(to + g * E, results);
                }
            }
            for (int i = whole * E + lane; i < elements; i += lanes) to[i] = result(i);
            return;
        }
#pragma unroll 1
        for (int i = lane * N - misaligned(to); i < elements; i += lanes * N) {
            if (i >= 0 && i + N <= elements) {
                Pack<Out, N> results;
#pragma unroll
                for (int e = 0; e < N; ++e) results.v[e] = result(i + e);
                store_pack(to + i, results);
            } else {
#pragma unroll
                for (int e = 0; e < N; ++e) {
                    if (i + e >= 0 && i + e < elements) to[i + e] = result(i + e);
                }
            }
        }
    });
}

template <bool DONE, class In, class Out> __device__ __forceinline__ void store_transposed(
    const TransposedParams& p, const Tile<In>& tile, const Partial<typename Math<Out>::C>* of_rows, Out* out, int rows,
    int elements) {
    constexpr int E = Tile<In>::E, N = lanes_of<Out>;
    over_pieces<N>(p, [&](int row, int first, int step) {
        if (row >= rows) return;
        const bool whole = row + N <= rows && p.out_fit == WHOLE;
        Finishing<Out, DONE> finishing[N];
#pragma unroll
        for (int e = 0; e < N; ++e) finishing[e].get(of_rows, row + e);
#pragma unroll 2
        for (int i = first; i < elements; i += step) {
            // Where the result is wider than x, a piece is fewer rows than one permutation is of.
            const In* const from = tile.element(row, i);
            Pack<Out, N> results;
#pragma unroll
            for (int e = 0; e < N; ++e) results.v[e] = finishing[e](from[e * tile.pitch * E], p.log);
            Out* const to = out + i * p.out_stride + row;
            if (whole) {
                store_pack(to, results);
            } else {
#pragma unroll
                for (int e = 0; e < N; ++e) {
                    if (row + e < rows) to[e] = results.v[e];
                }
            }
        }
    });
}

// Rows of which every lane has one vector, or none: results take the place of the elements.
template <class T>
__device__ __forceinline__ void finish_held(const TransposedParams& p, const Tile<T>& tile, int rows, int vectors) {
    using M = Math<T>;
    using C = typename M::C;
    constexpr int E = Tile<T>::E;
    over_rows(p, rows, [&](int row, int lane, int lanes) {
        const bool mine = row < rows && lane < vectors;
        Vector vector = empty_vector<T>();
        if (mine) vector = load_slot(tile.vector(row, lane));
        Largest<T, T> largest;
        largest.raise_to(vector);
        Partial<C> all = {reduce_lanes(largest.get(), Max(), lanes), 0};
        const C base = all.base();
        C v[E];
        widen_vector<T, T>(vector, v);
#pragma unroll
        for (C& e : v) {
            const C shifted = e - base, exponential = M::exp(shifted);
            all.sum += exponential;
            e = p.log ? shifted : exponential;
        }
        all.sum = reduce_lanes(all.sum, Sum(), lanes);
        const Finish<T> finish(all, p.log);
        Pack<T, E> results;
#pragma unroll
        for (int e = 0; e < E; ++e) results.v[e] = finish.scaled(v[e]);
        if (mine) store_slot(tile.vector(row, lane), Vector::of(results));
    });
}

template <class In, class Out, bool TRANSPOSED_IN, Scope S>
__device__ __forceinline__ void softmax_transposed(const TransposedParams& p) {
    if (S != Scope::combine) ptx::wait_for_grid_before();
    if (S == Scope::partial) ptx::let_next_grid_begin();
    using M = Math<Out>;
    using C = typename M::C;
    constexpr int E = lanes_of<In>;
    extern __shared__ uint4 shared[];
    __shared__ uint64_t mailbox_state;
    const int wide = p.wide;
    const ClusterExchange<Partial<C>, S> exchange(&mailbox_state);
    const int blocks = exchange.blocks;
    const Tile<In> tile = {shared, static_cast<int>(p.pitch), static_cast<int>(p.permuted)};
    auto* of_rows = reinterpret_cast<Partial<C>*>(shared + wide * p.pitch);  // [wide]
    auto* of_blocks = of_rows + wide;                                        // [wide][blocks], if there are several
    exchange.open_to(wide);
    const uint32_t number = blockIdx.x / p.slices, rank = blockIdx.x - number * p.slices;
    const auto o = locate(p.dims, p.rank, static_cast<uint64_t>(number));
    const int64_t begin = static_cast<int64_t>(rank) * p.slice, left = static_cast<int64_t>(p.length) - begin;
    const int elements = left < 0 ? 0 : left < p.slice ? left : p.slice;
    const int64_t rest = p.beside - o.inner * wide;
    const int rows = rest < wide ? rest : wide;
    const In* x = reinterpret_cast<const In*>(p.x) + o.at[0] + begin * p.x_stride;
    Out* out = reinterpret_cast<Out*>(p.out) + o.at[1] + begin * p.out_stride;

    if (TRANSPOSED_IN) {
        // What is read twice is not: the second time it is in L2.
        load_transposed<S == Scope::cluster>(p, tile, x, rows, elements);
    } else {
        load_straight(p, tile, x, rows, elements);
    }
    const int vectors = (elements + E - 1) / E;
    if (elements % E) {
        for (int row = threadIdx.x; row < rows; row += blockDim.x) {
            for (int i = elements; i < vectors * E; ++i) *tile.element(row, i) = convert<In>(-infinity<float>());
        }
    }
    __syncthreads();

    const auto store = [&](auto done) {
        constexpr bool DONE = decltype(done)::value;
        if constexpr (TRANSPOSED_IN) {
            store_straight<DONE>(p, tile, of_rows, out, rows, elements);
        } else {
            store_transposed<DONE>(p, tile, of_rows, out, rows, elements);
        }
    };
    if constexpr (same_type<In, Out> && S == Scope::cluster) {
        if (blocks == 1 && vectors <= 1 << p.lane_bits) {
            finish_held(p, tile, rows, vectors);
            __syncthreads();
            return store(Flag<true>());
        }
    }
    auto* left_behind = reinterpret_cast<Partial<C>*>(p.partials) + static_cast<uint64_t>(number) * p.slices * wide;
    if (S != Scope::combine) {
        over_rows(p, rows, [&](int row, int lane, int lanes) {
            const int count = row < rows ? vectors : 0;
            Largest<In, Out> largest;
#pragma unroll 2
            for (int g = lane; g < count; g += lanes) largest.raise_to(load_slot(tile.vector(row, g)));
            Partial<C> mine = {reduce_lanes(largest.get(), Max(), lanes), 0};
            const C base = mine.base();
#pragma unroll 2
            for (int g = lane; g < count; g += lanes) {
                C v[E];
                widen_vector<In, Out>(load_slot(tile.vector(row, g)), v);
#pragma unroll
                for (C e : v) mine.sum += M::exp(e - base);
            }
            mine.sum = reduce_lanes(mine.sum, Sum(), lanes);
            if (lane == 0 && row < rows) {
                if (S == Scope::partial) {
                    left_behind[row * p.slices + rank] = mine;
                } else {
                    of_rows[row] = mine;
                }
            }
        });
        if (S == Scope::partial) return;
        __syncthreads();
    } else {
        // The launch before has written nothing but partials, so that x could be asked for already.
        ptx::wait_for_grid_before();
        for (int row = threadIdx.x / 32; row < rows; row += blockDim.x / 32) {
            const auto all = merge_all<M>(left_behind + row * p.slices, p.slices);
            if (threadIdx.x % 32 == 0) of_rows[row] = all;
        }
        __syncthreads();
    }
    if (blocks > 1) {
        exchange.wait_to_send();
        for (int i = threadIdx.x; i < blocks * wide; i += blockDim.x) {
            const int to = i / wide, row = i - to * wide;
            auto own = Partial<C>::empty();
            if (row < rows) own = of_rows[row];
            exchange.send(of_blocks, row * blocks + rank, to, own);
        }
        exchange.collect(0);
        __syncthreads();
    }
    for (int row = threadIdx.x; row < rows; row += blockDim.x) {
        Partial<C> all = of_rows[row];
        if (blocks > 1) {
            const Partial<C>* parts = of_blocks + row * blocks;
            all = Partial<C>::empty();
            for (int b = 0; b < blocks; ++b) all.max = larger(all.max, parts[b].max);
            for (int b = 0; b < blocks; ++b) all.sum += parts[b].sum * M::exp(parts[b].max - all.base());
        }
        const Finish<Out> finish(all, p.log);
        of_rows[row] = {finish.base, p.log ? finish.term : finish.factor};
    }
    __syncthreads();
    store(Flag<false>());
}

#define KERNEL(IN, NAME) \
    extern "C" __global__ void __launch_bounds__(THREADS, SHARING<IN>) NAME(const __grid_constant__ TransposedParams p)
#define EXPORT(IN, OUT, NAME, WAY, TRANSPOSED_IN)                                                                    \
    KERNEL(IN, softmax_transposed_##WAY##_##NAME) { softmax_transposed<IN, OUT, TRANSPOSED_IN, Scope::cluster>(p); } \
    KERNEL(IN, softmax_transposed_##WAY##_leave_##NAME) {                                                            \
        softmax_transposed<IN, OUT, TRANSPOSED_IN, Scope::partial>(p);                                               \
    }                                                                                                                \
    KERNEL(IN, softmax_transposed_##WAY##_find_##NAME) {                                                             \
        softmax_transposed<IN, OUT, TRANSPOSED_IN, Scope::combine>(p);                                               \
    }
#define EXPORTS(IN, OUT, NAME) EXPORT(IN, OUT, NAME, in, true) EXPORT(IN, OUT, NAME, out, false)

EXPORTS(f16, f16, f16)
EXPORTS(bf16, bf16, bf16)
EXPORTS(f32, f32, f32)
EXPORTS(f64, f64, f64)
EXPORTS(f16, f32, f16_f32)
EXPORTS(bf16, f32, bf16_f32)
