// What happens to a matmul's accumulator before its one rounding: + bias, then an activation, in the
// accumulator's own precision (float, or double for float64).
#pragma once

#include <cstdint>

#include "dtype.cuh"

// The numbers that src/cuda/plan/matmul.rs writes into MatmulParams::activation.
enum ActivationKind : uint32_t { ACT_NONE, ACT_RELU, ACT_LEAKY_RELU, ACT_GELU, ACT_GELU_TANH, ACT_SILU };

// The normal distribution's share above |v|, by Abramowitz and Stegun's 7.1.26 for erfc, whose error is 1.5e-7 at most: for
// results of 16 bits.
__device__ __forceinline__ float share_above(float v) {
    const float x = fabsf(v) * 0.70710678f;
    const float t = __fdividef(1.0f, 1.0f + 0.3275911f * x);
    const float series = (((1.061405429f * t - 1.453152027f) * t + 1.421413741f) * t - 0.284496736f) * t + 0.254829592f;
    return 0.5f * series * t * __expf(-x * x);
}

// v times the normal distribution's share below v. With erff, 192 accumulators a thread in matmul_wgmma.cu spill.
template <class T> __device__ __forceinline__ float gelu(float v) {
    if constexpr (!is_half<T>) return 0.5f * v * (1.0f + erff(v * 0.70710678118654752440f));
    const float above = share_above(v);
    return v * (v > 0.0f ? 1.0f - above : above);
}
template <class T> __device__ __forceinline__ double gelu(double v) {
    return 0.5 * v * (1.0 + erf(v * 0.70710678118654752440));
}

// v * sigmoid(w).
template <class T> __device__ __forceinline__ float gated(float v, float w) {
    return is_half<T> ? __fdividef(v, 1.0f + __expf(-w)) : v / (1.0f + expf(-w));
}
template <class T> __device__ __forceinline__ double gated(double v, double w) { return v / (1.0 + exp(-w)); }

// The activations by what they cost: a comparison and a product for each element, or twenty instructions.
template <class T, int N, class Acc>
__device__ __forceinline__ void rectify(Acc (&v)[N], uint32_t kind, Acc slope) {
    if (kind == ACT_RELU) {  // written so that NaN stays NaN, as in torch
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] = v[i] < Acc(0) ? Acc(0) : v[i];
    } else if (kind == ACT_LEAKY_RELU) {
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] = v[i] > Acc(0) ? v[i] : v[i] * slope;
    }
}
__host__ __device__ __forceinline__ bool is_smooth(uint32_t kind) { return kind >= ACT_GELU; }
template <class T, int N, class Acc> __device__ __forceinline__ void smooth(Acc (&v)[N], uint32_t kind) {
    if (kind == ACT_GELU) {
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] = gelu<T>(v[i]);
    } else if (kind == ACT_GELU_TANH) {  // 0.5 v (1 + tanh u) is v sigmoid(2 u), without tanh and without cancellation
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const Acc twice = v[i] * (Acc(1.5957691216057307118) + Acc(0.07135481627260025) * v[i] * v[i]);
            v[i] = gated<T>(v[i], twice);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] = gated<T>(v[i], v[i]);
    }
}

// One runtime switch for a run of elements: `kind` is the same for the whole grid, so the branch is
// uniform, and a kernel for each activation would multiply the binary by six. T: what they are rounded to afterwards.
template <class T, int N, class Acc>
__device__ __forceinline__ void activate(Acc (&v)[N], uint32_t kind, Acc slope) {
    if (is_smooth(kind)) {
        smooth<T>(v, kind);
    } else {
        rectify<T>(v, kind, slope);
    }
}
