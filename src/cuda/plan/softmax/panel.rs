//! Columns in shared memory: kernels/softmax_panel.cu.

use std::mem::offset_of;

use super::{INLINE_RANK, MAX_BLOCKS, VECTOR_BYTES, column_access, columns, pair_suffix, partial_bytes};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::index::{self, Dim};
use crate::cuda::plan::{Kernel, KernelParams, LaunchPlan, settings};
use crate::dtype::DType;
use crate::ops::softmax::{Kind, SoftmaxProblem};

/// RANK in kernels/common/panel.cuh.
const RANK: usize = INLINE_RANK + 1;
/// THREADS in softmax_panel.cu, and what one has of a slice, in bytes; less in two launches, where more threads are better.
const THREADS: u64 = 256;
const PER_THREAD: [u64; 2] = [256, 64];
/// Static shared memory, and what the driver keeps of every block's.
const RESERVED: u64 = 64 + 1024;
/// Partials that a thread merges by itself, and that a block may add up.
const FEW_PARTIALS: u64 = 16;
pub const MOST_SLICES: u64 = 1024;
/// A slice of this size is worth a block; where columns are so short that it is less, panels are wider.
const WORTH_A_BLOCK: u64 = 16 << 10;
/// Widths of panels: a line of memory at best, and parts of it where columns are long.
const LINE: u64 = 128;
const WIDEST: u64 = 1024;
/// Rows of the tensor up to this long, in bytes, are not divided among panels, unless between lines where columns are
/// long: a panel is then all in one piece.
const WHOLE: u64 = 512;

/// `PanelParams` of kernels/common/panel.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PanelParams {
    x: u64,
    out: u64,
    length: u64,
    columns: u64,
    x_stride: i64,
    out_stride: i64,
    partials: u64,
    pub(super) words: u32,
    pub(super) pieces: u32,
    pub(super) access: u32,
    slice: u32,
    pub(super) slices: u32,
    parts: u32,
    log: u32,
    rank: u32,
    dims: [Dim<2>; RANK],
}

// The same number is asserted in panel.cuh.
const _: () = assert!(size_of::<PanelParams>() == 88 + 40 * RANK);

// SAFETY: repr(C) integers without padding, in the order and of the types of panel.cuh's PanelParams, whose size is
// asserted here and there.
unsafe impl KernelParams for PanelParams {
    const ADDRESSES: &'static [usize] =
        &[offset_of!(PanelParams, x), offset_of!(PanelParams, out), offset_of!(PanelParams, partials)];
}

/// `wide` columns, in words of `word` bytes, of whose rows each of `slices` blocks has `slice`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Panel {
    pub word: u64,
    pub wide: u64,
    pub threads: u64,
    pub slice: u64,
    pub slices: u64,
    /// The slices' blocks are a cluster (of one, if there is one); else two launches do the work.
    pub cluster: bool,
}

impl Panel {
    /// Panels that cover the problem.
    pub fn count(&self, p: &SoftmaxProblem) -> u64 {
        let columns = side_by_side(p);
        p.row_count().unsigned_abs() / columns * columns.div_ceil(self.wide)
    }

    pub fn blocks(&self, p: &SoftmaxProblem) -> u64 {
        self.count(p).saturating_mul(self.slices)
    }

    pub fn row_bytes(&self, p: &SoftmaxProblem) -> u64 {
        self.wide * p.x.dtype.size() as u64
    }

    /// Partials of a column that the launch which finishes it merges in a block.
    fn merged(&self, p: &SoftmaxProblem) -> u64 {
        if self.cluster { self.groups(p) } else { self.slices }
    }

    /// Threads, or warps whose lanes share columns, below each other.
    fn groups(&self, p: &SoftmaxProblem) -> u64 {
        let words = self.row_bytes(p) / self.word;
        if words < 32 && 32 % words == 0 { self.threads / 32 } else { self.threads / words }
    }

