// targets: 90a
//
// matmul for float16 and bfloat16 on Hopper's tensor cores, summed in float: out = act(a @ b + bias).
//
// What Hopper offers for this, and how it is used here:
//   TMA          one thread asks for a box of a matrix, an engine brings it to shared memory, with zeros for what lies
//                outside the matrix, in the permuted layout that wgmma reads (common/ptx/tma.cuh)
//   mbarrier     completes when a stage's bytes have arrived: nobody polls, nobody synchronises the block
//   wgmma        128 threads multiply straight from shared memory, asynchronously (common/ptx/wgmma.cuh)
//   setmaxnreg   the warpgroup that only asks for boxes gives its registers to those that hold accumulators
//
// A block lives as long as the device has tiles for it. Two threads, the producers, one for each operand, keep a ring of
// stages full (common/wgmma_mainloop.cuh); each stage holds 64 of k for the tile's rows of a and columns of b. One to
// three consumer warpgroups multiply every stage, hand it back, and at the end of a tile add the bias, apply the
// activation, round once and write (common/wgmma_epilogue.cuh), while the producers are already stages ahead in the next
// tile. Blocks take tiles in the grouped order of common/tile_order.cuh.
//
// Two blocks whose tiles lie below each other may be a cluster: then each loads half of their common columns of b, for
// both, by multicast, and a stage is handed back to both. Or a cluster is those that share a tile's k where there are few
// rows: each has one part, and their sums meet at the end (common/wgmma_meet.cuh).
//
// Operands may have their unit stride along k or along m or n, and up to three dimensions of batch, each dense or
// broadcast (the map has one, which is asked for whatever the index). Base and strides must be multiples of 16 bytes;
// m, n and k may be anything.
//
// Variants, matmul_wgmma_{rows x columns of a block}_{finish}_{dtype}: src/cuda/plan/matmul/wgmma.rs chooses the tile,
// wgmma/finish.rs beside it says which finish it is (Finish in common/wgmma_epilogue.cuh). Larger tiles move fewer bytes
// through L2 and shared memory for each product; smaller ones and odd widths fill the multiprocessors where there are few
// tiles. Blocks of 64 x 64, 64 x 128 and 128 x 64 fit twice on a multiprocessor.
//
// Per product: 2 m n k flops; 2 (m k + k n + m n) bytes at least. Clocks of a stage at the full rate, of one
// multiprocessor: BM BN / 32.
//
// Measured on an H200, bf16, caches cold (instructions and constants too), cuBLAS's time over ours: 512^3 0.99 to 1.02, 1024^3
// 0.98 to 1.02, 1536^3 0.99 to 1.01, 2048^3 and 3072^3 0.99 to 1.00, 4096^3 1.00, 6144^3 0.99 to 1.00, 8192^3 1.04 to 1.06;
// 4096x14336x4096 0.99 to 1.00, 8192x8192x512 0.99, 8192x8192x64 1.04, 512x512x65536 0.97, 4096x2112x7168 1.02 and 0.98; 1 to 64
// rows by 4096x4096 to 32000x4096 1.03 in the mean (64x4096x4096 0.93 to 0.96); with bias and relu 512^3 1.02, 2048^3 0.99,
// 4096^3 0.99, with bias and gelu_tanh 0.96 to 0.99; 1000^3 1.00 to 1.02; with copies
// before it, 1023^3 2.0 to 2.2, 2047^3 3.0 to 3.6, 4095x4097x4099 3.7 to 4.4. All plans: benchmarks/sweeps/h200.json.
//
// Where the clocks of a block go, 1024^3 by 64 x 128, L2 cold: 1250 until the first box is asked for, 2500 until it is
// there, 5000 for 16 blocks of k, of which the products are 4100, 1100 for the result. A multiprocessor takes in some
// 70 bytes in a clock, and small tiles wait for that. So
//   producers    are two. One, which asked for both operands' boxes, took 390 clocks for a stage of 64 x 128 (three boxes
//                where b is contiguous along n), 130 more than its products: 1024^3 took 10.3 us, with two 9.5.
//   elect        instead of a comparison with threadIdx spares a loop around every box that is asked for: ptxas does not
//                know there that one thread is left.
//   the start    is as short as can be. Constants come through a cache of their own, a line of which takes 300 to 600
//                clocks: what a producer begins with are the first two lines of WgmmaParams, and where the parameters
//                lie at all (c[0x0][0x198]) it asks for by asking for its map, before it looks at anything else. One
//                warp makes the barriers meanwhile. Maps of five dimensions for all would spare a branch, and took
//                0.5 % more of 1024^3.
//   the bias     is asked for without a branch before the products and looked at after them. Branches for columns
//                outside of the result made every load wait for the one before: 5 % of 4096^3, half of 8192x8192x64.
//   pairs        do little where rows begin with a line of the caches (from -3 to 4 %): each block still takes in all of
//                its tile. Rows that do not are two lines each, and what L2 is asked for binds: pairs take 86 % of the
//                time at 3000^3, and are cuBLAS's equal there and at 1000^3 (0.99 to 1.00; 2056^3 0.87). Clusters of four,
//                4 x 1, 1 x 4 and 2 x 2, gave nothing more.
//   one after    another: warpgroups that begin a tile one to three stages apart, so that one multiplies while another
//                writes, gained 0.3 % at 4096^3 and lost 1 to 15 % at 1536^3.
//   the result   leaves in one of two ways. By the threads, 16 bytes each, by way of a buffer for each warp: what a block
//                does last is then over soonest. By the copy engine, from where 128 x 192 or 128 x 256 of it are put
//                together, at the price of a stage of 4 (5): where a block has more than two tiles, and takes 2300 clocks
//                for each if all blocks write at once. 8192x8192x512 takes 112 us so and 118 by the threads, 32768x768x768
//                60 and 62, 8192x8192x64 43 and 46, 4096^3 1 % less, 512x14336x4096 (1.7 tiles each) 6 % more; 256 x 128
//                with 3 stages lost 5 %, 192 x 192 3 % where k is long. By the engine in two small buffers was no faster
//                than by the threads.
//   the order    of tiles and the batch are found by multiplications (Divisor): six divisions made the producer ask for
//                the first box 700 clocks later, 0.4 us of every product.
//   instructions come through caches, too, and between other kernels none of these has them. A launch fetches about the
//                first 36 KB by itself; what lies behind it comes behind all the boxes that all blocks ask for at the
//                start. One kernel for everything that may happen to a sum was 250 KB, then 105 KB in four parts; now
//                each Finish is a kernel (20 to 47 KB), each producer has one code, with batch or without, alone or in
//                pairs, and what is rare lies behind what is common: with bias and relu 1024^3 went from 0.89 to 1.00 of
//                cuBLAS's speed, with gelu_tanh 2048^3 from 0.84 to 0.96. The long activations go through accumulators
//                in a loop; a loop for all cost 1300 clocks a tile. Slopes that are no share of a number, which nobody
//                asks for, went to that kernel as well, which halved the code between products and stores of `simple`.
//   columns      of tiles that are no whole lines of the caches wide (96, 160, 176): see Panels in wgmma_shape.cuh.
//   gelu_tanh    and its like are what is left: 4 % of the samples of 4096^3 are their instructions, 2 % the accumulators
//                on their way to the loop, 2 % the way out, and the tensor cores wait meanwhile.
//   few rows     wait for the weights, which are read once: maps of such operands have L2 fetch single lines
//                (src/cuda/driver.rs), 3 to 6 % of the time. Where there are too few tiles for the device, two or four blocks
//                share a tile's k, and their sums meet in their cluster (wgmma_meet.cuh): 1x4096x4096 14.2 us, where a block a
//                tile takes 15.1, sums through memory 15.4, and cuBLAS 15.4; 1x4096x14336 32.5, 38.6, 34 and 33.5. For large
//                sums the other blocks' shared memory is too slow: 1024x1024x8192 takes 37 us so, and 32 through memory. A
//                kernel that only reads the weights takes 12.3 us for 4096x4096, 31 for 14336x4096 and 62.5 for 32000x4096, where
//                this one takes 14.2, 32 and 64. 64 x 32 tiles gained 4 % in one layout for up to 16 rows, and nothing
//                for 64; pairs of blocks beside each other, which share their rows of a, lost 5 to 50 %; stages without room
//                for the rows of a that there are not, so more of them, gained nothing.
// An arrival at another block's barrier must not be a release at cluster scope (the default is the block's): that waits
// for all of the thread's earlier accesses of memory, 1000 clocks for every stage.

