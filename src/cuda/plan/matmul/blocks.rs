//! One block a tile: matmul_mma.cu, matmul_tf32.cu, matmul_dmma.cu and matmul_simt.cu, and which of their tiles.

use super::cost::{self, Rate, Reading};
use super::{Access, MatmulParams, Oriented, estimated, k_fast, products};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::index::MAX_RANK;
use crate::cuda::plan::limits::INLINE_RANK;
use crate::cuda::plan::reason::{Reason, Reasons, least_two};
use crate::cuda::plan::tile_order::MOST_TILES;
use crate::cuda::plan::{Kernel, LaunchPlan};
use crate::dtype::DType;
use crate::ops::matmul::{MatmulProblem, Precision};

/// A tile of the result that one block computes, and what is known of its speed.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tile {
    name: &'static str,
    m: u32,
    n: u32,
    threads: u32,
    /// One buffer of the ring in dynamic shared memory: (m + n) * k * element size.
    stage_bytes: u32,
    /// Buffers before compute capability 9.0, and from there on.
    stages: [u32; 2],
    /// Blocks that a multiprocessor's registers have room for.
    blocks: u32,
    /// Batch dimensions that the kernel takes.
    rank: usize,
    /// Bytes of a row that are on their way to a block at once.
    ahead: u32,
    /// Share of the multiprocessor's arithmetic that one block reaches alone, and that all together reach, on an H200.
    /// First estimates.
    alone: f64,
    together: f64,
}

impl Tile {
    fn shared_bytes(&self, device: &DeviceFacts) -> u32 {
        self.stage_bytes * self.stages[usize::from(device.compute_capability >= (9, 0))]
    }
}

/// `LARGE_STAGES` in kernels/matmul_mma.cu.
const LARGE: [u32; 2] = [3, 4];

