//! Few rows or columns: how kernels/matmul_skinny.cu, kernels/matmul_skinny_simt.cu and kernels/matmul_skinny_stream.cu are
//! launched.

mod params;
mod tiles;

pub use params::SkinnyParams;

use tiles::{ANY_HALVES, HALVES, SIMT, SIMT_F64, SIMT_K, STREAM_K, STREAM_M, Tile};

use super::blocks::FILL_CLOCKS;
use super::cost::{self, Rate, Reading};
use super::reduce::{self, ReduceParams, Splits};
use super::{
    Access, Addends, MatmulParams, Matrix, Oriented, access, allows_vectors, down_columns, estimated, k_fast,
    products,
};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::reason::Reason;
use crate::cuda::plan::{Kernel, LaunchPlan};
use crate::dtype::DType;
use crate::ops::matmul::MatmulProblem;

/// The most rows or columns that are few; of halves, FEW_HALVES are.
pub const FEW: i64 = 64;
/// With 64 of them matmul_mma's tiles take half as long: docs/measurements/matmul_skinny.md.
const FEW_HALVES: i64 = 16;
/// The most that matmul_skinny_stream.cu takes.
const FEW_FLOATS: i64 = 8;
const STREAM: &str = "matmul_skinny_stream";
/// Bytes of the few rows of a split, of weights along k: what L1 keeps, for up to 4 and up to 8 of them. Each thread has k of
/// its own, so that chains are short. Of weights across k, MOST_K_PER_SPLIT is what shared memory has room for.
const STREAM_FEW_BYTES: [u64; 2] = [1 << 16, 1 << 15];
/// Stages that a split has there, at least.
const STREAM_STAGES_PER_SPLIT: u64 = 2;
/// k splits that are tried. Those of a cluster are among the first.
const SPLITS: [u64; 12] = [1, 2, 4, 8, 3, 6, 12, 16, 24, 32, 64, 128];
/// Larger ones are slower: docs/measurements/matmul_skinny.md.
const CLUSTERS: [u64; 1] = [2];
/// Stages and k that a split has at least: with less, most of it is filling the ring.
const STAGES_PER_SPLIT: u64 = 4;
const K_PER_SPLIT: u64 = 256;
/// The same of float32, whose arithmetic takes longer than filling the ring.
const FLOATS_PER_SPLIT: u64 = 96;
/// k of a split at most, of float32 and float64: its products are one chain of additions, and rounding errors grow with its
/// length.
const MOST_K_PER_SPLIT: u64 = 1024;

/// Clocks of a cluster's reduction.
const CLUSTER: f64 = 1500.0;
/// Share of the multiprocessor's arithmetic that these kernels reach on an H200.
const TENSOR_CORES: f64 = 0.709;
const PIPELINES: f64 = 0.625;
/// Of float32, how much longer a block takes that is alone on its multiprocessor, and what share of the time of a full round
/// of blocks the last one takes at least, which may lie three on one multiprocessor and none on another:
/// docs/measurements/matmul_skinny_simt.md.
const LONE: f64 = 1.2;
const LAST_ROUND: f64 = 0.75;
/// How much longer each of few rows but the first makes matmul_skinny_stream.cu take, of weights that lie along k:
/// docs/measurements/matmul_bf16x6_few.md.
const STREAM_ROW: f64 = 0.07;

/// What a developer may take out of the plan's hands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overrides {
    /// k splits.
    pub splits: Option<u32>,
    /// Whether they are a cluster, where the device has them and they are two.
    pub cluster: Option<bool>,
}

/// How a problem will be solved, but for where its workspace memory is.
#[derive(Clone, Debug, PartialEq)]
pub struct SkinnyChoice {
    file: &'static str,
    tile: &'static Tile,
    layout: &'static str,
    splits: u32,
    k_per_split: i64,
    cluster: bool,
    clocks: f64,
    why: Vec<Reason>,
}

/// The launches that solve a problem, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Launches {
    pub multiply: LaunchPlan<SkinnyParams>,
    pub reduce: Option<LaunchPlan<ReduceParams>>,
}

