//! matmul, as Python sees it.

use pyo3::IntoPyObjectExt;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use smallvec::SmallVec;

use super::arguments::{self, Keyword, given};
use super::exceptions::raise;
use super::recording::{Recorded, Recorder};
use super::routing::{Entry, finish, finish_checked};
use super::run::{Known, solve};
use crate::dtype::DType;
use crate::error::{Error, Handler, Result};
use crate::interop::memo::{self, Arguments, Memo, Memoised};
use crate::interop::{Argument, Autocast, Call, Output, TorchFacts, autocast, torch_facts};
use crate::ops;
use crate::ops::matmul::{Activation, DEFAULT_SLOPE, MatmulProblem, Operands, Precision};

/// `activation(a @ b + bias) + residual`, with the shapes of torch.matmul; with a gate,
/// `activation(a @ gate + bias[0]) * (a @ b + bias[1]) + residual`.
///
/// Args:
///     a: tensor of shape (..., m, k) or (k,). dtypes: float16, bfloat16, float32, float64.
///     b: tensor of shape (..., k, n) or (k,), of a's dtype. Leading dimensions broadcast.
///     bias: tensor of shape (n,) of a's dtype, added to every row; with a gate of shape (2, n), the gate's row and b's.
///     gate: tensor of b's shape and a's dtype. The activation is applied to `a @ gate`, and the result multiplied by
///         `a @ b`. gate and b may be views of one weight, such as `w[:, :n]` and `w[:, n:]`: nothing is copied.
///     residual: tensor of a's dtype that broadcasts to the result, of any strides, or `out` itself.
///     activation: None, "relu", "leaky_relu", "gelu", "gelu_tanh" or "silu", applied before rounding.
///     negative_slope: what leaky_relu multiplies negative values by. Only with activation="leaky_relu".
///     precision: "ieee" multiplies float32 as float32; "tf32" may round float32 inputs to 10 bits of
///         mantissa where the device has hardware for that.
///     out: where to write the result: of its shape, dtype and device. It must be the residual, or not overlap any
///         input.
///
/// Returns:
///     A tensor of a's library, device and dtype, of shape (..., m, n), without m or n where a or b is
///     1-dimensional; or `out`. float16 and bfloat16 are accumulated in float32 and rounded once, after
///     bias, activation, gate and residual. In a call that records gradients, gelu, gelu_tanh and silu, a gate, and a
///     residual behind an activation may be steps of their own, each of which rounds.
///
/// Raises:
///     DTypeError: not a tensor, dtypes that differ or are not floating, a negative_slope that is no number.
///     ShapeError: sizes do not fit, bias is not (n,), gate is not of b's shape, or `out` has the wrong shape.
///     LayoutError: `out` is read-only or overlaps an input without being the residual; memory is not strided.
///     DeviceError: tensors of different devices or libraries.
///     OptionError: an activation or precision that is not known, or a negative_slope without leaky_relu.
///     UnsupportedError: `out` in a call that would be recorded for gradients.
///
/// Example:
///     >>> tilewise.matmul(torch.eye(2), torch.tensor([[1.0, -2.0], [3.0, 4.0]]), activation="relu")
///     tensor([[1., 0.],
///             [3., 4.]])
///
/// Sources: src/ops/matmul/mod.rs (meaning), src/cpu/matmul/ (CPU), kernels/matmul_*.cu and
/// src/cuda/plan/matmul/mod.rs (CUDA).
#[pyfunction]
#[pyo3(
    signature = (
        a, b, *, bias = None, gate = None, residual = None, activation = None,
        negative_slope = Keyword::Default, precision = Keyword::Default, out = None
    ),
    text_signature = "(a, b, *, bias=None, gate=None, residual=None, activation=None, negative_slope=0.01, \
                      precision='ieee', out=None)"
)]
#[allow(clippy::too_many_arguments, reason = "Python's own")]
pub fn matmul<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    bias: Option<&Bound<'py, PyAny>>,
    gate: Option<&Bound<'py, PyAny>>,
    residual: Option<&Bound<'py, PyAny>>,
    activation: Option<&Bound<'py, PyAny>>,
    negative_slope: Keyword<'_, 'py>,
    precision: Keyword<'_, 'py>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut kept = None;
    let negative_slope = negative_slope.settled_number(SLOPE, &mut kept)?;
    let options = MatmulOptions { bias, gate, residual, activation, negative_slope, precision, out };
    match run(py, a, b, &options, Autocast::Everywhere) {
        Err(Error::NeedsTorch { by: Handler::Autocast, .. }) => in_lower_precision(py, a, b, &options),
        result => finish_checked(py, result, [a, b], options.keywords(), || check(py, a, b, &options)),
    }
}

fn check<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    options: &MatmulOptions<'_, 'py>,
) -> Result<()> {
    let mut call = Call::planning(py, "matmul", &DType::FLOATS);
    problem(&mut call, a, b, options.checked()?, options).map(drop)
}

