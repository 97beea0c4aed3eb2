// targets: 75 80 90 100 120 ptx:75
//
// Gradients of softmax and log_softmax where a row's elements do not lie side by side, or its dtypes are a rare
// pair. The arithmetic is that of softmax_backward.cu. On an H200, share of a copy of the
// same bytes, bf16 and f32: 8192x8192 dim 0 0.60, 0.63; 64x4096x64 dim 1 0.69, 0.83.
//
// Variants, as chosen in src/cuda/plan/softmax_backward/tile.rs:
//   tileE     neighbouring rows lie side by side (dim is not the last one): a block takes `across` accesses of E
//             elements side by side and a slice of the dimension, of which every thread holds K rows at a time. One
//             read of each input and one write where a single chunk does; else all chunks but the last are read
//             twice. The blocks of a cluster share the columns of a tile.
//   tileE_leave, for tiles so few that clusters would leave most of the device idle: slices of a tile first leave
//   tileE_find   their sums in memory from the caller's allocator, and a second launch finds them there, and reads its
//             slices again.
//   general   anything else: any strides, any pair of dtypes, any number of dimensions; a block per row, two
//             passes, element by element.

#include "ptx/cluster.cuh"
#include "softmax_backward.cuh"

// ------------------------------------------------------------------------------------------------ tile

constexpr int TILE_THREADS = 256;  // at most
constexpr int TILE_RANK = INLINE_RANK + 1;

// Mirrored by BackwardTileParams in src/cuda/plan/softmax_backward/params.rs.
struct BackwardTileParams {
    uint64_t grad, output, out;                      // addresses
    uint64_t length;                                 // elements of a column
    uint64_t columns;                                // side by side, a multiple of E
    uint64_t tiles;                                  // groups of `across` accesses
    int64_t grad_stride, output_stride, out_stride;  // down a column
    uint32_t across;                                 // threads side by side
    uint32_t chunks;                                 // of a block's slice, each K rows of every thread
    uint32_t parts;                                  // threads that add up the sums of one column
    uint32_t log;
    uint32_t rank;           // of dims, at least 1
    uint32_t slices;         // of a column: the blocks of a cluster, or those that leave sums
    uint64_t partials;       // leave, find: address of a sum for every slice of every column of a tile
    Dim<3> dims[TILE_RANK];  // outer dimensions, then the tiles side by side; strides of grad, output and out
};
static_assert(sizeof(BackwardTileParams) == 104 + 48 * TILE_RANK, "src/cuda/plan/softmax_backward/params.rs");

// E neighbouring elements as they come from memory.
template <class T, int E> struct Access {
    static constexpr int BYTES = E * sizeof(T), WORDS = BYTES < 4 ? 1 : BYTES / 4;
    uint32_t word[WORDS];

    __device__ __forceinline__ void load(const T* p, bool wanted) {
        *this = Access{};
        ptx::load_global_if<BYTES>(wanted, p, word);
    }
    __device__ __forceinline__ void widen(typename Math<T>::C (&x)[E]) const {
        if constexpr (same_type<T, bf16>) {
#pragma unroll
            for (int k = 0; k < E; ++k) {
                x[k] = __uint_as_float(k % 2 ? word[k / 2] & 0xffff0000u : word[k / 2] << 16);
            }
        } else {
            Pack<T, E> pack;
            __builtin_memcpy(&pack, word, sizeof(pack));
#pragma unroll
            for (int k = 0; k < E; ++k) x[k] = number(pack.v[k]);
        }
    }
};

// Where a thread's columns lie in a block's slice: rows d, d + down, ... of it, as far as `rows`.
template <class T> struct TileThread {
    const T* grad;
    const T* output;
    T* out;
    int64_t rows;
    int d, down;

    __device__ __forceinline__ TileThread(const BackwardTileParams& p, uint64_t tile, uint32_t rank, int64_t slice,
                                          int a, int e, int d, int down)
        : d(d), down(down) {
        const auto o = locate(p.dims, p.rank, tile);
        const int64_t begin = rank * slice, left = static_cast<int64_t>(p.length) - begin;
        const bool inside = d < down && (o.inner * p.across + a) * e < p.columns;
        rows = inside ? (left < slice ? left : slice) : 0;
        grad = reinterpret_cast<const T*>(p.grad) + o.at[0] + a * e + begin * p.grad_stride;
        output = reinterpret_cast<const T*>(p.output) + o.at[1] + a * e + begin * p.output_stride;
        out = reinterpret_cast<T*>(p.out) + o.at[2] + a * e + begin * p.out_stride;
    }
    __device__ __forceinline__ int64_t row(int64_t chunk, int k, int per_chunk) const {
        return chunk * per_chunk * down + k * down + d;
    }
};

