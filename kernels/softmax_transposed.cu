// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax of transposed tensors: the elements of a row are contiguous in x or in the result, and the
// rows in the other. The arithmetic is that of softmax.cu.
//
// A tile is some rows (64 contiguous bytes of them where there are as many) and a slice of their elements. It lies row
// by row in shared memory, where lanes go along rows for maximum and sum. It is transposed on its way in or out: a lane
// has vectors of 16 bytes across rows, and four lanes fill whole sectors. The vectors of a row are swizzled by its index,
// against bank conflicts. The blocks of a cluster (sm_90) exchange partials through distributed shared memory.
// Variants, chosen in src/cuda/plan/softmax/choose/transposed.rs:
//   in, out                   transposed while loaded or stored; a row in a block or a cluster; one read and one write.
//   ..._partial, ..._combine  two launches for longer rows; two reads. partial has vectors across rows of x in
//                             registers. combine may begin early: it waits for the first launch before it reads partials.
// Misaligned rows move as whole vectors and single elements, misaligned vectors across rows by element.
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
    int pitch, swizzle_mask;

    // Without it rows E apart would conflict. Eight lanes of an access go along a row: sizeof(In) / 2 vectors.
    __device__ __forceinline__ int swizzle(int row) const {
        return row / E * static_cast<int>(sizeof(In)) / 2 & swizzle_mask;
    }
    __device__ __forceinline__ uint4* vector(int row, int g) const {
        return vectors + row * pitch + (g ^ swizzle(row));
    }
    __device__ __forceinline__ In* element(int row, int i) const {
        return reinterpret_cast<In*>(vectors + row * pitch) + (i ^ swizzle(row) * E);
    }
};

// Calls f(row, first, step) for a thread's vectors across rows: N rows from `row` on, of elements first, first + step,
// ...
template <int N, class F> __device__ __forceinline__ void over_vectors_across(const TransposedParams& p, F f) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int across = lane & ((1 << p.across_bits) - 1), along = lane >> p.across_bits, along_bits = 5 - p.across_bits;
    const int groups = 1 << p.group_bits, first = warp >> p.group_bits;
    const int step = groups < warps ? warps >> p.group_bits : 1;
#pragma unroll 1
    for (int group = warp & (groups - 1); group < groups; group += warps) {
        f(((group << p.across_bits) + across) * N, (first << along_bits) + along, step << along_bits);
    }
}

