//! How long a tile would take: what the choice among tiles and splits is made by.

use super::{BLOCK_K, MULTIPLY_ADDS, TILES, Tile, TileCluster};
use crate::cuda::device::DeviceFacts;

/// Least blocks of k of a split: fewer end before the ring is full.
const LEAST_K_BLOCKS: u64 = 8;
const MAX_SPLITS: u64 = 32;

/// What is not known from datasheets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Model {
    /// Share of the tensor cores' rate that each of TILES reaches with its operands at hand.
    pub(super) rates: [f64; TILES.len()],
    /// Bytes in a clock that L2 brings to a multiprocessor.
    pub(super) l2_bytes: f64,
    /// What loading costs that many times, where a box's rows of 128 bytes are parts of two lines of the caches.
    pub(super) lines: f64,
    /// How much of that a box of b costs where a tile's columns are no multiple of 32, so that most tiles begin within a line. More
    /// than all: what the tiles beside it read has often left L2 by then.
    pub(super) odd_tiles: f64,
    /// Share of the memory's rate that is reached.
    pub(super) memory_share: f64,
    /// Clocks from the launch to the first product, and from the last to the end of the kernel.
    pub(super) start: f64,
    /// Clocks for each element of a tile from accumulator to shared memory, while the tensor cores wait.
    pub(super) store: f64,
    /// The same where the copy engine takes the result from there, beside the next tile.
    pub(super) tma_store: f64,
    /// The same of the last tile in ping-pong; those before it are stored beside the next.
    pub(super) ping_pong_end: f64,
    /// Clocks for an activation with an exponential of each element, while the tensor cores wait, and in ping-pong.
    pub(super) smooth: f64,
    pub(super) ping_pong_smooth: f64,
    /// Clocks for the second kernel that a split takes, and bytes of partial sums that L2 moves in one.
    pub(super) reduce: f64,
    pub(super) reduce_bytes: f64,
    /// Clocks of a cluster's split-K reduction, and bytes that a block reads in one.
    pub(super) cluster_reduce: f64,
    pub(super) cluster_reduce_bytes: f64,
    /// Clocks that two blocks of a cluster, and four, start and end later than one alone.
    pub(super) pair: f64,
    pub(super) four: f64,
    /// Share of the shorter of computing and loading that the longer does not hide.
    pub(super) unhidden: f64,
}

/// Fitted by `benchmarks/fit_matmul.py` to times of `benchmarks/sweep_matmul.py`, except `odd_tiles` and `four`, which its random
/// shapes told, and those of activations and ping-pong, which a table in docs/measurements/matmul_wgmma.md did. How well it
/// chooses is there, too.
pub const MODEL: Model = Model {
    // In the order of TILES.
    rates: [
        0.890, 0.880, 0.892, 0.900, 0.875, 0.877, 0.881, 0.847, 0.847, 0.851, 0.810, 0.806, 0.771, 0.834,
        0.720, 0.679, 0.470, 0.835,
    ],
    l2_bytes: 69.1,
    lines: 2.23,
    odd_tiles: 2.0,
    memory_share: 0.963,
    start: 8430.0,
    store: 0.095,
    tma_store: 0.068,
    ping_pong_end: 0.19,
    smooth: 0.194,
    ping_pong_smooth: 0.128,
    reduce: 3760.0,
    reduce_bytes: 3290.0,
    cluster_reduce: 1500.0,
    cluster_reduce_bytes: 12.0,
    pair: 111.0,
    four: 300.0,
    unhidden: 0.0083,
};

/// How tiles are made.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Index in TILES.
    pub tile: usize,
    /// k splits.
    pub splits: u64,
    /// Blocks that share rows of a and columns of b.
    pub cluster: TileCluster,
    /// The splits are a cluster, whose reduction goes through distributed shared memory and not through the workspace to a
    /// second kernel.
    pub cluster_splitk: bool,
}

/// What of a problem the time depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub m: u64,
    pub n: u64,
    pub k: u64,
    pub products: u64,
    /// Half of the columns are the gate's.
    pub gated: bool,
    /// An activation with an exponential; of gated products it was not told apart.
    pub smooth: bool,
    /// Of a and of b: rows of 128 bytes are parts of two lines of the caches.
    pub off_lines: [bool; 2],
    /// b is contiguous along n.
    pub b_by_rows: bool,
}

impl Size {
    pub fn k_blocks(&self) -> u64 {
        self.k.div_ceil(BLOCK_K)
    }

