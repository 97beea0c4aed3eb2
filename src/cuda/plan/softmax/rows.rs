//! The parameters and launches of the softmax kernels for rows, and of softmax_general.cu.

use std::mem::offset_of;

use super::{GENERAL_THREADS, MAX_BLOCKS, VECTOR_BYTES, Variant, WARP_THREADS, pair_suffix};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::index::{self, Dim, MAX_RANK};
use crate::cuda::plan::misaligned::SHORT_THREADS;
use crate::cuda::plan::{Kernel, KernelParams, LaunchPlan, settings};
use crate::dtype::DType;
use crate::ops::softmax::{Kind, SoftmaxProblem};

/// `SoftmaxParams` of kernels/common/softmax.cuh, with all of its dimensions; a launch copies the declared ones.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SoftmaxParams {
    x: u64,
    out: u64,
    pub(super) rows: u64,
    length: u64,
    pub(super) tiles: u64,
    log: u32,
    pub(super) lane_bits: u32,
    pub(super) x_access: u32,
    pub(super) out_access: u32,
    x_stride: i64,
    out_stride: i64,
    pub(super) stages: u32,
    pub(super) per_thread: u32,
    pub(super) x_tag: u32,
    out_tag: u32,
    rank: u32,
    pub(super) slices: u32,
    x_low: u64,
    x_high: u64,
    partials: u64,
    dims: [Dim<2>; MAX_RANK],
}

// The same numbers are asserted in softmax.cuh.
const _: () = assert!(offset_of!(SoftmaxParams, dims) == 120);
const _: () = assert!(size_of::<SoftmaxParams>() == 120 + 40 * MAX_RANK);

// SAFETY: repr(C) integers without padding, in the order and of the types of softmax.cuh's SoftmaxParams<MAX_RANK>;
// size and the offset of the last field are asserted here and there.
unsafe impl KernelParams for SoftmaxParams {
    const ADDRESSES: &'static [usize] = &[
        offset_of!(SoftmaxParams, x),
        offset_of!(SoftmaxParams, out),
        offset_of!(SoftmaxParams, x_low),
        offset_of!(SoftmaxParams, x_high),
        offset_of!(SoftmaxParams, partials),
    ];
}

/// Alignment of the rows of a problem.
#[derive(Clone, Copy, Debug)]
pub struct RowShape {
    /// The most vectors of x that a row can touch, and the most that can be wholly in it.
    pub vectors: u64,
    pub whole: u64,
    /// The most elements of head and tail together.
    pub head_and_tail: u64,
    /// Whether the stores of whole vectors are aligned.
    pub aligned_stores: bool,
    /// Whether the results of a vector are more than one access.
    pub widens: bool,
}

/// None if the elements of a row are not contiguous.
pub fn row_shape(p: &SoftmaxProblem) -> Option<RowShape> {
    if p.length > 1 && (p.x_stride != 1 || p.out_stride != 1) {
        return None;
    }
    let (x_size, out_size) = (p.x.dtype.size() as i64, p.out.dtype.size() as i64);
    let lanes = VECTOR_BYTES as i64 / x_size;
    let x_offset = p.x.address as i64 % VECTOR_BYTES as i64 / x_size;
    let out_offset = p.out.address as i64 / out_size;
    let moves = |strides: &[i64]| strides.iter().any(|s| s % lanes != 0);
    let padding = if moves(&p.x.strides) { lanes - 1 } else { x_offset };
    // A store writes the results of one vector, at most 16 bytes at a time; it starts where the vector does.
    let store = lanes.min(VECTOR_BYTES as i64 / out_size);
    let aligned_stores = p.out.address.is_multiple_of(p.out.dtype.size())
        && (out_offset - x_offset) % store == 0
        && p.x.strides.iter().zip(&p.out.strides).all(|(x, out)| (out - x) % store == 0);
    let [length, per_vector] = [p.length, lanes].map(i64::unsigned_abs);
    let vectors = (p.length + padding).unsigned_abs().div_ceil(per_vector);
    let head_and_tail = if padding == 0 { length % per_vector } else { length.min(2 * per_vector - 2) };
    let widens = out_size > x_size;
    Some(RowShape { vectors, whole: length / per_vector, head_and_tail, aligned_stores, widens })
}

