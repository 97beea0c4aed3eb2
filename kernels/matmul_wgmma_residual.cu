// targets: 90a
//
// matmul of float16 and bfloat16 on Hopper's tensor cores, where nothing but a bias and a residual is added: out = a @ b +
// bias + residual, by sums that begin with both.
//
// The ring, the blocks, their order and the stores are those of matmul_wgmma.cu. What sums begin with is read by the
// consumers as the accumulators lie, while the first boxes are on their way: a later tile waits for it.
// Variants, matmul_wgmma_residual_{rows x columns of a block}_{dtype}: src/cuda/plan/matmul/wgmma/epilogue.rs chooses.
// Hazard: the residual may be the result; a tile is read and written by the same thread.
// Measurements: docs/measurements/matmul_wgmma.md

#include "wgmma_block.cuh"
#include "wgmma_epilogue.cuh"

template <class S> struct BeginsWithResidual : Epilogue<S, EpilogueKind::none> {
    using Base = Epilogue<S, EpilogueKind::none>;
    using Base::p, Base::lane;
    using typename Base::T;

    __device__ __forceinline__ BeginsWithResidual(const WgmmaParams& p, uint32_t shared) : Base(p, shared) {}

    // A thread has two neighbouring columns of two rows eight apart, for every eight columns.
    __device__ __forceinline__ void begin(Accumulators<S>& d, const Item& item) const {
        const Addends& x = p.addends;
        const auto place = Boxes<S>::of(p, item.col);
        const int32_t col = item.col + int32_t(lane % 4) * 2;
        const T* bias = static_cast<const T*>(p.bias);
#pragma unroll
        for (int i = 0; i < S::M_STEPS; ++i) {
            const int32_t row = item.row + Base::row_of(i) + int32_t(lane / 4);
            const T* from = static_cast<const T*>(x.residual) + row * x.residual_row;
#pragma unroll
            for (int k = 0; k < 3; ++k) from += item.batch[k] * p.residual_batch[k];
            uint32_t words[S::ACCUMULATORS / 4][2];
#pragma unroll
            for (int group = 0; group < S::ACCUMULATORS / 4; ++group) {
                const int32_t column = col + place.column(group / 8) + group % 8 * 8;
                words[group][0] = words[group][1] = 0;
                const bool inside = column < int32_t(p.n);
                ptx::load_global_if<4>(inside && row < int32_t(p.m), from + column, &words[group][0]);
                ptx::load_global_if<4>(inside && row + 8 < int32_t(p.m), from + 8 * x.residual_row + column,
                                       &words[group][1]);
            }
#pragma unroll
            for (int group = 0; group < S::ACCUMULATORS / 4; ++group) {
                const float2 low = unpack<T>(words[group][0]), high = unpack<T>(words[group][1]);
                float* v = d[i] + group * 4;
                v[0] = low.x, v[1] = low.y, v[2] = high.x, v[3] = high.y;
            }
            if (bias == nullptr) continue;
#pragma unroll
            for (int group = 0; group < S::ACCUMULATORS / 4; ++group) {
                const int32_t column = col + place.column(group / 8) + group % 8 * 8;
                if (column >= int32_t(p.n)) continue;
                const float first = number(bias[column * p.bias_stride]),
                            second = number(bias[(column + 1) * p.bias_stride]);
                float* v = d[i] + group * 4;
                v[0] += first, v[1] += second, v[2] += first, v[3] += second;
            }
        }
    }
};

template <class S> __device__ __forceinline__ void matmul_wgmma_residual(const WgmmaParams& p) {
    run_block<S, Schedule<S, false>>(
        p,
        [&](const Pair& pair, auto& work, uint32_t shared, Ring ring) {
            Accumulators<S> d;
            BeginsWithResidual<S> epilogue(p, shared);
            ptx::wait_for_grid_before();
            for (; work.left(); work.next()) {
                const Item& item = work.item;
                epilogue.begin(d, item);
                multiply<S, false>(p, pair, d, shared, ring, item.k_end - item.k_begin);
                epilogue.write(d, item, false);
            }
            epilogue.sent();
        },
        [](uint32_t) {}, [] {});
}

// Consumers, 64 rows of each so many times, columns, blocks on a multiprocessor.
#define EXPORT(T, NAME, ...)                                                                      \
    using Shape##NAME##T = WgmmaShape<T, __VA_ARGS__>;                                            \
    extern "C" __global__ void __launch_bounds__(Shape##NAME##T::THREADS, Shape##NAME##T::BLOCKS) \
        matmul_wgmma_residual_##NAME##_##T(const __grid_constant__ WgmmaParams p) {               \
        matmul_wgmma_residual<Shape##NAME##T>(p);                                                 \
    }
#define TILES(T)                     \
    EXPORT(T, 64x128, 1, 1, 128, 2)  \
    EXPORT(T, 128x128, 2, 1, 128, 1) \
    EXPORT(T, 128x192, 2, 1, 192, 1) \
    EXPORT(T, 128x256, 2, 1, 256, 1) \
    EXPORT(T, 256x128, 2, 2, 128, 1)

TILES(f16)
TILES(bf16)
