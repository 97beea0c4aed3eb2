// Products of float32 as TF32 whose rows lie across k, which wgmma takes from registers only: consumer warpgroups read them from
// the ring's boxes while the products of the stage before are under way.
#pragma once

#include "ptx/shared_pairs.cuh"
#include "wgmma_mainloop.cuh"

// Where a thread reads its two neighbouring rows of 8 of k, in a stage: of boxes of 32 rows, a line of 128 bytes for each k. Lanes of
// every other vector of 16 bytes read their second k first, so that 16 lanes read 8 bytes each from all banks.
template <class S> struct RowReader {
    uint32_t first, second;
    bool swapped;

    __device__ __forceinline__ RowReader() {
        const uint32_t lane = threadIdx.x % 32, k = lane % 4, pair = lane / 4;
        const uint32_t row = threadIdx.x / 32 * 16 + pair * 2, vector = row % 32 / 4;
        const uint32_t box = row / 32 * S::LINE_BOX_BYTES + row % 4 * 4;
        const auto at = [&](uint32_t k) { return box + k * 128 + ((vector ^ k) << 4); };
        swapped = pair / 2 % 2;
        first = at(swapped ? k + 4 : k);
        second = at(swapped ? k : k + 4);
    }

    // As wgmma has them in registers, for each 8 of a stage's k.
    __device__ __forceinline__ void read(uint32_t (&a)[S::STAGE_K / 8][4], uint32_t stage) const {
#pragma unroll
        for (int step = 0; step < S::STAGE_K / 8; ++step) {
            uint32_t one[2], other[2];
            ptx::load_shared_8(stage + first + step * 1024, one);
            ptx::load_shared_8(stage + second + step * 1024, other);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                a[step][i] = swapped ? other[i] : one[i];
                a[step][2 + i] = swapped ? one[i] : other[i];
            }
        }
    }
};

// As `multiply`. Rows alternate between two sets of registers: one is read while the products of the other are under way.
template <class S>
__device__ __forceinline__ void multiply_across(const WgmmaParams& p, const TileCluster& cluster, Accumulators<S>& d,
                                                uint32_t shared, Ring& ring, uint32_t blocks) {
    static_assert(S::M_STEPS == 1 && S::PLANES == 2, "stages come in pairs");
    const RowReader<S> reader;
    HandBack multiplied(cluster, shared, ring);
    uint32_t a[2][S::STAGE_K / 8][4] = {};
#pragma unroll 1
    for (uint32_t block = 0; block < blocks; block += 2) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            ptx::mbarrier_wait(ring.full(ring.stage), ring.phase);
            const uint32_t stage = shared + stages_at<S>(p) + ring.stage * (S::A_BYTES + S::B_BYTES);
            ring.advance();
            reader.read(a[half], stage);
            const uint64_t b = ptx::wgmma_tile<false>(stage + S::A_BYTES);
            ptx::wgmma_pin(d[0]);
#pragma unroll
            for (int k = 0; k < S::STAGE_K / 8; ++k) ptx::wgmma_pin(a[half][k]);
            ptx::wgmma_fence();
#pragma unroll
            for (int k = 0; k < S::STAGE_K / 8; ++k) {
                ptx::WgmmaOfRegisters<S::BN>::template add<f32>(d[0], a[half][k], ptx::wgmma_tile_at(b, k * 32),
                                                                block + half + k > 0);
            }
            ptx::wgmma_commit();
            ptx::wgmma_wait<1>();
#pragma unroll
            for (int k = 0; k < S::STAGE_K / 8; ++k) ptx::wgmma_pin(a[1 - half][k]);
            if (block + half > 0) multiplied.next();
        }
    }
    ptx::wgmma_wait<0>();
    ptx::wgmma_pin(d[0]);
    if (blocks > 0) multiplied.next();
}
