//! The operands of a product as kernels take them, and how they can be loaded.

use crate::dtype::DType;
use crate::ops::matmul::{MatmulProblem, Matrix, Wide};

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
    ["a cannot be loaded in 16-byte vectors", "b cannot be loaded in 16-byte vectors"];

/// The problem, transposed so that the result's rows are what is contiguous: out^T = b^T a^T otherwise.
#[derive(Debug)]
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
    pub residual: Option<Matrix>,
    pub wide: Option<Wide>,
    pub transposed: bool,
    /// What to say of `a`, and of `b`, under their callers' names.
    pub cannot_load: [&'static str; 2],
    /// Of a and b: whether rows end with padding up to whole vectors, zeros that may be read.
    pub padded: [bool; 2],
}

impl Oriented {
    pub fn new(p: &MatmulProblem) -> Oriented {
        if down_columns(p.m, p.n, &p.out) { Oriented::transposed(p) } else { Oriented::straight(p) }
    }

    /// The other way round than `new`.
    pub fn swapped(p: &MatmulProblem) -> Oriented {
        if down_columns(p.m, p.n, &p.out) { Oriented::straight(p) } else { Oriented::transposed(p) }
    }

    pub fn straight(p: &MatmulProblem) -> Oriented {
        let (bias, bias_col) = p.bias.as_ref().map_or((0, 0), |bias| (bias.address, bias.stride));
        Oriented {
            m: p.m,
            n: p.n,
            k: p.k,
            a: p.a.clone(),
            b: p.b.clone(),
            out: p.out.clone(),
            bias,
            bias_row: 0,
            bias_col,
            residual: p.residual.clone(),
            wide: p.wide,
            transposed: false,
            cannot_load: CANNOT_LOAD,
            padded: [false; 2],
        }
    }

    pub fn transposed(p: &MatmulProblem) -> Oriented {
        let transposed = |x: &Matrix| Matrix {
            row_stride: x.col_stride,
            col_stride: x.row_stride,
            batch_strides: x.batch_strides.clone(),
            ..*x
        };
        let straight = Oriented::straight(p);
        Oriented {
            m: p.n,
            n: p.m,
            a: transposed(&p.b),
            b: transposed(&p.a),
            out: transposed(&p.out),
            bias_row: straight.bias_col,
            bias_col: 0,
            residual: p.residual.as_ref().map(transposed),
            transposed: true,
            cannot_load: [CANNOT_LOAD[1], CANNOT_LOAD[0]],
            ..straight
        }
    }

    /// How a and b can be read.
    pub fn accesses(&self, dtype: DType) -> [Access; 2] {
        let size = |size: i64, padded: bool| match padded {
            true => size.unsigned_abs().next_multiple_of(16) as i64,
            false => size,
        };
        let [m, n] = [size(self.m, self.padded[0]), size(self.n, self.padded[1])];
        let [a_k, b_k] = self.padded.map(|padded| size(self.k, padded));
        [
            access(&self.a, self.a.row_stride, self.a.col_stride, m, a_k, dtype),
            access(&self.b, self.b.col_stride, self.b.row_stride, n, b_k, dtype),
        ]
    }

    /// Whether as many neighbouring columns as a thread holds (four, or 16 bytes) are always aligned.
    pub fn rows_allow_vectors(&self, dtype: DType) -> bool {
        allows_vectors(&self.out, self.out.col_stride, (self.m, self.out.row_stride), dtype)
    }
}

/// Whether neighbours in memory are those of a column of an m by n result.
pub fn down_columns(m: i64, n: i64, out: &Matrix) -> bool {
    m > 1 && (n == 1 || out.row_stride.unsigned_abs() < out.col_stride.unsigned_abs())
}

/// Whether four (or 16 bytes of) neighbours from a multiple of four on, `stride` apart, are always aligned.
pub fn allows_vectors(out: &Matrix, stride: i64, (lead, lead_stride): (i64, i64), dtype: DType) -> bool {
    let bytes = 16.min(4 * dtype.size()) as u32;
    // The stride of a dimension of size 1 is never taken.
    let lead_stride = if lead > 1 { lead_stride } else { 0 };
    stride == 1 && alignment(out, lead_stride, dtype) >= bytes
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
