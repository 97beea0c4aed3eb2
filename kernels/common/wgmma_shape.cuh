// What the files of matmul_wgmma.cu share: the parameter struct, the ring in shared memory, and which tile a block
// computes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "epilogue.cuh"
#include "ptx/barrier.cuh"
#include "ptx/cluster.cuh"
#include "ptx/global.cuh"
#include "ptx/grid.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/registers.cuh"
#include "ptx/shared.cuh"
#include "ptx/stmatrix.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "tile_order.cuh"
#include "wgmma_tile.cuh"

// out[i, j] = act(sum over k of a[i, k] b[k, j] + bias) + residual for every index of the batch. With a gate, half of a
// tile's columns are products with it, and the other half those with b: items count columns of both. Strides in
// elements. Mirrored in src/cuda/plan/matmul/wgmma/params.rs.
struct alignas(64) WgmmaParams {
    TileOrder order;        // of a product's tiles, or clusters of them
    uint32_t items;         // tiles of all products, or clusters of them, for each k split without cluster split-K
    uint32_t split_blocks;  // blocks of k, of 64, in every k split; one more in the first few
    uint32_t longer_splits;
    uint32_t cluster;  // as TileCluster::rows_of and others read it
    uint32_t stages;
    uint32_t stages_at;  // in shared memory
    // That arrive for one block of k, of a and of b: for most tiles, and for the last row or column of tiles.
    uint16_t a_stage_bytes, a_tail_bytes;
    uint16_t b_stage_bytes, b_tail_bytes;
    uint32_t a_mn, b_mn;            // the unit stride is along m or n, not along k
    uint32_t flat;                  // no batch: maps have two dimensions, not five
    uint32_t a_batches, b_batches;  // bit d: the operand is not broadcast along that dimension of the batch; b's GATED
    uint32_t products;
    uint32_t batch_size[2];  // of the two inner dimensions
    // So far, two lines of the constant caches, what there is to know before the first box.
    uint32_t m, n;
    uint32_t activation;
    float negative_slope;
    const void* bias;  // null: none
    void* out;
    float* partials;  // not null: partial sums of k splits, for matmul_reduce.cu to add
    int64_t bias_stride;
    int64_t out_row, out_col;
    int64_t out_batch[3];  // innermost dimension first
    uint32_t bias_by_row;
    uint32_t store_elements;  // rows that are no whole, aligned 16-byte vectors
    uint32_t tma_store;       // the epilogue stores whole tiles from shared memory by TMA
    uint32_t splits;          // of k, for the host to know, as is the next
    uint32_t cluster_splitk;  // the splits are a cluster: the kernel is then another
    uint32_t down_columns;    // of float32: neighbours of the result in memory are those of a column
    uint32_t unused[4];
    Divisor by_split;     // items of a k split
    Divisor by_product;   // items of a product
    Divisor by_batch[2];  // of the two inner dimensions
    Addends addends;
    int64_t residual_batch[3];  // innermost dimension first
    int64_t bias_up;            // from the gate's bias to b's
    uint32_t residual_batches;  // as a_batches
    uint32_t unused_too[7];
    TensorMap a, b;
    // Of b's last box, where b lies by rows and that is narrower than 64 columns; otherwise of the last column of tiles, if
    // its box is smaller.
    TensorMap b_tail;
    TensorMap result;  // with tma_store
    TensorMap gate;
    TensorMap residual;  // if it is read BY_TMA
    TensorMap a_tail;    // of the last row of tiles, if a lies along k and that has fewer rows
};
static_assert(sizeof(WgmmaParams) == 1344 && offsetof(WgmmaParams, m) == 128, "mirrored in Rust");
static_assert(offsetof(WgmmaParams, store_elements) == 220 && offsetof(WgmmaParams, addends) == 320, "");
static_assert(offsetof(WgmmaParams, a) == 448, "mirrored in Rust");
// In b_batches, of the two lines that come first.
enum : uint32_t { GATED = 8 };

// Barriers by number; 0 is that of __syncthreads. RESULT_READY + i is the one of consumer warpgroup i; cluster split-K
// has one for all. In ping-pong, TURN + i is the one of consumer warpgroup i.
enum : uint32_t { PRODUCERS_START = 1, CONSUMERS_START, RESULT_READY, TURN = RESULT_READY + 3 };

// The two of a warp's 16 rows whose accumulators a lane has.
struct RowsOfLane {
    int32_t first, step;  // within them, and from there to the second
};

