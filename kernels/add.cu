// targets: 75 80 90 100 120 ptx:75
//
// out = x + alpha * y, elementwise: operands are converted to the result's dtype, the sum is computed in
// float32 for halves (float64 for float64, wrapping integers, logical or for bool) and rounded once.
//
// Per element: 2 flops; 3 element sizes of traffic, 2 with a number for y or a broadcast one. All about memory.
//
// Variants, as chosen in src/cuda/plan/add.rs:
//   vector       one dtype, everything contiguous, all pointers equally far from a 16-byte boundary.
//                Fixed-size grid: every block owns one tile, nothing loops.
//   vector_loop  the same, as a grid-stride loop over the tiles.
//   strided      one dtype, up to 6 dimensions of any strides: broadcast, sliced, permuted, or contiguous
//                with unequal misalignment. A thread makes 16 consecutive, aligned bytes of the result and
//                reads each operand with the widest accesses that its address allows. 32-bit indices.
//   convert      the same for any mix of dtypes, any number of dimensions and any size.
// y may be a number in all of them.
//
// Loads in flight: VECTORS (2) 16-byte loads per operand and thread are issued before the first use.
// Measured on an H200, cold L2, copy of a large tensor 4253 GB/s:
//   vector       bf16 2^24 to 2^28 elements 3.4 to 4.3 TB/s, 0.98 to 1.00 of torch.add; blocks of 128 threads
//                are 1 % faster than 256. Streaming hints, and 1 or 4 vectors instead of 2, gain up to 4 % at
//                2^22 elements and 1.6 % at 2^24, a different one each time, and nothing at 2^26.
//   vector_loop  slower by 1 % at 2^20 elements and 8 % from 2^26: kept as the other classic schedule, and for
//                what no grid holds.

#include "dtype.cuh"
#include "index.cuh"

constexpr int INLINE_RANK = 6;
constexpr int MAX_RANK = 64;
constexpr int THREADS = 256;  // at most; small problems use fewer
constexpr int VECTORS = 2;

// Mirrored by AddParams in src/cuda/plan/add.rs. The dimensions come last, and a kernel declares only as
// many of them as it can use: what it does not declare is not copied by a launch.
template <int Rank> struct AddParams {
    uint64_t x, y, out;       // addresses
    uint64_t elements;
    uint64_t tiles;           // pieces of work for a block
    uint64_t x_begin, x_end;  // bytes that are sure to be x's own memory
    uint64_t y_begin, y_end;
    uint64_t alpha, scalar;   // in the arithmetic type, low bits
    uint32_t scalar_y;        // y is `scalar`
    uint32_t head;  // vector: elements before the first boundary. Else: elements by which chunk 0 starts before index 0
    uint32_t x_tag, y_tag;
    uint32_t rank;  // at least 1
    uint32_t linear;  // the result is contiguous
    Dim<3> dims[Rank];  // strides of x, y, out
};
static_assert(sizeof(AddParams<INLINE_RANK>) == 112 + 48 * INLINE_RANK, "");
static_assert(sizeof(AddParams<MAX_RANK>) == 112 + 48 * MAX_RANK && sizeof(AddParams<MAX_RANK>) < 4096, "");

// What T is added in.
template <class T> struct ArithmeticOf {
    using type = uint32_t;
};
template <> struct ArithmeticOf<i64> {
    using type = uint64_t;
};
template <> struct ArithmeticOf<f16> {
    using type = float;
};
template <> struct ArithmeticOf<bf16> {
    using type = float;
};
template <> struct ArithmeticOf<f32> {
    using type = float;
};
template <> struct ArithmeticOf<f64> {
    using type = double;
};
template <class T> using Arithmetic = typename ArithmeticOf<T>::type;

template <class A> __device__ __forceinline__ A from_bits(uint64_t bits) {
    if constexpr (same_type<A, float>) {
        return __uint_as_float(static_cast<uint32_t>(bits));
    } else if constexpr (same_type<A, double>) {
        return __longlong_as_double(static_cast<int64_t>(bits));
    } else {
        return static_cast<A>(bits);
    }
}

template <class T> __device__ __forceinline__ Arithmetic<T> widen(T v) { return static_cast<Arithmetic<T>>(number(v)); }

// x + alpha * y in one fused multiply-add, as torch's kernels have it: exact for alpha = 1.
template <class T> __device__ __forceinline__ T sum(T x, Arithmetic<T> alpha, Arithmetic<T> y) {
    using A = Arithmetic<T>;
    const A a = widen(x);
    if constexpr (same_type<T, boolean>) {
        return boolean{static_cast<uint8_t>(a | (alpha & y))};
    } else if constexpr (same_type<A, float>) {
        return convert<T>(fmaf(alpha, y, a));
    } else if constexpr (same_type<A, double>) {
        return fma(alpha, y, a);
    } else {
        return static_cast<T>(a + alpha * y);
    }
}

