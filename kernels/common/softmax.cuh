// What the softmax kernels share: their parameters, their arithmetic, and rows as sequences of 16-byte
// granules.
#pragma once

#include "dtype.cuh"
#include "index.cuh"
#include "ptx/grid.cuh"
#include "ptx/math.cuh"
#include "reduce.cuh"

constexpr int INLINE_RANK = 4;
constexpr int MAX_RANK = 64;

// Mirrored by SoftmaxParams in src/cuda/plan/softmax.rs. The dimensions come last, and a kernel declares
// only as many of them as it can use: what it does not declare is not copied by a launch.
template <int Rank> struct SoftmaxParams {
    uint64_t x, out;               // addresses
    uint64_t rows;                 // column: index space of the outer dimensions
    uint64_t length;               // elements per row
    uint64_t columns;              // column: neighbouring rows, one element apart
    uint64_t tiles;                // pieces of work for a block
    int64_t x_stride, out_stride;  // along a row
    uint32_t log;                  // log_softmax
    uint32_t lane_bits;  // warp: 2^this lanes per row. column: 2^this threads side by side, at most half of the block
    uint32_t stages;     // pipeline: rows in shared memory
    uint32_t slots;      // 16-byte slots of shared memory per thread (and stage); leave, find: chunks of a slice
    // rows: x_access 1 if all are whole granules of x and of the result, one stride apart; out_access 0 if stores must be
    // element-wise. column: bytes per access.
    uint32_t x_access, out_access;
    uint32_t x_tag, out_tag;
    uint32_t rank;           // at least 1
    uint32_t slices;         // leave, find: pieces of a row, each a block's
    uint64_t x_low, x_high;  // rows: the addresses that x's elements span
    uint64_t partials;       // leave, find: address of a Partial for every slice of every row
    Dim<2> dims[Rank];       // over rows; strides of x and out
};
static_assert(sizeof(SoftmaxParams<INLINE_RANK>) == 128 + 40 * INLINE_RANK, "");
static_assert(sizeof(SoftmaxParams<MAX_RANK>) == 128 + 40 * MAX_RANK && sizeof(SoftmaxParams<MAX_RANK>) < 4096, "");

// The arithmetic of a result type. Always exp(x - max): the form exp2(x * log2(e) - max * log2(e)) overflows
// for masks made of the smallest finite number, and loses digits.
template <class Out> struct Math {
    using C = float;
    static __device__ __forceinline__ float exp(float v) { return expf(v); }
    static __device__ __forceinline__ float log(float v) { return logf(v); }
    static __device__ __forceinline__ float reciprocal(float v) { return 1.0f / v; }
};
// The relative error of the approximations, 1e-5 for the smallest results, is far below a half's rounding;
// results below 1.2e-38 become 0.
struct HalfMath {
    using C = float;
    static __device__ __forceinline__ float exp(float v) { return ptx::exp2_approximate(v * 1.4426950408889634f); }
    static __device__ __forceinline__ float log(float v) { return logf(v); }
    static __device__ __forceinline__ float reciprocal(float v) { return __fdividef(1.0f, v); }
};
template <> struct Math<f16> : HalfMath {};
template <> struct Math<bf16> : HalfMath {};
template <> struct Math<f64> {
    using C = double;
    static __device__ __forceinline__ double exp(double v) { return ::exp(v); }
    static __device__ __forceinline__ double log(double v) { return ::log(v); }
    static __device__ __forceinline__ double reciprocal(double v) { return 1.0 / v; }
};

// x in the arithmetic type, rounded to the result's dtype on the way.
template <class Out, class In> __device__ __forceinline__ typename Math<Out>::C widen(In v) {
    return static_cast<typename Math<Out>::C>(number(convert<Out>(v)));
}

__device__ __forceinline__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ __forceinline__ double multiply_add(double a, double b, double c) { return fma(a, b, c); }

