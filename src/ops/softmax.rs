//! softmax and log_softmax along one dimension, with an optional dtype to compute and return in.

use super::Strided;
use super::output::{OutputSpec, check_out};
use crate::dtype::{self, DType};
use crate::error::{Error, Result};
use crate::tensor::{Device, Dims, TensorView, layout};

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

    pub fn is_empty(&self) -> bool {
        self.length == 0 || self.rows.contains(&0)
    }
}

/// Shape and dtype of the result; `dtype` is the caller's dtype=, if any.
pub fn output(kind: Kind, x: &TensorView, dtype: Option<DType>) -> Result<OutputSpec> {
    if !x.dtype.is_float() {
        return Err(Error::DTypeNotAccepted {
            op: kind.name(),
            argument: "x",
            got: x.dtype.to_string(),
            accepted: dtype::list(&DType::FLOATS),
        });
    }
    let dtype = dtype.unwrap_or(x.dtype);
    if !dtype.is_float() {
        let accepted = dtype::list(&DType::FLOATS);
        return Err(Error::DTypeArgument { op: kind.name(), got: dtype.to_string(), accepted });
    }
    Ok(OutputSpec::contiguous(x.shape.clone(), dtype, x.device))
}

/// `dim` counted from the front. A 0-dimensional tensor counts as one element of one dimension.
pub fn checked_dim(kind: Kind, dim: i64, rank: usize) -> Result<usize> {
    let size = rank.max(1).cast_signed() as i64;
    if dim < -size || dim >= size {
        return Err(Error::DimOutOfRange { op: kind.name(), dim, rank });
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
    let dim = checked_dim(kind, dim, x.rank())?;
    check_out(kind.name(), spec, out, &[("x", x, true)])?;
    let without = |dims: &[i64]| -> Dims {
        dims.iter().enumerate().filter(|&(d, _)| d != dim).map(|(_, &v)| v).collect()
    };
    let at_dim = |dims: &Dims, scalar| dims.get(dim).copied().unwrap_or(scalar);
    let merged = layout::merge(&without(&x.shape), [&without(&x.strides), &without(&out.strides)]);
    let [x_strides, out_strides] = merged.strides;
    Ok(SoftmaxProblem {
        device: spec.device,
        kind,
        length: at_dim(&x.shape, 1),
        x_stride: at_dim(&x.strides, 1),
        out_stride: at_dim(&out.strides, 1),
        rows: merged.shape,
        x: Strided { address: x.address, dtype: x.dtype, strides: x_strides },
        out: Strided { address: out.address, dtype: out.dtype, strides: out_strides },
    })
}