#include "wgmma_epilogue.cuh"
#include "wgmma_mainloop.cuh"
#include "wgmma_meet.cuh"

template <class S, Finish F, class Work>
__device__ __forceinline__ void consume(const WgmmaParams& p, const Pair& pair, Work& work, uint32_t shared,
                                        Ring ring) {
    Accumulators<S> d;
    if constexpr (F == Finish::met) {
        multiply<S>(p, pair, d, shared, ring, work.item.k_end - work.item.k_begin);
        meet<S>(p, d, work.item);
        return;
    }
    Epilogue<S, F> epilogue(p, shared);
    // The first time nothing is multiplied and nothing written: the way out is only rehearsed, so that its instructions,
    // which no cache has yet, come while the first boxes do. That is 1 % of 512^3 to 1536^3. But of the longer ways a part
    // is behind what a launch fetches, and where many boxes are asked for comes later than at the end of a long k
    // (2048^3 2 % and with gelu_tanh 1536^3 5 % more).
    constexpr uint32_t SHORT = F == Finish::plain ? ~0u : F == Finish::any ? 12 : 24;  // of k, in blocks
    for (bool rehearsal = p.part_blocks <= SHORT; work.left(); rehearsal = false) {
        const Item& item = work.item;
        epilogue.load_bias(item, rehearsal);
        multiply<S>(p, pair, d, shared, ring, rehearsal ? 0 : item.k_end - item.k_begin);
        epilogue.write(d, item, rehearsal);
        if (!rehearsal) work.next();
    }
    epilogue.sent();
    // Not before: the sums' blocks would gather on multiprocessors that have no tile.
    if (F == Finish::partials) ptx::let_next_grid_begin();
}

