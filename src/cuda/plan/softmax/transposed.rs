//! Rows that are contiguous in one of x and result, elements in the other: kernels/softmax_transposed.cu and
//! kernels/softmax_transposed_short.cu.

use crate::cuda::plan::limits::MOST_SLICES;
use std::mem::offset_of;

use super::{INLINE_RANK, MAX_BLOCKS, VECTOR_BYTES, column_access, pair_suffix, partial_bytes};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::index::{self, Dim, Divisor};
use crate::cuda::plan::{Kernel, KernelParams, LaunchPlan, settings};
use crate::dtype::DType;
use crate::ops::Strided;
use crate::ops::softmax::{Kind, SoftmaxProblem};

/// THREADS in softmax_transposed.cu, the fewest threads, and bytes of a tile for each.
const THREADS: u64 = 256;
const FEWEST_THREADS: u64 = 64;
const PER_THREAD: u64 = 64;
/// Static shared memory, and the driver's share of every block's.
const RESERVED: u64 = 64 + 1024;
/// Lanes of a warp with contiguous vectors across rows, more where rows have fewer elements than the other lanes need;
/// and how many times as wide a tile may be.
const ACROSS: u64 = 4;
const WARP: u64 = 32;
const MOST_GROUPS: u64 = 32;
/// A tile of this size is worth a block; tiles of short rows get more rows until they have it.
const WORTH_A_BLOCK: u64 = 16 << 10;
/// Elements that slices are multiples of: none begins between accesses of the result.
const SLICE_UNIT: u64 = 64;
/// Vectors that a swizzle permutes among each other.
const SWIZZLED: u64 = 8;
/// Contiguous bytes across rows: fewer are no vector.
const LEAST_ACROSS: u64 = 16;
/// Of softmax_transposed_short.cu: threads, and bytes of a block's rows at most.
const SHORT_THREADS: u64 = 128;
const SHORT_BLOCK_BYTES: u64 = 24 << 10;

/// `TransposedParams` of kernels/common/transposed.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransposedParams {
    x: u64,
    out: u64,
    length: u64,
    contiguous_rows: u64,
    x_stride: i64,
    out_stride: i64,
    x_next: i64,
    out_next: i64,
    partials: u64,
    pub(super) tile_rows: u32,
    across_bits: u32,
    group_bits: u32,
    slice: u32,
    pub(super) slices: u32,
    pitch: u32,
    swizzle_mask: u32,
    lane_bits: u32,
    pub(super) x_fit: u32,
    pub(super) out_fit: u32,
    log: u32,
    rank: u32,
    by_length: Divisor,
    dims: [Dim<2>; INLINE_RANK],
}

// The same number is asserted in transposed.cuh.
const _: () = assert!(size_of::<TransposedParams>() == 136 + 40 * INLINE_RANK);

// SAFETY: repr(C) integers without padding, in the order and of the types of transposed.cuh's TransposedParams. Both
// sides assert its size.
unsafe impl KernelParams for TransposedParams {
    const ADDRESSES: &'static [usize] = &[
        offset_of!(TransposedParams, x),
        offset_of!(TransposedParams, out),
        offset_of!(TransposedParams, partials),
    ];
}

/// Tiles of `groups` times `across` vectors across rows; each of `slices` blocks has `slice` elements of every row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transposed {
    pub side: Side,
    pub across: u64,
    pub groups: u64,
    pub slice: u64,
    pub slices: u64,
    /// Whether the blocks of the slices are a cluster (of one, if there is one); else there are two launches.
    pub cluster: bool,
}

/// Short rows, `each` of them to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    pub side: Side,
    pub each: u64,
}

/// Which of x and result has contiguous rows, and in which dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    pub of_x: bool,
    pub dim: usize,
}

/// None unless rows are contiguous in one of x and result, and elements in the other.
pub fn side(p: &SoftmaxProblem) -> Option<Side> {
    let dim = |operand: &Strided| {
        let wide_enough = |&d: &usize| p.rows[d].unsigned_abs() * operand.dtype.size() as u64 >= LEAST_ACROSS;
        (0..p.rows.len()).filter(|&d| operand.strides[d] == 1).find(wide_enough)
    };
    let of_x = || dim(&p.x).filter(|_| p.out_stride == 1).map(|dim| Side { of_x: true, dim });
    let of_out = || dim(&p.out).filter(|_| p.x_stride == 1).map(|dim| Side { of_x: false, dim });
    let possible = p.rows.len() <= INLINE_RANK && p.out.address.is_multiple_of(p.out.dtype.size());
    of_x().or_else(of_out).filter(|_| possible)
}