/// None: not for this problem on this device.
pub fn choose(problem: &MatmulProblem, device: &DeviceFacts, overrides: Overrides) -> Option<SkinnyChoice> {
    let halves = matches!(problem.dtype, DType::F16 | DType::BF16);
    if problem.m.min(problem.n) > if halves { FEW_HALVES } else { FEW }
        || problem.k == 0
        || problem.batch.len() > reduce::BATCH_DIMS
    {
        return None;
    }
    let p = oriented(problem);
    let size = problem.dtype.size();
    let fits = [p.m, p.n, p.k].iter().chain(&problem.batch).all(|&n| (1..=reduce::SIZE_LIMIT).contains(&n));
    let residual = p.residual.as_ref().map_or(0, |x| x.address);
    let addresses = [p.a.address, p.b.address, p.out.address, p.bias, residual];
    if !fits || !addresses.iter().all(|address| address.is_multiple_of(size)) {
        return None;
    }
    let (file, layout, tiles) = kernels(problem, &p, device);
    let tile = tiles.iter().find(|tile| p.n <= i64::from(tile.n)).or(tiles.last())?;

    let steps = p.k.unsigned_abs().div_ceil(u64::from(tile.k));
    let least = match file {
        STREAM => STREAM_STAGES_PER_SPLIT,
        "matmul_skinny_simt" if problem.dtype == DType::F32 => FLOATS_PER_SPLIT / u64::from(tile.k),
        _ => STAGES_PER_SPLIT.max(K_PER_SPLIT / u64::from(tile.k)),
    };
    let most_k = match (file, layout) {
        (STREAM, "_k") => STREAM_FEW_BYTES[usize::from(tile.n > 4)] / (4 * p.n.unsigned_abs()),
        _ => MOST_K_PER_SPLIT,
    };
    let exact = if halves { 1 } else { p.k.unsigned_abs().div_ceil(most_k) };
    let most = (steps / least).max(1);
    // What is asked for may be inexact, but must fit shared memory.
    let fewest = if layout == "_m" && file == STREAM { exact } else { 1 };
    let forced = overrides.splits.map(|splits| u64::from(splits).clamp(fewest, steps));
    let tried: Vec<u64> = SPLITS.into_iter().filter(|count| (exact..=most).contains(count)).collect();
    let counts = match forced {
        Some(forced) => vec![forced],
        None if tried.is_empty() => vec![exact],
        None => tried,
    };
    let candidates = counts.into_iter().map(|wanted| {
        let steps_per_split = steps.div_ceil(wanted);
        let splits = steps.div_ceil(steps_per_split);
        let cluster = overrides.cluster != Some(false) && device.has_clusters() && CLUSTERS.contains(&splits);
        let k_per_split = (steps_per_split * u64::from(tile.k)) as i64;
        let choice = SkinnyChoice {
            file,
            tile,
            layout,
            splits: splits as u32,
            k_per_split,
            cluster,
            clocks: 0.0,
            why: Vec::new(),
        };
        SkinnyChoice { clocks: choice.estimate(problem, &p, device), ..choice }
    });
    let candidates: Vec<SkinnyChoice> = candidates.collect();
    let mut best = candidates.iter().min_by(|x, y| x.clocks.total_cmp(&y.clocks))?.clone();
    let whole = candidates.iter().find(|choice| choice.splits == 1 && best.splits > 1);
    best.why.push(Reason::asked_for(best.name(), "blocks"));
    best.why
        .extend(whole.map(|whole| estimated(("k in splits", best.clocks), ("no k splits", whole.clocks))));
    let blocks = best.tiles(&p).checked_mul(products(problem))?.checked_mul(u64::from(best.splits))?;
    (blocks <= i32::MAX as u64).then_some(best)
}

/// The long side as rows.
fn oriented(problem: &MatmulProblem) -> Oriented {
    if problem.n > problem.m { Oriented::transposed(problem) } else { Oriented::straight(problem) }
}

