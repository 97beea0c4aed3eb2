//! Column tiles in shared memory: kernels/softmax_column_tile.cu.

use crate::cuda::plan::limits::{LINE_BYTES, SECTOR_BYTES};
use std::mem::offset_of;

use super::{
    INLINE_RANK, MAX_BLOCKS, VECTOR_BYTES, column_access, columns, contiguous_columns, pair_suffix,
    partial_bytes,
};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::index::{self, Dim};
use crate::cuda::plan::{Kernel, KernelParams, LaunchPlan, settings};
use crate::dtype::DType;
use crate::ops::softmax::{Kind, SoftmaxProblem};

/// RANK in kernels/common/column_tile.cuh.
const RANK: usize = INLINE_RANK + 1;
/// THREADS in softmax_column_tile.cu, and bytes of a slice per thread.
const THREADS: u64 = 256;
const PER_THREAD: u64 = 256;
/// Static shared memory, and the driver's share of every block's.
const RESERVED: u64 = 64 + 1024;
/// Partials of a column that one thread merges.
const FEW_PARTIALS: u64 = 16;
/// A slice of this size is worth a block; short columns get wider tiles until their slices have it.
const WORTH_A_BLOCK: u64 = 16 << 10;
const WIDEST: u64 = 1024;
/// Rows of the tensor up to this long, in bytes, are not divided among tiles, except at lines where columns are long:
/// the rows of an undivided tile are packed.
const WHOLE: u64 = 512;

/// `ColumnTileParams` of kernels/common/column_tile.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ColumnTileParams {
    x: u64,
    out: u64,
    length: u64,
    columns: u64,
    x_stride: i64,
    out_stride: i64,
    pub(super) words: u32,
    pub(super) row_copies: u32,
    pub(super) access: u32,
    slice: u32,
    pub(super) slices: u32,
    merge_threads: u32,
    log: u32,
    rank: u32,
    dims: [Dim<2>; RANK],
}

// The same number is asserted in column_tile.cuh.
const _: () = assert!(size_of::<ColumnTileParams>() == 80 + 40 * RANK);

// SAFETY: repr(C) integers without padding, in the order and of the types of column_tile.cuh's ColumnTileParams. Both
// sides assert its size.
unsafe impl KernelParams for ColumnTileParams {
    const ADDRESSES: &'static [usize] = &[offset_of!(ColumnTileParams, x), offset_of!(ColumnTileParams, out)];
}

/// `wide` columns, in words of `word` bytes; each of `slices` blocks, a cluster if there are several, has `slice` rows of
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ColumnTile {
    pub word: u64,
    pub wide: u64,
    pub threads: u64,
    pub slice: u64,
    pub slices: u64,
}

impl ColumnTile {
    /// Tiles that cover the problem.
    pub fn count(&self, p: &SoftmaxProblem) -> u64 {
        let columns = contiguous_columns(p);
        p.row_count().unsigned_abs() / columns * columns.div_ceil(self.wide)
    }

    pub fn blocks(&self, p: &SoftmaxProblem) -> u64 {
        self.count(p).saturating_mul(self.slices)
    }

    pub fn row_bytes(&self, p: &SoftmaxProblem) -> u64 {
        self.wide * p.x.dtype.size() as u64
    }

    /// Groups of threads that have partials of all columns: warps whose lanes share columns, or threads of one row.
    fn groups(&self, p: &SoftmaxProblem) -> u64 {
        let words = self.row_bytes(p) / self.word;
        if words < 32 && 32 % words == 0 { self.threads / 32 } else { self.threads / words }
    }

    /// Threads that merge the partials of one column.
    fn merge_threads(&self, p: &SoftmaxProblem) -> u64 {
        match self.groups(p) {
            0..=FEW_PARTIALS => 1,
            merged => (self.threads / self.wide).clamp(1, merged.div_ceil(8)),
        }
    }