impl Side {
    fn operand(self, p: &SoftmaxProblem) -> &Strided {
        if self.of_x { &p.x } else { &p.out }
    }

    /// The stride along a row of the operand with contiguous rows.
    fn along(self, p: &SoftmaxProblem) -> i64 {
        if self.of_x { p.x_stride } else { p.out_stride }
    }

    fn rows(self, p: &SoftmaxProblem) -> u64 {
        p.rows[self.dim].unsigned_abs()
    }
}

impl Transposed {
    /// `slices` slices, or a few less where they are not a cluster's.
    pub fn new(
        p: &SoftmaxProblem,
        side: Side,
        slices: u64,
        cluster: bool,
        device: &DeviceFacts,
    ) -> Option<Transposed> {
        let length = p.length.unsigned_abs();
        let slice = match slices {
            0 | 1 => length,
            _ => length.div_ceil(slices).next_multiple_of(SLICE_UNIT),
        };
        let slices = if cluster { slices } else { length.div_ceil(slice) };
        let vectors =
            (side.rows(p) * side.operand(p).dtype.size() as u64).div_ceil(VECTOR_BYTES).next_power_of_two();
        let across = (WARP / length.next_power_of_two().min(WARP / ACROSS)).min(vectors);
        let mut transposed = Transposed { side, across, groups: 1, slice, slices, cluster };
        let more = |t: &Transposed| {
            t.groups < MOST_GROUPS && t.groups * t.across < vectors && t.tile_bytes(p) < WORTH_A_BLOCK
        };
        while more(&transposed) {
            transposed.groups *= 2;
        }
        let fits = slice <= i32::MAX as u64
            && transposed.shared_bytes(p) + RESERVED <= u64::from(device.shared_bytes_per_block)
            && transposed.blocks(p) <= MAX_BLOCKS
            && slices <= MOST_SLICES;
        fits.then_some(transposed)
    }

    /// Rows of a tile.
    pub fn tile_rows(&self, p: &SoftmaxProblem) -> u64 {
        self.groups * self.across * (VECTOR_BYTES / self.side.operand(p).dtype.size() as u64)
    }

    /// Tiles that cover the problem.
    pub fn count(&self, p: &SoftmaxProblem) -> u64 {
        let rows = self.side.rows(p);
        p.row_count().unsigned_abs() / rows * rows.div_ceil(self.tile_rows(p))
    }

    pub fn blocks(&self, p: &SoftmaxProblem) -> u64 {
        self.count(p).saturating_mul(self.slices)
    }

    fn vectors(&self, p: &SoftmaxProblem) -> u64 {
        (self.slice.saturating_mul(p.x.dtype.size() as u64)).div_ceil(VECTOR_BYTES)
    }

    /// Vectors from a row to the next in shared memory.
    fn pitch(&self, p: &SoftmaxProblem) -> u64 {
        match self.vectors(p) {
            few if few <= SWIZZLED / 2 => few,
            vectors => vectors.next_multiple_of(SWIZZLED),
        }
    }

    pub fn tile_bytes(&self, p: &SoftmaxProblem) -> u64 {
        self.tile_rows(p).saturating_mul(self.pitch(p)).saturating_mul(VECTOR_BYTES)
    }

    fn shared_bytes(&self, p: &SoftmaxProblem) -> u64 {
        let blocks = if self.cluster && self.slices > 1 { self.slices } else { 0 };
        // A launch that reads vectors across rows has partials of every warp instead of a tile.
        let warps = if self.cluster { 0 } else { self.threads(p) / WARP };
        let of_rows = |count: u64| count * self.tile_rows(p) * partial_bytes(p);
        self.tile_bytes(p).saturating_add(of_rows(1 + blocks)).max(of_rows(warps))
    }

    fn threads(&self, p: &SoftmaxProblem) -> u64 {
        (self.tile_bytes(p) / PER_THREAD).next_power_of_two().clamp(FEWEST_THREADS, THREADS)
    }

    /// Whether so many blocks share a multiprocessor.
    pub fn shares(&self, p: &SoftmaxProblem, blocks: u64, device: &DeviceFacts) -> bool {
        (self.shared_bytes(p) + RESERVED) * blocks <= u64::from(device.shared_bytes_per_multiprocessor)
    }