#[rustfmt::skip]
const MMA_TILES: [Tile; 7] = [
    Tile { name: "128x256", m: 128, n: 256, threads: 256, stage_bytes: 49_152, stages: LARGE, blocks: 1, rank: INLINE_RANK, ahead: 256, alone: 1.00, together: 1.00 },
    Tile { name: "192x192", m: 192, n: 192, threads: 256, stage_bytes: 49_152, stages: LARGE, blocks: 1, rank: INLINE_RANK, ahead: 256, alone: 0.97, together: 0.97 },
    Tile { name: "128x192", m: 128, n: 192, threads: 256, stage_bytes: 40_960, stages: LARGE, blocks: 1, rank: INLINE_RANK, ahead: 256, alone: 0.95, together: 0.95 },
    Tile { name: "96x192",  m:  96, n: 192, threads: 256, stage_bytes: 36_864, stages: LARGE, blocks: 1, rank: INLINE_RANK, ahead: 256, alone: 0.86, together: 0.86 },
    Tile { name: "128x128", m: 128, n: 128, threads: 128, stage_bytes: 16_384, stages: [3; 2], blocks: 2, rank: INLINE_RANK, ahead: 128, alone: 0.85, together: 0.97 },
    Tile { name: "64x64",   m:  64, n:  64, threads: 128, stage_bytes: 16_384, stages: [3; 2], blocks: 4, rank: INLINE_RANK, ahead: 256, alone: 0.50, together: 0.70 },
    Tile { name: "32x64",   m:  32, n:  64, threads: 128, stage_bytes: 12_288, stages: [8; 2], blocks: 2, rank: INLINE_RANK, ahead: 896, alone: 0.30, together: 0.50 },
];
const TF32_TILES: [Tile; 2] = [MMA_TILES[4], MMA_TILES[5]];
#[rustfmt::skip]
const MMA_ANY_TILES: [Tile; 2] = [
    Tile { name: "128x128", m: 128, n: 128, threads: 256, stage_bytes: 16_384, stages: [2; 2], blocks: 1, rank: MAX_RANK,    ahead:  64, alone: 0.35, together: 0.35 },
    Tile { name: "64x64",   m:  64, n:  64, threads: 256, stage_bytes:  8_192, stages: [2; 2], blocks: 2, rank: INLINE_RANK, ahead:  64, alone: 0.15, together: 0.25 },
];
#[rustfmt::skip]
const DMMA_TILES: [Tile; 3] = [
    Tile { name: "128x64",  m: 128, n:  64, threads: 128, stage_bytes: 24_576, stages: [4; 2], blocks: 2, rank: INLINE_RANK, ahead: 384, alone: 0.76, together: 0.98 },
    Tile { name: "64x64",   m:  64, n:  64, threads: 128, stage_bytes: 16_384, stages: [4; 2], blocks: 3, rank: INLINE_RANK, ahead: 384, alone: 0.62, together: 0.94 },
    Tile { name: "64x32",   m:  64, n:  32, threads: 128, stage_bytes: 12_288, stages: [5; 2], blocks: 3, rank: INLINE_RANK, ahead: 512, alone: 0.44, together: 0.82 },
];
/// k whose products matmul_dmma sums alone: less of a k that cuBLAS splits, while all tiles are computed at the same time.
const DMMA_PART_K: u32 = 4096;
const DMMA_SHORT_PART_K: u32 = 1024;
const DMMA_SHORT_PARTS_FROM: i64 = 2048;
const DMMA_LONGEST_PART_K: u32 = i32::MAX as u32;
const DMMA_ANY_TILES: [Tile; 1] = [DMMA_TILES[1]];
#[rustfmt::skip]
const SIMT_TILES: [Tile; 2] = [
    Tile { name: "128x128", m: 128, n: 128, threads: 256, stage_bytes:      0, stages: [0; 2], blocks: 2, rank: MAX_RANK,    ahead:  64, alone: 0.70, together: 0.85 },
    Tile { name: "64x64",   m:  64, n:  64, threads: 256, stage_bytes:      0, stages: [0; 2], blocks: 3, rank: INLINE_RANK, ahead: 128, alone: 0.45, together: 0.70 },
];
#[rustfmt::skip]
const SIMT_F64_TILES: [Tile; 1] = [
    Tile { name: "64x64",   m:  64, n:  64, threads: 256, stage_bytes:      0, stages: [0; 2], blocks: 2, rank: MAX_RANK,    ahead: 128, alone: 0.60, together: 0.85 },
];

/// Clocks from a block's start to its first product, and from its last to its end for each element.
pub(super) const FILL_CLOCKS: f64 = 1500.0;
const STORE_CLOCKS: f64 = 0.05;

/// What computes a problem tile by tile.
#[derive(Clone, Debug)]
pub(super) struct BlocksChoice {
    file: &'static str,
    tile: &'static Tile,
    layout: &'static str,
    /// Clocks until its last tile is done, were the operands at hand.
    computing: f64,
    why: Reasons,
}

/// What a developer takes out of the plan's hands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overrides {
    /// One of `TILE_NAMES`, where the problem and the device can have it.
    pub tile: Option<&'static str>,
    /// k splits, where they divide k of float32 or float64: `super::splitk`.
    pub splits: Option<u32>,
}

pub const TILE_NAMES: [&str; MMA_TILES.len() + 2] = {
    let mut names = [DMMA_TILES[0].name, DMMA_TILES[2].name, "", "", "", "", "", "", ""];
    let mut i = 0;
    while i < MMA_TILES.len() {
        names[2 + i] = MMA_TILES[i].name;
        i += 1;
    }
    names
};

/// The one launch of `Route::Blocks`.
pub fn plan(problem: &MatmulProblem, overrides: Overrides, device: &DeviceFacts) -> LaunchPlan<MatmulParams> {
    planned(problem, &Oriented::new(problem), overrides, device)
}

