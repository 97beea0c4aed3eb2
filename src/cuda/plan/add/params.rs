//! What the kernels of kernels/add*.cu are told.

use std::mem::offset_of;

use crate::cuda::plan::KernelParams;
use crate::cuda::plan::index::{Dim, Divisor, MAX_RANK};
use crate::cuda::plan::limits::INLINE_RANK;

/// Bits of `flags`, as in kernels/common/add.cuh.
pub const SAME_DTYPE: u32 = 1;
pub const X_TRANSPOSED: u32 = 2;
pub const Y_TRANSPOSED: u32 = 4;
pub const ALIGNED: u32 = 8;
pub const ROW_X: u32 = 16;

/// The mirror of `AddParams` in kernels/common/add.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AddParams<const RANK: usize> {
    pub x: u64,
    pub y: u64,
    pub out: u64,
    pub elements: u64,
    pub vectors: u64,
    pub alpha: u64,
    pub scalar: u64,
    pub head: u32,
    pub y_size: u32,
    pub items: u64,
    pub groups: u64,
    pub x_bytes: [u64; 2],
    pub y_bytes: [u64; 2],
    pub by_vectors: Divisor,
    pub by_groups: Divisor,
    pub row_step: u64,
    pub vector_step: u64,
    pub steps: [i64; 3],
    pub span: u64,
    pub group_step: u32,
    pub x_tag: u32,
    pub y_tag: u32,
    pub x_size: u32,
    pub x_one: u32,
    pub y_one: u32,
    pub flags: u32,
    pub rank: u32,
    pub dims: [Dim<3>; RANK],
}

// The same numbers are asserted in add.cuh.
const _: () = assert!(offset_of!(AddParams<INLINE_RANK>, dims) == 224);
const _: () = assert!(size_of::<AddParams<INLINE_RANK>>() == 224 + 48 * INLINE_RANK);
const _: () = assert!(size_of::<AddParams<MAX_RANK>>() == 224 + 48 * MAX_RANK);
const _: () = assert!(size_of::<AddParams<MAX_RANK>>() < 4096);

// SAFETY: repr(C) integers without padding, in the order and of the types of add.cuh's AddParams; size and the offset
// of the last field are asserted here and there.
unsafe impl<const RANK: usize> KernelParams for AddParams<RANK> {
    const ADDRESSES: &'static [usize] = &[
        offset_of!(AddParams<RANK>, x),
        offset_of!(AddParams<RANK>, x_bytes),
        offset_of!(AddParams<RANK>, x_bytes) + 8,
        offset_of!(AddParams<RANK>, y),
        offset_of!(AddParams<RANK>, y_bytes),
        offset_of!(AddParams<RANK>, y_bytes) + 8,
        offset_of!(AddParams<RANK>, out),
    ];
}
