//! The operations, as Python sees them: what is written in `problems.rs` about their arguments, run.

use pyo3::prelude::*;

use super::arguments::{Keyword, given};
use super::exceptions::raise;
use super::problems::{self, MatmulOptions, SLOPE};
use super::routing::{Recorder, finish};
use crate::dtype::DType;
use crate::error::Result;
use crate::interop::scalar::is_number;
use crate::interop::{Again, Argument, Arguments, Call, Memory, again, remember};
use crate::ops::add::AddProblem;
use crate::ops::dispatch;
use crate::ops::matmul::MatmulProblem;
use crate::ops::softmax::{Kind, SoftmaxProblem};

/// `x + alpha * y`, as torch.add.
///
/// Args:
///     x: tensor of any shape. dtypes: bool, uint8, int8, int16, int32, int64, float16, bfloat16,
///         float32, float64.
///     y: tensor whose shape broadcasts with x's, or a number. A 0-dimensional CPU tensor may stand
///         beside a CUDA x.
///     alpha: number that multiplies y. A float needs a floating result.
///     out: where to write the result: of its shape, dtype and device, and either exactly x or y or
///         memory of its own.
///
/// Returns:
///     A tensor of x's library on x's device, of the broadcast shape and of dtype
///     torch.result_type(x, y); or `out`. float16 and bfloat16 are added in float32 and rounded once;
///     integers wrap.
///
/// Raises:
///     DTypeError: not a tensor, a dtype that is not accepted, or an alpha that does not suit the result.
///     ShapeError: shapes do not broadcast, or `out` has the wrong one.
///     LayoutError: `out` is read-only or overlaps an input; memory is not strided.
///     DeviceError: tensors of different devices or libraries.
///
/// Example:
///     >>> tilewise.add(torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]), alpha=2)
///     tensor([21., 42.])
///
/// Meaning: src/ops/add.rs. CPU: src/cpu/add.rs. CUDA: kernels/add.cu, planned in src/cuda/plan/add.rs.
#[pyfunction]
#[pyo3(
    signature = (x, y, *, alpha = Keyword::Default, out = None),
    text_signature = "(x, y, *, alpha=1, out=None)"
)]
pub fn add<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    y: &Bound<'py, PyAny>,
    alpha: Keyword<'_, 'py>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut kept = None;
    let alpha =
        alpha.settled_number(Argument { op: "add", name: "alpha", accepted: &DType::ALL }, &mut kept)?;
    thread_local! {
        static ADDS: Memory<AddProblem, 2, 2> = const { Memory::new(Vec::new()) };
    }
    let run = || -> Result<Bound<'py, PyAny>> {
        let (addend, number) = if is_number(y) { (None, Some(y)) } else { (Some(y), None) };
        let (tensors, options) = ([Some(x), addend], [given(number), alpha.given()]);
        let arguments = Arguments { op: "add", tensors, options, out, autocast: false };
        let found =
            again(&ADDS, &arguments, |problem, lender| lender.run(|stream| dispatch::add(problem, stream)))?;
        if let Again::Made(result) = found {
            return Ok(result);
        }
        let mut call = Call::new(py, "add", &DType::ALL).recordable();
        let (out, problem) = problems::add(&mut call, x, y, &alpha, out)?;
        let recorded = call.is_recorded();
        let steps = problem.len();
        let result = call.run(out, steps, |stream| dispatch::add(&problem, stream))?;
        if !recorded {
            if matches!(found, Again::New) && !problem.takes_default_dtype() {
                remember(&ADDS, &arguments, &result, (problem, steps));
            }
            return Ok(result);
        }
        static ADD: Recorder = Recorder::new("Add");
        Ok(match alpha.given() {
            Some(alpha) => ADD.record(py, ((result,), x, y, alpha)),
            None => ADD.record(py, ((result,), x, y, 1)),
        }?)
    };
    finish(py, run(), [x, y], [("alpha", alpha.given()), ("out", given(out))])
}

/// Softmax along one dimension, as torch.softmax.
///
/// Args:
///     x: tensor of any shape. dtypes: float16, bfloat16, float32, float64; with `dtype` also bool, uint8,
///         int8, int16, int32, int64.
///     dim: the dimension whose elements sum to one; negative counts from the last.
///     dtype: dtype to convert x to while it is read, and of the result: a torch.dtype, a numpy dtype or
///         a name such as "float32".
///     out: where to write the result: of its shape, dtype and device, and either exactly x or memory of
///         its own.
///
/// Returns:
///     A tensor of x's library, device and shape, of `dtype` or else x's; or `out`. Computed in float32
///     (float64 for float64) with the maximum subtracted, and rounded once. A row of only -inf gives NaN,
///     as in torch.
///
/// Raises:
///     DTypeError: not a tensor, a `dtype` that is not floating, or none beside integers.
///     DimError: `dim` is out of range.
///     ShapeError, LayoutError: `out` has the wrong shape, is read-only or overlaps x.
///     DeviceError: tensors of different devices or libraries.
///
/// Example:
///     >>> tilewise.softmax(torch.zeros(2, 4))
///     tensor([[0.2500, 0.2500, 0.2500, 0.2500],
///             [0.2500, 0.2500, 0.2500, 0.2500]])
///
/// Meaning: src/ops/softmax.rs. CPU: src/cpu/softmax/. CUDA: kernels/softmax.cu, planned in
/// src/cuda/plan/softmax.rs.
#[pyfunction]
#[pyo3(
    signature = (x, dim = Keyword::Default, *, dtype = None, out = None),
    text_signature = "(x, dim=-1, *, dtype=None, out=None)"
)]
pub fn softmax<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    dim: Keyword<'_, 'py>,
    dtype: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    along_dim(py, Kind::Softmax, x, dim, dtype, out)
}

