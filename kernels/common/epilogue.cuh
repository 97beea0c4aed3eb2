// The epilogue of matmul's kernels: bias, activation and residual, on accumulators in registers and in their own precision
// (float32, or float64 for float64), one rounding, and the store of neighbouring elements.
#pragma once

#include <cstdint>

#include "dtype.cuh"
#include "ptx/math.cuh"
#include "ptx/reciprocal.cuh"

// The numbers that src/cuda/plan/matmul/mod.rs writes into MatmulParams::activation.
enum ActivationKind : uint32_t { ACT_NONE, ACT_RELU, ACT_LEAKY_RELU, ACT_GELU, ACT_GELU_TANH, ACT_SILU };

__device__ __forceinline__ float power_of_2(float v) { return ptx::exp2_approximate(v); }
__device__ __forceinline__ double power_of_2(double v) { return exp2(v); }
__device__ __forceinline__ float reciprocal(float v) { return ptx::reciprocal_approximate(v); }
__device__ __forceinline__ double reciprocal(double v) { return 1.0 / v; }
// NaN if one of them is.
__device__ __forceinline__ float maximum(float v, float w) { return ptx::max_nan(v, w); }
__device__ __forceinline__ double maximum(double v, double w) { return v < w ? w : v; }

// v times the normal distribution's share below v. With erff, 192 accumulators a thread in matmul_wgmma.cu spill, so for
// float16 and bfloat16 by the share above |v|: an exponential, 2^(-v^2 log2(e) / 2), times a polynomial in 1 / (1 + c |v|), to
// 3e-5 of itself (minimax on 0 <= |v| <= 14; activation_gradient.cuh has one for float32, too), where roundings to float16 are
// up to 5e-4. With the least of v and 10^4, infinity becomes itself and minus infinity NaN. A result that underflows is +0.
template <class T> __device__ __forceinline__ float gelu(float v) {
    if constexpr (!is_half<T>) return 0.5f * v * (1.0f + erff(v * 0.70710678118654752440f));
    const float u = fminf(v, 1e4f), power = 0.84932180f * u;
    const float t = reciprocal(1.0f + 0.37583333f * fabsf(u));
    const float high = (-0.0908209816f * t + 0.198998686f) * t + 0.0845222009f;
    const float above = ((high * t + 0.157883419f) * t + 0.149408205f) * t * power_of_2(-power * power);
    return maximum(v, 0.0f) - fabsf(u) * above;
}
template <class T> __device__ __forceinline__ double gelu(double v) {
    return 0.5 * v * (1.0 + erf(v * 0.70710678118654752440));
}

// v * sigmoid(w), of minus w; for halves of -w log2(e), with the hardware's exponential and reciprocal, to 2 ulp and 1
// ulp: a division that treats the largest and the smallest numbers apart takes three or four instructions more.
template <class T> constexpr double MINUS_LOG_E = is_half<T> ? -1.44269504088896340736 : -1;
template <class T> __device__ __forceinline__ float gated(float v, float minus_w) {
    return is_half<T> ? v * reciprocal(1.0f + power_of_2(minus_w)) : v / (1.0f + expf(minus_w));
}
template <class T> __device__ __forceinline__ double gated(double v, double minus_w) {
    return v / (1.0 + exp(minus_w));
}

// The activations by what they cost: one to three instructions for each element, or (float16 and bfloat16) 7 to 14, two of
// them of a unit with an eighth of the others' rate. NaN stays NaN in all of them, as in torch.
template <int N, class Acc> __device__ __forceinline__ void relu(Acc (&v)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = maximum(v[i], Acc(0));
}
// Of a number and a share of it, the larger one.
template <class Acc> __device__ __forceinline__ bool is_fraction(Acc slope) {
    return slope != Acc(0) && slope >= Acc(-1) && slope <= Acc(1);
}
template <int N, class Acc> __device__ __forceinline__ void leaky_relu_of_fraction(Acc (&v)[N], Acc slope) {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = fmax(v[i], v[i] * slope);
}
template <int N, class Acc> __device__ __forceinline__ void rectify(Acc (&v)[N], uint32_t kind, Acc slope) {
    if (kind == ACT_RELU) {
        relu(v);
    } else if (kind == ACT_LEAKY_RELU) {
        if (is_fraction(slope)) {
            leaky_relu_of_fraction(v, slope);
        } else {  // 0 times infinity is NaN, as in torch
#pragma unroll
            for (int i = 0; i < N; ++i) v[i] = v[i] > Acc(0) ? v[i] : v[i] * slope;
        }
    }
}
__device__ __forceinline__ bool is_smooth(uint32_t kind) { return kind >= ACT_GELU; }
template <class T, int N, class Acc> __device__ __forceinline__ void smooth(Acc (&v)[N], uint32_t kind) {
    if (kind == ACT_GELU) {
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] = gelu<T>(v[i]);
    } else if (kind == ACT_GELU_TANH) {  // 0.5 v (1 + tanh u) is v sigmoid(2 u), without tanh and without cancellation
        constexpr Acc A = 1.5957691216057307118 * MINUS_LOG_E<T>, B = 0.07135481627260025 * MINUS_LOG_E<T>;
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] = gated<T>(v[i], v[i] * (A + B * (v[i] * v[i])));
    } else {
#pragma unroll
        for (int i = 0; i < N; ++i) v[i] = gated<T>(v[i], v[i] * Acc(MINUS_LOG_E<T>));
    }
}