    /// Multiply-adds for each element of the operands.
    pub fn reuse(&self) -> f64 {
        1.0 / (1.0 / self.m as f64 + 1.0 / self.n as f64)
    }

    /// Along m and along n.
    pub fn tiles(&self, tile: &Tile) -> (u64, u64) {
        self.clusters(tile, TileCluster::ALONE)
    }

    pub fn clusters(&self, tile: &Tile, cluster: TileCluster) -> (u64, u64) {
        tile.clusters(cluster, (self.m, self.n))
    }

    /// Of all products, those beyond the result's edge included.
    fn tiles_of_clusters(&self, work: &Work) -> u64 {
        let (clusters_m, clusters_n) = self.clusters(&TILES[work.tile], work.cluster);
        let blocks = u64::from(work.cluster.blocks());
        clusters_m.saturating_mul(clusters_n).saturating_mul(blocks).saturating_mul(self.products)
    }

    /// Whether boxes of b are off the lines though b itself is not: those of tiles that neither begin nor end with one
    /// (`Boxes` of kernels/common/wgmma_shape.cuh).
    fn has_odd_tiles(&self, tile: &Tile) -> bool {
        !self.off_lines[1] && self.b_by_rows && !tile.n.is_multiple_of(32)
    }
}

/// Whether the splits may be a cluster: as many as a shift divides by, and not eight, which are slower than through memory
/// (docs/measurements/matmul_wgmma.md).
pub fn can_be_cluster(work: &Work) -> bool {
    TILES[work.tile].has_cluster_splitk && work.cluster.is_alone() && matches!(work.splits, 2 | 4)
}

/// Whether blocks may share operands: where there are tiles for all of them and, of four, where all run at once. A cluster lies
/// within one of up to eight parts of a GPU, of an even number of multiprocessors each, which leave two at most.
pub fn may_share(size: &Size, work: &Work, device: &DeviceFacts) -> bool {
    let (tiles_m, tiles_n) = size.tiles(&TILES[work.tile]);
    let TileCluster { rows, columns } = work.cluster;
    let at_once = u64::from(device.multiprocessors.saturating_sub(2 * 8));
    let all_at_once = || size.tiles_of_clusters(work).saturating_mul(work.splits) <= at_once;
    tiles_m >= rows.into() && tiles_n >= columns.into() && (work.cluster.blocks() <= 2 || all_at_once())
}

/// Whether splits are a cluster instead of going through memory: where there are few rows or columns, which wait for it.
/// For larger sums other blocks' shared memory is too slow (docs/measurements/matmul_wgmma.md). And where all run at once,
/// of multiprocessors that are near each other: of an H200's 132, 64 clusters of two do, and 32 of four take two
/// rounds.
pub fn pays_in_cluster(size: &Size, work: &Work, device: &DeviceFacts) -> bool {
    let (tiles_m, tiles_n) = size.tiles(&TILES[work.tile]);
    if tiles_m.min(tiles_n) > 1 {
        return false;
    }
    let blocks = tiles_m.saturating_mul(tiles_n).saturating_mul(size.products).saturating_mul(work.splits);
    let many = u64::from(device.multiprocessors);
    blocks <= if work.splits == 2 { many / 16 * 16 } else { many / 4 * 3 }
}

/// The most k splits that may be worth trying: as many as still leave all blocks running at once.
pub fn most_splits(size: &Size, tile: &Tile, device: &DeviceFacts) -> u64 {
    let (tiles_m, tiles_n) = size.tiles(tile);
    let tiles = tiles_m.saturating_mul(tiles_n).saturating_mul(size.products).max(1);
    let room = u64::from(device.multiprocessors) / tiles;
    room.min(size.k_blocks() / LEAST_K_BLOCKS).clamp(1, MAX_SPLITS)
}

/// Whether the copy engine writes the results, of rows that it can address: where a block has more than two tiles
/// (docs/measurements/matmul_wgmma.md).
pub fn tma_store(size: &Size, work: &Work, device: &DeviceFacts) -> bool {
    let many = size.tiles_of_clusters(work) > 2 * u64::from(device.multiprocessors);
    many && work.splits == 1 && TILES[work.tile].pays_to_tma_store(size.reuse(), size.k, size.gated, device)
}

