//! How the kernels of kernels/softmax_backward.cu and kernels/softmax_backward_strided.cu are launched.

mod params;
#[cfg(test)]
mod tests;
mod tile;

use params::{BackwardParams, BackwardTileParams};

use super::index;
use super::reason::{Figure, Reason};
use super::{Kernel, LaunchPlan};
use crate::cuda::device::DeviceFacts;
use crate::dtype::DType;
use crate::ops::Strided;
use crate::ops::softmax::Kind;
use crate::ops::softmax_backward::SoftmaxBackwardProblem;

/// Dimensions that every variant but `general` takes: INLINE_RANK in kernels/common/softmax.cuh.
const INLINE_RANK: usize = 4;
/// WARP_THREADS, BLOCK_THREADS, BLOCK_VECTORS and LONG_VECTORS in softmax_backward.cu.
const WARP_THREADS: u64 = 128;
const BLOCK_THREADS: u64 = 512;
const BLOCK_VECTORS: u64 = 4;
const LONG_VECTORS: u64 = 6;
/// GENERAL_THREADS in softmax_backward_strided.cu.
const GENERAL_THREADS: u64 = 256;
/// What every device with clusters takes.
const MAX_CLUSTER: u64 = 8;
const MAX_BLOCKS: u64 = i32::MAX as u64;
/// Bytes of a granule: one access.
const GRANULE: u64 = 16;

/// By the kernels' parameter struct.
#[expect(clippy::large_enum_variant, reason = "made once a call, and never on the heap")]
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// The kernel to be launched before, if any, with all else that the plan says.
    Rows(Option<Kernel>, LaunchPlan<BackwardParams>),
    Tiles(LaunchPlan<BackwardTileParams>),
}

/// The ways to do rows, with what is to be chosen for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// `vectors` granules per lane and row, `rows` rows at a time, 2^`lane_bits` lanes per row.
    Warp { vectors: u64, rows: u64, lane_bits: u32 },
    /// A row in the registers of a cluster of blocks.
    Cluster { threads: u64, cluster: u64 },
    /// The same, for rows of any length: `chunks` times what the registers hold.
    Long { threads: u64, cluster: u64, chunks: u64 },
    /// In two launches, with the sums of slices in memory between them.
    Split { threads: u64, slices: u64, chunks: u64 },
    /// Anything.
    General { threads: u64 },
}

impl Variant {
    /// The part of its kernels' names that tells it from the others.
    fn name(self) -> &'static str {
        match self {
            Variant::Warp { .. } => "warp",
            Variant::Cluster { .. } => "cluster",
            Variant::Long { .. } => "long",
            Variant::Split { .. } => "split",
            Variant::General { .. } => "general",
        }
    }

    fn because(
        self,
        over: &'static str,
        because: &'static str,
        figures: [Figure; 2],
    ) -> (Option<Variant>, Reason) {
        (Some(self), Reason::new(self.name(), over, because, figures))
    }
}

/// `partials` is the address of as much memory as `workspace` says.
pub fn plan(p: &SoftmaxBackwardProblem, device: &DeviceFacts, partials: usize) -> Plan {
    let (variant, why) = choose(p, device);
    match (variant, tile::columns(p)) {
        (None, Some(columns)) => Plan::Tiles(tile::plan(p, columns, device, why)),
        _ => plan_rows(p, variant.unwrap_or(general(p)), partials, why),
    }
}

/// Bytes for the sums of slices.
pub fn workspace(p: &SoftmaxBackwardProblem, device: &DeviceFacts) -> u64 {
    match choose(p, device).0 {
        Some(Variant::Split { slices, .. }) => p.row_count().unsigned_abs() * slices * 8,
        _ => 0,
    }
}

fn general(p: &SoftmaxBackwardProblem) -> Variant {
    Variant::General { threads: GENERAL_THREADS.min(p.length.unsigned_abs().next_multiple_of(32)) }
}

