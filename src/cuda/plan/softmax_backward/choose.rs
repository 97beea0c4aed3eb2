//! Which variant the rows of a gradient get, and why: by what an H200 took (docs/measurements/, a page a kernel).

use super::{
    BLOCK_THREADS, BLOCK_VECTORS, INLINE_RANK, LONG_VECTORS, MAX_BLOCKS, RowShape, VECTOR_BYTES, Variant,
    general, largest_cluster, misaligned_rows, pair_suffix, row_shape, staged_bytes, tile,
};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::misaligned;
use crate::cuda::plan::reason::{Metric, Reason};
use crate::cuda::plan::softmax::Forced;
use crate::ops::softmax_backward::SoftmaxBackwardProblem;

/// What the registers of one warp hold of a row.
const WARP_BYTES: u64 = 32 * 4 * VECTOR_BYTES;
/// Elements of a row from which it is better in shared memory than in tiles, and vectors of one with ends from which it is
/// better there than in the registers of a cluster: docs/measurements/softmax_backward_staged.md.
const STAGED_FROM: u64 = 1024;
const STAGED_ENDS: u64 = 4097;
/// Threads of a block of softmax_backward_staged.cu, accesses of the result to a block, and shared memory of it besides the
/// row's and what the driver reserves.
const STAGED_THREADS: u64 = 256;
const STAGED: u64 = 1600;
const STATIC_SHARED: u64 = 2048;

impl Variant {
    /// The part of its kernels' names that tells it from the others.
    fn name(self) -> &'static str {
        match self {
            Variant::Warp { .. } => "warp",
            Variant::Cluster { .. } => "cluster",
            Variant::Long { .. } => "long",
            Variant::Split { .. } => "split",
            Variant::Misaligned(_) => misaligned::NAME,
            Variant::Staged { .. } => "staged",
            Variant::Short => "short",
            Variant::General { .. } => "general",
        }
    }

    fn because(
        self,
        over: &'static str,
        because: &'static str,
        metrics: [Metric; 2],
    ) -> (Option<Variant>, Reason) {
        (Some(self), Reason::new(self.name(), over, because, metrics))
    }
}

/// No variant for what is best done in tiles of columns.
pub fn choose(
    p: &SoftmaxBackwardProblem,
    device: &DeviceFacts,
    forced: Option<Forced>,
) -> (Option<Variant>, Reason) {
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
        // Rows of one element are best read as columns, in whole vectors.
        _ if columns && p.length == 1 => tile("rows of one element lie side by side"),
        Some(_) if pair_suffix(p).is_none() => plain("they do not know this change of dtype"),
        Some(_) if p.rows.len() > INLINE_RANK => plain("there are more dimensions than they have room for"),
        Some(shape) => {
            let (row, why) = choose_row(p, device, shape);
            let instead = row.map_or("", Variant::name);
            let asked = match forced {
                None => return in_shared_memory(p, device, shape, instead).unwrap_or((row, why)),
                Some(Forced::Misaligned(stages)) => {
                    misaligned_rows(p).choose(device, Some(stages)).map(Variant::Misaligned)
                }
                Some(Forced::Staged(blocks))
                    if blocks.is_power_of_two() && blocks <= largest_cluster(device) =>
                {
                    staged(p, device, blocks)
                }
                Some(Forced::Short) => misaligned_rows(p).in_line().then_some(Variant::Short),
                Some(_) => None,
            };
            asked.map_or((row, why), |asked| (Some(asked), Reason::asked_for(asked.name(), instead)))
        }
        None if columns => tile("rows lie side by side"),
        None => plain("neither a row's elements nor rows lie side by side"),
    }
}

/// Not where rows are so few and long that the blocks of a cluster should share them.
fn in_shared_memory(
    p: &SoftmaxBackwardProblem,
    device: &DeviceFacts,
    shape: RowShape,
    instead: &'static str,
) -> Option<(Option<Variant>, Reason)> {
    let rows = misaligned_rows(p);
    let length = p.length.unsigned_abs();
    if rows.in_line() && !rows.whole() {
        let because = "rows of few elements lie one behind the other, and a thread has one";
        let bytes = length * p.grad.dtype.size() as u64;
        return Some(Variant::Short.because(instead, because, [("bytes of a row", bytes), ("at most", 132)]));
    }
    let few = p.row_count().unsigned_abs().saturating_mul(2) <= u64::from(device.multiprocessors);
    let long = length * p.grad.dtype.size() as u64 > WARP_BYTES;
    let staged = whole_row(p, device).filter(|_| device.has_clusters() && !few);
    let vectors = [("vectors of a row", shape.vectors), ("from", STAGED_ENDS)];
    if let Some(staged) = staged.filter(|_| rows.alike() && !rows.whole() && shape.vectors >= STAGED_ENDS) {
        let because = "its ends are single elements, and not all threads would have as many vectors";
        return Some(staged.because(instead, because, vectors));
    }
    if !rows.pays() || (few && long) {
        return None;
    }
    if let Some(staged) = staged.filter(|_| length >= STAGED_FROM) {
        let because = "grad, output and result lie otherwise, and shared memory can be read from anywhere";
        return Some(staged.because(
            misaligned::NAME,
            because,
            [("elements of a row", length), ("from", STAGED_FROM)],
        ));
    }
    rows.choose(device, None).map(|misaligned| (Some(Variant::Misaligned(misaligned)), rows.why(instead)))
}

