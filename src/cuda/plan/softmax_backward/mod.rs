//! How the kernels of kernels/softmax_backward*.cu are launched.

mod choose;
mod params;
mod register_tile;
#[cfg(test)]
mod tests;

use self::params::BackwardParams;
use super::index;
use super::limits::{INLINE_RANK, MAX_BLOCKS, VECTOR_BYTES};
use super::misaligned::{self, Misaligned, MisalignedRows};
use super::reason::Reason;
use super::softmax::Forced;
use super::{Bases, Choice, Kernel, LaunchPlan, settings};
use crate::cuda::device::DeviceFacts;
use crate::dtype::DType;
use crate::ops::Strided;
use crate::ops::softmax::Kind;
use crate::ops::softmax_backward::SoftmaxBackwardProblem;

/// WARP_THREADS, BLOCK_THREADS, BLOCK_VECTORS, BUFFERED_VECTORS and LONG_VECTORS in softmax_backward.cu.
const WARP_THREADS: u64 = 128;
const BLOCK_THREADS: u64 = 512;
const BLOCK_VECTORS: u64 = 4;
const BUFFERED_VECTORS: u64 = 2;
const LONG_VECTORS: u64 = 6;
/// GENERAL_THREADS in softmax_backward_strided.cu.
const GENERAL_THREADS: u64 = 256;
/// The most blocks of a cluster: every device with clusters allows it.
const MAX_CLUSTER: u64 = 8;
/// The same of rows that no 8 blocks hold: the kernels' exchange buffers have room for it.
const MAX_ROW_CLUSTER: u64 = 16;

/// The variants of rows, with their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// `vectors` vectors per lane and row, `rows` rows at a time, 2^`lane_bits` lanes per row.
    Warp { vectors: u64, rows: u64, lane_bits: u32 },
    /// A row in the registers of a cluster of blocks.
    Cluster { threads: u64, cluster: u64 },
    /// The same, of `batches` batches, of which the last is in registers and the others are in shared memory.
    Buffered { threads: u64, cluster: u64, batches: u64 },
    /// The same, for rows of any length, in `batches` batches that fit the registers.
    Long { threads: u64, cluster: u64, batches: u64 },
    /// In two launches, with the sums of slices in the workspace between them.
    Split { threads: u64, slices: u64, batches: u64 },
    /// Tiles of misaligned rows, through shared memory.
    Misaligned(Misaligned<3>),
    /// A row in the shared memory of a cluster of blocks, `accesses` accesses of the result to each.
    Smem { threads: u64, cluster: u64, accesses: u64 },
    /// Rows of contiguous tensors, one to a thread.
    Short,
    /// Anything.
    General { threads: u64 },
}

/// Of the variants that a developer may force, `Misaligned`, `Smem`, `Short`, `Cluster`, `Online` and, for columns, `Split`
/// have an effect here; any other excludes the first three.
pub fn choose(problem: &SoftmaxBackwardProblem, device: &DeviceFacts, forced: Option<Forced>) -> Choice {
    let (p, bases) = Bases::of(problem);
    let (variant, why) = choose::choose(&p, device, forced);
    match (variant, register_tile::columns(&p)) {
        (None, Some(columns)) => {
            let split = register_tile::split(&p, columns, device, forced);
            let (first, launch) = register_tile::plan(&p, columns, &split, bases.workspace(), why);
            Choice::of_two(first, &launch, &bases)
                .with_workspace(register_tile::workspace(&p, columns, &split))
        }
        (Some(Variant::Misaligned(misaligned)), _) => {
            let pair = pair_suffix(&p).unwrap_or_default();
            let name = format!("softmax_backward_misaligned{}_{pair}", misaligned.values);
            let kernel = Kernel { file: "softmax_backward_misaligned", name };
            let log = p.kind == Kind::LogSoftmax;
            Choice::of(&misaligned_rows(&p).plan(device, misaligned, kernel, log, Some(why)), &bases)
        }
        _ => {
            let variant = variant.unwrap_or(general(&p));
            let (first, launch) = plan_rows(&p, variant, bases.workspace(), why);
            // For the sums of slices.
            let workspace = match variant {
                Variant::Split { slices, .. } => p.row_count().unsigned_abs() * slices * 8,
                _ => 0,
            };
            Choice::of_two(first, &launch, &bases).with_workspace(workspace)
        }
    }
}