// K accesses of each input, `down` rows apart.
template <class T, int E, int K> struct Accesses {
    using G = Gradient<T, T>;
    using C = typename G::C;
    Access<T, E> grad[K], output[K];

    __device__ __forceinline__ void load(const TileThread<T>& at, int64_t chunk, const BackwardTileParams& p) {
#pragma unroll
        for (int k = 0; k < K; ++k) {
            const int64_t row = at.row(chunk, k, K);
            grad[k].load(at.grad + row * p.grad_stride, row < at.rows);
            output[k].load(at.output + row * p.output_stride, row < at.rows);
        }
    }
    __device__ __forceinline__ void take(const G& gradient, C (&sum)[E]) const {
#pragma unroll
        for (int k = 0; k < K; ++k) {
            C g[E], y[E];
            grad[k].widen(g);
            output[k].widen(y);
            gradient.take(g, y, sum);
        }
    }
    __device__ __forceinline__ void store(const TileThread<T>& at, int64_t chunk, const BackwardTileParams& p,
                                          const G& gradient, const C (&sum)[E]) const {
#pragma unroll
        for (int k = 0; k < K; ++k) {
            auto packed_grad = grad[k], packed_output = output[k];
            if (is_half<T>) {  // so that they are not kept widened
#pragma unroll
                for (auto& word : packed_grad.word) word = forget(word);
#pragma unroll
                for (auto& word : packed_output.word) word = forget(word);
            }
            C g[E], y[E];
            packed_grad.widen(g);
            packed_output.widen(y);
            const auto results = gradient.results(g, y, sum);
            const int64_t row = at.row(chunk, k, K);
            if (row >= at.rows) continue;
            if constexpr (E * sizeof(T) < 4) {
                at.out[row * p.out_stride] = results.v[0];
            } else {
                store_pack(at.out + row * p.out_stride, results);
            }
        }
    }
};

// Every `parts`-th of `count` sums, `pitch` apart.
template <class C>
__device__ __forceinline__ C add_up(const C* from, uint32_t pitch, uint32_t part, uint32_t parts, uint32_t count) {
    C sum = 0;
#pragma unroll 4
    for (uint32_t i = part; i < count; i += parts) sum += from[i * pitch];
    return sum;
}

// Whose sums make a column whole: the blocks' of a cluster; or those that one launch leaves in memory and the next finds.
enum class Share { cluster, leave, find };

template <class T, int E, int K, Share S>
__device__ __forceinline__ void softmax_backward_tile(const BackwardTileParams& p) {
    ptx::wait_for_grid_before();
    using C = typename Gradient<T, T>::C;
    struct alignas(8) Letter {
        C sum;
    };
    extern __shared__ uint4 shared[];
    __shared__ uint64_t mailbox_state;
    const Gradient<T, T> gradient = {p.log != 0};
    const ptx::Mailbox mailbox = {&mailbox_state};
    const uint32_t blocks = S == Share::cluster ? ptx::cluster_blocks() : 1;
    const uint32_t wide = p.across * E, pitch = wide | 1;  // odd: no bank conflicts among threads below each other
    const int down = blockDim.x / p.across, d = threadIdx.x / p.across, a = threadIdx.x - d * p.across;
    auto* letters = reinterpret_cast<Letter*>(shared);                 // [blocks][wide]
    auto* of_threads = reinterpret_cast<C*>(letters + blocks * wide);  // [down][pitch]
    auto* of_parts = of_threads + down * pitch;                        // [parts][wide]
    auto* of_columns = of_parts + p.parts * wide;                      // [wide]

    if (blocks > 1) mailbox.open();
    uint32_t parity = 0;
    for (uint64_t index = blockIdx.x; index < p.tiles * p.slices; index += gridDim.x) {
        const uint64_t tile = index / p.slices;
        const uint32_t rank = index - tile * p.slices;
        if (blocks > 1) {
            if (threadIdx.x == 0) mailbox.expect(blocks * wide * sizeof(Letter));
            ptx::cluster_arrive();
        }
        const int64_t slice = static_cast<int64_t>(p.chunks) * K * down;
        const TileThread<T> at(p, tile, rank, slice, a, E, d, down);
        Accesses<T, E, K> accesses;
        C sum[E] = {};
        const int64_t last = p.chunks - 1;
        if constexpr (S == Share::find) {
            accesses.load(at, last, p);
        } else {
            for (int64_t c = 0; c <= last; ++c) {
                accesses.load(at, c, p);
                accesses.take(gradient, sum);
            }
        }

        // First what the threads of a column have, then what the blocks of the cluster have.
        C* left_behind = reinterpret_cast<C*>(p.partials) + tile * p.slices * wide;
        if (S != Share::find && d < down) {
#pragma unroll
            for (int e = 0; e < E; ++e) of_threads[d * pitch + e * p.across + a] = sum[e];
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < p.parts * wide; i += blockDim.x) {
            const uint32_t part = i / wide, column = i - part * wide;
            of_parts[i] = S == Share::find ? add_up(left_behind + column, wide, part, p.parts, p.slices)
                                           : add_up(of_threads + column, pitch, part, p.parts, down);
        }
        __syncthreads();
        if (blocks > 1) ptx::cluster_wait();  // until the others have announced what they expect
        for (uint32_t column = threadIdx.x; column < wide; column += blockDim.x) {
            const Letter letter = {add_up(of_parts + column, wide, 0, 1, p.parts)};
            of_columns[column] = letter.sum;
            if (S == Share::leave) left_behind[rank * wide + column] = letter.sum;
            if (blocks == 1) continue;
            uint32_t words[sizeof(Letter) / 4];
            __builtin_memcpy(words, &letter, sizeof(letter));
            for (uint32_t b = 0; b < blocks; ++b) {
                mailbox.send<sizeof(Letter) / 4>(letters + rank * wide + column, b, words);
            }
        }
        if (S == Share::leave) continue;
        if (blocks > 1) {
            mailbox.wait(parity);
            for (uint32_t column = threadIdx.x; column < wide; column += blockDim.x) {
                C all = 0;
                for (uint32_t b = 0; b < blocks; ++b) all += letters[b * wide + column].sum;
                of_columns[column] = all;
            }
        }
        __syncthreads();
        parity ^= 1;

        if (d < down) {
#pragma unroll
            for (int e = 0; e < E; ++e) sum[e] = of_columns[e * p.across + a];
        }
        // Backwards: the last chunk is still in registers, and those before it in the caches.
        accesses.store(at, last, p, gradient, sum);
        for (int64_t c = last - 1; c >= 0; --c) {
            accesses.load(at, c, p);
            accesses.store(at, c, p, gradient, sum);
        }
    }
}

