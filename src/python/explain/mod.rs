//! The plan of a call that is not run.

mod entries;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use self::entries::{describe, tile_order};
use super::activation_backward::ActivationBackwardOptions;
use super::arguments::{self, Keyword};
use super::exceptions::raise;
use super::grouped_matmul::GroupedOptions;
use super::matmul::MatmulOptions;
use super::{activation_backward, add, grouped_matmul, listed_matmul, matmul, softmax, softmax_backward};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::interop::Call;
use crate::ops::activation_backward as ops;
use crate::ops::add::AddendProblem;
use crate::ops::grouped_matmul::OP as GROUPED_MATMUL;
use crate::ops::listed_matmul::ListedMatmulProblem;
use crate::ops::softmax::Kind;

const OP: &str = "explain";

/// How a call of `op` with these arguments would run: the facts that `tilewise.explain` shows.
///
/// Args:
///     op: "add", "softmax", "log_softmax", "matmul", "grouped_matmul", "softmax_backward",
///         "log_softmax_backward" or "activation_backward".
///     arguments: dict of the operation's arguments by name; those left out have their defaults.
///     device: None for the device that the tensors are on; an index, a torch.device, "cuda" or "cuda:1" for a GPU
///         of this machine; or the name of a GPU that need not be present, such as "h200".
///
/// Returns:
///     A dict with problem, work and, for a CPU, cpu; for a GPU device, plan, why, occupancy, ceiling and
///     tile_order (matmul only). Each is a dict, except for lists of dicts: why, and before and after, the
///     launches around the plan's. Unknown facts are left out; without elements there is no plan.
///
/// Raises:
///     As the operation; DeviceError: a device that is not known; OptionError: another op; TypeError: a missing
///         argument.
///
/// Sources: src/python/explain/mod.rs; src/cuda/plan/ makes the plans.
#[pyfunction(name = "explain")]
#[pyo3(text_signature = "(op, arguments, device=None)", signature = (op, arguments, device = None))]
pub fn explain_call<'py>(
    py: Python<'py>,
    op: &str,
    arguments: &Bound<'py, PyDict>,
    device: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let run = || -> Result<Bound<'py, PyDict>> {
        let given = Given(arguments);
        let explained = PyDict::new(py);
        let device = device.map(arguments::device).transpose()?;
        let device = device.as_deref();
        match op {
            "add" => {
                let mut call = Call::planning(py, "add", &DType::ALL);
                let (x, y) = (given.required("x")?, given.required("y")?);
                let (alpha, out) = (given.optional("alpha")?, given.optional("out")?);
                let (_, p) = add::problem(&mut call, &x, &y, &keyword(alpha.as_ref()), out.as_ref())?;
                let problem = PyDict::new(py);
                problem.set_item("shape", p.shape.as_slice())?;
                problem.set_item("x_strides", p.x.strides.as_slice())?;
                if let AddendProblem::Tensor(y) = &p.y {
                    problem.set_item("y_strides", y.strides.as_slice())?;
                }
                problem.set_item("out_strides", p.out.strides.as_slice())?;
                problem.set_item("dtype", p.out.dtype.name())?;
                problem.set_item("alpha", p.alpha.as_f64())?;
                explained.set_item("problem", problem)?;
                describe(&explained, &call, &p, device)?;
            }
            "softmax" | "log_softmax" => {
                let kind = if op == "softmax" { Kind::Softmax } else { Kind::LogSoftmax };
                let mut call = Call::planning(py, kind.name(), &DType::FLOATS);
                let x = given.required("x")?;
                let (dim, out) = (given.optional("dim")?, given.optional("out")?);
                let dtype = given.optional("dtype")?;
                let dim = keyword(dim.as_ref());
                let (_, p) = softmax::problem(&mut call, kind, &x, &dim, dtype.as_ref(), out.as_ref())?;
                let problem = PyDict::new(py);
                problem.set_item("rows", p.row_count())?;
                problem.set_item("length", p.length)?;
                problem.set_item("x_stride", p.x_stride)?;
                problem.set_item("x_dtype", p.x.dtype.name())?;
                problem.set_item("dtype", p.out.dtype.name())?;
                explained.set_item("problem", problem)?;
                describe(&explained, &call, &p, device)?;
            }
            "softmax_backward" | "log_softmax_backward" => {
                let kind = if op == "softmax_backward" { Kind::Softmax } else { Kind::LogSoftmax };
                let mut call = Call::planning(py, kind.backward_name(), &DType::FLOATS);
                let (grad, output) = (given.required("grad")?, given.required("output")?);
                let (dim, out) = (given.optional("dim")?, given.optional("out")?);
                let (dtype, dim) = (given.optional("dtype")?, keyword(dim.as_ref()));
                let inputs = (&grad, &output);
                let (_, p) =
                    softmax_backward::problem(&mut call, kind, inputs, &dim, dtype.as_ref(), out.as_ref())?;
                let problem = PyDict::new(py);
                problem.set_item("rows", p.row_count())?;
                problem.set_item("length", p.length)?;
                problem.set_item("grad_stride", p.grad_stride)?;
                problem.set_item("grad_dtype", p.grad.dtype.name())?;
                problem.set_item("dtype", p.out.dtype.name())?;
                explained.set_item("problem", problem)?;
                describe(&explained, &call, &p, device)?;
            }
            ops::OP => {
                let mut call = Call::planning(py, ops::OP, &DType::FLOATS);
                let (grad, saved) = (given.required("grad")?, given.optional("saved")?);
                let (activation, slope) = (given.optional("activation")?, given.optional("negative_slope")?);
                let (saved_is, up) = (given.optional("saved_is")?, given.optional("up")?);
                let bias = given.optional("bias")?.is_some_and(|bias| bias.is_truthy().unwrap_or(false));
                let options = ActivationBackwardOptions {
                    saved: saved.as_ref(),
                    activation: activation.as_ref(),
                    negative_slope: keyword(slope.as_ref()),
                    saved_is: keyword(saved_is.as_ref()),
                    bias,
                    up: up.as_ref(),
                };
                let (_, p) = activation_backward::problem(&mut call, &grad, &options)?;
                let problem = PyDict::new(py);
                problem.set_item("rows", p.row_count())?;
                problem.set_item("columns", p.columns)?;
                problem.set_item("dtype", p.dtype.name())?;
                problem.set_item("activation", p.activation.name())?;
                problem.set_item("bias", p.bias.is_some())?;
                explained.set_item("problem", problem)?;
                describe(&explained, &call, &p, device)?;
            }
            "matmul" => {
                let mut call = Call::planning(py, "matmul", &DType::FLOATS);
                let (a, b) = (given.required("a")?, given.required("b")?);
                let (bias, activation) = (given.optional("bias")?, given.optional("activation")?);
                let (slope, precision) = (given.optional("negative_slope")?, given.optional("precision")?);
                let (gate, residual) = (given.optional("gate")?, given.optional("residual")?);
                let out = given.optional("out")?;
                let options = MatmulOptions {
                    bias: bias.as_ref(),
                    gate: gate.as_ref(),
                    residual: residual.as_ref(),
                    activation: activation.as_ref(),
                    negative_slope: keyword(slope.as_ref()),
                    precision: keyword(precision.as_ref()),
                    out: out.as_ref(),
                };
                let (_, p) = matmul::problem(&mut call, &a, &b, options.checked()?, &options)?;
                let problem = PyDict::new(py);
                problem.set_item("m", p.m)?;
                problem.set_item("n", p.n)?;
                problem.set_item("k", p.k)?;
                problem.set_item("batch", p.batch_count())?;
                for (name, matrix) in [("a_strides", &p.a), ("b_strides", &p.b), ("out_strides", &p.out)] {
                    problem.set_item(name, [matrix.row_stride, matrix.col_stride])?;
                }
                problem.set_item("dtype", p.dtype.name())?;
                problem.set_item("activation", p.activation.name())?;
                problem.set_item("bias", p.bias.is_some())?;
                problem.set_item("gate", p.gate.is_some())?;
                problem.set_item("residual", p.residual.is_some())?;
                explained.set_item("problem", problem)?;
                let planned = describe(&explained, &call, &p, device)?;
                if let Some(planned) = planned {
                    tile_order(&explained, &p, &planned)?;
                }
            }
            GROUPED_MATMUL => {
                let mut call = Call::planning(py, GROUPED_MATMUL, &DType::FLOATS);
                let (a, b) = (given.required("a")?, given.required("b")?);
                let (offsets, bias) = (given.optional("offsets")?, given.optional("bias")?);
                let gate = given.optional("gate")?;
                let (activation, slope) = (given.optional("activation")?, given.optional("negative_slope")?);
                let out = given.optional("out")?;
                let options = GroupedOptions {
                    offsets: offsets.as_ref(),
                    bias: bias.as_ref(),
                    gate: gate.as_ref(),
                    activation: activation.as_ref(),
                    negative_slope: keyword(slope.as_ref()),
                    out: out.as_ref(),
                };
                if listed_matmul::is_listed(&a) {
                    let lists = listed_matmul::Lists::of(&a, &b, &options)?;
                    let (_, problems) = listed_matmul::problems(&mut call, &lists, options.checked()?)?;
                    let none = || ListedMatmulProblem { products: Vec::new() };
                    let p = problems.into_iter().next().unwrap_or_else(none);
                    let problem = PyDict::new(py);
                    problem.set_item("products", p.products.len())?;
                    problem.set_item("cut", "nothing")?;
                    // What all of them share, or some have.
                    if let Some(first) = p.products.first() {
                        problem.set_item("dtype", first.dtype.name())?;
                        problem.set_item("activation", first.activation.name())?;
                        problem.set_item("bias", p.products.iter().any(|product| product.bias.is_some()))?;
                        problem.set_item("gate", first.gate.is_some())?;
                    }
                    explained.set_item("problem", problem)?;
                    describe(&explained, &call, &p, device)?;
                    return Ok(explained);
                }
                let (_, p) = grouped_matmul::problem(&mut call, &a, &b, options.checked()?, &options)?;
                let problem = PyDict::new(py);
                problem.set_item("groups", p.groups)?;
                problem.set_item("cut", p.cut.name())?;
                problem.set_item("m", p.m)?;
                problem.set_item("n", p.n)?;
                problem.set_item("k", p.k)?;
                problem.set_item("dtype", p.dtype.name())?;
                problem.set_item("activation", p.activation.name())?;
                problem.set_item("bias", p.bias.is_some())?;
                problem.set_item("gate", p.gate.is_some())?;
                explained.set_item("problem", problem)?;
                describe(&explained, &call, &p, device)?;
            }
            other => {
                return Err(Error::NotExplained { got: other.to_string() });
            }
        }
        Ok(explained)
    };
    run().map_err(|error| raise(py, error))
}

/// A call's arguments by name.
struct Given<'a, 'py>(&'a Bound<'py, PyDict>);

impl<'py> Given<'_, 'py> {
    fn optional(&self, name: &str) -> Result<Option<Bound<'py, PyAny>>> {
        Ok(self.0.get_item(name)?.filter(|value| !value.is_none()))
    }

    fn required(&self, name: &'static str) -> Result<Bound<'py, PyAny>> {
        let missing = || PyTypeError::new_err(format!("{OP}: `{name}` is missing"));
        Ok(self.0.get_item(name)?.ok_or_else(missing)?)
    }
}

fn keyword<'a, 'py>(given: Option<&'a Bound<'py, PyAny>>) -> Keyword<'a, 'py> {
    given.map_or(Keyword::Default, |object| Keyword::Given(object.as_borrowed()))
}