    /// Bytes of the partials between two launches.
    pub fn workspace(&self, p: &SoftmaxProblem) -> u64 {
        if self.cluster { 0 } else { self.blocks(p) * self.tile_rows(p) * partial_bytes(p) }
    }
}

/// Tiles in about as many slices as to make `blocks` in all, more where they would not fit.
pub fn of_slices(p: &SoftmaxProblem, side: Side, blocks: u64, device: &DeviceFacts) -> Option<Transposed> {
    let one = Transposed { side, across: ACROSS, groups: 1, slice: SLICE_UNIT, slices: 1, cluster: false };
    let most = (u64::from(device.shared_bytes_per_multiprocessor) / 3 - 2 * RESERVED).min(64 << 10);
    let bytes = p.length.unsigned_abs().saturating_mul(one.tile_rows(p) * p.x.dtype.size() as u64);
    let slices = blocks.div_ceil(one.count(p)).max(bytes.div_ceil(most));
    Transposed::new(p, side, slices, false, device)
}

/// Where accesses of 16 bytes are aligned: the Fit of transposed.cuh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Fit {
    None,
    Whole,
    Packed,
}

/// For an operand with contiguous rows, or else contiguous elements; for rows in so many slices.
fn fit(p: &SoftmaxProblem, side: Side, operand: &Strided, has_rows: bool, slices: u64) -> Fit {
    let fits = |step: i64| access(p, side, operand, step) == VECTOR_BYTES;
    let next = operand.strides[side.dim];
    // Tiles are of whole vectors of rows, and so of whole vectors of elements.
    let packed = !has_rows && slices == 1 && next == p.length;
    match (fits(if has_rows { side.along(p) } else { next }), packed && fits(0)) {
        (true, _) => Fit::Whole,
        (_, true) => Fit::Packed,
        _ => Fit::None,
    }
}

/// Bytes, up to 16, to which all of an operand's rows are aligned, a `step` apart.
fn access(p: &SoftmaxProblem, side: Side, operand: &Strided, step: i64) -> u64 {
    let outer: Vec<i64> =
        (0..p.rows.len()).filter(|&d| d != side.dim && p.rows[d] > 1).map(|d| operand.strides[d]).collect();
    u64::from(column_access(operand.address, operand.dtype, &outer, step))
}

impl Short {
    /// None unless rows are packed in one operand, no whole vectors, and of so few elements that shared memory holds a
    /// row or two of every thread of a block.
    pub fn new(p: &SoftmaxProblem, side: Side) -> Option<Short> {
        let (this, other) = if side.of_x { (&p.x, &p.out) } else { (&p.out, &p.x) };
        let row_bytes = p.length.unsigned_abs().saturating_mul(other.dtype.size() as u64);
        let packed = other.strides[side.dim] == p.length && !row_bytes.is_multiple_of(VECTOR_BYTES);
        if p.x.dtype == DType::F64 || !packed {
            return None;
        }
        // Two halves in one access, and their two results, or the two elements that they are the results of.
        let pairs = p.x.dtype.size() == 2
            && access(p, side, this, side.along(p)) >= 2 * this.dtype.size() as u64
            && side.rows(p).is_multiple_of(2);
        let each = if pairs { 2 } else { 1 };
        let short = Short { side, each };
        let few = short.rows_of_block().saturating_mul(row_bytes) <= SHORT_BLOCK_BYTES;
        (few && short.blocks(p) <= MAX_BLOCKS).then_some(short)
    }

    /// Rows of a block.
    pub fn rows_of_block(&self) -> u64 {
        self.each * SHORT_THREADS
    }

    pub fn blocks(&self, p: &SoftmaxProblem) -> u64 {
        let rows = self.side.rows(p);
        p.row_count().unsigned_abs() / rows * rows.div_ceil(self.rows_of_block())
    }
}

pub fn plan_short(p: &SoftmaxProblem, short: Short) -> LaunchPlan<TransposedParams> {
    let Short { side, each } = short;
    let other = if side.of_x { &p.out } else { &p.x };
    let row_bytes = p.length.unsigned_abs() * other.dtype.size() as u64;
    let pair = pair_suffix(p.x.dtype, p.out.dtype).unwrap_or_default();
    let way = if side.of_x { "in" } else { "out" };
    let name = format!("softmax_transposed_short_{way}{each}_{pair}");
    let kernel = Kernel { file: "softmax_transposed_short", name };
    let shared = (short.rows_of_block() * row_bytes + VECTOR_BYTES) as u32;
    let params = TransposedParams::new(p, side, short.rows_of_block(), 0);
    planned(LaunchPlan::new(kernel, short.blocks(p) as u32, SHORT_THREADS as u32, shared, params), 1)
}

