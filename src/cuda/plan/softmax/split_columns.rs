//! Columns in two launches: kernels/softmax_split_columns.cu.

use std::mem::offset_of;

use super::{
    INLINE_RANK, MAX_BLOCKS, columns, contiguous_columns, pair_suffix, partial_bytes, widest_access,
};
use crate::cuda::plan::column_slices::{Columns, MERGE_THREADS, Slices};
use crate::cuda::plan::index::{self, Dim};
use crate::cuda::plan::{Kernel, KernelParams, LaunchPlan, settings};
use crate::dtype::DType;
use crate::ops::softmax::{Kind, SoftmaxProblem};
use crate::tensor::Dims;

/// RANK in softmax_split_columns.cu.
const RANK: usize = INLINE_RANK + 1;

/// `SplitColumnsParams` of kernels/softmax_split_columns.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitColumnsParams {
    x: u64,
    out: u64,
    length: u64,
    columns: u64,
    x_stride: i64,
    out_stride: i64,
    partials: u64,
    across: u32,
    batches: u32,
    slices: u32,
    merge_threads: u32,
    log: u32,
    rank: u32,
    dims: [Dim<2>; RANK],
}

// The same number is asserted in softmax_split_columns.cu.
const _: () = assert!(size_of::<SplitColumnsParams>() == 80 + 40 * RANK);

// SAFETY: repr(C) integers without padding, in the order and of the types of softmax_split_columns.cu's
// SplitColumnsParams. Both sides assert its size.
unsafe impl KernelParams for SplitColumnsParams {
    const ADDRESSES: &'static [usize] = &[
        offset_of!(SplitColumnsParams, x),
        offset_of!(SplitColumnsParams, out),
        offset_of!(SplitColumnsParams, partials),
    ];
}

/// Slices of columns, in accesses of `elements`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitColumns {
    pub elements: u64,
    pub slices: Slices,
}

impl SplitColumns {
    /// Columns of a tile.
    fn wide(&self) -> u64 {
        self.slices.across * self.elements
    }

    pub fn blocks(&self, p: &SoftmaxProblem) -> u64 {
        let sets = p.row_count().unsigned_abs() / contiguous_columns(p);
        sets.saturating_mul(self.slices.tiles).saturating_mul(self.slices.slices)
    }

    /// Bytes of the partials of all slices.
    pub fn workspace(&self, p: &SoftmaxProblem) -> u64 {
        self.blocks(p) * self.wide() * partial_bytes(p)
    }
}

/// Elements of an access, the most first, and rows that a thread loads at once: EXPORT in softmax_split_columns.cu.
fn accesses(dtype: DType) -> &'static [(u64, u64)] {
    match dtype {
        DType::F64 => &[(2, 4), (1, 8)],
        DType::F32 => &[(4, 8), (1, 16)],
        _ => &[(8, 8), (4, 8), (2, 16), (1, 16)],
    }
}

/// Slices for all multiprocessors, or about as many as are asked for. None if the result is not aligned to its elements,
/// or for more blocks than a launch has.
pub fn fit(p: &SoftmaxProblem, multiprocessors: u64, slices: Option<u64>) -> Option<SplitColumns> {
    let (elements, batch_rows) = widest_access(p, accesses(p.x.dtype))?;
    let all = contiguous_columns(p);
    let of_columns = Columns {
        outer: p.row_count().unsigned_abs() / all,
        length: p.length.unsigned_abs(),
        accesses: all / elements,
        access_bytes: elements * p.x.dtype.size() as u64,
        elements,
        batch_rows,
    };
    let slices = match slices {
        Some(slices) => of_columns.in_slices(slices),
        None => of_columns.slices(multiprocessors),
    };
    Some(SplitColumns { elements, slices }).filter(|split| split.blocks(p) <= MAX_BLOCKS)
}

/// The first kernel, and the launch of the second.
pub fn plan(
    p: &SoftmaxProblem,
    split: SplitColumns,
    partials: usize,
) -> (Option<Kernel>, LaunchPlan<SplitColumnsParams>) {
    let (inner, columns) = columns(p).unwrap_or((p.rows.len(), 1));
    let Slices { across, down, batches, slices, tiles } = split.slices;
    let wide = split.wide();
    let threads = split.slices.threads();
    // The tiles of a row are one more dimension.
    let with = |dims: &[i64], last: u64| -> Dims {
        dims[..inner].iter().copied().chain([last.cast_signed()]).collect()
    };
    let shape = with(&p.rows, tiles);
    let (dims, rank) = index::dims(&shape, [&with(&p.x.strides, wide), &with(&p.out.strides, wide)]);
    let merge_threads = (threads / wide).clamp(1, MERGE_THREADS);
    let params = SplitColumnsParams {
        x: p.x.address as u64,
        out: p.out.address as u64,
        length: p.length.unsigned_abs(),
        columns,
        x_stride: p.x_stride,
        out_stride: p.out_stride,
        partials: partials as u64,
        across: across as u32,
        batches: batches as u32,
        slices: slices as u32,
        merge_threads: merge_threads as u32,
        log: u32::from(p.kind == Kind::LogSoftmax),
        rank,
        dims,
    };
    let shared = (down * (wide | 1) + (merge_threads + 1) * wide) * partial_bytes(p);
    let pair = pair_suffix(p.x.dtype, p.out.dtype).unwrap_or_default();
    let kernel = |role: &str| Kernel {
        file: "softmax_split_columns",
        name: format!("softmax_split_columns{}_{role}_{pair}", split.elements),
    };
    let launch = LaunchPlan {
        settings: settings([("across", across), ("batches", batches), ("slices", slices)]),
        ..LaunchPlan::new(kernel("combine"), split.blocks(p) as u32, threads as u32, shared as u32, params)
    };
    (Some(kernel("partial")), launch)
}
