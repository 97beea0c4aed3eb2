// The epilogue of matmul_wgmma_training.cu: three results of one tile, by the copy engine or by warps.
#pragma once

#include "wgmma_epilogue.cuh"

// What gradients need lies as the result does. Mirrored in src/cuda/plan/matmul/wgmma/training.rs.
struct alignas(64) TrainingParams {
    WgmmaParams wgmma;
    void* pre_activation;  // a @ gate + bias
    void* up;              // a @ b + bias
    uint32_t unused[12];
    TensorMap pre_activation_map, up_map;  // with tma_store
};
static_assert(sizeof(TrainingParams) == 1664 && offsetof(TrainingParams, pre_activation) == 1344, "mirrored in Rust");
static_assert(offsetof(TrainingParams, pre_activation_map) == 1408, "mirrored in Rust");

template <class S> struct TrainingEpilogue : Epilogue<S, EpilogueKind::gated> {
    using Base = Epilogue<S, EpilogueKind::gated>;
    using Base::p, Base::warp, Base::staging_begin, Base::staging;
    using typename Base::Accumulators, typename Base::T;
    static constexpr int ACCUMULATORS = Base::ACCUMULATORS, UNIT = Base::UNIT, BOXES = Base::BOXES;
    static_assert(S::M_STEPS == 1, "");

    const TrainingParams& all;

    __device__ __forceinline__ TrainingEpilogue(const TrainingParams& all, uint32_t shared)
        : Base(all.wgmma, shared), all(all) {}

    // The copy engine reads each of the three from the same shared memory, the first two while the gate is activated.
    __device__ __forceinline__ void write(Accumulators& d, const Item& item) const {
        if (p.bias != nullptr) Base::add_bias(d);
        put<0>(d, item, all.pre_activation_map, all.pre_activation);
        constexpr int HALF = ACCUMULATORS / 2;
        activate<T>(reinterpret_cast<float (&)[HALF]>(d[0][0]), p.activation, p.negative_slope);
        put<ACCUMULATORS>(d, item, all.up_map, all.up);
        activate<T>(reinterpret_cast<float (&)[HALF]>(d[0][HALF]), p.activation, p.negative_slope);
#pragma unroll
        for (int e = 0; e < ACCUMULATORS; ++e) d[0][e] *= d[0][ACCUMULATORS + e];
        put<0>(d, item, p.result, p.out);
    }

private:
    // The accumulators from FIRST on.
    template <int FIRST>
    __device__ __forceinline__ void put(const Accumulators& d, const Item& item, const TensorMap& map, void* to) const {
        const bool tma_store = S::CAN_TMA_STORE && p.tma_store;
        const bool leader = warp % 4 == 0 && ptx::elect();
        const uint32_t result = staging_begin + warp / 4 * BOXES * BOX_BYTES;
        if (tma_store) {
            if (leader) ptx::tma_store_wait_read();
            ptx::barrier_sync(RESULT_READY + warp / 4, 128);
        }
        const int32_t column = Base::column_of(item);
        T* out = static_cast<T*>(to) + (item.row + Base::row_of(0)) * p.out_row + column * p.out_col;
#pragma unroll
        for (int k = 0; k < 3; ++k) out += item.batch[k] * p.out_batch[k];
#pragma unroll
        for (int box = 0; box < BOXES; ++box) {
            const uint32_t buffer = tma_store ? result + box * BOX_BYTES + warp % 4 * STORE_BYTES : staging;
#pragma unroll
            for (int part = 0; part < Base::UNITS_OF_BOX; ++part) {
                const int from = FIRST + (box * Base::UNITS_OF_BOX + part) * UNIT;
                Base::stage(reinterpret_cast<const float (&)[UNIT]>(d[0][from]), buffer, part);
            }
            if (tma_store) continue;
            Base::store_box(buffer, out + box * 64 * p.out_col, int32_t(p.m) - item.row - Base::row_of(0),
                            min(int32_t(p.n) - column - box * 64, 64));
        }
        if (tma_store) Base::send(map, result, leader, item);
    }
};
