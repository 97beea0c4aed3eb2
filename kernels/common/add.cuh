// What the files of add share: the parameter struct, the arithmetic, and loads of operands to registers.
#pragma once

#include "dtype.cuh"
#include "index.cuh"
#include "ptx/grid.cuh"

// Mirrored by AddParams in src/cuda/plan/add/params.rs. The dimensions come last: `deep` only has more of them.
template <int Rank> struct AddParams {
    // First what the fastest kernel reads: each 64 bytes of parameters that a block reads cost time.
    uint64_t x, y, out;  // addresses of index 0
    uint64_t elements;
    uint64_t vectors;         // along the last dimension; elements in `strided` and `deep`, tiles in `transposed`
    uint64_t alpha, scalar;   // in the arithmetic type, low bits
    uint32_t head;            // vector, misaligned, repeated: elements before the first 16 bytes that are made at once
    uint32_t y_size;          // of an element; y has none if it is `scalar`
    uint64_t items, groups;   // all of the work; groups of rows along the dimension before the last
    uint64_t x_begin, x_end;  // bytes that are sure to be x's own memory
    uint64_t y_begin, y_end;
    Divisor by_vectors, by_groups;
    // add_strided.cu: a thread's vectors start in row group * group_step, and are these rows, vectors and bytes (of x,
    // y, out) apart; a block's items begin `span` vectors after those of the block before.
    uint64_t row_step, vector_step;
    int64_t steps[3];
    uint64_t span;
    uint32_t group_step;
    uint32_t x_tag, y_tag;
    uint32_t x_size;        // of an element
    uint32_t x_one, y_one;  // one element stands for all of a vector
    uint32_t flags;
    uint32_t rank;      // at least 2, but for vector, which has no dimensions
    Dim<3> dims[Rank];  // strides of x, y, out, in bytes
};
static_assert(sizeof(AddParams<INLINE_RANK>) == 224 + 48 * INLINE_RANK, "");
static_assert(sizeof(AddParams<MAX_RANK>) == 224 + 48 * MAX_RANK && sizeof(AddParams<MAX_RANK>) < 4096, "");

constexpr uint32_t SAME_DTYPE = 1, X_TRANSPOSED = 2, Y_TRANSPOSED = 4, ALIGNED = 8, ROW_X = 16;

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

// What is known of an operand for the whole launch.
struct Access {
    uint64_t begin, end;  // bytes that are sure to be its own memory
    uint32_t tag, size;   // of an element; size 0: there is no operand
    bool one;             // one element stands for all of a vector
};
template <int Rank> __device__ __forceinline__ Access access_x(const AddParams<Rank>& p) {
    return {p.x_begin, p.x_end, p.x_tag, p.x_size, p.x_one != 0};
}
template <int Rank> __device__ __forceinline__ Access access_y(const AddParams<Rank>& p) {
    return {p.y_begin, p.y_end, p.y_tag, p.y_size, p.y_one != 0};
}

template <class U> __device__ __forceinline__ U element_of(const uint32_t* w) {
    U v;
    __builtin_memcpy(&v, w, sizeof(v));
    return v;
}

// Operands on their way: `fetch` loads a vector, `get` unpacks all vectors of a thread, so that all loads of a thread
// are in flight together. Loads of one thread that may both be taken, or that differ in width, have registers of their
// own: before a register is loaded into, taken or not, the compiler waits for what was loaded into it before.

// E elements of T: the one vector of 16 bytes that they are, or one element.
template <class T, int E> struct Own {
    using type = T;
    using Element = Own<T, 1>;
    static constexpr int WIDTH = E;
    uint32_t vector[E > 1 ? 4 : 1], single[sizeof(T) == 8 ? 2 : 1];
    static constexpr bool NEIGHBOURS = false;  // reads beside the vector

    static __device__ __forceinline__ bool fits(uint64_t, const Access&) { return true; }
    __device__ __forceinline__ void fetch(uint64_t address, bool wanted, const Access& a) {
        const void* p = reinterpret_cast<const void*>(address);
        wanted = wanted && a.size != 0;
        if constexpr (E > 1) ptx::load_global_if<16>(wanted && !a.one, p, vector);
        ptx::load_global_if<sizeof(T)>(wanted && (E == 1 || a.one), p, single);
    }
    template <int N>
    static __device__ __forceinline__ void get(const Own (&from)[N], Pack<T, E> (&to)[N], const Access& a) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (E == 1 || a.one) {
#pragma unroll
                for (int k = 0; k < E; ++k) to[i].v[k] = element_of<T>(from[i].single);
            } else {
                __builtin_memcpy(&to[i], from[i].vector, sizeof(to[i]));
            }
        }
    }
};

