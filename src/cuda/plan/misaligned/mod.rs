//! Tiles of misaligned rows, through shared memory: common to the plans of kernels/softmax_misaligned.cu and
//! kernels/softmax_backward_misaligned.cu.

use crate::cuda::plan::limits::{INLINE_RANK, MAX_BLOCKS, STATIC_SHARED, VECTOR_BYTES};
use std::mem::offset_of;

use super::index::{self, Dim, Divisor};
use super::reason::Reason;
use super::{Kernel, KernelParams, LaunchPlan};
use crate::cuda::device::DeviceFacts;
use crate::ops::Strided;

/// THREADS in the kernels' files, and the fewest threads of a block.
const MOST_THREADS: u64 = 256;
const LEAST_THREADS: u64 = 64;
/// Elements of a row of halves below which tiles are faster than single elements of head and tail.
const TILES_BELOW: u64 = 48;
/// THREADS in softmax_short.cu and softmax_backward_short.cu, and the most bytes of a row there.
pub const SHORT_THREADS: u64 = 128;
pub const SHORT_ROW_BYTES: u64 = 132;

/// The variant in the kernels' names, and in explain.
pub const NAME: &str = "misaligned";

/// `MisalignedOperand` of kernels/common/misaligned.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
struct MisalignedOperand {
    address: u64,
    low: u64,
    high: u64,
    packed: u32,
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
    pub units_per_lane: u32,
    stages: u32,
    stage_vectors: u32,
    log: u32,
    rank: u32,
    dims: [Dim<N>; INLINE_RANK],
}

// The same numbers are asserted in misaligned.cuh.
const _: () =
    assert!(size_of::<MisalignedOperand>() == 56 && offset_of!(MisalignedParams<2>, rows) == 2 * 56);
const _: () = assert!(size_of::<MisalignedParams<2>>() == 2 * 56 + 48 + 40 * INLINE_RANK);
const _: () = assert!(size_of::<MisalignedParams<3>>() == 3 * 56 + 48 + 48 * INLINE_RANK);

/// The offsets of the addresses of up to three operands in the parameters.
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

// SAFETY: repr(C) integers without padding, in the order and of the types of misaligned.cuh's MisalignedParams. Both
// sides assert the size.
unsafe impl<const N: usize> KernelParams for MisalignedParams<N> {
    const ADDRESSES: &'static [usize] = ADDRESSES.split_at(3 * N).0;
}

/// Rows of `length` contiguous elements in N operands, the last of which is the result.
pub struct MisalignedRows<'a, const N: usize> {
    pub length: u64,
    pub rows: &'a [i64],
    pub operands: [&'a Strided; N],
    /// The most elements of an input in the registers of a lane: the V of the kernels.
    pub values: [u64; 2],
}

/// The rows of a tile of an operand in shared memory, as ranges of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedRows {
    /// All rows are one range, as in the tensor; else each row is a range.
    pub packed: bool,
    /// Vectors of a range, and of all.
    pub pitch: u64,
    pub vectors: u64,
}

/// `lanes` threads to a row, each with up to `values` elements of every input in registers; `stages` tiles of the
/// inputs in shared memory and the results of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misaligned<const N: usize> {
    pub values: u64,
    pub lanes: u64,
    pub threads: u64,
    pub stages: u64,
    pub blocks_per_multiprocessor: u64,
    pub shared: [SharedRows; N],
}

impl<const N: usize> Misaligned<N> {
    pub fn tile_rows(&self) -> u64 {
        self.threads / self.lanes
    }

    fn stage_vectors(&self) -> u64 {
        self.shared[..N - 1].iter().map(|rows| rows.vectors).sum()
    }