// ---------------------------------------------------------------------------------------------- vector

// Full: no vector of this tile is beyond the end. ScalarY is a compile-time branch because a run-time one
// between the two operands' loads made the compiler wait for x before it asked for y.
template <class T, bool Full, bool ScalarY>
__device__ __forceinline__ void add_tile(const AddParams<1>& p, uint64_t first, uint64_t vectors) {
    constexpr int E = lanes_of<T>;
    const auto alpha = from_bits<Arithmetic<T>>(p.alpha);
    const auto scalar = from_bits<Arithmetic<T>>(p.scalar);
    const T* x = reinterpret_cast<const T*>(p.x) + p.head;
    const T* y = reinterpret_cast<const T*>(p.y) + p.head;
    T* out = reinterpret_cast<T*>(p.out) + p.head;

    const auto inside = [&](int i) { return Full || first + i * blockDim.x < vectors; };
    const auto at = [&](int i) { return (first + i * blockDim.x) * E; };
    Pack<T, E> a[VECTORS], b[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (!inside(i)) continue;
        a[i] = load_pack<T, E>(x + at(i));
        if (!ScalarY) b[i] = load_pack<T, E>(y + at(i));
    }
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        if (!inside(i)) continue;
#pragma unroll
        for (int k = 0; k < E; ++k) a[i].v[k] = sum(a[i].v[k], alpha, ScalarY ? scalar : widen(b[i].v[k]));
        store_pack(out + at(i), a[i]);
    }
}

template <class T, bool Loop, bool ScalarY> __device__ __forceinline__ void add_tiles(const AddParams<1>& p) {
    constexpr int E = lanes_of<T>;
    const uint64_t vectors = (p.elements - p.head) / E;
    const uint64_t per_tile = blockDim.x * VECTORS, full_tiles = vectors / per_tile;
    uint64_t tile = blockIdx.x;
    if constexpr (Loop) {
#pragma unroll 1
        for (; tile < full_tiles; tile += gridDim.x) {
            add_tile<T, true, ScalarY>(p, tile * per_tile + threadIdx.x, vectors);
        }
    } else if (tile < full_tiles) {
        add_tile<T, true, ScalarY>(p, tile * per_tile + threadIdx.x, vectors);
    }
    if (tile == full_tiles) add_tile<T, false, ScalarY>(p, tile * per_tile + threadIdx.x, vectors);

    // Fewer than 16 bytes before the first boundary and after the last.
    const uint64_t body = vectors * E;
    if (blockIdx.x == 0 && threadIdx.x < p.elements - body) {
        const uint64_t i = threadIdx.x < p.head ? threadIdx.x : body + threadIdx.x;
        const auto b = ScalarY ? from_bits<Arithmetic<T>>(p.scalar) : widen(reinterpret_cast<const T*>(p.y)[i]);
        const T a = reinterpret_cast<const T*>(p.x)[i];
        reinterpret_cast<T*>(p.out)[i] = sum(a, from_bits<Arithmetic<T>>(p.alpha), b);
    }
}

template <class T, bool Loop> __device__ __forceinline__ void add_vector(const AddParams<1>& p) {
    if (p.scalar_y) {
        add_tiles<T, Loop, true>(p);
    } else {
        add_tiles<T, Loop, false>(p);
    }
}

// --------------------------------------------------------------------------------------------- strided

// Where the elements of a chunk are in an operand: `left` of them from offset `here` on, and, if the chunk
// runs over the end of the last dimension, the others from offset `there` on.
template <class Index> struct Segments {
    Signed<Index> here, there;
    Index left;

    __device__ __forceinline__ Signed<Index> at(int k, Signed<Index> stride) const {
        return k < left ? here + k * stride : there + static_cast<Signed<Index>>(k - left) * stride;
    }
};