template <class Element, int CONSUMERS, int M_STEPS, int BN, int BLOCKS_, bool PING_PONG = false>
struct WgmmaShape : WgmmaTile<CONSUMERS, M_STEPS, BN, PING_PONG> {
    using T = Element;
    using Result = Element;
    static constexpr int BLOCKS = BLOCKS_;                         // on one multiprocessor
    static constexpr int STAGE_K = BLOCK_K * 2 / sizeof(Element);  // elements of k in a stage
    static constexpr uint32_t PLANES = 1;                          // stages of a block of k
    // Of a box of an operand with unit stride along m or n: a line of 128 bytes for each k of a stage.
    static constexpr int32_t LINE = 128 / sizeof(Element);
    static constexpr uint32_t LINE_BOX_BYTES = STAGE_K * 128;
    static constexpr bool HAS_CLUSTERS = true;
    static constexpr bool MAY_BE_WHOLE = false;  // cluster split-K, of one split
    // Results may lie as columns, which a lane then has two neighbours of.
    static constexpr bool MAY_BE_DOWN = false;
    static constexpr int K_GROUPS = 1;  // warpgroups that share their rows, each with k of its own
    static constexpr int THREADS = 128 * CONSUMERS + 128;
    static constexpr int ACCUMULATORS = BN / 2;  // of a thread, for 64 rows
    // Stages that a warpgroup multiplies as one group, if the ring is long enough for as many to be loaded. The products of
    // a 64 x 64 tile's stage take less time than a turn of its loop, and there is no other warpgroup meanwhile.
    static constexpr uint32_t GROUP = CONSUMERS * M_STEPS * BN == 64 ? 2 : 1;
    // A thread's, in steps of 8: what the block is launched with is all there is to share, and who asks for more waits
    // for ever.
    static constexpr int LAUNCHED = 65536 / (BLOCKS * THREADS) / 8 * 8;
    static constexpr int PRODUCER_REGISTERS = 40;
    static constexpr int AVAILABLE = (LAUNCHED * (CONSUMERS + 1) - PRODUCER_REGISTERS) / CONSUMERS / 8 * 8;
    static constexpr int CONSUMER_REGISTERS = AVAILABLE < 240 ? AVAILABLE : 240;

    // Whether an operand with so many of m or n along its lines is a multiple of `blocks` boxes.
    template <int32_t ROWS> static __device__ __forceinline__ bool has_whole_boxes(uint32_t blocks) {
        return ROWS % LINE == 0 && (ROWS / LINE & (blocks - 1)) == 0;
    }

    // Of a warp's first eight rows, and of its next, whose accumulators a lane has.
    static __device__ __forceinline__ int32_t row_of_lane(uint32_t lane) { return int32_t(lane / 4); }
    static __device__ __forceinline__ RowsOfLane rows_of_lane(const WgmmaParams&, uint32_t lane) {
        return {row_of_lane(lane), 8};
    }
};

template <class S> __device__ __forceinline__ uint32_t stages_at(const WgmmaParams& p) {
    return S::CAN_TMA_STORE ? p.stages_at : S::STAGES_AT;
}

extern __shared__ __align__(1024) unsigned char wgmma_shared[];

// A block alone, or one of a cluster whose tiles are neighbours. Those in a row share their rows of a, those in a column their
// columns of b: each of them loads an equal part for all. 1, 2 or 4 rows and columns, so that divisions, which come before
// everything else, are shifts.
struct TileCluster {
    uint32_t rows = 1, columns = 1;
    uint32_t row = 0, column = 0;  // of this block's tile

    template <class S> __device__ __forceinline__ static TileCluster of(const WgmmaParams& p) {
        if (!S::HAS_CLUSTERS || p.cluster == ALONE) return {};
        const uint32_t rank = ptx::cluster_rank(), rows = rows_of(p.cluster);
        return {rows, columns_of(p.cluster), rank & (rows - 1), rank >> shift(rows)};
    }
    // As parameters have it in one word, which is soonest compared: a byte each of rows, columns, and how many rows and columns of
    // the last clusters lie beyond the result.
    static constexpr uint32_t ALONE = 0x0101;
    __device__ __forceinline__ static uint32_t rows_of(uint32_t packed) { return packed & 0xff; }
    __device__ __forceinline__ static uint32_t columns_of(uint32_t packed) { return packed >> 8 & 0xff; }
    __device__ __forceinline__ static uint32_t rows_beyond(uint32_t packed) { return packed >> 16 & 0xff; }
    __device__ __forceinline__ static uint32_t columns_beyond(uint32_t packed) { return packed >> 24; }

    __device__ __forceinline__ static uint32_t shift(uint32_t blocks) { return blocks >> 1; }
    __device__ __forceinline__ bool alone() const { return rows * columns == 1; }
    __device__ __forceinline__ uint32_t clusters(uint32_t blocks) const {
        return blocks >> (shift(rows) + shift(columns));
    }
    __device__ __forceinline__ uint32_t rank_of(uint32_t row, uint32_t column) const { return row + column * rows; }
    // That share this block's part of b, or of a: a bit each.
    template <bool IS_B> __device__ __forceinline__ uint16_t sharing() const {
        if (IS_B) return uint16_t(((1u << rows) - 1) << rank_of(0, column));
        const uint32_t two = columns > 1 ? 1u << rows | 1 : 1;
        return uint16_t((columns > 2 ? two << 2 * rows | two : two) << row);
    }
};

// The ring of stages. Each has a barrier that completes when the bytes of both operands have arrived, and one that
// completes when every warp that multiplies them is done, here and in the blocks that this one loads for.
struct Ring {
    uint32_t barriers;  // shared address
    uint32_t stages;
    uint32_t stage = 0, phase = 0;

