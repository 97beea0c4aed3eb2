// Contiguous rows as vectors of 16 aligned bytes. Head and tail, before the first and behind the last whole vector, are
// loaded as incomplete vectors (Vectors, Row), as single elements (HeadAndTail, Body), or absent (WholeRow).
#pragma once

#include "softmax.cuh"

// Elements between the 16-byte boundary before `at` and `at`.
template <class T> __device__ __forceinline__ int offset_in_vector(const T* at) {
    return static_cast<uint32_t>(reinterpret_cast<uint64_t>(at)) % 16 / sizeof(T);
}

// A row as vectors of 16 aligned bytes of T. The first vector begins `offset` elements before the row. Elements before
// and behind the row are never stored.
template <class T, class Index> struct Vectors {
    static constexpr int E = lanes_of<T>;
    Index length;
    int offset;

    __device__ __forceinline__ Vectors() {}
    __device__ __forceinline__ Vectors(const T* row, Index length) : length(length), offset(offset_in_vector(row)) {}

    // The index of a vector's first element, and whether the whole vector is in the row.
    __device__ __forceinline__ Index first(Index vector) const { return vector * E - offset; }
    __device__ __forceinline__ bool whole(Index first) const { return first >= 0 && first <= length - E; }

    // The vector at element i, loaded element by element; elements outside of the row become `outside`.
    __device__ __forceinline__ Vector load_elements(const T* row, Index i, float outside) const {
        Pack<T, E> pack;
#pragma unroll
        for (int k = 0; k < E; ++k) {
            const bool inside = i + k >= 0 && i + k < length;
            pack.v[k] = inside ? row[i + k] : convert<T>(outside);
        }
        return Vector::of(pack);
    }
    // `aligned`: the result has the alignment of the vectors.
    template <class Out>
    __device__ __forceinline__ void store(Out* out, Index vector, const Pack<Out, E>& pack, bool aligned) const {
        const Index i = first(vector);
        if (aligned && whole(i)) {
            store_pack(out + i, pack);
        } else {
#pragma unroll
            for (int k = 0; k < E; ++k) {
                if (i + k >= 0 && i + k < length) out[i + k] = pack.v[k];
            }
        }
    }
};

