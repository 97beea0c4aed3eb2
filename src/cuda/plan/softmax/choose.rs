//! Which variant a softmax gets.
//!
//! Measured on an H200 and kept where it was chosen then: warp, block, pipeline. Chosen where the kernels of that
//! time read x twice or left most of the device idle, and not yet measured: cluster, split, tile.

use super::rows::{RowShape, exchange_bytes, row_shape};
use super::tile::{self, Tile};
use super::{
    Forced, GRANULE, INLINE_RANK, MAX_THREADS, ONLINE_THREADS, STATIC_SHARED, STRIDED_THREADS, Variant,
    columns, pair_suffix,
};
use crate::cuda::device::DeviceFacts;
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
/// Shorter rows than this, in bytes, are done by one multiprocessor before a second launch would have begun.
const SPLIT_FROM: u64 = 256 << 10;

pub fn choose(p: &SoftmaxProblem, device: &DeviceFacts, forced: Option<Forced>) -> Variant {
    let general = Variant::General;
    let natural = p.x.address.is_multiple_of(p.x.dtype.size());
    if pair_suffix(p.x.dtype, p.out.dtype).is_none() || p.rows.len() > INLINE_RANK || !natural {
        return general;
    }
    match (row_shape(p), columns(p)) {
        // Rows of one element are best read as columns, in whole granules.
        (_, Some(_)) if p.length == 1 => choose_columns(p, device, forced),
        (Some(shape), _) => choose_row(p, device, shape, forced),
        (None, Some(_)) => choose_columns(p, device, forced),
        (None, None) => general,
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

/// Whether `blocks` that do not wait for others leave a good part of the device idle.
fn idle(blocks: u64, device: &DeviceFacts) -> bool {
    blocks < (u64::from(device.multiprocessors) * 3).div_ceil(4)
}

// ------------------------------------------------------------------------------------------------- rows

fn choose_row(p: &SoftmaxProblem, device: &DeviceFacts, shape: RowShape, forced: Option<Forced>) -> Variant {
    let granules = shape.granules;
    let rows = p.row_count().unsigned_abs();
    let one_block = alone(granules, rows, p.x.dtype, device);
    let wanted = match forced {
        Some(Forced::Warp(vectors)) => warp(granules, vectors),
        Some(Forced::Block) => block(granules, p.x.dtype),
        Some(Forced::Pipeline(stages)) => pipeline(granules, Some(stages), device),
        Some(Forced::Online) => Some(online(granules, rows, device)),
        Some(Forced::Cluster(blocks)) if blocks.is_power_of_two() && blocks <= largest_cluster(device) => {
            cluster(granules, blocks)
        }
        Some(Forced::Split(slices)) => Some(split(granules, slices.max(1))),
        _ => None,
    };
    if let Some(wanted) = wanted {
        return wanted;
    }
    let read_twice = matches!(one_block, Variant::Online { .. });
    let spread = spread(granules, rows, device);
    match one_block {
        Variant::Warp { .. } => one_block,
        _ if read_twice || (idle(rows, device) && granules * GRANULE >= SPREAD_FROM) => {
            let too_long = spread.is_none() && granules * GRANULE >= SPLIT_FROM;
            match spread {
                Some(spread) => spread,
                // Three blocks to a multiprocessor.
                None if too_long && idle(rows, device) => {
                    split(granules, (3 * u64::from(device.multiprocessors)).div_ceil(rows))
                }
                None => one_block,
            }
        }
        _ => one_block,
    }
}

/// Everything a row needs from one block, or less.
fn alone(granules: u64, rows: u64, dtype: DType, device: &DeviceFacts) -> Variant {
    match granules {
        0..=32 => {
            let lane_bits = granules.next_power_of_two().trailing_zeros();
            return Variant::Warp { vectors: 1, rows: 2, lane_bits };
        }
        33..=64 => return Variant::Warp { vectors: 2, rows: 1, lane_bits: 5 },
        65..=128 => return Variant::Warp { vectors: 4, rows: 1, lane_bits: 5 },
        _ => {}
    }
    let block = block(granules, dtype);
    match block {
        // Two blocks or more on a multiprocessor: one row loads while another is stored.
        Some(Variant::Block { threads }) if threads <= MAX_THREADS / 2 => Variant::Block { threads },
        _ => pipeline(granules, None, device).or(block).unwrap_or_else(|| online(granules, rows, device)),
    }
}

/// With 4 loads in flight per lane.
fn warp(granules: u64, vectors: u64) -> Option<Variant> {
    let lanes = granules.div_ceil(vectors.max(1)).next_power_of_two();
    let known = matches!(vectors, 1 | 2 | 4) && lanes <= 32;
    known.then(|| Variant::Warp { vectors, rows: 4 / vectors, lane_bits: lanes.trailing_zeros() })
}

fn block(granules: u64, dtype: DType) -> Option<Variant> {
    // 32 values of a half or float32 per thread, 8 of float64: what the registers hold.
    let vectors = if dtype == DType::F32 { 8 } else { 4 };
    let threads = granules.div_ceil(vectors).next_multiple_of(32).max(64);
    (threads <= MAX_THREADS).then_some(Variant::Block { threads })
}

/// As many blocks as shared memory holds rows, or with `stages` rows each; None where not one fits.
fn pipeline(granules: u64, stages: Option<u64>, device: &DeviceFacts) -> Option<Variant> {
    let shared = u64::from(device.shared_bytes_per_multiprocessor);
    let fits = u64::from(device.shared_bytes_per_block) - STATIC_SHARED;
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
    let fits = u64::from(device.shared_bytes_per_block) - STATIC_SHARED;
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

// ---------------------------------------------------------------------------------------------- columns

fn choose_columns(p: &SoftmaxProblem, device: &DeviceFacts, forced: Option<Forced>) -> Variant {
    let (largest, multiprocessors) = (largest_cluster(device), u64::from(device.multiprocessors));
    let wanted = match forced {
        Some(Forced::Column) => Some(choose_column(p, device)),
        Some(Forced::Cluster(blocks)) if blocks.is_power_of_two() && blocks <= largest => {
            tile::of_cluster(p, blocks, blocks).map(Variant::Tile)
        }
        Some(Forced::Split(slices)) => tile::of_slices(p, slices).map(Variant::Tile),
        _ => None,
    };
    if let Some(wanted) = wanted {
        return wanted;
    }
    let blocks = |tile: &Tile| tile.count(p).saturating_mul(tile.slices);
    let fitting = tile::of_cluster(p, 1, largest);
    if let Some(tile) = fitting.filter(|tile| !idle(blocks(tile), device)) {
        return Variant::Tile(tile);
    }
    // More blocks to a column, while each has rows for its threads.
    let widened = [2, 4, 8, 16].into_iter().filter(|&blocks| blocks <= largest);
    let worth_it = |tile: &Tile| tile.slice * tile.wide() * p.x.dtype.size() as u64 >= SPREAD_TO;
    let spread: Vec<Tile> =
        widened.filter_map(|blocks| tile::of_cluster(p, blocks, blocks)).filter(worth_it).collect();
    if let Some(&tile) = spread.iter().find(|tile| !idle(blocks(tile), device)).or(spread.last()) {
        return Variant::Tile(tile);
    }
    let elements = p.length.unsigned_abs().saturating_mul(p.row_count().unsigned_abs());
    let long = elements.saturating_mul(p.x.dtype.size() as u64) >= SPLIT_FROM;
    let split = || tile::of_slices(p, multiprocessors);
    match fitting {
        Some(tile) => Variant::Tile(tile),
        None if long && idle(tile::narrowest(p), device) => {
            split().map_or_else(|| choose_column(p, device), Variant::Tile)
        }
        None => choose_column(p, device),
    }
}

/// Two passes, for columns that fit nowhere.
fn choose_column(p: &SoftmaxProblem, device: &DeviceFacts) -> Variant {
    let lanes = GRANULE / p.x.dtype.size() as u64;
    let granules = columns(p).map_or(1, |(_, columns)| columns.div_ceil(lanes));
    let length = p.length.unsigned_abs();
    let budget = u64::from(device.shared_bytes_per_block)
        .min(u64::from(device.shared_bytes_per_multiprocessor) / 2 - STATIC_SHARED)
        - exchange_bytes(p);
    let slots = budget / (STRIDED_THREADS * GRANULE);
    // As wide as the rows' shared line of 128 bytes while all of it stays in shared memory; not below a
    // sector of 32 bytes; and not wider than there are columns.
    let widest = granules.next_power_of_two().trailing_zeros().min(3);
    let rounds = |lane_bits: u32| length.div_ceil(STRIDED_THREADS >> lane_bits);
    let lane_bits = (1..=widest).rev().find(|&bits| rounds(bits) <= slots).unwrap_or(widest.min(1));
    // Short rows: more columns, so that no thread is idle. Two threads at least share a column, because
    // the exchange has room for half of the threads.
    let down = length.next_power_of_two().clamp(2, STRIDED_THREADS);
    let spare = (STRIDED_THREADS / down).trailing_zeros();
    let lane_bits = lane_bits.max(spare.min(granules.next_power_of_two().trailing_zeros()));
    Variant::Column { lane_bits, slots: slots.min(rounds(lane_bits)) }
}
