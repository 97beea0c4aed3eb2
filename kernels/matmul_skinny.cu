// targets: 80 90 100 120 ptx:80
//
// matmul of a few rows by a large matrix (a decoder's token step), or of a large matrix by a few columns, for float16 and
// bfloat16 on tensor cores, summed in float: out = act(a @ b + bias).
//
// The time of such a product is the time to read the large operand, the weights, once. So the whole device must read, and
// each multiprocessor must have enough bytes on their way: at 4.8 TB/s and about 1 us from a request to its data, 4.8 MB,
// 36 KB for each of an H200's 132 multiprocessors. A block keeps its ring's stages but one in flight, 48 KB of weights,
// and two blocks run side by side.
//
// The weights are the 16-row operand of every mma, whichever side of the product they stand on, and the few rows its
// columns of 8: no row of a tensor core is wasted. Where there are fewer tiles than the device runs blocks, k is cut into
// parts. On compute capability 9.0 and above two parts are a cluster, whose blocks read each other's sums from shared
// memory; elsewhere, and for more parts, the sums go through memory to matmul_reduce.cu. Either way they are added in
// the order of the parts: the same bits every time.
//
// Variants, matmul_skinny_{tile}_{layout}_{dtype}; src/cuda/plan/matmul/skinny.rs chooses:
//   tile    rows of the weights by few rows: 64x16. (128x32 and 128x64 took 40 to 112 us for 64x4096x4096 and
//           64x4096x14336 where matmul_mma's tiles took 19 and 49.)
//   layout  "k", "m": the dimension of unit stride in the weights, whose rows are whole, aligned 16-byte chunks (cp.async,
//           ldmatrix). "anyk", "anym": any other weights, along the dimension of the smaller stride, through registers
//           (common/gather_copier.cuh), one stage ahead, with more blocks side by side.
// The few rows are read in 16-byte chunks where those are whole and aligned along k, else through registers.
//
// Per product: 2 m n k flops; 2 m k bytes of the weights once from memory; the few rows from L2 by every block.
//
// On an H200, us, cold and clean L2, bf16, weights with k contiguous:
//                    cuBLAS  in pairs  k whole  4 parts, reduced  4 parts, clusters  matmul_wgmma  matmul_mma
//   1x4096x4096      15.5    15.3      17.8     18.1              21.3               17.0          19.4
//   1x4096x14336     34.0    35.2      45.2     37.2              47.7               39.3          51.9
//   1x14336x4096     33.5    37.2      34.1     43.4              42.9               34.1          37.0
//   16x4096x14336    33.9    35.7      44.8     38.0              44.2               38.9          50.4
// A kernel that only reads the weights, by plain loads or by the copy engine, takes 12.3 us for 4096x4096 and 31 for the
// others. On Hopper, halves that the copy engine can address are matmul_wgmma's: since its boxes of what is read once ask
// for no more than they need (src/cuda/driver.rs), and parts of k meet in clusters, it takes 14.2, 32.5 and 32. Tried in
// its place: weights by plain loads straight to registers, in mma's layout, eight loads in flight a thread: 16.5, 37 and 38.

#include "gather_copier.cuh"
#include "mma_block.cuh"
#include "skinny.cuh"

// The few rows: by asynchronous copies if they can be, else through registers.
template <class S> struct FewCopier {
    using T = typename S::T;
    bool chunks;
    AsyncCopier<T, S::BN, S::BK, Major::K, S::THREADS> async;
    GatherCopier<T, S::BN, S::BK, Major::K, S::THREADS> gather;

    __device__ __forceinline__ FewCopier(const SkinnyParams& params, const Work<T>& work)
        : chunks(params.b_chunks),
          async(work.b, params.product.b_col, work.cols),
          gather(work.b, params.product.b_col, params.product.b_row, work.cols) {}

    __device__ __forceinline__ void copy(uint32_t shared, int k_left, int part, int parts) {
        if (chunks) {
            async.copy(shared, k_left, part, parts);
        } else {
            gather.copy(shared, k_left, part, parts);
        }
    }
};

template <class S, Major A, bool ANY> __device__ __forceinline__ void matmul_skinny(const SkinnyParams& params) {
    ptx::wait_for_grid_before();
    using T = typename S::T;
    using Sums = SumTile<float, S::BM, S::BN>;
    static_assert(Sums::BYTES <= S::STAGES * S::template STAGE_BYTES<A, Major::K>, "the sums fit where the ring was");
    const auto& p = params.product;
    Work<T> work;
    const Part part = find_part<S::BM, S::BN>(params, work);
    Warp<S, A, Major::K> warp;
    if constexpr (ANY) {
        GatherCopier<T, S::BM, S::BK, A, S::THREADS> copy_a(work.a, p.a_row, p.a_col, work.rows);
        GatherCopier<T, S::BN, S::BK, Major::K, S::THREADS> copy_b(work.b, p.b_col, p.b_row, work.cols);
        multiply(warp, copy_a, copy_b, part.k);
    } else {
        AsyncCopier<T, S::BM, S::BK, A, S::THREADS> copy_a(work.a, A == Major::K ? p.a_row : p.a_col, work.rows);
        FewCopier<S> copy_b(params, work);
        multiply(warp, copy_a, copy_b, part.k);
    }

    float* sums = reinterpret_cast<float*>(shared_memory);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < S::WM / 16; ++i)
#pragma unroll
        for (int j = 0; j < S::WN / 8; ++j) {
            const float* v = warp.accumulator[i][j];
            float* at = sums + (warp.col + j * 8 + lane % 4 * 2) * Sums::STRIDE + warp.row + i * 16 + lane / 4;
            at[0] = v[0], at[Sums::STRIDE] = v[1], at[8] = v[2], at[Sums::STRIDE + 8] = v[3];
        }
    leave<S::BM, S::BN, 1, S::THREADS>(params, work, part, sums);
}

//                                                 BM  BN bytes WM  WN stages blocks
template <class T> using Tile64x16 = Shape<T, 64, 16, 256, 16, 16, 4, 2>;
template <class T> using Any64x16 = Shape<T, 64, 16, 128, 16, 16, 3, 4>;

#define SKINNY(tile, layout, Shape, A, ANY, T)                                          \
    extern "C" __global__ void __launch_bounds__(Shape<T>::THREADS, Shape<T>::BLOCKS)   \
        matmul_skinny_##tile##_##layout##_##T(const __grid_constant__ SkinnyParams p) { \
        matmul_skinny<Shape<T>, Major::A, ANY>(p);                                      \
    }
#define SKINNY_LAYOUTS(tile, T)              \
    SKINNY(tile, k, Tile##tile, K, false, T) \
    SKINNY(tile, m, Tile##tile, MN, false, T)
#define SKINNY_ANY(tile, T)                   \
    SKINNY(tile, anyk, Any##tile, K, true, T) \
    SKINNY(tile, anym, Any##tile, MN, true, T)
#define SKINNY_DTYPE(T)      \
    SKINNY_LAYOUTS(64x16, T) \
    SKINNY_ANY(64x16, T)

SKINNY_DTYPE(f16)
SKINNY_DTYPE(bf16)
