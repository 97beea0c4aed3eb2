//! Rows that lie side by side in x or in the result, and their elements in the other: kernels/softmax_transposed.cu and
//! kernels/softmax_transposed_short.cu.

use std::mem::offset_of;

use super::{INLINE_RANK, MAX_BLOCKS, VECTOR_BYTES, column_access, pair_suffix, partial_bytes};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::index::{self, Dim, Divisor};
use crate::cuda::plan::{Kernel, KernelParams, LaunchPlan, settings};
use crate::dtype::DType;
use crate::ops::Strided;
use crate::ops::softmax::{Kind, SoftmaxProblem};

/// THREADS in softmax_transposed.cu, the fewest, and bytes of a tile for each.
const THREADS: u64 = 256;
const FEWEST_THREADS: u64 = 64;
const PER_THREAD: u64 = 64;
/// Static shared memory, and what the driver keeps of every block's.
const RESERVED: u64 = 64 + 1024;
/// Lanes with 16 bytes of rows each, side by side, in a warp's access, more where rows have fewer elements than lanes would
/// then be below each other; and how many times as wide a tile may be.
const BESIDE: u64 = 4;
const WARP: u64 = 32;
const MOST_GROUPS: u64 = 32;
/// A tile of this size is worth a block; where rows are so short that it is less, tiles are of more rows.
const WORTH_A_BLOCK: u64 = 16 << 10;
/// Elements that slices are multiples of: none begins between accesses of the result.
const SLICE_UNIT: u64 = 64;
/// Vectors from which those of a row are permuted, by eights.
const PERMUTED: u64 = 8;
/// Fewer bytes side by side are no vector.
const LEAST_BESIDE: u64 = 16;
pub const MOST_SLICES: u64 = 1024;
/// Of softmax_transposed_short.cu: threads, and bytes of a block's rows at most.
const SHORT_THREADS: u64 = 128;
const SHORT_BYTES: u64 = 24 << 10;

/// `TransposedParams` of kernels/common/transposed.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransposedParams {
    x: u64,
    out: u64,
    length: u64,
    beside: u64,
    x_stride: i64,
    out_stride: i64,
    x_next: i64,
    out_next: i64,
    partials: u64,
    pub(super) wide: u32,
    beside_bits: u32,
    group_bits: u32,
    slice: u32,
    pub(super) slices: u32,
    pitch: u32,
    permuted: u32,
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

// SAFETY: repr(C) integers without padding, in the order and of the types of transposed.cuh's TransposedParams, whose size is
// asserted here and there.
unsafe impl KernelParams for TransposedParams {
    const ADDRESSES: &'static [usize] = &[
        offset_of!(TransposedParams, x),
        offset_of!(TransposedParams, out),
        offset_of!(TransposedParams, partials),
    ];
}

/// Tiles of `groups` times `beside` pieces of 16 bytes of rows, of whose elements each of `slices` blocks has `slice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transposed {
    pub side: Side,
    pub beside: u64,
    pub groups: u64,
    pub slice: u64,
    pub slices: u64,
    /// The slices' blocks are a cluster (of one, if there is one); else two launches do the work.
    pub cluster: bool,
}

/// Short rows that are a thread's, `each` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Short {
    pub side: Side,
    pub each: u64,
}

/// Which of x and the result has rows side by side, and in which dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    pub of_x: bool,
    pub dim: usize,
}

/// None unless the one has rows side by side and the other a row's elements.
pub fn side(p: &SoftmaxProblem) -> Option<Side> {
    let dim = |operand: &Strided| {
        let wide_enough = |&d: &usize| p.rows[d].unsigned_abs() * operand.dtype.size() as u64 >= LEAST_BESIDE;
        (0..p.rows.len()).filter(|&d| operand.strides[d] == 1).find(wide_enough)
    };
    let of_x = || dim(&p.x).filter(|_| p.out_stride == 1).map(|dim| Side { of_x: true, dim });
    let of_out = || dim(&p.out).filter(|_| p.x_stride == 1).map(|dim| Side { of_x: false, dim });
    let apart = p.rows.len() <= INLINE_RANK && p.out.address.is_multiple_of(p.out.dtype.size());
    of_x().or_else(of_out).filter(|_| apart)
}

impl Side {
    fn operand(self, p: &SoftmaxProblem) -> &Strided {
        if self.of_x { &p.x } else { &p.out }
    }

