//! float32 of few columns, or few rows as columns of the transposed product: how kernels/matmul_bf16x6_few.cu is launched.

mod launch;

pub use launch::Launch;

use super::super::{
    Addressed, BLOCK_K, HEADER_BYTES, Oriented, Overrides, SIZE_LIMIT, addressed_words,
    addressed_words_of_rows, estimated, stages,
};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::matmul::cost::memory_clocks;
use crate::cuda::plan::reason::{Reason, least_two};
use crate::dtype::DType;
use crate::ops::matmul::MatmulProblem;

/// FewShape of kernels/common/wgmma_bf16x6_few.cuh: rows and columns of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tile {
    pub name: &'static str,
    m: u32,
    n: u32,
}

/// The same list as in matmul_bf16x6_few.cu. Of equals, the first is preferred.
pub const TILES: [Tile; 8] = [
    Tile { name: "64x8", m: 64, n: 8 },
    Tile { name: "64x16", m: 64, n: 16 },
    Tile { name: "64x32", m: 64, n: 32 },
    Tile { name: "64x64", m: 64, n: 64 },
    Tile { name: "128x8", m: 128, n: 8 },
    Tile { name: "128x16", m: 128, n: 16 },
    Tile { name: "128x32", m: 128, n: 32 },
    Tile { name: "128x64", m: 128, n: 64 },
];
pub const NAME: &str = "bf16x6 few";
/// The most columns for which the kernel has been measured. A developer may ask for more.
const FEW: i64 = 64;
/// Parts of an element.
const PARTS: u32 = 3;
/// k splits that are tried: a cluster's.
const SPLITS: [u64; 4] = [1, 2, 4, 8];
/// Blocks of k of a split, at least: fewer end before the ring is full.
const LEAST_K_BLOCKS: u64 = 3;

/// Clocks from the launch to the first product, and from the last to the end.
const START: f64 = 14_000.0;
/// Clocks that a warpgroup takes to split 64 of k of a row or column.
const SPLITTING: f64 = 7.0;
/// Bytes of shared memory, and that L2 brings, in a clock.
const SHARED_BYTES: f64 = 128.0;
const L2_BYTES: f64 = 60.0;
/// Share of the shorter of the memory's time and the blocks' that the longer does not hide.
const OVERLAP: f64 = 0.2;
const CLUSTER_REDUCE: f64 = 1200.0;
const CLUSTER_REDUCE_BYTES: f64 = 12.0;

impl Tile {
    /// The parts of the columns, of each warpgroup.
    fn parts_bytes(&self) -> u32 {
        2 * PARTS * self.n * 128
    }

    fn stage_bytes(&self) -> u32 {
        (self.m + self.n) * 256
    }

    fn stages(&self, device: &DeviceFacts) -> u32 {
        let most = stages(1, HEADER_BYTES + self.parts_bytes(), self.stage_bytes(), device);
        // Two warpgroups of the same rows take every other stage.
        if self.m == 64 { most / 2 * 2 } else { most }
    }

    /// Clocks of a block for 64 of k.
    fn clocks(&self) -> f64 {
        let (warpgroups, n) = (f64::from(self.m / 64), f64::from(self.n));
        let products = warpgroups * 24.0 * (n / 2.0).max(16.0);
        let loaded = f64::from(self.stage_bytes());
        let shared = 2.0 * loaded + warpgroups * n * (384.0 + 24.0 * 32.0);
        // Of two warpgroups, one splits while the other multiplies.
        let splitting = warpgroups / 2.0 * (SPLITTING * (64.0 + n) + 12.0 * n);
        products.max(shared / SHARED_BYTES).max(loaded / L2_BYTES).max(splitting)
    }
}

/// How a problem will be solved.
#[derive(Clone, Debug, PartialEq)]
pub struct FewChoice {
    tile: &'static Tile,
    splits: u32,
    clocks: f64,
    why: Vec<Reason>,
}