/// The same with the operands of `p`.
pub(super) fn planned(
    problem: &MatmulProblem,
    p: &Oriented,
    overrides: Overrides,
    device: &DeviceFacts,
) -> LaunchPlan<MatmulParams> {
    let BlocksChoice { file, tile, layout, why, .. } = choose(problem, p, overrides, device);
    let concurrent = device.multiprocessors * resident(tile, device);
    let mut params = MatmulParams::new(problem, p, (tile.m, tile.n), concurrent);
    let mut settings = params.order.settings().to_vec();
    if file == "matmul_dmma" {
        let is_short = p.k > DMMA_SHORT_PARTS_FROM && params.blocks <= concurrent.into();
        params.part_k = match is_short {
            _ if problem.residual_is_out => DMMA_LONGEST_PART_K,
            true => DMMA_SHORT_PART_K,
            false => DMMA_PART_K,
        };
        settings.push(("part_k", params.part_k.into()));
    }
    let kernel = Kernel { file, name: format!("{file}_{}{layout}_{}", tile.name, problem.dtype.suffix()) };
    LaunchPlan {
        grid: grid(params.blocks),
        settings,
        why,
        ..LaunchPlan::new(kernel, 1, tile.threads, tile.shared_bytes(device), params)
    }
}

fn choose(problem: &MatmulProblem, p: &Oriented, overrides: Overrides, device: &DeviceFacts) -> BlocksChoice {
    let [a, b] = p.accesses(problem.dtype);
    let by_elements = |bytes| [("contiguous aligned bytes", u64::from(bytes)), ("needed", 16)];
    let rank = problem.batch.len();
    let why_elements = match (a, b) {
        _ if rank > INLINE_RANK => {
            let metrics = [("batch dimensions", rank as u64), ("at most", INLINE_RANK as u64)];
            Some(("there are many batch dimensions", metrics))
        }
        (Access::Elements { bytes }, _) => Some((p.cannot_load[0], by_elements(bytes))),
        (_, Access::Elements { bytes }) => Some((p.cannot_load[1], by_elements(bytes))),
        _ => None,
    };
    let layout = match (a, b) {
        _ if why_elements.is_some() => "_any",
        (Access::AlongK, Access::AlongK) => "_kk",
        (Access::AlongK, _) => "_kn",
        (_, Access::AlongK) => "_mk",
        _ => "_mn",
    };
    let tensor_cores = device.compute_capability >= (8, 0);
    // matmul_dmma leaves sums of parts of k in the result's memory.
    let sums_over_residual = problem.residual_is_out && p.k > DMMA_LONGEST_PART_K.into();
    // On compute capability 9.0 matmul_wgmma_tf32.cu does.
    let takes_tf32 = tensor_cores && device.compute_capability != (9, 0);
    let capability = [("compute capability's major", device.compute_capability.0.into()), ("needed", 8)];
    let (file, tiles, layout, rate, why) = match (problem.dtype, problem.precision) {
        (DType::F16 | DType::BF16, _) if tensor_cores => match why_elements {
            Some((because, metrics)) => {
                let why = Reason::new("mma any", "mma", because, metrics);
                ("matmul_mma", &MMA_ANY_TILES[..], layout, Rate::halves(device), why)
            }
            None => {
                let why = Reason::new("mma", "simt", "tensor cores take these dtypes", capability);
                ("matmul_mma", &MMA_TILES[..], layout, Rate::halves(device), why)
            }
        },
        (DType::F32, Precision::Tf32) if takes_tf32 && why_elements.is_none() => {
            let why = Reason::new("tf32", "simt", "tensor cores may round to TF32", capability);
            ("matmul_tf32", &TF32_TILES[..], layout, Rate::tf32(device), why)
        }
        (DType::F64, _) if takes_doubles(device) && rank <= INLINE_RANK && !sums_over_residual => {
            let why = Reason::new("dmma", "simt", "tensor cores take float64", capability);
            match why_elements {
                Some(_) => {
                    ("matmul_dmma", &DMMA_ANY_TILES[..], any_layout(p), Rate::double_matrices(device), why)
                }
                None => ("matmul_dmma", &DMMA_TILES[..], layout, Rate::double_matrices(device), why),
            }
        }
        (DType::F64, _) => {
            let why = match why_elements {
                _ if takes_doubles(device) && sums_over_residual => {
                    Reason::plain("simt", "dmma", "sums of parts of k would be where the residual is")
                }
                Some((because, metrics)) if takes_doubles(device) => {
                    Reason::new("simt", "dmma", because, metrics)
                }
                _ => Reason::plain(
                    "simt",
                    "dmma",
                    "float64 has tensor cores on compute capability 8.0 and 9.0 only",
                ),
            };
            ("matmul_simt", &SIMT_F64_TILES[..], "", Rate::doubles(device), why)
        }
        (dtype, precision) => {
            let why = match (dtype, precision, why_elements) {
                (DType::F32, Precision::Ieee, _) => Reason::plain(
                    "simt",
                    "tf32",
                    "float32 is rounded to TF32 only where precision=\"tf32\" allows it",
                ),
                (DType::F32, Precision::Tf32, _) if tensor_cores && !takes_tf32 => {
                    Reason::plain("simt", "wgmma tf32", "its sizes or batch are not those of wgmma")
                }
                (DType::F32, Precision::Tf32, Some((because, metrics))) if tensor_cores => {
                    Reason::new("simt", "tf32", because, metrics)
                }
                (DType::F32, ..) => Reason::new("simt", "tf32", "tensor cores do not take TF32", capability),
                _ => Reason::new(
                    "simt",
                    "mma",
                    "the device's tensor cores are too old for the kernel",
                    capability,
                ),
            };
            ("matmul_simt", &SIMT_TILES[..], "", Rate::floats(device), why)
        }
    };
    let products = products(problem);
    let takes = |tile: &&Tile| {
        tile.shared_bytes(device) <= device.shared_bytes_per_block && tile.rank >= problem.batch.len()
    };
    // The large tile leaves sums of parts of k where the residual still is; another has no registers left for addends.
    let keeps_residual = |tile: &&Tile| {
        let sums_in_out = file == "matmul_simt" && problem.dtype == DType::F32 && tile.m == 128;
        let adds = problem.residual.is_some() || problem.wide.is_some();
        (!(problem.residual_is_out && sums_in_out) || problem.batch.len() > INLINE_RANK)
            && !(adds && tile.name == "192x192")
    };
    let along = |size: i64, tile: u32| size.unsigned_abs().div_ceil(tile.into());
    let counts = |tile: &&Tile| along(p.m, tile.m).saturating_mul(along(p.n, tile.n)) < MOST_TILES;
    let asked = tiles.iter().filter(takes).find(|tile| overrides.tile == Some(tile.name));
    let candidates = tiles
        .iter()
        .filter(takes)
        .filter(keeps_residual)
        .filter(|tile| asked.is_none_or(|asked| asked == *tile));
    let timed = candidates.filter(counts).map(|tile| (tile, estimate(tile, p, products, rate, device)));
    // Every tile has the same bytes to wait for.
    let reason = |(tile, computing): (&Tile, f64), (next, other): (&Tile, f64)| {
        let [own, other] = [computing, other].map(|computing| cost::clocks(problem, computing, device));
        estimated((tile.name, own), (next.name, other))
    };
    // No memory holds a result of more tiles than any of them counts.
    let any = || (tiles.iter().find(takes).unwrap_or(&tiles[0]), 0.0);
    let (best, next) = least_two(timed).unwrap_or_else(|| (any(), None));
    let why = [Some(why), next.map(|next| reason(best, next))].into_iter().flatten().collect();
    BlocksChoice { file, tile: best.0, layout, computing: best.1, why }
}