    /// Threads that merge the partials of one column.
    fn parts(&self, p: &SoftmaxProblem) -> u64 {
        match self.merged(p) {
            0..=FEW_PARTIALS => 1,
            merged => (self.threads / self.wide).clamp(1, merged.div_ceil(8)),
        }
    }

    pub fn shared_bytes(&self, p: &SoftmaxProblem) -> u64 {
        let blocks = if self.cluster && self.slices > 1 { self.slices } else { 0 };
        let parts = if self.parts(p) > 1 { self.parts(p) } else { 0 };
        let exchanged = (self.groups(p) + parts + blocks + 1) * self.wide;
        (self.slice * self.row_bytes(p)).next_multiple_of(VECTOR_BYTES) + exchanged * partial_bytes(p)
    }
}

fn side_by_side(p: &SoftmaxProblem) -> u64 {
    columns(p).map_or(1, |(_, columns)| columns)
}

/// Bytes of the words that rows of x, of the result and the number of columns allow; None: not even 4.
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

/// Whether the rows of a panel of all columns lie one behind the other.
fn in_one_piece(p: &SoftmaxProblem, wide: u64) -> bool {
    let columns = side_by_side(p);
    wide == columns && (p.x_stride == columns.cast_signed() || p.length == 1)
}

/// Bytes of a copy, and copies of a panel's row; 0 if its rows lie one behind the other.
fn copies(p: &SoftmaxProblem, wide: u64) -> (u64, u64) {
    let inner = columns(p).map_or(0, |(inner, _)| inner);
    let size = p.x.dtype.size() as u64;
    let access = u64::from(column_access(p.x.address, p.x.dtype, &p.x.strides[..inner], 0));
    if in_one_piece(p, wide) {
        return (access, 0);
    }
    let step = if p.length > 1 { p.x_stride.unsigned_abs() } else { 0 };
    let access = [step, wide, side_by_side(p)].iter().fold(access, |a, n| a.min(lowest_bit(n * size)));
    (access, wide * size / access)
}

/// Widths that panels may have, in bytes, the best first.
pub fn widths(p: &SoftmaxProblem) -> Vec<u64> {
    let row = side_by_side(p) * p.x.dtype.size() as u64;
    let line = LINE.min(row);
    let length = p.length.unsigned_abs();
    let short = length.saturating_mul(row) <= WORTH_A_BLOCK;
    let whole = if row <= WHOLE && (short || !row.is_multiple_of(LINE)) { row } else { line };
    let wider = |&w: &u64| w <= row && length.saturating_mul(w) <= WORTH_A_BLOCK;
    let wider = [WIDEST, 4 * LINE, 2 * LINE].into_iter().find(wider).filter(|_| row > WHOLE);
    let mut all: Vec<u64> =
        wider.into_iter().chain([whole, LINE / 2, LINE / 4]).filter(|&w| w <= row).collect();
    all.dedup();
    all
}

/// A panel of `width` bytes in `slices` slices, or a few less where they are not a cluster's.
pub fn of_width(
    p: &SoftmaxProblem,
    width: u64,
    slices: u64,
    cluster: bool,
    device: &DeviceFacts,
) -> Option<Panel> {
    let size = p.x.dtype.size() as u64;
    let all = side_by_side(p) * size;
    // The last panel of a row may be narrower, but not of less than a word of 4 bytes.
    let word = word_bytes(p).filter(|word| width.is_multiple_of(*word) && all.is_multiple_of(4))?;
    let wide = width / size;
    let (_, pieces) = copies(p, wide);
    // Slices in one piece begin at multiples of 16 bytes.
    let unit = if pieces == 0 { VECTOR_BYTES / lowest_bit(width) } else { 1 };
    let length = p.length.unsigned_abs();
    let slice = length.div_ceil(slices.max(1)).next_multiple_of(unit);
    let slices = if cluster { slices } else { length.div_ceil(slice) };
    let per_thread = PER_THREAD[usize::from(!cluster)];
    let threads = (slice * width / per_thread).clamp(1, THREADS).max(width / word).max(pieces);
    let panel = Panel { word, wide, threads: threads.next_multiple_of(32), slice, slices, cluster };
    let fits = panel.threads <= THREADS
        && panel.shared_bytes(p) + RESERVED <= u64::from(device.shared_bytes_per_block)
        && panel.blocks(p) <= MAX_BLOCKS
        && slices <= MOST_SLICES;
    fits.then_some(panel)
}

