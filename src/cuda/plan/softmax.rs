//! How the kernels of kernels/softmax.cu and kernels/softmax_strided.cu are launched.

use std::mem::offset_of;

use super::index::{self, Dim, MAX_RANK};
use super::{Kernel, KernelParams, LaunchPlan};
use crate::cuda::device::DeviceFacts;
use crate::dtype::DType;
use crate::ops::softmax::{Kind, SoftmaxProblem};

/// Dimensions that every variant but `general` takes: INLINE_RANK in kernels/common/softmax.cuh.
const INLINE_RANK: usize = 4;
/// WARP_THREADS in softmax.cu.
const WARP_THREADS: u64 = 128;
/// THREADS in softmax_strided.cu.
const STRIDED_THREADS: u64 = 256;
const ONLINE_THREADS: u64 = 512;
const MAX_THREADS: u64 = 1024;
const MAX_BLOCKS: u64 = i32::MAX as u64;
/// Bytes of a granule: one access.
const GRANULE: u64 = 16;
/// Shared memory that a block has besides its dynamic part: the scratch of its reductions, and what the
/// driver reserves.
const STATIC_SHARED: u64 = 2048;

/// `SoftmaxParams` of kernels/common/softmax.cuh, with all of its dimensions; a kernel takes the part that
/// it declares.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftmaxParams {
    x: u64,
    out: u64,
    rows: u64,
    length: u64,
    columns: u64,
    tiles: u64,
    x_stride: i64,
    out_stride: i64,
    log: u32,
    lane_bits: u32,
    stages: u32,
    slots: u32,
    x_access: u32,
    out_access: u32,
    x_tag: u32,
    out_tag: u32,
    rank: u32,
    unused: u32,
    dims: [Dim<2>; MAX_RANK],
}

// The same numbers are asserted in softmax.cuh.
const _: () = assert!(offset_of!(SoftmaxParams, dims) == 104);
const _: () = assert!(size_of::<SoftmaxParams>() == 104 + 40 * MAX_RANK && size_of::<SoftmaxParams>() < 4096);

// SAFETY: repr(C) integers without padding, in the order and of the types of softmax.cuh's
// SoftmaxParams<MAX_RANK>; size and the offset of the last field are asserted here and there.
unsafe impl KernelParams for SoftmaxParams {
    fn settings(&self) -> Vec<(&'static str, u64)> {
        let (lanes, stages, slots) = (1 << self.lane_bits, u64::from(self.stages), u64::from(self.slots));
        [("lanes", lanes), ("stages", stages), ("slots", slots)].into_iter().filter(|s| s.1 > 0).collect()
    }
}

/// The ways to do a softmax, with what is to be chosen for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// `vectors` granules per lane and row, `rows` rows at a time, 2^`lane_bits` lanes per row.
    Warp { vectors: u64, rows: u64, lane_bits: u32 },
    /// A row in the registers of one block.
    Block { threads: u64 },
    /// Rows in the shared memory of persistent blocks.
    Pipeline { threads: u64, stages: u64, slots: u64, blocks_per_multiprocessor: u64 },
    /// A row of any length, of which `slots` granules per thread stay in shared memory.
    Online { threads: u64, slots: u64 },
    /// Side-by-side rows, 2^`lane_bits` granules of them to a block.
    Column { lane_bits: u32, slots: u64 },
    /// Anything.
    General { threads: u64 },
}

pub fn plan(problem: &SoftmaxProblem, device: &DeviceFacts) -> LaunchPlan<SoftmaxParams> {
    plan_variant(problem, device, choose(problem, device))
}

/// The most granules of x that a row can touch, and whether the stores of its whole granules are aligned.
#[derive(Clone, Copy, Debug)]
struct RowShape {
    granules: u64,
    aligned_stores: bool,
}

/// The suffix of the fast variants' kernels; None for a rare pair of dtypes.
fn pair_suffix(x: DType, out: DType) -> Option<String> {
    match (x, out) {
        (a, b) if a == b => Some(a.suffix().into()),
        (DType::F16 | DType::BF16, DType::F32) => Some(format!("{}_{}", x.suffix(), out.suffix())),
        _ => None,
    }
}