    /// The step along a row of the operand that has its rows side by side.
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
        let pieces =
            (side.rows(p) * side.operand(p).dtype.size() as u64).div_ceil(VECTOR_BYTES).next_power_of_two();
        let beside = (WARP / length.next_power_of_two().min(WARP / BESIDE)).min(pieces);
        let mut transposed = Transposed { side, beside, groups: 1, slice, slices, cluster };
        let more = |t: &Transposed| {
            t.groups < MOST_GROUPS && t.groups * t.beside < pieces && t.tile_bytes(p) < WORTH_A_BLOCK
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
    pub fn wide(&self, p: &SoftmaxProblem) -> u64 {
        self.groups * self.beside * (VECTOR_BYTES / self.side.operand(p).dtype.size() as u64)
    }

    /// Tiles that cover the problem.
    pub fn count(&self, p: &SoftmaxProblem) -> u64 {
        let beside = self.side.rows(p);
        p.row_count().unsigned_abs() / beside * beside.div_ceil(self.wide(p))
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
            few if few <= PERMUTED / 2 => few,
            vectors => vectors.next_multiple_of(PERMUTED),
        }
    }

    pub fn tile_bytes(&self, p: &SoftmaxProblem) -> u64 {
        self.wide(p).saturating_mul(self.pitch(p)).saturating_mul(VECTOR_BYTES)
    }

    fn shared_bytes(&self, p: &SoftmaxProblem) -> u64 {
        let blocks = if self.cluster && self.slices > 1 { self.slices } else { 0 };
        self.tile_bytes(p).saturating_add((1 + blocks) * self.wide(p) * partial_bytes(p))
    }

    /// Whether so many blocks share a multiprocessor.
    pub fn shares(&self, p: &SoftmaxProblem, blocks: u64, device: &DeviceFacts) -> bool {
        (self.shared_bytes(p) + RESERVED) * blocks <= u64::from(device.shared_bytes_per_multiprocessor)
    }

    /// Bytes that the two launches hand each other.
    pub fn workspace(&self, p: &SoftmaxProblem) -> u64 {
        if self.cluster { 0 } else { self.blocks(p) * self.wide(p) * partial_bytes(p) }
    }
}

/// Tiles in about as many slices as to make `blocks` in all, more where they would not fit.
pub fn of_slices(p: &SoftmaxProblem, side: Side, blocks: u64, device: &DeviceFacts) -> Option<Transposed> {
    let one = Transposed { side, beside: BESIDE, groups: 1, slice: SLICE_UNIT, slices: 1, cluster: false };
    let most = (u64::from(device.shared_bytes_per_multiprocessor) / 3 - 2 * RESERVED).min(64 << 10);
    let bytes = p.length.unsigned_abs().saturating_mul(one.wide(p) * p.x.dtype.size() as u64);
    let slices = blocks.div_ceil(one.count(p)).max(bytes.div_ceil(most));
    Transposed::new(p, side, slices, false, device)
}

/// What accesses of 16 bytes fit: the Fit of transposed.cuh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Fit {
    None,
    Whole,
    Run,
}