// What turns an element of a finished row into a result: exp(x - base) / sum, or x - base - log(sum). Both
// are one multiply-add, exact in one of its halves, so that no branch is needed at the end.
template <class Out> struct Finish {
    using M = Math<Out>;
    using C = typename M::C;
    C base, factor, term;
    bool log;

    __device__ __forceinline__ Finish() {}
    __device__ __forceinline__ Finish(const Partial<C>& row, bool log)
        : base(row.base()),
          factor(log ? C(1) : M::reciprocal(row.sum)),
          term(log ? -M::log(row.sum) : C(0)),
          log(log) {}

    // Lets `scaled` take what was computed with the base of one part of the row.
    __device__ __forceinline__ void rebase(const Partial<C>& part) {
        if (log) {
            term += part.base() - base;
        } else {
            factor *= M::exp(part.max - base);
        }
        base = part.base();
    }
    // From exp(x - base), or x - base.
    __device__ __forceinline__ Out scaled(C v) const { return convert<Out>(multiply_add(v, factor, term)); }
    __device__ __forceinline__ Out operator()(C x) const { return scaled(log ? x - base : M::exp(x - base)); }
};

// Takes a batch of elements into an online partial: one rescaling for all of them.
template <class Out, int N, class C>
__device__ __forceinline__ void take(Partial<C>& row, const C (&x)[N]) {
    using M = Math<Out>;
    Partial<C> next = {row.max, 0};
#pragma unroll
    for (int k = 0; k < N; ++k) next.max = larger(next.max, x[k]);
    const C base = next.base();
#pragma unroll
    for (int k = 0; k < N; ++k) next.sum += M::exp(x[k] - base);
    next.sum += row.sum * M::exp(row.max - base);
    row = next;
}

// All of `count` partials, to every lane of the warp, in an order that depends on `count` alone.
template <class M, class C> __device__ __forceinline__ Partial<C> merge_all(const Partial<C>* partials,
                                                                            uint32_t count) {
    auto all = Partial<C>::empty();
    for (uint32_t i = threadIdx.x % 32; i < count; i += 32) all.max = larger(all.max, partials[i].max);
    all.max = reduce_lanes(all.max, Max(), 32);
    const C base = all.base();
    for (uint32_t i = threadIdx.x % 32; i < count; i += 32) all.sum += partials[i].sum * M::exp(partials[i].max - base);
    all.sum = reduce_lanes(all.sum, Sum(), 32);
    return all;
}

// The same value, but neither compiler knows it: what was computed from it before is computed again instead of being
// kept in registers. (An empty asm would stop only the first of the two.) Blocks are flat, threadIdx.y is 0.
__device__ __forceinline__ uint32_t forget(uint32_t v) { return v ^ threadIdx.y; }
__device__ __forceinline__ Granule forget(Granule g) {
#pragma unroll
    for (auto& word : g.word) word = forget(word);
    return g;
}

// Elements that count for nothing: -inf.
template <class In> __device__ __forceinline__ Granule empty_granule() {
    Pack<In, lanes_of<In>> empty;
#pragma unroll
    for (auto& e : empty.v) e = convert<In>(-infinity<float>());
    return Granule::of(empty);
}

