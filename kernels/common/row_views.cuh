// Where a row of neighbouring elements lies, and how its ends are loaded and stored, which accesses of 16 aligned bytes do not fit:
// in whole vectors (Vectors, Row), element by element (Ends, Body), or not at all (WholeRow).
#pragma once

#include "softmax.cuh"

// Of neighbouring elements from `at` on, how many lie between 16 aligned bytes and them.
template <class T> __device__ __forceinline__ int misaligned(const T* at) {
    return static_cast<uint32_t>(reinterpret_cast<uint64_t>(at)) % 16 / sizeof(T);
}

// A row cut into vectors of 16 aligned bytes of T. `shift` elements of the first vector lie before the row; they, and what
// lies behind its end, are never touched.
template <class T, class Index> struct Vectors {
    static constexpr int E = lanes_of<T>;
    Index length;
    int shift;

    __device__ __forceinline__ Vectors() {}
    __device__ __forceinline__ Vectors(const T* row, Index length) : length(length), shift(misaligned(row)) {}

    // Of the first element of a vector: its index, and whether the whole vector is in the row.
    __device__ __forceinline__ Index first(Index vector) const { return vector * E - shift; }
    __device__ __forceinline__ bool whole(Index first) const { return first >= 0 && first <= length - E; }

    // From element i on, where elements outside of the row count as `outside`.
    __device__ __forceinline__ Vector load_part(const T* row, Index i, float outside) const {
        Pack<T, E> pack;
#pragma unroll
        for (int k = 0; k < E; ++k) {
            const bool inside = i + k >= 0 && i + k < length;
            pack.v[k] = inside ? row[i + k] : convert<T>(outside);
        }
        return Vector::of(pack);
    }
    // `aligned`: the result is aligned as the vectors are.
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

// A row of x and its result, in vectors of x. What lies outside reads as -inf.
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
        return whole(i) ? load_vector(x + i) : load_part(i);
    }
    __device__ __forceinline__ Vector load_part(Index i) const { return Base::load_part(x, i, -infinity<float>()); }
    // The other way to load: all vectors whole, those at the row's ends together with elements of other rows, which
    // `complete` then makes -inf. Only at an edge of the tensor, between `low` and `high`, is there nothing around the
    // row, and `complete` fetches the elements themselves.
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
    // The same for a whole warp whose lanes have vectors side by side. Where results are aligned otherwise than x, each
    // lane lacks the end of an aligned access, which the next lane has.
    __device__ __forceinline__ void store_across(Index vector, const Pack<Out, E>& pack, bool aligned) const {
        // A float64 by itself is an access of 8 bytes, and fine.
        if (aligned || sizeof(Out) == 8) return store(vector, pack, aligned);
        const Index i = first(vector);
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

// Elements of which all but those at the ends are whole vectors: the `head` before the first, and those behind the last, less
// than two vectors'.
template <int E> struct Ends {
    static constexpr int NO_END = -E;
    int vectors, head, length;

    __device__ __forceinline__ Ends() {}
    // `skipped`: elements before 16 aligned bytes, if there are as many.
    __device__ __forceinline__ Ends(int skipped, int length) : length(length) {
        head = skipped < length ? skipped : length;
        vectors = static_cast<uint32_t>(length - head) / E;
    }
    // Where the k-th element of the ends lies, seen from the first vector; NO_END if there is none.
    __device__ __forceinline__ int end(int k) const {
        const int inside = vectors * E;
        return k < head ? k - head : k < length - inside ? k - head + inside : NO_END;
    }
    // The same, seen from the first element.
    __device__ __forceinline__ int end_element(int k) const {
        const int at = k < head ? k : k + vectors * E;
        return at < length ? at : NO_END;
    }
};

// A row as the vectors that are wholly in it, and its ends, of which as many threads take an element each. So nothing around
// the row is read, and no thread has a vector to complete.
template <class In, class Out> struct Body : Ends<lanes_of<In>> {
    static constexpr bool ENDS = true;
    static constexpr int E = lanes_of<In>;
    using Ends<E>::NO_END;
    using Ends<E>::vectors;
    const In* x;  // of the first vector
    Out* out;

    __device__ __forceinline__ Body() {}
    template <int Rank> __device__ __forceinline__ Body(const SoftmaxParams<Rank>& p, uint64_t row)
        : Body(row_at<In, Out, int>(p, row)) {}
    __device__ __forceinline__ explicit Body(const Row<In, Out, int>& row)
        : Ends<E>(row.shift > 0 ? E - row.shift : 0, row.length), x(row.x + this->head), out(row.out + this->head) {}
    __device__ __forceinline__ Vector load(int vector) const {
        Vector g = empty_vector<In>();
        ptx::load_global_if<16>(vector < vectors, x + vector * E, g.word);
        return g;
    }
    // Warps: lanes have vectors side by side, the even ones of an even vector. Where results are larger, two lanes then
    // share the first access of the one's, and the second of the other's, so that no access leaves gaps in a sector.
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

// A row where all of them are whole vectors and no dimension but one walks over them (p.x_access): the way to its first
// load is a third as long as Body's, which is what the time of a short row goes into.
template <class In, class Out> struct WholeRow {
    static constexpr bool ENDS = false;
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
