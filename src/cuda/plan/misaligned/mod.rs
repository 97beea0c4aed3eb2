//! Rows that 16-byte accesses do not fit, in tiles through shared memory: what the plans of kernels/softmax_misaligned.cu
//! and kernels/softmax_backward_misaligned.cu share.

use std::mem::offset_of;

use super::index::{self, Dim, Divisor};
use super::reason::Reason;
use super::{Kernel, KernelParams, LaunchPlan};
use crate::cuda::device::DeviceFacts;
use crate::ops::Strided;

/// INLINE_RANK in kernels/common/softmax.cuh.
const INLINE_RANK: usize = 4;
/// THREADS in the kernels' files, and what is still worth a block.
const MOST_THREADS: u64 = 256;
const LEAST_THREADS: u64 = 64;
const MAX_BLOCKS: u64 = i32::MAX as u64;
/// Bytes of a vector: one access.
const VECTOR_BYTES: u64 = 16;
/// Elements of rows of halves that are moved faster in tiles than one by one at their ends.
const SHORT: u64 = 48;
/// THREADS in softmax_short.cu and softmax_backward_short.cu, and bytes of a row of theirs.
pub const SHORT_THREADS: u64 = 128;
const SHORT_BYTES: u64 = 132;
/// Shared memory that a block has besides its dynamic part: the scratch of its reductions, and what the driver
/// reserves.
const STATIC_SHARED: u64 = 2048;

/// The part of the kernels' names that tells them from others.
pub const NAME: &str = "misaligned";

/// `MisalignedOperand` of kernels/common/misaligned.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
struct MisalignedOperand {
    address: u64,
    low: u64,
    high: u64,
    together: u32,
    pitch: u32,
    begin: u32,
    unused: u32,
    by_pitch: Divisor,
}

/// `MisalignedParams` of kernels/common/misaligned.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MisalignedParams<const N: usize> {
    operands: [MisalignedOperand; N],
    rows: u64,
    pub tiles: u64,
    length: u32,
    tile_rows: u32,
    lanes: u32,
    pub trips: u32,
    stages: u32,
    stage_slots: u32,
    log: u32,
    rank: u32,
    dims: [Dim<N>; INLINE_RANK],
}

// The same numbers are asserted in misaligned.cuh.
const _: () =
    assert!(size_of::<MisalignedOperand>() == 56 && offset_of!(MisalignedParams<2>, rows) == 2 * 56);
const _: () = assert!(size_of::<MisalignedParams<2>>() == 2 * 56 + 48 + 40 * INLINE_RANK);
const _: () = assert!(size_of::<MisalignedParams<3>>() == 3 * 56 + 48 + 48 * INLINE_RANK);

/// Where the addresses of up to three operands lie among the parameters.
const ADDRESSES: [usize; 9] = {
    const EACH: [usize; 3] = [
        offset_of!(MisalignedOperand, address),
        offset_of!(MisalignedOperand, low),
        offset_of!(MisalignedOperand, high),
    ];
    let mut all = [0; 9];
    let mut i = 0;
    while i < all.len() {
        all[i] = i / EACH.len() * size_of::<MisalignedOperand>() + EACH[i % EACH.len()];
        i += 1;
    }
    all
};

// SAFETY: repr(C) integers without padding, in the order and of the types of misaligned.cuh's MisalignedParams; the size is
// asserted here and there.
unsafe impl<const N: usize> KernelParams for MisalignedParams<N> {
    const ADDRESSES: &'static [usize] = ADDRESSES.split_at(3 * N).0;
}

/// Rows of `length` elements that lie side by side, in N operands, the last of which is the result.
pub struct MisalignedRows<'a, const N: usize> {
    pub length: u64,
    pub rows: &'a [i64],
    pub operands: [&'a Strided; N],
    /// Elements of an input that a lane holds at most: the V of the kernels.
    pub values: [u64; 2],
}

/// Where the rows of a tile lie in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// One behind the other, as in the tensor; else each has slots of its own.
    pub together: bool,
    /// Slots of 16 bytes of a piece, and of all.
    pub pitch: u64,
    pub slots: u64,
}

/// `lanes` threads to a row, each with up to `values` elements of every input in registers; `stages` tiles of the inputs
/// in shared memory and the results of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misaligned<const N: usize> {
    pub values: u64,
    pub lanes: u64,
    pub threads: u64,
    pub stages: u64,
    pub blocks_per_multiprocessor: u64,
    pub pieces: [Pieces; N],
}

impl<const N: usize> Misaligned<N> {
    pub fn tile_rows(&self) -> u64 {
        self.threads / self.lanes
    }