// As many as there can be stages: straight on, which is sooner done than a loop over those that there are. (By lanes, one
// stage each, 800 clocks later: ptxas makes that a loop over the lanes.)
template <class S> __device__ __forceinline__ void make_barriers(const WgmmaParams& p, Ring ring) {
#pragma unroll
    for (uint32_t stage = 0; stage < MAX_STAGES; ++stage) {
        ptx::mbarrier_init(ring.full(stage), 2);
        ptx::mbarrier_init(ring.empty(stage), S::WARPS * p.pair);
    }
    ptx::fence_mbarrier_init();
}

template <class S, Finish F> __device__ __forceinline__ void matmul_wgmma(const WgmmaParams& p) {
    constexpr uint32_t PRODUCER = 32 * S::WARPS;  // the first thread behind the consumers
    using Work = Schedule<S, F == Finish::met>;
    const uint32_t shared = uint32_t(__cvta_generic_to_shared(wgmma_shared));
    const Ring ring{shared, p.stages};
    // Of both blocks, or for those of this one that meet at `barrier`.
    const auto barriers_are_there = [&](uint32_t barrier, uint32_t threads) {
        if (p.pair > 1) {
            ptx::cluster_arrive();
            ptx::cluster_wait();
        } else {
            ptx::barrier_sync(barrier, threads);
        }
    };
    if (threadIdx.x < PRODUCER) {
        ptx::take_registers<S::CONSUMER_REGISTERS>();
        const Pair pair = Pair::of(p);
        Work work(p, pair);
        barriers_are_there(CONSUMERS_START, PRODUCER + 32);
        consume<S, F>(p, pair, work, shared, ring);
        return;
    }
    ptx::give_registers<S::PRODUCER_REGISTERS>();
    const uint32_t warp = threadIdx.x / 32 - S::WARPS;
    if (warp < 2) {  // finds out what to do first while another makes the barriers
        if (ptx::elect()) ptx::tma_prefetch_map(warp == 0 ? p.a : p.b);
        const Pair pair = Pair::of(p);
        Work work(p, pair);
        barriers_are_there(PRODUCERS_START, 96);
        if (!ptx::elect()) return;
        ptx::wait_for_grid_before();  // and with it all but Epilogue::load_bias
        if (warp == 0) {
            produce<S, false>(p, pair, work, shared, ring);
        } else {
            produce<S, true>(p, pair, work, shared, ring);
        }
    } else if (warp == 2) {
        if (ptx::elect()) make_barriers<S>(p, ring);
        __syncwarp();
        if (p.pair > 1) {
            barriers_are_there(0, 0);
        } else {
            ptx::barrier_arrive(PRODUCERS_START, 96);
            ptx::barrier_arrive(CONSUMERS_START, PRODUCER + 32);
        }
    }
}

