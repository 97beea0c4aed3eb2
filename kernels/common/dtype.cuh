// Element types on the device: the numbers the host knows them by, how they convert, and how several of
// them move in one access.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ptx/global.cuh"
#include "ptx/math.cuh"

// DType::tag() of src/dtype.rs.
enum DTypeTag : uint32_t { TAG_BOOL, TAG_U8, TAG_I8, TAG_I16, TAG_I32, TAG_I64, TAG_F16, TAG_BF16, TAG_F32, TAG_F64 };

// A torch bool: one byte, true if not zero. Not C++'s bool, whose other bit patterns are undefined.
struct boolean {
    uint8_t byte;
};
using u8 = uint8_t;
using i8 = int8_t;
using i16 = int16_t;
using i32 = int32_t;
using i64 = int64_t;
using f16 = __half;
using bf16 = __nv_bfloat16;
using f32 = float;
using f64 = double;

template <class A, class B> inline constexpr bool same_type = false;
template <class A> inline constexpr bool same_type<A, A> = true;
template <class T> inline constexpr bool is_half = same_type<T, f16> || same_type<T, bf16>;

// Whether a value of U may become one of T by torch's promotion: never an integer from a float, nor a bool from
// anything else.
template <class T> inline constexpr bool is_float = is_half<T> || same_type<T, f32> || same_type<T, f64>;
template <class U, class T>
inline constexpr bool promotes_to = same_type<T, boolean> ? same_type<U, boolean> : is_float<T> || !is_float<U>;

// The value as a type that has arithmetic.
template <class T> __device__ __forceinline__ T number(T v) { return v; }
__device__ __forceinline__ float number(f16 v) { return __half2float(v); }
__device__ __forceinline__ float number(bf16 v) { return __bfloat162float(v); }
__device__ __forceinline__ uint32_t number(boolean v) { return v.byte != 0; }

// Rounds to nearest even. float64 reaches the halves by way of float32, as in torch.
template <class To, class From> __device__ __forceinline__ To convert(From v) {
    if constexpr (same_type<To, From>) {
        return v;
    } else if constexpr (same_type<To, f16>) {
        return __float2half_rn(static_cast<float>(number(v)));
    } else if constexpr (same_type<To, bf16>) {
        return __float2bfloat16_rn(static_cast<float>(number(v)));
    } else if constexpr (same_type<To, boolean>) {
        return boolean{static_cast<uint8_t>(number(v) != 0)};
    } else {
        return static_cast<To>(number(v));
    }
}

// Calls f with a value of the type that `tag` stands for.
template <class F> __device__ __forceinline__ void with_float_type(uint32_t tag, F f) {
    switch (tag) {
    case TAG_F16: f(f16{}); break;
    case TAG_BF16: f(bf16{}); break;
    case TAG_F32: f(f32{}); break;
    default: f(f64{}); break;
    }
}
template <class F> __device__ __forceinline__ void with_type(uint32_t tag, F f) {
    switch (tag) {
    case TAG_BOOL: f(boolean{}); break;
    case TAG_U8: f(u8{}); break;
    case TAG_I8: f(i8{}); break;
    case TAG_I16: f(i16{}); break;
    case TAG_I32: f(i32{}); break;
    case TAG_I64: f(i64{}); break;
    default: with_float_type(tag, f); break;
    }
}

template <class T, int N> struct Pack {
    T v[N];
};

// Elements of a 16-byte access.
template <class T> inline constexpr int lanes_of = 16 / static_cast<int>(sizeof(T));

// N elements in accesses of `Bytes` each, to which `p` must be aligned; by default as wide as can be.
template <class T, int N> inline constexpr int widest = N * sizeof(T) < 16 ? N * sizeof(T) : 16;

template <class T, int N, int Bytes = widest<T, N>> __device__ __forceinline__ Pack<T, N> load_pack(const T* p) {
    static_assert(Bytes >= 4, "");
    uint32_t w[N * sizeof(T) / 4];
#pragma unroll
    for (int i = 0; i < int(N * sizeof(T)) / Bytes; ++i) {
        ptx::load_global<Bytes>(reinterpret_cast<const char*>(p) + i * Bytes, w + i * Bytes / 4);
    }
    Pack<T, N> pack;
    __builtin_memcpy(&pack, w, sizeof(pack));
    return pack;
}

template <class T, int N, int Bytes = widest<T, N>>
__device__ __forceinline__ void store_pack(T* p, const Pack<T, N>& pack) {
    static_assert(Bytes >= 4, "");
    uint32_t w[N * sizeof(T) / 4];
    __builtin_memcpy(w, &pack, sizeof(pack));
#pragma unroll
    for (int i = 0; i < int(N * sizeof(T)) / Bytes; ++i) {
        ptx::store_global<Bytes>(reinterpret_cast<char*>(p) + i * Bytes, w + i * Bytes / 4);
    }
}

// 16 bytes on their way from memory, to be looked into later. Elements of a half type would be separated
// by the compiler right after the load, inside whatever branch it stands in, and so would be waited for
// there, one load after the other; opaque words are not.
struct Vector {
    uint32_t word[4];

    template <class T> static __device__ __forceinline__ Vector of(const Pack<T, lanes_of<T>>& pack) {
        Vector g;
        __builtin_memcpy(&g, &pack, sizeof(g));
        return g;
    }
    template <class T> __device__ __forceinline__ Pack<T, lanes_of<T>> unpack() const {
        Vector g = *this;
        ptx::hide(g.word);
        Pack<T, lanes_of<T>> pack;
        __builtin_memcpy(&pack, &g, sizeof(pack));
        return pack;
    }
};

// From global memory.
__device__ __forceinline__ Vector load_vector(const void* p) {
    Vector g;
    ptx::load_global<16>(p, g.word);
    return g;
}

// In shared memory.
__device__ __forceinline__ Vector load_shared_vector(const uint4* from) {
    const uint4 w = *from;
    return {{w.x, w.y, w.z, w.w}};
}
__device__ __forceinline__ void store_shared_vector(uint4* to, const Vector& g) {
    *to = make_uint4(g.word[0], g.word[1], g.word[2], g.word[3]);
}
