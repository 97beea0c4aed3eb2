// targets: 90a
//
// Splits the float32 operands of a matmul for matmul_bf16x6.cu: each element is the sum of three bfloat16 parts, each the
// rest rounded to nearest.
//
// The parts are three planes, interleaved along k by the 64, smallest part first, so that a plane's 64 of k are what a
// stage of common/wgmma_mainloop.cuh loads. The copies keep the dimension of the smaller stride contiguous; k is padded
// with zeros to a multiple of 64. One launch splits both operands; an element is 4 bytes read and 6 written. Each block
// leaves the largest element that it saw, and whether three parts were too few for one: below 2^-110, where bfloat16 has no
// exponent for the third.
//
// The kernel has no variants; src/cuda/plan/matmul/wgmma/bf16x6/mod.rs decides whether to split.
// Hazard: outside of graphs the product begins early (common/ptx/grid.cuh), and waits for the copies.
// Measurements: docs/measurements/matmul_split.md

#include "bf16x3.cuh"
#include "ptx/grid.cuh"
#include "repack.cuh"

// Mirrored in src/cuda/plan/matmul/wgmma/bf16x6/params.rs.
struct SplitParams {
    RepackOperand operand[2];
    uint32_t* extremes;     // an Extremes of each block
    uint32_t first_blocks;  // that split the first operand
    uint32_t k_major;       // bit i: operand i is contiguous along k
};
static_assert(sizeof(SplitParams) == 320, "mirrored in Rust");

constexpr int SPLIT_THREADS = 256;

// Eight neighbours, of which `count` exist.
__device__ __forceinline__ Pack<float, 8> load_eight(const float* from, int64_t stride, uint32_t count) {
    if (stride == 1 && count >= 8 && reinterpret_cast<uint64_t>(from) % 16 == 0) return load_pack<float, 8>(from);
    Pack<float, 8> x;
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
        uint32_t word = 0;
        ptx::load_global_if<4>(i < count, from + i * stride, &word);
        x.v[i] = __uint_as_float(word);
    }
    return x;
}

extern "C" __global__ void __launch_bounds__(SPLIT_THREADS) matmul_split_f32(const __grid_constant__ SplitParams p) {
    ptx::wait_for_grid_before();
    ptx::let_next_grid_begin();
    const bool second = blockIdx.x >= p.first_blocks;
    const RepackOperand& x = p.operand[second];
    const uint32_t block = blockIdx.x - (second ? p.first_blocks : 0);
    const uint32_t blocks = second ? gridDim.x - p.first_blocks : p.first_blocks;
    const bool k_major = p.k_major >> second & 1;
    const uint64_t row_elements = x.across * 8, plane = k_major ? 64 : 64 * row_elements;  // and from plane to plane
    Extremes extremes;
    for (uint64_t index = uint64_t(block) * SPLIT_THREADS + threadIdx.x; index < x.vectors;
         index += uint64_t(blocks) * SPLIT_THREADS) {
        const RepackVector at = x.at(index);
        const uint32_t left = at.row < x.from_rows && at.col < x.cols ? x.cols - at.col : 0;
        const Pack<float, 8> value = load_eight(static_cast<const float*>(x.from) + at.from, x.col_stride, left);
        uint32_t word[PARTS][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float pair[2] = {value.v[2 * i], value.v[2 * i + 1]};
            extremes.see(pair[0]);
            extremes.see(pair[1]);
#pragma unroll
            for (int part = 0; part < PARTS; ++part) word[part][i] = take_part(pair);
            extremes.rest(pair[0]);
            extremes.rest(pair[1]);
        }
        const uint32_t k = k_major ? at.col : at.row;
        const uint64_t line = k / 64 * (64 * PARTS) + k % 64;  // along k, in the first plane
        const uint64_t to = k_major ? (at.product * x.rows + at.row) * PARTS * row_elements + line
                                    : (at.product * x.rows * PARTS + line) * row_elements + at.col;
        bf16* out = static_cast<bf16*>(x.to) + to;
#pragma unroll
        for (int part = 0; part < PARTS; ++part) ptx::store_global<16>(out + (PARTS - 1 - part) * plane, word[part]);
    }
    __shared__ uint32_t scratch[32];
    extremes.reduce_block(scratch);
    if (threadIdx.x == 0) p.extremes[blockIdx.x] = extremes.word();
}