// An operand of the result's own dtype: 16 bytes of it. Fetching and unpacking are apart, so that both
// operands' loads are in flight together.
template <class T> struct Same {
    static constexpr int WIDTH = lanes_of<T>;
    static constexpr uint32_t SPLAT = 16;
    Granule low, high;
    uint32_t skew;  // bytes by which the elements start later than `low`; SPLAT: all are the first of `low`

    template <class Index>
    __device__ __forceinline__ void fetch(uint64_t base, Segments<Index> segments, int64_t stride, uint64_t begin,
                                          uint64_t end, uint32_t) {
        const T* p = reinterpret_cast<const T*>(base) + segments.here;
        const uint64_t address = reinterpret_cast<uint64_t>(p);
        const uint32_t past = address % 16;
        const bool whole = segments.left >= WIDTH;
        skew = 0;
        if (whole && stride == 1 && past == 0) {
            low = load_granule(p);
        } else if (whole && stride == 1 && address - past >= begin && address - past + 32 <= end) {
            // Unaligned: the two aligned vectors around it, as long as both are the operand's own memory.
            const char* around = reinterpret_cast<const char*>(p) - past;
            low = load_granule(around);
            high = load_granule(around + 16);
            skew = past;
        } else if (whole && stride == 0) {
            const T v = *p;
            __builtin_memcpy(&low, &v, sizeof(v));
            skew = SPLAT;
        } else {
            Pack<T, WIDTH> pack;
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) pack.v[k] = reinterpret_cast<const T*>(base)[segments.at(k, stride)];
            __builtin_memcpy(&low, &pack, sizeof(low));
        }
    }

    __device__ __forceinline__ Pack<T, WIDTH> get(uint32_t) const {
        Pack<T, WIDTH> pack;
        uint32_t w[8];
        __builtin_memcpy(w, &low, sizeof(low));
        __builtin_memcpy(w + 4, &high, sizeof(high));
        if (skew == SPLAT) {
            T v;
            __builtin_memcpy(&v, w, sizeof(v));
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) pack.v[k] = v;
            return pack;
        }
        if (skew != 0) {
#pragma unroll
            for (int i = 0; i < 6; ++i) w[i] = skew & 8 ? w[i + 2] : w[i];
#pragma unroll
            for (int i = 0; i < 5; ++i) w[i] = skew & 4 ? w[i + 1] : w[i];
#pragma unroll
            for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], skew % 4 * 8);
        }
        __builtin_memcpy(&pack, w, sizeof(pack));
        return pack;
    }

    static __device__ __forceinline__ T one(uint64_t base, int64_t offset, uint32_t) {
        return reinterpret_cast<const T*>(base)[offset];
    }
};

// An operand of any dtype: the bits of 4 elements, converted when unpacked.
template <class T> struct Tagged {
    static constexpr int WIDTH = 4;
    uint64_t bits[WIDTH];

    template <class U, class Index>
    __device__ __forceinline__ void fetch_as(uint64_t base, Segments<Index> segments, int64_t stride) {
        const U* p = reinterpret_cast<const U*>(base);
        if (segments.left >= WIDTH && stride == 1 &&
            reinterpret_cast<uint64_t>(p + segments.here) % widest<U, WIDTH> == 0) {
            const Pack<U, WIDTH> pack = load_pack<U, WIDTH>(p + segments.here);
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) bits[k] = pack.v[k];
        } else {
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) bits[k] = p[segments.at(k, stride)];
        }
    }
    template <class Index>
    __device__ __forceinline__ void fetch(uint64_t base, Segments<Index> segments, int64_t stride, uint64_t, uint64_t,
                                          uint32_t tag) {
        switch (tag) {
        case TAG_BOOL:
        case TAG_U8:
        case TAG_I8: fetch_as<uint8_t>(base, segments, stride); break;
        case TAG_I16:
        case TAG_F16:
        case TAG_BF16: fetch_as<uint16_t>(base, segments, stride); break;
        case TAG_I32:
        case TAG_F32: fetch_as<uint32_t>(base, segments, stride); break;
        default: fetch_as<uint64_t>(base, segments, stride); break;
        }
    }
    __device__ __forceinline__ Pack<T, WIDTH> get(uint32_t tag) const {
        Pack<T, WIDTH> pack;
        with_type(tag, [&](auto type) {
#pragma unroll
            for (int k = 0; k < WIDTH; ++k) {
                __builtin_memcpy(&type, &bits[k], sizeof(type));
                pack.v[k] = convert<T>(type);
            }
        });
        return pack;
    }

    static __device__ __forceinline__ T one(uint64_t base, int64_t offset, uint32_t tag) {
        T v;
        with_type(tag, [&](auto type) { v = convert<T>(reinterpret_cast<const decltype(type)*>(base)[offset]); });
        return v;
    }
};