/// Of an operand that has its rows side by side, or else their elements; of rows in so many slices.
fn fit(p: &SoftmaxProblem, side: Side, operand: &Strided, has_rows: bool, slices: u64) -> Fit {
    let fits = |step: i64| access(p, side, operand, step) == VECTOR_BYTES;
    let next = operand.strides[side.dim];
    // Tiles are of whole vectors of rows, and so of whole vectors of elements.
    let run = !has_rows && slices == 1 && next == p.length;
    match (fits(if has_rows { side.along(p) } else { next }), run && fits(0)) {
        (true, _) => Fit::Whole,
        (_, true) => Fit::Run,
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
    /// None unless rows lie one behind the other in the one operand, of so few elements that a block's threads have room for
    /// theirs, and are no whole vectors.
    pub fn new(p: &SoftmaxProblem, side: Side) -> Option<Short> {
        let (this, other) = if side.of_x { (&p.x, &p.out) } else { (&p.out, &p.x) };
        let row_bytes = p.length.unsigned_abs().saturating_mul(other.dtype.size() as u64);
        let in_one_piece = other.strides[side.dim] == p.length && !row_bytes.is_multiple_of(VECTOR_BYTES);
        if p.x.dtype == DType::F64 || !in_one_piece {
            return None;
        }
        // Two of a half type in one access, and their results, or what they are the results of.
        let pairs = p.x.dtype.size() == 2
            && access(p, side, this, side.along(p)) >= 2 * this.dtype.size() as u64
            && side.rows(p).is_multiple_of(2);
        let each = if pairs { 2 } else { 1 };
        let short = Short { side, each };
        let few = short.wide().saturating_mul(row_bytes) <= SHORT_BYTES;
        (few && short.blocks(p) <= MAX_BLOCKS).then_some(short)
    }

    /// Rows of a block.
    pub fn wide(&self) -> u64 {
        self.each * SHORT_THREADS
    }

    pub fn blocks(&self, p: &SoftmaxProblem) -> u64 {
        let beside = self.side.rows(p);
        p.row_count().unsigned_abs() / beside * beside.div_ceil(self.wide())
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
    let shared = (short.wide() * row_bytes + VECTOR_BYTES) as u32;
    let params = TransposedParams::new(p, side, short.wide(), 0);
    planned(LaunchPlan::new(kernel, short.blocks(p) as u32, SHORT_THREADS as u32, shared, params), 1)
}

impl TransposedParams {
    /// One slice a row, without what only tiles have.
    fn new(p: &SoftmaxProblem, side: Side, wide: u64, partials: usize) -> TransposedParams {
        let Side { dim, .. } = side;
        // The tiles side by side are the last dimension.
        let with = |dims: &[i64], last: i64| -> Vec<i64> {
            let others = dims.iter().enumerate().filter(|&(d, _)| d != dim).map(|(_, &n)| n);
            others.chain([last]).collect()
        };
        let rows = side.rows(p);
        let steps = [&p.x, &p.out].map(|t| with(&t.strides, t.strides[dim] * wide.cast_signed()));
        let shape = with(&p.rows, rows.div_ceil(wide).cast_signed());
        let (dims, rank) = index::dims(&shape, [&steps[0], &steps[1]]);
        let length = p.length.unsigned_abs();
        TransposedParams {
            x: p.x.address as u64,
            out: p.out.address as u64,
            length,
            beside: rows,
            x_stride: p.x_stride,
            out_stride: p.out_stride,
            x_next: p.x.strides[dim],
            out_next: p.out.strides[dim],
            partials: partials as u64,
            wide: wide as u32,
            beside_bits: 0,
            group_bits: 0,
            slice: length.min(u64::from(u32::MAX)) as u32,
            slices: 1,
            pitch: 0,
            permuted: 0,
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
    let Transposed { side, beside, groups, slice, slices, cluster } = transposed;
    let (wide, vectors, pitch) = (transposed.wide(p), transposed.vectors(p), transposed.pitch(p));
    let params = TransposedParams {
        beside_bits: beside.trailing_zeros(),
        group_bits: groups.trailing_zeros(),
        slice: slice as u32,
        slices: slices as u32,
        pitch: pitch as u32,
        permuted: if pitch.is_multiple_of(PERMUTED) { PERMUTED as u32 - 1 } else { 0 },
        lane_bits: vectors.next_power_of_two().min(32).trailing_zeros(),
        x_fit: fit(p, side, &p.x, side.of_x, slices) as u32,
        out_fit: fit(p, side, &p.out, !side.of_x, slices) as u32,
        ..TransposedParams::new(p, side, wide, partials)
    };
    let threads = (transposed.tile_bytes(p) / PER_THREAD).next_power_of_two().clamp(FEWEST_THREADS, THREADS);
    let pair = pair_suffix(p.x.dtype, p.out.dtype).unwrap_or_default();
    let way = if side.of_x { "in" } else { "out" };
    let kernel = |role: &str| Kernel {
        file: "softmax_transposed",
        name: format!("softmax_transposed_{way}{role}_{pair}"),
    };
    let main = kernel(if cluster { "" } else { "_find" });
    let (blocks, shared) = (transposed.blocks(p) as u32, transposed.shared_bytes(p) as u32);
    let launch = LaunchPlan::new(main, blocks, threads as u32, shared, params);
    let launch = planned(launch, if cluster { slices } else { 0 });
    ((!cluster).then(|| kernel("_leave")), launch)
}

/// With what a reader of the plan wants to know; a cluster of 0 blocks: two launches.
fn planned(launch: LaunchPlan<TransposedParams>, cluster: u64) -> LaunchPlan<TransposedParams> {
    let TransposedParams { wide, slice, slices, .. } = launch.params;
    let [wide, slice, slices] = [wide, slice, slices].map(u64::from);
    let settings = settings([("rows", wide), ("elements", slice), ("slices", slices), ("cluster", cluster)]);
    LaunchPlan { cluster: cluster as u32, settings, ..launch }
}
