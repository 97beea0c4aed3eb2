//! What matmul_skinny.cu and matmul_skinny_simt.cu are told.

use std::mem::{offset_of, size_of};

use crate::cuda::plan::KernelParams;
use crate::cuda::plan::matmul::{INLINE_RANK, MatmulParams};

/// `SkinnyParams` of kernels/common/skinny.cuh.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SkinnyParams {
    /// The weights are its a.
    pub product: MatmulParams<INLINE_RANK>,
    /// 0 where no sums go through memory.
    pub partials: usize,
    pub part_k: i64,
    pub parts: u32,
    pub by_rows: u32,
    pub width: u32,
    pub height: u32,
    pub b_chunks: u32,
    pub clustered: u32,
}

const _: () = {
    let product = size_of::<MatmulParams<INLINE_RANK>>();
    assert!(size_of::<SkinnyParams>() == product + 40);
    assert!(offset_of!(SkinnyParams, partials) == product);
    assert!(offset_of!(SkinnyParams, b_chunks) == product + 32);
};

// SAFETY: repr(C) integers and floats without padding, in the order and of the types of SkinnyParams in
// kernels/common/skinny.cuh; both sides assert the size and offsets above.
unsafe impl KernelParams for SkinnyParams {
    fn settings(&self) -> Vec<(&'static str, u64)> {
        let (tiles_m, tiles_n) = (self.product.order.tiles_m, self.product.order.tiles_n);
        let settings =
            [("tiles_m", tiles_m), ("tiles_n", tiles_n), ("parts", self.parts), ("cluster", self.cluster())];
        settings.map(|(name, value)| (name, u64::from(value))).to_vec()
    }

    fn cluster(&self) -> u32 {
        if self.clustered != 0 { self.parts } else { 1 }
    }
}
