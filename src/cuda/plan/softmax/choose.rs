//! Which variant a softmax gets, and why.
//!
//! By what an H200 took for each, as the heads of the kernels say.

mod columns;

use self::columns::choose_columns;
use super::rows::{RowShape, row_shape};
use super::tile::Tile;
use super::{
    Forced, GRANULE, INLINE_RANK, MAX_THREADS, ONLINE_THREADS, STATIC_SHARED, Variant, columns, pair_suffix,
    ragged_rows,
};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::ragged;
use crate::cuda::plan::reason::{Figure, Reason};
use crate::dtype::DType;
use crate::ops::softmax::SoftmaxProblem;

/// V in softmax_cluster.cu: granules that a thread has in registers.
pub const CLUSTER_VECTORS: u64 = 8;
/// The most that its registers allow, and what lets several blocks share a multiprocessor.
pub const CLUSTER_THREADS: u64 = 512;
const SHARING_THREADS: u64 = 256;
/// Bytes of a row, or of a block's part of a tile, from which its time is that of moving it and not of meeting others.
const SPREAD_FROM: u64 = 32 << 10;
const SPREAD_TO: u64 = 8 << 10;
/// Granules of a row of halves from which a block of softmax.cu has too many threads to share its multiprocessor well.
const HALF_BLOCK: u64 = 1024;
/// Shorter rows than this, in bytes, are done by one multiprocessor before a second launch would have begun.
const SPLIT_FROM: u64 = 256 << 10;

/// A variant, and why it is that one.
pub type Chosen = (Variant, Reason);

impl Variant {
    /// The part of its kernels' names that tells it from the others.
    fn name(self) -> &'static str {
        match self {
            Variant::Warp { .. } => "warp",
            Variant::Block { .. } => "block",
            Variant::Ragged(_) => ragged::NAME,
            Variant::Pipeline { .. } => "pipeline",
            Variant::Online { .. } => "online",
            Variant::Cluster { .. } => "cluster",
            Variant::Split { .. } => "split",
            Variant::Tile(Tile { cluster: true, .. }) => "tile",
            Variant::Tile(_) => "split tile",
            Variant::Column { .. } => "column",
            Variant::General => "general",
        }
    }

    fn because(self, over: &'static str, because: &'static str, figures: [Figure; 2]) -> Chosen {
        (self, Reason::new(self.name(), over, because, figures))
    }
}

pub fn choose(p: &SoftmaxProblem, device: &DeviceFacts, forced: Option<Forced>) -> Chosen {
    let general = |because, figures: Option<[Figure; 2]>| {
        let over = Some("those that load 16 bytes at once");
        (Variant::General, Reason { chosen: Variant::General.name(), over, because, figures })
    };
    let past = (p.x.address % p.x.dtype.size()) as u64;
    if pair_suffix(p.x.dtype, p.out.dtype).is_none() {
        return general("they do not know this change of dtype", None);
    }
    if p.rows.len() > INLINE_RANK {
        let figures = [("dimensions of rows", p.rows.len() as u64), ("at most", INLINE_RANK as u64)];
        return general("there are more dimensions than they have room for", Some(figures));
    }
    if past != 0 {
        let figures = [("bytes past one", past), ("bytes of an element", p.x.dtype.size() as u64)];
        return general("x lies between boundaries of its elements", Some(figures));
    }
    match (row_shape(p), columns(p)) {
        // Rows of one element are best read as columns, in whole granules.
        (_, Some(_)) if p.length == 1 => choose_columns(p, device, forced),
        (Some(shape), _) => choose_row(p, device, shape, forced),
        (None, Some(_)) => choose_columns(p, device, forced),
        (None, None) => {
            let step = p.x_stride.unsigned_abs().max(p.out_stride.unsigned_abs());
            let figures = [("elements from one to the next of a row", step), ("for 16 bytes", 1)];
            general("neither a row's elements nor rows lie side by side", Some(figures))
        }
    }
}

