//! What matmul_wgmma_few.cu is told.

use std::mem::{offset_of, size_of};

use super::MAPS;
use crate::cuda::plan::KernelParams;
use crate::cuda::plan::index::Divisor;
use crate::cuda::tensor_map::TensorMap;

/// `FewParams` of kernels/common/wgmma_few.cuh. Strides in elements.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FewParams {
    pub by_columns: Divisor,
    pub tiles_n: u32,
    pub stages: u32,
    pub k_blocks: u32,
    pub a_mn: u32,
    pub a_bytes: u16,
    pub a_tail_bytes: u16,
    pub b_bytes: u16,
    pub b_tail_bytes: u16,
    pub m: u32,
    pub n: u32,
    pub activation: u32,
    pub negative_slope: f32,
    pub store_elements: u32,
    pub residual_vector: u32,
    /// 0: none.
    pub bias: usize,
    pub bias_row: i64,
    pub out: usize,
    pub out_row: i64,
    pub out_col: i64,
    /// 0: none.
    pub residual: usize,
    pub residual_row: i64,
    pub residual_col: i64,
    /// Of a, of its last tile, and the same of b and of the gate.
    pub maps: [TensorMap; MAPS],
    /// From the gate's bias to that of a.
    pub bias_up: i64,
    pub unused: [u64; 7],
}

const _: () = {
    assert!(size_of::<FewParams>() == 960 && offset_of!(FewParams, bias) == 64);
    assert!(offset_of!(FewParams, maps) == 128 && offset_of!(FewParams, bias_up) == 896);
};

// SAFETY: repr(C) integers and floats without padding, in the order and of the types of FewParams in
// kernels/common/wgmma_few.cuh; both sides assert the size and offsets above.
unsafe impl KernelParams for FewParams {
    const ADDRESSES: &'static [usize] =
        &[offset_of!(FewParams, bias), offset_of!(FewParams, out), offset_of!(FewParams, residual)];
}