/// Logarithm of softmax along one dimension, as torch.log_softmax: `x - max - log(sum(exp(x - max)))`,
/// never the logarithm of a rounded softmax.
///
/// Args:
///     x: tensor of any shape. dtypes: float16, bfloat16, float32, float64; with `dtype` also bool, uint8,
///         int8, int16, int32, int64.
///     dim: the dimension whose exponentials sum to one; negative counts from the last.
///     dtype: dtype to convert x to while it is read, and of the result: a torch.dtype, a numpy dtype or
///         a name such as "float32".
///     out: where to write the result: of its shape, dtype and device, and either exactly x or memory of
///         its own.
///
/// Returns:
///     A tensor of x's library, device and shape, of `dtype` or else x's; or `out`. Computed in float32
///     (float64 for float64) and rounded once.
///
/// Raises:
///     As softmax.
///
/// Example:
///     >>> tilewise.log_softmax(torch.zeros(4))
///     tensor([-1.3863, -1.3863, -1.3863, -1.3863])
///
/// Lives where softmax lives.
#[pyfunction]
#[pyo3(
    signature = (x, dim = Keyword::Default, *, dtype = None, out = None),
    text_signature = "(x, dim=-1, *, dtype=None, out=None)"
)]
pub fn log_softmax<'py>(
    py: Python<'py>,
    x: &Bound<'py, PyAny>,
    dim: Keyword<'_, 'py>,
    dtype: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    along_dim(py, Kind::LogSoftmax, x, dim, dtype, out)
}

fn along_dim<'py>(
    py: Python<'py>,
    kind: Kind,
    x: &Bound<'py, PyAny>,
    dim: Keyword<'_, 'py>,
    dtype: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut kept = None;
    let dim =
        dim.settled_index(Argument { op: kind.name(), name: "dim", accepted: &DType::FLOATS }, &mut kept)?;
    thread_local! {
        static SOFTMAXES: Memory<SoftmaxProblem, 1, 1> = const { Memory::new(Vec::new()) };
        static LOG_SOFTMAXES: Memory<SoftmaxProblem, 1, 1> = const { Memory::new(Vec::new()) };
    }
    let memory = if kind == Kind::Softmax { &SOFTMAXES } else { &LOG_SOFTMAXES };
    let run = || -> Result<Bound<'py, PyAny>> {
        let (tensors, options) = ([Some(x)], [dim.given()]);
        let arguments = Arguments { op: kind.name(), tensors, options, out, autocast: true };
        let found = match dtype {
            None => again(memory, &arguments, |problem, lender| {
                let partials = lender.lend(dispatch::softmax_workspace(problem)?)?;
                lender.run(|stream| dispatch::softmax(problem, partials, stream))
            })?,
            Some(_) => Again::Otherwise,
        };
        if let Again::Made(result) = found {
            return Ok(result);
        }
        let mut call = Call::new(py, kind.name(), &DType::FLOATS).with_autocast().recordable();
        let (out, problem) = problems::softmax(&mut call, kind, x, &dim, dtype, out)?;
        let elements = problem.row_count().saturating_mul(problem.length);
        let workspace = call.workspace(call.ask(|| dispatch::softmax_workspace(&problem))?)?;
        let partials = workspace.as_ref().map_or(0, |workspace| workspace.view.address);
        let recorded = call.is_recorded();
        let result = call.run(out, elements, |stream| dispatch::softmax(&problem, partials, stream))?;
        if !recorded {
            if matches!(found, Again::New) {
                remember(memory, &arguments, &result, (problem, elements));
            }
            return Ok(result);
        }
        static SOFTMAX: Recorder = Recorder::new("Softmax");
        static LOG_SOFTMAX: Recorder = Recorder::new("LogSoftmax");
        let recorder = if kind == Kind::Softmax { &SOFTMAX } else { &LOG_SOFTMAX };
        Ok(match dim.given() {
            Some(dim) => recorder.record(py, ((result,), x, dim, dtype)),
            None => recorder.record(py, ((result,), x, -1, dtype)),
        }?)
    };
    finish(py, run(), [x], [("dim", dim.given()), ("dtype", given(dtype)), ("out", given(out))])
}