/// The most blocks that a cluster may have; 1: there are no clusters. A part of a device (MIG) may have too few
/// multiprocessors side by side for 16.
fn largest_cluster(device: &DeviceFacts) -> u64 {
    match device.compute_capability.0 {
        0..9 => 1,
        9 | 10 if device.multiprocessors >= 100 => 16,
        _ => 8,
    }
}

/// Fewer blocks that do not wait for others leave a good part of the device idle.
fn enough(device: &DeviceFacts) -> u64 {
    (u64::from(device.multiprocessors) * 3).div_ceil(4)
}

fn idle(blocks: u64, device: &DeviceFacts) -> bool {
    blocks < enough(device)
}

fn choose_row(p: &SoftmaxProblem, device: &DeviceFacts, shape: RowShape, forced: Option<Forced>) -> Chosen {
    let granules = shape.granules;
    let rows = p.row_count().unsigned_abs();
    let wanted = match forced {
        Some(Forced::Warp(vectors)) => warp(granules, vectors),
        Some(Forced::Block) => block(granules, p.x.dtype),
        Some(Forced::Pipeline(stages)) => pipeline(granules, Some(stages), device),
        Some(Forced::Ragged(stages)) => ragged_rows(p).choose(device, Some(stages)).map(Variant::Ragged),
        Some(Forced::Online) => Some(online(granules, rows, device)),
        Some(Forced::Cluster(blocks)) if blocks.is_power_of_two() && blocks <= largest_cluster(device) => {
            cluster(granules, blocks)
        }
        Some(Forced::Split(slices)) => Some(split(granules, slices.max(1))),
        _ => None,
    };
    if let Some(wanted) = wanted {
        let own = choose_row(p, device, shape, None).0;
        return (wanted, Reason::asked_for(wanted.name(), own.name()));
    }
    let (one_block, why) = alone(granules, rows, p.x.dtype, device);
    let read_twice = matches!(one_block, Variant::Online { .. });
    let bytes = granules * GRANULE;
    let few = [("rows", rows), ("that would be enough", enough(device))];
    match one_block {
        Variant::Warp { .. } => in_tiles(p, device, one_block).unwrap_or((one_block, why)),
        _ if read_twice || (idle(rows, device) && bytes >= SPREAD_FROM) => {
            match spread(granules, rows, device) {
                Some(spread) if read_twice => {
                    let most = largest_cluster(device) * CLUSTER_THREADS * CLUSTER_VECTORS * GRANULE;
                    let figures = [("bytes of a row", bytes), ("of the largest cluster's registers", most)];
                    let because = "the registers of a cluster hold a row, so that it is read once";
                    spread.because(one_block.name(), because, figures)
                }
                Some(spread) => {
                    spread.because(one_block.name(), "one block a row would leave multiprocessors idle", few)
                }
                None if bytes >= SPLIT_FROM && idle(rows, device) => {
                    // Three blocks to a multiprocessor.
                    let slices = (3 * u64::from(device.multiprocessors)).div_ceil(rows);
                    let because =
                        "no cluster holds a row, and one block a row would leave multiprocessors idle";
                    split(granules, slices).because(one_block.name(), because, few)
                }
                None if read_twice && bytes >= SPLIT_FROM => {
                    let because = "no cluster holds a row, and there are rows for all multiprocessors";
                    one_block.because("split", because, few)
                }
                None => (one_block, why),
            }
        }
        // For halves a block of more than 256 threads holds half of what a block of softmax_cluster.cu does (H200, bf16
        // rows of 16384: 0.93 of a copy against 0.96; of 12672: 0.80 against 0.84).
        Variant::Block { .. } if clusters(device) && p.x.dtype.size() == 2 && granules > HALF_BLOCK => {
            let because = "fewer threads with more of the row each leave room for other rows";
            let figures = [("bytes of a row", bytes), ("from", HALF_BLOCK * GRANULE)];
            cluster(granules, 1).map_or((one_block, why), |alone| alone.because("block", because, figures))
        }
        // Not where results would have to be stored by elements: rows of 50257 bf16 at 0.69 of a copy, by pipeline 0.82.
        Variant::Pipeline { .. }
            if clusters(device) && shape.aligned_stores && p.length.unsigned_abs().is_multiple_of(8) =>
        {
            match spread(granules, rows, device) {
                Some(spread) => {
                    let because =
                        "registers hold the row and others load meanwhile; shared memory is passed twice";
                    let figures =
                        [("bytes of a row", bytes), ("that one block shares", sharing(p.x.dtype) * GRANULE)];
                    spread.because(one_block.name(), because, figures)
                }
                None => (one_block, why),
            }
        }
        Variant::Block { .. } => in_tiles(p, device, one_block).unwrap_or((one_block, why)),
        _ => (one_block, why),
    }
}

