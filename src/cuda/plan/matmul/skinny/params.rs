//! What matmul_skinny.cu and matmul_skinny_simt.cu are told.

use std::mem::{offset_of, size_of};

use crate::cuda::plan::KernelParams;
use crate::cuda::plan::limits::INLINE_RANK;
use crate::cuda::plan::matmul::MatmulParams;
use crate::cuda::plan::matmul::params::ADDRESSES;

/// `SkinnyParams` of kernels/common/skinny.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SkinnyParams {
    /// The weights are its a.
    pub product: MatmulParams<INLINE_RANK>,
    /// 0 where no sums go through memory.
    pub partials: usize,
    pub k_per_split: i64,
    pub splits: u32,
    pub by_rows: u32,
    pub width: u32,
    pub height: u32,
    pub b_vectors: u32,
    pub cluster_splitk: u32,
}

const _: () = {
    let product = size_of::<MatmulParams<INLINE_RANK>>();
    assert!(size_of::<SkinnyParams>() == product + 40);
    assert!(offset_of!(SkinnyParams, partials) == product);
    assert!(offset_of!(SkinnyParams, b_vectors) == product + 32);
};

// SAFETY: repr(C) integers and floats without padding, in the order and of the types of SkinnyParams in
// kernels/common/skinny.cuh; both sides assert the size and offsets above.
unsafe impl KernelParams for SkinnyParams {
    const ADDRESSES: &'static [usize] = &{
        let [a, b, bias, out, residual, wide] = ADDRESSES;
        [a, b, bias, out, residual, wide, offset_of!(SkinnyParams, partials)]
    };
}
