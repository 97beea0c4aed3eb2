//! The gradients of the operations, as Python sees them.

use pyo3::prelude::*;
use pyo3::types::PyBool;

use super::arguments::{Keyword, given};
use super::problems::{self, ActivationBackwardOptions};
use super::routing::finish;
use crate::dtype::DType;
use crate::error::Result;
use crate::interop::{Argument, Call};
use crate::ops::softmax::Kind;
use crate::ops::{activation_backward as ops, dispatch};

/// Gradient of softmax: `output * (grad - sum(output * grad))` with the sum along `dim`.
///
/// Args:
///     grad: gradient of the forward's result. dtypes: float16, bfloat16, float32, float64.
///     output: the forward's result, of grad's shape and dtype.
///     dim: the forward's dim.
///     dtype: dtype of the forward's x, where the forward converted it: a torch.dtype, a numpy dtype or a
///         name such as "float16".
///     out: where to write the result: of its shape, dtype and device, and either exactly grad or output
///         or memory of its own.
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
/// Meaning: src/ops/softmax_backward.rs. CPU: src/cpu/softmax/backward/. CUDA: kernels/softmax_backward.cu and
/// kernels/softmax_backward_strided.cu, planned in src/cuda/plan/softmax_backward/.
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
///     out: where to write the result: of its shape, dtype and device, and either exactly grad or output
///         or memory of its own.
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
/// Lives where softmax_backward lives.
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
    let run = || -> Result<Bound<'py, PyAny>> {
        let mut call = Call::new(py, kind.backward_name(), &DType::FLOATS);
        let (out, problem) = problems::softmax_backward(&mut call, kind, (grad, output), &dim, dtype, out)?;
        let elements = problem.row_count().saturating_mul(problem.length);
        let workspace = call.workspace(call.ask(|| dispatch::softmax_backward_workspace(&problem))?)?;
        let partials = workspace.as_ref().map_or(0, |workspace| workspace.view.address);
        call.run(out, elements, |stream| dispatch::softmax_backward(&problem, partials, stream))
    };
    let keywords = [("dim", dim.given()), ("dtype", given(dtype)), ("out", given(out))];
    finish(py, run(), [grad, output], keywords)
}

/// Gradient of `activation(v + bias)`, matmul's epilogue, with respect to v and, if wanted, bias.
///
/// Args:
///     grad: gradient of the result, of shape (..., n). dtypes: float16, bfloat16, float32, float64.
///     saved: what the forward kept, of grad's shape and dtype; ignored without an activation.
///     activation: None, "relu", "leaky_relu", "gelu", "gelu_tanh" or "silu".
///     negative_slope: that of leaky_relu.
///     saved_is: "output", which will do for relu and for leaky_relu with a slope of 0 or more, or
///         "pre_activation", which is v + bias.
///     bias: whether the gradient of bias is wanted.
///
/// Returns:
///     (grad * activation'(v), its sum over all dimensions but the last, of shape (n,), or None). Both are
///     computed in float32 (float64 for float64) and rounded once. Without an activation the first is grad
///     itself.
///
/// Raises:
///     DTypeError: not a tensor, dtypes that differ or are not floating.
///     ShapeError: shapes differ.
///     DeviceError: tensors of different devices or libraries.
///     OptionError: a name that is not known.
///     UnsupportedError: an output that does not tell the gradient.
///
/// Meaning: src/ops/activation_backward.rs. CPU: src/cpu/activation_backward.rs. CUDA:
/// kernels/activation_backward.cu, planned in src/cuda/plan/activation_backward.rs.
#[pyfunction]
#[pyo3(
    signature = (
        grad, saved, activation, *, negative_slope = Keyword::Default, saved_is = Keyword::Default, bias = false
    ),
    text_signature = "(grad, saved, activation, *, negative_slope=0.01, saved_is='output', bias=False)"
)]
pub fn activation_backward<'py>(
    py: Python<'py>,
    grad: &Bound<'py, PyAny>,
    saved: &Bound<'py, PyAny>,
    activation: Option<&Bound<'py, PyAny>>,
    negative_slope: Keyword<'_, 'py>,
    saved_is: Keyword<'_, 'py>,
    bias: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let none = py.None().into_bound(py);
    let mut kept = None;
    let argument = Argument { op: ops::OP, name: "negative_slope", accepted: &DType::FLOATS };
    let negative_slope = negative_slope.settled_number(argument, &mut kept)?;
    let run = || -> Result<Bound<'py, PyAny>> {
        let mut call = Call::new(py, ops::OP, &DType::FLOATS);
        let options =
            ActivationBackwardOptions { saved: Some(saved), activation, negative_slope, saved_is, bias };
        let ((out, sums), problem) = problems::activation_backward(&mut call, grad, &options)?;
        let workspace = call.workspace(call.ask(|| dispatch::activation_backward_workspace(&problem))?)?;
        let partials = workspace.as_ref().map_or(0, |workspace| workspace.view.address);
        let solve = |stream| dispatch::activation_backward(&problem, partials, stream);
        let steps = problem.row_count().saturating_mul(problem.columns);
        let results = match (out, sums) {
            (Some(out), sums) => call.run_with(out, sums, steps, solve)?,
            (None, Some(sums)) => (grad.clone(), Some(call.run(sums, steps, solve)?)),
            (None, None) => (grad.clone(), None),
        };
        Ok(results.into_pyobject(py)?.into_any())
    };
    let bias = PyBool::new(py, bias).to_owned().into_any();
    let keywords = [
        ("negative_slope", negative_slope.given()),
        ("saved_is", saved_is.given()),
        ("bias", given(Some(&bias))),
    ];
    finish(py, run(), [grad, saved, activation.unwrap_or(&none)], keywords)
}