    fn shared_bytes(&self) -> u64 {
        (self.stages * self.stage_vectors() + self.shared[N - 1].vectors) * VECTOR_BYTES
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

    /// Whether tiles are faster than single elements of head and tail: measured in
    /// docs/measurements/softmax_misaligned.md and docs/measurements/softmax_backward_misaligned.md.
    pub fn pays(&self) -> bool {
        let short = self.operands[0].dtype.size() == 2 && self.length < TILES_BELOW;
        !self.whole() && (short || !self.alike())
    }

    /// Whether rows are short, packed from a 16-byte boundary on, and of one dtype: softmax_short.cu and
    /// softmax_backward_short.cu then give each thread a row.
    pub fn thread_per_row(&self) -> bool {
        let first = self.operands[0];
        first.dtype.size() <= 4
            && self.length * first.dtype.size() as u64 <= SHORT_ROW_BYTES
            && self.count() / SHORT_THREADS < MAX_BLOCKS
            && self.operands.iter().all(|operand| {
                let aligned = (operand.address as u64).is_multiple_of(VECTOR_BYTES);
                operand.dtype == first.dtype && aligned && self.shared_rows(operand, 1).packed
            })
    }

    /// Whether elements of one index have the same offset from a 16-byte boundary in all operands.
    pub fn alike(&self) -> bool {
        let first = self.operands[0];
        let same_offset = |a: usize, b: usize| a.wrapping_sub(b).is_multiple_of(VECTOR_BYTES as usize);
        self.operands[1..].iter().all(|other| {
            let bytes = |stride: i64| (stride * other.dtype.size() as i64) as usize;
            let mut steps = first.strides.iter().zip(&other.strides);
            first.dtype.size() == other.dtype.size()
                && same_offset(first.address, other.address)
                && steps.all(|(&a, &b)| same_offset(bytes(a), bytes(b)))
        })
    }

    /// Why tiles are chosen.
    pub fn why(&self, instead: &'static str) -> Reason {
        let bytes = |elements: u64| elements * self.operands[0].dtype.size() as u64;
        // A single element before or behind the pairs of halves comes in addition.
        let most = MOST_THREADS * self.values[1] + self.unit() - 1;
        let metrics = [("bytes of a row", bytes(self.length)), ("at most", bytes(most))];
        Reason::new(
            NAME,
            instead,
            "not all rows begin and end at 16-byte boundaries, and the registers of a block hold one",
            metrics,
        )
    }

    fn count(&self) -> u64 {
        self.rows.iter().product::<i64>().unsigned_abs()
    }

    /// UNIT in shared_reads.cuh.
    fn unit(&self) -> u64 {
        if self.operands[0].dtype.size() == 2 { 2 } else { 1 }
    }

    /// None for rows that do not fit registers, and tiles that do not fit shared memory; and for float64, whose single
    /// elements are accesses of 8 bytes.
    pub fn choose(&self, device: &DeviceFacts, stages: Option<u64>) -> Option<Misaligned<N>> {
        let inside_element = |operand: &&Strided| !operand.address.is_multiple_of(operand.dtype.size());
        if self.operands[0].dtype.size() == 8 || self.operands.iter().any(inside_element) {
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
        let shared = self.operands.map(|operand| self.shared_rows(operand, threads / lanes));
        let with = |stages: u64| {
            let misaligned =
                Misaligned { values, lanes, threads, stages, blocks_per_multiprocessor: 0, shared };
            let bytes = misaligned.shared_bytes() + STATIC_SHARED;
            // The blocks that __launch_bounds__ guarantees registers for.
            let at_once = MOST_THREADS * if values == few { 4 } else { 3 };
            let blocks = (at_once.min(u64::from(device.threads_per_multiprocessor)) / threads)
                .min(u64::from(device.shared_bytes_per_multiprocessor) / bytes);
            let fits = bytes <= u64::from(device.shared_bytes_per_block) && blocks > 0;
            fits.then_some(Misaligned { blocks_per_multiprocessor: blocks, ..misaligned })
        };
        match stages {
            Some(stages) => (1..=stages.clamp(1, 4)).rev().find_map(with),
            // Without asynchronous copies a second stage has no use.
            None if device.compute_capability < (8, 0) => with(1),
            // Two blocks to a multiprocessor at least: one stores while another computes.
            None => with(2).filter(|misaligned| misaligned.blocks_per_multiprocessor > 1).or(with(1)),
        }
    }

    fn shared_rows(&self, operand: &Strided, tile_rows: u64) -> SharedRows {
        let size = operand.dtype.size() as u64;
        let mut step = self.length.cast_signed();
        let packed = self.rows.iter().zip(&operand.strides).rev().all(|(rows, &stride)| {
            let follows = stride == step;
            step *= rows;
            follows
        });
        let bytes = self.length * size * if packed { tile_rows } else { 1 };
        // The most bytes between the begin of a range's first vector and the range.
        let before = match packed && bytes.is_multiple_of(VECTOR_BYTES) {
            true => operand.address as u64 % VECTOR_BYTES,
            false => VECTOR_BYTES - size,
        };
        let vectors = (before + bytes).div_ceil(VECTOR_BYTES);
        if packed {
            return SharedRows { packed, pitch: vectors, vectors };
        }
        // Odd: so that rows begin in different banks.
        let pitch = vectors | 1;
        SharedRows { packed, pitch, vectors: pitch * tile_rows }
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
            let (shared, operand) = (misaligned.shared[i], self.operands[i]);
            let (low, high) = index::span(self.length, self.rows, operand);
            // The result's rows come after all stages.
            let first = if i + 1 == N { misaligned.stages * misaligned.stage_vectors() } else { begin };
            begin += shared.vectors;
            MisalignedOperand {
                address: operand.address as u64,
                low,
                high,
                packed: u32::from(shared.packed),
                pitch: shared.pitch as u32,
                begin: first as u32,
                unused: 0,
                by_pitch: Divisor::new(shared.pitch),
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
            units_per_lane: (self.length / self.unit()).div_ceil(misaligned.lanes) as u32,
            stages: misaligned.stages as u32,
            stage_vectors: misaligned.stage_vectors() as u32,
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