/// Where rows can start, relative to 16-byte boundaries. None if the elements of a row do not lie side by
/// side.
fn row_shape(p: &SoftmaxProblem) -> Option<RowShape> {
    if p.length > 1 && (p.x_stride != 1 || p.out_stride != 1) {
        return None;
    }
    let (x_size, out_size) = (p.x.dtype.size() as i64, p.out.dtype.size() as i64);
    let lanes = GRANULE as i64 / x_size;
    let x_offset = p.x.address as i64 % GRANULE as i64 / x_size;
    let out_offset = p.out.address as i64 / out_size;
    let moves = |strides: &[i64]| strides.iter().any(|s| s % lanes != 0);
    let padding = if moves(&p.x.strides) { lanes - 1 } else { x_offset };
    // A store writes the results of one granule, at most 16 bytes at a time; it starts where the granule does.
    let store = lanes.min(GRANULE as i64 / out_size);
    let aligned_stores = p.out.address.is_multiple_of(p.out.dtype.size())
        && (out_offset - x_offset) % store == 0
        && p.x.strides.iter().zip(&p.out.strides).all(|(x, out)| (out - x) % store == 0);
    let granules = (p.length + padding).unsigned_abs().div_ceil(lanes.unsigned_abs());
    Some(RowShape { granules, aligned_stores })
}

/// The outer dimensions and the number of side-by-side rows, if that is how the rows lie.
fn columns(p: &SoftmaxProblem) -> Option<(usize, u64)> {
    let inner = p.rows.len().checked_sub(1)?;
    (p.x.strides[inner] == 1 && p.out.strides[inner] == 1).then(|| (inner, p.rows[inner].unsigned_abs()))
}

fn choose(p: &SoftmaxProblem, device: &DeviceFacts) -> Variant {
    let general =
        Variant::General { threads: STRIDED_THREADS.min(p.length.unsigned_abs().next_multiple_of(32)) };
    let natural = p.x.address.is_multiple_of(p.x.dtype.size());
    if pair_suffix(p.x.dtype, p.out.dtype).is_none() || p.rows.len() > INLINE_RANK || !natural {
        return general;
    }
    match (row_shape(p), columns(p)) {
        // Rows of one element are best read as columns, in whole granules.
        (_, Some(_)) if p.length == 1 => choose_column(p, device),
        (Some(shape), _) => choose_row(p, device, shape),
        (None, Some(_)) => choose_column(p, device),
        (None, None) => general,
    }
}

fn choose_row(p: &SoftmaxProblem, device: &DeviceFacts, shape: RowShape) -> Variant {
    let granules = shape.granules;
    let rows = p.row_count().unsigned_abs();
    let multiprocessors = u64::from(device.multiprocessors);
    // 32 values of a half or float32 per thread, 8 of float64: what the registers hold.
    let vectors = if p.x.dtype == DType::F32 { 8 } else { 4 };
    let block_threads = granules.div_ceil(vectors).next_multiple_of(32).max(64);
    let shared = u64::from(device.shared_bytes_per_multiprocessor);
    let fits = u64::from(device.shared_bytes_per_block) - STATIC_SHARED;

    match granules {
        0..=32 => {
            let lane_bits = granules.next_power_of_two().trailing_zeros();
            Variant::Warp { vectors: 1, rows: 2, lane_bits }
        }
        33..=64 => Variant::Warp { vectors: 2, rows: 1, lane_bits: 5 },
        65..=128 => Variant::Warp { vectors: 4, rows: 1, lane_bits: 5 },
        // Two blocks or more on a multiprocessor: one row loads while another is stored.
        _ if block_threads <= MAX_THREADS / 2 => Variant::Block { threads: block_threads },
        _ if granules * GRANULE <= fits && device.compute_capability >= (8, 0) => {
            let threads = (granules.div_ceil(8)).next_multiple_of(32).clamp(256, MAX_THREADS);
            let slots = granules.div_ceil(threads);
            let stage = slots * threads * GRANULE;
            let buffers = (shared / (stage + STATIC_SHARED)).max(1);
            let resident = u64::from(device.threads_per_multiprocessor) / threads;
            let blocks = buffers.min(resident).clamp(1, 4);
            let stages = (fits.min(shared / blocks - STATIC_SHARED) / stage).clamp(1, 4);
            Variant::Pipeline { threads, stages, slots, blocks_per_multiprocessor: blocks }
        }
        _ if block_threads <= MAX_THREADS => Variant::Block { threads: block_threads },
        _ => {
            // Two blocks share a multiprocessor, unless there are too few rows for that.
            let (threads, share) = match rows > multiprocessors {
                true => (ONLINE_THREADS, shared / 2),
                false => (MAX_THREADS, shared),
            };
            let slots = fits.min(share - STATIC_SHARED) / (threads * GRANULE);
            Variant::Online { threads, slots: slots.min(granules.div_ceil(threads)) }
        }
    }
}

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

