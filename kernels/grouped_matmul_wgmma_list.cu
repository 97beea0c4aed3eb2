// targets: 90a
//
// grouped_matmul of lists of float16 and bfloat16 on Hopper's tensor cores: out = act(a @ b + bias) of products of their own
// sizes and layouts in one launch; or act(a @ gate + bias) * (a @ b + bias), where half of a tile's columns are the gate's. It is matmul_wgmma.cu (its ring, products and epilogue) with an array of its parameters.
//
// Every block takes every gridDim.x-th of all products' tiles. Its warps walk through the products alike, and the ring goes
// on from one to the next: a product's first stages arrive while results of the one before it are stored.
// Variants, grouped_matmul_wgmma_list_{rows x columns of a block}_{epilogue}_{dtype}:
// src/cuda/plan/matmul/wgmma/listed.rs chooses the tile, and which products of a list are solved together.
// Hazard: shared memory is laid out once, so stages, stages_at and tma_store are the same in all parameters.
// Measurements: docs/measurements/grouped_matmul_wgmma_list.md

#include "wgmma_grouped.cuh"

// The products of the longest k first. Mirrored in src/cuda/plan/matmul/wgmma/listed.rs.
constexpr int LISTED = 16;
struct alignas(64) ListedWgmmaParams {
    WgmmaParams products[LISTED];
    uint32_t count;
    uint32_t unused[15];
};
static_assert(sizeof(ListedWgmmaParams) == sizeof(WgmmaParams) * LISTED + 64, "mirrored in Rust");

// The tiles of a product that are the block's.
template <class S> struct ListedTiles : Schedule<S, false> {
    uint32_t blocks = 0;  // of k, of the tiles that are done

    __device__ __forceinline__ ListedTiles(const WgmmaParams& p, const TileCluster& cluster, uint32_t first)
        : Schedule<S, false>(p, cluster) {
        this->index = first;
        this->find();
    }
    __device__ __forceinline__ void next() {
        blocks += this->item.k_end;
        Schedule<S, false>::next();
    }
};

template <class S> struct ListedWork {
    const ListedWgmmaParams& list;

    __device__ __forceinline__ ListedWork(const WgmmaParams& first, const TileCluster&)
        : list(reinterpret_cast<const ListedWgmmaParams&>(first)) {}
    __device__ __forceinline__ static void make_barriers(uint32_t) {}
    __device__ __forceinline__ void begin(uint32_t) {}

    // `solve` gets the parameters of each product of which the block has tiles, and these.
    template <class Solve> __device__ __forceinline__ void each(const TileCluster& cluster, Solve solve) const {
        uint32_t index = blockIdx.x;  // of the block's next tile, from the product's first on
#pragma unroll 1
        for (uint32_t i = 0; i < list.count; ++i) {
            const WgmmaParams& p = list.products[i];
            if (index < p.items) {
                ListedTiles<S> tiles(p, cluster, index);
                solve(p, tiles);
                index = tiles.index;
            }
            index -= p.items;
        }
    }
};

// In place of wgmma_mainloop.cuh's, which run_block calls, for each product.
template <class S, bool IS_B>
__device__ __forceinline__ void produce(const WgmmaParams&, const TileCluster& cluster, ListedWork<S>& work,
                                        uint32_t shared, Ring ring) {
    work.each(cluster, [&](const WgmmaParams& p, ListedTiles<S>& tiles) {
        produce<S, IS_B>(p, cluster, tiles, shared, ring);
        const uint32_t stage = ring.stage + tiles.blocks;
        ring.phase ^= stage / ring.stages & 1;
        ring.stage = stage % ring.stages;
    });
}

template <class S, EpilogueKind F>
__device__ __forceinline__ void grouped_matmul_wgmma_list(const ListedWgmmaParams& list) {
    run_block<S, ListedWork<S>>(
        list.products[0],
        [&](const TileCluster& cluster, auto& work, uint32_t shared, Ring ring) {
            Accumulators<S> d;
            work.each(cluster, [&](const WgmmaParams& p, ListedTiles<S>& tiles) {
                Epilogue<S, F> epilogue(p, shared);
                for (; tiles.left(); tiles.next()) {
                    epilogue.load_bias(tiles.item, false);
                    multiply<S>(p, cluster, d, shared, ring, tiles.item.k_end);
                    epilogue.write(d, tiles.item, false);
                }
            });
            Epilogue<S, F>(list.products[0], shared).sent();
        },
        [](uint32_t) {}, [] {});
}

#define EXPORT_EPILOGUE(T, NAME, EPILOGUE)                                                                 \
    extern "C" __global__ void __launch_bounds__(Shape##NAME##T::THREADS, Shape##NAME##T::BLOCKS)          \
        grouped_matmul_wgmma_list_##NAME##_##EPILOGUE##_##T(const __grid_constant__ ListedWgmmaParams p) { \
        grouped_matmul_wgmma_list<Shape##NAME##T, EpilogueKind::EPILOGUE>(p);                              \
    }
#define EXPORT(T, NAME, ...)                             \
    using Shape##NAME##T = GroupedShape<T, __VA_ARGS__>; \
    EXPORT_EPILOGUE(T, NAME, none)                       \
    EXPORT_EPILOGUE(T, NAME, general)                    \
    EXPORT_EPILOGUE(T, NAME, gated)

// Some of the tiles of matmul_wgmma.cu. The same list is TILES in src/cuda/plan/matmul/wgmma/listed.rs.
#define TILES(T)                     \
    EXPORT(T, 64x128, 1, 1, 128, 2)  \
    EXPORT(T, 128x128, 2, 1, 128, 1) \
    EXPORT(T, 128x256, 2, 1, 256, 1)

TILES(f16)
TILES(bf16)
