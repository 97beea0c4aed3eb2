//! Column tiles in registers: kernels/softmax_register_tile.cu.

use crate::cuda::plan::limits::{LINE_BYTES, MOST_SLICES, SECTOR_BYTES};
use std::mem::offset_of;

use super::{INLINE_RANK, MAX_BLOCKS, VECTOR_BYTES, column_access, columns, pair_suffix, partial_bytes};
use crate::cuda::plan::index::{self, Dim};
use crate::cuda::plan::{Kernel, KernelParams, LaunchPlan, settings};
use crate::dtype::DType;
use crate::ops::softmax::{Kind, SoftmaxProblem};

/// RANK in softmax_register_tile.cu.
const RANK: usize = INLINE_RANK + 1;
/// Threads that let several blocks share a multiprocessor, and the most of a block.
const THREADS: [u64; 2] = [256, 512];
/// Rows of the tensor up to this long, in bytes, are not divided among tiles: the rows of a tile are then packed.
const WHOLE: u64 = 512;
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
    partials: u64,
    across: u32,
    slice: u32,
    pub(super) slices: u32,
    merge_threads: u32,
    log: u32,
    rank: u32,
    dims: [Dim<2>; RANK],
}

// The same number is asserted in softmax_register_tile.cu.
const _: () = assert!(size_of::<RegisterTileParams>() == 88 + 40 * RANK);

// SAFETY: repr(C) integers without padding, in the order and of the types of softmax_register_tile.cu's
// RegisterTileParams. Both sides assert its size.
unsafe impl KernelParams for RegisterTileParams {
    const ADDRESSES: &'static [usize] = &[
        offset_of!(RegisterTileParams, x),
        offset_of!(RegisterTileParams, out),
        offset_of!(RegisterTileParams, partials),
    ];
}

/// `across` contiguous accesses of `elements`; `threads` / `across` threads of each of `slices` blocks share a column,
/// and a block has `slice` rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegisterTile {
    pub elements: u64,
    pub across: u64,
    pub threads: u64,
    pub slice: u64,
    pub slices: u64,
    /// Whether the blocks of the slices are a cluster (of one, if there is one); else there are two launches.
    pub cluster: bool,
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

fn contiguous_columns(p: &SoftmaxProblem) -> u64 {
    columns(p).map_or(1, |(_, columns)| columns)
}

/// Rows that a thread has in registers, for an access of `elements`: the K of EXPORT in softmax_register_tile.cu.
fn rows_per_thread(dtype: DType, elements: u64) -> u64 {
    match (dtype, elements) {
        (DType::F64, 2) => 4,
        (DType::F64, _) | (DType::F32, _) => 8,
        _ => 16,
    }
}

/// The widest access that a kernel has and that every row of x, every row of the result and the number of columns
/// allow.
pub fn access_elements(p: &SoftmaxProblem) -> Option<u64> {
    let (inner, columns) = columns(p)?;
    let (x_size, out_size) = (p.x.dtype.size() as u64, p.out.dtype.size() as u64);
    // The strides of a column of one element do not matter.
    let steps = if p.length > 1 { [p.x_stride, p.out_stride] } else { [0; 2] };
    let x = u64::from(column_access(p.x.address, p.x.dtype, &p.x.strides[..inner], steps[0]));
    let out = u64::from(column_access(p.out.address, p.out.dtype, &p.out.strides[..inner], steps[1]));
    let widths: &[u64] = match p.x.dtype {
        DType::F64 => &[2, 1],
        DType::F32 => &[4],
        _ => &[1],
    };
    let fits =
        |&e: &u64| columns.is_multiple_of(e) && x >= e * x_size && out >= VECTOR_BYTES.min(e * out_size);
    widths.iter().copied().find(fits)
}

/// About `accesses` contiguous accesses, out of `all`: as many as divide the columns evenly.
fn evenly(accesses: u64, all: u64) -> u64 {
    all.div_ceil(all.div_ceil(accesses.clamp(1, all)))
}

