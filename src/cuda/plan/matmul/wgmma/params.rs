//! What matmul_wgmma.cu and matmul_reduce.cu are told.

use std::fmt;
use std::mem::{offset_of, size_of};

use super::TileCluster;
use crate::cuda::plan::KernelParams;
use crate::cuda::plan::index::Divisor;
use crate::cuda::plan::matmul::addends::{self, Addends};
use crate::cuda::plan::tile_order::TileOrder;
use crate::cuda::tensor_map::TensorMap;

pub const MAPS: usize = 7;
/// `BY_TMA` of kernels/common/epilogue.cuh.
pub const BY_TMA: u32 = 2;
/// Bit of `b_batches`.
pub const GATED: u32 = 8;

/// `WgmmaParams` of kernels/common/wgmma_shape.cuh. Strides in elements, batch dimensions innermost first.
#[repr(C, align(64))]
#[derive(Clone, Copy, PartialEq)]
pub struct WgmmaParams {
    /// Of the tiles of a product, or of clusters of them.
    pub order: TileOrder,
    /// Tiles of all products, or clusters of them, for each k split without cluster split-K.
    pub items: u32,
    /// Of k, in every split; one more in the first few.
    pub split_blocks: u32,
    pub longer_splits: u32,
    /// `TileCluster::packed`.
    pub cluster: u32,
    pub stages: u32,
    /// In shared memory.
    pub stages_at: u32,
    /// Of a and of b, in every stage: of most tiles, and of the last row or column of tiles.
    pub a_stage_bytes: u16,
    pub a_tail_bytes: u16,
    pub b_stage_bytes: u16,
    pub b_tail_bytes: u16,
    pub a_mn: u32,
    pub b_mn: u32,
    /// No batch: maps have two dimensions, not five.
    pub flat: u32,
    pub a_batches: u32,
    pub b_batches: u32,
    pub products: u32,
    pub batch_size: [u32; 2],
    pub m: u32,
    pub n: u32,
    pub activation: u32,
    pub negative_slope: f32,
    /// 0: none.
    pub bias: usize,
    pub out: usize,
    /// 0: none.
    pub partials: usize,
    pub bias_stride: i64,
    pub out_row: i64,
    pub out_col: i64,
    pub out_batch: [i64; 3],
    pub bias_by_row: u32,
    pub store_elements: u32,
    /// The epilogue stores by TMA.
    pub tma_store: u32,
    /// Of k.
    pub splits: u32,
    /// They are a cluster.
    pub cluster_splitk: u32,
    /// Of float32: neighbours of the result in memory are those of a column.
    pub down_columns: u32,
    pub unused: [u32; 4],
    /// By the items of a k split, of a product, and by the two inner dimensions of the batch.
    pub by_split: Divisor,
    pub by_product: Divisor,
    pub by_batch: [Divisor; 2],
    pub addends: Addends,
    pub residual_batch: [i64; 3],
    /// From the gate's bias to b's.
    pub bias_up: i64,
    pub residual_batches: u32,
    pub unused_too: [u32; 7],
    /// Of a, b, its last box or its last tile if that is smaller than others, the result with tma_store, the gate, the residual
    /// that is read by TMA, and a's last tile if that is smaller. Filled in when the kernel is launched.
    pub maps: [TensorMap; MAPS],
}

const _: () = {
    assert!(size_of::<WgmmaParams>() == 1344);
    assert!(offset_of!(WgmmaParams, m) == 128);
    assert!(offset_of!(WgmmaParams, store_elements) == 220);
    assert!(offset_of!(WgmmaParams, addends) == 320);
    assert!(offset_of!(WgmmaParams, maps) == 448);
};

// SAFETY: repr(C) integers and floats without padding, in the order and of the types of WgmmaParams in
// kernels/common/wgmma_shape.cuh; both sides assert the size and offsets above.
unsafe impl KernelParams for WgmmaParams {
    const ADDRESSES: &'static [usize] = &[
        offset_of!(WgmmaParams, bias),
        offset_of!(WgmmaParams, out),
        offset_of!(WgmmaParams, partials),
        offset_of!(WgmmaParams, addends) + addends::ADDRESSES[0],
        offset_of!(WgmmaParams, addends) + addends::ADDRESSES[1],
    ];
}

impl WgmmaParams {
    pub fn is_gated(&self) -> bool {
        self.b_batches & GATED != 0
    }

    /// Whether the parts of k are a cluster.
    pub fn cluster_splitk(&self) -> bool {
        self.cluster_splitk != 0
    }
}

impl fmt::Debug for WgmmaParams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WgmmaParams")
            .field("m, n", &(self.m, self.n))
            .field("out", &(self.out, self.out_row, self.out_col, self.store_elements))
            .field("bias", &(self.bias, self.bias_stride, self.bias_by_row))
            .field("activation", &(self.activation, self.negative_slope))
            .field("products", &(self.products, self.batch_size))
            .field("order, cluster", &(self.order.settings(), TileCluster::unpacked(self.cluster)))
            .field("stages, stage_bytes", &(self.stages, self.a_stage_bytes, self.b_stage_bytes))
            .field("tail_bytes", &(self.a_tail_bytes, self.b_tail_bytes))
            .field("items, split_blocks", &(self.items, self.split_blocks, self.longer_splits))
            .field("splits", &(self.splits, self.cluster_splitk))
            .field("partials", &self.partials)
            .field("addends, gated", &(self.addends, self.is_gated()))
            .field("a_mn, b_mn, down_columns", &(self.a_mn, self.b_mn, self.down_columns))
            .finish_non_exhaustive()
    }
}
