//! What matmul_split.cu and matmul_bf16x6.cu are told.

use std::mem::{offset_of, size_of};

use super::super::{Oriented, WgmmaParams};
use crate::cuda::plan::KernelParams;
use crate::cuda::plan::matmul::repack::{OPERAND_ADDRESSES, RepackOperand};

/// `SplitParams` of matmul_split.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplitParams {
    pub operand: [RepackOperand; 2],
    /// A word of each block.
    pub extremes: usize,
    pub first_blocks: u32,
    /// Bit i: operand i is contiguous along k.
    pub k_major: u32,
}

const _: () = assert!(size_of::<SplitParams>() == 320 && offset_of!(SplitParams, extremes) == 304);

// SAFETY: repr(C) integers without padding, in the order and of the types of matmul_split.cu's SplitParams; the size is
// asserted here and there.
unsafe impl KernelParams for SplitParams {
    const ADDRESSES: &'static [usize] = &{
        const NEXT: usize = size_of::<RepackOperand>();
        let [from, to] = OPERAND_ADDRESSES;
        [from, to, NEXT + from, NEXT + to, offset_of!(SplitParams, extremes)]
    };
}

/// `Bf16x6Params` of kernels/common/wgmma_bf16x6.cuh. Strides in elements, batch dimensions innermost first.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bf16x6Params {
    /// Of the product of the parts.
    pub wgmma: WgmmaParams,
    pub a: usize,
    pub b: usize,
    pub a_row: i64,
    pub a_col: i64,
    pub b_row: i64,
    pub b_col: i64,
    pub a_batch: [i64; 3],
    pub b_batch: [i64; 3],
    pub extremes: usize,
    /// Words of a, and of both operands.
    pub a_extremes: u32,
    pub all_extremes: u32,
    pub k: u32,
    pub unused: [u32; 3],
}

impl Bf16x6Params {
    /// Of one product, without the extremes of its operands.
    pub fn new(wgmma: WgmmaParams, p: &Oriented) -> Bf16x6Params {
        Bf16x6Params {
            wgmma,
            a: p.a.address,
            b: p.b.address,
            a_row: p.a.row_stride,
            a_col: p.a.col_stride,
            b_row: p.b.row_stride,
            b_col: p.b.col_stride,
            a_batch: [0; 3],
            b_batch: [0; 3],
            extremes: 0,
            a_extremes: 0,
            all_extremes: 0,
            k: p.k as u32,
            unused: [0; 3],
        }
    }
}

const _: () = {
    assert!(size_of::<Bf16x6Params>() == 1472);
    assert!(offset_of!(Bf16x6Params, a) == 1344);
    assert!(offset_of!(Bf16x6Params, extremes) == 1440);
    assert!(offset_of!(Bf16x6Params, k) == 1456);
};

// SAFETY: repr(C) integers and floats without padding, in the order and of the types of Bf16x6Params in
// kernels/common/wgmma_bf16x6.cuh; both sides assert the size and offsets above.
unsafe impl KernelParams for Bf16x6Params {
    const ADDRESSES: &'static [usize] = &[
        WgmmaParams::ADDRESSES[0],
        WgmmaParams::ADDRESSES[1],
        WgmmaParams::ADDRESSES[2],
        WgmmaParams::ADDRESSES[3],
        WgmmaParams::ADDRESSES[4],
        offset_of!(Bf16x6Params, a),
        offset_of!(Bf16x6Params, b),
        offset_of!(Bf16x6Params, extremes),
    ];
}

const _: () = assert!(WgmmaParams::ADDRESSES.len() == 5 && offset_of!(Bf16x6Params, wgmma) == 0);
