// targets: 80 90 100 120 ptx:80
//
// Copies operands of a matmul that TMA cannot address for matmul_wgmma.cu, or that matmul_mma.cu cannot read in vectors
// of 16 bytes (odd stride, misaligned base, no unit stride), to the workspace.
//
// The copy's rows are a multiple of 8 elements, of 64 if they are long, along the dimension of the smaller stride; of
// float32 for matmul_wgmma_tf32.cu always along k. A batch dimension of stride 0 is copied once. One launch copies both
// operands; an element is read and written once.
//
// Variants: matmul_repack_i16, of fp16/bf16; matmul_repack_i32, of float32. src/cuda/plan/matmul/copied/mod.rs and
// src/cuda/plan/matmul/wgmma decide whether to copy.
// Hazard: outside of graphs the product begins early (common/ptx/grid.cuh), and waits for the copies.
// Measurements: docs/measurements/matmul_repack.md

#include "dtype.cuh"
#include "ptx/grid.cuh"
#include "repack.cuh"

// Mirrored in src/cuda/plan/matmul/repack.rs.
struct RepackParams {
    RepackOperand operand[2];
    uint32_t first_blocks;  // that copy the first operand
    uint32_t transposed;    // bit i, of float32: operand i is contiguous across its copy's rows
};
static_assert(sizeof(RepackParams) == 312, "mirrored in Rust");

constexpr int REPACK_THREADS = 256;

// Eight neighbours from an address that need not be aligned to more than an element, in words as far as they are whole.
__device__ __forceinline__ void load_neighbours(const uint16_t* from, uint32_t (&word)[4]) {
    if (reinterpret_cast<uint64_t>(from) % 4 == 0) {
#pragma unroll
        for (int i = 0; i < 4; ++i) ptx::load_global<4>(from + 2 * i, &word[i]);
        return;
    }
    uint32_t inner[3];
    const uint32_t first = ptx::load_global_half(from), last = ptx::load_global_half(from + 7);
#pragma unroll
    for (int i = 0; i < 3; ++i) ptx::load_global<4>(from + 1 + 2 * i, &inner[i]);
    word[0] = first | inner[0] << 16;
    word[1] = inner[0] >> 16 | inner[1] << 16;
    word[2] = inner[1] >> 16 | inner[2] << 16;
    word[3] = inner[2] >> 16 | last << 16;
}

extern "C" __global__ void __launch_bounds__(REPACK_THREADS) matmul_repack_i16(const __grid_constant__ RepackParams p) {
    ptx::wait_for_grid_before();
    ptx::let_next_grid_begin();
    const bool second = blockIdx.x >= p.first_blocks;
    const RepackOperand& x = p.operand[second];
    const uint64_t index = uint64_t(blockIdx.x - (second ? p.first_blocks : 0)) * REPACK_THREADS + threadIdx.x;
    if (index >= x.vectors) return;
    const RepackVector at = x.at(index);
    const uint32_t col = at.col;
    const uint16_t* from = static_cast<const uint16_t*>(x.from) + at.from;
    uint32_t word[4] = {};
    if (x.col_stride == 1 && col + 8 <= x.cols) {
        load_neighbours(from, word);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 8; ++i) {
            if (col + i < x.cols) word[i / 2] |= uint32_t(ptx::load_global_half(from + i * x.col_stride)) << i % 2 * 16;
        }
    }
    ptx::store_global<16>(static_cast<uint16_t*>(x.to) + index * 8, word);
}

// Where the elements of 32 rows by 64 of k wait, of a transposed operand.
constexpr int WARP_ROWS = 32, BLOCK_VECTORS = REPACK_THREADS / WARP_ROWS, TRANSPOSED_ROW = BLOCK_VECTORS * 8 + 1;

// A lane has a vector of 8 of k: side by side in memory, or, of a transposed operand, of one of 32 rows, so that lanes read
// neighbours; through shared memory lanes write neighbours, too.
extern "C" __global__ void __launch_bounds__(REPACK_THREADS) matmul_repack_i32(const __grid_constant__ RepackParams p) {
    __shared__ uint32_t transposed[WARP_ROWS * TRANSPOSED_ROW];
    ptx::wait_for_grid_before();
    ptx::let_next_grid_begin();
    const bool second = blockIdx.x >= p.first_blocks, transposes = p.transposed >> second & 1;
    const RepackOperand& x = p.operand[second];
    uint64_t index = uint64_t(blockIdx.x - (second ? p.first_blocks : 0)) * REPACK_THREADS + threadIdx.x;
    if (index >= x.vectors) return;  // of a transposed operand, blocks are whole
    const uint64_t warp = index / WARP_ROWS, rows = transposes ? x.by_across.quotient(warp) : 0;
    const uint64_t first = rows * WARP_ROWS * x.across + (warp - rows * x.across);  // of the warp's
    if (transposes) index = first + threadIdx.x % WARP_ROWS * x.across;
    const RepackVector at = x.at(index);
    const float* from = static_cast<const float*>(x.from) + at.from;
    const uint32_t left = at.row < x.from_rows && at.col < x.cols ? x.cols - at.col : 0;
    uint32_t word[8] = {};
    if (x.col_stride == 1 && left >= 8 && reinterpret_cast<uint64_t>(from) % 16 == 0) {
        ptx::load_global<16>(from, word);
        ptx::load_global<16>(from + 4, word + 4);
    } else {
#pragma unroll
        for (uint32_t i = 0; i < 8; ++i) ptx::load_global_if<4>(i < left, from + i * x.col_stride, &word[i]);
    }
    if (transposes) {
        const int lane = threadIdx.x % WARP_ROWS, vector = threadIdx.x / WARP_ROWS;
#pragma unroll
        for (int i = 0; i < 8; ++i) transposed[lane * TRANSPOSED_ROW + vector * 8 + i] = word[i];
        __syncthreads();
        const int row = threadIdx.x / BLOCK_VECTORS, column = threadIdx.x % BLOCK_VECTORS;
#pragma unroll
        for (int i = 0; i < 8; ++i) word[i] = transposed[row * TRANSPOSED_ROW + column * 8 + i];
        index = first - vector + row * x.across + column;
    }
    uint32_t* to = static_cast<uint32_t*>(x.to) + index * 8;
    ptx::store_global<16>(to, word);
    ptx::store_global<16>(to + 4, word + 4);
}