fn run<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    options: &MatmulOptions<'_, 'py>,
    autocast: Autocast,
) -> Result<Bound<'py, PyAny>> {
    thread_local! {
        static MATMULS: Memo<Known<MatmulProblem>, 5, 3> = const { Memo::new(Vec::new()) };
    }
    let &MatmulOptions { bias, gate, residual, activation, negative_slope, precision, out } = options;
    let tensors = [Some(a), Some(b), bias, gate, residual];
    let given = [given(activation), negative_slope.given(), precision.given()];
    let arguments = Arguments { op: "matmul", tensors, options: given, out, autocast };
    let found = memo::call(&MATMULS, &arguments, Known::solve)?;
    let (result, recorded) = match found {
        Memoised::Made { result, recorded } => (result, recorded),
        Memoised::Autocast => {
            return Err(Error::NeedsTorch { op: "matmul", argument: "a", by: Handler::Autocast });
        }
        Memoised::New(_) | Memoised::Otherwise => {
            let mut call = Call::new(py, "matmul", &DType::FLOATS).with_autocast(autocast).recordable();
            let (out, problem) = problem(&mut call, a, b, options.checked()?, options)?;
            let recorded = call.is_recorded();
            let (result, known) = solve(call, out, problem)?;
            if matches!(found, Memoised::New(_)) {
                memo::remember(&MATMULS, &arguments, &result, recorded, known);
            }
            (result, recorded)
        }
    };
    match recorded {
        true => Ok(record(py, a, b, options, result)?),
        false => Ok(result),
    }
}

/// Shows autograd a product. Of an activation whose slope its result does not tell, `result` is what it is still to be
/// applied to: gradients of gradients find their way by that.
fn record<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    options: &MatmulOptions<'_, 'py>,
    result: Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    static MATMUL: Recorder = Recorder::new("RecordedMatmul");
    static ACTIVATED: Recorder = Recorder::new("RecordedActivated");
    static ACTIVATIONS: Entry<3> = Entry::new(["autograd", "formulas", "ACTIVATIONS"]);
    let &MatmulOptions { bias, residual, activation, negative_slope, precision, .. } = options;
    let (checked, how_precise) = options.checked().map_err(|error| raise(py, error))?;
    let suffices = checked.result_suffices();
    let slope = || match negative_slope.given() {
        Some(slope) => Ok(slope.to_owned()),
        None => DEFAULT_SLOPE.into_bound_py_any(py),
    };
    let (of_a, of_b) = (torch_facts(a)?, torch_facts(b)?);
    let kept = |tensor: &Bound<'py, PyAny>, by: &TorchFacts| by.requires_grad.then(|| tensor.clone());
    let (for_b, for_a) = (kept(a, &of_b), kept(b, &of_a));
    // What the activation is of is no result of its own, where gradients of gradients find it by what is saved.
    let alone = !suffices && of_b.requires_grad;
    let (results, saved, saved_is) = match activation {
        None => (result, None, "output"),
        Some(_) if suffices => (result.clone(), Some(result), "output"),
        Some(name) => {
            let slope = slope()?;
            let applied = ACTIVATIONS.get(py)?.get_item(name)?.call1((&result, slope))?;
            let results = match alone {
                true => applied,
                false => (applied, &result).into_pyobject(py)?.into_any(),
            };
            (results, Some(result), "pre_activation")
        }
    };
    let dims = (of_a.rank, of_b.rank);
    // To be asked here of what is not saved.
    let by_columns = of_b.requires_grad && !of_a.requires_grad && lies_by_columns(b)?;
    let how = match (activation, how_precise, dims, by_columns) {
        (None, Precision::Ieee, (2, 2), false) => None,
        _ => {
            let precision =
                precision.given().map_or_else(|| intern!(py, "ieee").clone().into_any(), |p| p.to_owned());
            let applied = (activation, slope()?, saved_is);
            Some(match alone {
                true => (dims, precision, applied, by_columns, (b, bias)).into_pyobject(py)?.into_any(),
                false => (dims, precision, applied, by_columns).into_pyobject(py)?.into_any(),
            })
        }
    };
    let tensors = match (bias, residual) {
        (_, Some(residual)) => (a, b, bias, residual).into_pyobject(py)?,
        (Some(bias), None) => (a, b, bias).into_pyobject(py)?,
        (None, None) => (a, b).into_pyobject(py)?,
    };
    let saved = Some(match saved {
        Some(saved) => (for_b, for_a, saved).into_pyobject(py)?,
        None => (for_b, for_a).into_pyobject(py)?,
    });
    let recorder = if alone { &ACTIVATED } else { &MATMUL };
    let returned = recorder.record(py, &tensors, Recorded { results, how, saved, materialized: false })?;
    match returned.cast::<PyTuple>() {
        Ok(both) => both.get_item(0),
        Err(_) => Ok(returned),
    }
}

/// As formulas.lies_by_columns.
fn lies_by_columns(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    let strides: SmallVec<[i64; 4]> = tensor
        .call_method0(intern!(tensor.py(), "stride"))?
        .try_iter()?
        .map(|n| n?.extract())
        .collect::<PyResult<_>>()?;
    Ok(matches!(strides[..], [.., rows, columns] if rows == 1 && columns != 1))
}