    pub fn shared_bytes(&self, p: &SoftmaxProblem) -> u64 {
        let blocks = if self.slices > 1 { self.slices } else { 0 };
        let merge_threads = if self.merge_threads(p) > 1 { self.merge_threads(p) } else { 0 };
        let exchanged = (self.groups(p) + merge_threads + blocks + 1) * self.wide;
        (self.slice * self.row_bytes(p)).next_multiple_of(VECTOR_BYTES) + exchanged * partial_bytes(p)
    }
}

/// Bytes of the words that rows of x, rows of the result and the number of columns allow; None: not even 4.
pub fn word_bytes(p: &SoftmaxProblem) -> Option<u64> {
    let (inner, columns) = columns(p).filter(|_| p.x.dtype != DType::F64)?;
    let (size, out_size) = (p.x.dtype.size() as u64, p.out.dtype.size() as u64);
    let [x, out] = [&p.x, &p.out].map(|t| column_access(t.address, t.dtype, &t.strides[..inner], 0));
    let steps = if p.length > 1 { [p.x_stride, p.out_stride] } else { [0; 2] };
    let stepped =
        |access: u32, step: i64, size: u64| u64::from(access).min(lowest_bit(step.unsigned_abs() * size));
    let (x, out) = (stepped(x, steps[0], size), stepped(out, steps[1], out_size));
    let fits = |&word: &u64| {
        let elements = word / size;
        columns.is_multiple_of(elements) && x >= 4 && out >= VECTOR_BYTES.min(elements * out_size)
    };
    [8, 4].into_iter().find(fits)
}

/// The largest power of two up to 16 that divides `bytes`.
fn lowest_bit(bytes: u64) -> u64 {
    1 << (bytes | VECTOR_BYTES).trailing_zeros()
}

/// Whether no sector of the caches is shared by tiles of different columns.
pub fn rows_begin_on_sectors(p: &SoftmaxProblem) -> bool {
    let size = p.x.dtype.size() as u64;
    p.x_stride.unsigned_abs().saturating_mul(size).is_multiple_of(SECTOR_BYTES)
}

/// Whether a tile has all columns, and its rows are packed.
fn packed(p: &SoftmaxProblem, wide: u64) -> bool {
    let columns = contiguous_columns(p);
    wide == columns && (p.x_stride == columns.cast_signed() || p.length == 1)
}

/// Bytes of a copy, and copies of a tile's row; 0 if its rows are packed.
fn copies(p: &SoftmaxProblem, wide: u64) -> (u64, u64) {
    let inner = columns(p).map_or(0, |(inner, _)| inner);
    let size = p.x.dtype.size() as u64;
    let access = u64::from(column_access(p.x.address, p.x.dtype, &p.x.strides[..inner], 0));
    if packed(p, wide) {
        return (access, 0);
    }
    let step = if p.length > 1 { p.x_stride.unsigned_abs() } else { 0 };
    let access = [step, wide, contiguous_columns(p)].iter().fold(access, |a, n| a.min(lowest_bit(n * size)));
    (access, wide * size / access)
}

/// Widths that tiles may have, in bytes, the best first.
pub fn widths(p: &SoftmaxProblem) -> Vec<u64> {
    let row = contiguous_columns(p) * p.x.dtype.size() as u64;
    let line = LINE_BYTES.min(row);
    let length = p.length.unsigned_abs();
    let short = length.saturating_mul(row) <= WORTH_A_BLOCK;
    let whole = if row <= WHOLE && (short || !row.is_multiple_of(LINE_BYTES)) { row } else { line };
    let wider = |&w: &u64| w <= row && length.saturating_mul(w) <= WORTH_A_BLOCK;
    let wider = [WIDEST, 4 * LINE_BYTES, 2 * LINE_BYTES].into_iter().find(wider).filter(|_| row > WHOLE);
    let mut all: Vec<u64> =
        wider.into_iter().chain([whole, LINE_BYTES / 2, LINE_BYTES / 4]).filter(|&w| w <= row).collect();
    all.dedup();
    all
}

