//! The gradients of softmax and log_softmax with respect to x, from those of their results:
//! `y * (dy - sum(y * dy))` and `dy - exp(y) * sum(dy)`, with the sums along the dimension.

use super::output::{OutputSpec, check_out};
use super::softmax::{Along, Kind, along, check_float, checked_dim, result};
use super::{Addresses, Problem, Strided};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Device, Dims, TensorView, layout};

/// Independent rows of `length` elements, one for every index of `rows` (merged; empty means one row).
///
/// Computed in float32 (float64 if an operand is float64) and rounded once, to `out.dtype`.
#[derive(Clone, Debug, PartialEq)]
pub struct SoftmaxBackwardProblem {
    pub device: Device,
    pub kind: Kind,
    /// Elements per row.
    pub length: i64,
    /// Step along a row, in elements.
    pub grad_stride: i64,
    pub output_stride: i64,
    pub out_stride: i64,
    pub rows: Dims,
    /// Strides over `rows`; `grad` and `output` are of one dtype.
    pub grad: Strided,
    pub output: Strided,
    pub out: Strided,
}

impl SoftmaxBackwardProblem {
    /// Number of rows.
    pub fn row_count(&self) -> i64 {
        layout::len(&self.rows)
    }
}

impl Problem for SoftmaxBackwardProblem {
    fn op(&self) -> &'static str {
        self.kind.backward_name()
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
        Addresses::from([self.grad.address, self.output.address, self.out.address].as_slice())
    }

    fn is_like(&self, of: &SoftmaxBackwardProblem) -> bool {
        let SoftmaxBackwardProblem {
            device,
            kind,
            length,
            grad_stride,
            output_stride,
            out_stride,
            rows,
            grad,
            output,
            out,
        } = self;
        (*device, *kind, *length) == (of.device, of.kind, of.length)
            && (*grad_stride, *output_stride, *out_stride)
                == (of.grad_stride, of.output_stride, of.out_stride)
            && *rows == of.rows
            && grad.is_like(&of.grad)
            && output.is_like(&of.output)
            && out.is_like(&of.out)
    }

    fn place(&mut self, addresses: &[usize]) {
        if let &[grad, output, out] = addresses {
            (self.grad.address, self.output.address, self.out.address) = (grad, output, out);
        }
    }
}

/// Shape and dtype of the result; `dtype` is that of the forward's x, where it was converted.
pub fn output(
    kind: Kind,
    grad: &TensorView,
    output: &TensorView,
    dtype: Option<DType>,
) -> Result<OutputSpec> {
    let op = kind.backward_name();
    check_float(op, "grad", grad)?;
    check_alike(op, "output", output, grad)?;
    result(op, grad, dtype)
}

/// Refuses a tensor that is not of `grad`'s shape and dtype.
pub(super) fn check_alike(
    op: &'static str,
    argument: &'static str,
    tensor: &TensorView,
    grad: &TensorView,
) -> Result<()> {
    let other = "grad";
    if tensor.dtype != grad.dtype {
        return Err(Error::DTypesDiffer { op, argument, got: tensor.dtype, other, expected: grad.dtype });
    }
    if tensor.shape != grad.shape {
        let (got, expected) = (tensor.shape.clone(), grad.shape.clone());
        return Err(Error::ShapesDiffer { op, argument, got, other, expected });
    }
    Ok(())
}

pub fn problem(
    kind: Kind,
    grad: &TensorView,
    output: &TensorView,
    dim: i64,
    spec: &OutputSpec,
    out: &TensorView,
) -> Result<SoftmaxBackwardProblem> {
    let op = kind.backward_name();
    let dim = checked_dim(op, dim, grad.rank())?;
    check_out(op, spec, out, &[("grad", grad, true), ("output", output, true)])?;
    let Along { length, steps: [grad_stride, output_stride, out_stride], rows } =
        along(dim, &grad.shape, [&grad.strides, &output.strides, &out.strides]);
    let operand = |t: &TensorView, strides| Strided { address: t.address, dtype: t.dtype, strides };
    let [grad_strides, output_strides, out_strides] = rows.strides;
    Ok(SoftmaxBackwardProblem {
        device: spec.device,
        kind,
        length,
        grad_stride,
        output_stride,
        out_stride,
        rows: rows.shape,
        grad: operand(grad, grad_strides),
        output: operand(output, output_strides),
        out: operand(out, out_strides),
    })
}
