//! What comes after the activation, as kernels are told.

use std::mem::{offset_of, size_of};

use super::{Matrix, Oriented, allows_vectors};
use crate::dtype::DType;

/// `Addends` of kernels/common/epilogue.cuh. Strides in elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Addends {
    /// 0: none.
    pub residual: usize,
    pub wide: usize,
    pub residual_row: i64,
    pub residual_col: i64,
    pub wide_row: i64,
    pub wide_col: i64,
    pub wide_product: i64,
    pub wide_kind: u32,
    pub residual_vector: u32,
}

const _: () = assert!(size_of::<Addends>() == 64);

/// Where the addresses lie.
pub const ADDRESSES: [usize; 2] = [offset_of!(Addends, residual), offset_of!(Addends, wide)];

impl Addends {
    /// `residual_vector`: whether neighbours may be read at once.
    pub fn new(p: &Oriented, residual_vector: bool) -> Addends {
        let mut addends = Addends::default();
        if let Some(residual) = &p.residual {
            (addends.residual, addends.residual_vector) = (residual.address, u32::from(residual_vector));
            (addends.residual_row, addends.residual_col) = (residual.row_stride, residual.col_stride);
        }
        if let Some(wide) = &p.wide {
            (addends.wide, addends.wide_kind) = (wide.address, if wide.is_result { 1 } else { 2 });
            // Row by row as the caller sees them.
            let strides = if p.transposed { (1, p.m) } else { (p.n, 1) };
            (addends.wide_row, addends.wide_col) = strides;
            addends.wide_product = p.m * p.n;
        }
        addends
    }

    /// Rows for columns.
    pub fn transposed(self) -> Addends {
        Addends {
            residual_row: self.residual_col,
            residual_col: self.residual_row,
            wide_row: self.wide_col,
            wide_col: self.wide_row,
            ..self
        }
    }

    /// The same of columns next to each other, as many as `rows_allow_vectors` speaks of.
    pub fn along_rows(p: &Oriented, dtype: DType) -> Addends {
        Addends::new(p, p.residual_allows_vectors(dtype))
    }
}

impl Oriented {
    /// As `rows_allow_vectors`, of the residual.
    pub fn residual_allows_vectors(&self, dtype: DType) -> bool {
        let allows = |x: &Matrix| allows_vectors(x, x.col_stride, (self.m, x.row_stride), dtype);
        self.residual.as_ref().is_some_and(allows)
    }

    /// The same of rows next to each other.
    pub fn residual_allows_vectors_down(&self, dtype: DType) -> bool {
        let allows = |x: &Matrix| allows_vectors(x, x.row_stride, (self.n, x.col_stride), dtype);
        self.residual.as_ref().is_some_and(allows)
    }
}
