// Derivatives of matmul's activations, in float32 (float64 for float64).
//
// Per derivative of gelu, gelu_tanh and silu: an exponential and a reciprocal, and 20 (float32: 24), 12 and 8 other
// instructions, where a multiprocessor of an H200 can issue about 40 per bfloat16 while memory delivers it. For that the
// two are the hardware's, to 2 ulp and 1 ulp, also for float32: the derivatives' errors are below 1e-6 of 1 + |v|, and
// far below zero of themselves.
#pragma once

#include "dtype.cuh"
#include "epilogue.cuh"
#include "ptx/math.cuh"
#include "ptx/reciprocal.cuh"

template <class T> using Arithmetic = decltype(number(T{}));

__device__ __forceinline__ float power_of_2(float v) { return ptx::exp2_approximate(v); }
__device__ __forceinline__ double power_of_2(double v) { return exp2(v); }
__device__ __forceinline__ float reciprocal(float v) { return ptx::reciprocal_approximate(v); }
__device__ __forceinline__ double reciprocal(double v) { return 1.0 / v; }

// The normal distribution's share above |v| >= 0, and exp(-v^2 / 2). The share is the exponential times a polynomial in
// 1 / (1 + c |v|): for halves Abramowitz and Stegun's 7.1.26, to 8e-8; for float32 one fitted to 2e-7 of the share itself
// (minimax on 0 <= |v| <= 14).
template <class T> __device__ __forceinline__ GeluTail tail_of(float v) {
    const float exponential = power_of_2(-0.72134752f * v * v);
    if constexpr (is_half<T>) {
        const float t = reciprocal(1.0f + 0.23164190f * v);
        const float series =
            (((0.5307027145f * t - 0.7265760135f) * t + 0.7107068705f) * t - 0.142248368f) * t + 0.127414796f;
        return {series * t * exponential, exponential};
    } else {
        const float t = reciprocal(1.0f + 0.30052038f * v);
        const float low = ((0.0357405615f * t - 0.156584251f) * t + 0.203818565f) * t - 0.051634253f;
        const float series = (((low * t + 0.127547826f) * t + 0.100351658f) * t + 0.120920523f) * t + 0.1198393f;
        return {series * t * exponential, exponential};
    }
}

template <class T> __device__ __forceinline__ float derivative_of_gelu(float v) {
    const GeluTail tail = tail_of<T>(fabsf(v));
    const float share = v > 0.0f ? 1.0f - tail.above : tail.above;
    return share + v * (0.39894228f * tail.exponential);
}
template <class T> __device__ __forceinline__ double derivative_of_gelu(double v) {
    return 0.5 * erfc(v * -0.70710678118654752440) + v * (0.39894228040143267794 * exp(-0.5 * v * v));
}

// Of v * sigmoid(w) where w = c v has the derivative `slope`: power is -w log2(e).
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

// Calls f with what makes grad * derivative of grad and v. One switch for a run of elements: the same in the whole grid.
// T: what the gradient is rounded to. Of NaN, relu passes the gradient on, as in torch.
template <class T, class C, class F> __device__ __forceinline__ void with_derivative(uint32_t kind, C slope, F f) {
    switch (kind) {
    case ACT_RELU: f([](C grad, C v) { return v <= C(0) ? C(0) : grad; }); break;
    case ACT_LEAKY_RELU: f([slope](C grad, C v) { return v > C(0) ? grad : grad * slope; }); break;
    case ACT_GELU: f([](C grad, C v) { return grad * derivative_of_gelu<T>(v); }); break;
    case ACT_GELU_TANH: f([](C grad, C v) { return grad * derivative_of_gelu_tanh(v); }); break;
    case ACT_SILU: f([](C grad, C v) { return grad * derivative_of_silu(v); }); break;
    default: f([](C grad, C) { return grad; }); break;
    }
}
