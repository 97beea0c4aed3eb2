//! add, as Python sees it.

use pyo3::prelude::*;

use super::arguments::{Keyword, given};
use super::exceptions::raise;
use super::recording::{Recorded, Recorder};
use super::routing::finish_checked;
use super::run::{Known, solve};
use crate::dtype::DType;
use crate::error::{Error, Handler, Result};
use crate::interop::memo::{self, Arguments, Memo, Memoised};
use crate::interop::scalar::{is_number, is_numpy_scalar, only_numbers};
use crate::interop::{Argument, Autocast, Call, Output};
use crate::ops::add::AddProblem;
use crate::ops::{self, Scalar};

/// `x + alpha * y`, as torch.add.
///
/// Args:
///     x: tensor of any shape. dtypes: bool, uint8, int8, int16, int32, int64, float16, bfloat16,
///         float32, float64. Or a number, if y is a tensor: `add(2, y)` is `add(y, 2)`.
///     y: tensor whose shape broadcasts with x's, or a number. With a CUDA tensor x, y may be a
///         0-dimensional CPU tensor.
///     alpha: number that multiplies y. A float needs a floating result. Not allowed if x is a number.
///     out: where to write the result: of its shape, dtype and device. It must be one of the
///         inputs, or not overlap any.
///
/// Returns:
///     A tensor of x's library on x's device, of the broadcast shape and of dtype
///     torch.result_type(x, y); or `out`. float16 and bfloat16 are added in float32 and rounded once;
///     integers wrap.
///
/// Raises:
///     DTypeError: not a tensor, a dtype that is not accepted, or an alpha that does not fit the result's dtype.
///     OptionError: an alpha, where x is a number.
///     ShapeError: shapes do not broadcast, have more than 64 dimensions, or `out` has the wrong one.
///     LayoutError: `out` is read-only or overlaps an input; memory is not strided.
///     DeviceError: tensors of different devices or libraries.
///     UnsupportedError: `out` in a call that would be recorded for gradients.
///
/// Example:
///     >>> tilewise.add(torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]), alpha=2)
///     tensor([21., 42.])
///
/// Sources: src/ops/add.rs (meaning), src/cpu/add.rs (CPU), kernels/add.cu and src/cuda/plan/add/mod.rs (CUDA).
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
    let (x, y) = number_last(x, y, &alpha).map_err(|error| raise(py, error))?;
    let mut kept = None;
    let alpha =
        alpha.settled_number(Argument { op: "add", name: "alpha", accepted: &DType::ALL }, &mut kept)?;
    thread_local! {
        static ADDS: Memo<Known<AddProblem>, 2, 2> = const { Memo::new(Vec::new()) };
    }
    let run = || -> Result<Bound<'py, PyAny>> {
        let (addend, number) = if is_number(y) { (None, Some(y)) } else { (Some(y), None) };
        let (tensors, options) = ([Some(x), addend], [given(number), alpha.given()]);
        let arguments = Arguments { op: "add", tensors, options, out, autocast: Autocast::Nowhere };
        let found = memo::call(&ADDS, &arguments, Known::solve)?;
        let (result, recorded) = match found {
            Memoised::Made { result, recorded } => (result, recorded),
            Memoised::Autocast => {
                return Err(Error::NeedsTorch { op: "add", argument: "x", by: Handler::Autocast });
            }
            Memoised::New(_) | Memoised::Otherwise => {
                let mut call = Call::new(py, "add", &DType::ALL).recordable();
                let (out, problem) = problem(&mut call, x, y, &alpha, out)?;
                let recorded = call.is_recorded();
                let (result, known) = solve(call, out, problem)?;
                if matches!(found, Memoised::New(_)) && !known.problem().takes_default_dtype() {
                    memo::remember(&ADDS, &arguments, &result, recorded, known);
                }
                (result, recorded)
            }
        };
        if !recorded {
            return Ok(result);
        }
        static ADD: Recorder = Recorder::new("RecordedAdd");
        let how = alpha.given().map(|alpha| alpha.to_owned());
        let tensors = match addend {
            Some(y) => (x, y).into_pyobject(py)?,
            None => (x,).into_pyobject(py)?,
        };
        Ok(ADD.record(py, &tensors, Recorded { results: result, how, saved: None, materialized: true })?)
    };
    let check = || problem(&mut Call::planning(py, "add", &DType::ALL), x, y, &alpha, out).map(drop);
    finish_checked(py, run(), [x, y], [("alpha", alpha.given()), ("out", given(out))], check)
}

/// x and y, or y and x where x is a number: without an alpha their order does not matter. Two numbers are refused.
fn number_last<'a, 'py>(
    x: &'a Bound<'py, PyAny>,
    y: &'a Bound<'py, PyAny>,
    alpha: &Keyword<'_, 'py>,
) -> Result<(&'a Bound<'py, PyAny>, &'a Bound<'py, PyAny>)> {
    if !is_number(x) && !is_numpy_scalar(x)? {
        return Ok((x, y));
    }
    if is_number(y) || is_numpy_scalar(y)? {
        return Err(only_numbers(x, y));
    }
    match alpha.given() {
        None => Ok((y, x)),
        Some(_) => Err(Error::AlphaBesideNumber),
    }
}

/// From the arguments of a call to the problem it poses and the output that will hold the result: what runs the operation
/// and what explains it start here. What is no tensor is looked at first: that may run the caller's own code, which may
/// change what tensors hold.
pub fn problem<'py>(
    call: &mut Call<'py>,
    x: &Bound<'py, PyAny>,
    y: &Bound<'py, PyAny>,
    alpha: &Keyword<'_, 'py>,
    out: Option<&Bound<'py, PyAny>>,
) -> Result<(Output<'py>, AddProblem)> {
    let (x, y) = number_last(x, y, alpha)?;
    let alpha = alpha.number(call.argument("alpha"), Scalar::Int(1))?;
    let number = call.number("y", y)?;
    call.classify([Some(x), Some(y).filter(|_| number.is_none()), out])?;
    let x = call.input("x", x)?;
    let y = match number {
        Some(number) => call.addend(number)?,
        None => call.operand("y", y)?,
    };
    let spec = ops::add::output(&x.view, &y, call.default_float(&x, &y)?)?;
    ops::add::check_alpha(alpha, &spec)?;
    let out = call.output(&spec, out, &x)?;
    let problem = ops::add::problem(&x.view, &y, alpha, &spec, &out.view)?;
    Ok((out, problem))
}
