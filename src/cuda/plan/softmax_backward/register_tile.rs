//! Contiguous columns: the register tiles of kernels/softmax_backward_strided.cu.

use super::params::BackwardTileParams;
use super::{INLINE_RANK, MAX_BLOCKS, VECTOR_BYTES, largest_cluster};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::column_slices::{self, MERGE_THREADS, Slices, THREADS};
use crate::cuda::plan::index;
use crate::cuda::plan::limits::{LINE_BYTES, SECTOR_BYTES};
use crate::cuda::plan::reason::{Metric, Reason};
use crate::cuda::plan::softmax::Forced;
use crate::cuda::plan::{Kernel, LaunchPlan, settings};
use crate::dtype::DType;
use crate::ops::Strided;
use crate::ops::softmax::Kind;
use crate::ops::softmax_backward::SoftmaxBackwardProblem;
use crate::tensor::Dims;

/// Bytes of grad from which a second launch pays where tiles are few, and where columns are long.
const SPLIT_FROM: u64 = 256 << 10;
const LONG_FROM: u64 = 16 << 20;
/// Blocks that share a multiprocessor: what most kernels are compiled for.
const BLOCKS: u64 = 2;

/// Contiguous columns, along the last of the outer dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    count: u64,
    /// Bytes of an access along a row, to which all rows are aligned.
    access: u64,
}

/// None if columns are not contiguous, or for a change of dtype.
pub fn columns(p: &SoftmaxBackwardProblem) -> Option<Columns> {
    let inner = p.rows.len().checked_sub(1)?;
    let operands = [(&p.grad, p.grad_stride), (&p.output, p.output_stride), (&p.out, p.out_stride)];
    let contiguous = operands.iter().all(|(t, _)| t.strides[inner] == 1);
    if !contiguous || inner > INLINE_RANK || p.grad.dtype != p.out.dtype {
        return None;
    }
    let size = p.grad.dtype.size() as u64;
    let count = p.rows[inner].unsigned_abs();
    let bits = |(t, step): &(&Strided, i64)| {
        let strides = t.strides[..inner].iter().chain([step]);
        strides.fold(t.address as u64, |bits, s| bits | s.unsigned_abs().wrapping_mul(size))
    };
    let all = operands.iter().fold(VECTOR_BYTES | (count * size), |all, operand| all | bits(operand));
    Some(Columns { count, access: 1 << all.trailing_zeros() })
}

/// The threads of a tile, and the blocks of a column.
#[derive(Clone, Copy, Debug)]
pub struct Split {
    slices: Slices,
    /// Whether the blocks of a column are a cluster (of one, if there is one); else there are two launches.
    cluster: bool,
    /// Of two launches.
    why: Option<Reason>,
}

/// The most rows of a batch in two launches: OF_SLICE in softmax_backward_strided.cu.
const OF_SLICE: u64 = 8;

/// Rows of a batch of a thread: K in softmax_backward_strided.cu.
fn batch_rows(access: u64) -> u64 {
    (32 / access).max(if access == VECTOR_BYTES { 8 } else { 4 })
}

pub fn split(
    p: &SoftmaxBackwardProblem,
    columns: Columns,
    device: &DeviceFacts,
    forced: Option<Forced>,
) -> Split {
    let (length, batch_rows) = (p.length.unsigned_abs(), batch_rows(columns.access));
    let accesses = columns.count * p.grad.dtype.size() as u64 / columns.access;
    let outer = p.row_count().unsigned_abs() / columns.count;
    let largest = largest_cluster(device);
    // A line wide; wider where columns are too short to keep all threads busy; narrower where registers then hold all
    // rows.
    let needed = length.div_ceil(batch_rows);
    let mut wide = (LINE_BYTES / columns.access).max(THREADS / needed.min(THREADS));
    while wide * columns.access > SECTOR_BYTES && length > batch_rows * (THREADS / wide) * largest {
        wide /= 2;
    }
    let tiles = accesses.div_ceil(wide);
    let across = accesses.div_ceil(tiles);
    let down = THREADS / across;
    // As few blocks as hold a column, but enough for every multiprocessor to have one.
    let idle = u64::from(device.multiprocessors) / (tiles * outer).max(1);
    let spread = idle.min(length.div_ceil(batch_rows * 2)).max(1);
    let cluster = length.div_ceil(batch_rows * down).max(spread).next_power_of_two().min(largest);
    let batches = length.div_ceil(batch_rows * down * cluster);
    let down = down.min(length.div_ceil(batch_rows * cluster * batches));
    let multiprocessors = u64::from(device.multiprocessors);
    let bytes = length.saturating_mul(columns.count * outer * p.grad.dtype.size() as u64);
    // Clusters leave a quarter of the device idle, and there are enough bytes for two launches.
    let few = tiles.saturating_mul(outer).saturating_mul(cluster * 4) < multiprocessors * 3;
    // Tiles of single sectors are slow to read, and either what the resident blocks read again would come from memory, or
    // the sums of log_softmax need grad alone: docs/measurements/softmax_backward_strided.md.
    let narrow = wide * columns.access <= SECTOR_BYTES;
    let resident = (multiprocessors * BLOCKS / cluster).min(tiles.saturating_mul(outer));
    let again = resident.saturating_mul(length.saturating_mul(2 * SECTOR_BYTES));
    let long = narrow && (p.kind == Kind::LogSoftmax || (batches > 1 && again > device.l2_bytes / 4));
    let of_columns = column_slices::Columns {
        outer,
        length,
        accesses,
        access_bytes: columns.access,
        elements: columns.access / p.grad.dtype.size() as u64,
        batch_rows: batch_rows.min(OF_SLICE),
    };
    let twice = |slices: Slices, why| Split { slices, cluster: false, why };
    match forced {
        Some(Forced::Split(slices)) => twice(of_columns.in_slices(slices), None),
        None if few && bytes >= SPLIT_FROM => {
            let because = "a block or cluster for each tile of columns would leave multiprocessors idle";
            let blocks = tiles.saturating_mul(outer).saturating_mul(cluster);
            let metrics = [("blocks", blocks), ("multiprocessors", multiprocessors)];
            twice(of_columns.slices(multiprocessors), Some(two_launches(because, metrics)))
        }
        None if long && bytes >= LONG_FROM => {
            let because = match p.kind {
                Kind::LogSoftmax => "the first reads grad alone, and both read wider rows",
                Kind::Softmax => "registers do not hold a column, which would be read twice in narrow rows",
            };
            let slices = of_columns.slices(multiprocessors);
            let metrics = [
                ("bytes of a row", slices.across * columns.access),
                ("of one launch", across * columns.access),
            ];
            twice(slices, Some(two_launches(because, metrics)))
        }
        _ => {
            let slices = Slices { across, down, batches, slices: cluster, tiles };
            Split { slices, cluster: true, why: None }
        }
    }
}

