//! Products of float32: which tile and k splits, by how long they would take, which also decides between these kernels and
//! others.

use super::{BLOCK_K, MULTIPLY_ADDS, Oriented, Overrides, Tile, TileCluster, WgmmaChoice, estimated, repack};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::matmul::cost::memory_clocks;
use crate::cuda::plan::reason::{Reason, least_two};
use crate::dtype::DType;
use crate::ops::matmul::{MatmulProblem, Precision};

/// A kernel, and what is not known of it from datasheets: fitted to an H200's times of all tiles and splits for 35 shapes,
/// docs/measurements/matmul_bf16x6.md.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    pub name: &'static str,
    pub instead_of: &'static str,
    pub tiles: &'static [Tile],
    /// Share of the tensor cores' rate that each of them reaches.
    pub rates: &'static [f64],
    /// Multiply-adds of bf16 in whose time the kernel does one of its own.
    pub products: u32,
    /// Clocks until the first product begins; the same behind copies, but for what memory takes.
    pub start: f64,
    pub start_behind_copies: f64,
    /// Bytes that memory moves for a byte of copies, and how much faster other kernels move theirs.
    pub copying: f64,
}

/// Clocks for each element of a tile from accumulator to memory; of a second kernel that k splits take, and bytes of partial
/// sums that it moves in one; of a cluster's reduction, and bytes that a block reads in one.
const STORE: f64 = 0.437;
const REDUCE: f64 = 1530.0;
const REDUCE_BYTES: f64 = 3350.0;
const CLUSTER_REDUCE: f64 = 1200.0;
const CLUSTER_REDUCE_BYTES: f64 = 12.0;
/// Columns of a tile from which blocks work in pairs: those of fewer ask less of L2.
const PAIRED: u32 = 128;
/// k splits that are tried, as far as their blocks are done in so many rounds.
const SPLITS: [u64; 8] = [1, 2, 3, 4, 6, 8, 12, 16];
const ROUNDS: u64 = 2;

/// A tile and its k splits, which may be a cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Work {
    /// Index in the model's tiles.
    tile: usize,
    splits: u64,
    cluster: TileCluster,
    cluster_splitk: bool,
}

/// What of a problem the time depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Size {
    m: u64,
    n: u64,
    k: u64,
    products: u64,
    /// Bytes of copies, and of operands that are read where they are.
    copied: u64,
    read: u64,
}

impl Size {
    fn k_blocks(&self) -> u64 {
        self.k.div_ceil(BLOCK_K)
    }

    /// Of one product, along m and along n.
    fn tiles(&self, tile: &Tile, cluster: TileCluster) -> (u64, u64) {
        tile.clusters(cluster, (self.m, self.n))
    }

    fn all_tiles(&self, tile: &Tile) -> u64 {
        let (tiles_m, tiles_n) = self.tiles(tile, TileCluster::ALONE);
        tiles_m.saturating_mul(tiles_n).saturating_mul(self.products)
    }

    /// k splits that may be worth trying.
    fn splits(&self, tile: &Tile, device: &DeviceFacts) -> Vec<u64> {
        let room = ROUNDS * u64::from(device.multiprocessors) / self.all_tiles(tile).max(1);
        let most = room.min(self.k_blocks()).max(1);
        SPLITS.into_iter().filter(|&splits| splits <= most).collect()
    }

    /// Whether the blocks of a cluster all run at once, of multiprocessors that are near each other (cost.rs).
    fn pays_in_cluster(&self, tile: &Tile, splits: u64, device: &DeviceFacts) -> bool {
        let many = u64::from(device.multiprocessors);
        let most = if splits == 2 { many / 16 * 16 } else { many / 4 * 3 };
        self.all_tiles(tile).saturating_mul(splits) <= most
    }
}

impl Model {
    /// Clocks until the result is complete.
    fn clocks(&self, size: &Size, work: &Work, device: &DeviceFacts) -> f64 {
        let (tile, splits) = (&self.tiles[work.tile], work.splits as f64);
        let (tiles, elements) = (size.all_tiles(tile) as f64, f64::from(tile.m() * tile.n));
        let copies = memory_clocks(self.copying * size.copied as f64, device);
        let start = if size.copied > 0 { self.start_behind_copies } else { self.start };
        let rate = device.multiply_adds_per_clock(DType::BF16, Precision::Ieee, true);
        let rate = rate.unwrap_or(MULTIPLY_ADDS).min(MULTIPLY_ADDS * self.rates[work.tile]);
        let block = f64::from(self.products) * elements * BLOCK_K as f64 / rate;
        let blocks = size.k_blocks().div_ceil(work.splits) as f64;
        let rounds = (tiles * splits / f64::from(device.multiprocessors)).ceil();
        let computing = rounds * (blocks * block + elements * STORE);
        let reduce = match work.splits {
            1 => 0.0,
            _ if work.cluster_splitk => CLUSTER_REDUCE + 4.0 * elements / CLUSTER_REDUCE_BYTES,
            _ => REDUCE + 8.0 * tiles * elements * splits / REDUCE_BYTES,
        };
        start + copies + computing.max(memory_clocks(size.read as f64, device)) + reduce
    }

