//! Which variant a softmax gets, and why.
//!
//! The choices follow measurements on an H200: docs/measurements/, a page a kernel.

mod candidates;
mod columns;
mod long;
mod transposed;

#[cfg(test)]
pub use self::candidates::SPLIT_VECTORS;
use self::candidates::{
    block, cluster, grid, online, pipeline, register_vectors, shared_room, short, smem, split, warp,
};
use self::columns::choose_columns;
use self::long::{GRID_FROM, in_cluster, in_grid};
use self::transposed::choose_transposed;
use super::rows::{RowShape, row_shape};
use super::transposed::{Transposed, side};
use super::{Forced, INLINE_RANK, MAX_THREADS, VECTOR_BYTES, Variant, columns, misaligned_rows, pair_suffix};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::misaligned;
use crate::cuda::plan::reason::{Metric, Reason};
use crate::dtype::DType;
use crate::ops::softmax::SoftmaxProblem;

/// V in softmax_cluster.cu: vectors that a thread has in registers.
pub const CLUSTER_VECTORS: u64 = 8;
/// The most threads that its registers allow, and threads that let several blocks share a multiprocessor.
pub const CLUSTER_THREADS: u64 = 512;
const SHARING_THREADS: u64 = 256;
/// A row of SPREAD_FROM bytes or more is spread over blocks, as long as each has SPREAD_TO: from there on copies take longer
/// than the exchange.
const SPREAD_FROM: u64 = 32 << 10;
const SPREAD_TO: u64 = 8 << 10;
/// Elements of a row from which shared memory is faster than tiles, where x and result are aligned differently.
const SMEM_FROM: u64 = 1024;
/// Bytes of a row from which two launches are faster: one multiprocessor is done with less before the second begins.
const SPLIT_FROM: u64 = 256 << 10;

/// A variant, and why it is that one.
pub type Chosen = (Variant, Reason);

impl Variant {
    /// The part of its kernels' names that tells it from the others.
    fn name(self) -> &'static str {
        match self {
            Variant::Warp { .. } => "warp",
            Variant::Block { .. } => "block",
            Variant::Short { .. } => "short",
            Variant::Misaligned(_) => misaligned::NAME,
            Variant::Pipeline { .. } => "pipeline",
            Variant::Online { .. } => "online",
            Variant::Cluster { .. } => "cluster",
            Variant::Smem { .. } => "smem",
            Variant::Split { .. } => "split",
            Variant::Grid { .. } => "grid",
            Variant::ColumnTile(_) => "column tile",
            Variant::RegisterTile(_) => "register tile",
            Variant::SplitColumns(_) => "split columns",
            Variant::Transposed(Transposed { cluster: true, .. }) => "transposed",
            Variant::Transposed(_) => "split transposed",
            Variant::TransposedShort(_) => "transposed short",
            Variant::General => "general",
        }
    }

    fn because(self, over: &'static str, because: &'static str, metrics: [Metric; 2]) -> Chosen {
        (self, Reason::new(self.name(), over, because, metrics))
    }
}

pub fn choose(p: &SoftmaxProblem, device: &DeviceFacts, forced: Option<Forced>) -> Chosen {
    let general = |because, metrics: Option<[Metric; 2]>| {
        let over = Some("the variants with vector loads");
        (Variant::General, Reason { chosen: Variant::General.name(), over, because, metrics })
    };
    let past = (p.x.address % p.x.dtype.size()) as u64;
    if pair_suffix(p.x.dtype, p.out.dtype).is_none() {
        return general("no variant with vector loads converts between these dtypes", None);
    }
    if p.rows.len() > INLINE_RANK {
        let metrics = [("dimensions of rows", p.rows.len() as u64), ("at most", INLINE_RANK as u64)];
        return general("the rows have more dimensions than these variants take", Some(metrics));
    }
    if past != 0 {
        let metrics = [("bytes of misalignment", past), ("bytes of an element", p.x.dtype.size() as u64)];
        return general("x is not aligned to its elements", Some(metrics));
    }
    let columns = columns(p).map(|_| choose_columns(p, device, forced));
    match (row_shape(p), columns) {
        // Rows of one element are read fastest as columns, in whole vectors.
        (_, Some(Some(chosen))) if p.length == 1 => chosen,
        (Some(shape), _) => choose_row(p, device, shape, forced),
        (None, Some(Some(chosen))) => chosen,
        (None, Some(None)) => general("the result is not aligned to its elements", None),
        (None, None) => {
            if let Some(chosen) = side(p).and_then(|side| choose_transposed(p, side, device, forced)) {
                return chosen;
            }
            let step = p.x_stride.unsigned_abs().max(p.out_stride.unsigned_abs());
            let metrics = [("stride along a row", step), ("for vector loads", 1)];
            let because =
                "elements of a row, or enough rows, would have to be contiguous in x and in the result";
            general(because, Some(metrics))
        }
    }
}

