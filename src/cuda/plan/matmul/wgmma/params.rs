//! What matmul_wgmma.cu and matmul_reduce.cu are told.

use std::fmt;
use std::mem::{offset_of, size_of};

use crate::cuda::plan::KernelParams;
use crate::cuda::tensor_map::TensorMap;

/// `WgmmaParams` of kernels/common/wgmma_shape.cuh. Strides in elements, batch dimensions innermost first.
#[repr(C, align(64))]
#[derive(Clone, Copy, PartialEq)]
pub struct WgmmaParams {
    /// Of a, b, the result, and the result in boxes as wide as what is left of a tile's last panel. Filled in when
    /// the kernel is launched.
    pub maps: [TensorMap; 4],
    /// 0: none.
    pub bias: usize,
    pub result: usize,
    /// 0: none.
    pub partials: usize,
    pub bias_stride: i64,
    pub out_row: i64,
    pub out_col: i64,
    pub out_batch: [i64; 3],
    pub m: u32,
    pub n: u32,
    pub k_blocks: u32,
    pub tiles_m: u32,
    pub tiles_n: u32,
    pub group_m: u32,
    pub products: u32,
    pub splits: u32,
    pub batch_size: [u32; 2],
    pub batched: u32,
    pub a_mn: u32,
    pub b_mn: u32,
    pub stages: u32,
    pub stage_bytes: u32,
    pub activation: u32,
    pub negative_slope: f32,
    pub bias_by_row: u32,
    pub store_elements: u32,
    pub a_batches: u32,
    pub b_batches: u32,
    pub unused: [u32; 9],
}

const _: () = {
    assert!(size_of::<WgmmaParams>() == 704);
    assert!(offset_of!(WgmmaParams, bias) == 512);
    assert!(offset_of!(WgmmaParams, m) == 584);
    assert!(offset_of!(WgmmaParams, store_elements) == 656);
};

// SAFETY: repr(C) integers and floats without padding, in the order and of the types of WgmmaParams in
// kernels/common/wgmma_shape.cuh; both sides assert the size and offsets above.
unsafe impl KernelParams for WgmmaParams {
    fn settings(&self) -> Vec<(&'static str, u64)> {
        let settings = [
            ("tiles_m", self.tiles_m),
            ("tiles_n", self.tiles_n),
            ("group_m", self.group_m),
            ("stages", self.stages),
            ("splits", self.splits),
        ];
        settings.map(|(name, value)| (name, u64::from(value))).to_vec()
    }
}

impl fmt::Debug for WgmmaParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WgmmaParams")
            .field("m, n, k_blocks", &(self.m, self.n, self.k_blocks))
            .field("out", &(self.result, self.out_row, self.out_col, self.store_elements))
            .field("bias", &(self.bias, self.bias_stride, self.bias_by_row))
            .field("activation", &(self.activation, self.negative_slope))
            .field("products", &(self.products, self.batch_size))
            .field("tiles_m, tiles_n, group_m", &(self.tiles_m, self.tiles_n, self.group_m))
            .field("stages, stage_bytes", &(self.stages, self.stage_bytes))
            .field("splits, partials", &(self.splits, self.partials))
            .field("a_mn, b_mn", &(self.a_mn, self.b_mn))
            .finish_non_exhaustive()
    }
}
