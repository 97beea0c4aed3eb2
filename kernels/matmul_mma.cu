// targets: 80 90 100 120 ptx:80
//
// matmul for float16 and bfloat16 on the tensor cores (mma.sync, sm_80 and up), summed in float:
// out = act(a @ b + bias).
//
// A block of warps computes one tile of the result. Tiles of a and b come in through a ring of STAGES
// buffers in shared memory: copies (cp.async) run STAGES - 1 tiles of k ahead of the arithmetic, fragments
// (ldmatrix) one step of 16 ahead. At the ragged edges of m, n and k the copies write zeros instead of
// reading; nothing outside an operand is ever touched.
//
// Variants, matmul_mma_{tile}_{layout}_{dtype}; src/cuda/plan/matmul.rs chooses:
//   layout  {k or m}{k or n}: the dimension with unit stride in a, in b. Each has its own image in shared
//           memory, and ldmatrix or its transposing form brings both to the same fragments.
//           "any": an operand has no unit stride, or rows that are not whole, aligned 16-byte chunks: loads
//           of single elements.
//   tile    256 x 128 large results: the fewest bytes of shared memory and of L2 for each flop
//           128 x 128 two blocks a multiprocessor hide each other's fill and epilogue; fits 99 KB parts
//            64 x  64 results with too few larger tiles to fill the device
//            32 x  64 m of 32 or less: bound by the bytes of b, so eight buffers keep many in flight
//
// Per product: 2 m n k flops; 2 (m k + k n + m n) bytes at least; each tile row of b and tile column of a
// is read again from L2, which the grouped order of blocks (common/tile_order.cuh) keeps small.

#include "matmul.cuh"
#include "mma_operand.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/mma.cuh"
#include "shared_tile.cuh"

// A tile shape: the block's BM x BN result, BK steps of k at a time, and the WM x WN part of one warp.
template <int BM_, int BN_, int BK_, int WM_, int WN_, int STAGES_, int BLOCKS_>
struct Shape {
    static constexpr int BM = BM_, BN = BN_, BK = BK_, WM = WM_, WN = WN_;
    static constexpr int STAGES = STAGES_;
    static constexpr int BLOCKS = BLOCKS_;  // wanted on one multiprocessor: bounds the registers
    static constexpr int WARPS_M = BM / WM, WARPS_N = BN / WN;
    static constexpr int THREADS = WARPS_M * WARPS_N * 32;
    static constexpr int K_STEPS = BK / 16;
    static_assert(WM % 16 == 0 && WN % 16 == 0 && K_STEPS % 2 == 0, "");
};

// One warp's part of the result and the two fragments' worth of operands in flight.
template <class T, class S, Major A, Major B>
struct Warp {
    static constexpr int MT = S::WM / 16, NT = S::WN / 8;

    float accumulator[MT][NT][4] = {};
    uint32_t a[2][MT][4], b[2][NT / 2][4];
    int row, col;  // within the tile
    FragmentReader<SharedTile<S::BM, S::BK, A>, A, Side::A> a_reader;
    FragmentReader<SharedTile<S::BN, S::BK, B>, B, Side::B> b_reader;

    __device__ __forceinline__ Warp()
        : row(threadIdx.x / 32 / S::WARPS_N * S::WM),
          col(threadIdx.x / 32 % S::WARPS_N * S::WN),
          a_reader(row),
          b_reader(col) {}

    __device__ __forceinline__ void read(int set, uint32_t shared_a, uint32_t shared_b, int k_step) {
#pragma unroll
        for (int i = 0; i < MT; ++i) a_reader.read(a[set][i], shared_a, i, k_step);
#pragma unroll
        for (int i = 0; i < NT / 2; ++i) b_reader.read(b[set][i], shared_b, i, k_step);
    }

    __device__ __forceinline__ void multiply(int set) {
#pragma unroll
        for (int i = 0; i < MT; ++i)
#pragma unroll
            for (int j = 0; j < NT; ++j) {
                const uint32_t fragment[2] = {b[set][j / 2][j % 2 * 2], b[set][j / 2][j % 2 * 2 + 1]};
                ptx::mma_m16n8k16<T>(accumulator[i][j], a[set][i], fragment);
            }
    }

    // Hands the accumulators over 16 rows at a time through the warp's own strip of shared memory, so that
    // a row's neighbours are finished and written together. The loop is not unrolled, to keep the
    // activations' code small: the accumulators move up instead.
    static constexpr int STRIP_ROW = S::WN + 8;  // floats; 8 more make the writes free of bank conflicts
    static constexpr int STRIP_BYTES = 16 * STRIP_ROW * sizeof(float);

