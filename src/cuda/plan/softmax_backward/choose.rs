//! Which variant the rows of a gradient get, and why: by measurements on an H200 (docs/measurements/, a page a kernel).

use super::{
    BLOCK_THREADS, BLOCK_VECTORS, BUFFERED_VECTORS, INLINE_RANK, LONG_VECTORS, MAX_BLOCKS, RowShape,
    VECTOR_BYTES, Variant, buffered_bytes, general, largest_cluster, largest_row_cluster, misaligned_rows,
    pair_suffix, register_tile, row_shape, shared_bytes,
};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::limits::STATIC_SHARED;
use crate::cuda::plan::misaligned;
use crate::cuda::plan::reason::{Metric, Reason};
use crate::cuda::plan::softmax::Forced;
use crate::ops::softmax_backward::SoftmaxBackwardProblem;

/// Bytes of a row of each input that the registers of one warp hold.
const WARP_BYTES: u64 = 32 * 4 * VECTOR_BYTES;
/// Elements of a row from which shared memory is faster than tiles: docs/measurements/softmax_backward_smem.md.
const SMEM_FROM: u64 = 1024;
/// A block of softmax_backward_smem.cu: its most threads, accesses of the result that leave room for other blocks, and
/// its shared memory besides the row's, with the driver's.
const SMEM_THREADS: u64 = 256;
const SMEM_ACCESSES: u64 = 1600;

/// Batches of a thread that even out one vector more or less.
const MANY_BATCHES: u64 = 4;