/// For rows that `instead` would move element by element, or nearly so.
fn in_tiles(p: &SoftmaxProblem, device: &DeviceFacts, instead: Variant) -> Option<Chosen> {
    let rows = ragged_rows(p);
    let ragged = Variant::Ragged(if rows.pays() { rows.choose(device, None) } else { None }?);
    Some((ragged, rows.why(instead.name())))
}

/// Everything a row needs from one block, or less.
fn alone(granules: u64, rows: u64, dtype: DType, device: &DeviceFacts) -> Chosen {
    let warp = match granules {
        0..=32 => {
            let lane_bits = granules.next_power_of_two().trailing_zeros();
            Some(Variant::Warp { vectors: 1, rows: 2, lane_bits })
        }
        33..=64 => Some(Variant::Warp { vectors: 2, rows: 1, lane_bits: 5 }),
        65..=128 => Some(Variant::Warp { vectors: 4, rows: 1, lane_bits: 5 }),
        _ => None,
    };
    if let Some(warp) = warp {
        let figures = [("bytes of a row", granules * GRANULE), ("at most", 128 * GRANULE)];
        return warp.because("block", "the registers of a warp hold a row", figures);
    }
    let sharing = sharing(dtype);
    let bytes = granules * GRANULE;
    match (block(granules, dtype), pipeline(granules, None, device)) {
        (Some(block), other) if granules <= sharing => {
            let over = other.map_or("online", Variant::name);
            let figures = [("bytes of a row", bytes), ("at most", sharing * GRANULE)];
            block.because(over, "the registers of a block hold a row, and have room for another's", figures)
        }
        (Some(_), Some(pipeline)) => {
            let figures = [("bytes of a row", bytes), ("that leave room for another", sharing * GRANULE)];
            let because = "a block with a row in registers would be alone on its multiprocessor";
            pipeline.because("block", because, figures)
        }
        (None, Some(pipeline)) => {
            let figures = [("bytes of a row", bytes), ("at most", shared_room(device))];
            pipeline.because("online", "shared memory holds a row, so that it is read once", figures)
        }
        (Some(block), None) => {
            let figures = [("bytes of a row", bytes), ("at most", 2 * sharing * GRANULE)];
            block.because("online", "the registers of a block hold a row, so that it is read once", figures)
        }
        (None, None) => {
            let figures = [("bytes of a row", bytes), ("of shared memory", shared_room(device))];
            online(granules, rows, device).because("pipeline", "no block holds a row", figures)
        }
    }
}

/// What a block may have of shared memory for rows.
fn shared_room(device: &DeviceFacts) -> u64 {
    u64::from(device.shared_bytes_per_block) - STATIC_SHARED
}

/// Granules of two blocks or more on a multiprocessor: one row loads while another is stored.
fn sharing(dtype: DType) -> u64 {
    MAX_THREADS / 2 * held(dtype)
}

fn clusters(device: &DeviceFacts) -> bool {
    largest_cluster(device) > 1
}

/// Granules that a thread of a block has in registers: 32 values of a half or float32, 8 of float64.
fn held(dtype: DType) -> u64 {
    if dtype == DType::F32 { 8 } else { 4 }
}

/// With 4 loads in flight per lane.
fn warp(granules: u64, vectors: u64) -> Option<Variant> {
    let lanes = granules.div_ceil(vectors.max(1)).next_power_of_two();
    let known = matches!(vectors, 1 | 2 | 4) && lanes <= 32;
    known.then(|| Variant::Warp { vectors, rows: 4 / vectors, lane_bits: lanes.trailing_zeros() })
}