    __device__ __forceinline__ uint32_t full(uint32_t s) const { return barriers + s * 8; }
    __device__ __forceinline__ uint32_t empty(uint32_t s) const { return barriers + (MAX_STAGES + s) * 8; }
    // Of a tile that another warpgroup multiplies.
    __device__ __forceinline__ void skip(uint32_t blocks) {
        const uint32_t turns = (stage + blocks) / stages;
        stage += blocks - turns * stages;
        phase ^= turns & 1;
    }
    __device__ __forceinline__ void advance() {
        if (++stage == stages) {
            stage = 0;
            phase ^= 1;
        }
    }
};

// The columns of a tile's boxes of 64. Of b by rows, a box that begins in the middle of a cache line is two
// requests to L2 for each of its rows. So a tile that ends with a line has its narrow box first, and only the accumulators
// know it as the last.
template <class S> struct Boxes {
    bool narrow_first;

    __device__ __forceinline__ static Boxes of(const WgmmaParams& p, int32_t tile_column) {
        return {S::TAIL < 64 && p.b_mn != 0 && (tile_column + S::TAIL) % 64 == 0};
    }
    __device__ __forceinline__ int32_t column(int32_t box) const {
        if (!narrow_first) return box * 64;
        return box == S::BOXES - 1 ? 0 : box * 64 + S::TAIL;
    }
};

// What a block does next. All of its warps count through the same items and so agree.
struct Item {
    int32_t row, col;  // where the tile starts in the result
    int32_t batch[3];
    uint32_t product, split;
    uint32_t k_begin, k_end;  // blocks of k, each so often as it has planes

    // What an item of grouped_matmul_wgmma.cu (GroupedItem) has otherwise: where its blocks of k begin, its rows of the
    // result end, its bias lies, and of which batch its result is.
    static constexpr bool IS_CUT = false;
    __device__ __forceinline__ int32_t first_k() const { return 0; }
    __device__ __forceinline__ int32_t end_row(const WgmmaParams& p) const { return int32_t(p.m); }
    template <class T> __device__ __forceinline__ const T* bias(const WgmmaParams& p) const {
        return static_cast<const T*>(p.bias);
    }
    __device__ __forceinline__ const int32_t (&result_batch() const)[3] { return batch; }
};

// The items of a block, one after the other: tiles of all products, or of clusters of them this block's, for each k split.
// With CLUSTER_SPLITK a block has one item, and a cluster one tile.
template <class S, bool CLUSTER_SPLITK> struct Schedule {
    const WgmmaParams& p;
    const TileCluster& cluster;
    uint32_t index;
    Item item;

    __device__ __forceinline__ Schedule(const WgmmaParams& p, const TileCluster& cluster)
        : p(p), cluster(cluster), index(CLUSTER_SPLITK ? tile_of_cluster() : cluster.clusters(blockIdx.x)) {
        find();
    }
    __device__ __forceinline__ static void make_barriers(uint32_t) {}
    // When barriers are there.
    __device__ __forceinline__ void begin(uint32_t) {}
    // Of 2, 4 or 8 blocks: a shift, as above.
    __device__ __forceinline__ static uint32_t tile_of_cluster() {
        const uint32_t blocks = ptx::cluster_blocks();
        return blockIdx.x >> ((blocks >> 1) - (blocks >> 3));
    }
    __device__ __forceinline__ bool left() const { return index < p.items; }
    __device__ __forceinline__ bool more() const { return index + cluster.clusters(gridDim.x) < p.items; }
    __device__ __forceinline__ void next() {
        index += cluster.clusters(gridDim.x);
        if (left()) find();
    }
    __device__ __forceinline__ void find() {
        const uint32_t tiles = p.order.tiles_m * p.order.tiles_n;
        uint32_t in_product = index;
        item.split = CLUSTER_SPLITK ? ptx::cluster_rank() : 0;
        item.product = 0;
        item.batch[0] = item.batch[1] = item.batch[2] = 0;
        if (p.items > tiles) {
            if (!CLUSTER_SPLITK) item.split = p.by_split.quotient(index);
            const uint32_t in_split = CLUSTER_SPLITK ? index : index - item.split * p.products * tiles;
            item.product = p.by_product.quotient(in_split);
            in_product = in_split - item.product * tiles;
            const uint32_t middle = p.by_batch[0].quotient(item.product), outer = p.by_batch[1].quotient(middle);
            item.batch[0] = int32_t(item.product - middle * p.batch_size[0]);
            item.batch[1] = int32_t(middle - outer * p.batch_size[1]);
            item.batch[2] = int32_t(outer);
        }
        const Tile tile = p.order.at(in_product);
        item.row = int32_t(tile.m * cluster.rows + cluster.row) * S::BM;
        item.col = int32_t(tile.n * cluster.columns + cluster.column) * S::BN;
        const uint32_t begin = item.split * p.split_blocks + min(item.split, p.longer_splits);
        item.k_begin = begin * S::PLANES;
        item.k_end = (begin + p.split_blocks + (item.split < p.longer_splits)) * S::PLANES;
    }
};