/// Whether matmul_dmma.cu has code for the device, and it tensor cores for that: others have a few for compatibility.
fn takes_doubles(device: &DeviceFacts) -> bool {
    matches!(device.compute_capability, (8, 0) | (9, 0))
}

/// Of doubles that are copied one at a time: along the smaller stride.
fn any_layout(p: &Oriented) -> &'static str {
    let a_k = k_fast(p.a.row_stride, p.a.col_stride, p.m, p.k);
    let b_k = k_fast(p.b.col_stride, p.b.row_stride, p.n, p.k);
    match (a_k, b_k) {
        (true, true) => "_anykk",
        (true, false) => "_anykn",
        (false, true) => "_anymk",
        (false, false) => "_anymn",
    }
}

/// Blocks of this tile that one multiprocessor runs at the same time; a block's shared memory comes with
/// 1 KB for the system.
fn resident(tile: &Tile, device: &DeviceFacts) -> u32 {
    let by_shared = device.shared_bytes_per_multiprocessor / (tile.shared_bytes(device) + 1024);
    tile.blocks.min(by_shared).min(device.threads_per_multiprocessor / tile.threads).max(1)
}

/// Clocks until the last tile is done. Each multiprocessor takes its share of the tiles in rounds of as many as fit,
/// and a last round that does not fill it runs slower.
fn estimate(tile: &Tile, p: &Oriented, products: u64, rate: Rate, device: &DeviceFacts) -> f64 {
    let (m, n) = (f64::from(tile.m), f64::from(tile.n));
    let count = (p.m as f64 / m).ceil() * (p.n as f64 / n).ceil();
    let each = (count * products as f64 / f64::from(device.multiprocessors)).ceil();
    let fit = f64::from(resident(tile, device));
    let (full, rest) = ((each / fit).floor(), each % fit);
    let round = |blocks: f64, share: f64| {
        FILL_CLOCKS + blocks * m * n * (p.k as f64 / rate.reached_by(share, m, n) + STORE_CLOCKS)
    };
    let last = if rest > 0.0 { round(rest, tile.together.min(tile.alone * rest)) } else { 0.0 };
    full * round(fit, tile.together) + last
}