    __device__ __forceinline__ void finish_all(const MatmulParams& p, const Work<T>& work, uint8_t* shared) {
        constexpr int LANES = S::WN / 4;  // on one row, four columns each
        float* strip = reinterpret_cast<float*>(shared + threadIdx.x / 32 * STRIP_BYTES);
        const int lane = threadIdx.x % 32;
        const int step = p.out_vector ? 1 : LANES;
        const int first = p.out_vector ? lane % LANES * 4 : lane % LANES;
#pragma unroll 1
        for (int i = 0; i < MT; ++i) {
#pragma unroll
            for (int j = 0; j < NT; ++j) {
                float* at = strip + lane / 4 * STRIP_ROW + j * 8 + lane % 4 * 2;
                const float* v = accumulator[0][j];
                *reinterpret_cast<float2*>(at) = make_float2(v[0], v[1]);
                *reinterpret_cast<float2*>(at + 8 * STRIP_ROW) = make_float2(v[2], v[3]);
            }
            __syncwarp();
#pragma unroll 1
            for (int r = lane / LANES; r < 16; r += 32 / LANES) {
                const float* at = strip + r * STRIP_ROW + first;
                float v[4];
                if (p.out_vector) {
                    const float4 four = *reinterpret_cast<const float4*>(at);
                    v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
                } else {
#pragma unroll
                    for (int e = 0; e < 4; ++e) v[e] = at[e * LANES];
                }
                finish(p, work, row + i * 16 + r, col + first, step, v);
            }
            __syncwarp();
#pragma unroll
            for (int next = 1; next < MT; ++next)
#pragma unroll
                for (int j = 0; j < NT; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) accumulator[next - 1][j][e] = accumulator[next][j][e];
        }
    }
};

extern __shared__ __align__(128) uint8_t shared_memory[];

template <class S>
__device__ __forceinline__ int k_left(int64_t k, int tile) {
    return int(max(int64_t(0), min(int64_t(S::BK), k - int64_t(tile) * S::BK)));
}

// Both operands have a unit stride, and rows of whole 16-byte chunks aligned to that.
template <class T, class S, Major A, Major B>
__device__ __forceinline__ void matmul_async(const MatmulParams& p) {
    using SharedA = SharedTile<S::BM, S::BK, A>;
    using SharedB = SharedTile<S::BN, S::BK, B>;
    constexpr uint32_t STAGE = SharedA::BYTES + SharedB::BYTES;
    static_assert(S::WARPS_M * S::WARPS_N * Warp<T, S, A, B>::STRIP_BYTES <= STAGE * S::STAGES, "");

    Work<T> work;
    if (!locate<S::BM, S::BN>(p, work)) return;
    AsyncCopier<T, S::BM, S::BK, A, S::THREADS> copy_a(work.a, A == Major::K ? p.a_row : p.a_col, work.rows);
    AsyncCopier<T, S::BN, S::BK, B, S::THREADS> copy_b(work.b, B == Major::K ? p.b_col : p.b_row, work.cols);
    const uint32_t shared = uint32_t(__cvta_generic_to_shared(shared_memory));
    const int tiles = int((p.k + S::BK - 1) / S::BK);
    Warp<T, S, A, B> warp;

    // The copies of one tile of k start in as many parts as it has steps, one before the arithmetic of each,
    // so as not to crowd it out. `remaining` is k from that tile on; past the end they write zeros.
    int64_t remaining = p.k;
    const auto fetch = [&](int stage, int part, int parts) {
        const int left = int(min(remaining, int64_t(S::BK)));
        copy_a.copy(shared + stage * STAGE, left, part, parts);
        copy_b.copy(shared + stage * STAGE + SharedA::BYTES, left, part, parts);
        if (part + 1 == parts) {
            ptx::cp_async_commit();
            remaining -= S::BK;
        }
    };
    const auto read = [&](int set, int stage, int k_step) {
        warp.read(set, shared + stage * STAGE, shared + stage * STAGE + SharedA::BYTES, k_step);
    };

    int read_stage = 0, write_stage = S::STAGES - 1;
    if (tiles > 0) {
#pragma unroll 1
        for (int stage = 0; stage < S::STAGES - 1; ++stage) fetch(stage, 0, 1);
        ptx::cp_async_wait<S::STAGES - 2>();
        __syncthreads();
        read(0, 0, 0);
        fetch(write_stage, 0, S::K_STEPS);
    }
    for (int tile = 0; tile < tiles; ++tile) {
#pragma unroll
        for (int step = 0; step < S::K_STEPS; ++step) {
            if (step == S::K_STEPS - 1) {
                // Everyone has read the last of this tile into registers: after the barrier its buffer is
                // free. The next tile has arrived: all but the STAGES - 2 newest have.
                ptx::cp_async_wait<S::STAGES - 2>();
                __syncthreads();
                write_stage = read_stage;
                read_stage = read_stage + 1 == S::STAGES ? 0 : read_stage + 1;
            }
            // Past the last tile this reads zeros, and nothing uses them.
            read((step + 1) % 2, read_stage, (step + 1) % S::K_STEPS);
            fetch(write_stage, (step + 1) % S::K_STEPS, S::K_STEPS);
            warp.multiply(step % 2);
        }
    }
    // The last parts were started but not committed, and a wait is only for what was: uncommitted zeros
    // would land in the strips that the epilogue lays over the buffers.
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    __syncthreads();
    warp.finish_all(p, work, shared_memory);
}

