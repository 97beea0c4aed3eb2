//! grouped_matmul of lists, as Python sees it.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::grouped_matmul::GroupedOptions;
use super::run::solve_all;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::interop::{Autocast, Call, Output};
use crate::ops::grouped_matmul::OP;
use crate::ops::listed_matmul::{ListedMatmulProblem, MOST};
use crate::ops::matmul::{self, Activation, Operands, Precision};

type Objects<'py> = Vec<Bound<'py, PyAny>>;

/// Lists and tuples hold the operands of products of their own.
pub fn is_listed(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>()
}

/// The lists of a call, of equal lengths.
#[derive(Debug)]
pub struct Lists<'py> {
    a: Objects<'py>,
    b: Objects<'py>,
    bias: Option<Objects<'py>>,
    gate: Option<Objects<'py>>,
    out: Option<Objects<'py>>,
}

impl<'py> Lists<'py> {
    /// Of products.
    pub fn count(&self) -> usize {
        self.a.len()
    }

    pub fn of(
        a: &Bound<'py, PyAny>,
        b: &Bound<'py, PyAny>,
        options: &GroupedOptions<'_, 'py>,
    ) -> Result<Lists<'py>> {
        let a = taken("a", a, None)?;
        let many = Some(a.len());
        let b = taken("b", b, many)?;
        if options.offsets.is_some() {
            let got = "given with lists, whose matrices have their own sizes".into();
            return Err(Error::Listed { argument: "offsets", got });
        }
        let bias = options.bias.map(|bias| taken("bias", bias, many)).transpose()?;
        let gate = options.gate.map(|gate| taken("gate", gate, many)).transpose()?;
        let out = options.out.map(|out| taken("out", out, many)).transpose()?;
        Ok(Lists { a, b, bias, gate, out })
    }
}

fn taken<'py>(
    argument: &'static str,
    object: &Bound<'py, PyAny>,
    many: Option<usize>,
) -> Result<Objects<'py>> {
    if !is_listed(object) {
        let got = "not a list, but other arguments of the call are".into();
        return Err(Error::Listed { argument, got });
    }
    let found: Objects<'py> = object.try_iter()?.collect::<PyResult<_>>()?;
    match many {
        Some(many) if found.len() != many => Err(Error::Listed {
            argument,
            got: format!("a list of {}, but a is a list of {many}", found.len()),
        }),
        _ => Ok(found),
    }
}

pub fn run<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    options: &GroupedOptions<'_, 'py>,
) -> Result<Bound<'py, PyAny>> {
    let lists = Lists::of(a, b, options)?;
    let activation = options.checked()?;
    let results = PyList::empty(py);
    for from in (0..lists.a.len()).step_by(MOST) {
        let to = lists.a.len().min(from + MOST);
        let mut call = Call::new(py, OP, &DType::FLOATS).with_autocast(Autocast::Everywhere);
        let (outputs, problem) = problem(&mut call, &lists, from..to, activation)?;
        for result in solve_all(call, outputs, problem)? {
            results.append(result)?;
        }
    }
    Ok(results.into_any())
}

/// As `add::problem`, of some of the products.
pub fn problem<'py>(
    call: &mut Call<'py>,
    lists: &Lists<'py>,
    some: std::ops::Range<usize>,
    activation: Activation,
) -> Result<(Vec<Output<'py>>, ListedMatmulProblem)> {
    let bias_of = |i: usize| lists.bias.as_ref().map(|bias| &bias[i]);
    let gate_of = |i: usize| lists.gate.as_ref().map(|gate| &gate[i]);
    let out_of = |i: usize| lists.out.as_ref().map(|out| &out[i]);
    for i in some.clone() {
        call.classify([Some(&lists.a[i]), Some(&lists.b[i]), bias_of(i), gate_of(i), out_of(i)])?;
    }
    let mut products = Vec::with_capacity(some.len());
    let mut outputs: Vec<Output<'py>> = Vec::with_capacity(some.len());
    for i in some {
        let a = call.input("a", &lists.a[i])?;
        let b = call.input("b", &lists.b[i])?;
        let bias = bias_of(i).map(|bias| call.input("bias", bias)).transpose()?;
        let gate = gate_of(i).map(|gate| call.input("gate", gate)).transpose()?;
        let [bias, gate] = [&bias, &gate].map(|t| t.as_ref().map(|t| t.view.as_ref()));
        if a.view.rank() != 2 || b.view.rank() != 2 {
            let got = format!(
                "a list whose tensor {i} has {} dimensions, where b's has {}; both need 2",
                a.view.rank(),
                b.view.rank()
            );
            return Err(Error::Listed { argument: "a", got });
        }
        let operands = Operands { a: &a.view, b: &b.view, bias, gate, residual: None };
        let spec = matmul::output(&operands)?;
        let out = call.output(&spec, out_of(i), &a)?;
        products.push(matmul::problem(&operands, &out.view, activation, Precision::Ieee, &spec)?);
        outputs.push(out);
    }
    if let Some(differs) = products.iter().find(|product| product.dtype != products[0].dtype) {
        let (got, expected) = (differs.dtype, products[0].dtype);
        return Err(Error::DTypesDiffer { op: OP, argument: "a", got, other: "a[0]", expected });
    }
    Ok((outputs, ListedMatmulProblem { products }))
}