/// No variant for what is best done in tiles of columns.
fn choose(p: &SoftmaxBackwardProblem, device: &DeviceFacts) -> (Option<Variant>, Reason) {
    let plain = |because| {
        let general = general(p);
        (Some(general), Reason::plain(general.name(), "those that load 16 bytes at once", because))
    };
    if [&p.grad, &p.output, &p.out].iter().any(|t| !t.address.is_multiple_of(t.dtype.size())) {
        return plain("an operand lies between boundaries of its elements");
    }
    let tile = |because| (None, Reason::plain("tile", "general", because));
    let columns = tile::columns(p).is_some();
    match row_shape(p) {
        // Rows of one element are best read as columns, in whole granules.
        _ if columns && p.length == 1 => tile("rows of one element lie side by side"),
        Some(_) if pair_suffix(p).is_none() => plain("they do not know this change of dtype"),
        Some(_) if p.rows.len() > INLINE_RANK => plain("there are more dimensions than they have room for"),
        Some(shape) => choose_row(p, device, shape),
        None if columns => tile("rows lie side by side"),
        None => plain("neither a row's elements nor rows lie side by side"),
    }
}

/// The suffix of the fast variants' kernels; None for a rare pair of dtypes.
fn pair_suffix(p: &SoftmaxBackwardProblem) -> Option<String> {
    match (p.grad.dtype, p.out.dtype) {
        (a, b) if a == b => Some(a.suffix().into()),
        (DType::F32, DType::F16 | DType::BF16) => {
            Some(format!("{}_{}", p.grad.dtype.suffix(), p.out.dtype.suffix()))
        }
        _ => None,
    }
}

/// The most granules of grad that a row can touch, and whether output's and out's are aligned with them.
#[derive(Clone, Copy, Debug)]
struct RowShape {
    granules: u64,
    aligned_output: bool,
    aligned_stores: bool,
}

/// None if the elements of a row do not lie side by side.
fn row_shape(p: &SoftmaxBackwardProblem) -> Option<RowShape> {
    if p.length > 1 && (p.grad_stride, p.output_stride, p.out_stride) != (1, 1, 1) {
        return None;
    }
    let offset = |t: &Strided| (t.address / t.dtype.size()).cast_signed() as i64;
    let lanes = (GRANULE as usize / p.grad.dtype.size()).cast_signed() as i64;
    // Every `step` elements, an access of grad and one of `t` start together.
    let together = |t: &Strided, step: i64| {
        (offset(t) - offset(&p.grad)) % step == 0
            && t.strides.iter().zip(&p.grad.strides).all(|(a, b)| (a - b) % step == 0)
    };
    let store = lanes.min((GRANULE as usize / p.out.dtype.size()).cast_signed() as i64);
    let moves = p.grad.strides.iter().any(|s| s % lanes != 0);
    let padding = if moves { lanes - 1 } else { offset(&p.grad) % lanes };
    Some(RowShape {
        granules: (p.length + padding).unsigned_abs().div_ceil(lanes.unsigned_abs()),
        aligned_output: together(&p.output, lanes),
        aligned_stores: together(&p.out, store),
    })
}

/// The most blocks of a cluster: a power of two.
fn largest_cluster(device: &DeviceFacts) -> u64 {
    let multiprocessors = u64::from(device.multiprocessors.max(1));
    if device.compute_capability >= (9, 0) { MAX_CLUSTER.min(1 << multiprocessors.ilog2()) } else { 1 }
}

