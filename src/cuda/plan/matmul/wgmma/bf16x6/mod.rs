//! float32 from bfloat16 parts: how kernels/matmul_split.cu and kernels/matmul_bf16x6.cu are launched.

mod params;

pub use params::{Bf16x6Params, SplitParams};

use super::launches::Launches as ProductLaunches;
use super::repack::{self, RepackOperand};
use super::{BATCH_DIMS, BLOCK_K, Oriented, Overrides, SIZE_LIMIT, Tile, WgmmaChoice, estimated};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::matmul::cost as memory;
use crate::cuda::plan::reason::{Reason, least_two};
use crate::cuda::plan::tile_order::group_m;
use crate::cuda::plan::{self, Bases, Kernel, LaunchPlan};
use crate::dtype::DType;
use crate::ops::matmul::MatmulProblem;
use params::batch_strides;

/// The same list as in matmul_bf16x6.cu. Of equals, the first is preferred.
#[rustfmt::skip]
pub const TILES: [Tile; 3] = [
    Tile { name: "128x128", consumers: 2, m_steps: 1, n: 128, blocks: 1, has_cluster_splitk: true, planes: PARTS },
    Tile { name: "128x64",  consumers: 2, m_steps: 1, n:  64, blocks: 1, has_cluster_splitk: true, planes: PARTS },
    Tile { name: "64x64",   consumers: 1, m_steps: 1, n:  64, blocks: 2, has_cluster_splitk: true, planes: PARTS },
];
/// PARTS of kernels/common/bf16x3.cuh, and products of two of them.
const PARTS: u32 = 3;
const PRODUCTS: f64 = 6.0;

/// Share of the tensor cores' rate that each of TILES reaches.
const RATES: [f64; TILES.len()] = [0.85, 0.66, 0.50];
/// Multiply-adds of one multiprocessor in a clock.
const MULTIPLY_ADDS: f64 = 2048.0;
/// Clocks until the parts are there and the first product begins, but for what memory takes; and bytes of an element that
/// memory moves.
const START: f64 = 13_000.0;
const SPLIT_BYTES: f64 = 10.0;
/// Clocks for each element of a tile from accumulator to memory; of a second kernel that k splits take, and bytes of partial
/// sums that it moves in one.
const STORE: f64 = 0.1;
const REDUCE: f64 = 3760.0;
const CLUSTER_REDUCE: f64 = 2500.0;
const REDUCE_BYTES: f64 = 3290.0;
/// k splits that are tried, and blocks of k that each has at least.
const SPLITS: [u64; 8] = [1, 2, 3, 4, 6, 8, 12, 16];
const LEAST_K_BLOCKS: u64 = 2;
/// Share of the device's memory that the parts may take.
const MEMORY: u64 = 8;
/// Vectors that a block of matmul_split.cu splits at a time, and blocks of it on a multiprocessor.
const SPLIT_THREADS: u64 = 256;
const SPLIT_BLOCKS: u64 = 8;

/// How a problem will be solved, but for where its workspace memory is.
#[derive(Clone, Debug, PartialEq)]
pub struct Bf16x6Choice {
    product: WgmmaChoice,
    /// Blocks that split a, and b.
    split_blocks: [u32; 2],
    clocks: f64,
}

/// The launches that solve a problem, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Launches {
    pub split: LaunchPlan<SplitParams>,
    pub multiply: LaunchPlan<Bf16x6Params>,
    product: ProductLaunches,
}