impl TransposedParams {
    /// One slice a row, without the fields that only tiles have.
    fn new(p: &SoftmaxProblem, side: Side, tile_rows: u64, partials: usize) -> TransposedParams {
        let Side { dim, .. } = side;
        // The tiles of the contiguous rows are the last dimension.
        let with = |dims: &[i64], last: i64| -> Vec<i64> {
            let others = dims.iter().enumerate().filter(|&(d, _)| d != dim).map(|(_, &n)| n);
            others.chain([last]).collect()
        };
        let rows = side.rows(p);
        let steps = [&p.x, &p.out].map(|t| with(&t.strides, t.strides[dim] * tile_rows.cast_signed()));
        let shape = with(&p.rows, rows.div_ceil(tile_rows).cast_signed());
        let (dims, rank) = index::dims(&shape, [&steps[0], &steps[1]]);
        let length = p.length.unsigned_abs();
        TransposedParams {
            x: p.x.address as u64,
            out: p.out.address as u64,
            length,
            contiguous_rows: rows,
            x_stride: p.x_stride,
            out_stride: p.out_stride,
            x_next: p.x.strides[dim],
            out_next: p.out.strides[dim],
            partials: partials as u64,
            tile_rows: tile_rows as u32,
            across_bits: 0,
            group_bits: 0,
            slice: length.min(u64::from(u32::MAX)) as u32,
            slices: 1,
            pitch: 0,
            swizzle_mask: 0,
            lane_bits: 0,
            x_fit: Fit::None as u32,
            out_fit: Fit::None as u32,
            log: u32::from(p.kind == Kind::LogSoftmax),
            rank,
            by_length: Divisor::new(length),
            dims,
        }
    }
}

pub fn plan(
    p: &SoftmaxProblem,
    transposed: Transposed,
    partials: usize,
) -> (Option<Kernel>, LaunchPlan<TransposedParams>) {
    let Transposed { side, across, groups, slice, slices, cluster } = transposed;
    let (tile_rows, vectors, pitch) = (transposed.tile_rows(p), transposed.vectors(p), transposed.pitch(p));
    let params = TransposedParams {
        across_bits: across.trailing_zeros(),
        group_bits: groups.trailing_zeros(),
        slice: slice as u32,
        slices: slices as u32,
        pitch: pitch as u32,
        swizzle_mask: if pitch.is_multiple_of(SWIZZLED) { SWIZZLED as u32 - 1 } else { 0 },
        lane_bits: vectors.next_power_of_two().min(32).trailing_zeros(),
        x_fit: fit(p, side, &p.x, side.of_x, slices) as u32,
        out_fit: fit(p, side, &p.out, !side.of_x, slices) as u32,
        ..TransposedParams::new(p, side, tile_rows, partials)
    };
    let threads = transposed.threads(p);
    let pair = pair_suffix(p.x.dtype, p.out.dtype).unwrap_or_default();
    let way = if side.of_x { "in" } else { "out" };
    let kernel = |role: &str| Kernel {
        file: "softmax_transposed",
        name: format!("softmax_transposed_{way}{role}_{pair}"),
    };
    let main = kernel(if cluster { "" } else { "_combine" });
    let (blocks, shared) = (transposed.blocks(p) as u32, transposed.shared_bytes(p) as u32);
    let launch = LaunchPlan::new(main, blocks, threads as u32, shared, params);
    let launch = planned(launch, if cluster { slices } else { 0 });
    ((!cluster).then(|| kernel("_partial")), launch)
}

/// Adds the settings that explain shows; a cluster of 0 blocks: two launches.
fn planned(launch: LaunchPlan<TransposedParams>, cluster: u64) -> LaunchPlan<TransposedParams> {
    let TransposedParams { tile_rows, slice, slices, .. } = launch.params;
    let [tile_rows, slice, slices] = [tile_rows, slice, slices].map(u64::from);
    let settings =
        settings([("rows", tile_rows), ("elements", slice), ("slices", slices), ("cluster", cluster)]);
    LaunchPlan { cluster: cluster as u32, settings, ..launch }
}
