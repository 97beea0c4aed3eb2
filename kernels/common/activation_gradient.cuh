// Derivatives of matmul's activations, in float32 (float64 for float64), element by element in registers. gelu,
// gelu_tanh and silu use the hardware's exponential (2 ulp) and reciprocal (1 ulp), also for float32, because a
// division that treats the smallest numbers apart is slower than memory: docs/measurements/activation_backward.md.
#pragma once

#include "dtype.cuh"
#include "epilogue.cuh"

template <class T> using Arithmetic = decltype(number(T{}));

// The normal distribution's share above |v|: `exponential`, 2^(-v^2 log2(e) / 2), times a polynomial in 1 / (1 + c |v|), to
// 5e-7 of itself (minimax on 0 <= |v| <= 14).
__device__ __forceinline__ float share_above(float v, float exponential) {
    const float t = reciprocal(1.0f + 0.30052038f * fabsf(v));
    const float high = ((0.0357405615f * t - 0.156584251f) * t + 0.203818565f) * t - 0.051634253f;
    const float series = (((high * t + 0.127547826f) * t + 0.100351658f) * t + 0.120920523f) * t + 0.1198393f;
    return series * t * exponential;
}

__device__ __forceinline__ float derivative_of_gelu(float v) {
    const float exponential = power_of_2(-0.72134752f * v * v), tail = share_above(v, exponential);
    return (v > 0.0f ? 1.0f - tail : tail) + v * (0.39894228f * exponential);
}
__device__ __forceinline__ double derivative_of_gelu(double v) {
    return 0.5 * erfc(v * -0.70710678118654752440) + v * (0.39894228040143267794 * exp(-0.5 * v * v));
}

// Of v * sigmoid(w), where w has the derivative `slope`; power is -w log2(e).
template <class C> __device__ __forceinline__ C derivative_of_gated(C v, C power, C slope) {
    const C share = reciprocal(C(1) + power_of_2(power));
    return share * (C(1) + v * slope * (C(1) - share));
}
template <class C> __device__ __forceinline__ C derivative_of_silu(C v) {
    return derivative_of_gated(v, v * C(-1.44269504088896340736), C(1));
}
// 1 + tanh(u) is 2 sigmoid(2 u), and 2 u is v (a + b v^2).
template <class C> __device__ __forceinline__ C derivative_of_gelu_tanh(C v) {
    constexpr C A = C(1.59576912160573071176), B = C(0.07135481627260024), MINUS_LOG2E = C(-1.44269504088896340736);
    const C square = v * v;
    return derivative_of_gated(v, v * (A * MINUS_LOG2E + B * MINUS_LOG2E * square), A + 3 * B * square);
}

// Calls f with what makes grad * derivative of grad and v, and with the kind, which is a constant there. One switch for a run of
// elements: the same in the whole grid. Of NaN, relu passes the gradient on, as in torch.
template <class C, class F> __device__ __forceinline__ void with_derivative(uint32_t kind, C slope, F f) {
    switch (kind) {
    case ACT_RELU: f([](C grad, C v) { return v <= C(0) ? C(0) : grad; }, ACT_RELU); break;
    case ACT_LEAKY_RELU: f([slope](C grad, C v) { return v > C(0) ? grad : grad * slope; }, ACT_LEAKY_RELU); break;
    case ACT_GELU: f([](C grad, C v) { return grad * derivative_of_gelu(v); }, ACT_GELU); break;
    case ACT_GELU_TANH: f([](C grad, C v) { return grad * derivative_of_gelu_tanh(v); }, ACT_GELU_TANH); break;
    case ACT_SILU: f([](C grad, C v) { return grad * derivative_of_silu(v); }, ACT_SILU); break;
    default: f([](C grad, C) { return grad; }, ACT_NONE); break;
    }
}
