//! The kernels' parameters.

use std::mem::offset_of;

use super::INLINE_RANK;
use crate::cuda::plan::KernelParams;
use crate::cuda::plan::index::{Dim, MAX_RANK};

/// `BackwardParams` of kernels/common/softmax_backward.cuh, with all of its dimensions; a launch copies the
/// declared ones.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackwardParams {
    pub grad: u64,
    pub output: u64,
    pub out: u64,
    pub rows: u64,
    pub length: u64,
    pub tiles: u64,
    pub grad_stride: i64,
    pub output_stride: i64,
    pub out_stride: i64,
    pub log: u32,
    pub lane_bits: u32,
    pub output_access: u32,
    pub out_access: u32,
    pub in_tag: u32,
    pub out_tag: u32,
    pub rank: u32,
    pub slices: u32,
    pub slice_size: u64,
    pub partials: u64,
    pub dims: [Dim<3>; MAX_RANK],
}

// The same numbers are asserted in softmax_backward.cuh.
const _: () = assert!(offset_of!(BackwardParams, dims) == 120);
const _: () =
    assert!(size_of::<BackwardParams>() == 120 + 48 * MAX_RANK && size_of::<BackwardParams>() < 4096);

// SAFETY: repr(C) integers without padding, in the order and of the types of softmax_backward.cuh's
// BackwardParams<MAX_RANK>. Both sides assert size and the offset of the last field.
unsafe impl KernelParams for BackwardParams {
    const ADDRESSES: &'static [usize] = &[
        offset_of!(BackwardParams, grad),
        offset_of!(BackwardParams, output),
        offset_of!(BackwardParams, out),
        offset_of!(BackwardParams, partials),
    ];
}

pub const TILE_RANK: usize = INLINE_RANK + 1;

/// `BackwardTileParams` of kernels/softmax_backward_strided.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackwardTileParams {
    pub grad: u64,
    pub output: u64,
    pub out: u64,
    pub length: u64,
    pub columns: u64,
    pub tiles: u64,
    pub grad_stride: i64,
    pub output_stride: i64,
    pub out_stride: i64,
    pub across: u32,
    pub batches: u32,
    pub merge_threads: u32,
    pub log: u32,
    pub rank: u32,
    pub slices: u32,
    pub partials: u64,
    pub dims: [Dim<3>; TILE_RANK],
}

// The same number is asserted in softmax_backward_strided.cu.
const _: () = assert!(size_of::<BackwardTileParams>() == 104 + 48 * TILE_RANK);

// SAFETY: repr(C) integers without padding, in the order and of the types of softmax_backward_strided.cu's
// BackwardTileParams. Both sides assert its size.
unsafe impl KernelParams for BackwardTileParams {
    const ADDRESSES: &'static [usize] = &[
        offset_of!(BackwardTileParams, grad),
        offset_of!(BackwardTileParams, output),
        offset_of!(BackwardTileParams, out),
        offset_of!(BackwardTileParams, partials),
    ];
}