/// In the shared memory of so many blocks that others have room beside each, or of the most.
fn whole_row(p: &SoftmaxBackwardProblem, device: &DeviceFacts) -> Option<Variant> {
    let sizes = [1, 2, 4, 8].into_iter().take_while(|&blocks| blocks <= largest_cluster(device));
    let held = sizes.filter_map(|blocks| staged(p, device, blocks));
    let small =
        |variant: &Variant| matches!(variant, Variant::Staged { accesses, .. } if *accesses <= STAGED);
    held.clone().find(small).or_else(|| held.last())
}

/// A row in the shared memory of `blocks` blocks, if it fits.
fn staged(p: &SoftmaxBackwardProblem, device: &DeviceFacts, blocks: u64) -> Option<Variant> {
    let per_access = VECTOR_BYTES / p.out.dtype.size() as u64;
    // Even: as many as fill vectors of the inputs.
    let accesses = (p.length.unsigned_abs() / per_access).div_ceil(blocks).max(1).next_multiple_of(2);
    let threads = accesses.div_ceil(4).next_multiple_of(32).min(STAGED_THREADS);
    let fits = staged_bytes(p, accesses) + STATIC_SHARED <= u64::from(device.shared_bytes_per_block)
        && p.row_count().unsigned_abs().saturating_mul(blocks) <= MAX_BLOCKS;
    fits.then_some(Variant::Staged { threads, cluster: blocks, accesses })
}

fn choose_row(
    p: &SoftmaxBackwardProblem,
    device: &DeviceFacts,
    shape: RowShape,
) -> (Option<Variant>, Reason) {
    let vectors = shape.vectors;
    let rows = p.row_count().unsigned_abs();
    let largest = largest_cluster(device);
    let held = BLOCK_THREADS * BLOCK_VECTORS;
    let bytes =
        |most: u64| [("bytes of a row of grad", vectors * VECTOR_BYTES), ("at most", most * VECTOR_BYTES)];
    let warp = |vectors, rows, lane_bits| {
        let warp = Variant::Warp { vectors, rows, lane_bits };
        warp.because("cluster", "the registers of a warp hold a row", bytes(128))
    };
    match vectors {
        0..=32 => warp(1, 2, vectors.next_power_of_two().trailing_zeros()),
        33..=64 => warp(2, 1, 5),
        65..=128 => warp(4, 1, 5),
        _ if vectors <= held * largest => {
            // As few blocks as hold the row, but as many as it takes for every multiprocessor to have one, and then
            // fewer vectors to each thread.
            let idle = u64::from(device.multiprocessors) / rows;
            let spread = 1 << idle.min(vectors.div_ceil(64)).max(1).ilog2();
            let cluster = vectors.div_ceil(held).next_power_of_two().max(spread).min(largest);
            let each = if idle > 1 { 1 } else { BLOCK_VECTORS };
            let threads = vectors.div_ceil(cluster * each).next_multiple_of(32).clamp(64, BLOCK_THREADS);
            let cluster = Variant::Cluster { threads, cluster };
            cluster.because("long", "the registers of a cluster hold a row", bytes(held * largest))
        }
        _ => {
            let held = BLOCK_THREADS * LONG_VECTORS;
            let multiprocessors = u64::from(device.multiprocessors);
            let blocks = [("blocks", rows * largest), ("multiprocessors", multiprocessors)];
            if rows * largest <= multiprocessors && vectors > held * largest {
                // Two slices for every multiprocessor, if there is that much to do.
                let slices = vectors.div_ceil(held).min((2 * multiprocessors).div_ceil(rows));
                let chunks = vectors.div_ceil(slices * held);
                let slices = vectors.div_ceil(chunks * held);
                let split = Variant::Split { threads: BLOCK_THREADS, slices, chunks };
                return split.because("long", "one cluster a row would leave multiprocessors idle", blocks);
            }
            let threads = vectors.div_ceil(largest * LONG_VECTORS).next_multiple_of(32).min(BLOCK_THREADS);
            let chunks = vectors.div_ceil(largest * LONG_VECTORS * threads);
            let long = Variant::Long { threads, cluster: largest, chunks };
            match vectors > held * largest {
                true => long.because("split", "there are rows for all multiprocessors", blocks),
                false => long.because("split", "a cluster reads a row in one go", bytes(held * largest)),
            }
        }
    }
}
