//! How long a tile would take: what the choice among tiles and splits is made by. First estimates, in the order that a
//! prototype's times on an H200 suggest; `benchmarks/sweep_matmul.py` measures what they should be fitted to.

use super::{BLOCK_K, Tile};
use crate::cuda::device::DeviceFacts;

/// Multiply-adds of one multiprocessor in a clock, and bytes that L2 brings to it when all of them ask.
const MULTIPLY_ADDS: f64 = 2048.0;
const L2_BYTES: f64 = 56.0;
/// Clocks from the launch to the first product, and from the last to the end of the kernel.
const START: f64 = 4000.0;
/// Clocks for each element of a tile from accumulator to shared memory, while the tensor cores wait.
const STORE: f64 = 0.025;
/// Clocks for the second kernel that a split takes, and bytes of partial sums that L2 moves in one.
const REDUCE: f64 = 5000.0;
const REDUCE_BYTES: f64 = 3000.0;
/// Share of the shorter of computing and loading that the longer does not hide.
const OVERLAP: f64 = 0.2;
/// Least blocks of k for one part: fewer are over before the ring is full.
const PART: u64 = 8;
const MAX_SPLITS: u64 = 32;

/// What of a problem the time depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pub m: u64,
    pub n: u64,
    pub k: u64,
    pub products: u64,
}

impl Size {
    pub fn k_blocks(&self) -> u64 {
        self.k.div_ceil(BLOCK_K)
    }

    pub fn tiles(&self, tile: &Tile) -> (u64, u64) {
        (self.m.div_ceil(u64::from(tile.m())), self.n.div_ceil(u64::from(tile.n)))
    }
}

/// Parts of k that may be worth trying: one, or as many as still leave all blocks running at once.
pub fn splits(size: &Size, tile: &Tile, device: &DeviceFacts) -> u64 {
    let (tiles_m, tiles_n) = size.tiles(tile);
    let tiles = tiles_m.saturating_mul(tiles_n).saturating_mul(size.products).max(1);
    let room = u64::from(device.multiprocessors) / tiles;
    room.min(size.k_blocks() / PART).clamp(1, MAX_SPLITS)
}

/// Clocks until the result is complete.
pub fn clocks(size: &Size, tile: &Tile, splits: u64, device: &DeviceFacts) -> f64 {
    let (tiles_m, tiles_n) = size.tiles(tile);
    let tiles = (tiles_m as f64) * (tiles_n as f64) * size.products as f64;
    let (m, n) = (f64::from(tile.m()), f64::from(tile.n));
    let rounds = (tiles * splits as f64 / f64::from(device.multiprocessors)).ceil();
    let blocks = size.k_blocks().div_ceil(splits) as f64;
    let products = m * n * BLOCK_K as f64 / (MULTIPLY_ADDS * tile.rate);
    let loads = (m + n) * BLOCK_K as f64 * 2.0 / L2_BYTES;
    let computing = rounds * (blocks * products.max(loads) + m * n * STORE);

    // Every operand comes from memory once at least.
    let elements =
        size.m as f64 * size.k as f64 + size.k as f64 * size.n as f64 + size.m as f64 * size.n as f64;
    let clock = f64::from(device.clock_khz) * 1e3;
    let memory = match device.memory_bandwidth() {
        Some(rate) if clock > 0.0 => 2.0 * elements * size.products as f64 * clock / (0.9 * rate),
        _ => 0.0,
    };
    let reduce = match splits {
        1 => 0.0,
        _ => REDUCE + 8.0 * tiles * m * n * splits as f64 / REDUCE_BYTES,
    };
    START + computing.max(memory) + OVERLAP * computing.min(memory) + reduce
}