fn general(p: &SoftmaxBackwardProblem) -> Variant {
    Variant::General { threads: GENERAL_THREADS.min(p.length.unsigned_abs().next_multiple_of(32)) }
}

/// The suffix of the fast variants' kernels; None for a rare pair of dtypes, whose softmax has no fast variant either.
fn pair_suffix(p: &SoftmaxBackwardProblem) -> Option<String> {
    match (p.grad.dtype, p.out.dtype) {
        (a, b) if a == b => Some(a.suffix().into()),
        (DType::F32, DType::F16 | DType::BF16) => Some(format!("f32_{}", p.out.dtype.suffix())),
        _ => None,
    }
}

/// For rows of contiguous elements.
fn misaligned_rows(p: &SoftmaxBackwardProblem) -> MisalignedRows<'_, 3> {
    // The V of EXPORT in softmax_backward_misaligned.cu.
    let values = match p.grad.dtype {
        DType::F32 => [8, 16],
        _ => [16, 32],
    };
    let operands = [&p.grad, &p.output, &p.out];
    MisalignedRows { length: p.length.unsigned_abs(), rows: &p.rows, operands, values }
}

/// The most vectors of grad that a row can touch, and whether output and out are aligned like grad.
#[derive(Clone, Copy, Debug)]
struct RowShape {
    vectors: u64,
    aligned_output: bool,
    aligned_stores: bool,
}

/// None if the elements of a row are not contiguous.
fn row_shape(p: &SoftmaxBackwardProblem) -> Option<RowShape> {
    if p.length > 1 && (p.grad_stride, p.output_stride, p.out_stride) != (1, 1, 1) {
        return None;
    }
    let offset = |t: &Strided| (t.address / t.dtype.size()).cast_signed() as i64;
    let lanes = (VECTOR_BYTES as usize / p.grad.dtype.size()).cast_signed() as i64;
    // Every `step` elements, an access of grad and one of `t` start together.
    let aligned_alike = |t: &Strided, step: i64| {
        (offset(t) - offset(&p.grad)) % step == 0
            && t.strides.iter().zip(&p.grad.strides).all(|(a, b)| (a - b) % step == 0)
    };
    let store = lanes.min((VECTOR_BYTES as usize / p.out.dtype.size()).cast_signed() as i64);
    let moves = p.grad.strides.iter().any(|s| s % lanes != 0);
    let padding = if moves { lanes - 1 } else { offset(&p.grad) % lanes };
    Some(RowShape {
        vectors: (p.length + padding).unsigned_abs().div_ceil(lanes.unsigned_abs()),
        aligned_output: aligned_alike(&p.output, lanes),
        aligned_stores: aligned_alike(&p.out, store),
    })
}

/// Shared memory for both inputs of `accesses` accesses of the result.
fn shared_bytes(p: &SoftmaxBackwardProblem, accesses: u64) -> u64 {
    2 * VECTOR_BYTES * (accesses * p.grad.dtype.size() as u64 / p.out.dtype.size() as u64 + 1)
}

/// The most blocks of a cluster: a power of two.
fn largest_cluster(device: &DeviceFacts) -> u64 {
    largest_row_cluster(device).min(MAX_CLUSTER)
}

fn largest_row_cluster(device: &DeviceFacts) -> u64 {
    let multiprocessors = u64::from(device.multiprocessors.max(1));
    device.largest_cluster().min(MAX_ROW_CLUSTER).min(1 << multiprocessors.ilog2())
}