    fn stage_slots(&self) -> u64 {
        self.pieces[..N - 1].iter().map(|pieces| pieces.slots).sum()
    }

    fn shared_bytes(&self) -> u64 {
        (self.stages * self.stage_slots() + self.pieces[N - 1].slots) * VECTOR_BYTES
    }
}

impl<const N: usize> MisalignedRows<'_, N> {
    /// Whether all operands' rows begin and end with whole vectors.
    pub fn whole(&self) -> bool {
        self.operands.iter().all(|operand| {
            let bytes = |elements: u64| elements * operand.dtype.size() as u64;
            let steps = operand.strides.iter().map(|s| s.unsigned_abs()).chain([self.length]);
            steps.fold(operand.address as u64, |bits, step| bits | bytes(step)).is_multiple_of(VECTOR_BYTES)
        })
    }

    /// Whether tiles are faster than to move the ends of rows element by element: measured in
    /// docs/measurements/softmax_misaligned.md and docs/measurements/softmax_backward_misaligned.md.
    pub fn pays(&self) -> bool {
        let short = self.operands[0].dtype.size() == 2 && self.length < SHORT;
        !self.whole() && (short || !self.alike())
    }

    /// Whether rows are short, and lie one behind the other from a vector's begin on in operands of one dtype: of such, a
    /// thread each has one in softmax_short.cu and softmax_backward_short.cu.
    pub fn in_line(&self) -> bool {
        let first = self.operands[0];
        first.dtype.size() <= 4
            && self.length * first.dtype.size() as u64 <= SHORT_BYTES
            && self.count() / SHORT_THREADS < MAX_BLOCKS
            && self.operands.iter().all(|operand| {
                let aligned = (operand.address as u64).is_multiple_of(VECTOR_BYTES);
                operand.dtype == first.dtype && aligned && self.pieces(operand, 1).together
            })
    }

    /// Whether equal indices of all operands lie equally beside boundaries of vectors.
    pub fn alike(&self) -> bool {
        let first = self.operands[0];
        let beside = |a: usize, b: usize| a.wrapping_sub(b).is_multiple_of(VECTOR_BYTES as usize);
        self.operands[1..].iter().all(|other| {
            let bytes = |stride: i64| (stride * other.dtype.size() as i64) as usize;
            let mut steps = first.strides.iter().zip(&other.strides);
            first.dtype.size() == other.dtype.size()
                && beside(first.address, other.address)
                && steps.all(|(&a, &b)| beside(bytes(a), bytes(b)))
        })
    }

    /// Why they are taken this way.
    pub fn why(&self, instead: &'static str) -> Reason {
        let bytes = |elements: u64| elements * self.operands[0].dtype.size() as u64;
        // A lone element at an end of a row of pairs has room beside them.
        let most = MOST_THREADS * self.values[1] + self.unit() - 1;
        let metrics = [("bytes of a row", bytes(self.length)), ("at most", bytes(most))];
        Reason::new(
            NAME,
            instead,
            "not all rows begin and end with 16 aligned bytes, and a block holds one",
            metrics,
        )
    }

    fn count(&self) -> u64 {
        self.rows.iter().product::<i64>().unsigned_abs()
    }

    /// UNIT in staged.cuh.
    fn unit(&self) -> u64 {
        if self.operands[0].dtype.size() == 2 { 2 } else { 1 }
    }

    /// None for rows that registers do not hold, or a tile of which shared memory does not; and for float64, of which an
    /// element by itself is an access of 8 bytes.
    pub fn choose(&self, device: &DeviceFacts, stages: Option<u64>) -> Option<Misaligned<N>> {
        let between = |operand: &&Strided| !operand.address.is_multiple_of(operand.dtype.size());
        if self.operands[0].dtype.size() == 8 || self.operands.iter().any(between) {
            return None;
        }
        let [few, many] = self.values;
        let unit = self.unit();
        let units = (self.length / unit).max(1);
        let lanes_for = |values: u64| units.div_ceil(values / unit).next_power_of_two().max(unit);
        let (values, lanes) = match (lanes_for(few), lanes_for(many)) {
            (lanes @ ..=32, _) => (few, lanes),
            (_, lanes @ ..=32) => (many, lanes),
            _ => (many, units.div_ceil(many / unit).next_multiple_of(32)),
        };
        if lanes > MOST_THREADS {
            return None;
        }
        let rows = self.count();
        let mut threads = if lanes > 32 { lanes } else { MOST_THREADS };
        // Few rows: smaller tiles, so that every multiprocessor has some.
        let enough = |threads: u64| rows / (threads / lanes) >= u64::from(device.multiprocessors);
        while lanes <= 32 && threads > LEAST_THREADS && !enough(threads) {
            threads /= 2;
        }
        let pieces = self.operands.map(|operand| self.pieces(operand, threads / lanes));
        let with = |stages: u64| {
            let misaligned =
                Misaligned { values, lanes, threads, stages, blocks_per_multiprocessor: 0, pieces };
            let shared = misaligned.shared_bytes() + STATIC_SHARED;
            // What __launch_bounds__ promises the registers for.
            let at_once = MOST_THREADS * if values == few { 4 } else { 3 };
            let blocks = (at_once.min(u64::from(device.threads_per_multiprocessor)) / threads)
                .min(u64::from(device.shared_bytes_per_multiprocessor) / shared);
            let fits = shared <= u64::from(device.shared_bytes_per_block) && blocks > 0;
            fits.then_some(Misaligned { blocks_per_multiprocessor: blocks, ..misaligned })
        };
        match stages {
            Some(stages) => (1..=stages.clamp(1, 4)).rev().find_map(with),
            // Without asynchronous copies there is nothing to be ahead with.
            None if device.compute_capability < (8, 0) => with(1),
            // Two blocks to a multiprocessor at least: one stores while another computes.
            None => with(2).filter(|misaligned| misaligned.blocks_per_multiprocessor > 1).or(with(1)),
        }
    }

    fn pieces(&self, operand: &Strided, tile_rows: u64) -> Pieces {
        let size = operand.dtype.size() as u64;
        let mut step = self.length.cast_signed();
        let together = self.rows.iter().zip(&operand.strides).rev().all(|(rows, &stride)| {
            let follows = stride == step;
            step *= rows;
            follows
        });
        let bytes = self.length * size * if together { tile_rows } else { 1 };
        // The most that lies before a piece in its first vector.
        let before = match together && bytes.is_multiple_of(VECTOR_BYTES) {
            true => operand.address as u64 % VECTOR_BYTES,
            false => VECTOR_BYTES - size,
        };
        let slots = (before + bytes).div_ceil(VECTOR_BYTES);
        if together {
            return Pieces { together, pitch: slots, slots };
        }
        // Odd: so that rows begin in different banks.
        let pitch = slots | 1;
        Pieces { together, pitch, slots: pitch * tile_rows }
    }

    pub fn plan(
        &self,
        device: &DeviceFacts,
        misaligned: Misaligned<N>,
        kernel: Kernel,
        log: bool,
        why: Option<Reason>,
    ) -> LaunchPlan<MisalignedParams<N>> {
        let tiles = self.count().div_ceil(misaligned.tile_rows());
        let mut begin = 0;
        let operands = std::array::from_fn(|i| {
            let (pieces, operand) = (misaligned.pieces[i], self.operands[i]);
            let (low, high) = index::span(self.length, self.rows, operand);
            // The result's lie behind all stages.
            let first = if i + 1 == N { misaligned.stages * misaligned.stage_slots() } else { begin };
            begin += pieces.slots;
            MisalignedOperand {
                address: operand.address as u64,
                low,
                high,
                together: u32::from(pieces.together),
                pitch: pieces.pitch as u32,
                begin: first as u32,
                unused: 0,
                by_pitch: Divisor::new(pieces.pitch),
            }
        });
        let strides: [&[i64]; N] = self.operands.map(|operand| &*operand.strides);
        let (dims, rank) = index::dims(self.rows, strides);
        let blocks = u64::from(device.multiprocessors) * misaligned.blocks_per_multiprocessor;
        let params = MisalignedParams {
            operands,
            rows: self.count(),
            tiles,
            length: self.length as u32,
            tile_rows: misaligned.tile_rows() as u32,
            lanes: misaligned.lanes as u32,
            trips: (self.length / self.unit()).div_ceil(misaligned.lanes) as u32,
            stages: misaligned.stages as u32,
            stage_slots: misaligned.stage_slots() as u32,
            log: u32::from(log),
            rank,
            dims,
        };
        let blocks = tiles.min(blocks).min(MAX_BLOCKS) as u32;
        let settings = vec![
            ("lanes", misaligned.lanes),
            ("rows", misaligned.tile_rows()),
            ("stages", misaligned.stages),
        ];
        LaunchPlan {
            settings,
            why: why.into_iter().collect(),
            ..LaunchPlan::new(
                kernel,
                blocks,
                misaligned.threads as u32,
                misaligned.shared_bytes() as u32,
                params,
            )
        }
    }
}

#[cfg(test)]
pub mod tests;