/// Blocks that occupy three quarters of the multiprocessors.
fn enough(device: &DeviceFacts) -> u64 {
    (u64::from(device.multiprocessors) * 3).div_ceil(4)
}

fn idle(blocks: u64, device: &DeviceFacts) -> bool {
    blocks < enough(device)
}

fn choose_row(p: &SoftmaxProblem, device: &DeviceFacts, shape: RowShape, forced: Option<Forced>) -> Chosen {
    let vectors = shape.vectors;
    let rows = p.row_count().unsigned_abs();
    let wanted = match forced {
        Some(Forced::Warp(vectors)) => warp(shape, vectors),
        Some(Forced::Block) => block(shape, p.x.dtype),
        Some(Forced::Short) => short(p),
        Some(Forced::Pipeline(stages)) => pipeline(vectors, Some(stages), device),
        Some(Forced::Misaligned(stages)) => {
            misaligned_rows(p).choose(device, Some(stages)).map(Variant::Misaligned)
        }
        Some(Forced::Online) => Some(online(vectors, rows, device)),
        Some(Forced::Cluster(blocks)) if possible(blocks, device) => cluster(vectors, rows, blocks),
        Some(Forced::Smem(blocks)) if possible(blocks, device) => smem(shape, rows, blocks, false, device),
        Some(Forced::Split(slices)) => Some(split(vectors, slices.max(1))),
        Some(Forced::Grid(slices)) => grid(p, shape, slices, device),
        _ => None,
    };
    if let Some(wanted) = wanted {
        let own = choose_row(p, device, shape, None).0;
        return (wanted, Reason::asked_for(wanted.name(), own.name()));
    }
    let (one_block, why) = in_one_block(shape, rows, p.x.dtype, device);
    let read_twice = matches!(one_block, Variant::Online { .. });
    let bytes = vectors * VECTOR_BYTES;
    let few = [("rows", rows), ("that would be enough", enough(device))];
    let few_long = idle(rows, device) && bytes >= SPREAD_FROM;
    if let Some(grid) = in_grid(p, shape, device).filter(|_| few_long) {
        let over =
            if cluster(vectors, rows, device.largest_cluster()).is_some() { "cluster" } else { "split" };
        let because = "the registers and shared memory of all multiprocessors hold the rows, or most of them";
        return grid.because(over, because, [("bytes of a row", bytes), ("above", GRID_FROM * VECTOR_BYTES)]);
    }
    match one_block {
        Variant::Warp { .. } => in_tiles(p, device, shape, one_block).unwrap_or((one_block, why)),
        _ if read_twice || few_long => {
            match in_cluster(shape, rows, p.x.dtype, few_long, device) {
                Some(cluster) if read_twice => {
                    let because = "a cluster holds a row, so that it is read once";
                    let metrics = [("bytes of a row", bytes), ("of shared memory", shared_room(device))];
                    cluster.because(one_block.name(), because, metrics)
                }
                Some(cluster) => {
                    cluster.because(one_block.name(), "one block a row would leave multiprocessors idle", few)
                }
                None if bytes >= SPLIT_FROM && idle(rows, device) => {
                    // Two blocks to a multiprocessor, all in one wave.
                    let slices = 2 * u64::from(device.multiprocessors) / rows;
                    let because =
                        "no cluster holds a row, and one block a row would leave multiprocessors idle";
                    split(vectors, slices).because(one_block.name(), because, few)
                }
                None if read_twice && bytes >= SPLIT_FROM => {
                    let because = "no cluster holds a row, and there are rows for all multiprocessors";
                    one_block.because("split", because, few)
                }
                None => (one_block, why),
            }
        }
        Variant::Block { threads } if device.has_clusters() && threads > SHARING_THREADS => {
            let because = "fewer threads with more vectors each leave room for other rows";
            let metrics = [("threads of a block", threads), ("that leave room", SHARING_THREADS)];
            match in_cluster(shape, rows, p.x.dtype, false, device) {
                Some(cluster) => cluster.because("block", because, metrics),
                None => (one_block, why),
            }
        }
        Variant::Pipeline { .. } if device.has_clusters() => {
            let because = "other rows load while one is computed, and no barrier of a block stops them";
            let metrics =
                [("bytes of a row", bytes), ("that one block shares", sharing(p.x.dtype) * VECTOR_BYTES)];
            match in_cluster(shape, rows, p.x.dtype, false, device) {
                Some(cluster) => cluster.because(one_block.name(), because, metrics),
                None => (one_block, why),
            }
        }
        Variant::Block { .. } => in_tiles(p, device, shape, one_block).unwrap_or((one_block, why)),
        _ => (one_block, why),
    }
}