// Any strides and any alignment: two buffers, the next tile's elements held in registers meanwhile.
template <class T, class S>
__device__ __forceinline__ void matmul_any(const MatmulParams& p) {
    using SharedA = SharedTile<S::BM, S::BK, Major::K>;
    using SharedB = SharedTile<S::BN, S::BK, Major::K>;
    constexpr uint32_t STAGE = SharedA::BYTES + SharedB::BYTES;
    static_assert(S::STAGES == 2, "");
    static_assert(S::WARPS_M * S::WARPS_N * Warp<T, S, Major::K, Major::K>::STRIP_BYTES <= STAGE * 2, "");

    Work<T> work;
    if (!locate<S::BM, S::BN>(p, work)) return;
    ElementCopier<T, S::BM, S::BK, S::THREADS> copy_a(work.a, p.a_row, p.a_col, work.rows, p.a_k_fast);
    ElementCopier<T, S::BN, S::BK, S::THREADS> copy_b(work.b, p.b_col, p.b_row, work.cols, p.b_k_fast);
    const uint32_t shared = uint32_t(__cvta_generic_to_shared(shared_memory));
    const int tiles = int((p.k + S::BK - 1) / S::BK);
    Warp<T, S, Major::K, Major::K> warp;

    const auto load = [&](int tile) {
        copy_a.load(k_left<S>(p.k, tile));
        copy_b.load(k_left<S>(p.k, tile));
    };
    const auto store = [&](int tile) {
        copy_a.store(shared_memory + tile % 2 * STAGE);
        copy_b.store(shared_memory + tile % 2 * STAGE + SharedA::BYTES);
        __syncthreads();
    };
    if (tiles > 0) {
        load(0);
        store(0);
    }
    for (int tile = 0; tile < tiles; ++tile) {
        if (tile + 1 < tiles) load(tile + 1);
#pragma unroll
        for (int step = 0; step < S::K_STEPS; ++step) {
            const uint32_t stage = shared + tile % 2 * STAGE;
            warp.read(step % 2, stage, stage + SharedA::BYTES, step);
            warp.multiply(step % 2);
        }
        // The other buffer was last read before the barrier of the previous store.
        if (tile + 1 < tiles) store(tile + 1);
    }
    __syncthreads();
    warp.finish_all(p, work, shared_memory);
}

//                        BM   BN  BK  WM  WN  stages  blocks
using Tile128x256 = Shape<128, 256, 64, 64, 64, 3, 1>;
using Tile128x128 = Shape<128, 128, 32, 64, 64, 3, 2>;
using Tile64x64 = Shape<64, 64, 64, 32, 32, 3, 4>;
using Tile32x64 = Shape<32, 64, 64, 32, 16, 8, 2>;
using Any128x128 = Shape<128, 128, 32, 64, 32, 2, 1>;
using Any64x64 = Shape<64, 64, 32, 32, 16, 2, 2>;

#define MATMUL_ASYNC(tile, layout, a, b, suffix, T)                                       \
    extern "C" __global__ void __launch_bounds__(Tile##tile::THREADS, Tile##tile::BLOCKS) \
        matmul_mma_##tile##_##layout##_##suffix(const __grid_constant__ MatmulParams p) { \
        matmul_async<T, Tile##tile, Major::a, Major::b>(p);                               \
    }
#define MATMUL_ANY(tile, suffix, T)                                                     \
    extern "C" __global__ void __launch_bounds__(Any##tile::THREADS, Any##tile::BLOCKS) \
        matmul_mma_##tile##_any_##suffix(const __grid_constant__ MatmulParams p) {      \
        matmul_any<T, Any##tile>(p);                                                    \
    }
#define MATMUL_LAYOUTS(tile, suffix, T)      \
    MATMUL_ASYNC(tile, kk, K, K, suffix, T)  \
    MATMUL_ASYNC(tile, kn, K, MN, suffix, T) \
    MATMUL_ASYNC(tile, mk, MN, K, suffix, T) \
    MATMUL_ASYNC(tile, mn, MN, MN, suffix, T)
#define MATMUL_DTYPE(suffix, T)        \
    MATMUL_LAYOUTS(128x256, suffix, T) \
    MATMUL_LAYOUTS(128x128, suffix, T) \
    MATMUL_LAYOUTS(64x64, suffix, T)   \
    MATMUL_LAYOUTS(32x64, suffix, T)   \
    MATMUL_ANY(128x128, suffix, T)     \
    MATMUL_ANY(64x64, suffix, T)

MATMUL_DTYPE(f16, f16)
MATMUL_DTYPE(bf16, bf16)
