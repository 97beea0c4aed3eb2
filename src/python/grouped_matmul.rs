//! grouped_matmul, as Python sees it.

use pyo3::prelude::*;

use super::arguments::{self, Keyword, given};
use super::exceptions::raise;
use super::listed_matmul::{self, is_listed};
use super::routing::{finish, finish_checked};
use super::run::{Known, solve};
use crate::dtype::DType;
use crate::error::{Error, Handler, Result};
use crate::interop::memo::{self, Arguments, Memo, Memoised};
use crate::interop::{Argument, Autocast, Call, Output, autocast};
use crate::ops::grouped_matmul::{self as ops, GroupedMatmulProblem, OP, Operands};
use crate::ops::matmul::{Activation, DEFAULT_SLOPE};

/// `activation(a @ b + bias)` for each of many groups, in one launch; with a gate,
/// `activation(a @ gate + bias[:, 0]) * (a @ b + bias[:, 1])`.
///
/// There are four kinds of groups. Groups of rows, as in a mixture of experts: rows `offsets[g - 1]` to
/// `offsets[g]` of `a` are multiplied by `b[g]`. Groups of k, as in the gradient of the experts' weights: these
/// columns of `a` are multiplied by these rows of `b`, to `out[g]`. Without offsets, the matrices of a batch. With
/// lists, matrices of any sizes and layouts. Offsets are read on the tensors' own device, never by the host. Unlike
/// matmul it takes no residual and no precision: float32 is multiplied as float32.
///
/// Args:
///     a: tensor of shape (T, K), or (M, T), or (G, M, K); or a list of matrices. dtypes: float16, bfloat16,
///         float32, float64.
///     b: tensor of a's dtype, of shape (G, K, N), or (T, N), or (G, K, N); or a list of as many matrices.
///     offsets: int32 tensor of shape (G,): where each group ends; the first begins at 0. Groups may be
///         empty. Each offset is replaced by the running maximum, within 0 to T.
///     bias: tensor of shape (G, N) of a's dtype, whose row g is added to every row of group g; with a gate,
///         (G, 2, N), the gate's and b's. With lists, a list of tensors of shape (N,), or (2, N).
///     gate: tensor of b's shape and a's dtype. The activation is applied to the matmul with `gate`, and the
///         result multiplied by the matmul with `b`. The two may be views of one tensor. With lists, a list.
///     activation: None, "relu", "leaky_relu", "gelu", "gelu_tanh" or "silu", applied before rounding.
///     negative_slope: what leaky_relu multiplies negative values by. Only with activation="leaky_relu".
///     out: where to write the result: of its shape, dtype and device, overlapping no input and no other
///         result; with lists, a list of such tensors.
///
/// Returns:
///     A tensor of a's library, device and dtype, of shape (T, N), whose rows after the last group are
///     zeros; or (G, M, N); or `out`; with lists, a list of as many tensors. float16 and bfloat16 are accumulated in
///     float32 and rounded once, after bias, activation and gate; in a call that records gradients, an activation
///     and a gate may be steps of their own, each of which rounds.
///
/// Raises:
///     DTypeError: not a tensor, dtypes that differ or are not floating, offsets that are not int32.
///     ShapeError: shapes do not fit, the gate's is not b's, bias is not (G, N), or (G, 2, N) with a gate, or
///         `out` has the wrong shape.
///     LayoutError: `out` is read-only or overlaps an input; memory is not strided.
///     DeviceError: tensors of different devices or libraries.
///     OptionError: an activation that is not known, or a negative_slope without leaky_relu.
///     UnsupportedError: `out` in a call that would be recorded for gradients.
///
/// Example:
///     >>> tokens, experts = torch.ones(3, 2), torch.tensor([1.0, 10.0]).expand(2, 1, 2).mT.expand(2, 2, 1)
///     >>> tilewise.grouped_matmul(tokens, experts, torch.tensor([1, 3], dtype=torch.int32)).T
///     tensor([[11., 11., 11.]])
///
/// Sources: src/ops/grouped_matmul.rs (meaning), src/cpu/matmul/grouped.rs (CPU), kernels/grouped_matmul_*.cu and
/// src/cuda/plan/matmul/grouped/mod.rs (CUDA).
#[pyfunction]
#[pyo3(
    signature = (a, b, offsets = None, *, bias = None, gate = None, activation = None, negative_slope = Keyword::Default, out = None),
    text_signature = "(a, b, offsets=None, *, bias=None, gate=None, activation=None, negative_slope=0.01, out=None)"
)]
#[allow(clippy::too_many_arguments, reason = "Python's own")]
pub fn grouped_matmul<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    offsets: Option<&Bound<'py, PyAny>>,
    bias: Option<&Bound<'py, PyAny>>,
    gate: Option<&Bound<'py, PyAny>>,
    activation: Option<&Bound<'py, PyAny>>,
    negative_slope: Keyword<'_, 'py>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let mut kept = None;
    let negative_slope = negative_slope.settled_number(SLOPE, &mut kept)?;
    let options = GroupedOptions { offsets, bias, gate, activation, negative_slope, out };
    if is_listed(a) {
        let result = listed_matmul::run(py, a, b, &options);
        if matches!(result, Err(Error::NeedsTorch { .. })) {
            // Before torch makes the products one after the other.
            listed_matmul::check(py, a, b, &options).map_err(|error| raise(py, error))?;
        }
        return finish(py, result, [a, b], options.keywords());
    }
    match run(py, a, b, &options, Autocast::Everywhere) {
        Err(Error::NeedsTorch { by: Handler::Autocast, .. }) => in_lower_precision(py, a, b, &options),
        result => finish_checked(py, result, [a, b], options.keywords(), || {
            let mut call = Call::planning(py, OP, &DType::FLOATS);
            problem(&mut call, a, b, options.checked()?, &options).map(drop)
        }),
    }
}