/// None: not for this problem on this device.
pub fn choose(problem: &MatmulProblem, device: &DeviceFacts, overrides: Overrides) -> Option<Bf16x6Choice> {
    // Code for 9.0a runs on nothing else.
    if device.compute_capability != (9, 0) || problem.dtype != DType::F32 || problem.batch.len() > BATCH_DIMS {
        return None;
    }
    let p = Oriented::new(problem);
    let fits = [p.m, p.n, p.k].iter().chain(&problem.batch).all(|&size| (1..=SIZE_LIMIT).contains(&size));
    let addresses = [p.a.address, p.b.address, p.out.address, p.bias];
    let elements_lie_whole = addresses.iter().all(|address| address.is_multiple_of(problem.dtype.size()));
    if !fits || !elements_lie_whole {
        return None;
    }
    let parts = u64::from(PARTS);
    let copies = [
        repack::Dense::new(&p.a, (p.m, p.a.row_stride), (p.k, p.a.col_stride), &problem.batch, parts),
        repack::Dense::new(&p.b, (p.n, p.b.col_stride), (p.k, p.b.row_stride), &problem.batch, parts),
    ];
    let [m, n, k] = [p.m, p.n, p.k].map(i64::unsigned_abs);
    let copied = copies.iter().fold(0u64, |sum, copy| sum.saturating_add(copy.bytes()));
    if copied > device.memory_bytes / MEMORY || copies[0].k(k) > SIZE_LIMIT.unsigned_abs() {
        return None;
    }
    let (k_blocks, products) = (k.div_ceil(BLOCK_K), problem.batch_count().unsigned_abs());
    let tiles_of = |tile: &Tile| (m.div_ceil(u64::from(tile.m())), n.div_ceil(u64::from(tile.n)));
    let splits_of = |tile: &Tile| {
        let (tiles_m, tiles_n) = tiles_of(tile);
        let tiles = tiles_m.saturating_mul(tiles_n).saturating_mul(products).max(1);
        let most = (u64::from(device.multiprocessors) / tiles).min(k_blocks / LEAST_K_BLOCKS).max(1);
        let (least, most) = match overrides.splits.map(|splits| u64::from(splits).clamp(1, k_blocks)) {
            Some(forced) => (forced, forced),
            None => (1, most),
        };
        SPLITS.into_iter().filter(move |splits| (least..most).contains(splits)).chain([most])
    };
    // As many as a shift divides by, that all run at once: of multiprocessors near each other (super::cost).
    let can_be_cluster = |splits: u64, blocks: u64| {
        let many = u64::from(device.multiprocessors);
        let most = if splits == 2 { many / 16 * 16 } else { many / 4 * 3 };
        matches!(splits, 2 | 4 | 8) && (blocks <= most || overrides.splits.is_some())
    };
    let memory = memory::memory_clocks(SPLIT_BYTES * copied as f64 / f64::from(2 * PARTS), device);
    let clocks = |tile: usize, splits: u64, cluster: bool| {
        let ((tiles_m, tiles_n), elements) = (tiles_of(&TILES[tile]), TILES[tile].m() * TILES[tile].n);
        let (tiles, elements) = (tiles_m as f64 * tiles_n as f64 * products as f64, f64::from(elements));
        let rounds = (tiles * splits as f64 / f64::from(device.multiprocessors)).ceil();
        let block = PRODUCTS * elements * BLOCK_K as f64 / (MULTIPLY_ADDS * RATES[tile]);
        let reduce = match splits {
            1 => 0.0,
            _ if cluster => CLUSTER_REDUCE,
            _ => REDUCE + 8.0 * tiles * elements * splits as f64 / REDUCE_BYTES,
        };
        START + memory + rounds * (k_blocks.div_ceil(splits) as f64 * block + elements * STORE) + reduce
    };
    let candidates = (0..TILES.len())
        .filter(|&tile| overrides.tile.is_none_or(|only| only == tile))
        .filter_map(|tile| {
            let times = splits_of(&TILES[tile]).map(|splits| {
                let blocks = splits.saturating_mul(tiles_of(&TILES[tile]).0 * tiles_of(&TILES[tile]).1 * products);
                let cluster = can_be_cluster(splits, blocks) && overrides.cluster.is_none();
                ((tile, splits, cluster), clocks(tile, splits, cluster))
            });
            times.min_by(|x, y| x.1.total_cmp(&y.1))
        });
    let (((index, splits, cluster_splitk), best), next) = least_two(candidates)?;
    let tile = &TILES[index];
    let mut why = vec![Reason::asked_for(NAME, "simt")];
    why.extend(next.map(|((next, ..), other)| estimated((tile.name, best), (TILES[next].name, other))));
    if splits > 1 && overrides.splits.is_none() {
        why.push(estimated(("k splits", best), ("no k splits", clocks(index, 1, false))));
    }

    let (tiles_m, tiles_n) = tiles_of(tile);
    let items = tiles_m.checked_mul(tiles_n)?.checked_mul(products)?.checked_mul(splits)?;
    // Blocks count items in 31 bits, a grid's step beyond the last.
    if items > u64::from(u32::MAX / 4) {
        return None;
    }
    let resident = if items > u64::from(device.multiprocessors) { tile.blocks } else { 1 };
    let concurrent = device.multiprocessors * resident;
    let grouped = || group_m(tiles_m as u32, tiles_n as u32, (tile.m(), tile.n), concurrent);
    let group_m = overrides.group_m.map_or_else(grouped, |group| group.clamp(1, tiles_m as u32));
    let product = WgmmaChoice {
        tile,
        splits: splits as u32,
        pair: 1,
        cluster_splitk,
        group_m,
        resident,
        tma_store: false,
        copies: copies.map(Some),
        why,
    };
    let split_blocks = blocks_to_split(copies.map(|copy| copy.vectors()), device);
    Some(Bf16x6Choice { product, split_blocks, clocks: best })
}

