//! softmax and log_softmax along one dimension, with an optional dtype to compute and return in.

use super::output::{OutputSpec, check_out};
use super::{Addresses, Problem, Strided};
use crate::dtype::{self, DType};
use crate::error::{Error, Result};
use crate::tensor::layout::{self, Merged};
use crate::tensor::{Device, Dims, TensorView};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Softmax,
    LogSoftmax,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Softmax => "softmax",
            Kind::LogSoftmax => "log_softmax",
        }
    }

    pub fn backward_name(self) -> &'static str {
        match self {
            Kind::Softmax => "softmax_backward",
            Kind::LogSoftmax => "log_softmax_backward",
        }
    }
}

/// Independent rows of `length` elements, one for every index of `rows` (merged; empty means one row).
///
/// Each element is first converted to `out.dtype`, then computed in float32 (float64 for float64) and
/// rounded once.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftmaxProblem {
    pub device: Device,
    pub kind: Kind,
    /// Elements per row.
    pub length: i64,
    /// Step along a row, in elements.
    pub x_stride: i64,
    pub out_stride: i64,
    pub rows: Dims,
    /// Strides over `rows`.
    pub x: Strided,
    pub out: Strided,
}

impl SoftmaxProblem {
    /// Number of rows.
    pub fn row_count(&self) -> i64 {
        layout::len(&self.rows)
    }
}

impl Problem for SoftmaxProblem {
    fn op(&self) -> &'static str {
        self.kind.name()
    }

    fn device(&self) -> Device {
        self.device
    }

    fn is_empty(&self) -> bool {
        self.length == 0 || self.rows.contains(&0)
    }

    fn steps(&self) -> i64 {
        self.row_count().saturating_mul(self.length)
    }

    fn addresses(&self) -> Addresses {
        Addresses::from([self.x.address, self.out.address].as_slice())
    }

    fn is_like(&self, other: &SoftmaxProblem) -> bool {
        let SoftmaxProblem { device, kind, length, x_stride, out_stride, rows, x, out } = self;
        *device == other.device
            && *kind == other.kind
            && (*length, *x_stride, *out_stride) == (other.length, other.x_stride, other.out_stride)
            && *rows == other.rows
            && x.is_like(&other.x)
            && out.is_like(&other.out)
    }

    fn place(&mut self, addresses: &[usize]) {
        if let &[x, out] = addresses {
            (self.x.address, self.out.address) = (x, out);
        }
    }
}

/// Shape and dtype of the result; `dtype` is the caller's dtype=, if any. An x of integers or bools needs one.
pub fn output(kind: Kind, x: &TensorView, dtype: Option<DType>) -> Result<OutputSpec> {
    if dtype.is_none() && !x.dtype.is_float() {
        let accepted = dtype::list(&DType::FLOATS);
        return Err(Error::NeedsDType { op: kind.name(), got: x.dtype, accepted });
    }
    result(kind.name(), x, dtype)
}

pub(super) fn check_float(op: &'static str, argument: &'static str, x: &TensorView) -> Result<()> {
    if x.dtype.is_float() {
        return Ok(());
    }
    let accepted = dtype::list(&DType::FLOATS);
    Err(Error::DTypeNotAccepted { op, argument, got: x.dtype.to_string(), accepted })
}

/// Like `x`, of the caller's dtype=, if any.
pub(super) fn result(op: &'static str, x: &TensorView, dtype: Option<DType>) -> Result<OutputSpec> {
    let dtype = dtype.unwrap_or(x.dtype);
    if !dtype.is_float() {
        let accepted = dtype::list(&DType::FLOATS);
        return Err(Error::DTypeArgument { op, got: dtype.to_string(), accepted });
    }
    Ok(OutputSpec::contiguous(x.shape.clone(), dtype, x.device))
}

/// `dim` counted from the front. A 0-dimensional tensor counts as one element of one dimension.
pub fn checked_dim(op: &'static str, dim: i64, rank: usize) -> Result<usize> {
    let size = rank.max(1).cast_signed() as i64;
    if dim < -size || dim >= size {
        return Err(Error::DimOutOfRange { op, dim, rank });
    }
    Ok(dim.rem_euclid(size).unsigned_abs() as usize)
}

pub fn problem(
    kind: Kind,
    x: &TensorView,
    dim: i64,
    spec: &OutputSpec,
    out: &TensorView,
) -> Result<SoftmaxProblem> {
    let dim = checked_dim(kind.name(), dim, x.rank())?;
    check_out(kind.name(), spec, out, &[("x", x, true)])?;
    let Along { length, steps: [x_stride, out_stride], rows } =
        along(dim, &x.shape, [&x.strides, &out.strides]);
    let [x_strides, out_strides] = rows.strides;
    Ok(SoftmaxProblem {
        device: spec.device,
        kind,
        length,
        x_stride,
        out_stride,
        rows: rows.shape,
        x: Strided { address: x.address, dtype: x.dtype, strides: x_strides },
        out: Strided { address: out.address, dtype: out.dtype, strides: out_strides },
    })
}

/// Operands of one shape, seen as rows along a dimension.
pub(super) struct Along<const N: usize> {
    pub length: i64,
    /// Along a row, for each operand.
    pub steps: [i64; N],
    /// The other dimensions.
    pub rows: Merged<N>,
}

/// The last of `strides` is the output's.
pub(super) fn along<const N: usize>(dim: usize, shape: &[i64], strides: [&Dims; N]) -> Along<N> {
    let without = |dims: &[i64]| -> Dims {
        dims.iter().enumerate().filter(|&(d, _)| d != dim).map(|(_, &v)| v).collect()
    };
    let others = strides.map(|s| without(s));
    Along {
        length: shape.get(dim).copied().unwrap_or(1),
        steps: strides.map(|s| s.get(dim).copied().unwrap_or(1)),
        rows: layout::merge(&without(shape), others.each_ref().map(|s| s.as_slice())),
    }
}
