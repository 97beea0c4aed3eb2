// CUDA C++'s keywords, built-in variables, types and functions, as far as the kernels use them. Included ahead of
// every kernel file.
#pragma once

#include <math.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))
// A block runs on one thread of the operating system, and has it to itself.
#define __shared__ thread_local

#define threadIdx (emulator::coordinates->thread)
#define blockIdx (emulator::coordinates->block)
#define blockDim (emulator::coordinates->block_size)
#define gridDim (emulator::coordinates->grid_size)

struct alignas(8) uint2 {
    uint32_t x, y;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) double2 {
    double x, y;
};
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }

// -------------------------------------------------------------------------------------- numbers and bits

namespace emulator {
template <class To, class From> To bits_of(From v) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    memcpy(&to, &v, sizeof(to));
    return to;
}
}  // namespace emulator

inline float __uint_as_float(uint32_t v) { return emulator::bits_of<float>(v); }
inline float __int_as_float(int v) { return emulator::bits_of<float>(v); }
inline uint32_t __float_as_uint(float v) { return emulator::bits_of<uint32_t>(v); }
inline int __float_as_int(float v) { return emulator::bits_of<int>(v); }
inline double __longlong_as_double(long long v) { return emulator::bits_of<double>(v); }
inline long long __double_as_longlong(double v) { return emulator::bits_of<long long>(v); }

inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32); }
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t shift) {
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) << (shift & 31) >> 32);
}
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(v); }
inline int __popc(uint32_t v) { return __builtin_popcount(v); }

// Both of one type up to their sign, as CUDA's overloads have it.
template <class A, class B> inline std::common_type_t<A, B> min(A a, B b) {
    const std::common_type_t<A, B> x = a, y = b;
    return y < x ? y : x;
}
template <class A, class B> inline std::common_type_t<A, B> max(A a, B b) {
    const std::common_type_t<A, B> x = a, y = b;
    return x < y ? y : x;
}

// The fast divisions's one surprise: 0 for the largest divisors.
inline float __fdividef(float x, float y) {
    return fabsf(y) > 0x1p126f && fabsf(y) < INFINITY ? x * 0.0f : x / y;
}
inline float __expf(float v) { return expf(v); }
inline float __logf(float v) { return logf(v); }
inline float __frcp_rn(float v) { return 1.0f / v; }
inline float rsqrtf(float v) { return 1.0f / sqrtf(v); }

// ------------------------------------------------------------------------------------------ shared memory

inline uint64_t __cvta_generic_to_shared(const void* p) { return emulator::shared_address(p); }
inline uint64_t __cvta_generic_to_global(const void* p) { return reinterpret_cast<uint64_t>(p); }

inline void __syncthreads(emulator::Site site = emulator::Site::here()) { emulator::barrier(0, 0, site); }
inline void __threadfence() {}
inline unsigned atomicAdd(unsigned* p, unsigned v) {
    emulator::check_global(p, sizeof(*p));
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);
}
inline void __threadfence_block() {}

// ---------------------------------------------------------------------------------------- lanes of a warp

namespace emulator {

struct Exchange {
    uint64_t value;
    int source;  // lane
};
inline void exchange(void* const (&lanes)[32], uint32_t mask) {
    uint64_t values[32] = {};
    for (int lane = 0; lane < 32; ++lane) {
        if (mask >> lane & 1) values[lane] = static_cast<Exchange*>(lanes[lane])->value;
    }
    for (int lane = 0; lane < 32; ++lane) {
        if (!(mask >> lane & 1)) continue;
        auto& mine = *static_cast<Exchange*>(lanes[lane]);
        if (!(mask >> mine.source & 1)) fail("lane %d reads lane %d, which the mask %#x leaves out", lane, mine.source, mask);
        mine.value = values[mine.source];
    }
}

inline int lane() {
    const auto& c = *coordinates;
    return (c.thread.x + c.block_size.x * (c.thread.y + c.block_size.y * c.thread.z)) % 32;
}

// `source` is the lane it would read if that is within its segment of `width` lanes.
template <class T> T shuffle(const char* name, Site site, uint32_t mask, T v, int source, bool inside) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>, "");
    Exchange mine = {0, inside ? source : lane()};
    memcpy(&mine.value, &v, sizeof(v));
    together(name, site, mask, false, &mine, exchange);
    memcpy(&v, &mine.value, sizeof(v));
    return v;
}

struct Vote {
    bool predicate;
    uint32_t ballot;
};
inline uint32_t ballot(const char* name, Site site, uint32_t mask, bool predicate) {
    Vote mine = {predicate, 0};
    together(name, site, mask, false, &mine, [](void* const (&lanes)[32], uint32_t mask) {
        uint32_t ballot = 0;
        for (int lane = 0; lane < 32; ++lane) {
            if (mask >> lane & 1) ballot |= uint32_t(static_cast<Vote*>(lanes[lane])->predicate) << lane;
        }
        for (int lane = 0; lane < 32; ++lane) {
            if (mask >> lane & 1) static_cast<Vote*>(lanes[lane])->ballot = ballot;
        }
    });
    return mine.ballot;
}

}  // namespace emulator

inline void __syncwarp(uint32_t mask = ~0u, emulator::Site site = emulator::Site::here()) {
    emulator::together("__syncwarp", site, mask, false, nullptr, [](void* const (&)[32], uint32_t) {});
}
template <class T>
T __shfl_sync(uint32_t mask, T v, int from, int width = 32, emulator::Site site = emulator::Site::here()) {
    const int lane = emulator::lane();
    return emulator::shuffle("__shfl_sync", site, mask, v, lane / width * width + (from & (width - 1)), true);
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T v, int bits, int width = 32, emulator::Site site = emulator::Site::here()) {
    const int lane = emulator::lane(), from = lane ^ bits;
    return emulator::shuffle("__shfl_xor_sync", site, mask, v, from, from < (lane / width + 1) * width);
}
template <class T>
T __shfl_down_sync(uint32_t mask, T v, int by, int width = 32, emulator::Site site = emulator::Site::here()) {
    const int lane = emulator::lane(), from = lane + by;
    return emulator::shuffle("__shfl_down_sync", site, mask, v, from, from < (lane / width + 1) * width);
}
template <class T>
T __shfl_up_sync(uint32_t mask, T v, int by, int width = 32, emulator::Site site = emulator::Site::here()) {
    const int lane = emulator::lane(), from = lane - by;
    return emulator::shuffle("__shfl_up_sync", site, mask, v, from, from >= lane / width * width);
}
inline uint32_t __ballot_sync(uint32_t mask, int predicate, emulator::Site site = emulator::Site::here()) {
    return emulator::ballot("__ballot_sync", site, mask, predicate);
}
inline int __any_sync(uint32_t mask, int predicate, emulator::Site site = emulator::Site::here()) {
    return emulator::ballot("__any_sync", site, mask, predicate) != 0;
}
inline int __all_sync(uint32_t mask, int predicate, emulator::Site site = emulator::Site::here()) {
    return emulator::ballot("__all_sync", site, mask, predicate) == mask;
}