// 16 bytes of T wherever they begin, out of the two vectors around them, if both are the operand's own memory.
template <class T> struct Misaligned {
    using type = T;
    using Element = Own<T, 1>;
    static constexpr int WIDTH = lanes_of<T>;
    uint32_t vectors[8], single[sizeof(T) == 8 ? 2 : 1], past;
    static constexpr bool NEIGHBOURS = true;

    static __device__ __forceinline__ bool fits(uint64_t address, const Access& a) {
        const uint64_t past = address % 16;
        return a.one || past == 0 || a.size == 0 || (address - past >= a.begin && address - past + 32 <= a.end);
    }
    __device__ __forceinline__ void fetch(uint64_t address, bool wanted, const Access& a) {
        wanted = wanted && a.size != 0;
        past = static_cast<uint32_t>(address) % 16;
        const char* low = reinterpret_cast<const char*>(address - past);
        ptx::load_global_if<16>(wanted && !a.one, low, vectors);
        ptx::load_global_if<16>(wanted && !a.one && past != 0, low + 16, vectors + 4);
        ptx::load_global_if<sizeof(T)>(wanted && a.one, reinterpret_cast<const void*>(address), single);
    }
    __device__ __forceinline__ Pack<T, WIDTH> realigned() const {
        uint32_t w[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) w[i] = vectors[i];
#pragma unroll
        for (int i = 0; i < 6; ++i) w[i] = past & 8 ? w[i + 2] : w[i];
        if constexpr (sizeof(T) < 8) {
#pragma unroll
            for (int i = 0; i < 5; ++i) w[i] = past & 4 ? w[i + 1] : w[i];
        }
        if constexpr (sizeof(T) < 4) {
#pragma unroll
            for (int i = 0; i < 4; ++i) w[i] = __funnelshift_r(w[i], w[i + 1], past % 4 * 8);
        }
        Pack<T, WIDTH> pack;
        __builtin_memcpy(&pack, w, sizeof(pack));
        return pack;
    }
    template <int N>
    static __device__ __forceinline__ void get(const Misaligned (&from)[N], Pack<T, WIDTH> (&to)[N], const Access& a) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if (a.one) {
#pragma unroll
                for (int k = 0; k < WIDTH; ++k) to[i].v[k] = element_of<T>(from[i].single);
            } else {
                to[i] = from[i].realigned();
            }
        }
    }
};

// E elements of any type that promotion turns into T: in one access if the type is no wider than T, or one element.
template <class T, int E> struct Tagged {
    using type = T;
    using Element = Tagged<T, 1>;
    static constexpr int WIDTH = E;
    uint32_t vector[4], half[2], small[1];     // an access of 16, 8 or fewer bytes
    static constexpr bool NEIGHBOURS = false;  // reads beside the vector

    static __device__ __forceinline__ bool fits(uint64_t, const Access&) { return true; }
    __device__ __forceinline__ void fetch(uint64_t address, bool wanted, const Access& a) {
        const void* p = reinterpret_cast<const void*>(address);
        const uint32_t bytes = !wanted ? 0 : a.one ? a.size : E * a.size;
        // The widest last: it then waits for none that was taken.
        ptx::load_global_if<1>(bytes == 1, p, small);
        ptx::load_global_if<2>(bytes == 2, p, small);
        ptx::load_global_if<4>(bytes == 4, p, small);
        ptx::load_global_if<8>(bytes == 8, p, half);
        if constexpr (E > 1) ptx::load_global_if<16>(bytes == 16, p, vector);
    }
    template <int Bytes> __device__ __forceinline__ const uint32_t* loaded() const {
        return Bytes == 16 ? vector : Bytes == 8 ? half : small;
    }
    template <int N>
    static __device__ __forceinline__ void get(const Tagged (&from)[N], Pack<T, E> (&to)[N], const Access& a) {
        with_type(a.tag, [&](auto type) {
            using U = decltype(type);
            if constexpr (promotes_to<U, T>) {
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    Pack<U, E> pack;
                    if (E == 1 || a.one || sizeof(U) > sizeof(T)) {
#pragma unroll
                        for (int k = 0; k < E; ++k) pack.v[k] = element_of<U>(from[i].template loaded<sizeof(U)>());
                    } else if constexpr (sizeof(U) <= sizeof(T)) {
                        __builtin_memcpy(&pack, from[i].template loaded<E * sizeof(U)>(), sizeof(pack));
                    }
#pragma unroll
                    for (int k = 0; k < E; ++k) to[i].v[k] = convert<T>(pack.v[k]);
                }
            }
        });
    }
};

// What is in a and b, added, to the N places of the result that are valid.
template <class Operand, int N, int Rank>
__device__ __forceinline__ void add_fetched(const AddParams<Rank>& p, const Operand (&a)[N], const Operand (&b)[N],
                                            uint64_t out, int64_t step, uint32_t valid) {
    using T = typename Operand::type;
    constexpr int E = Operand::WIDTH;
    const auto alpha = from_bits<Arithmetic<T>>(p.alpha);
    Pack<T, E> x[N];
    Operand::get(a, x, access_x(p));
    if (p.y_size == 0) {
        const auto scalar = from_bits<Arithmetic<T>>(p.scalar);
#pragma unroll
        for (int i = 0; i < N; ++i) {
#pragma unroll
            for (int k = 0; k < E; ++k) x[i].v[k] = sum(x[i].v[k], alpha, scalar);
        }
    } else {
        Pack<T, E> y[N];
        Operand::get(b, y, access_y(p));
#pragma unroll
        for (int i = 0; i < N; ++i) {
#pragma unroll
            for (int k = 0; k < E; ++k) x[i].v[k] = sum(x[i].v[k], alpha, widen(y[i].v[k]));
        }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
        if (!(valid >> i & 1)) continue;
        T* to = reinterpret_cast<T*>(out + i * step);
        if constexpr (E == 1) {
            *to = x[i].v[0];
        } else {
            store_pack(to, x[i]);
        }
    }
}

// EXPORT(T, NAME) for every dtype with kernels of its own: int8 has uint8's.
// clang-format off
#define FOR_NUMERIC_DTYPES(EXPORT)                                    \
    EXPORT(u8, u8) EXPORT(i16, i16) EXPORT(i32, i32) EXPORT(i64, i64) \
    EXPORT(f16, f16) EXPORT(bf16, bf16) EXPORT(f32, f32) EXPORT(f64, f64)
// clang-format on
#define FOR_ALL_DTYPES(EXPORT) EXPORT(boolean, bool) FOR_NUMERIC_DTYPES(EXPORT)
