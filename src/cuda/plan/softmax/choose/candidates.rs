//! The variants that a row of contiguous elements can have, each with its best parameters, or None where it does not
//! fit.

use super::{CLUSTER_THREADS, CLUSTER_VECTORS, SHARING_THREADS};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::softmax::rows::RowShape;
use crate::cuda::plan::softmax::{
    MAX_BLOCKS, MAX_THREADS, ONLINE_THREADS, STATIC_SHARED, VECTOR_BYTES, Variant, misaligned_rows,
};
use crate::dtype::DType;
use crate::ops::softmax::SoftmaxProblem;

/// The W of EXPORT in softmax_short.cu.
const WORDS: [u64; 3] = [9, 17, 33];
/// Static shared memory of a block of softmax_smem.cu, with the share that the driver reserves.
const SMEM_STATIC: u64 = 6 << 10;
/// Vectors per thread that make the fixed work of a row small, and where rows are too few to keep the device busy.
const SMEM_VECTORS: [u64; 2] = [8, 4];
/// Vectors of a line of memory.
const LINE: u64 = 8;
/// SPLIT_V of softmax_cluster.cu, and threads of its two launches: SPLIT_THREADS, or fewer where slices are short.
pub const SPLIT_VECTORS: u64 = 4;
const SPLIT_THREADS: [u64; 2] = [128, 384];

/// BATCH in softmax_grid.cu, and its batches in registers where a thread has more than one: REGISTER_BATCHES of EXPORT.
const GRID_BATCH: u64 = 4;
fn register_batches(dtype: DType) -> u64 {
    if dtype == DType::F64 { 2 } else { 3 }
}

/// Shared memory of a block that rows may occupy.
pub fn shared_room(device: &DeviceFacts) -> u64 {
    u64::from(device.shared_bytes_per_block) - STATIC_SHARED
}

/// Vectors that a thread of a block has in registers: 32 values of a half or float32, 8 of float64.
pub fn register_vectors(dtype: DType) -> u64 {
    if dtype == DType::F32 { 8 } else { 4 }
}

/// Each element of head and tail has a lane, too.
pub fn warp(shape: RowShape, vectors: u64) -> Option<Variant> {
    let rows = match vectors {
        1 => 2,
        2 | 4 => 1,
        _ => return None,
    };
    let lanes = shape.whole.div_ceil(vectors).max(shape.head_and_tail).next_power_of_two();
    (lanes <= 32).then(|| Variant::Warp { vectors, rows, lane_bits: lanes.trailing_zeros() })
}

/// For packed rows of few elements.
pub fn short(p: &SoftmaxProblem) -> Option<Variant> {
    let touched = (p.length.unsigned_abs() * p.x.dtype.size() as u64).div_ceil(4);
    let words = WORDS.into_iter().find(|&words| touched <= words)?;
    misaligned_rows(p).thread_per_row().then_some(Variant::Short { words })
}

pub fn block(shape: RowShape, dtype: DType) -> Option<Variant> {
    let threads = shape.whole.div_ceil(register_vectors(dtype)).next_multiple_of(32).max(32);
    (threads <= MAX_THREADS).then_some(Variant::Block { threads })
}

/// As many blocks as shared memory holds rows, or with `stages` rows each; None where not one fits.
pub fn pipeline(vectors: u64, stages: Option<u64>, device: &DeviceFacts) -> Option<Variant> {
    let shared = u64::from(device.shared_bytes_per_multiprocessor);
    let fits = shared_room(device);
    let threads = vectors.div_ceil(8).next_multiple_of(32).clamp(256, MAX_THREADS);
    let vectors_per_thread = vectors.div_ceil(threads);
    let stage = vectors_per_thread * threads * VECTOR_BYTES;
    // Without asynchronous copies only where it is forced.
    let copies = device.compute_capability >= (8, 0) || stages.is_some();
    if vectors * VECTOR_BYTES > fits || stage > fits || !copies {
        return None;
    }
    let most = (fits / stage).clamp(1, 4);
    let wanted = stages.map(|stages| stages.clamp(1, most));
    let buffers = shared / (wanted.unwrap_or(1) * stage + STATIC_SHARED);
    let resident = u64::from(device.threads_per_multiprocessor) / threads;
    let blocks = buffers.min(resident).clamp(1, 4);
    let stages = wanted.unwrap_or_else(|| (fits.min(shared / blocks - STATIC_SHARED) / stage).clamp(1, 4));
    Some(Variant::Pipeline { threads, stages, vectors_per_thread, blocks_per_multiprocessor: blocks })
}