/// Whether so many blocks of a panel share a multiprocessor.
pub fn shares(p: &SoftmaxProblem, panel: &Panel, blocks: u64, device: &DeviceFacts) -> bool {
    (panel.shared_bytes(p) + RESERVED) * blocks <= u64::from(device.shared_bytes_per_multiprocessor)
}

/// Panels in about as many slices as to make `blocks` in all, more where they would not fit.
pub fn of_slices(p: &SoftmaxProblem, blocks: u64, device: &DeviceFacts) -> Option<Panel> {
    let width = *widths(p).first()?;
    let whole = of_count(p, width);
    let most = (u64::from(device.shared_bytes_per_multiprocessor) / 3 - 2 * RESERVED).min(64 << 10);
    let bytes = p.length.unsigned_abs().saturating_mul(width);
    let slices = blocks.div_ceil(whole).max(bytes.div_ceil(most)).min(p.length.unsigned_abs());
    of_width(p, width, slices, false, device)
}

fn of_count(p: &SoftmaxProblem, width: u64) -> u64 {
    let columns = side_by_side(p);
    p.row_count().unsigned_abs() / columns * columns.div_ceil(width / p.x.dtype.size() as u64)
}

pub fn plan(p: &SoftmaxProblem, panel: Panel, partials: usize) -> (Option<Kernel>, LaunchPlan<PanelParams>) {
    let (inner, columns) = columns(p).unwrap_or((p.rows.len(), 1));
    let Panel { word, wide, threads, slice, slices, cluster } = panel;
    // The panels side by side are one more dimension.
    let with = |dims: &[i64], last: u64| -> Vec<i64> {
        dims[..inner].iter().copied().chain([last.cast_signed()]).collect()
    };
    let shape = with(&p.rows, columns.div_ceil(wide));
    let (dims, rank) = index::dims(&shape, [&with(&p.x.strides, wide), &with(&p.out.strides, wide)]);
    let (access, pieces) = copies(p, wide);
    let params = PanelParams {
        x: p.x.address as u64,
        out: p.out.address as u64,
        length: p.length.unsigned_abs(),
        columns,
        x_stride: p.x_stride,
        out_stride: p.out_stride,
        partials: partials as u64,
        words: (panel.row_bytes(p) / word) as u32,
        pieces: pieces as u32,
        access: access as u32,
        slice: slice as u32,
        slices: slices as u32,
        parts: panel.parts(p) as u32,
        log: u32::from(p.kind == Kind::LogSoftmax),
        rank,
        dims,
    };
    let pair = pair_suffix(p.x.dtype, p.out.dtype).unwrap_or_default();
    let kernel =
        |role: &str| Kernel { file: "softmax_panel", name: format!("softmax_panel{word}{role}_{pair}") };
    let main = kernel(if cluster { "" } else { "_find" });
    let shared = panel.shared_bytes(p) as u32;
    let blocks_of_column = if cluster { slices } else { 0 };
    let launch = LaunchPlan {
        cluster: blocks_of_column as u32,
        settings: settings([
            ("words", u64::from(params.words)),
            ("rows", slice),
            ("slices", slices),
            ("cluster", blocks_of_column),
        ]),
        ..LaunchPlan::new(main, panel.blocks(p) as u32, threads as u32, shared, params)
    };
    ((!cluster).then(|| kernel("_leave")), launch)
}