/// Under torch.autocast, as torch.matmul.
fn in_lower_precision<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    options: &MatmulOptions<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let by_python = || Err(Error::NeedsTorch { op: "matmul", argument: "a", by: Handler::Autocast });
    let lowered = match options.out {
        // What is written to an `out` is not converted.
        Some(_) => None,
        None => autocast::lowered([Some(a), Some(b), options.bias, options.gate, options.residual])?,
    };
    let Some([Some(a), Some(b), bias, gate, residual]) = lowered else {
        return finish(py, by_python(), [a, b], options.keywords());
    };
    let (bias, gate, residual) = (bias.as_ref(), gate.as_ref(), residual.as_ref());
    let options = MatmulOptions { bias, gate, residual, ..*options };
    let result = match run(py, &a, &b, &options, Autocast::Nowhere) {
        Err(Error::NeedsTorch { .. }) => by_python(),
        result => result,
    };
    finish(py, result, [&a, &b], options.keywords())
}

/// Raises what matmul would for these options, before there are operands.
///
/// Args:
///     activation, negative_slope, precision: those of matmul.
///
/// Returns:
///     Whether gradients need no more of the activation than its result.
///
/// Raises:
///     OptionError: an activation or precision that is not known, a slope beside another activation than
///         leaky_relu. DTypeError: a slope that is no number.
///
/// Source: src/python/matmul.rs; called by tilewise.torch.
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
) -> PyResult<bool> {
    let (bias, gate, residual, out) = (None, None, None, None);
    let options = MatmulOptions { bias, gate, residual, activation, negative_slope, precision, out };
    let checked = options.checked().map_err(|error| raise(py, error));
    checked.map(|(activation, _)| activation.result_suffices())
}

/// What a matmul may be given besides its operands.
#[derive(Debug)]
pub struct MatmulOptions<'a, 'py> {
    pub bias: Option<&'a Bound<'py, PyAny>>,
    pub gate: Option<&'a Bound<'py, PyAny>>,
    pub residual: Option<&'a Bound<'py, PyAny>>,
    pub activation: Option<&'a Bound<'py, PyAny>>,
    pub negative_slope: Keyword<'a, 'py>,
    pub precision: Keyword<'a, 'py>,
    pub out: Option<&'a Bound<'py, PyAny>>,
}

pub const SLOPE: Argument = Argument { op: "matmul", name: "negative_slope", accepted: &DType::FLOATS };

impl<'a, 'py> MatmulOptions<'a, 'py> {
    fn keywords(&self) -> [(&'static str, Option<Borrowed<'a, 'py, PyAny>>); 7] {
        [
            ("bias", given(self.bias)),
            ("gate", given(self.gate)),
            ("residual", given(self.residual)),
            ("activation", given(self.activation)),
            ("negative_slope", self.negative_slope.given()),
            ("precision", self.precision.given()),
            ("out", given(self.out)),
        ]
    }

    /// Those that are no tensors.
    pub fn checked(&self) -> Result<(Activation, Precision)> {
        let slope = self.negative_slope.real(SLOPE, DEFAULT_SLOPE)?;
        let activation = arguments::activation("matmul", self.activation, slope)?;
        Ok((activation, self.precision.precision()?))
    }
}

/// As `add::problem`.
pub fn problem<'py>(
    call: &mut Call<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    (activation, precision): (Activation, Precision),
    options: &MatmulOptions<'_, 'py>,
) -> Result<(Output<'py>, MatmulProblem)> {
    call.classify([Some(a), Some(b), options.bias, options.gate, options.residual, options.out])?;
    let a = call.input("a", a)?;
    let b = call.input("b", b)?;
    let bias = options.bias.map(|bias| call.input("bias", bias)).transpose()?;
    let gate = options.gate.map(|gate| call.input("gate", gate)).transpose()?;
    let residual = options.residual.map(|residual| call.input("residual", residual)).transpose()?;
    let [bias, gate, residual] = [&bias, &gate, &residual].map(|t| t.as_ref().map(|t| t.view.as_ref()));
    let operands = Operands { a: &a.view, b: &b.view, bias, gate, residual };
    let spec = ops::matmul::output(&operands)?;
    // Autograd has to see what such an activation is of, and applies it.
    let activation = match call.is_recorded() && !activation.result_suffices() {
        true => Activation::None,
        false => activation,
    };
    let out = call.output(&spec, options.out, &a)?;
    // Their gradients are those of several recorded calls.
    let activated_and = residual.filter(|_| options.activation.is_some());
    if let Some(argument) = gate.map(|_| "gate").or(activated_and.map(|_| "residual"))
        && call.is_recorded()
    {
        return Err(Error::NeedsTorch { op: "matmul", argument, by: Handler::Autograd });
    }
    let problem = ops::matmul::problem(&operands, &out.view, activation, precision, &spec)?;
    Ok((out, problem))
}
