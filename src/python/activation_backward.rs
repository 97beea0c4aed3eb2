//! The gradient of matmul's epilogue, as Python sees it.

use std::slice;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple};

use super::arguments::{self, Keyword, given};
use super::routing::finish;
use super::run::{solve, solve_all, solve_with};
use crate::dtype::DType;
use crate::error::Result;
use crate::interop::{Argument, Call, Output};
use crate::ops::activation_backward::{self as ops, ActivationBackwardProblem};
use crate::ops::matmul::DEFAULT_SLOPE;

/// Gradient of `activation(v + bias)`, matmul's epilogue, with respect to v and, if wanted, bias.
///
/// Args:
///     grad: gradient of the result, of shape (..., n). dtypes: float16, bfloat16, float32, float64.
///     saved: what the forward kept, of grad's shape and dtype; ignored without an activation.
///     activation: None, "relu", "leaky_relu", "gelu", "gelu_tanh" or "silu".
///     negative_slope: that of leaky_relu.
///     saved_is: "output", which is enough for relu and for leaky_relu with a slope of 0 or more, or
///         "pre_activation", which is v + bias.
///     bias: whether the gradient of bias is wanted.
///     up: the factor of activation(v) in a gated matmul. `saved` is then v, and all are contiguous.
///
/// Returns:
///     (grad * activation'(v), its sum over all dimensions but the last, of shape (n,), or None). Both are
///     computed in float32 (float64 for float64) and rounded once. Without an activation the first is grad
///     itself. With up: (grad * up * activation'(v), grad * activation(v)), and where bias is wanted the sums of
///     both, of shape (2, n).
///
/// Raises:
///     DTypeError: not a tensor, dtypes that differ or are not floating.
///     ShapeError: shapes differ.
///     DeviceError: tensors of different devices or libraries.
///     OptionError: a name that is not known.
///     UnsupportedError: an output that does not tell the gradient.
///
/// Sources: src/ops/activation_backward.rs (meaning), src/cpu/activation_backward.rs (CPU),
/// kernels/activation_backward.cu and src/cuda/plan/activation_backward/mod.rs (CUDA).
#[pyfunction]
#[pyo3(
    signature = (
        grad, saved, activation, *, negative_slope = Keyword::Default, saved_is = Keyword::Default, bias = false,
        up = None
    ),
    text_signature = "(grad, saved, activation, *, negative_slope=0.01, saved_is='output', bias=False, up=None)"
)]
#[allow(clippy::too_many_arguments, reason = "Python's own")]
pub fn activation_backward<'py>(
    py: Python<'py>,
    grad: &Bound<'py, PyAny>,
    saved: &Bound<'py, PyAny>,
    activation: Option<&Bound<'py, PyAny>>,
    negative_slope: Keyword<'_, 'py>,
    saved_is: Keyword<'_, 'py>,
    bias: bool,
    up: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let none = py.None().into_bound(py);
    let mut kept = None;
    let argument = Argument { op: ops::OP, name: "negative_slope", accepted: &DType::FLOATS };
    let negative_slope = negative_slope.settled_number(argument, &mut kept)?;
    let run = || -> Result<Bound<'py, PyAny>> {
        let mut call = Call::new(py, ops::OP, &DType::FLOATS);
        let options =
            ActivationBackwardOptions { saved: Some(saved), activation, negative_slope, saved_is, bias, up };
        let (Gradients { out, up, sums }, problem) = problem(&mut call, grad, &options)?;
        let results = match (out, up, sums) {
            (Some(out), Some(up), sums) => {
                let outputs = [out, up].into_iter().chain(sums).collect();
                let results = solve_all(call, outputs, slice::from_ref(&problem))?;
                return Ok(PyTuple::new(py, results)?.into_any());
            }
            (Some(out), None, sums) => solve_with(call, out, sums, problem)?.0,
            (None, _, Some(sums)) => (grad.clone(), Some(solve(call, sums, problem)?.0)),
            (None, _, None) => (grad.clone(), None),
        };
        Ok(results.into_pyobject(py)?.into_any())
    };
    let bias = PyBool::new(py, bias).to_owned().into_any();
    let keywords = [
        ("negative_slope", negative_slope.given()),
        ("saved_is", saved_is.given()),
        ("bias", given(Some(&bias))),
        ("up", given(up)),
    ];
    // No function of the public ones.
    finish(py, run(), [grad, saved, activation.unwrap_or(&none)], keywords)
}

/// What an activation_backward may be given besides grad.
#[derive(Debug)]
pub struct ActivationBackwardOptions<'a, 'py> {
    /// Looked at only where there is an activation.
    pub saved: Option<&'a Bound<'py, PyAny>>,
    pub activation: Option<&'a Bound<'py, PyAny>>,
    pub negative_slope: Keyword<'a, 'py>,
    pub saved_is: Keyword<'a, 'py>,
    pub bias: bool,
    pub up: Option<&'a Bound<'py, PyAny>>,
}

/// Those of v and of up, and the sums of both or one.
#[derive(Debug, Default)]
pub struct Gradients<'py> {
    out: Option<Output<'py>>,
    up: Option<Output<'py>>,
    sums: Option<Output<'py>>,
}

/// As `add::problem`.
pub fn problem<'py>(
    call: &mut Call<'py>,
    grad: &Bound<'py, PyAny>,
    options: &ActivationBackwardOptions<'_, 'py>,
) -> Result<(Gradients<'py>, ActivationBackwardProblem)> {
    let slope = options.negative_slope.real(call.argument("negative_slope"), DEFAULT_SLOPE)?;
    let applied = arguments::activation(ops::OP, options.activation, slope)?;
    let saved_is = options.saved_is.saved_is()?;
    call.classify([Some(grad), options.saved, options.up])?;
    let grad = call.input("grad", grad)?;
    if let (Some(saved), Some(up)) = (options.saved, options.up) {
        let (saved, up) = (call.input("saved", saved)?, call.input("up", up)?);
        let (spec, of_sums) = ops::gated_outputs(&grad.view, &saved.view, &up.view)?;
        let (out, up_out) = (call.output(&spec, None, &grad)?, call.output(&spec, None, &grad)?);
        let sums = options.bias.then(|| call.output(&of_sums, None, &grad)).transpose()?;
        let inputs = [&grad.view, &saved.view, &up.view].map(|view| view.as_ref());
        let sums_view = sums.as_ref().map(|o| o.view.as_ref());
        let problem = ops::gated_problem(inputs, applied, [&out.view, &up_out.view], sums_view);
        return Ok((Gradients { out: Some(out), up: Some(up_out), sums }, problem));
    }
    let saved = options.saved.filter(|_| options.activation.is_some());
    let saved = saved.map(|saved| call.input("saved", saved)).transpose()?;
    let saved = saved.as_ref().map(|t| t.view.as_ref());
    let specs = ops::outputs(&grad.view, saved, applied, saved_is)?;
    let out = specs.0.map(|spec| call.output(&spec, None, &grad)).transpose()?;
    let sums = if options.bias { Some(call.output(&specs.1, None, &grad)?) } else { None };
    let [out_view, sums_view] = [&out, &sums].map(|output| output.as_ref().map(|o| o.view.as_ref()));
    let problem = ops::problem(&grad.view, saved, applied, out_view, sums_view);
    Ok((Gradients { out, sums, up: None }, problem))
}