// One row, cut into granules of 16 aligned bytes of x. `shift` elements of the first granule lie before
// the row; they, and what lies behind its end, are never touched and read as -inf.
template <class In, class Out, class Index> struct Row {
    static constexpr int E = lanes_of<In>;
    const In* x;
    Out* out;
    Index length;
    int shift;

    __device__ __forceinline__ Row() {}
    __device__ __forceinline__ Row(const In* x, Out* out, Index length)
        : x(x),
          out(out),
          length(length),
          shift(static_cast<uint32_t>(reinterpret_cast<uint64_t>(x)) % 16 / sizeof(In)) {}

    // Of the first element of a granule: its index, and whether the whole granule is in the row.
    __device__ __forceinline__ Index first(Index granule) const { return granule * E - shift; }
    __device__ __forceinline__ bool whole(Index first) const { return first >= 0 && first <= length - E; }

    __device__ __forceinline__ Granule load(Index granule) const {
        const Index i = first(granule);
        return whole(i) ? load_granule(x + i) : load_part(i);
    }
    __device__ __forceinline__ Granule load_part(Index i) const {
        Pack<In, E> pack;
#pragma unroll
        for (int k = 0; k < E; ++k) {
            const bool inside = i + k >= 0 && i + k < length;
            pack.v[k] = inside ? x[i + k] : convert<In>(-infinity<float>());
        }
        return Granule::of(pack);
    }
    // The other way to load: all granules whole, those at the row's ends together with elements of other rows, which
    // `complete` then makes -inf. Only at an edge of the tensor, between `low` and `high`, is there nothing around the
    // row, and `complete` fetches the elements themselves.
    __device__ __forceinline__ bool at_edge(uint64_t low, uint64_t high) const {
        const uint64_t begin = reinterpret_cast<uint64_t>(x), end = begin + static_cast<uint64_t>(length) * sizeof(In);
        return begin / 16 * 16 < low || (end + 15) / 16 * 16 > high;
    }
    __device__ __forceinline__ Granule load_around(Index granule, bool edge) const {
        const Index i = first(granule);
        Granule g = empty_granule<In>();
        ptx::load_global_if<16>(i < length && (!edge || whole(i)), x + i, g.word);
        return g;
    }
    __device__ __forceinline__ void complete(Index granule, bool edge, Granule& g) const {
        const Index i = first(granule);
        if (i >= length || whole(i)) return;
        auto pack = g.unpack<In>();
#pragma unroll
        for (int k = 0; k < E; ++k) {
            const bool inside = i + k >= 0 && i + k < length;
            if (edge && inside) pack.v[k] = x[i + k];
            if (!inside) pack.v[k] = convert<In>(-infinity<float>());
        }
        g = Granule::of(pack);
    }
    __device__ __forceinline__ void store(Index granule, const Pack<Out, E>& pack, bool vectors) const {
        const Index i = first(granule);
        if (vectors && whole(i)) {
            store_pack(out + i, pack);
        } else {
#pragma unroll
            for (int k = 0; k < E; ++k) {
                if (i + k >= 0 && i + k < length) out[i + k] = pack.v[k];
            }
        }
    }
    // The same for a whole warp whose lanes have granules side by side. Where results are aligned otherwise than x, each
    // lane lacks the end of an aligned access, which the next lane has.
    __device__ __forceinline__ void store_across(Index granule, const Pack<Out, E>& pack, bool vectors) const {
        // A float64 by itself is an access of 8 bytes, and fine.
        if (vectors || sizeof(Out) == 8) return store(granule, pack, vectors);
        const Index i = first(granule);
        const uint32_t skipped = -static_cast<uint32_t>(reinterpret_cast<uint64_t>(out + i)) % 16;  // bytes
        const int ahead = skipped / sizeof(Out), lane = threadIdx.x % 32;
        // How far this is from the row's ends, if not far.
        const int from = i < 2 * E ? static_cast<int>(i) : 2 * E;
        const int left = length - i < 2 * E ? static_cast<int>(length - i) : 2 * E;
        // Whether this lane, and the one before it, can make their accesses.
        const bool mine = (lane < 31 || ahead == 0) && from + ahead >= 0 && ahead + E <= left;
        const bool before = lane > 0 && from + ahead >= E && ahead <= left;
        if (!mine || (!before && ahead > 0)) {
#pragma unroll
            for (int k = 0; k < E; ++k) {
                const bool taken = k < ahead ? before : mine;
                if (!taken && from + k >= 0 && k < left) out[i + k] = pack.v[k];
            }
        }
        constexpr int WORDS = E * sizeof(Out) / 4;
        uint32_t word[WORDS + 4];
        __builtin_memcpy(word, &pack, sizeof(pack));
#pragma unroll
        for (int k = 0; k < 4; ++k) word[WORDS + k] = __shfl_down_sync(~0u, word[k], 1);
        // Moved down by as many words or halves.
#pragma unroll
        for (int k = 0; k < WORDS + 2; ++k) word[k] = skipped & 8 ? word[k + 2] : word[k];
        if constexpr (sizeof(Out) <= 4) {
#pragma unroll
            for (int k = 0; k < WORDS + 1; ++k) word[k] = skipped & 4 ? word[k + 1] : word[k];
        }
        if constexpr (sizeof(Out) == 2) {
#pragma unroll
            for (int k = 0; k < WORDS; ++k) word[k] = __funnelshift_r(word[k], word[k + 1], skipped % 4 * 8);
        }
        if (!mine) return;
        char* to = reinterpret_cast<char*>(out + i) + skipped;
#pragma unroll
        for (int k = 0; k < WORDS; k += 4) ptx::store_global<16>(to + 4 * k, word + k);
    }
};