/// The tile that leaves no column to more than `most` blocks of a cluster, nor to fewer than `least`.
pub fn of_cluster(p: &SoftmaxProblem, least: u64, most: u64) -> Option<RegisterTile> {
    let elements = access_elements(p)?;
    let bytes = elements * p.x.dtype.size() as u64;
    let k = rows_per_thread(p.x.dtype, elements);
    let all = contiguous_columns(p) / elements;
    let length = p.length.unsigned_abs();
    // Blocks with work for every thread's registers only.
    if least > 1 && length < least * k {
        return None;
    }
    for threads in THREADS {
        for width in [LINE_BYTES, LINE_BYTES / 2, SECTOR_BYTES] {
            let narrow = if all * bytes <= WHOLE { all } else { (width / bytes).clamp(1, all) };
            // Short columns: wider tiles, so that no thread is idle.
            let widest = threads.min(WIDEST / elements);
            let across = (threads / length.div_ceil(k * least)).clamp(narrow.min(widest), widest);
            let across = evenly(across, all);
            let blocks = length.div_ceil(k * (threads / across)).next_power_of_two().max(least);
            if blocks > most {
                continue;
            }
            let slice = length.div_ceil(blocks);
            let down = slice.div_ceil(k).min(threads / across);
            let threads = (across * down).next_multiple_of(32);
            return Some(RegisterTile { elements, across, threads, slice, slices: blocks, cluster: true });
        }
    }
    None
}

/// Tiles, a sector wide or as wide as the rows, in about as many slices as to make `blocks` in all.
pub fn of_slices(p: &SoftmaxProblem, blocks: u64) -> Option<RegisterTile> {
    let elements = access_elements(p)?;
    let bytes = elements * p.x.dtype.size() as u64;
    let k = rows_per_thread(p.x.dtype, elements);
    let all = contiguous_columns(p) / elements;
    let across = evenly(if all * bytes <= WHOLE { all } else { SECTOR_BYTES / bytes }, all);
    let length = p.length.unsigned_abs();
    let tiles = p.row_count().unsigned_abs() / contiguous_columns(p) * all.div_ceil(across);
    for threads in THREADS.into_iter().filter(|&threads| threads >= across) {
        let most = k * (threads / across);
        let slice = length.div_ceil(blocks.div_ceil(tiles).max(1)).clamp(1, most);
        let slices = length.div_ceil(slice);
        let threads = (across * slice.div_ceil(k)).next_multiple_of(32);
        if slices <= MOST_SLICES {
            return Some(RegisterTile { elements, across, threads, slice, slices, cluster: false });
        }
    }
    None
}

/// Tiles of one sector's width.
pub fn narrowest(p: &SoftmaxProblem) -> u64 {
    let columns = contiguous_columns(p);
    p.row_count().unsigned_abs() / columns * (columns * p.x.dtype.size() as u64).div_ceil(SECTOR_BYTES)
}

pub fn plan(
    p: &SoftmaxProblem,
    tile: RegisterTile,
    partials: usize,
) -> (Option<Kernel>, LaunchPlan<RegisterTileParams>) {
    let (inner, columns) = columns(p).unwrap_or((p.rows.len(), 1));
    let RegisterTile { elements, across, threads, slice, slices, cluster } = tile;
    let wide = tile.wide();
    // The tiles of a row are one more dimension.
    let with = |dims: &[i64], last: u64| -> Vec<i64> {
        dims[..inner].iter().copied().chain([last.cast_signed()]).collect()
    };
    let shape = with(&p.rows, columns.div_ceil(wide));
    let (dims, rank) = index::dims(&shape, [&with(&p.x.strides, wide), &with(&p.out.strides, wide)]);
    let down = threads / across;
    let merged = if cluster { down } else { slices };
    let merge_threads = (threads / wide).clamp(1, merged.min(32));
    let params = RegisterTileParams {
        x: p.x.address as u64,
        out: p.out.address as u64,
        length: p.length.unsigned_abs(),
        columns,
        tiles: tile.count(p),
        x_stride: p.x_stride,
        out_stride: p.out_stride,
        partials: partials as u64,
        across: across as u32,
        slice: slice as u32,
        slices: slices as u32,
        merge_threads: merge_threads as u32,
        log: u32::from(p.kind == Kind::LogSoftmax),
        rank,
        dims,
    };
    let blocks_of_column = if cluster { slices } else { 1 };
    let exchanged = down * (wide | 1) + (merge_threads + blocks_of_column + 1) * wide;
    let pair = pair_suffix(p.x.dtype, p.out.dtype).unwrap_or_default();
    let kernel = |role: &str| Kernel {
        file: "softmax_register_tile",
        name: format!("softmax_register_tile{elements}{role}_{pair}"),
    };
    let main = kernel(if cluster { "" } else { "_combine" });
    let blocks = params.tiles.saturating_mul(slices).min(MAX_BLOCKS / slices * slices) as u32;
    let shared = (exchanged * partial_bytes(p)) as u32;
    let launch = LaunchPlan {
        cluster: blocks_of_column as u32,
        settings: settings([
            ("across", across),
            ("rows", slice),
            ("slices", slices),
            ("cluster", blocks_of_column),
        ]),
        ..LaunchPlan::new(main, blocks, threads as u32, shared, params)
    };
    ((!cluster).then(|| kernel("_partial")), launch)
}
