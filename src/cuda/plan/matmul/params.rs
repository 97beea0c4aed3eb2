//! What the matmul kernels are told.

use std::fmt;
use std::mem::{offset_of, size_of};

use super::addends::{self, Addends};
use super::{Oriented, activation, k_fast, products};
use crate::cuda::plan::KernelParams;
use crate::cuda::plan::index::{self, Dim, Divisor, MAX_RANK};
use crate::cuda::plan::tile_order::{TileOrder, group_m};
use crate::ops::matmul::MatmulProblem;

/// The mirror of `MatmulParams<RANK>` in kernels/common/matmul.cuh. Strides in elements.
#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub struct MatmulParams<const RANK: usize = MAX_RANK> {
    pub a: usize,
    pub b: usize,
    /// 0: none.
    pub bias: usize,
    pub out: usize,
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub a_row: i64,
    pub a_col: i64,
    pub b_row: i64,
    pub b_col: i64,
    pub out_row: i64,
    pub out_col: i64,
    /// One of the two is 0.
    pub bias_row: i64,
    pub bias_col: i64,
    pub negative_slope: f64,
    /// Tiles of all products. The grid may hold a few more.
    pub blocks: u64,
    pub per_product: Divisor,
    pub order: TileOrder,
    pub activation: u32,
    /// For kernels that load single elements: whether neighbouring threads step along k.
    pub a_k_fast: u32,
    pub b_k_fast: u32,
    /// Whether a thread's neighbouring columns may be written at once.
    pub out_vector: u32,
    /// At least 1.
    pub batch_rank: u32,
    /// Of matmul_dmma: k whose products are summed alone, at most 2^31 - 1.
    pub part_k: u32,
    pub addends: Addends,
    /// Strides of a, b, out, residual.
    pub batch: [Dim<4>; RANK],
}

const _: () = {
    assert!(size_of::<MatmulParams>() == 304 + 56 * MAX_RANK && size_of::<MatmulParams>() < 4096);
    assert!(size_of::<MatmulParams<1>>() == 304 + 56);
    assert!(offset_of!(MatmulParams, a_row) == 56);
    assert!(offset_of!(MatmulParams, negative_slope) == 120);
    assert!(offset_of!(MatmulParams, order) == 152);
    assert!(offset_of!(MatmulParams, addends) == 240);
};

impl<const RANK: usize> MatmulParams<RANK> {
    /// For tiles of this size, `concurrent` of which run at the same time. At most RANK batch dimensions.
    pub(super) fn new(
        problem: &MatmulProblem,
        p: &Oriented,
        tile: (u32, u32),
        concurrent: u32,
    ) -> MatmulParams<RANK> {
        let along = |size: i64, tile: u32| u32::try_from(size.unsigned_abs().div_ceil(u64::from(tile)));
        let tiles_m = along(p.m, tile.0).unwrap_or(u32::MAX);
        let tiles_n = along(p.n, tile.1).unwrap_or(u32::MAX);
        let per_product = u64::from(tiles_m) * u64::from(tiles_n);
        let residual = p.residual.as_ref().unwrap_or(&p.out);
        let strides = [&p.a, &p.b, &p.out, residual].map(|x| x.batch_strides.as_slice());
        let (batch, batch_rank) = index::dims(&problem.batch, strides);
        let (activation, negative_slope) = activation(problem.activation);
        MatmulParams {
            a: p.a.address,
            b: p.b.address,
            bias: p.bias,
            out: p.out.address,
            m: p.m,
            n: p.n,
            k: p.k,
            a_row: p.a.row_stride,
            a_col: p.a.col_stride,
            b_row: p.b.row_stride,
            b_col: p.b.col_stride,
            out_row: p.out.row_stride,
            out_col: p.out.col_stride,
            bias_row: p.bias_row,
            bias_col: p.bias_col,
            negative_slope,
            blocks: per_product.saturating_mul(products(problem)),
            per_product: Divisor::new(per_product),
            order: TileOrder::new(tiles_m, tiles_n, group_m(tiles_m, tiles_n, tile, concurrent)),
            activation,
            a_k_fast: u32::from(k_fast(p.a.row_stride, p.a.col_stride, p.m, p.k)),
            b_k_fast: u32::from(k_fast(p.b.col_stride, p.b.row_stride, p.n, p.k)),
            out_vector: u32::from(p.rows_allow_vectors(problem.dtype)),
            batch_rank,
            part_k: 0,
            addends: Addends::along_rows(p, problem.dtype),
            batch,
        }
    }
}

// SAFETY: repr(C) integers and floats without padding, in the order and of the types of MatmulParams<MAX_RANK> in
// kernels/common/matmul.cuh; both sides assert the size and offsets above.
unsafe impl KernelParams for MatmulParams {
    const ADDRESSES: &'static [usize] = &ADDRESSES;
}

/// Where the addresses lie, whatever the rank.
pub(super) const ADDRESSES: [usize; 6] = [
    offset_of!(MatmulParams, a),
    offset_of!(MatmulParams, b),
    offset_of!(MatmulParams, bias),
    offset_of!(MatmulParams, out),
    offset_of!(MatmulParams, addends) + addends::ADDRESSES[0],
    offset_of!(MatmulParams, addends) + addends::ADDRESSES[1],
];

impl<const RANK: usize> fmt::Debug for MatmulParams<RANK> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let batch = &self.batch[..self.batch_rank as usize];
        f.debug_struct("MatmulParams")
            .field("m, n, k", &(self.m, self.n, self.k))
            .field("a", &(self.a, self.a_row, self.a_col))
            .field("b", &(self.b, self.b_row, self.b_col))
            .field("out", &(self.out, self.out_row, self.out_col))
            .field("batch", &batch)
            .field("bias", &(self.bias, self.bias_row, self.bias_col))
            .field("addends", &self.addends)
            .field("activation", &(self.activation, self.negative_slope))
            .field("blocks", &self.blocks)
            .field("order", &self.order.settings())
            .field("a_k_fast, b_k_fast", &(self.a_k_fast, self.b_k_fast))
            .field("out_vector", &self.out_vector)
            .finish()
    }
}