/// None: not for this problem on this device.
pub fn choose(problem: &MatmulProblem, device: &DeviceFacts, overrides: Overrides) -> Option<FewChoice> {
    // Code for 9.0a runs on nothing else.
    let takes = problem.dtype == DType::F32 && problem.batch.is_empty() && problem.gate.is_none();
    let few = problem.m.min(problem.n) <= FEW || overrides.tile.is_some();
    if device.compute_capability != (9, 0) || !takes || !few {
        return None;
    }
    let p = oriented(problem);
    let fits = [p.m, p.n, p.k].iter().all(|&size| (1..=SIZE_LIMIT / 2).contains(&size));
    let residual = p.residual.as_ref().map_or(0, |x| x.address);
    let addresses = [p.out.address, p.bias, residual];
    let elements_lie_whole = addresses.iter().all(|address| address.is_multiple_of(problem.dtype.size()));
    if !fits || !elements_lie_whole || rows(&p).is_none() || columns(&p).is_none() {
        return None;
    }
    let k_blocks = p.k.unsigned_abs().div_ceil(BLOCK_K);
    let is_asked = |tile: &&Tile| match overrides.tile {
        Some(only) => TILES[only] == **tile,
        None => i64::from(tile.n) >= p.n,
    };
    let works = TILES.iter().filter(is_asked).flat_map(|tile| {
        let (tiles_m, tiles_n) = tiles(&p, tile);
        let tiles = tiles_m.saturating_mul(tiles_n);
        let counts = SPLITS.into_iter().filter(move |&splits| match overrides.splits {
            Some(asked) => splits == u64::from(asked),
            None => splits == 1 || pays(tiles, splits, k_blocks, device),
        });
        counts.filter(|&splits| splits <= k_blocks).map(move |splits| (tile, splits))
    });
    let timed = works.map(|work| (work, clocks(&p, k_blocks, work, device)));
    let (((tile, splits), clocks), next) = least_two(timed)?;
    let mut why = vec![Reason::asked_for(NAME, "simt")];
    why.extend(next.map(|((other, _), of)| estimated((tile.name, clocks), (other.name, of))));
    Some(FewChoice { tile, splits: splits as u32, clocks, why })
}

/// The long side as rows.
fn oriented(problem: &MatmulProblem) -> Oriented {
    if problem.n > problem.m { Oriented::transposed(problem) } else { Oriented::straight(problem) }
}

fn tiles(p: &Oriented, tile: &Tile) -> (u64, u64) {
    (p.m.unsigned_abs().div_ceil(tile.m.into()), p.n.unsigned_abs().div_ceil(tile.n.into()))
}

/// Whether the blocks of clusters all run at once, of multiprocessors that are near each other (cost.rs).
fn pays(tiles: u64, splits: u64, k_blocks: u64, device: &DeviceFacts) -> bool {
    let many = u64::from(device.multiprocessors);
    let most = if splits == 2 { many / 16 * 16 } else { many / 4 * 3 };
    tiles.saturating_mul(splits) <= most && k_blocks >= LEAST_K_BLOCKS * splits
}

/// Until the result is complete.
fn clocks(p: &Oriented, k_blocks: u64, (tile, splits): (&Tile, u64), device: &DeviceFacts) -> f64 {
    let (tiles_m, tiles_n) = tiles(p, tile);
    let rounds =
        tiles_m.saturating_mul(tiles_n).saturating_mul(splits).div_ceil(u64::from(device.multiprocessors))
            as f64;
    let elements = f64::from(tile.m * tile.n);
    let reduce = CLUSTER_REDUCE + 4.0 * elements / CLUSTER_REDUCE_BYTES;
    let computing = rounds * (k_blocks.div_ceil(splits) as f64 * tile.clocks() + reduce);
    let memory = memory_clocks(4.0 * p.m as f64 * p.k as f64, device);
    START + memory.max(computing) + OVERLAP * memory.min(computing)
}

/// The columns as words of 16 bits, if they lie along k.
fn columns(p: &Oriented) -> Option<Addressed> {
    addressed_words(&p.b, (p.n, p.b.col_stride), (p.k, p.b.row_stride))
}

/// The rows as words of 16 bits, which may lie across k.
fn rows(p: &Oriented) -> Option<Addressed> {
    addressed_words_of_rows(&p.a, (p.m, p.a.row_stride), (p.k, p.a.col_stride))
}

impl FewChoice {
    /// The choice by estimates, against another kernel that would take so many clocks.
    pub fn instead(mut self, other: (&'static str, f64)) -> FewChoice {
        self.why[0] = estimated((NAME, self.clocks), other);
        self
    }

    /// Until the result is complete.
    pub fn clocks(&self) -> f64 {
        self.clocks
    }
}

#[cfg(test)]
mod tests;
