// What happens to a matmul's accumulator before its one rounding: + bias, then an activation, in the
// accumulator's own precision (float, or double for float64).
#pragma once

#include <cstdint>

// The numbers that src/cuda/plan/matmul.rs writes into MatmulParams::activation.
enum ActivationKind : uint32_t { ACT_NONE, ACT_RELU, ACT_LEAKY_RELU, ACT_GELU, ACT_GELU_TANH, ACT_SILU };

__device__ __forceinline__ float erf_of(float x) { return erff(x); }
__device__ __forceinline__ double erf_of(double x) { return erf(x); }
__device__ __forceinline__ float tanh_of(float x) { return tanhf(x); }
__device__ __forceinline__ double tanh_of(double x) { return tanh(x); }
__device__ __forceinline__ float exp_of(float x) { return expf(x); }
__device__ __forceinline__ double exp_of(double x) { return exp(x); }

// One runtime switch for a run of elements: `kind` is the same for the whole grid, so the branch is
// uniform, and a kernel for each activation would multiply the binary by six.
template <int N, class Acc>
__device__ __forceinline__ void activate(Acc (&v)[N], uint32_t kind, Acc slope) {
    switch (kind) {
    case ACT_RELU:  // written so that NaN stays NaN, as in torch
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] = v[i] < Acc(0) ? Acc(0) : v[i];
        break;
    case ACT_LEAKY_RELU:
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] = v[i] > Acc(0) ? v[i] : v[i] * slope;
        break;
    case ACT_GELU:
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] = Acc(0.5) * v[i] * (Acc(1) + erf_of(v[i] * Acc(0.70710678118654752440)));
        break;
    case ACT_GELU_TANH:
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const Acc inner = Acc(0.79788456080286535588) * (v[i] + Acc(0.044715) * v[i] * v[i] * v[i]);
            v[i] = Acc(0.5) * v[i] * (Acc(1) + tanh_of(inner));
        }
        break;
    case ACT_SILU:
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] = v[i] / (Acc(1) + exp_of(-v[i]));
        break;
    default: break;
    }
}