pub fn plan(
    p: &SoftmaxProblem,
    device: &DeviceFacts,
    variant: Variant,
    partials: usize,
) -> (Option<Kernel>, LaunchPlan<SoftmaxParams>) {
    let rows = p.row_count().unsigned_abs();
    let length = p.length.unsigned_abs();
    let multiprocessors = u64::from(device.multiprocessors);
    let pair = pair_suffix(p.x.dtype, p.out.dtype).unwrap_or_default();
    let shape = row_shape(p);
    let aligned_stores = shape.is_some_and(|s| s.aligned_stores);

    let (x_low, x_high) = index::span(length, &p.rows, &p.x);
    let mut params = SoftmaxParams {
        x: p.x.address as u64,
        out: p.out.address as u64,
        rows,
        length,
        tiles: rows,
        x_stride: p.x_stride,
        out_stride: p.out_stride,
        log: u32::from(p.kind == Kind::LogSoftmax),
        lane_bits: 0,
        stages: 0,
        per_thread: 0,
        x_access: 0,
        out_access: u32::from(aligned_stores),
        x_tag: p.x.dtype.tag(),
        out_tag: p.out.dtype.tag(),
        rank: 1,
        slices: 0,
        x_low,
        x_high,
        partials: partials as u64,
        dims: index::dims(&[], [&[], &[]]).0,
    };
    let (mut cluster, mut cooperative, mut lanes, mut first) = (0, false, 0, None);
    let (name, threads, blocks, shared) = match variant {
        Variant::Warp { vectors, rows: at_once, lane_bits } => {
            (params.lane_bits, lanes) = (lane_bits, 1 << lane_bits);
            params.tiles = rows.div_ceil((WARP_THREADS >> lane_bits) * at_once);
            (format!("warp{vectors}x{at_once}_{pair}"), WARP_THREADS, params.tiles, 0)
        }
        Variant::Block { threads } => (format!("block_{pair}"), threads, rows, 0),
        Variant::Pipeline { threads, stages, vectors_per_thread, blocks_per_multiprocessor } => {
            params.stages = stages as u32;
            params.per_thread = vectors_per_thread as u32;
            let blocks = rows.min(multiprocessors * blocks_per_multiprocessor);
            (
                format!("pipeline_{pair}"),
                threads,
                blocks,
                stages * vectors_per_thread * threads * VECTOR_BYTES,
            )
        }
        Variant::Online { threads, vectors_per_thread } => {
            params.per_thread = vectors_per_thread as u32;
            (format!("online_{pair}"), threads, rows, vectors_per_thread * threads * VECTOR_BYTES)
        }
        Variant::Cluster { threads, blocks } => {
            cluster = blocks;
            (format!("cluster_{pair}"), threads, rows.saturating_mul(blocks), 0)
        }
        Variant::Smem { threads, blocks, vectors_per_thread } => {
            cluster = blocks;
            params.per_thread = vectors_per_thread as u32;
            (
                format!("smem_{pair}"),
                threads,
                rows.saturating_mul(blocks),
                vectors_per_thread * threads * VECTOR_BYTES,
            )
        }
        Variant::Short { words } => {
            let bytes = SHORT_THREADS * length * p.x.dtype.size() as u64;
            (format!("short{words}_{pair}"), SHORT_THREADS, rows.div_ceil(SHORT_THREADS), bytes)
        }
        Variant::Split { threads, slices, batches } => {
            params.slices = slices as u32;
            params.per_thread = batches as u32;
            first = Some(Kernel { file: "softmax_cluster", name: format!("softmax_partial_{pair}") });
            (format!("combine_{pair}"), threads, rows.saturating_mul(slices), 0)
        }
        Variant::Grid { threads, slices, register_batches, shared_vectors } => {
            params.slices = slices as u32;
            params.per_thread = shared_vectors as u32;
            cooperative = true;
            (
                format!("grid{register_batches}_{pair}"),
                threads,
                rows.saturating_mul(slices),
                shared_vectors * threads * VECTOR_BYTES,
            )
        }
        // The general kernel. The other variants have plans of their own and do not come here.
        Variant::General
        | Variant::ColumnTile(_)
        | Variant::RegisterTile(_)
        | Variant::SplitColumns(_)
        | Variant::Transposed(_)
        | Variant::TransposedShort(_)
        | Variant::Misaligned(_) => {
            let threads = GENERAL_THREADS.min(length.next_multiple_of(32));
            let arithmetic = if p.out.dtype == DType::F64 { DType::F64 } else { DType::F32 };
            (format!("general_{}", arithmetic.suffix()), threads, rows, 0)
        }
    };
    let file = match variant {
        Variant::Cluster { .. } | Variant::Split { .. } => "softmax_cluster",
        Variant::Smem { .. } => "softmax_smem",
        Variant::Grid { .. } => "softmax_grid",
        Variant::Short { .. } => "softmax_short",
        Variant::General => "softmax_general",
        _ => "softmax",
    };
    (params.dims, params.rank) = index::dims(&p.rows, [&p.x.strides, &p.out.strides]);
    if matches!(variant, Variant::Warp { .. }) {
        let whole = shape.is_some_and(|s| s.head_and_tail == 0 && s.aligned_stores) && params.rank == 1;
        params.x_access = u32::from(whole);
    }
    let whole_clusters = MAX_BLOCKS / cluster.max(1) * cluster.max(1);
    let kernel = Kernel { file, name: format!("softmax_{name}") };
    let blocks = blocks.min(whole_clusters) as u32;
    let per_thread = if first.is_some() { "batches" } else { "vectors" };
    let settings = settings([
        ("lanes", lanes),
        ("stages", u64::from(params.stages)),
        (per_thread, u64::from(params.per_thread)),
        ("slices", u64::from(params.slices)),
        ("cluster", cluster),
        ("cooperative", u64::from(cooperative)),
    ]);
    let cluster = cluster as u32;
    let launch = LaunchPlan::new(kernel, blocks, threads as u32, shared as u32, params);
    let launch = LaunchPlan { cluster, cooperative, settings, ..launch };
    (first, launch)
}