const NAME: &str = "bf16x6";

/// Of each operand as many as its share of those that run at once.
fn blocks_to_split(vectors: [u64; 2], device: &DeviceFacts) -> [u32; 2] {
    let most = u64::from(device.multiprocessors) * SPLIT_BLOCKS;
    let all = (vectors[0] + vectors[1]).div_ceil(SPLIT_THREADS).max(1);
    vectors.map(|vectors| {
        let blocks = vectors.div_ceil(SPLIT_THREADS);
        let share = (u128::from(blocks) * u128::from(most)).div_ceil(u128::from(all)) as u64;
        blocks.min(share).max(1) as u32
    })
}

impl Bf16x6Choice {
    /// The choice by estimates, against another kernel that would take so many clocks.
    pub fn instead(mut self, other: (&'static str, f64)) -> Bf16x6Choice {
        self.product.why[0] = estimated((NAME, self.clocks), other);
        self
    }

    /// Until the result is complete.
    pub fn clocks(&self) -> f64 {
        self.clocks
    }

    /// Bytes before the words that the blocks of matmul_split.cu leave.
    fn extremes_at(&self, problem: &MatmulProblem) -> u64 {
        self.product.workspace_bytes(problem)
    }

    fn extremes(&self) -> u32 {
        self.split_blocks[0] + self.split_blocks[1]
    }

    pub fn workspace_bytes(&self, problem: &MatmulProblem) -> u64 {
        self.extremes_at(problem).saturating_add(u64::from(self.extremes()) * 4)
    }

    /// `workspace` is the address of `workspace_bytes` bytes.
    pub fn launches(&self, problem: &MatmulProblem, device: &DeviceFacts, workspace: usize) -> Launches {
        let p = Oriented::new(problem);
        let (product, sources) = self.product.product(problem, &p, device, workspace);
        let extremes = workspace + self.extremes_at(problem) as usize;
        let mut operand = [RepackOperand::default(); 2];
        let mut k_major = 0;
        for (i, (x, (mn_stride, k_stride), copy, to)) in sources.iter().enumerate().take(2) {
            operand[i] = copy.operand(x, *mn_stride, *k_stride, *to);
            k_major |= u32::from(copy.k_major) << i;
        }
        let [first_blocks, second] = self.split_blocks;
        let split = SplitParams { operand, extremes, first_blocks, k_major };
        let kernel = Kernel { file: "matmul_split", name: "matmul_split_f32".into() };
        let split = LaunchPlan::new(kernel, first_blocks + second, SPLIT_THREADS as u32, 0, split);
        let params = Bf16x6Params {
            wgmma: product.multiply.params,
            a: p.a.address,
            b: p.b.address,
            a_row: p.a.row_stride,
            a_col: p.a.col_stride,
            b_row: p.b.row_stride,
            b_col: p.b.col_stride,
            a_batch: batch_strides(&p.a),
            b_batch: batch_strides(&p.b),
            extremes,
            a_extremes: first_blocks,
            all_extremes: self.extremes(),
            k: p.k as u32,
            unused: [0; 3],
        };
        let LaunchPlan { kernel, grid, block, shared_bytes, cluster, cooperative, settings, why, .. } =
            product.multiply.clone();
        let multiply =
            LaunchPlan { kernel, grid, block, shared_bytes, cluster, cooperative, params, settings, why };
        Launches { split, multiply, product }
    }
}

impl Launches {
    /// The same without addresses, for a problem at `bases`.
    pub fn choice(&self, bases: &Bases, workspace: u64) -> plan::Choice {
        let multiply = self.multiply.launch(bases).with_maps(bases, self.product.maps());
        plan::Choice::new(multiply, self.multiply.why.clone())
            .after(Some(self.split.launch(bases)))
            .before(self.product.reduce.as_ref().map(|plan| plan.launch(bases)))
            .with_workspace(workspace)
    }
}

#[cfg(test)]
mod tests;