impl Model {
    /// Clocks of a block for one tile, and its part of k.
    pub(super) fn of_tile(
        &self,
        size: &Size,
        tile: &Tile,
        rate: f64,
        (splits, cluster): (u64, TileCluster),
        by_tma: bool,
    ) -> f64 {
        let (m, n) = tile.size();
        let blocks = size.k_blocks().div_ceil(splits) as f64;
        let products = m * n * BLOCK_K as f64 / (MULTIPLY_ADDS * rate);
        let [lines_a, lines_b] = self.of_lines(size.off_lines);
        let lines_b =
            if size.has_odd_tiles(tile) { 1.0 + self.odd_tiles * (self.lines - 1.0) } else { lines_b };
        let loaded = m * lines_a / f64::from(cluster.columns) + n * lines_b / f64::from(cluster.rows);
        let loads = loaded * BLOCK_K as f64 * 2.0 / self.l2_bytes;
        let store = match by_tma {
            _ if tile.is_ping_pong() => 0.0,
            true => self.tma_store,
            false => self.store,
        };
        let activation = match tile.is_ping_pong() {
            _ if !size.smooth => 0.0,
            true => self.ping_pong_smooth,
            // Of splits, each has a part of it.
            false => self.smooth / splits as f64,
        };
        blocks * products.max(loads) + m * n * (store + activation)
    }

    /// What is not beside another tile.
    fn of_last_tile(&self, tile: &Tile) -> f64 {
        let (m, n) = tile.size();
        if tile.is_ping_pong() { m * n * self.ping_pong_end } else { 0.0 }
    }

    /// What each operand takes to load, of what it takes where its rows of 128 bytes are lines of the caches.
    pub(super) fn of_lines(&self, off_lines: [bool; 2]) -> [f64; 2] {
        off_lines.map(|off| if off { self.lines } else { 1.0 })
    }

    /// Clocks of memory, from which every operand comes once at least.
    pub(super) fn of_memory(&self, size: &Size, device: &DeviceFacts) -> f64 {
        let elements =
            size.m as f64 * size.k as f64 + size.k as f64 * size.n as f64 + size.m as f64 * size.n as f64;
        let clock = f64::from(device.clock_khz) * 1e3;
        match device.memory_bandwidth() {
            Some(rate) if clock > 0.0 => {
                2.0 * elements * size.products as f64 * clock / (self.memory_share * rate)
            }
            _ => 0.0,
        }
    }

    pub(super) fn done(&self, computing: f64, memory: f64) -> f64 {
        self.start + computing.max(memory) + self.unhidden * computing.min(memory)
    }

    /// Clocks until the result is complete. All blocks together are taken to reach the memory's rate, with one block on a
    /// multiprocessor.
    pub fn clocks(&self, size: &Size, work: &Work, device: &DeviceFacts) -> f64 {
        let (tile, splits) = (&TILES[work.tile], work.splits);
        let tiles = size.tiles_of_clusters(work) as f64;
        let (m, n) = tile.size();
        let rounds = (tiles * splits as f64 / f64::from(device.multiprocessors)).ceil();
        let rate = self.rates[work.tile];
        let by_tma = tma_store(size, work, device);
        let computing = rounds * self.of_tile(size, tile, rate, (splits, work.cluster), by_tma);
        let memory = self.of_memory(size, device);
        let reduce = match splits {
            1 => 0.0,
            _ if work.cluster_splitk => {
                self.cluster_reduce + 4.0 * (size.m as f64).min(m) * n / self.cluster_reduce_bytes
            }
            _ => self.reduce + 8.0 * tiles * m * n * splits as f64 / self.reduce_bytes,
        };
        let together = match work.cluster.blocks() {
            1 => 0.0,
            2 => self.pair,
            _ => self.four,
        };
        self.done(computing, memory) + self.of_last_tile(tile) + together + reduce
    }

    /// The same of products whose tiles follow each other in one launch, the longest k first.
    pub fn clocks_together(&self, sizes: &[Size], tile: usize, by_tma: bool, device: &DeviceFacts) -> f64 {
        let (tile, rate) = (&TILES[tile], self.rates[tile]);
        let many = u64::from(device.multiprocessors);
        let (mut computing, mut memory, mut before) = (0.0, 0.0, 0);
        for size in sizes {
            let (tiles_m, tiles_n) = size.tiles(tile);
            let through = before + tiles_m * tiles_n;
            // A round takes as long as its first tile.
            let rounds = through.div_ceil(many) - u64::div_ceil(before, many);
            computing += rounds as f64 * self.of_tile(size, tile, rate, (1, TileCluster::ALONE), by_tma);
            memory += self.of_memory(size, device);
            before = through;
        }
        self.done(computing, memory) + self.of_last_tile(tile)
    }
}
