// targets: 75 80 90 100 120 ptx:75
//
// softmax and log_softmax of any strides, any pair of dtypes, any number of dimensions, where no other kernel fits: a
// block a row, two passes, element by element. The arithmetic is that of softmax.cu. Chosen in
// src/cuda/plan/softmax/choose/mod.rs.
// Measurements: docs/measurements/softmax_general.md

#include "softmax.cuh"

constexpr int THREADS = 256;
constexpr int BATCH = 4;  // loads in flight per thread

// Acc: f32, or f64 for a float64 result.
template <class Acc> __device__ __forceinline__ Acc load_any(uint64_t base, int64_t offset, uint32_t tag,
                                                             uint32_t out_tag) {
    Acc v;
    with_type(tag, [&](auto type) { v = convert<Acc>(reinterpret_cast<const decltype(type)*>(base)[offset]); });
    if (out_tag == TAG_F16) v = convert<Acc>(convert<f16>(v));
    if (out_tag == TAG_BF16) v = convert<Acc>(convert<bf16>(v));
    return v;
}

template <class Acc> __device__ __forceinline__ void softmax_general(const SoftmaxParams<MAX_RANK>& p) {
    ptx::wait_for_grid_before();
    __shared__ Partial<Acc> scratch[2][32];
    uint32_t parity = 0;
    const int64_t length = p.length;
    for (uint64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const auto o = locate(p.dims, p.rank, row);
        auto partial = Partial<Acc>::empty();
        for (int64_t i = threadIdx.x; i < length; i += BATCH * blockDim.x) {
            Acc v[BATCH];
#pragma unroll
            for (int b = 0; b < BATCH; ++b) {
                const int64_t at = i + b * blockDim.x;
                v[b] =
                    at < length ? load_any<Acc>(p.x, o.at[0] + at * p.x_stride, p.x_tag, p.out_tag) : -infinity<Acc>();
            }
            accumulate<Acc>(partial, v);
        }
        partial = reduce_block(partial, Merge<Math<Acc>>(), Partial<Acc>::empty(), scratch[parity]);
        parity ^= 1;
        const Normalizer<Acc> normalizer(partial, p.log);
        for (int64_t i = threadIdx.x; i < length; i += blockDim.x) {
            const Acc r = normalizer(load_any<Acc>(p.x, o.at[0] + i * p.x_stride, p.x_tag, p.out_tag));
            with_float_type(p.out_tag, [&](auto type) {
                using T = decltype(type);
                reinterpret_cast<T*>(p.out)[o.at[1] + i * p.out_stride] = convert<T>(r);
            });
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    softmax_general_f32(const __grid_constant__ SoftmaxParams<MAX_RANK> p) {
    softmax_general<f32>(p);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    softmax_general_f64(const __grid_constant__ SoftmaxParams<MAX_RANK> p) {
    softmax_general<f64>(p);
}