#define EXPORT_FINISH(T, NAME, FINISH)                                                            \
    extern "C" __global__ void __launch_bounds__(Shape##NAME##T::THREADS, Shape##NAME##T::BLOCKS) \
        matmul_wgmma_##NAME##_##FINISH##_##T(const __grid_constant__ WgmmaParams p) {             \
        matmul_wgmma<Shape##NAME##T, Finish::FINISH>(p);                                          \
    }
#define EXPORT(T, NAME, ...)                           \
    using Shape##NAME##T = WgmmaShape<T, __VA_ARGS__>; \
    EXPORT_FINISH(T, NAME, plain)                      \
    EXPORT_FINISH(T, NAME, partials)                   \
    EXPORT_FINISH(T, NAME, simple)                     \
    EXPORT_FINISH(T, NAME, any)

// Tiles whose parts of k may meet: small ones, which few rows take.
#define EXPORT_MEETING(T, NAME, ...) \
    EXPORT(T, NAME, __VA_ARGS__)     \
    EXPORT_FINISH(T, NAME, met)

// Consumers, 64 rows of each so many times, columns, blocks on a multiprocessor. The same list is TILES in
// src/cuda/plan/matmul/wgmma.rs.
#define TILES(T)                             \
    EXPORT_MEETING(T, 64x64, 1, 1, 64, 2)    \
    EXPORT_MEETING(T, 64x128, 1, 1, 128, 2)  \
    EXPORT(T, 64x256, 1, 1, 256, 1)          \
    EXPORT_MEETING(T, 128x64, 2, 1, 64, 2)   \
    EXPORT(T, 128x96, 2, 1, 96, 1)           \
    EXPORT(T, 192x96, 3, 1, 96, 1)           \
    EXPORT_MEETING(T, 128x128, 2, 1, 128, 1) \
    EXPORT(T, 128x160, 2, 1, 160, 1)         \
    EXPORT(T, 128x176, 2, 1, 176, 1)         \
    EXPORT(T, 128x192, 2, 1, 192, 1)         \
    EXPORT(T, 128x256, 2, 1, 256, 1)         \
    EXPORT(T, 192x128, 3, 1, 128, 1)         \
    EXPORT(T, 192x192, 3, 1, 192, 1)         \
    EXPORT(T, 256x128, 2, 2, 128, 1)         \
    EXPORT(T, 256x192, 2, 2, 192, 1)

TILES(f16)
TILES(bf16)