template <bool PREFETCHED, class In> __device__ __forceinline__ void load_transposed(const TransposedParams& p,
                                                                                     const Tile<In>& tile, const In* x,
                                                                                     int rows, int elements) {
    constexpr int E = Tile<In>::E, U = 4;
    over_vectors_across<E>(p, [&](int row, int first, int step) {
        if (row >= rows) return;
        const bool whole = row + E <= rows && p.x_fit == WHOLE;
        x += row;
        if (PREFETCHED && whole) {
            // Else a thread would wait for memory after every U vectors.
            for (int i = first; i < elements; i += step) ptx::prefetch_to_l2(x + i * p.x_stride);
        }
#pragma unroll 1
        for (int i = first; i < elements; i += U * step) {
            Vector vectors[U];
#pragma unroll
            for (int k = 0; k < U; ++k) {
                const int element = i + k * step;
                vectors[k] = {};
                ptx::load_global_if<16>(whole && element < elements, x + element * p.x_stride, vectors[k].word);
            }
#pragma unroll
            for (int k = 0; k < U; ++k) {
                const int element = i + k * step;
                if (element >= elements) break;
                auto pack = vectors[k].template unpack<In>();
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

// Calls f(row, lane, lanes) for rows that `lanes` lanes go along.
template <class F> __device__ __forceinline__ void over_rows(const TransposedParams& p, int rows, F f) {
    const int lanes = 1 << p.lane_bits, lane = threadIdx.x & (lanes - 1);
    // Equally often for every lane of a warp, so that some calls are past the last row.
    const int first = threadIdx.x >> p.lane_bits, step = blockDim.x >> p.lane_bits;
#pragma unroll 1
    for (int r = 0; r < rows; r += step) f(r + first, lane, lanes);
}

template <bool B> struct Flag {
    static constexpr bool value = B;
};

// Iterates over the elements of a packed tile, in the order of global memory.
template <class In> struct PackedIterator {
    const Tile<In>& tile;
    int row, i, elements, swizzle;
    In* first;  // of the row

    __device__ __forceinline__ PackedIterator(const TransposedParams& p, const Tile<In>& tile, int at)
        : tile(tile), row(p.by_length.quotient(static_cast<uint32_t>(at))), elements(p.length) {
        i = at - row * elements;
        swizzle = tile.swizzle(row) * Tile<In>::E;
        first = tile.element(row, swizzle);
    }
    __device__ __forceinline__ In& element() const { return first[i ^ swizzle]; }
    // Goes on; returns whether that was the row's last element.
    __device__ __forceinline__ bool step() {
        const bool last = ++i == elements;
        i = last ? 0 : i;
        row += last;
        first += last ? tile.pitch * Tile<In>::E : 0;
        swizzle = tile.swizzle(row) * Tile<In>::E;
        return last;
    }
};

template <class In> __device__ __forceinline__ void load_packed(const TransposedParams& p, const Tile<In>& tile,
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
            PackedIterator<In> iterator(p, tile, at * E);
#pragma unroll
            for (int e = 0; e < E; ++e) {
                iterator.element() = pack.v[e];
                iterator.step();
            }
        }
    }
    for (int at = whole * E + threadIdx.x; at < all; at += blockDim.x) {
        PackedIterator<In>(p, tile, at).element() = x[at];
    }
}

template <class In> __device__ __forceinline__ void load_along_rows(const TransposedParams& p, const Tile<In>& tile,
                                                                    const In* x, int rows, int elements) {
    constexpr int E = Tile<In>::E, U = 4;
    if (p.x_fit == PACKED) return load_packed(p, tile, x, rows, elements);
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
        const int before = offset_in_vector(from);
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

// Computes the results of a row: `scale` is a factor, or for log_softmax a term. DONE: the tile holds results already.
template <class Out, bool DONE> struct RowNormalizer {
    using C = typename Math<Out>::C;
    C base, scale;

    template <class In> __device__ __forceinline__ Out operator()(In v, bool log) const {
        if constexpr (DONE) {
            return v;
        } else {
            return of_widened(widen<Out>(v), log);
        }
    }
    __device__ __forceinline__ Out of_widened(C v, bool log) const {
        return convert<Out>(log ? (v - base) + scale : Math<Out>::exp(v - base) * scale);
    }
    __device__ __forceinline__ void load(const Partial<C>* of_rows, int row) {
        if constexpr (!DONE) {
            base = of_rows[row].max;
            scale = of_rows[row].sum;
        }
    }
};

template <bool DONE, class In, class Out> __device__ __forceinline__ void store_packed(
    const TransposedParams& p, const Tile<In>& tile, const Partial<typename Math<Out>::C>* of_rows, Out* out, int rows,
    int elements) {
    constexpr int N = lanes_of<Out>;
    const int all = rows * elements, whole = all / N;
#pragma unroll 1
    for (int g = threadIdx.x; g < whole; g += blockDim.x) {
        PackedIterator<In> iterator(p, tile, g * N);
        RowNormalizer<Out, DONE> normalizer;
        normalizer.load(of_rows, iterator.row);
        Pack<Out, N> results;
#pragma unroll
        for (int e = 0; e < N; ++e) {
            results.v[e] = normalizer(iterator.element(), p.log);
            if (iterator.step() && iterator.row < rows) normalizer.load(of_rows, iterator.row);
        }
        store_pack(out + g * N, results);
    }
    for (int at = whole * N + threadIdx.x; at < all; at += blockDim.x) {
        const PackedIterator<In> iterator(p, tile, at);
        RowNormalizer<Out, DONE> normalizer;
        normalizer.load(of_rows, iterator.row);
        out[at] = normalizer(iterator.element(), p.log);
    }
}

template <bool DONE, class In, class Out> __device__ __forceinline__ void store_along_rows(
    const TransposedParams& p, const Tile<In>& tile, const Partial<typename Math<Out>::C>* of_rows, Out* out, int rows,
    int elements) {
    constexpr int E = Tile<In>::E, N = lanes_of<Out>;
    if (p.out_fit == PACKED) return store_packed<DONE>(p, tile, of_rows, out, rows, elements);
    over_rows(p, rows, [&](int row, int lane, int lanes) {
        if (row >= rows) return;
        RowNormalizer<Out, DONE> normalizer;
        normalizer.load(of_rows, row);
        Out* const to = out + row * p.out_next;
        const auto result = [&](int i) { return normalizer(*tile.element(row, i), p.log); };
        if (p.out_fit == WHOLE) {
            const int whole = elements / E;
#pragma unroll 2
            for (int g = lane; g < whole; g += lanes) {
                const Vector vector = load_shared_vector(tile.vector(row, g));
                if constexpr (DONE) {
                    ptx::store_global<16>(to + g * E, vector.word);
                } else {
                    typename Math<Out>::C v[E];
                    widen_vector<In, Out>(vector, v);
                    Pack<Out, E> results;
#pragma unroll
                    for (int e = 0; e < E; ++e) results.v[e] = normalizer.of_widened(v[e], p.log);
                    store_pack(to + g * E, results);
                }
            }
            for (int i = whole * E + lane; i < elements; i += lanes) to[i] = result(i);
            return;
        }
#pragma unroll 1
        for (int i = lane * N - offset_in_vector(to); i < elements; i += lanes * N) {
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
    over_vectors_across<N>(p, [&](int row, int first, int step) {
        if (row >= rows) return;
        const bool whole = row + N <= rows && p.out_fit == WHOLE;
        RowNormalizer<Out, DONE> normalizer[N];
#pragma unroll
        for (int e = 0; e < N; ++e) normalizer[e].load(of_rows, row + e);
#pragma unroll 2
        for (int i = first; i < elements; i += step) {
            // Where the result is wider than x, a vector across rows has fewer rows than share a swizzle.
            const In* const from = tile.element(row, i);
            Pack<Out, N> results;
#pragma unroll
            for (int e = 0; e < N; ++e) results.v[e] = normalizer[e](from[e * tile.pitch * E], p.log);
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

// Rows of at most one vector per lane: results replace the elements in the tile.
template <class T>
__device__ __forceinline__ void normalize_in_place(const TransposedParams& p, const Tile<T>& tile, int rows,
                                                   int vectors) {
    using M = Math<T>;
    using C = typename M::C;
    constexpr int E = Tile<T>::E;
    over_rows(p, rows, [&](int row, int lane, int lanes) {
        const bool mine = row < rows && lane < vectors;
        Vector vector = empty_vector<T>();
        if (mine) vector = load_shared_vector(tile.vector(row, lane));
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
        const Normalizer<T> normalizer(all, p.log);
        Pack<T, E> results;
#pragma unroll
        for (int e = 0; e < E; ++e) results.v[e] = normalizer.scaled(v[e]);
        if (mine) store_shared_vector(tile.vector(row, lane), Vector::of(results));
    });
}

// Maximum and sum of a slice of each row, without shared memory for its elements: a thread has vectors across rows.
// `shared` has room for a partial of every warp and row.
template <class In, class Out, class C> __device__ __forceinline__ void reduce_transposed(
    const TransposedParams& p, const In* x, int rows, int elements, Partial<C>* shared, Partial<C>* partials) {
    using M = Math<Out>;
    constexpr int E = lanes_of<In>, U = sizeof(In) == 8 ? 4 : 8;
    const int tile_rows = p.tile_rows;
    over_vectors_across<E>(p, [&](int row, int first, int step) {
        const bool whole = row + E <= rows && p.x_fit == WHOLE;
        const In* const from = x + row;
        Partial<C> mine[E];
#pragma unroll
        for (auto& each : mine) each = Partial<C>::empty();
#pragma unroll 1
        for (int i = first; i < (whole ? elements : 0); i += U * step) {
            Access<In, E> raw[U];
#pragma unroll
            for (int k = 0; k < U; ++k) {
                const int element = i + k * step;
                raw[k] = Access<In, E>::lowest();
                raw[k].load(from + element * p.x_stride, element < elements);
            }
            accumulate_columns<Out>(raw, mine);
        }
#pragma unroll 1
        for (int i = first; i < (whole ? 0 : elements); i += step) {
            Access<In, E> raw[1] = {Access<In, E>::lowest()};
            const In* const at = from + i * p.x_stride;
#pragma unroll
            for (int e = 0; e < E; ++e) {
                if (row + e < rows) raw[0].set(e, at[e]);
            }
            accumulate_columns<Out>(raw, mine);
        }
#pragma unroll
        for (auto& each : mine) {
            const C own = each.max;
            for (int lanes = 1 << p.across_bits; lanes < 32; lanes *= 2)
                each.max = larger(each.max, shuffle_xor(each.max, lanes));
            each.sum *= M::exp(own - each.base());
            for (int lanes = 1 << p.across_bits; lanes < 32; lanes *= 2) each.sum += shuffle_xor(each.sum, lanes);
        }
        if ((threadIdx.x % 32) >> p.across_bits == 0) {
            const int warp = first >> (5 - p.across_bits);
#pragma unroll
            for (int e = 0; e < E; ++e) shared[warp * tile_rows + row + e] = mine[e];
        }
    });
    __syncthreads();
    const uint32_t warps = max(blockDim.x / 32 >> p.group_bits, 1u);
    for (int row = threadIdx.x; row < rows; row += blockDim.x) {
        partials[row * p.slices] = MergePartials<M, C>::merge(shared + row, tile_rows, 0, 1, warps);
    }
}

template <class In, class Out, bool TRANSPOSED_IN, Scope S>
__device__ __forceinline__ void softmax_transposed(const TransposedParams& p) {
    if (S != Scope::combine) ptx::wait_for_grid_before();
    if (S == Scope::partial) ptx::let_next_grid_begin();
    using M = Math<Out>;
    using C = typename M::C;
    constexpr int E = lanes_of<In>;
    extern __shared__ uint4 shared[];
    __shared__ uint64_t exchange_barrier;
    const int tile_rows = p.tile_rows;
    const ClusterExchange<Partial<C>, S> exchange(&exchange_barrier);
    const int blocks = exchange.blocks;
    const Tile<In> tile = {shared, static_cast<int>(p.pitch), static_cast<int>(p.swizzle_mask)};
    auto* of_rows = reinterpret_cast<Partial<C>*>(shared + tile_rows * p.pitch);  // [tile_rows]
    auto* of_blocks = of_rows + tile_rows;  // [tile_rows][blocks], if there are several
    exchange.open_and_announce(tile_rows);
    const uint32_t number = blockIdx.x / p.slices, rank = blockIdx.x - number * p.slices;
    const auto o = locate(p.dims, p.rank, static_cast<uint64_t>(number));
    const int64_t begin = static_cast<int64_t>(rank) * p.slice, left = static_cast<int64_t>(p.length) - begin;
    const int elements = left < 0 ? 0 : left < p.slice ? left : p.slice;
    const int64_t rest = p.contiguous_rows - o.inner * tile_rows;
    const int rows = rest < tile_rows ? rest : tile_rows;
    const In* x = reinterpret_cast<const In*>(p.x) + o.at[0] + begin * p.x_stride;
    Out* out = reinterpret_cast<Out*>(p.out) + o.at[1] + begin * p.out_stride;

    auto* partials = reinterpret_cast<Partial<C>*>(p.partials) + static_cast<uint64_t>(number) * p.slices * tile_rows;
    if constexpr (TRANSPOSED_IN && S == Scope::partial) {
        auto* of_warps = reinterpret_cast<Partial<C>*>(shared);
        return reduce_transposed<In, Out>(p, x, rows, elements, of_warps, partials + rank);
    }
    if (TRANSPOSED_IN) {
        // Without prefetch in two launches: the second launch finds x in L2.
        load_transposed<S == Scope::cluster>(p, tile, x, rows, elements);
    } else {
        load_along_rows(p, tile, x, rows, elements);
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
            store_along_rows<DONE>(p, tile, of_rows, out, rows, elements);
        } else {
            store_transposed<DONE>(p, tile, of_rows, out, rows, elements);
        }
    };
    if constexpr (same_type<In, Out> && S == Scope::cluster) {
        if (blocks == 1 && vectors <= 1 << p.lane_bits) {
            normalize_in_place(p, tile, rows, vectors);
            __syncthreads();
            return store(Flag<true>());
        }
    }
    if (S != Scope::combine) {
        over_rows(p, rows, [&](int row, int lane, int lanes) {
            const int count = row < rows ? vectors : 0;
            Largest<In, Out> largest;
#pragma unroll 2
            for (int g = lane; g < count; g += lanes) largest.raise_to(load_shared_vector(tile.vector(row, g)));
            Partial<C> mine = {reduce_lanes(largest.get(), Max(), lanes), 0};
            const C base = mine.base();
#pragma unroll 2
            for (int g = lane; g < count; g += lanes) {
                C v[E];
                widen_vector<In, Out>(load_shared_vector(tile.vector(row, g)), v);
#pragma unroll
                for (C e : v) mine.sum += M::exp(e - base);
            }
            mine.sum = reduce_lanes(mine.sum, Sum(), lanes);
            if (lane == 0 && row < rows) {
                if (S == Scope::partial) {
                    partials[row * p.slices + rank] = mine;
                } else {
                    of_rows[row] = mine;
                }
            }
        });
        if (S == Scope::partial) return;
        __syncthreads();
    } else {
        // The first launch writes only partials, so x may be loaded before this wait.
        ptx::wait_for_grid_before();
        for (int row = threadIdx.x / 32; row < rows; row += blockDim.x / 32) {
            const auto all = merge_slices<M>(partials + row * p.slices, p.slices);
            if (threadIdx.x % 32 == 0) of_rows[row] = all;
        }
        __syncthreads();
    }
    if (blocks > 1) {
        exchange.wait_to_send();
        for (int i = threadIdx.x; i < blocks * tile_rows; i += blockDim.x) {
            const int to = i / tile_rows, row = i - to * tile_rows;
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
            const Partial<C>* slices = of_blocks + row * blocks;
            all = Partial<C>::empty();
            for (int b = 0; b < blocks; ++b) all.max = larger(all.max, slices[b].max);
            for (int b = 0; b < blocks; ++b) all.sum += slices[b].sum * M::exp(slices[b].max - all.base());
        }
        const Normalizer<Out> normalizer(all, p.log);
        of_rows[row] = {normalizer.base, p.log ? normalizer.term : normalizer.factor};
    }
    __syncthreads();
    store(Flag<false>());
}

// reduce_transposed has more in registers.
template <class In> inline constexpr int REDUCING = SHARING<In> > 2 ? SHARING<In> - 1 : 2;
#define KERNEL(BLOCKS, NAME) \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(const __grid_constant__ TransposedParams p)
#define EXPORT(IN, OUT, NAME, WAY, TRANSPOSED_IN)                                                     \
    KERNEL(SHARING<IN>, softmax_transposed_##WAY##_##NAME) {                                          \
        softmax_transposed<IN, OUT, TRANSPOSED_IN, Scope::cluster>(p);                                \
    }                                                                                                 \
    KERNEL((TRANSPOSED_IN ? REDUCING<IN> : SHARING<IN>), softmax_transposed_##WAY##_partial_##NAME) { \
        softmax_transposed<IN, OUT, TRANSPOSED_IN, Scope::partial>(p);                                \
    }                                                                                                 \
    KERNEL(SHARING<IN>, softmax_transposed_##WAY##_combine_##NAME) {                                  \
        softmax_transposed<IN, OUT, TRANSPOSED_IN, Scope::combine>(p);                                \
    }
#define EXPORTS(IN, OUT, NAME) EXPORT(IN, OUT, NAME, in, true) EXPORT(IN, OUT, NAME, out, false)

EXPORTS(f16, f16, f16)
EXPORTS(bf16, bf16, bf16)
EXPORTS(f32, f32, f32)
EXPORTS(f64, f64, f64)
EXPORTS(f16, f32, f16_f32)
EXPORTS(bf16, f32, bf16_f32)
