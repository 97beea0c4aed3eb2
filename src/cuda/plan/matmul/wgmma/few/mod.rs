//! Few columns of float16 and bfloat16, or few rows as columns of the transposed product: how kernels/matmul_wgmma_few.cu is launched.

mod params;

pub use params::FewParams;

use std::mem::{offset_of, size_of};

use super::cost::{MODEL, Size};
use super::launches::{Load, Tiles, load};
use super::{
    Addressed, BLOCK_K, HEADER_BYTES, Oriented, Overrides, ROW_BYTES, SIZE_LIMIT, TileCluster, addressed,
    estimated, lead_stride, stages,
};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::index::Divisor;
use crate::cuda::plan::matmul::activation;
use crate::cuda::plan::reason::{Reason, least_two};
use crate::cuda::plan::{self, Bases, Kernel, LaunchPlan};
use crate::cuda::tensor_map::{TensorMap, TensorMapSpec};
use crate::dtype::DType;
use crate::ops::matmul::{Activation, MatmulProblem};

/// Columns of a block, which has 64 rows: FewTile of kernels/common/wgmma_few.cuh.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tile {
    pub name: &'static str,
    n: u32,
}

/// The same list as in matmul_wgmma_few.cu. Of equals, the first is preferred.
pub const TILES: [Tile; 4] = [
    Tile { name: "64x8", n: 8 },
    Tile { name: "64x16", n: 16 },
    Tile { name: "64x32", n: 32 },
    Tile { name: "64x64", n: 64 },
];
pub const NAME: &str = "wgmma few";
const MAPS: usize = 6;
const ROWS: u32 = 64;
const THREADS: u32 = 384;
/// Of k in a stage, and boxes of an operand.
const STAGE_K: u64 = BOXES * BLOCK_K;
const BOXES: u64 = 2;
/// The most columns for which the kernel has been measured. A developer may ask for more.
const FEW: i64 = 64;
/// Two warpgroups have two stages each, at least.
const LEAST_STAGES: u32 = 4;

// Fitted to what an H200 takes more or less than by matmul_wgmma.cu, as its model has it, with all tiles of 114 shapes:
// docs/measurements/matmul_wgmma_few.md.
/// Clocks from the launch to the first product, and from the last to the end; and those of each round of blocks besides.
const START: f64 = 2715.0;
const ROUND: f64 = 6033.0;
/// Bytes that a multiprocessor receives in a clock.
const L2_BYTES: f64 = 98.0;

impl Tile {
    fn stage_bytes(&self) -> u32 {
        BOXES as u32 * ROW_BYTES * (ROWS + self.n)
    }

    /// Of so many blocks on a multiprocessor.
    fn stages(&self, resident: u32, device: &DeviceFacts) -> u32 {
        stages(resident, HEADER_BYTES, self.stage_bytes(), device) / 2 * 2
    }

    /// Blocks on a multiprocessor, for so many in all.
    fn resident(&self, blocks: u64, device: &DeviceFacts) -> u32 {
        let many = blocks > u64::from(device.multiprocessors);
        if many && self.stages(2, device) >= LEAST_STAGES { 2 } else { 1 }
    }

    fn blocks(&self, p: &Oriented) -> u64 {
        let (tiles_m, tiles_n) = self.tiles(p);
        tiles_m.saturating_mul(tiles_n)
    }

    fn tiles(&self, p: &Oriented) -> (u64, u64) {
        (p.m.unsigned_abs().div_ceil(ROWS.into()), p.n.unsigned_abs().div_ceil(self.n.into()))
    }

    /// Clocks until the result is complete; gated, of two products.
    fn clocks(&self, p: &Oriented, kind: Kind, off_lines: [bool; 2], device: &DeviceFacts) -> f64 {
        let Kind { gated, smooth } = kind;
        let (blocks, many) = (self.blocks(p), u64::from(device.multiprocessors));
        let resident = self.resident(blocks, device);
        let at_once = many * u64::from(resident);
        let [m, n, k] = [p.m, p.n, p.k].map(i64::unsigned_abs);
        // Of columns, only those that there are.
        let columns = n.next_multiple_of(8).min(self.n.into());
        let [lines_a, lines_b] = MODEL.of_lines(off_lines);
        let lines = f64::from(ROWS) * lines_a + columns as f64 * lines_b;
        let read = lines * f64::from(ROW_BYTES) * (k.div_ceil(BLOCK_K) << u32::from(gated)) as f64;
        let side_by_side = f64::from(resident).min(blocks.div_ceil(many) as f64);
        let rounds = blocks.div_ceil(at_once) as f64;
        let loading = rounds * (side_by_side * read / L2_BYTES + ROUND);
        let results = rounds * side_by_side * f64::from(ROWS) * columns as f64;
        let activation = if smooth { results * MODEL.smooth } else { 0.0 };
        let m = m << u32::from(gated);
        let size = Size { m, n, k, products: 1, gated, smooth, off_lines, b_by_rows: false };
        START + MODEL.of_memory(&size, device).hypot(loading) + activation
    }
}