/// Shared memory in which the threads of a column exchange their partial results.
fn exchange_bytes(p: &SoftmaxProblem) -> u64 {
    let per_thread = GRANULE / p.x.dtype.size() as u64;
    let partial = if p.out.dtype == DType::F64 { 16 } else { 8 };
    STRIDED_THREADS / 2 * per_thread * partial
}

/// Bytes, up to 16, to which every granule of columns is aligned.
fn column_access(address: usize, dtype: DType, strides: &[i64], step: i64) -> u32 {
    let size = dtype.size() as u64;
    let bits = strides
        .iter()
        .chain([&step])
        .fold(address as u64 | GRANULE, |bits, s| bits | (s.unsigned_abs() * size));
    1 << bits.trailing_zeros()
}

/// The plan under a given variant, for comparing them. The variant must be able to do the problem.
pub fn plan_variant(p: &SoftmaxProblem, device: &DeviceFacts, variant: Variant) -> LaunchPlan<SoftmaxParams> {
    let rows = p.row_count().unsigned_abs();
    let length = p.length.unsigned_abs();
    let multiprocessors = u64::from(device.multiprocessors);
    let pair = pair_suffix(p.x.dtype, p.out.dtype).unwrap_or_default();
    let aligned_stores = row_shape(p).is_some_and(|s| s.aligned_stores);

    let mut outer = p.rows.len();
    let mut params = SoftmaxParams {
        x: p.x.address as u64,
        out: p.out.address as u64,
        rows,
        length,
        columns: 0,
        tiles: rows,
        x_stride: p.x_stride,
        out_stride: p.out_stride,
        log: u32::from(p.kind == Kind::LogSoftmax),
        lane_bits: 0,
        stages: 0,
        slots: 0,
        x_access: 0,
        out_access: u32::from(aligned_stores),
        x_tag: p.x.dtype.tag(),
        out_tag: p.out.dtype.tag(),
        rank: 1,
        unused: 0,
        dims: index::dims(&[], [&[], &[]]).0,
    };
    let (name, threads, blocks, shared) = match variant {
        Variant::Warp { vectors, rows: at_once, lane_bits } => {
            params.lane_bits = lane_bits;
            params.tiles = rows.div_ceil((WARP_THREADS >> lane_bits) * at_once);
            (format!("warp{vectors}x{at_once}_{pair}"), WARP_THREADS, params.tiles, 0)
        }
        Variant::Block { threads } => (format!("block_{pair}"), threads, rows, 0),
        Variant::Pipeline { threads, stages, slots, blocks_per_multiprocessor } => {
            params.stages = stages as u32;
            params.slots = slots as u32;
            let blocks = rows.min(multiprocessors * blocks_per_multiprocessor);
            (format!("pipeline_{pair}"), threads, blocks, stages * slots * threads * GRANULE)
        }
        Variant::Online { threads, slots } => {
            params.slots = slots as u32;
            (format!("online_{pair}"), threads, rows, slots * threads * GRANULE)
        }
        Variant::Column { lane_bits, slots } => {
            let (inner, columns) = columns(p).unwrap_or((outer, 1));
            let per_block = (GRANULE / p.x.dtype.size() as u64) << lane_bits;
            outer = inner;
            params.columns = columns;
            params.rows = rows / columns;
            params.lane_bits = lane_bits;
            params.slots = slots as u32;
            params.tiles = params.rows * columns.div_ceil(per_block);
            params.x_access = column_access(p.x.address, p.x.dtype, &p.x.strides[..inner], p.x_stride);
            params.out_access =
                column_access(p.out.address, p.out.dtype, &p.out.strides[..inner], p.out_stride);
            let shared = slots * STRIDED_THREADS * GRANULE + exchange_bytes(p);
            (format!("column_{pair}"), STRIDED_THREADS, params.tiles, shared)
        }
        Variant::General { threads } => {
            let arithmetic = if p.out.dtype == DType::F64 { DType::F64 } else { DType::F32 };
            (format!("general_{}", arithmetic.suffix()), threads, rows, 0)
        }
    };
    let file = match variant {
        Variant::Column { .. } | Variant::General { .. } => "softmax_strided",
        _ => "softmax",
    };
    (params.dims, params.rank) =
        index::dims(&p.rows[..outer], [&p.x.strides[..outer], &p.out.strides[..outer]]);
    LaunchPlan {
        kernel: Kernel { file, name: format!("softmax_{name}") },
        grid: [blocks.min(MAX_BLOCKS) as u32, 1, 1],
        block: [threads as u32, 1, 1],
        shared_bytes: shared as u32,
        params,
    }
}

#[cfg(test)]
mod tests;