// --------------------------------------------------------------------------------------------- general

constexpr int GENERAL_THREADS = 256;

// Acc: f32, or f64 if an operand is float64.
template <class Acc> __device__ __forceinline__ Acc load_any(uint64_t base, int64_t offset, uint32_t tag) {
    Acc v;
    with_float_type(tag, [&](auto type) { v = convert<Acc>(reinterpret_cast<const decltype(type)*>(base)[offset]); });
    return v;
}

template <class Acc>
__device__ __forceinline__ void softmax_backward_general(const BackwardParams<MAX_RANK>& p) {
    ptx::wait_for_grid_before();
    __shared__ Acc scratch[2][32];
    const Gradient<Acc, Acc> gradient = {p.log != 0};
    uint32_t parity = 0;
    const int64_t length = p.length;
    for (uint64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
        const auto o = locate(p.dims, p.rank, row);
        const auto load = [&](int64_t i, Acc(&grad)[1], Acc(&output)[1]) {
            grad[0] = load_any<Acc>(p.grad, o.at[0] + i * p.grad_stride, p.in_tag);
            output[0] = load_any<Acc>(p.output, o.at[1] + i * p.output_stride, p.in_tag);
        };
        Acc sum[1] = {}, grad[1], output[1];
#pragma unroll 4
        for (int64_t i = threadIdx.x; i < length; i += blockDim.x) {
            load(i, grad, output);
            gradient.take(grad, output, sum);
        }
        sum[0] = reduce_block(sum[0], Sum(), Acc(0), scratch[parity]);
        parity ^= 1;
        for (int64_t i = threadIdx.x; i < length; i += blockDim.x) {
            load(i, grad, output);
            const Acc result = gradient.results(grad, output, sum).v[0];
            with_float_type(p.out_tag, [&](auto type) {
                using T = decltype(type);
                reinterpret_cast<T*>(p.out)[o.at[2] + i * p.out_stride] = convert<T>(result);
            });
        }
    }
}

// -------------------------------------------------------------------------------------------- exported

#define TILE(BLOCKS, VARIANT, T, E, K, SHARE)                                      \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, BLOCKS)             \
        softmax_backward_##VARIANT(const __grid_constant__ BackwardTileParams p) { \
        softmax_backward_tile<T, E, K, Share::SHARE>(p);                           \
    }
// The slices of find are so few that each has a multiprocessor to itself.
#define EXPORT(T, E, K)                          \
    TILE(2, tile##E##_##T, T, E, K, cluster)     \
    TILE(2, tile##E##_leave_##T, T, E, K, leave) \
    TILE(1, tile##E##_find_##T, T, E, K, find)
// 128 bytes of each input per thread, or less where that would be many accesses.
#define HALVES(T)   \
    EXPORT(T, 8, 8) \
    EXPORT(T, 4, 4) \
    EXPORT(T, 2, 8) \
    EXPORT(T, 1, 16)

HALVES(f16)
HALVES(bf16)
EXPORT(f32, 4, 8)
EXPORT(f32, 2, 4)
EXPORT(f32, 1, 8)
EXPORT(f64, 2, 8)
EXPORT(f64, 1, 4)

extern "C" __global__ void __launch_bounds__(GENERAL_THREADS, 2)
    softmax_backward_general_f32(const __grid_constant__ BackwardParams<MAX_RANK> p) {
    softmax_backward_general<f32>(p);
}
extern "C" __global__ void __launch_bounds__(GENERAL_THREADS, 2)
    softmax_backward_general_f64(const __grid_constant__ BackwardParams<MAX_RANK> p) {
    softmax_backward_general<f64>(p);
}
