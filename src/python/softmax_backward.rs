//! The gradients of softmax and log_softmax, as Python sees them.

use pyo3::prelude::*;

use super::arguments::{self, Keyword, given};
use super::routing::finish_checked;
use super::run::{Known, solve};
use crate::dtype::DType;
use crate::error::Result;
use crate::interop::memo::{self, Arguments, Memo, Memoised};
use crate::interop::{Argument, Autocast, Call, Output};
use crate::ops;
use crate::ops::softmax::Kind;
use crate::ops::softmax_backward::SoftmaxBackwardProblem;

/// Gradient of softmax: `output * (grad - sum(output * grad))` with the sum along `dim`.
///
/// Args:
///     grad: gradient of the forward's result. dtypes: float16, bfloat16, float32, float64.
///     output: the forward's result, of grad's shape and dtype.
///     dim: the forward's dim.
///     dtype: dtype of the forward's x, where the forward converted it: a torch.dtype, a numpy dtype or a
///         name such as "float16".
///     out: where to write the result: of its shape, dtype and device. It must be one of the inputs, or not
///         overlap any.
///
/// Returns:
///     A tensor of grad's library, device and shape, of `dtype` or else grad's; or `out`. Computed in
///     float32 (float64 for float64) and rounded once.
///
/// Raises:
///     DTypeError: not a tensor, dtypes that differ or are not floating.
///     DimError: `dim` is out of range.
///     ShapeError, LayoutError: shapes differ; `out` has the wrong shape, is read-only or overlaps an input.
///     DeviceError: tensors of different devices or libraries.
///
/// Example:
///     >>> y = tilewise.softmax(torch.zeros(2))
///     >>> tilewise.softmax_backward(torch.tensor([1.0, 0.0]), y)
///     tensor([ 0.2500, -0.2500])
///
/// Sources: src/ops/softmax_backward.rs (meaning), src/cpu/softmax/backward/ (CPU), kernels/softmax_backward*.cu and
/// src/cuda/plan/softmax_backward/ (CUDA).
#[pyfunction]
#[pyo3(
    signature = (grad, output, dim = Keyword::Default, *, dtype = None, out = None),
    text_signature = "(grad, output, dim=-1, *, dtype=None, out=None)"
)]
pub fn softmax_backward<'py>(
    py: Python<'py>,
    grad: &Bound<'py, PyAny>,
    output: &Bound<'py, PyAny>,
    dim: Keyword<'_, 'py>,
    dtype: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    along_dim(py, Kind::Softmax, grad, output, dim, dtype, out)
}

/// Gradient of log_softmax: `grad - exp(output) * sum(grad)` with the sum along `dim`.
///
/// Args:
///     grad: gradient of the forward's result. dtypes: float16, bfloat16, float32, float64.
///     output: the forward's result, of grad's shape and dtype.
///     dim: the forward's dim.
///     dtype: dtype of the forward's x, where the forward converted it: a torch.dtype, a numpy dtype or a
///         name such as "float16".
///     out: where to write the result: of its shape, dtype and device. It must be one of the inputs, or not
///         overlap any.
///
/// Returns:
///     A tensor of grad's library, device and shape, of `dtype` or else grad's; or `out`. Computed in
///     float32 (float64 for float64) and rounded once.
///
/// Raises:
///     As softmax_backward.
///
/// Example:
///     >>> y = tilewise.log_softmax(torch.zeros(2))
///     >>> tilewise.log_softmax_backward(torch.tensor([1.0, 0.0]), y)
///     tensor([ 0.5000, -0.5000])
///
/// Sources: those of softmax_backward.
#[pyfunction]
#[pyo3(
    signature = (grad, output, dim = Keyword::Default, *, dtype = None, out = None),
    text_signature = "(grad, output, dim=-1, *, dtype=None, out=None)"
)]
pub fn log_softmax_backward<'py>(
    py: Python<'py>,
    grad: &Bound<'py, PyAny>,
    output: &Bound<'py, PyAny>,
    dim: Keyword<'_, 'py>,
    dtype: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    along_dim(py, Kind::LogSoftmax, grad, output, dim, dtype, out)
}

fn along_dim<'py>(
    py: Python<'py>,
    kind: Kind,
    grad: &Bound<'py, PyAny>,
    output: &Bound<'py, PyAny>,
    dim: Keyword<'_, 'py>,
    dtype: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut kept = None;
    let argument = Argument { op: kind.backward_name(), name: "dim", accepted: &DType::FLOATS };
    let dim = dim.settled_index(argument, &mut kept)?;
    thread_local! {
        static SOFTMAXES: Memo<Known<SoftmaxBackwardProblem>, 2, 2> = const { Memo::new(Vec::new()) };
        static LOG_SOFTMAXES: Memo<Known<SoftmaxBackwardProblem>, 2, 2> = const { Memo::new(Vec::new()) };
    }
    let known_calls = if kind == Kind::Softmax { &SOFTMAXES } else { &LOG_SOFTMAXES };
    let run = || -> Result<Bound<'py, PyAny>> {
        let (op, tensors, options) =
            (kind.backward_name(), [Some(grad), Some(output)], [dim.given(), given(dtype)]);
        let arguments = Arguments { op, tensors, options, out, autocast: Autocast::Nowhere };
        let found = memo::call(known_calls, &arguments, Known::solve)?;
        if let Memoised::Made { result, .. } = found {
            return Ok(result);
        }
        let mut call = Call::new(py, op, &DType::FLOATS);
        let (out_tensor, problem) = problem(&mut call, kind, (grad, output), &dim, dtype, out)?;
        let (result, known) = solve(call, out_tensor, problem)?;
        if matches!(found, Memoised::New(_)) {
            memo::remember(known_calls, &arguments, &result, false, known);
        }
        Ok(result)
    };
    let keywords = [("dim", dim.given()), ("dtype", given(dtype)), ("out", given(out))];
    let planning = || Call::planning(py, kind.backward_name(), &DType::FLOATS);
    let check = || problem(&mut planning(), kind, (grad, output), &dim, dtype, out).map(drop);
    finish_checked(py, run(), [grad, output], keywords, check)
}

/// As `add::problem`.
pub fn problem<'py>(
    call: &mut Call<'py>,
    kind: Kind,
    (grad, output): (&Bound<'py, PyAny>, &Bound<'py, PyAny>),
    dim: &Keyword<'_, 'py>,
    dtype: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> Result<(Output<'py>, SoftmaxBackwardProblem)> {
    let op = kind.backward_name();
    let dim = dim.index(call.argument("dim"), -1)?;
    let dtype = arguments::dtype(op, dtype)?;
    call.classify([Some(grad), Some(output), out])?;
    let grad = call.input("grad", grad)?;
    let output = call.input("output", output)?;
    let spec = ops::softmax_backward::output(kind, &grad.view, &output.view, dtype)?;
    ops::softmax::checked_dim(op, dim, grad.view.rank())?;
    let out = call.output(&spec, out, &grad)?;
    let problem = ops::softmax_backward::problem(kind, &grad.view, &output.view, dim, &spec, &out.view)?;
    Ok((out, problem))
}