    /// The tile and splits that are estimated to be done first, and when that is. None: more tiles than blocks count.
    pub fn choose(
        &self,
        (problem, p): (&MatmulProblem, &Oriented),
        device: &DeviceFacts,
        overrides: Overrides,
        copies: [Option<repack::Dense>; 2],
    ) -> Option<(WgmmaChoice, f64)> {
        let [m, n, k] = [p.m, p.n, p.k].map(i64::unsigned_abs);
        let products = problem.batch_count().unsigned_abs();
        let copied = copies.iter().flatten().fold(0u64, |sum, copy| sum.saturating_add(copy.bytes()));
        let reads = [m, n].into_iter().zip(copies).map(|(mn, copy)| if copy.is_none() { mn } else { 0 });
        let read = reads.fold(0u64, |sum, mn| sum.saturating_add(4 * mn.saturating_mul(k)));
        let size = Size { m, n, k, products, copied, read: read.saturating_mul(products) };
        let candidates = (0..self.tiles.len()).filter(|&tile| overrides.tile.is_none_or(|only| only == tile));
        // Each tile with the number of k splits that suits it.
        let timed = candidates.filter_map(|index| {
            let tile = &self.tiles[index];
            let splits = match overrides.splits {
                Some(splits) => vec![u64::from(splits).clamp(1, size.k_blocks())],
                None => size.splits(tile, device),
            };
            let works = splits.into_iter().map(|splits| {
                let wanted = overrides.splits.is_some() || size.pays_in_cluster(tile, splits, device);
                let cluster_splitk = tile.has_cluster_splitk
                    && wanted
                    && overrides.cluster.is_none()
                    && matches!(splits, 2 | 4 | 8);
                let pays = tile.n >= PAIRED && size.tiles(tile, TileCluster::ALONE).0 > 1;
                let wanted = if pays { TileCluster::PAIR } else { TileCluster::ALONE };
                let wanted = overrides.cluster.unwrap_or(wanted);
                let can_share = tile.can_share(wanted) && !cluster_splitk;
                let cluster = if can_share { wanted } else { TileCluster::ALONE };
                Work { tile: index, splits, cluster, cluster_splitk }
            });
            let times = works.map(|work| (work, self.clocks(&size, &work, device)));
            times.min_by(|x, y| x.1.total_cmp(&y.1))
        });
        let ((work, clocks), next) = least_two(timed)?;
        let (tile, splits) = (&self.tiles[work.tile], work.splits);
        let mut why = vec![Reason::asked_for(self.name, self.instead_of)];
        why.extend(
            next.map(|(next, other)| estimated((tile.name, clocks), (self.tiles[next.tile].name, other))),
        );
        if splits > 1 && overrides.splits.is_none() {
            let whole = self.clocks(&size, &Work { splits: 1, cluster_splitk: false, ..work }, device);
            why.push(estimated(("k splits", clocks), ("no k splits", whole)));
        }

        let (tiles_m, tiles_n) = size.tiles(tile, work.cluster);
        let all = tiles_m.saturating_mul(tiles_n).saturating_mul(size.products);
        let items = all.checked_mul(splits)?;
        // Blocks count items in 31 bits, a grid's step beyond the last.
        if items > u64::from(u32::MAX / 4) {
            return None;
        }
        let cluster = work.cluster;
        let (resident, group_m) =
            tile.arranged(cluster, (tiles_m, tiles_n), items, device, overrides.group_m);
        let choice = WgmmaChoice {
            tile,
            splits: splits as u32,
            cluster,
            gated: false,
            swapped: p.transposed != Oriented::new(problem).transposed,
            cluster_splitk: work.cluster_splitk,
            group_m,
            resident,
            tma_store: false,
            copies,
            why,
        };
        Some((choice, clocks))
    }
}