/// For rows that begin or end within a vector, if threads would have few elements each, or would store them one by one.
fn in_tiles(p: &SoftmaxProblem, device: &DeviceFacts, shape: RowShape, instead: Variant) -> Option<Chosen> {
    let rows = misaligned_rows(p);
    if let Some(short) = short(p).filter(|_| !rows.whole()) {
        let because = "the rows are short and packed, and a thread holds one";
        let bytes = p.length.unsigned_abs() * p.x.dtype.size() as u64;
        return Some(short.because(
            instead.name(),
            because,
            [("bytes of a row", bytes), ("at most", misaligned::SHORT_ROW_BYTES)],
        ));
    }
    if !rows.pays() {
        return None;
    }
    let (length, count) = (p.length.unsigned_abs(), p.row_count().unsigned_abs());
    let smem = smem(shape, count, 1, false, device);
    if let Some(smem) = smem.filter(|_| device.has_clusters() && length >= SMEM_FROM) {
        let because = "x and result are aligned differently, and shared memory can be read at any element";
        let metrics = [("elements of a row", length), ("from", SMEM_FROM)];
        return Some(smem.because(misaligned::NAME, because, metrics));
    }
    let misaligned = Variant::Misaligned(rows.choose(device, None)?);
    Some((misaligned, rows.why(instead.name())))
}

/// A row in one block, or in less.
fn in_one_block(shape: RowShape, rows: u64, dtype: DType, device: &DeviceFacts) -> Chosen {
    let RowShape { vectors, whole, .. } = shape;
    let per_lane = match whole {
        0..=3 => 1,
        4..=64 => 2,
        _ => 4,
    };
    if let Some(warp) = warp(shape, per_lane) {
        let metrics = [("bytes of a row", whole * VECTOR_BYTES), ("at most", 128 * VECTOR_BYTES)];
        return warp.because("block", "the registers of a warp hold a row", metrics);
    }
    let sharing = sharing(dtype);
    let bytes = vectors * VECTOR_BYTES;
    match (block(shape, dtype), pipeline(vectors, None, device)) {
        (Some(block), other) if whole <= sharing => {
            let over = other.map_or("online", Variant::name);
            let metrics = [("bytes of a row", whole * VECTOR_BYTES), ("at most", sharing * VECTOR_BYTES)];
            block.because(over, "the registers of a block hold a row, and have room for another's", metrics)
        }
        (Some(_), Some(pipeline)) => {
            let metrics =
                [("bytes of a row", bytes), ("that leave room for another", sharing * VECTOR_BYTES)];
            let because = "a block with a row in registers would be alone on its multiprocessor";
            pipeline.because("block", because, metrics)
        }
        (None, Some(pipeline)) => {
            let metrics = [("bytes of a row", bytes), ("at most", shared_room(device))];
            pipeline.because("online", "a row fits in shared memory, so that it is read once", metrics)
        }
        (Some(block), None) => {
            let metrics = [("bytes of a row", whole * VECTOR_BYTES), ("at most", 2 * sharing * VECTOR_BYTES)];
            block.because("online", "the registers of a block hold a row, so that it is read once", metrics)
        }
        (None, None) => {
            let metrics = [("bytes of a row", bytes), ("of shared memory", shared_room(device))];
            online(vectors, rows, device).because("pipeline", "no block holds a row", metrics)
        }
    }
}

/// Vectors of a block that leaves registers for another on its multiprocessor: one row loads while another is stored.
fn sharing(dtype: DType) -> u64 {
    MAX_THREADS / 2 * register_vectors(dtype)
}

fn possible(blocks: u64, device: &DeviceFacts) -> bool {
    blocks.is_power_of_two() && blocks <= device.largest_cluster()
}
