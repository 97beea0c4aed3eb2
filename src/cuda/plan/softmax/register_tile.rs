//! Column tiles in registers: kernels/softmax_register_tile.cu.

use std::mem::offset_of;

use super::{
    INLINE_RANK, MAX_BLOCKS, columns, contiguous_columns, pair_suffix, partial_bytes, widest_access,
};
use crate::cuda::plan::index::{self, Dim};
use crate::cuda::plan::limits::{LINE_BYTES, SECTOR_BYTES};
use crate::cuda::plan::{Kernel, KernelParams, LaunchPlan, settings};
use crate::dtype::DType;
use crate::ops::softmax::{Kind, SoftmaxProblem};

/// RANK in softmax_register_tile.cu.
const RANK: usize = INLINE_RANK + 1;
/// Threads of a block, of which several share a multiprocessor, and the most of a block that has whole rows.
const THREADS: u64 = 256;
const MOST_THREADS: u64 = 512;
/// Rows of the tensor up to this long, in bytes, are not divided among tiles: the rows of a tile are then packed.
const WHOLE: u64 = 512;
/// The fewest columns of a tile of divided rows: two launches are faster than narrower ones.
const NARROWEST: u64 = 16;
/// The most columns of a tile: more would take shared memory that other blocks could use.
const WIDEST: u64 = 1024;

/// `RegisterTileParams` of kernels/softmax_register_tile.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegisterTileParams {
    x: u64,
    out: u64,
    length: u64,
    columns: u64,
    pub(super) tiles: u64,
    x_stride: i64,
    out_stride: i64,
    across: u32,
    merge_threads: u32,
    log: u32,
    rank: u32,
    dims: [Dim<2>; RANK],
}

// The same number is asserted in softmax_register_tile.cu.
const _: () = assert!(size_of::<RegisterTileParams>() == 72 + 40 * RANK);

// SAFETY: repr(C) integers without padding, in the order and of the types of softmax_register_tile.cu's
// RegisterTileParams. Both sides assert its size.
unsafe impl KernelParams for RegisterTileParams {
    const ADDRESSES: &'static [usize] =
        &[offset_of!(RegisterTileParams, x), offset_of!(RegisterTileParams, out)];
}

/// `across` contiguous accesses of `elements`; `threads` / `across` threads share a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterTile {
    pub elements: u64,
    pub across: u64,
    pub threads: u64,
}

impl RegisterTile {
    /// Columns.
    pub fn wide(&self) -> u64 {
        self.across * self.elements
    }

    /// Tiles that cover the problem.
    pub fn count(&self, p: &SoftmaxProblem) -> u64 {
        let columns = contiguous_columns(p);
        p.row_count().unsigned_abs() / columns * columns.div_ceil(self.wide())
    }
}

/// Elements of an access, the most first, and rows that a thread has in registers: EXPORT in softmax_register_tile.cu.
fn accesses(dtype: DType) -> &'static [(u64, u64)] {
    match dtype {
        DType::F64 => &[(2, 4), (1, 8)],
        DType::F32 => &[(4, 8)],
        _ => &[(1, 16)],
    }
}

/// About `accesses` contiguous accesses, out of `all`: as many as divide the columns evenly.
fn evenly(accesses: u64, all: u64) -> u64 {
    all.div_ceil(all.div_ceil(accesses.clamp(1, all)))
}

/// What the tiles of a problem may be.
struct Choices {
    elements: u64,
    /// Rows that a thread has.
    rows: u64,
    /// Accesses along a row, the most first, and the threads of a block.
    across: Vec<(u64, u64)>,
}

fn choices(p: &SoftmaxProblem) -> Option<Choices> {
    let (elements, rows) = widest_access(p, accesses(p.x.dtype))?;
    let size = p.x.dtype.size() as u64;
    let all = contiguous_columns(p) / elements;
    let widest = THREADS.min(WIDEST / elements);
    let across = if all * elements * size <= WHOLE {
        [THREADS, MOST_THREADS].map(|threads| (all.min(widest), threads)).into()
    } else {
        let widths = [LINE_BYTES, LINE_BYTES / 2, SECTOR_BYTES].into_iter();
        let widths = widths.filter(|width| *width >= NARROWEST * size);
        widths.map(|width| (evenly((width / size / elements).min(widest), all), THREADS)).collect()
    };
    Some(Choices { elements, rows, across })
}

/// The longest columns that the registers of a block hold.
pub fn longest(p: &SoftmaxProblem) -> u64 {
    let last = |of: Choices| of.across.last().map(|(across, threads)| of.rows * (threads / across));
    choices(p).and_then(last).unwrap_or(0)
}

/// A tile whose columns the registers of one block hold.
pub fn fit(p: &SoftmaxProblem) -> Option<RegisterTile> {
    let Choices { elements, rows, across } = choices(p)?;
    let needed = p.length.unsigned_abs().div_ceil(rows);
    let (narrow, threads) = across.into_iter().find(|(across, threads)| needed <= threads / across)?;
    // Short columns: wider tiles, so that no thread is idle.
    let widest = THREADS.min(WIDEST / elements);
    let across = evenly((threads / needed).clamp(narrow, widest), contiguous_columns(p) / elements);
    Some(RegisterTile { elements, across, threads: (across * needed).next_multiple_of(32) })
}

pub fn plan(p: &SoftmaxProblem, tile: RegisterTile) -> LaunchPlan<RegisterTileParams> {
    let (inner, columns) = columns(p).unwrap_or((p.rows.len(), 1));
    let RegisterTile { elements, across, threads } = tile;
    let wide = tile.wide();
    // The tiles of a row are one more dimension.
    let with = |dims: &[i64], last: u64| -> Vec<i64> {
        dims[..inner].iter().copied().chain([last.cast_signed()]).collect()
    };
    let shape = with(&p.rows, columns.div_ceil(wide));
    let (dims, rank) = index::dims(&shape, [&with(&p.x.strides, wide), &with(&p.out.strides, wide)]);
    let down = threads / across;
    let merge_threads = (threads / wide).clamp(1, down.min(32));
    let params = RegisterTileParams {
        x: p.x.address as u64,
        out: p.out.address as u64,
        length: p.length.unsigned_abs(),
        columns,
        tiles: tile.count(p),
        x_stride: p.x_stride,
        out_stride: p.out_stride,
        across: across as u32,
        merge_threads: merge_threads as u32,
        log: u32::from(p.kind == Kind::LogSoftmax),
        rank,
        dims,
    };
    let exchanged = down * (wide | 1) + (merge_threads + 1) * wide;
    let pair = pair_suffix(p.x.dtype, p.out.dtype).unwrap_or_default();
    let kernel =
        Kernel { file: "softmax_register_tile", name: format!("softmax_register_tile{elements}_{pair}") };
    let blocks = params.tiles.min(MAX_BLOCKS) as u32;
    let shared = (exchanged * partial_bytes(p)) as u32;
    LaunchPlan {
        settings: settings([("across", across)]),
        ..LaunchPlan::new(kernel, blocks, threads as u32, shared, params)
    }
}