/// What a kernel of square tiles by this name is launched with.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaunchShape {
    pub side: u32,
    pub threads: u32,
    pub shared_bytes: u32,
}

/// Of one of the names in the tables above.
pub(super) fn launch_shape(
    file: &'static str,
    tile: &str,
    by_elements: bool,
    dtype: DType,
    device: &DeviceFacts,
) -> LaunchShape {
    let tiles = match (file, by_elements, dtype) {
        ("matmul_mma", false, _) => &MMA_TILES[..],
        ("matmul_mma", true, _) => &MMA_ANY_TILES[..],
        (_, _, DType::F64) => &SIMT_F64_TILES[..],
        _ => &SIMT_TILES[..],
    };
    let tile = tiles.iter().find(|known| known.name == tile).unwrap_or(&tiles[0]);
    LaunchShape { side: tile.m, threads: tile.threads, shared_bytes: tile.shared_bytes(device) }
}

/// Blocks in x, and in y what x cannot count. More than both count are an error of the launch.
pub(super) fn grid(blocks: u64) -> [u32; 3] {
    let y = blocks.div_ceil(i32::MAX as u64).clamp(1, 65_535);
    [u32::try_from(blocks.div_ceil(y)).unwrap_or(u32::MAX), y as u32, 1]
}

/// Clocks until the last tile is done, were the operands at hand.
pub(super) fn computing(problem: &MatmulProblem, p: &Oriented, device: &DeviceFacts) -> f64 {
    choose(problem, p, Overrides::default(), device).computing
}

/// Clocks until the result is complete, the start of the kernel and memory considered.
pub(super) fn clocks(problem: &MatmulProblem, p: &Oriented, device: &DeviceFacts) -> f64 {
    let BlocksChoice { tile, computing, .. } = choose(problem, p, Overrides::default(), device);
    let along = |size: i64, tile: u32| (size as f64 / f64::from(tile)).ceil();
    let rows = (p.m as f64).min(f64::from(tile.m)) + (p.n as f64).min(f64::from(tile.n));
    let reading = Reading {
        blocks: along(p.m, tile.m) * along(p.n, tile.n) * products(problem) as f64,
        resident: resident(tile, device),
        bytes: rows * p.k as f64 * problem.dtype.size() as f64,
        in_flight: rows * f64::from(tile.ahead),
    };
    cost::clocks(problem, cost::reading_clocks(&reading, computing, device), device)
}