/// A tile of `width` bytes in `slices` slices.
pub fn of_width(p: &SoftmaxProblem, width: u64, slices: u64, device: &DeviceFacts) -> Option<ColumnTile> {
    let size = p.x.dtype.size() as u64;
    let all = contiguous_columns(p) * size;
    // The last tile of a row may be narrower, but not narrower than a word of 4 bytes.
    let word = word_bytes(p).filter(|word| width.is_multiple_of(*word) && all.is_multiple_of(4))?;
    let wide = width / size;
    let (_, row_copies) = copies(p, wide);
    // Slices of packed rows begin at multiples of 16 bytes.
    let unit = if row_copies == 0 { VECTOR_BYTES / lowest_bit(width) } else { 1 };
    let length = p.length.unsigned_abs();
    let slice = length.div_ceil(slices.max(1)).next_multiple_of(unit);
    let threads = (slice * width / PER_THREAD).clamp(1, THREADS).max(width / word).max(row_copies);
    let tile = ColumnTile { word, wide, threads: threads.next_multiple_of(32), slice, slices };
    let fits = tile.threads <= THREADS
        && tile.shared_bytes(p) + RESERVED <= u64::from(device.shared_bytes_per_block)
        && tile.blocks(p) <= MAX_BLOCKS;
    fits.then_some(tile)
}

/// Bytes of a tile, about, of which two blocks have room on a multiprocessor.
pub fn room(device: &DeviceFacts) -> u64 {
    u64::from(device.shared_bytes_per_multiprocessor) / 2 - 2 * RESERVED
}

/// Whether so many blocks of a tile share a multiprocessor.
pub fn shares(p: &SoftmaxProblem, tile: &ColumnTile, blocks: u64, device: &DeviceFacts) -> bool {
    (tile.shared_bytes(p) + RESERVED) * blocks <= u64::from(device.shared_bytes_per_multiprocessor)
}

pub fn plan(p: &SoftmaxProblem, tile: ColumnTile) -> LaunchPlan<ColumnTileParams> {
    let (inner, columns) = columns(p).unwrap_or((p.rows.len(), 1));
    let ColumnTile { word, wide, threads, slice, slices } = tile;
    // The tiles of a row are one more dimension.
    let with = |dims: &[i64], last: u64| -> Vec<i64> {
        dims[..inner].iter().copied().chain([last.cast_signed()]).collect()
    };
    let shape = with(&p.rows, columns.div_ceil(wide));
    let (dims, rank) = index::dims(&shape, [&with(&p.x.strides, wide), &with(&p.out.strides, wide)]);
    let (access, row_copies) = copies(p, wide);
    let params = ColumnTileParams {
        x: p.x.address as u64,
        out: p.out.address as u64,
        length: p.length.unsigned_abs(),
        columns,
        x_stride: p.x_stride,
        out_stride: p.out_stride,
        words: (tile.row_bytes(p) / word) as u32,
        row_copies: row_copies as u32,
        access: access as u32,
        slice: slice as u32,
        slices: slices as u32,
        merge_threads: tile.merge_threads(p) as u32,
        log: u32::from(p.kind == Kind::LogSoftmax),
        rank,
        dims,
    };
    let pair = pair_suffix(p.x.dtype, p.out.dtype).unwrap_or_default();
    let kernel = Kernel { file: "softmax_column_tile", name: format!("softmax_column_tile{word}_{pair}") };
    let shared = tile.shared_bytes(p) as u32;
    LaunchPlan {
        cluster: slices as u32,
        settings: settings([("words", u64::from(params.words)), ("rows", slice), ("cluster", slices)]),
        ..LaunchPlan::new(kernel, tile.blocks(p) as u32, threads as u32, shared, params)
    }
}
