//! The operands of a product as kernels take them, and how they can be loaded.

use crate::dtype::DType;
use crate::ops::matmul::{MatmulProblem, Matrix};

/// How an operand reaches shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// 16 bytes at once, along k or along the dimension shared with the result.
    AlongK,
    AlongMn,
    /// Single elements: no more bytes than these are always aligned and side by side.
    Elements {
        bytes: u32,
    },
}

/// What `Reason`s say of a and b.
const CANNOT_LOAD: [&str; 2] =
    ["a cannot be loaded in whole accesses of 16 bytes", "b cannot be loaded in whole accesses of 16 bytes"];

/// The problem, turned so that the result's rows are what is contiguous: out^T = b^T a^T otherwise.
pub struct Oriented {
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub a: Matrix,
    pub b: Matrix,
    pub out: Matrix,
    pub bias: usize,
    pub bias_row: i64,
    pub bias_col: i64,
    /// What to say of `a`, and of `b`, under their callers' names.
    pub cannot_load: [&'static str; 2],
}

impl Oriented {
    pub fn new(p: &MatmulProblem) -> Oriented {
        let (bias, step) = p.bias.as_ref().map_or((0, 0), |bias| (bias.address, bias.stride));
        let by_columns =
            p.m > 1 && (p.n == 1 || p.out.row_stride.unsigned_abs() < p.out.col_stride.unsigned_abs());
        let transposed = |x: &Matrix| Matrix {
            row_stride: x.col_stride,
            col_stride: x.row_stride,
            batch_strides: x.batch_strides.clone(),
            ..*x
        };
        if by_columns {
            let (a, b, out) = (transposed(&p.b), transposed(&p.a), transposed(&p.out));
            let cannot_load = [CANNOT_LOAD[1], CANNOT_LOAD[0]];
            Oriented { m: p.n, n: p.m, k: p.k, a, b, out, bias, bias_row: step, bias_col: 0, cannot_load }
        } else {
            let (a, b, out) = (p.a.clone(), p.b.clone(), p.out.clone());
            let cannot_load = CANNOT_LOAD;
            Oriented { m: p.m, n: p.n, k: p.k, a, b, out, bias, bias_row: 0, bias_col: step, cannot_load }
        }
    }

    /// Whether as many neighbouring columns as a thread holds (four, or 16 bytes) are always aligned.
    pub fn rows_allow_vectors(&self, dtype: DType) -> bool {
        let bytes = 16.min(4 * dtype.size()) as u32;
        let row = if self.m > 1 { self.out.row_stride } else { 0 };
        self.out.col_stride == 1 && alignment(&self.out, row, dtype) >= bytes
    }
}

/// How an operand can be read whose strides are `mn_stride` along the dimension it shares with the result
/// (of size `mn`) and `k_stride`: 16 bytes at once if it consists of nothing else.
pub fn access(x: &Matrix, mn_stride: i64, k_stride: i64, mn: i64, k: i64, dtype: DType) -> Access {
    let together = |unit: i64, unit_size: i64, lead: i64, lead_size: i64| {
        // The stride of a dimension of size 1 is never taken.
        let lead = if lead_size > 1 { lead } else { 0 };
        let size_bits = (unit_size as usize).wrapping_mul(dtype.size()) | 16;
        if unit == 1 { alignment(x, lead, dtype).min(1 << size_bits.trailing_zeros()) } else { 0 }
    };
    match (together(k_stride, k, mn_stride, mn), together(mn_stride, mn, k_stride, k)) {
        (16, _) => Access::AlongK,
        (_, 16) => Access::AlongMn,
        (along_k, along_mn) => Access::Elements { bytes: along_k.max(along_mn).max(dtype.size() as u32) },
    }
}

/// The largest of 1 to 16 bytes that divides the address of every row's first element.
pub fn alignment(x: &Matrix, lead: i64, dtype: DType) -> u32 {
    let steps = x.batch_strides.iter().fold(lead, |all, &stride| all | stride);
    let low_bits = (steps as usize).wrapping_mul(dtype.size()) | x.address | 16;
    1 << low_bits.trailing_zeros()
}

pub fn k_fast(mn_stride: i64, k_stride: i64, mn: i64, k: i64) -> bool {
    mn <= 1 || k > 1 && k_stride.unsigned_abs() <= mn_stride.unsigned_abs()
}