// A row without elements if there is no such row. Index: int where a row has fewer than 2^31 elements.
template <class In, class Out, class Index, int Rank>
__device__ __forceinline__ Row<In, Out, Index> row_at(const SoftmaxParams<Rank>& p, uint64_t row) {
    const Index length = row < p.rows ? p.length : 0;
    const In* x = reinterpret_cast<const In*>(p.x);
    Out* out = reinterpret_cast<Out*>(p.out);
    if (row >= p.rows) row = 0;
    if (p.rank == 1) {
        const int64_t at = row;
        return {x + at * p.dims[0].strides[0], out + at * p.dims[0].strides[1], length};
    }
    const auto o = locate(p.dims, p.rank, row);
    return {x + o.at[0], out + o.at[1], length};
}

// The same row as the granules that are wholly in it, and its ends: the elements before the first of them and behind the
// last, less than two granules', of which as many threads take one each. So nothing around the row is read, and no thread
// has a granule to complete.
template <class In, class Out> struct Body {
    static constexpr bool ENDS = true;
    static constexpr int E = lanes_of<In>;
    static constexpr int NO_END = -E;
    const In* x;  // of the first granule
    Out* out;
    int granules, head, length;

    __device__ __forceinline__ Body() {}
    template <int Rank> __device__ __forceinline__ Body(const SoftmaxParams<Rank>& p, uint64_t row)
        : Body(row_at<In, Out, int>(p, row)) {}
    __device__ __forceinline__ explicit Body(const Row<In, Out, int>& row) : length(row.length) {
        const int skipped = row.shift > 0 ? E - row.shift : 0;
        head = skipped < length ? skipped : length;
        granules = static_cast<uint32_t>(length - head) / E;
        x = row.x + head;
        out = row.out + head;
    }
    __device__ __forceinline__ Granule load(int granule) const {
        Granule g = empty_granule<In>();
        ptx::load_global_if<16>(granule < granules, x + granule * E, g.word);
        return g;
    }
    // Warps: lanes have granules side by side, the even ones of an even granule. Where results are larger, two lanes then
    // share the first access of the one's, and the second of the other's, so that no access leaves gaps in a sector.
    template <bool Warps = false>
    __device__ __forceinline__ void store(int granule, const Pack<Out, E>& pack, bool vectors) const {
        if constexpr (Warps && sizeof(Pack<Out, E>) == 32) {
            if (vectors) {
                uint32_t half[2][4], theirs[4];
                __builtin_memcpy(half, &pack, sizeof(half));
                const bool odd = granule % 2;
#pragma unroll
                for (int k = 0; k < 4; ++k) theirs[k] = __shfl_xor_sync(~0u, odd ? half[0][k] : half[1][k], 1);
#pragma unroll
                for (int k = 0; k < 4; ++k) (odd ? half[0][k] : half[1][k]) = theirs[k];
                const int even = granule & ~1;
                char* const to = reinterpret_cast<char*>(out + even * E) + 16 * odd;
                if (even < granules) ptx::store_global<16>(to, half[0]);
                if (even + 1 < granules) ptx::store_global<16>(to + 32, half[1]);
                return;
            }
        }
        if (granule >= granules) return;
        if (vectors) {
            store_pack(out + granule * E, pack);
        } else {
#pragma unroll
            for (int k = 0; k < E; ++k) out[granule * E + k] = pack.v[k];
        }
    }
    // Where the k-th element of the ends lies, seen from the first granule; NO_END if there is none.
    __device__ __forceinline__ int end(int k) const {
        const int inside = granules * E;
        return k < head ? k - head : k < length - inside ? k - head + inside : NO_END;
    }
    __device__ __forceinline__ In load_end(int end) const {
        In e = convert<In>(-infinity<float>());
        uint32_t word[sizeof(In) == 8 ? 2 : 1] = {};
        __builtin_memcpy(word, &e, sizeof(e));
        ptx::load_global_if<sizeof(In)>(end != NO_END, x + end, word);
        __builtin_memcpy(&e, word, sizeof(e));
        return e;
    }
    __device__ __forceinline__ void store_end(int end, Out e) const {
        if (end != NO_END) out[end] = e;
    }
};