fn two_launches(because: &'static str, metrics: [Metric; 2]) -> Reason {
    Reason::new("two launches", "one launch", because, metrics)
}

/// Bytes for the sums of slices.
pub fn workspace(p: &SoftmaxBackwardProblem, columns: Columns, split: &Split) -> u64 {
    let Split { slices: Slices { across, slices, tiles, .. }, cluster, .. } = *split;
    let wide = across * columns.access / p.grad.dtype.size() as u64;
    let all = tiles * (p.row_count().unsigned_abs() / columns.count);
    if cluster { 0 } else { all * slices * wide * sum_bytes(p) }
}

/// Bytes of C in softmax_backward_strided.cu.
fn sum_bytes(p: &SoftmaxBackwardProblem) -> u64 {
    if p.out.dtype == DType::F64 { 8 } else { 4 }
}

pub fn plan(
    p: &SoftmaxBackwardProblem,
    columns: Columns,
    split: &Split,
    partials: usize,
    why: Reason,
) -> (Option<Kernel>, LaunchPlan<BackwardTileParams>) {
    let Split { slices: Slices { across, batches, slices, tiles, .. }, cluster, .. } = *split;
    let size = p.grad.dtype.size() as u64;
    let elements = columns.access / size;
    let wide = across * elements;
    let threads = split.slices.threads();
    let down = threads / across;
    let merge_threads = (threads / wide).clamp(1, MERGE_THREADS);
    let messages = if cluster { slices } else { 1 };
    let shared = messages * wide * 8 + (down * (wide | 1) + (merge_threads + 1) * wide) * sum_bytes(p);

    let inner = p.rows.len() - 1;
    let with_tiles = |dims: &[i64], last: u64| -> Dims {
        dims[..inner].iter().copied().chain([last.cast_signed()]).collect()
    };
    let shape = with_tiles(&p.rows, tiles);
    let [grad, output, out] = [&p.grad, &p.output, &p.out].map(|t| with_tiles(&t.strides, wide));
    let (dims, rank) = index::dims(&shape, [&grad, &output, &out]);
    let tiles = tiles * (p.row_count().unsigned_abs() / columns.count);
    let kernel = |role: &str| Kernel {
        file: "softmax_backward_strided",
        name: format!("softmax_backward_register_tile{elements}{role}_{}", p.out.dtype.suffix()),
    };
    let params = BackwardTileParams {
        grad: p.grad.address as u64,
        output: p.output.address as u64,
        out: p.out.address as u64,
        length: p.length.unsigned_abs(),
        columns: columns.count,
        tiles,
        grad_stride: p.grad_stride,
        output_stride: p.output_stride,
        out_stride: p.out_stride,
        across: across as u32,
        batches: batches as u32,
        merge_threads: merge_threads as u32,
        log: u32::from(p.kind == Kind::LogSoftmax),
        rank,
        slices: slices as u32,
        partials: if cluster { 0 } else { partials as u64 },
        dims,
    };
    let main = kernel(if cluster { "" } else { "_combine" });
    let blocks = (tiles.min(MAX_BLOCKS / slices) * slices) as u32;
    let blocks_of_column = if cluster { slices } else { 1 };
    let launch = LaunchPlan {
        cluster: blocks_of_column as u32,
        settings: settings([
            ("across", across),
            ("batches", batches),
            ("merge_threads", merge_threads),
            ("slices", slices),
            ("cluster", blocks_of_column),
        ]),
        why: [why].into_iter().chain(split.why).collect(),
        ..LaunchPlan::new(main, blocks, threads as u32, shared as u32, params)
    };
    ((!cluster).then(|| kernel("_partial")), launch)
}