impl Variant {
    /// The part of its kernels' names that tells it from the others.
    fn name(self) -> &'static str {
        match self {
            Variant::Warp { .. } => "warp",
            Variant::Cluster { .. } => "cluster",
            Variant::Buffered { .. } => "buffered",
            Variant::Long { .. } => "long",
            Variant::Split { .. } => "split",
            Variant::Misaligned(_) => misaligned::NAME,
            Variant::Smem { .. } => "smem",
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

/// No variant for register tiles.
pub fn choose(
    p: &SoftmaxBackwardProblem,
    device: &DeviceFacts,
    forced: Option<Forced>,
) -> (Option<Variant>, Reason) {
    let plain = |because| {
        let general = general(p);
        (Some(general), Reason::plain(general.name(), "the variants with vector loads", because))
    };
    if [&p.grad, &p.output, &p.out].iter().any(|t| !t.address.is_multiple_of(t.dtype.size())) {
        return plain("an operand is not aligned to its elements");
    }
    let tile = |because| (None, Reason::plain("register tile", "general", because));
    let columns = register_tile::columns(p).is_some();
    match row_shape(p) {
        // Rows of one element are read fastest as columns, in whole vectors.
        _ if columns && p.length == 1 => tile("rows of one element are contiguous"),
        Some(_) if pair_suffix(p).is_none() => {
            plain("no variant with vector loads converts between these dtypes")
        }
        Some(_) if p.rows.len() > INLINE_RANK => {
            plain("the rows have more dimensions than these variants take")
        }
        Some(shape) => {
            let (row, why) = choose_row(p, device, shape);
            let instead = row.map_or("", Variant::name);
            let asked = match forced {
                None => return in_shared_memory(p, device, instead).unwrap_or((row, why)),
                Some(Forced::Misaligned(stages)) => {
                    misaligned_rows(p).choose(device, Some(stages)).map(Variant::Misaligned)
                }
                Some(Forced::Smem(blocks)) if possible(blocks, device) => smem(p, device, blocks),
                Some(Forced::Cluster(blocks)) if possible(blocks, device) => {
                    let each = BLOCK_THREADS * BLOCK_VECTORS;
                    let cluster = cluster(shape.vectors, blocks);
                    let fits = shape.vectors <= blocks * each;
                    fits.then_some(cluster).or_else(|| buffered(shape.vectors, blocks, device))
                }
                Some(Forced::Online) => Some(long(shape.vectors, largest_cluster(device))),
                Some(Forced::Short) => misaligned_rows(p).thread_per_row().then_some(Variant::Short),
                Some(_) => None,
            };
            asked.map_or((row, why), |asked| (Some(asked), Reason::asked_for(asked.name(), instead)))
        }
        None if columns => tile("the columns are contiguous"),
        None if p.grad.dtype != p.out.dtype => {
            plain("rows whose elements are not contiguous are not converted")
        }
        None => {
            plain("neither elements of a row nor columns are contiguous in grad, output and result alike")
        }
    }
}

/// None where rows are so few and long that a cluster is faster.
fn in_shared_memory(
    p: &SoftmaxBackwardProblem,
    device: &DeviceFacts,
    instead: &'static str,
) -> Option<(Option<Variant>, Reason)> {
    let rows = misaligned_rows(p);
    let length = p.length.unsigned_abs();
    if rows.thread_per_row() && !rows.whole() {
        let because = "the rows are short and packed, and a thread holds one";
        let bytes = length * p.grad.dtype.size() as u64;
        return Some(Variant::Short.because(
            instead,
            because,
            [("bytes of a row", bytes), ("at most", misaligned::SHORT_ROW_BYTES)],
        ));
    }
    let few = p.row_count().unsigned_abs().saturating_mul(2) <= u64::from(device.multiprocessors);
    let long = length * p.grad.dtype.size() as u64 > WARP_BYTES;
    let smem = whole_row(p, device).filter(|_| device.has_clusters() && !few);
    if !rows.pays() || (few && long) {
        return None;
    }
    if let Some(smem) = smem.filter(|_| length >= SMEM_FROM) {
        let because =
            "grad, output and result are aligned differently, and shared memory can be read at any element";
        return Some(smem.because(
            misaligned::NAME,
            because,
            [("elements of a row", length), ("from", SMEM_FROM)],
        ));
    }
    rows.choose(device, None).map(|misaligned| (Some(Variant::Misaligned(misaligned)), rows.why(instead)))
}

/// In the shared memory of the smallest cluster that leaves room for other blocks, or else of the largest.
fn whole_row(p: &SoftmaxBackwardProblem, device: &DeviceFacts) -> Option<Variant> {
    let sizes = [1, 2, 4, 8, 16].into_iter().take_while(|&blocks| blocks <= largest_row_cluster(device));
    let fitting = sizes.filter_map(|blocks| smem(p, device, blocks));
    let small =
        |variant: &Variant| matches!(variant, Variant::Smem { accesses, .. } if *accesses <= SMEM_ACCESSES);
    fitting.clone().find(small).or_else(|| fitting.last())
}

/// A row in the shared memory of `blocks` blocks, if it fits.
fn smem(p: &SoftmaxBackwardProblem, device: &DeviceFacts, blocks: u64) -> Option<Variant> {
    let per_access = VECTOR_BYTES / p.out.dtype.size() as u64;
    // Even, so that they fill vectors of the inputs.
    let accesses = (p.length.unsigned_abs() / per_access).div_ceil(blocks).max(1).next_multiple_of(2);
    let threads = accesses.div_ceil(4).next_multiple_of(32).min(SMEM_THREADS);
    let fits = shared_bytes(p, accesses) + STATIC_SHARED <= u64::from(device.shared_bytes_per_block)
        && p.row_count().unsigned_abs().saturating_mul(blocks) <= MAX_BLOCKS;
    fits.then_some(Variant::Smem { threads, cluster: blocks, accesses })
}

fn possible(blocks: u64, device: &DeviceFacts) -> bool {
    blocks.is_power_of_two() && blocks <= largest_row_cluster(device)
}

/// A row in the registers of `blocks` blocks.
fn cluster(vectors: u64, blocks: u64) -> Variant {
    let threads = vectors.div_ceil(blocks * BLOCK_VECTORS).next_multiple_of(32).clamp(64, BLOCK_THREADS);
    Variant::Cluster { threads, cluster: blocks }
}

/// Blocks of 128 threads and more that read a row sooner than the fewest that hold it.
fn small_blocks(vectors: u64) -> u64 {
    match vectors {
        ..=1024 => 1,
        1025..=2048 => 4,
        2049..=8192 => 8,
        _ => 16,
    }
}

/// Whether nearly all threads have vectors, so that many rows have no less in flight.
fn is_filled(variant: Variant, vectors: u64) -> bool {
    matches!(variant, Variant::Cluster { threads, cluster } if 8 * vectors >= 7 * threads * cluster * BLOCK_VECTORS)
}

/// A row in the registers and the shared memory of `blocks` blocks, of which two share a multiprocessor, if it fits.
fn buffered(vectors: u64, blocks: u64, device: &DeviceFacts) -> Option<Variant> {
    let slice = vectors.div_ceil(blocks);
    let batches = slice.div_ceil(BLOCK_THREADS * BUFFERED_VECTORS);
    let threads = slice.div_ceil(batches * BUFFERED_VECTORS).next_multiple_of(32);
    let shared = buffered_bytes(threads, batches) + STATIC_SHARED;
    let room = device.shared_bytes_per_block.min(device.shared_bytes_per_multiprocessor / 2);
    (shared <= u64::from(room)).then_some(Variant::Buffered { threads, cluster: blocks, batches })
}

/// A row in the fewest blocks that have the room, and the batches of their threads, if these are many.
fn fewest_blocks(vectors: u64, device: &DeviceFacts) -> Option<(Variant, u64)> {
    let mut sizes = [2, 4, 8].into_iter().take_while(|&blocks| blocks <= largest_cluster(device));
    match sizes.find_map(|blocks| buffered(vectors, blocks, device))? {
        buffered @ Variant::Buffered { batches, .. } if batches >= MANY_BATCHES => Some((buffered, batches)),
        _ => None,
    }
}

fn choose_row(
    p: &SoftmaxBackwardProblem,
    device: &DeviceFacts,
    shape: RowShape,
) -> (Option<Variant>, Reason) {
    let vectors = shape.vectors;
    let rows = p.row_count().unsigned_abs();
    let (largest, widest) = (largest_cluster(device), largest_row_cluster(device));
    let multiprocessors = u64::from(device.multiprocessors);
    let block_vectors = BLOCK_THREADS * BLOCK_VECTORS;
    // Head and tail leave threads with unequal work.
    let odd = !misaligned_rows(p).whole() && rows > 2 * multiprocessors;
    let bytes =
        |most: u64| [("bytes of a row of grad", vectors * VECTOR_BYTES), ("at most", most * VECTOR_BYTES)];
    let warp = |vectors, rows, lane_bits| {
        let warp = Variant::Warp { vectors, rows, lane_bits };
        warp.because("cluster", "the registers of a warp hold a row", bytes(128))
    };
    if let Some((buffered, batches)) = fewest_blocks(vectors, device).filter(|_| odd) {
        let because = "head and tail give threads unequal work, which several batches each even out";
        let metrics = [("batches of a thread", batches), ("at least", MANY_BATCHES)];
        return buffered.because("cluster", because, metrics);
    }
    match vectors {
        0..=32 => warp(1, 2, vectors.next_power_of_two().trailing_zeros()),
        33..=64 => warp(2, 1, 5),
        65..=128 => warp(4, 1, 5),
        _ if vectors <= block_vectors * largest => {
            let least = cluster(vectors, vectors.div_ceil(block_vectors).next_power_of_two());
            let several = cluster(vectors, small_blocks(vectors).min(widest));
            let few = rows * 4 <= multiprocessors;
            let fills = vectors > block_vectors && !odd && is_filled(several, vectors);
            let cluster = if few || fills { several } else { least };
            cluster.because("long", "the registers of a cluster hold a row", bytes(block_vectors * largest))
        }
        _ => {
            let room = BLOCK_THREADS * BLOCK_VECTORS * widest;
            let few = rows * largest <= multiprocessors;
            // Other than few rows fill these registers, by two blocks or by three of fewer threads, or have more in flight
            // in shared memory.
            if vectors <= room && (few || vectors <= room / 8 * 5 || vectors > room - room / 16) {
                return cluster(vectors, widest).because(
                    "buffered",
                    "the registers of a cluster hold a row",
                    bytes(room),
                );
            }
            let block_vectors = BLOCK_THREADS * LONG_VECTORS;
            if few && vectors > block_vectors * largest {
                // Two slices for every multiprocessor, if there are as many full ones.
                let slices = vectors.div_ceil(block_vectors).min((2 * multiprocessors).div_ceil(rows));
                let batches = vectors.div_ceil(slices * block_vectors);
                let slices = vectors.div_ceil(batches * block_vectors);
                let split = Variant::Split { threads: BLOCK_THREADS, slices, batches };
                let blocks = [("blocks", rows * largest), ("multiprocessors", multiprocessors)];
                let because = "clusters of a row, or single blocks, would leave multiprocessors idle";
                return split.because("long", because, blocks);
            }
            let row = ("bytes of a row of grad", vectors * VECTOR_BYTES);
            let metrics =
                [row, ("that registers hold", BLOCK_THREADS * BLOCK_VECTORS * largest * VECTOR_BYTES)];
            let mut sizes = [largest, widest].into_iter().filter(|&blocks| blocks > 1);
            match sizes.find_map(|blocks| buffered(vectors, blocks, device)) {
                Some(buffered) => {
                    let because =
                        "registers and shared memory of a cluster hold a row, so that it is read once";
                    buffered.because("long", because, metrics)
                }
                None => long(vectors, largest).because("buffered", "no cluster holds a row", metrics),
            }
        }
    }
}

/// A row in batches of `blocks` blocks.
fn long(vectors: u64, blocks: u64) -> Variant {
    let threads = vectors.div_ceil(blocks * LONG_VECTORS).next_multiple_of(32).min(BLOCK_THREADS);
    let batches = vectors.div_ceil(blocks * LONG_VECTORS * threads);
    Variant::Long { threads, cluster: blocks, batches }
}