// The elements from flat index `first` on, one after the other.
template <class T, class Operand, class Index, int Rank>
__device__ __forceinline__ void add_ragged(const AddParams<Rank>& p, int64_t first) {
    const auto alpha = from_bits<Arithmetic<T>>(p.alpha);
#pragma unroll 1
    for (int k = 0; k < Operand::WIDTH; ++k) {
        const int64_t i = first + k;
        if (i < 0 || i >= static_cast<int64_t>(p.elements)) continue;
        const auto o = locate(p.dims, p.rank, static_cast<Index>(i));
        const T a = Operand::one(p.x, o.at[0], p.x_tag);
        const auto b = p.scalar_y ? from_bits<Arithmetic<T>>(p.scalar) : widen(Operand::one(p.y, o.at[1], p.y_tag));
        reinterpret_cast<T*>(p.out)[o.at[2]] = sum(a, alpha, b);
    }
}

template <class T, class Operand, class Index, int Rank>
__device__ __forceinline__ void add_strided(const AddParams<Rank>& p) {
    constexpr int E = Operand::WIDTH;
    const auto alpha = from_bits<Arithmetic<T>>(p.alpha);
    const auto scalar = from_bits<Arithmetic<T>>(p.scalar);
    const Dim<3>& inner = p.dims[p.rank - 1];
    for (uint64_t tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
        const uint64_t chunk = tile * (blockDim.x * VECTORS) + threadIdx.x;
        const auto start = [&](int i) { return static_cast<int64_t>((chunk + i * blockDim.x) * E) - p.head; };
        Operand a[VECTORS], b[VECTORS];
        Signed<Index> to[VECTORS];
        uint32_t ragged = 0;  // bit i: chunk i is none of the regular ones
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const int64_t first = start(i);
            const auto o = locate(p.dims, p.rank, static_cast<Index>(first < 0 ? 0 : first));
            const Index left = static_cast<Index>(inner.size) - o.inner;
            to[i] = o.at[2];
            const bool crossing = left < E;
            if (first < 0 || first + E > static_cast<int64_t>(p.elements) ||
                (crossing && (!p.linear || inner.size < E))) {
                ragged |= 1u << i;
                continue;
            }
            auto next = o;
            if (crossing) next = locate(p.dims, p.rank, static_cast<Index>(first + left));
            a[i].fetch(p.x, Segments<Index>{o.at[0], next.at[0], left}, inner.strides[0], p.x_begin, p.x_end, p.x_tag);
            if (p.scalar_y) continue;
            b[i].fetch(p.y, Segments<Index>{o.at[1], next.at[1], left}, inner.strides[1], p.y_begin, p.y_end, p.y_tag);
        }
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            if (ragged & (1u << i)) continue;
            Pack<T, E> r = a[i].get(p.x_tag);
            if (p.scalar_y) {
#pragma unroll
                for (int k = 0; k < E; ++k) r.v[k] = sum(r.v[k], alpha, scalar);
            } else {
                const Pack<T, E> y = b[i].get(p.y_tag);
#pragma unroll
                for (int k = 0; k < E; ++k) r.v[k] = sum(r.v[k], alpha, widen(y.v[k]));
            }
            T* out = reinterpret_cast<T*>(p.out) + to[i];
            const int64_t stride = inner.strides[2];
            if (stride == 1 && reinterpret_cast<uint64_t>(out) % widest<T, E> == 0) {
                store_pack(out, r);
            } else {
#pragma unroll
                for (int k = 0; k < E; ++k, out += stride) *out = r.v[k];
            }
        }
#pragma unroll 1
        for (int i = 0; i < VECTORS; ++i) {
            if (ragged & (1u << i)) add_ragged<T, Operand, Index>(p, start(i));
        }
    }
}

// -------------------------------------------------------------------------------------------- exported

#define EXPORT(T, NAME)                                                           \
    extern "C" __global__ void __launch_bounds__(THREADS, 4)                      \
        add_vector_##NAME(const __grid_constant__ AddParams<1> p) {               \
        add_vector<T, false>(p);                                                  \
    }                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 4)                      \
        add_vector_loop_##NAME(const __grid_constant__ AddParams<1> p) {          \
        add_vector<T, true>(p);                                                   \
    }                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, sizeof(T) == 1 ? 2 : 3) \
        add_strided_##NAME(const __grid_constant__ AddParams<INLINE_RANK> p) {    \
        add_strided<T, Same<T>, uint32_t>(p);                                     \
    }                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS, 2)                      \
        add_convert_##NAME(const __grid_constant__ AddParams<MAX_RANK> p) {       \
        add_strided<T, Tagged<T>, uint64_t>(p);                                   \
    }

EXPORT(boolean, bool)
EXPORT(u8, u8)
EXPORT(i8, i8)
EXPORT(i16, i16)
EXPORT(i32, i32)
EXPORT(i64, i64)
EXPORT(f16, f16)
EXPORT(bf16, bf16)
EXPORT(f32, f32)
EXPORT(f64, f64)