/// Of a problem, besides its sizes: as `Size` has them.
#[derive(Clone, Copy)]
struct Kind {
    gated: bool,
    smooth: bool,
}

/// How a problem will be solved.
#[derive(Clone, Debug, PartialEq)]
pub struct FewChoice {
    tile: &'static Tile,
    transposed: bool,
    clocks: f64,
    why: Vec<Reason>,
}

/// None: not for this problem on this device.
pub fn choose(problem: &MatmulProblem, device: &DeviceFacts, overrides: Overrides) -> Option<FewChoice> {
    let of_two_bytes = matches!(problem.dtype, DType::F16 | DType::BF16);
    let few = problem.m.min(problem.n) <= FEW || overrides.tile.is_some();
    let whole = overrides.splits.is_none_or(|splits| splits == 1)
        && overrides.cluster.is_none_or(TileCluster::is_alone);
    // Code for 9.0a runs on nothing else.
    if device.compute_capability != (9, 0) || !of_two_bytes || !few || !whole || !problem.batch.is_empty() {
        return None;
    }
    let (p, Operands { rows, gate, columns }) = taken(problem)?;
    let gate_is_off_lines = gate.as_ref().is_some_and(Addressed::is_off_lines);
    let off_lines = [rows.is_off_lines() || gate_is_off_lines, columns.is_off_lines()];
    let gated = gate.is_some();
    let kind = Kind { gated, smooth: problem.activation.is_smooth() && !gated };
    let is_asked = |tile: &&Tile| match overrides.tile {
        Some(only) => TILES.get(only).is_some_and(|asked| asked == *tile),
        None => tile.n == TILES[0].n || i64::from(tile.n / 2) < p.n,
    };
    let fits =
        |tile: &&Tile| tile.blocks(&p) <= u64::from(u32::MAX / 4) && tile.stages(1, device) >= LEAST_STAGES;
    let tiles = TILES.iter().filter(is_asked).filter(fits);
    let ((tile, clocks), next) =
        least_two(tiles.map(|tile| (tile, tile.clocks(&p, kind, off_lines, device))))?;
    let mut why = vec![Reason::asked_for(NAME, "wgmma")];
    why.extend(next.map(|(other, of)| estimated((tile.name, clocks), (other.name, of))));
    Some(FewChoice { tile, transposed: p.transposed, clocks, why })
}

/// As the copy engine addresses them.
struct Operands {
    rows: Addressed,
    gate: Option<Addressed>,
    columns: Addressed,
}

/// The problem with its long side as rows, and how the operands lie: of a square one as it is transposed, if the kernel takes that.
fn taken(problem: &MatmulProblem) -> Option<(Oriented, Operands)> {
    let transposed = (problem.n >= problem.m).then(|| Oriented::transposed(problem));
    let straight = || (problem.m >= problem.n).then(|| Oriented::straight(problem));
    let with_operands = |p: Oriented| takes(problem, &p).map(|operands| (p, operands));
    transposed.and_then(with_operands).or_else(|| straight().and_then(with_operands))
}

/// Operands that the copy engine can address, few rows along k, a bias of the other side, and a gate that lies as its rows do: if
/// there is a kernel.
fn takes(problem: &MatmulProblem, p: &Oriented) -> Option<Operands> {
    let fits = [p.m, p.n, p.k].iter().all(|&size| (1..=SIZE_LIMIT).contains(&size));
    let residual = p.residual.as_ref().map_or(0, |x| x.address);
    let addresses = [p.out.address, p.bias, residual];
    let elements_lie_whole = addresses.iter().all(|address| address.is_multiple_of(problem.dtype.size()));
    let by_row = p.transposed || (p.bias == 0 && problem.gate.is_none());
    if !(fits && elements_lie_whole && by_row && p.wide.is_none()) {
        return None;
    }
    let rows = addressed(&p.a, (p.m, p.a.row_stride), (p.k, p.a.col_stride))?;
    let columns = addressed(&p.b, (p.n, p.b.col_stride), (p.k, p.b.row_stride))?;
    let gate = match &problem.gate {
        Some(x) => Some(addressed(x, (p.m, x.col_stride), (p.k, x.row_stride))?),
        None => None,
    };
    let is_alike = gate.as_ref().is_none_or(|gate| gate.mn_major == rows.mn_major);
    (is_alike && !columns.mn_major).then_some(Operands { rows, gate, columns })
}