/// `activation(a @ b + bias)`, with the shapes of torch.matmul.
///
/// Args:
///     a: tensor of shape (..., m, k) or (k,). dtypes: float16, bfloat16, float32, float64.
///     b: tensor of shape (..., k, n) or (k,), of a's dtype. Leading dimensions broadcast.
///     bias: tensor of shape (n,) of a's dtype, added to every row.
///     activation: None, "relu", "leaky_relu", "gelu", "gelu_tanh" or "silu", applied before rounding.
///     negative_slope: what leaky_relu multiplies negative values by.
///     precision: "ieee" multiplies float32 as float32; "tf32" may round float32 inputs to 10 bits of
///         mantissa where the device has hardware for that.
///     out: where to write the result: of its shape, dtype and device, and memory of its own.
///
/// Returns:
///     A tensor of a's library, device and dtype, of shape (..., m, n), without m or n where a or b is
///     1-dimensional; or `out`. float16 and bfloat16 are accumulated in float32 and rounded once, after
///     bias and activation.
///
/// Raises:
///     DTypeError: not a tensor, dtypes that differ or are not floating.
///     ShapeError: sizes do not fit, bias is not (n,), or `out` has the wrong shape.
///     LayoutError: `out` is read-only or overlaps an input; memory is not strided.
///     DeviceError: tensors of different devices or libraries.
///     OptionError: an activation or precision that is not known.
///
/// Example:
///     >>> tilewise.matmul(torch.eye(2), torch.tensor([[1.0, -2.0], [3.0, 4.0]]), activation="relu")
///     tensor([[1., 0.],
///             [3., 4.]])
///
/// Meaning: src/ops/matmul.rs. CPU: src/cpu/matmul/. CUDA: kernels/matmul_*.cu, planned in
/// src/cuda/plan/matmul.rs.
#[pyfunction]
#[pyo3(
    signature = (
        a, b, *, bias = None, activation = None, negative_slope = Keyword::Default,
        precision = Keyword::Default, out = None
    ),
    text_signature = "(a, b, *, bias=None, activation=None, negative_slope=0.01, precision='ieee', out=None)"
)]
pub fn matmul<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    bias: Option<&Bound<'py, PyAny>>,
    activation: Option<&Bound<'py, PyAny>>,
    negative_slope: Keyword<'_, 'py>,
    precision: Keyword<'_, 'py>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    thread_local! {
        static MATMULS: Memory<MatmulProblem, 3, 3> = const { Memory::new(Vec::new()) };
    }
    let mut kept = None;
    let negative_slope = negative_slope.settled_number(SLOPE, &mut kept)?;
    let options = MatmulOptions { bias, activation, negative_slope, precision, out };
    let run = || -> Result<Bound<'py, PyAny>> {
        let arguments = Arguments {
            op: "matmul",
            tensors: [Some(a), Some(b), bias],
            options: [given(activation), negative_slope.given(), precision.given()],
            out,
            autocast: true,
        };
        let found = again(&MATMULS, &arguments, |problem, lender| {
            let product = dispatch::matmul(problem)?;
            let workspace = lender.lend(product.workspace_bytes())?;
            lender.run(|stream| product.run(workspace, stream))
        })?;
        if let Again::Made(result) = found {
            return Ok(result);
        }
        let mut call = Call::new(py, "matmul", &DType::FLOATS).with_autocast();
        let (out, problem) = problems::matmul(&mut call, a, b, &options)?;
        let steps = problem.k.max(1).saturating_mul(out.view.len());
        let product = call.ask(|| dispatch::matmul(&problem))?;
        let workspace = call.workspace(product.workspace_bytes())?;
        let address = workspace.as_ref().map_or(0, |workspace| workspace.view.address);
        let result = call.run(out, steps, |stream| product.run(address, stream))?;
        if matches!(found, Again::New) {
            remember(&MATMULS, &arguments, &result, (problem, steps));
        }
        Ok(result)
    };
    let keywords = [
        ("bias", given(bias)),
        ("activation", given(activation)),
        ("negative_slope", options.negative_slope.given()),
        ("precision", options.precision.given()),
        ("out", given(out)),
    ];
    finish(py, run(), [a, b], keywords)
}

/// Raises what matmul would for these options, before there are operands.
///
/// Args:
///     activation, negative_slope, precision: those of matmul.
///
/// Raises:
///     OptionError: an activation or precision that is not known. DTypeError: a slope that is no number.
///
/// Lives in src/python/functions.rs; asked by tilewise.torch.
#[pyfunction]
#[pyo3(
    signature = (*, activation = None, negative_slope = Keyword::Default, precision = Keyword::Default),
    text_signature = "(*, activation=None, negative_slope=0.01, precision='ieee')"
)]
pub fn check_matmul_options(
    py: Python<'_>,
    activation: Option<&Bound<'_, PyAny>>,
    negative_slope: Keyword<'_, '_>,
    precision: Keyword<'_, '_>,
) -> PyResult<()> {
    let options = MatmulOptions { bias: None, activation, negative_slope, precision, out: None };
    options.checked().map(|_| ()).map_err(|error| raise(py, error))
}
