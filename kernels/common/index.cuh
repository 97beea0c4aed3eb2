// From a flat index to offsets of strided operands.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TILEWISE_HD __host__ __device__ __forceinline__
#else
#define TILEWISE_HD inline
#endif

// Dimensions of a parameter struct: of most kernels, whose launches then copy little, and of those that take any tensor.
// Mirrored in src/cuda/plan/limits.rs and src/cuda/plan/index.rs.
constexpr int INLINE_RANK = 4;
constexpr int MAX_RANK = 64;

// Division by a size fixed at launch, of n < 2^63 in about ten instructions (where a 64-bit division takes a
// hundred) and of n < 2^31 in three: (n + high word of n * multiplier) >> shift. The host computes the
// numbers (Divisor::new in src/cuda/plan/index.rs).
struct Divisor {
    uint64_t multiplier;
    uint32_t shift;
    uint32_t narrow_multiplier;

    TILEWISE_HD uint64_t quotient(uint64_t n) const {
#ifdef __CUDA_ARCH__
        const uint64_t high = __umul64hi(n, multiplier);
#else
        const uint64_t high = static_cast<uint64_t>((static_cast<unsigned __int128>(n) * multiplier) >> 64);
#endif
        return (high + n) >> shift;
    }
    TILEWISE_HD uint32_t quotient(uint32_t n) const {
        const uint32_t high = static_cast<uint32_t>((static_cast<uint64_t>(n) * narrow_multiplier) >> 32);
        return (high + n) >> shift;
    }
};

// One dimension of an index space that N operands walk at once; strides in elements.
template <int N> struct Dim {
    uint64_t size;
    int64_t strides[N];
    Divisor divisor;
};
static_assert(sizeof(Dim<2>) == 40 && sizeof(Dim<3>) == 48, "mirrored in src/cuda/plan/index.rs");

template <int N, class Index> struct Offsets {
    int64_t at[N];
    Index inner;  // index within the last dimension
};

// Where the flat (row-major) index `flat` lies, which must be below 2^31 with a 32-bit Index. The outermost
// dimension needs no division.
template <int N, class Index>
TILEWISE_HD Offsets<N, Index> locate(const Dim<N>* dims, uint32_t rank, Index flat) {
    Offsets<N, Index> result = {};
    result.inner = flat;
#pragma unroll 1
    for (uint32_t d = rank - 1; d > 0; --d) {
        const Index rest = dims[d].divisor.quotient(flat);
        const Index index = flat - rest * static_cast<Index>(dims[d].size);
        if (d == rank - 1) result.inner = index;
        for (int i = 0; i < N; ++i) { result.at[i] += static_cast<int64_t>(index) * dims[d].strides[i]; }
        flat = rest;
    }
    for (int i = 0; i < N; ++i) { result.at[i] += static_cast<int64_t>(flat) * dims[0].strides[i]; }
    return result;
}