fn choose_row(
    p: &SoftmaxBackwardProblem,
    device: &DeviceFacts,
    shape: RowShape,
) -> (Option<Variant>, Reason) {
    let granules = shape.granules;
    let rows = p.row_count().unsigned_abs();
    let largest = largest_cluster(device);
    let held = BLOCK_THREADS * BLOCK_VECTORS;
    let bytes = |most: u64| [("bytes of a row of grad", granules * GRANULE), ("at most", most * GRANULE)];
    let warp = |vectors, rows, lane_bits| {
        let warp = Variant::Warp { vectors, rows, lane_bits };
        warp.because("cluster", "the registers of a warp hold a row", bytes(128))
    };
    match granules {
        0..=32 => warp(1, 2, granules.next_power_of_two().trailing_zeros()),
        33..=64 => warp(2, 1, 5),
        65..=128 => warp(4, 1, 5),
        _ if granules <= held * largest => {
            // As few blocks as hold the row, but as many as it takes for every multiprocessor to have one, and then
            // fewer granules to each thread.
            let idle = u64::from(device.multiprocessors) / rows;
            let spread = 1 << idle.min(granules.div_ceil(64)).max(1).ilog2();
            let cluster = granules.div_ceil(held).next_power_of_two().max(spread).min(largest);
            let vectors = if idle > 1 { 1 } else { BLOCK_VECTORS };
            let threads = granules.div_ceil(cluster * vectors).next_multiple_of(32).clamp(64, BLOCK_THREADS);
            let cluster = Variant::Cluster { threads, cluster };
            cluster.because("long", "the registers of a cluster hold a row", bytes(held * largest))
        }
        _ => {
            let held = BLOCK_THREADS * LONG_VECTORS;
            let multiprocessors = u64::from(device.multiprocessors);
            let blocks = [("blocks", rows * largest), ("multiprocessors", multiprocessors)];
            if rows * largest <= multiprocessors && granules > held * largest {
                // Two slices for every multiprocessor, if there is that much to do.
                let slices = granules.div_ceil(held).min((2 * multiprocessors).div_ceil(rows));
                let chunks = granules.div_ceil(slices * held);
                let slices = granules.div_ceil(chunks * held);
                let split = Variant::Split { threads: BLOCK_THREADS, slices, chunks };
                return split.because("long", "one cluster a row would leave multiprocessors idle", blocks);
            }
            let threads = granules.div_ceil(largest * LONG_VECTORS).next_multiple_of(32).min(BLOCK_THREADS);
            let chunks = granules.div_ceil(largest * LONG_VECTORS * threads);
            let long = Variant::Long { threads, cluster: largest, chunks };
            match granules > held * largest {
                true => long.because("split", "there are rows for all multiprocessors", blocks),
                false => long.because("split", "a cluster reads a row in one go", bytes(held * largest)),
            }
        }
    }
}

fn plan_rows(p: &SoftmaxBackwardProblem, variant: Variant, partials: usize, why: Reason) -> Plan {
    let rows = p.row_count().unsigned_abs();
    let shape = row_shape(p);
    let pair = pair_suffix(p).unwrap_or_default();
    let kernel = |file, name| Kernel { file, name: format!("softmax_backward_{name}") };
    let of_rows = |name: &str| kernel("softmax_backward", format!("{name}_{pair}"));
    let mut first = None;
    let (mut lane_bits, mut at_once, mut lanes) = (0, 1, 0);
    let (kernel, threads, slices, chunks) = match variant {
        Variant::Warp { vectors, rows, lane_bits: bits } => {
            (lane_bits, at_once, lanes) = (bits, (WARP_THREADS >> bits) * rows, 1 << bits);
            (of_rows(&format!("warp{vectors}x{rows}")), WARP_THREADS, 1, 1)
        }
        Variant::Cluster { threads, cluster } => (of_rows("cluster"), threads, cluster, 1),
        Variant::Long { threads, cluster, chunks } => (of_rows("long"), threads, cluster, chunks),
        Variant::Split { threads, slices, chunks } => {
            first = Some(of_rows("leave"));
            (of_rows("find"), threads, slices, chunks)
        }
        Variant::General { threads } => {
            let double = p.grad.dtype == DType::F64 || p.out.dtype == DType::F64;
            let arithmetic = if double { DType::F64 } else { DType::F32 };
            (kernel("softmax_backward_strided", format!("general_{}", arithmetic.suffix())), threads, 1, 1)
        }
    };
    let tiles = rows.div_ceil(at_once) * slices;
    let (dims, rank) = index::dims(&p.rows, [&p.grad.strides, &p.output.strides, &p.out.strides]);
    let launch = LaunchPlan {
        kernel,
        grid: [tiles.min(MAX_BLOCKS / slices * slices) as u32, 1, 1],
        block: [threads as u32, 1, 1],
        shared_bytes: 0,
        params: BackwardParams {
            grad: p.grad.address as u64,
            output: p.output.address as u64,
            out: p.out.address as u64,
            rows,
            length: p.length.unsigned_abs(),
            tiles,
            grad_stride: p.grad_stride,
            output_stride: p.output_stride,
            out_stride: p.out_stride,
            log: u32::from(p.kind == Kind::LogSoftmax),
            lane_bits,
            output_access: u32::from(shape.is_some_and(|s| s.aligned_output)),
            out_access: u32::from(shape.is_some_and(|s| s.aligned_stores)),
            in_tag: p.grad.dtype.tag(),
            out_tag: p.out.dtype.tag(),
            rank,
            slices: slices as u32,
            chunks,
            partials: if first.is_some() { partials as u64 } else { 0 },
            dims,
            cluster: if first.is_some() { 1 } else { slices },
            lanes,
        },
        why: [why].into(),
    };
    Plan::Rows(first, launch)
}