// A row where all of them are whole granules and no dimension but one walks over them (p.x_access): the way to its first
// load is a third as long as Body's, which is what the time of a short row goes into.
template <class In, class Out> struct WholeRow {
    static constexpr bool ENDS = false;
    static constexpr int E = lanes_of<In>;
    const In* x;
    Out* out;
    int granules;

    __device__ __forceinline__ WholeRow() {}
    template <int Rank> __device__ __forceinline__ WholeRow(const SoftmaxParams<Rank>& p, uint64_t row)
        : x(reinterpret_cast<const In*>(p.x) + static_cast<int64_t>(row) * p.dims[0].strides[0]),
          out(reinterpret_cast<Out*>(p.out) + static_cast<int64_t>(row) * p.dims[0].strides[1]),
          granules(row < p.rows ? static_cast<uint32_t>(p.length) / E : 0) {}
    __device__ __forceinline__ Granule load(int granule) const {
        Granule g = empty_granule<In>();
        ptx::load_global_if<16>(granule < granules, x + granule * E, g.word);
        return g;
    }
    __device__ __forceinline__ void store(int granule, const Pack<Out, E>& pack) const {
        if (granule < granules) store_pack(out + granule * E, pack);
    }
};

// The larger of each two halves of a word.
template <class T> __device__ __forceinline__ uint32_t larger_halves(uint32_t a, uint32_t b) {
#if __CUDA_ARCH__ >= 800
    return same_type<T, bf16> ? ptx::max_bf16(a, b) : ptx::max_f16(a, b);
#else
    Pack<T, 2> p, q;
    __builtin_memcpy(&p, &a, sizeof(p));
    __builtin_memcpy(&q, &b, sizeof(q));
#pragma unroll
    for (int e = 0; e < 2; ++e) p.v[e] = convert<T>(larger(number(p.v[e]), number(q.v[e])));
    __builtin_memcpy(&a, &p, sizeof(p));
    return a;
#endif
}

// Elements of In, as words of memory, in the arithmetic type.
template <class In, class Out, int W>
__device__ __forceinline__ void widen_words(const uint32_t (&word)[W], typename Math<Out>::C (&x)[W * 4 / sizeof(In)]) {
    if constexpr (same_type<In, bf16> && same_type<typename Math<Out>::C, float>) {
        // One instruction an element.
#pragma unroll
        for (int k = 0; k < W; ++k) {
            x[2 * k] = __uint_as_float(word[k] << 16);
            x[2 * k + 1] = __uint_as_float(word[k] & 0xffff0000u);
        }
    } else {
        Pack<In, W * 4 / sizeof(In)> pack;
        __builtin_memcpy(&pack, word, sizeof(pack));
#pragma unroll
        for (int k = 0; k < int(W * 4 / sizeof(In)); ++k) x[k] = widen<Out>(pack.v[k]);
    }
}
template <class In, class Out>
__device__ __forceinline__ void widen_granule(const Granule& granule, typename Math<Out>::C (&x)[lanes_of<In>]) {
    Granule opaque = granule;
    if constexpr (!same_type<In, bf16>) ptx::hide(opaque.word);
    widen_words<In, Out>(opaque.word, x);
}

template <class Out, int E, class C>
__device__ __forceinline__ Pack<Out, E> finish_pack(const Finish<Out>& finish, const C (&x)[E]) {
    Pack<Out, E> pack;
#pragma unroll
    for (int k = 0; k < E; ++k) pack.v[k] = finish(x[k]);
    return pack;
}
