// targets: 75 80 90 100 120 ptx:75
//
// Last launch of a split-K matmul (matmul_wgmma.cu, matmul_skinny.cu, blocks of float32 and float64): out = act(sum of the
// partials + bias) + residual, or of a gated product's two sums act(gate) * b + residual.
//
// The partials of all k splits lie in the workspace in float32 (float64: float64), padded to whole tiles or fours. A
// thread adds them in the order of the splits, so that the bits do not depend on which block was first. 4 bytes read an
// element and split, mostly from L2; 2 or 4 bytes written (float64: 8 and 8).
//
// The kernel has no variants; src/cuda/plan/matmul/reduce.rs plans it.
// Hazard: outside of graphs it begins early (common/ptx/grid.cuh), and waits for the product before it reads partials.
// Measurements: docs/measurements/matmul_reduce.md

#include "dtype.cuh"
#include "epilogue.cuh"
#include "ptx/grid.cuh"

// Mirrored in src/cuda/plan/matmul/reduce.rs.
struct ReduceParams {
    const void* partials;  // [splits][products][height][width]
    const void* bias;
    void* out;
    int64_t bias_stride;
    int64_t out_row, out_col;
    int64_t out_batch[3];       // innermost first
    int64_t residual_batch[3];  // likewise
    int64_t bias_up;            // from the gate's bias to b's
    Addends addends;
    uint64_t quads;  // groups of 4 columns of all products
    double negative_slope;
    uint32_t m, n, width, height;
    uint32_t products, splits;
    uint32_t batch_size[2];
    uint32_t activation;
    uint32_t bias_by_row;
    uint32_t out_vector;  // 4 columns may be written at once
    uint32_t
        gate_width;  // columns of the gate, and as many of b behind them, in turns in a row of partials; 0: no gate
};
static_assert(sizeof(ReduceParams) == 232, "mirrored in Rust");

constexpr int REDUCE_THREADS = 256;

// Acc: what the splits are sums in.
template <class T, class Acc> __device__ __forceinline__ void matmul_reduce(const ReduceParams& p) {
    const uint64_t quad = uint64_t(blockIdx.x) * REDUCE_THREADS + threadIdx.x;
    if (quad >= p.quads) return;
    const uint32_t across = (p.n + 3) / 4;
    const uint64_t line = quad / across;
    const uint32_t col = uint32_t(quad - line * across) * 4;
    const uint32_t product = uint32_t(line / p.m), row = uint32_t(line - uint64_t(product) * p.m);

    const uint64_t plane = uint64_t(p.height) * p.width;
    ptx::wait_for_grid_before();
    const uint32_t place = p.gate_width == 0 ? col : col + col / p.gate_width * p.gate_width;
    const int count = int(p.n - col);
    constexpr int AT_ONCE = sizeof(Acc) == 8 ? 4 : 8;  // of more float64 Turing's registers would spill
    const auto sum = [&](Acc(&v)[4], uint32_t place) {
        const Acc* split = static_cast<const Acc*>(p.partials) + product * plane + uint64_t(row) * p.width + place;
        if (count < 4) {  // nobody wrote the rest of a four
            for (uint32_t i = 0; i < p.splits; ++i)
#pragma unroll
                for (int e = 0; e < 3; ++e)
                    if (e < count) v[e] += split[i * plane * p.products + e];
            return;
        }
#pragma unroll AT_ONCE
        for (uint32_t i = 0; i < p.splits; ++i) {
            const auto w = load_pack<Acc, 4>(split + i * plane * p.products);
#pragma unroll
            for (int e = 0; e < 4; ++e) v[e] += w.v[e];
        }
    };
    Acc v[4] = {};
    sum(v, place);
    const int64_t along = p.bias_by_row ? row : col;
    const T* bias = p.bias == nullptr ? nullptr : static_cast<const T*>(p.bias) + along * p.bias_stride;
    const int64_t bias_step = p.bias_by_row ? 0 : p.bias_stride;
    const uint32_t outer = product / p.batch_size[0];
    const auto offset = [&](const int64_t (&strides)[3]) {
        return (product - outer * p.batch_size[0]) * strides[0] + outer % p.batch_size[1] * strides[1] +
               outer / p.batch_size[1] * strides[2];
    };
    T* out = static_cast<T*>(p.out) + offset(p.out_batch) + row * p.out_row + col * p.out_col;
    add_bias(v, bias, bias_step, count);
    activate<T>(v, p.activation, Acc(p.negative_slope));
    if (p.gate_width != 0) {
        Acc w[4] = {};
        sum(w, place + p.gate_width);
        add_bias(w, bias == nullptr ? nullptr : bias + p.bias_up, bias_step, count);
#pragma unroll
        for (int e = 0; e < 4; ++e) v[e] *= w[e];
    }
    Run<T, Acc> run;
    if (p.addends.any()) run = Run<T, Acc>(p.addends, row, col, product, offset(p.residual_batch), false);
    if (add_run(v, run, 1, count)) store_run(v, out, p.out_col, count, p.out_vector);
}

#define EXPORT(T, Acc)                                              \
    extern "C" __global__ void __launch_bounds__(REDUCE_THREADS, 4) \
        matmul_reduce_##T(const __grid_constant__ ReduceParams p) { \
        matmul_reduce<T, Acc>(p);                                   \
    }
EXPORT(f16, float)
EXPORT(bf16, float)
EXPORT(f32, float)
EXPORT(f64, double)