// A row of x and its result, in vectors of x. Elements outside of the row read as -inf.
template <class In, class Out, class Index> struct Row : Vectors<In, Index> {
    using Base = Vectors<In, Index>;
    using Base::E;
    using Base::first;
    using Base::length;
    using Base::whole;
    const In* x;
    Out* out;

    __device__ __forceinline__ Row() {}
    __device__ __forceinline__ Row(const In* x, Out* out, Index length) : Base(x, length), x(x), out(out) {}

    __device__ __forceinline__ Vector load(Index vector) const {
        const Index i = first(vector);
        return whole(i) ? load_vector(x + i) : load_elements(i);
    }
    __device__ __forceinline__ Vector load_elements(Index i) const {
        return Base::load_elements(x, i, -infinity<float>());
    }
    // The other way to load: every vector whole. The first and the last may include elements of other rows, which
    // `complete` sets to -inf. At an edge of the tensor, whose addresses are `low` to `high`, nothing surrounds the
    // row, and `complete` loads its elements one by one.
    __device__ __forceinline__ bool at_edge(uint64_t low, uint64_t high) const {
        const uint64_t begin = reinterpret_cast<uint64_t>(x), end = begin + static_cast<uint64_t>(length) * sizeof(In);
        return begin / 16 * 16 < low || (end + 15) / 16 * 16 > high;
    }
    __device__ __forceinline__ Vector load_around(Index vector, bool edge) const {
        const Index i = first(vector);
        Vector g = empty_vector<In>();
        ptx::load_global_if<16>(i < length && (!edge || whole(i)), x + i, g.word);
        return g;
    }
    __device__ __forceinline__ void complete(Index vector, bool edge, Vector& g) const {
        const Index i = first(vector);
        if (i >= length || whole(i)) return;
        auto pack = g.unpack<In>();
#pragma unroll
        for (int k = 0; k < E; ++k) {
            const bool inside = i + k >= 0 && i + k < length;
            if (edge && inside) pack.v[k] = x[i + k];
            if (!inside) pack.v[k] = convert<In>(-infinity<float>());
        }
        g = Vector::of(pack);
    }
    __device__ __forceinline__ void store(Index vector, const Pack<Out, E>& pack, bool aligned) const {
        Base::store(out, vector, pack, aligned);
    }
    // The same by a whole warp whose lanes have contiguous vectors. Where results and x are aligned differently, an
    // aligned access of a lane ends with elements of the next lane.
    __device__ __forceinline__ void store_across_lanes(Index vector, const Pack<Out, E>& pack, bool aligned) const {
        // A float64 by itself is an access of 8 bytes, and fine.
        if (aligned || sizeof(Out) == 8) return store(vector, pack, aligned);
        const Index i = first(vector);
        const uint32_t skipped = -static_cast<uint32_t>(reinterpret_cast<uint64_t>(out + i)) % 16;  // bytes
        const int ahead = skipped / sizeof(Out), lane = threadIdx.x % 32;
        // Distances to the row's begin and end, clamped to two vectors.
        const int from = i < 2 * E ? static_cast<int>(i) : 2 * E;
        const int left = length - i < 2 * E ? static_cast<int>(length - i) : 2 * E;
        // Whether this lane, and the one before it, store their aligned accesses.
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
        // Shifted down by `skipped` bytes.
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

// The row at an index; a row without elements if the index is past the last row. Index: int where a row has fewer than
// 2^31 elements.
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

// The head and tail of contiguous elements: `head` elements before the first whole vector, and the elements behind the
// last, together fewer than two vectors'. They are singles: elements that move one at a time.
template <int E> struct HeadAndTail {
    static constexpr int NO_SINGLE = -E;
    int vectors, head, length;

    __device__ __forceinline__ HeadAndTail() {}
    // `skipped`: elements before the first 16-byte boundary, if there are as many.
    __device__ __forceinline__ HeadAndTail(int skipped, int length) : length(length) {
        head = skipped < length ? skipped : length;
        vectors = static_cast<uint32_t>(length - head) / E;
    }
    // Index of the k-th single, relative to the first whole vector; NO_SINGLE if there is none.
    __device__ __forceinline__ int single(int k) const {
        const int inside = vectors * E;
        return k < head ? k - head : k < length - inside ? k - head + inside : NO_SINGLE;
    }
    // The same, relative to the first element.
    __device__ __forceinline__ int single_in_row(int k) const {
        const int at = k < head ? k : k + vectors * E;
        return at < length ? at : NO_SINGLE;
    }
};

// A row as its whole vectors and its singles, one single to a thread. So nothing around the row is read, and no thread
// has a vector to complete.
template <class In, class Out> struct Body : HeadAndTail<lanes_of<In>> {
    static constexpr bool SINGLES = true;
    static constexpr int E = lanes_of<In>;
    using HeadAndTail<E>::NO_SINGLE;
    using HeadAndTail<E>::vectors;
    const In* x;  // of the first vector
    Out* out;

    __device__ __forceinline__ Body() {}
    template <int Rank> __device__ __forceinline__ Body(const SoftmaxParams<Rank>& p, uint64_t row)
        : Body(row_at<In, Out, int>(p, row)) {}
    __device__ __forceinline__ explicit Body(const Row<In, Out, int>& row)
        : HeadAndTail<E>(row.offset > 0 ? E - row.offset : 0, row.length),
          x(row.x + this->head),
          out(row.out + this->head) {}
    __device__ __forceinline__ Vector load(int vector) const {
        Vector g = empty_vector<In>();
        ptx::load_global_if<16>(vector < vectors, x + vector * E, g.word);
        return g;
    }
    // Warps: the lanes of whole warps have contiguous vectors, even lanes even vectors. Where a vector's results are
    // two accesses, a pair of lanes exchanges halves, so that both lanes store one vector's results and then the
    // other's, and no access leaves gaps in a sector.
    template <bool Warps = false>
    __device__ __forceinline__ void store(int vector, const Pack<Out, E>& pack, bool aligned) const {
        if constexpr (Warps && sizeof(Pack<Out, E>) == 32) {
            if (aligned) {
                uint32_t half[2][4], theirs[4];
                __builtin_memcpy(half, &pack, sizeof(half));
                const bool odd = vector % 2;
#pragma unroll
                for (int k = 0; k < 4; ++k) theirs[k] = __shfl_xor_sync(~0u, odd ? half[0][k] : half[1][k], 1);
#pragma unroll
                for (int k = 0; k < 4; ++k) (odd ? half[0][k] : half[1][k]) = theirs[k];
                const int even = vector & ~1;
                char* const to = reinterpret_cast<char*>(out + even * E) + 16 * odd;
                if (even < vectors) ptx::store_global<16>(to, half[0]);
                if (even + 1 < vectors) ptx::store_global<16>(to + 32, half[1]);
                return;
            }
        }
        if (vector >= vectors) return;
        if (aligned) {
            store_pack(out + vector * E, pack);
        } else {
#pragma unroll
            for (int k = 0; k < E; ++k) out[vector * E + k] = pack.v[k];
        }
    }
    __device__ __forceinline__ In load_single(int at) const {
        In e = convert<In>(-infinity<float>());
        uint32_t word[sizeof(In) == 8 ? 2 : 1] = {};
        __builtin_memcpy(word, &e, sizeof(e));
        ptx::load_global_if<sizeof(In)>(at != NO_SINGLE, x + at, word);
        __builtin_memcpy(&e, word, sizeof(e));
        return e;
    }
    __device__ __forceinline__ void store_single(int at, Out e) const {
        if (at != NO_SINGLE) out[at] = e;
    }
};

// A row of whole vectors, in a tensor whose rows are one stride apart (p.x_access). Its first load comes after a third
// of Body's instructions; these are most of a short row's time.
template <class In, class Out> struct WholeRow {
    static constexpr bool SINGLES = false;
    static constexpr int E = lanes_of<In>;
    const In* x;
    Out* out;
    int vectors;

    __device__ __forceinline__ WholeRow() {}
    template <int Rank> __device__ __forceinline__ WholeRow(const SoftmaxParams<Rank>& p, uint64_t row)
        : x(reinterpret_cast<const In*>(p.x) + static_cast<int64_t>(row) * p.dims[0].strides[0]),
          out(reinterpret_cast<Out*>(p.out) + static_cast<int64_t>(row) * p.dims[0].strides[1]),
          vectors(row < p.rows ? static_cast<uint32_t>(p.length) / E : 0) {}
    __device__ __forceinline__ Vector load(int vector) const {
        Vector g = empty_vector<In>();
        ptx::load_global_if<16>(vector < vectors, x + vector * E, g.word);
        return g;
    }
    __device__ __forceinline__ void store(int vector, const Pack<Out, E>& pack) const {
        if (vector < vectors) store_pack(out + vector * E, pack);
    }
};