/// File, layout and tiles.
fn kernels(
    problem: &MatmulProblem,
    p: &Oriented,
    device: &DeviceFacts,
) -> (&'static str, &'static str, &'static [Tile]) {
    match problem.dtype {
        DType::F16 | DType::BF16 if device.compute_capability >= (8, 0) => {
            let (layout, tiles) = match access(&p.a, p.a.row_stride, p.a.col_stride, p.m, p.k, problem.dtype)
            {
                Access::AlongK => ("_k", &HALVES[..]),
                Access::AlongMn => ("_m", &HALVES[..]),
                Access::Elements { .. } if k_fast(p.a.row_stride, p.a.col_stride, p.m, p.k) => {
                    ("_anyk", &ANY_HALVES[..])
                }
                Access::Elements { .. } => ("_anym", &ANY_HALVES[..]),
            };
            ("matmul_skinny", layout, tiles)
        }
        DType::F64 => ("matmul_skinny_simt", "", &SIMT_F64[..]),
        DType::F32 => {
            let few = access(&p.b, p.b.col_stride, p.b.row_stride, p.n, p.k, problem.dtype);
            match access(&p.a, p.a.row_stride, p.a.col_stride, p.m, p.k, problem.dtype) {
                Access::AlongK if p.n <= FEW_FLOATS => (STREAM, "_k", &STREAM_K[..]),
                Access::AlongMn if p.n <= FEW_FLOATS => (STREAM, "_m", &STREAM_M[..]),
                Access::AlongK if few == Access::AlongK => ("matmul_skinny_simt", "_k", &SIMT_K[..]),
                _ => ("matmul_skinny_simt", "", &SIMT[..]),
            }
        }
        _ => ("matmul_skinny_simt", "", &SIMT[..]),
    }
}