fn run<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    options: &GroupedOptions<'_, 'py>,
    autocast: Autocast,
) -> Result<Bound<'py, PyAny>> {
    thread_local! {
        static GROUPED: Memo<Known<GroupedMatmulProblem>, 5, 2> = const { Memo::new(Vec::new()) };
    }
    let &GroupedOptions { offsets, bias, gate, activation, negative_slope, out } = options;
    let tensors = [Some(a), Some(b), offsets, bias, gate];
    let given = [given(activation), negative_slope.given()];
    let arguments = Arguments { op: OP, tensors, options: given, out, autocast };
    let found = memo::call(&GROUPED, &arguments, Known::solve)?;
    if let Memoised::Made { result, .. } = found {
        return Ok(result);
    }
    let mut call = Call::new(py, OP, &DType::FLOATS).with_autocast(autocast);
    let (out, problem) = problem(&mut call, a, b, options.checked()?, options)?;
    let (result, known) = solve(call, out, problem)?;
    if matches!(found, Memoised::New(_)) {
        memo::remember(&GROUPED, &arguments, &result, false, known);
    }
    Ok(result)
}

/// Under torch.autocast, as matmul.
fn in_lower_precision<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    options: &GroupedOptions<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let by_python = || Err(Error::NeedsTorch { op: OP, argument: "a", by: Handler::Autocast });
    let lowered = match options.out {
        // What is written to an `out` is not converted.
        Some(_) => None,
        None => autocast::lowered([Some(a), Some(b), options.bias, options.gate])?,
    };
    let Some([Some(a), Some(b), bias, gate]) = lowered else {
        return finish(py, by_python(), [a, b], options.keywords());
    };
    let options = GroupedOptions { bias: bias.as_ref(), gate: gate.as_ref(), ..*options };
    let result = match run(py, &a, &b, &options, Autocast::Nowhere) {
        Err(Error::NeedsTorch { .. }) => by_python(),
        result => result,
    };
    finish(py, result, [&a, &b], options.keywords())
}

/// What a grouped_matmul may be given besides its operands.
#[derive(Debug)]
pub struct GroupedOptions<'a, 'py> {
    pub offsets: Option<&'a Bound<'py, PyAny>>,
    pub bias: Option<&'a Bound<'py, PyAny>>,
    pub gate: Option<&'a Bound<'py, PyAny>>,
    pub activation: Option<&'a Bound<'py, PyAny>>,
    pub negative_slope: Keyword<'a, 'py>,
    pub out: Option<&'a Bound<'py, PyAny>>,
}

const SLOPE: Argument = Argument { op: OP, name: "negative_slope", accepted: &DType::FLOATS };

impl<'a, 'py> GroupedOptions<'a, 'py> {
    fn keywords(&self) -> [(&'static str, Option<Borrowed<'a, 'py, PyAny>>); 6] {
        [
            ("offsets", given(self.offsets)),
            ("bias", given(self.bias)),
            ("gate", given(self.gate)),
            ("activation", given(self.activation)),
            ("negative_slope", self.negative_slope.given()),
            ("out", given(self.out)),
        ]
    }

    pub fn checked(&self) -> Result<Activation> {
        let slope = self.negative_slope.real(SLOPE, DEFAULT_SLOPE)?;
        arguments::activation(OP, self.activation, slope)
    }
}

/// As `add::problem`.
pub fn problem<'py>(
    call: &mut Call<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    activation: Activation,
    options: &GroupedOptions<'_, 'py>,
) -> Result<(Output<'py>, GroupedMatmulProblem)> {
    let &GroupedOptions { offsets, bias, gate, out, .. } = options;
    call.classify([Some(a), Some(b), offsets, bias, gate, out])?;
    let a = call.input("a", a)?;
    let b = call.input("b", b)?;
    let offsets = offsets.map(|offsets| call.input("offsets", offsets)).transpose()?;
    let bias = bias.map(|bias| call.input("bias", bias)).transpose()?;
    let gate = gate.map(|gate| call.input("gate", gate)).transpose()?;
    let [offsets, bias, gate] = [&offsets, &bias, &gate].map(|t| t.as_ref().map(|t| t.view.as_ref()));
    let operands = Operands { a: &a.view, b: &b.view, offsets, bias, gate };
    let spec = ops::output(operands)?;
    let out = call.output(&spec, out, &a)?;
    let problem = ops::problem(operands, activation, &spec, &out.view)?;
    Ok((out, problem))
}