/// Shared memory of a block for all its batches but the last.
fn buffered_bytes(threads: u64, batches: u64) -> u64 {
    2 * VECTOR_BYTES * BUFFERED_VECTORS * threads * (batches - 1)
}

/// The launch of rows, and the kernel of a launch before it, if any.
fn plan_rows(
    p: &SoftmaxBackwardProblem,
    variant: Variant,
    partials: usize,
    why: Reason,
) -> (Option<Kernel>, LaunchPlan<BackwardParams>) {
    let rows = p.row_count().unsigned_abs();
    let shape = row_shape(p);
    let pair = pair_suffix(p).unwrap_or_default();
    let kernel = |file, name| Kernel { file, name: format!("softmax_backward_{name}") };
    let of_rows = |name: &str| kernel("softmax_backward", format!("{name}_{pair}"));
    let mut first = None;
    let (mut lane_bits, mut at_once, mut lanes, mut accesses, mut shared_bytes) = (0, 1, 0, 0, 0);
    let (kernel, threads, slices, slice_size) = match variant {
        Variant::Warp { vectors, rows, lane_bits: bits } => {
            (lane_bits, at_once, lanes) = (bits, (WARP_THREADS >> bits) * rows, 1 << bits);
            (of_rows(&format!("warp{vectors}x{rows}")), WARP_THREADS, 1, 1)
        }
        Variant::Cluster { threads, cluster } => (of_rows("cluster"), threads, cluster, 1),
        Variant::Buffered { threads, cluster, batches } => {
            shared_bytes = buffered_bytes(threads, batches);
            (of_rows("buffered"), threads, cluster, batches)
        }
        Variant::Long { threads, cluster, batches } => (of_rows("long"), threads, cluster, batches),
        Variant::Split { threads, slices, batches } => {
            first = Some(of_rows("partial"));
            (of_rows("combine"), threads, slices, batches)
        }
        Variant::Smem { threads, cluster, accesses: of_block } => {
            (accesses, shared_bytes) = (of_block, self::shared_bytes(p, of_block));
            (kernel("softmax_backward_smem", format!("smem_{pair}")), threads, cluster, of_block)
        }
        Variant::Short => {
            at_once = misaligned::SHORT_THREADS;
            shared_bytes = 2 * at_once * p.length.unsigned_abs() * p.grad.dtype.size() as u64;
            (kernel("softmax_backward_short", format!("short_{pair}")), at_once, 1, 1)
        }
        // Misaligned rows have a kernel and parameters of their own.
        Variant::Misaligned(Misaligned { threads, .. }) | Variant::General { threads } => {
            let double = p.grad.dtype == DType::F64 || p.out.dtype == DType::F64;
            let arithmetic = if double { DType::F64 } else { DType::F32 };
            (kernel("softmax_backward_strided", format!("general_{}", arithmetic.suffix())), threads, 1, 1)
        }
    };
    let tiles = rows.div_ceil(at_once) * slices;
    let (dims, rank) = index::dims(&p.rows, [&p.grad.strides, &p.output.strides, &p.out.strides]);
    let params = BackwardParams {
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
        slice_size,
        partials: if first.is_some() { partials as u64 } else { 0 },
        dims,
    };
    let cluster = if first.is_some() { 1 } else { slices };
    // Settings of 1 are not shown.
    let several = |count: u64| if count > 1 { count } else { 0 };
    let launch = LaunchPlan {
        cluster: cluster as u32,
        settings: settings([
            ("lanes", lanes),
            ("accesses", several(accesses)),
            ("slices", if cluster == 1 { several(slices) } else { 0 }),
            ("batches", if accesses == 0 { several(slice_size) } else { 0 }),
            ("cluster", several(cluster)),
        ]),
        why: [why].into(),
        ..LaunchPlan::new(
            kernel,
            tiles.min(MAX_BLOCKS / slices * slices) as u32,
            threads as u32,
            shared_bytes as u32,
            params,
        )
    };
    (first, launch)
}
