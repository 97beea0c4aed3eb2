//! softmax and log_softmax, as Python sees them.

use pyo3::intern;
use pyo3::prelude::*;

use super::arguments::{self, Keyword, given};
use super::recording::{Recorded, Recorder};
use super::routing::finish_checked;
use super::run::{Known, solve};
use crate::dtype::DType;
use crate::error::{Error, Handler, Result};
use crate::interop::memo::{self, Arguments, Memo, Memoised};
use crate::interop::{Argument, Autocast, Call, Output, autocast};
use crate::ops;
use crate::ops::softmax::{Kind, SoftmaxProblem};

/// Softmax along one dimension, as torch.softmax.
///
/// Args:
///     x: tensor of any shape. dtypes: float16, bfloat16, float32, float64; with `dtype` also bool, uint8,
///         int8, int16, int32, int64.
///     dim: the dimension whose elements sum to one; negative counts from the last.
///     dtype: dtype to convert x to while it is read, and of the result: a torch.dtype, a numpy dtype or
///         a name such as "float32".
///     out: where to write the result: of its shape, dtype and device. It must be x, or not overlap it.
///
/// Returns:
///     A tensor of x's library, device and shape, of `dtype` or else x's; or `out`. Computed in float32
///     (float64 for float64) with the maximum subtracted, and rounded once. A row of only -inf gives NaN,
///     as in torch.
///
/// Raises:
///     DTypeError: not a tensor, a `dtype` that is not floating, or integers without a `dtype`.
///     DimError: `dim` is out of range.
///     ShapeError: `out` has the wrong shape, or x more than 64 dimensions.
///     LayoutError: `out` is read-only or overlaps x; memory is not strided.
///     DeviceError: tensors of different devices or libraries.
///     UnsupportedError: `out` in a call that would be recorded for gradients.
///
/// Example:
///     >>> tilewise.softmax(torch.zeros(2, 4))
///     tensor([[0.2500, 0.2500, 0.2500, 0.2500],
///             [0.2500, 0.2500, 0.2500, 0.2500]])
///
/// Sources: src/ops/softmax.rs (meaning), src/cpu/softmax/ (CPU), kernels/softmax*.cu and
/// src/cuda/plan/softmax/choose/ (CUDA).
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
///     out: where to write the result: of its shape, dtype and device. It must be x, or not overlap it.
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
/// Sources: those of softmax.
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
        static SOFTMAXES: Memo<Known<SoftmaxProblem>, 1, 2> = const { Memo::new(Vec::new()) };
        static LOG_SOFTMAXES: Memo<Known<SoftmaxProblem>, 1, 2> = const { Memo::new(Vec::new()) };
    }
    let known_calls = if kind == Kind::Softmax { &SOFTMAXES } else { &LOG_SOFTMAXES };
    let run = |dtype: Option<&Bound<'py, PyAny>>, autocast: Autocast| -> Result<Bound<'py, PyAny>> {
        let (tensors, options) = ([Some(x)], [dim.given(), given(dtype)]);
        let arguments = Arguments { op: kind.name(), tensors, options, out, autocast };
        let found = memo::call(known_calls, &arguments, Known::solve)?;
        let (result, recorded) = match found {
            Memoised::Made { result, recorded } => (result, recorded),
            Memoised::Autocast => {
                return Err(Error::NeedsTorch { op: kind.name(), argument: "x", by: Handler::Autocast });
            }
            Memoised::New(_) | Memoised::Otherwise => {
                let mut call =
                    Call::new(py, kind.name(), &DType::FLOATS).with_autocast(autocast).recordable();
                let (out, problem) = problem(&mut call, kind, x, &dim, dtype, out)?;
                let recorded = call.is_recorded();
                let (result, known) = solve(call, out, problem)?;
                if matches!(found, Memoised::New(_)) {
                    memo::remember(known_calls, &arguments, &result, recorded, known);
                }
                (result, recorded)
            }
        };
        if !recorded {
            return Ok(result);
        }
        static SOFTMAX: Recorder = Recorder::new("RecordedSoftmax");
        static LOG_SOFTMAX: Recorder = Recorder::new("RecordedLogSoftmax");
        let recorder = if kind == Kind::Softmax { &SOFTMAX } else { &LOG_SOFTMAX };
        let own_dtype = || x.getattr(intern!(py, "dtype"));
        let how = match (dim.given(), dtype) {
            (None, None) => None,
            (Some(dim), None) => Some((dim, py.None()).into_pyobject(py)?.into_any()),
            (Some(dim), Some(_)) => Some((dim, own_dtype()?).into_pyobject(py)?.into_any()),
            (None, Some(_)) => Some((-1, own_dtype()?).into_pyobject(py)?.into_any()),
        };
        let saved = Some((&result,).into_pyobject(py)?);
        let shown = Recorded { results: result, how, saved, materialized: true };
        Ok(recorder.record(py, &(x,).into_pyobject(py)?, shown)?)
    };
    let result = match run(dtype, Autocast::Gpus) {
        // Kept in float32, to which x is converted while it is read.
        Err(Error::NeedsTorch { by: Handler::Autocast, op, argument })
            if dtype.is_none() && out.is_none() =>
        {
            let by_python = || Err(Error::NeedsTorch { by: Handler::Autocast, op, argument });
            match autocast::float32_of(x)?.map(|float32| run(Some(&float32), Autocast::Nowhere)) {
                None | Some(Err(Error::NeedsTorch { .. })) => by_python(),
                Some(result) => result,
            }
        }
        result => result,
    };
    let planning = || Call::planning(py, kind.name(), &DType::FLOATS);
    let check = || problem(&mut planning(), kind, x, &dim, dtype, out).map(drop);
    finish_checked(
        py,
        result,
        [x],
        [("dim", dim.given()), ("dtype", given(dtype)), ("out", given(out))],
        check,
    )
}

/// As `add::problem`.
pub fn problem<'py>(
    call: &mut Call<'py>,
    kind: Kind,
    x: &Bound<'py, PyAny>,
    dim: &Keyword<'_, 'py>,
    dtype: Option<&Bound<'py, PyAny>>,
    out: Option<&Bound<'py, PyAny>>,
) -> Result<(Output<'py>, SoftmaxProblem)> {
    let dim = dim.index(call.argument("dim"), -1)?;
    let dtype = arguments::dtype(kind.name(), dtype)?;
    call.classify([Some(x), out])?;
    let x = call.input("x", x)?;
    let spec = ops::softmax::output(kind, &x.view, dtype)?;
    ops::softmax::checked_dim(kind.name(), dim, x.view.rank())?;
    let out = call.output(&spec, out, &x)?;
    let problem = ops::softmax::problem(kind, &x.view, dim, &spec, &out.view)?;
    Ok((out, problem))
}