/// The launch, and what the maps among its parameters are made from.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    pub plan: LaunchPlan<FewParams>,
    pub maps: [Option<TensorMapSpec>; MAPS],
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

    pub fn launch(&self, problem: &MatmulProblem, device: &DeviceFacts) -> Launch {
        let tile = self.tile;
        let p = if self.transposed { Oriented::transposed(problem) } else { Oriented::straight(problem) };
        let (tiles_m, tiles_n) = tile.tiles(&p);
        let (tiles_m, tiles_n) = (tiles_m as u32, tiles_n as u32);
        let (operands, k) = (takes(problem, &p), p.k.unsigned_abs());
        let a_mn = operands.as_ref().is_some_and(|operands| operands.rows.mn_major);
        let along_m = Tiles { count: tiles_m, rows: ROWS, ..Tiles::ALONE };
        let along_n = Tiles { count: tiles_n, rows: tile.n, ..Tiles::ALONE };
        let [a, gate, b] =
            operands.map_or([None, None, None], |of| [Some(of.rows), of.gate, Some(of.columns)]);
        // As if read once, though blocks share the few rows: larger reads into the L2 cache are no gain.
        let [a, gate] = [a, gate].map(|x| load(problem, &x, (p.m, k), along_m, true));
        let b = load(problem, &b, (p.n, k), along_n, true);
        let bytes = |x: &Option<Load>| {
            x.map_or([0; 2], |x| [x.stage_bytes, x.tail_bytes].map(|bytes| BOXES as u16 * bytes as u16))
        };
        let ([a_bytes, a_tail_bytes], [b_bytes, b_tail_bytes]) = (bytes(&a), bytes(&b));
        // Eight rows next to each other.
        let vectors =
            |x, row_stride, col_stride| lead_stride(x, (p.m, row_stride), (p.n, col_stride)).is_some();
        let residual_vector = p.residual.as_ref().is_some_and(|x| vectors(x, x.row_stride, x.col_stride));
        let [residual, residual_row, residual_col] =
            p.residual.as_ref().map_or([0; 3], |x| [x.address as i64, x.row_stride, x.col_stride]);
        let (kind, slope) = activation(problem.activation);
        let blocks = tiles_m * tiles_n;
        let stages = tile.stages(tile.resident(blocks.into(), device), device);
        let params = FewParams {
            by_columns: Divisor::new(tiles_n.into()),
            tiles_n,
            stages,
            k_blocks: (k.div_ceil(STAGE_K) as u32) << u32::from(gate.is_some()),
            a_mn: a_mn.into(),
            a_bytes,
            a_tail_bytes,
            b_bytes,
            b_tail_bytes,
            m: p.m as u32,
            n: p.n as u32,
            activation: kind,
            negative_slope: slope as f32,
            store_elements: u32::from(!vectors(&p.out, p.out.row_stride, p.out.col_stride)),
            residual_vector: residual_vector.into(),
            bias: p.bias,
            bias_row: p.bias_row,
            out: p.out.address,
            out_row: p.out.row_stride,
            out_col: p.out.col_stride,
            residual: residual as usize,
            residual_row,
            residual_col,
            maps: [TensorMap::NONE; MAPS],
            bias_up: problem.bias.as_ref().filter(|_| gate.is_some()).map_or(0, |bias| bias.row_stride),
            unused: [0; 7],
        };
        let epilogue = match problem.activation {
            _ if gate.is_some() => "gated",
            Activation::None | Activation::Relu | Activation::LeakyRelu { .. } => "bias_relu",
            Activation::Gelu | Activation::GeluTanh | Activation::Silu => "general",
        };
        let name = format!("matmul_wgmma_few_{}_{epilogue}_{}", tile.name, problem.dtype.suffix());
        let kernel = Kernel { file: "matmul_wgmma_few", name };
        let settings = [("tiles_m", tiles_m), ("tiles_n", tiles_n), ("stages", stages)];
        let shared_bytes = HEADER_BYTES + stages * tile.stage_bytes();
        let plan = LaunchPlan {
            settings: settings.map(|(name, value)| (name, u64::from(value))).to_vec(),
            why: self.why.as_slice().into(),
            ..LaunchPlan::new(kernel, blocks, THREADS, shared_bytes, params)
        };
        let with_tail = |x: Option<Load>| [x.map(|x| x.map), x.map(|x| x.tail.unwrap_or(x.map))];
        let [[a, a_tail], [b, b_tail], [gate, gate_tail]] = [a, b, gate].map(with_tail);
        Launch { plan, maps: [a, a_tail, b, b_tail, gate, gate_tail] }
    }
}

impl Launch {
    /// The same without addresses, for a problem at `bases`.
    pub fn choice(&self, bases: &Bases) -> plan::Choice {
        let at = |i: usize| offset_of!(FewParams, maps) + i * size_of::<TensorMap>();
        let maps = self.maps.iter().enumerate().filter_map(|(i, spec)| Some((at(i), (*spec)?)));
        plan::Choice::new(self.plan.launch(bases).with_maps(bases, maps), self.plan.why.clone())
    }
}

#[cfg(test)]
mod tests;