impl SkinnyChoice {
    pub fn name(&self) -> &'static str {
        match self.file {
            "matmul_skinny" => "skinny",
            STREAM => "skinny stream",
            _ => "skinny simt",
        }
    }

    /// The choice by estimates, against another kernel that would take so many clocks.
    pub fn instead(mut self, other: (&'static str, f64)) -> SkinnyChoice {
        self.why[0] = estimated((self.name(), self.clocks), other);
        self
    }

    /// Until the result is complete.
    pub fn clocks(&self) -> f64 {
        self.clocks
    }

    /// Of one product.
    fn tiles(&self, p: &Oriented) -> u64 {
        let along = |size: i64, tile: u32| size.unsigned_abs().div_ceil(u64::from(tile));
        along(p.m, self.tile.m).saturating_mul(along(p.n, self.tile.n))
    }

    /// How many blocks one multiprocessor computes after each other, as if each had all of its arithmetic.
    fn float_rounds(&self, blocks: f64, device: &DeviceFacts) -> f64 {
        let (multiprocessors, resident) =
            (f64::from(device.multiprocessors), f64::from(self.tile.resident(device)));
        let rounds = blocks / (multiprocessors * resident);
        match (blocks / multiprocessors).ceil() {
            1.0 => LONE,
            each if rounds <= 1.0 => each,
            _ if rounds.fract() > 0.0 => resident * (rounds.floor() + rounds.fract().max(LAST_ROUND)),
            _ => resident * rounds,
        }
    }

    fn estimate(&self, problem: &MatmulProblem, p: &Oriented, device: &DeviceFacts) -> f64 {
        let tile = self.tile;
        let blocks = self.tiles(p) as f64 * products(problem) as f64 * f64::from(self.splits);
        let size = problem.dtype.size() as f64;
        let rows = (p.m as f64).min(f64::from(tile.m)) + (p.n as f64).min(f64::from(tile.n));
        // What goes through registers waits there for one stage.
        let ahead = if self.layout.starts_with("_any") { 1 } else { tile.stages(device) - 1 };
        let split = self.k_per_split.min(p.k) as f64;
        let reading = Reading {
            blocks,
            resident: tile.resident(device),
            bytes: rows * split * size,
            in_flight: rows * f64::from(ahead * tile.k) * size,
        };
        let rate = match problem.dtype {
            _ if self.file == "matmul_skinny" => Rate::halves(device).reached(TENSOR_CORES),
            DType::F64 => Rate::doubles(device).reached(PIPELINES),
            _ => Rate::floats(device).reached(PIPELINES),
        };
        let each = match (self.file, problem.dtype) {
            ("matmul_skinny_simt", DType::F32) => self.float_rounds(blocks, device),
            _ => (blocks / f64::from(device.multiprocessors)).ceil(),
        };
        let computing = FILL_CLOCKS + each * f64::from(tile.m * tile.n) * split / rate;
        let join = match (self.splits, self.cluster) {
            (1, _) => 0.0,
            (_, true) => CLUSTER,
            (splits, false) => reduce::clocks(self.partial_bytes(problem), splits),
        };
        let longer = match (self.file, self.layout) {
            (STREAM, "_k") => 1.0 + STREAM_ROW * (p.n - 1) as f64,
            _ => 1.0,
        };
        longer * cost::clocks(problem, cost::reading_clocks(&reading, computing, device), device) + join
    }

    /// Sums that go through memory, in bytes.
    fn partial_bytes(&self, problem: &MatmulProblem) -> u64 {
        let (width, height) = sums(&oriented(problem));
        let each = if problem.dtype == DType::F64 { 8 } else { 4 };
        [width, products(problem), u64::from(self.splits), each]
            .iter()
            .fold(height, |n, by| n.saturating_mul(*by))
    }

    pub fn workspace_bytes(&self, problem: &MatmulProblem) -> u64 {
        if self.splits == 1 || self.cluster { 0 } else { self.partial_bytes(problem) }
    }

    /// `workspace` is the address of `workspace_bytes` bytes.
    pub fn launches(&self, problem: &MatmulProblem, device: &DeviceFacts, workspace: usize) -> Launches {
        let (p, tile) = (oriented(problem), self.tile);
        let by_rows = down_columns(p.m, p.n, &p.out);
        let (width, height) = sums(&p);
        let concurrent = device.multiprocessors * tile.resident(device);
        let mut product = MatmulParams::new(problem, &p, (tile.m, tile.n), concurrent);
        if by_rows {
            let vectors = allows_vectors(&p.out, p.out.row_stride, (p.n, p.out.col_stride), problem.dtype);
            product.out_vector = u32::from(vectors);
            let allows = |x: &Matrix| allows_vectors(x, x.row_stride, (p.n, x.col_stride), problem.dtype);
            product.addends = Addends::new(&p, p.residual.as_ref().is_some_and(allows));
        }
        let few = access(&p.b, p.b.col_stride, p.b.row_stride, p.n, p.k, problem.dtype);
        let through_memory = self.splits > 1 && !self.cluster;
        let params = SkinnyParams {
            product,
            partials: if through_memory { workspace } else { 0 },
            k_per_split: self.k_per_split,
            splits: self.splits,
            by_rows: u32::from(by_rows),
            width: width as u32,
            height: height as u32,
            b_vectors: u32::from(few == Access::AlongK),
            cluster_splitk: u32::from(self.cluster),
        };
        let name = format!("{}_{}{}_{}", self.file, tile.name, self.layout, problem.dtype.suffix());
        let kernel = Kernel { file: self.file, name };
        // Without tensor cores, it is static.
        let shared_bytes = if self.file == "matmul_skinny" { tile.bytes(device) } else { 0 };
        let cluster = if self.cluster { self.splits } else { 1 };
        let (tiles_m, tiles_n) = (product.order.tiles_m, product.order.tiles_n);
        let settings =
            [("tiles_m", tiles_m), ("tiles_n", tiles_n), ("splits", self.splits), ("cluster", cluster)];
        let multiply = LaunchPlan {
            cluster,
            settings: settings.map(|(name, value)| (name, u64::from(value))).to_vec(),
            why: self.why.as_slice().into(),
            ..LaunchPlan::new(kernel, product.blocks as u32 * self.splits, tile.threads, shared_bytes, params)
        };
        let reduce = || {
            // Along what neighbours in the result's memory are.
            let ((m, n), (out_row, out_col), (bias_row, bias_col)) = if by_rows {
                ((p.n, p.m), (p.out.col_stride, p.out.row_stride), (p.bias_col, p.bias_row))
            } else {
                ((p.m, p.n), (p.out.row_stride, p.out.col_stride), (p.bias_row, p.bias_col))
            };
            let splits = Splits {
                partials: workspace,
                count: self.splits,
                m: m as u32,
                n: n as u32,
                height: height as u32,
                width: width as u32,
                products: products(problem) as u32,
                out: p.out.address,
                out_row,
                out_col,
                out_vector: product.out_vector != 0,
                bias: p.bias,
                bias_row,
                bias_col,
                bias_up: 0,
                addends: if by_rows { product.addends.transposed() } else { product.addends },
                gate_width: 0,
            };
            reduce::plan(problem, &splits)
        };
        Launches { multiply, reduce: through_memory.then(reduce) }
    }
}

/// Width and height of a matrix of partial sums: of whole fours along what neighbours in the result's memory are.
fn sums(p: &Oriented) -> (u64, u64) {
    let (along, across) = if down_columns(p.m, p.n, &p.out) { (p.m, p.n) } else { (p.n, p.m) };
    (along.unsigned_abs().next_multiple_of(4), across.unsigned_abs())
}

#[cfg(test)]
mod tests;
