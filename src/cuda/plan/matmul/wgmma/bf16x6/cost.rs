//! How long a tile would take: what the choice among tiles and splits is made by, and that between this kernel and others.

use super::super::BLOCK_K;
use super::{PARTS, TILES};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::matmul::cost::memory_clocks;
use crate::dtype::DType;
use crate::ops::matmul::Precision;

/// Products of two parts.
pub const PRODUCTS: u32 = 6;

/// Fitted to an H200's times of all tiles and splits for 35 shapes: docs/measurements/matmul_bf16x6.md.
///
/// Share of the tensor cores' rate that each of TILES reaches.
const RATES: [f64; TILES.len()] = [0.874, 0.796, 0.571];
/// Multiply-adds of one multiprocessor in a clock.
const MULTIPLY_ADDS: f64 = 2048.0;
/// Clocks until the parts are there and the first product begins, but for what memory takes; bytes of an element that
/// memory moves for its parts, and how much faster other kernels move theirs.
const START: f64 = 16_100.0;
const SPLIT_BYTES: f64 = 10.0;
const SPLIT_SLOWER: f64 = 1.5;
/// Clocks for each element of a tile from accumulator to memory; of a second kernel that k splits take, and bytes of partial
/// sums that it moves in one; of a cluster's reduction, and bytes that a block reads in one.
const STORE: f64 = 0.437;
const REDUCE: f64 = 1530.0;
const REDUCE_BYTES: f64 = 3350.0;
const CLUSTER_REDUCE: f64 = 1200.0;
const CLUSTER_REDUCE_BYTES: f64 = 12.0;
/// k splits that are tried, as far as their blocks are done in so many rounds.
const SPLITS: [u64; 8] = [1, 2, 3, 4, 6, 8, 12, 16];
const ROUNDS: u64 = 2;

/// A tile and its k splits, which may be a cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Index in TILES.
    pub tile: usize,
    pub splits: u64,
    pub cluster_splitk: bool,
}

/// What of a problem the time depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub m: u64,
    pub n: u64,
    pub k: u64,
    pub products: u64,
    /// Bytes of the parts of both operands.
    pub copied: u64,
}

impl Size {
    pub fn k_blocks(&self) -> u64 {
        self.k.div_ceil(BLOCK_K)
    }

    /// Of one product, along m and along n.
    pub fn tiles(&self, tile: usize) -> (u64, u64) {
        let tile = &TILES[tile];
        (self.m.div_ceil(u64::from(tile.m())), self.n.div_ceil(u64::from(tile.n)))
    }

    pub fn all_tiles(&self, tile: usize) -> u64 {
        let (tiles_m, tiles_n) = self.tiles(tile);
        tiles_m.saturating_mul(tiles_n).saturating_mul(self.products)
    }
}

/// k splits that may be worth trying.
pub fn splits(size: &Size, tile: usize, device: &DeviceFacts) -> Vec<u64> {
    let room = ROUNDS * u64::from(device.multiprocessors) / size.all_tiles(tile).max(1);
    let most = room.min(size.k_blocks()).max(1);
    SPLITS.into_iter().filter(|&splits| splits <= most).collect()
}

/// Whether the blocks of a cluster all run at once, of multiprocessors that are near each other (../cost.rs).
pub fn pays_in_cluster(size: &Size, tile: usize, splits: u64, device: &DeviceFacts) -> bool {
    let many = u64::from(device.multiprocessors);
    let most = if splits == 2 { many / 16 * 16 } else { many / 4 * 3 };
    size.all_tiles(tile).saturating_mul(splits) <= most
}

/// Clocks until the result is complete.
pub fn clocks(size: &Size, work: &Work, device: &DeviceFacts) -> f64 {
    let (tile, splits) = (&TILES[work.tile], work.splits as f64);
    let (tiles, elements) = (size.all_tiles(work.tile) as f64, f64::from(tile.m() * tile.n));
    let split = memory_clocks(SPLIT_SLOWER * SPLIT_BYTES * size.copied as f64 / f64::from(2 * PARTS), device);
    let rate = device.multiply_adds_per_clock(DType::BF16, Precision::Ieee, true).unwrap_or(MULTIPLY_ADDS);
    let rate = rate.min(MULTIPLY_ADDS * RATES[work.tile]);
    let block = f64::from(PRODUCTS) * elements * BLOCK_K as f64 / rate;
    let blocks = size.k_blocks().div_ceil(work.splits) as f64;
    let rounds = (tiles * splits / f64::from(device.multiprocessors)).ceil();
    let reduce = match work.splits {
        1 => 0.0,
        _ if work.cluster_splitk => CLUSTER_REDUCE + 4.0 * elements / CLUSTER_REDUCE_BYTES,
        _ => REDUCE + 8.0 * tiles * elements * splits / REDUCE_BYTES,
    };
    START + split + rounds * (blocks * block + elements * STORE) + reduce
}
