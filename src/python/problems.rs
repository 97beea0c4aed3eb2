//! From the arguments of a call to the problem it poses and the output that will hold the result. What runs an
//! operation and what explains it start here.
//!
//! What is no tensor is looked at first: that may run the caller's own code, which may change what tensors hold.

use pyo3::prelude::*;

use super::arguments::{self, Keyword};
use crate::dtype::DType;
use crate::error::Result;
use crate::interop::{Argument, Call, Output};
use crate::ops::activation_backward::{self, ActivationBackwardProblem};
use crate::ops::add::AddProblem;
use crate::ops::matmul::{Activation, MatmulProblem, Operands, Precision};
use crate::ops::softmax::{Kind, SoftmaxProblem};
use crate::ops::softmax_backward::SoftmaxBackwardProblem;
use crate::ops::{self, Scalar};

pub fn add<'py>(
    call: &mut Call<'py>,
    x: &Bound<'py, PyAny>,
    y: &Bound<'py, PyAny>,
    alpha: &Keyword<'_, 'py>,
    out: Option<&Bound<'py, PyAny>>,
) -> Result<(Output<'py>, AddProblem)> {
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

pub fn softmax<'py>(
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

/// What a matmul may be given besides its operands.
#[derive(Debug)]
pub struct MatmulOptions<'a, 'py> {
    pub bias: Option<&'a Bound<'py, PyAny>>,
    pub activation: Option<&'a Bound<'py, PyAny>>,
    pub negative_slope: Keyword<'a, 'py>,
    pub precision: Keyword<'a, 'py>,
    pub out: Option<&'a Bound<'py, PyAny>>,
}

pub const SLOPE: Argument = Argument { op: "matmul", name: "negative_slope", accepted: &DType::FLOATS };

impl MatmulOptions<'_, '_> {
    /// Those that are no tensors.
    pub fn checked(&self) -> Result<(Activation, Precision)> {
        let slope = self.negative_slope.number(SLOPE, Scalar::Float(0.01))?;
        let activation = arguments::activation("matmul", self.activation, slope.as_f64())?;
        Ok((activation, self.precision.precision()?))
    }
}

pub fn matmul<'py>(
    call: &mut Call<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    options: &MatmulOptions<'_, 'py>,
) -> Result<(Output<'py>, MatmulProblem)> {
    let (activation, precision) = options.checked()?;
    call.classify([Some(a), Some(b), options.bias, options.out])?;
    let a = call.input("a", a)?;
    let b = call.input("b", b)?;
    let bias = options.bias.map(|bias| call.input("bias", bias)).transpose()?;
    let bias = bias.as_ref().map(|t| t.view.as_ref());
    let spec = ops::matmul::output(&a.view, &b.view, bias)?;
    let out = call.output(&spec, options.out, &a)?;
    let operands = Operands { a: &a.view, b: &b.view, bias, out: &out.view };
    let problem = ops::matmul::problem(&operands, activation, precision, &spec)?;
    Ok((out, problem))
}

pub fn softmax_backward<'py>(
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

/// What an activation_backward may be given besides grad.
#[derive(Debug)]
pub struct ActivationBackwardOptions<'a, 'py> {
    /// Looked at only where there is an activation.
    pub saved: Option<&'a Bound<'py, PyAny>>,
    pub activation: Option<&'a Bound<'py, PyAny>>,
    pub negative_slope: Keyword<'a, 'py>,
    pub saved_is: Keyword<'a, 'py>,
    pub bias: bool,
}

/// The gradient, and that of bias.
pub type Gradients<'py> = (Option<Output<'py>>, Option<Output<'py>>);

pub fn activation_backward<'py>(
    call: &mut Call<'py>,
    grad: &Bound<'py, PyAny>,
    options: &ActivationBackwardOptions<'_, 'py>,
) -> Result<(Gradients<'py>, ActivationBackwardProblem)> {
    let slope = options.negative_slope.number(call.argument("negative_slope"), Scalar::Float(0.01))?;
    let applied = arguments::activation(activation_backward::OP, options.activation, slope.as_f64())?;
    let saved_is = options.saved_is.saved_is()?;
    call.classify([Some(grad), options.saved])?;
    let grad = call.input("grad", grad)?;
    let saved = options.saved.filter(|_| options.activation.is_some());
    let saved = saved.map(|saved| call.input("saved", saved)).transpose()?;
    let saved = saved.as_ref().map(|t| t.view.as_ref());
    let specs = activation_backward::outputs(&grad.view, saved, applied, saved_is)?;
    let out = specs.0.map(|spec| call.output(&spec, None, &grad)).transpose()?;
    let sums = if options.bias { Some(call.output(&specs.1, None, &grad)?) } else { None };
    let [out_view, sums_view] = [&out, &sums].map(|output| output.as_ref().map(|o| o.view.as_ref()));
    let problem = activation_backward::problem(&grad.view, saved, applied, out_view, sums_view);
    Ok(((out, sums), problem))
}
