//! matmul with a gate that keeps what its gradients need, as tilewise.torch sees it.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::arguments::Keyword;
use super::exceptions::raise;
use super::matmul::{MatmulOptions, SLOPE};
use super::run::solve_keeping;
use crate::dtype::DType;
use crate::error::Result;
use crate::interop::Call;
use crate::ops;
use crate::ops::matmul::{Kept, Operands};
use crate::tensor::Device;

/// `activation(a @ gate + bias[0]) * (a @ b + bias[1])`, and both sums, by one kernel that has all three.
///
/// Args:
///     a, b, gate, bias, activation, negative_slope: those of matmul.
///
/// Returns:
///     (the result, a @ gate + bias[0], a @ b + bias[1]), each rounded once; or None where no kernel does so: it is there
///     for float16 and bfloat16 on compute capability 9.0.
///
/// Raises:
///     What matmul raises.
///
/// Sources: kernels/matmul_wgmma_training.cu and src/cuda/plan/matmul/wgmma/training.rs; called by tilewise.torch.
#[pyfunction]
#[pyo3(
    signature = (a, b, gate, bias = None, *, activation = None, negative_slope = Keyword::Default),
    text_signature = "(a, b, gate, bias=None, *, activation=None, negative_slope=0.01)"
)]
pub fn matmul_for_training<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    gate: &Bound<'py, PyAny>,
    bias: Option<&Bound<'py, PyAny>>,
    activation: Option<&Bound<'py, PyAny>>,
    negative_slope: Keyword<'_, 'py>,
) -> PyResult<Option<Bound<'py, PyTuple>>> {
    let mut kept = None;
    let negative_slope = negative_slope.settled_number(SLOPE, &mut kept)?;
    let precision = Keyword::Default;
    let gate = Some(gate);
    let options =
        MatmulOptions { bias, gate, residual: None, activation, negative_slope, precision, out: None };
    let results = run(py, a, b, &options).map_err(|error| raise(py, error))?;
    results.map(|results| PyTuple::new(py, results)).transpose()
}

fn run<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    options: &MatmulOptions<'_, 'py>,
) -> Result<Option<Vec<Bound<'py, PyAny>>>> {
    let (activation, precision) = options.checked()?;
    let mut call = Call::new(py, "matmul", &DType::FLOATS);
    call.classify([Some(a), Some(b), options.bias, options.gate])?;
    let a = call.input("a", a)?;
    let b = call.input("b", b)?;
    let bias = options.bias.map(|bias| call.input("bias", bias)).transpose()?;
    let gate = options.gate.map(|gate| call.input("gate", gate)).transpose()?;
    let [bias, gate] = [&bias, &gate].map(|t| t.as_ref().map(|t| t.view.as_ref()));
    let operands = Operands { a: &a.view, b: &b.view, bias, gate, residual: None };
    let spec = ops::matmul::output(&operands)?;
    // Before results are allocated for nothing.
    if spec.device == Device::Cpu || !matches!(spec.dtype, DType::F16 | DType::BF16) {
        return Ok(None);
    }
    let out = call.output(&spec, None, &a)?;
    let (pre_activation, up) = (call.output(&spec, None, &a)?, call.output(&spec, None, &a)?);
    let mut problem = ops::matmul::problem(&operands, &out.view, activation, precision, &spec)?;
    problem.kept = Some(Kept { pre_activation: pre_activation.view.address, up: up.view.address });
    solve_keeping(call, vec![out, pre_activation, up], &problem)
}