fn block(granules: u64, dtype: DType) -> Option<Variant> {
    let threads = granules.div_ceil(held(dtype)).next_multiple_of(32).max(64);
    (threads <= MAX_THREADS).then_some(Variant::Block { threads })
}

/// As many blocks as shared memory holds rows, or with `stages` rows each; None where not one fits.
fn pipeline(granules: u64, stages: Option<u64>, device: &DeviceFacts) -> Option<Variant> {
    let shared = u64::from(device.shared_bytes_per_multiprocessor);
    let fits = shared_room(device);
    let threads = granules.div_ceil(8).next_multiple_of(32).clamp(256, MAX_THREADS);
    let slots = granules.div_ceil(threads);
    let stage = slots * threads * GRANULE;
    // Without asynchronous copies only where it is forced.
    let copies = device.compute_capability >= (8, 0) || stages.is_some();
    if granules * GRANULE > fits || stage > fits || !copies {
        return None;
    }
    let most = (fits / stage).clamp(1, 4);
    let wanted = stages.map(|stages| stages.clamp(1, most));
    let buffers = shared / (wanted.unwrap_or(1) * stage + STATIC_SHARED);
    let resident = u64::from(device.threads_per_multiprocessor) / threads;
    let blocks = buffers.min(resident).clamp(1, 4);
    let stages = wanted.unwrap_or_else(|| (fits.min(shared / blocks - STATIC_SHARED) / stage).clamp(1, 4));
    Some(Variant::Pipeline { threads, stages, slots, blocks_per_multiprocessor: blocks })
}

fn online(granules: u64, rows: u64, device: &DeviceFacts) -> Variant {
    let shared = u64::from(device.shared_bytes_per_multiprocessor);
    let fits = shared_room(device);
    // Two blocks share a multiprocessor, unless there are too few rows for that.
    let (threads, share) = match rows > u64::from(device.multiprocessors) {
        true => (ONLINE_THREADS, shared / 2),
        false => (MAX_THREADS, shared),
    };
    let slots = fits.min(share - STATIC_SHARED) / (threads * GRANULE);
    Variant::Online { threads, slots: slots.min(granules.div_ceil(threads)) }
}

/// A row in the registers of `blocks` blocks, if it fits.
fn cluster(granules: u64, blocks: u64) -> Option<Variant> {
    let threads = granules.div_ceil(CLUSTER_VECTORS * blocks).next_multiple_of(32);
    (threads <= CLUSTER_THREADS).then_some(Variant::Cluster { threads, blocks })
}

/// The smallest cluster whose blocks let others share their multiprocessor and, where rows are few, leave none
/// idle; but with work for 4 loads of every lane of a warp. Where there is none, the largest that will do.
fn spread(granules: u64, rows: u64, device: &DeviceFacts) -> Option<Variant> {
    let sizes = [2, 4, 8, 16].into_iter().take_while(|&blocks| blocks <= largest_cluster(device));
    let fits = |&blocks: &u64| cluster(granules, blocks).is_some();
    let worth_it = |&blocks: &u64| granules >= blocks * 128;
    let mut sizes: Vec<u64> = sizes.filter(fits).filter(worth_it).collect();
    let last = sizes.pop()?;
    let enough = |&&blocks: &&u64| {
        granules <= blocks * SHARING_THREADS * CLUSTER_VECTORS && !idle(rows.saturating_mul(blocks), device)
    };
    cluster(granules, sizes.iter().find(enough).copied().unwrap_or(last))
}

/// About `slices` slices; equally many chunks to each.
fn split(granules: u64, slices: u64) -> Variant {
    let per_chunk = SHARING_THREADS * CLUSTER_VECTORS;
    // A block adds up the partials of all slices: more than this would be slow.
    let chunks = granules.div_ceil(per_chunk).div_ceil(slices.min(1024)).max(1);
    Variant::Split { threads: SHARING_THREADS, slices: granules.div_ceil(per_chunk * chunks), chunks }
}