pub fn online(vectors: u64, rows: u64, device: &DeviceFacts) -> Variant {
    let shared = u64::from(device.shared_bytes_per_multiprocessor);
    let fits = shared_room(device);
    // Two blocks share a multiprocessor, unless there are too few rows for that.
    let (threads, per_block) = match rows > u64::from(device.multiprocessors) {
        true => (ONLINE_THREADS, shared / 2),
        false => (MAX_THREADS, shared),
    };
    let vectors_per_thread = fits.min(per_block - STATIC_SHARED) / (threads * VECTOR_BYTES);
    Variant::Online { threads, vectors_per_thread: vectors_per_thread.min(vectors.div_ceil(threads)) }
}

/// A row in the registers of `blocks` blocks, if it fits.
pub fn cluster(vectors: u64, rows: u64, blocks: u64) -> Option<Variant> {
    let threads = vectors.div_ceil(CLUSTER_VECTORS * blocks).next_multiple_of(32);
    let fits = threads <= CLUSTER_THREADS && rows.saturating_mul(blocks) <= MAX_BLOCKS;
    fits.then_some(Variant::Cluster { threads, blocks })
}

/// A row in the shared memory of `blocks` blocks, if it fits. `few`: rows leave multiprocessors without other blocks.
pub fn smem(shape: RowShape, rows: u64, blocks: u64, few: bool, device: &DeviceFacts) -> Option<Variant> {
    let slice = shape.whole.div_ceil(blocks).max(1);
    let vectors_per_thread = |threads: u64| slice.div_ceil(threads).next_multiple_of(2);
    let (most, enough) =
        if few { (CLUSTER_THREADS, SMEM_VECTORS[1]) } else { (SHARING_THREADS, SMEM_VECTORS[0]) };
    let large =
        (2..=most / 32).map(|warps| warps * 32).filter(|&threads| vectors_per_thread(threads) >= enough);
    // The least shared memory that no vector fills, and then the most threads.
    let threads =
        large.min_by_key(|&threads| (threads * vectors_per_thread(threads), most - threads)).unwrap_or(32);
    let shared = threads * vectors_per_thread(threads) * VECTOR_BYTES + SMEM_STATIC;
    let fits =
        shared <= u64::from(device.shared_bytes_per_block) && rows.saturating_mul(blocks) <= MAX_BLOCKS;
    fits.then(|| Variant::Smem { threads, blocks, vectors_per_thread: vectors_per_thread(threads) })
}

/// A row in `slices` slices, or fewer if the multiprocessors are fewer: one block to each. None where not all blocks
/// can run at the same time, or for devices and problems that were not measured.
pub fn grid(p: &SoftmaxProblem, shape: RowShape, slices: u64, device: &DeviceFacts) -> Option<Variant> {
    let able = device.cooperative && matches!(device.compute_capability.0, 9 | 10);
    let multiprocessors = u64::from(device.multiprocessors);
    let lines = shape.whole.div_ceil(LINE).max(1);
    let slices =
        slices.min(multiprocessors / p.row_count().unsigned_abs().max(1)).min(lines).min(SHARING_THREADS);
    // Offsets within a row have 32 bits.
    if !able || slices == 0 || !shape.aligned_stores || p.x.dtype != p.out.dtype || p.length > 1 << 30 {
        return None;
    }
    let slice = shape.whole.div_ceil(slices).next_multiple_of(LINE);
    let threads = if slice > SHARING_THREADS * GRID_BATCH { CLUSTER_THREADS } else { SHARING_THREADS };
    let batches = slice.div_ceil(threads * GRID_BATCH);
    if batches <= 1 {
        return Some(Variant::Grid { threads, slices, register_batches: 1, shared_vectors: 0 });
    }
    let register_batches = register_batches(p.out.dtype);
    let room = shared_room(device) / (threads * VECTOR_BYTES * GRID_BATCH);
    let shared_vectors = batches.saturating_sub(register_batches).min(room) * GRID_BATCH;
    Some(Variant::Grid { threads, slices, register_batches, shared_vectors })
}

/// About `slices` slices with the same number of batches. Fewer threads where there are fewer large batches than
/// slices.
pub fn split(vectors: u64, slices: u64) -> Variant {
    // A block merges the partials of all slices: more would be slow.
    let slices = slices.min(1024);
    let [few, many] = SPLIT_THREADS;
    let threads = if vectors < slices * many * SPLIT_VECTORS { few } else { many };
    let batch = threads * SPLIT_VECTORS;
    let batches = vectors.div_ceil(batch).div_ceil(slices).max(1);
    let slices = vectors.div_ceil(batch * batches);
    Variant::Split { threads, slices, batches }
}