// One runtime switch for a run of elements: `kind` is the same for the whole grid, so the branch is
// uniform, and a kernel for each activation would multiply the binary by six. T: what they are rounded to afterwards.
template <class T, int N, class Acc>
__device__ __forceinline__ void activate(Acc (&v)[N], uint32_t kind, Acc slope) {
    if (is_smooth(kind)) {
        smooth<T>(v, kind);
    } else {
        rectify(v, kind, slope);
    }
}

// What comes after the activation, as kernels are told. Strides in elements. `wide` is a matrix in the accumulators' type for
// each product: the first of the two launches of a gated product leaves its results there, which are the second's factors.
// Mirrored in src/cuda/plan/matmul/addends.rs.
enum WideKind : uint32_t { WIDE_NONE, WIDE_RESULTS, WIDE_FACTORS };
enum : uint32_t { BY_TMA = 2 };
struct Addends {
    const void* residual;  // null: none
    void* wide;
    int64_t residual_row, residual_col;
    int64_t wide_row, wide_col, wide_product;
    uint32_t wide_kind;
    uint32_t residual_vector;  // what lies next to each other in `out` may be read at once; or BY_TMA

    __device__ __forceinline__ bool any() const { return residual != nullptr || wide != nullptr; }
};
static_assert(sizeof(Addends) == 64, "mirrored in Rust");

// The same for a run of elements; null: none.
template <class T, class Acc> struct Run {
    const T* residual = nullptr;
    Acc* wide = nullptr;
    int64_t residual_step = 0, wide_step = 0;
    uint32_t wide_kind = WIDE_NONE;
    bool residual_vector = false;

    Run() = default;
    // From (row, col) of a product on, `down` or along its rows. residual_offset: of the product.
    __device__ __forceinline__ Run(const Addends& x, int64_t row, int64_t col, uint64_t product,
                                   int64_t residual_offset, bool down) {
        if (x.residual != nullptr) {
            residual =
                static_cast<const T*>(x.residual) + residual_offset + row * x.residual_row + col * x.residual_col;
            residual_step = down ? x.residual_row : x.residual_col;
            residual_vector = x.residual_vector;
        }
        if (x.wide != nullptr) {
            wide = static_cast<Acc*>(x.wide) + int64_t(product) * x.wide_product + row * x.wide_row + col * x.wide_col;
            wide_step = down ? x.wide_row : x.wide_col;
            wide_kind = x.wide_kind;
        }
    }
};

// N elements `every` apart, of which those within `count` exist: times the factors, plus the residual. False: they are
// stored, where results are kept as they are.
template <int N, class T, class Acc>
__device__ __forceinline__ bool add_run(Acc (&v)[N], const Run<T, Acc>& run, int every, int count) {
    if (run.wide_kind == WIDE_FACTORS) {
#pragma unroll
        for (int e = 0; e < N; ++e) {
            if (e * every < count) v[e] *= run.wide[e * every * run.wide_step];
        }
    }
    if (run.residual != nullptr) {
        if (run.residual_vector && every == 1 && count >= N) {
            const auto pack = load_pack<T, N>(run.residual);
#pragma unroll
            for (int e = 0; e < N; ++e) v[e] += convert<Acc>(pack.v[e]);
        } else {
#pragma unroll
            for (int e = 0; e < N; ++e) {
                if (e * every < count) v[e] += convert<Acc>(run.residual[e * every * run.residual_step]);
            }
        }
    }
    if (run.wide_kind != WIDE_RESULTS) return true;
#pragma unroll
    for (int e = 0; e < N; ++e) {
        if (e * every < count) run.wide[e * every * run.wide_step] = v[e];
    }
    return false;
}

template <int N, class T, class Acc>
__device__ __forceinline__ void add_bias(Acc (&v)[N], const T* bias, int64_t bias_step, int count) {
    if (bias == nullptr) return;
#pragma unroll
    for (int e = 0; e < N; ++e) {
        if (e < count) v[e] += convert<Acc>(bias[e * bias_step]);
    }
}

// One rounding and the store of N neighbouring elements, of which `count` exist. `vector`: they can be stored as one vector.
template <int N, class T, class Acc>
__device__ __forceinline__ void store_run(const Acc (&v)[N], T* out, int64_t out_step, int count, bool vector) {
    Pack<T, N> pack;
#pragma unroll
    for (int e = 0; e < N; ++e) pack.v[e] = convert<T>(v[e]);
    if (vector && count >= N) {
        store_pack(out, pack);
        return;
    }
#pragma unroll
    for (int e = 0; e < N; ++e) {
        if (e < count) out[e * out_step] = pack.v[e];
    }
}

// The epilogue of N neighbouring elements, of which `count` exist: bias (null: none), activation, what is added, store.
template <int N, class T, class Acc>
__device__ __forceinline__ void apply_epilogue(Acc (&v)[N], const T* bias, int64_t bias_step, uint32_t kind, Acc slope,
                                               const Run<T, Acc>& run, T* out, int64_t out_step, int count,
                                               bool vector) {
    add_bias(v, bias, bias_step, count);
    activate<T>(v, kind, slope);
    if (add_run(v, run, 1, count)) store_run(v, out, out_step, count, vector);
}
