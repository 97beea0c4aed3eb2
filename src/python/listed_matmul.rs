//! grouped_matmul of lists, as Python sees it.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use super::grouped_matmul::GroupedOptions;
use super::run::solve_all;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::interop::{Autocast, Call, Output};
use crate::ops::grouped_matmul::OP;
use crate::ops::listed_matmul::{ListedMatmulProblem, MOST, Places};
use crate::ops::matmul::{self, Activation, MatmulProblem, Operands, Precision};

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

/// What the lists hold for one product.
struct Pair<'a, 'py> {
    a: &'a Bound<'py, PyAny>,
    b: &'a Bound<'py, PyAny>,
    bias: Option<&'a Bound<'py, PyAny>>,
    gate: Option<&'a Bound<'py, PyAny>>,
    out: Option<&'a Bound<'py, PyAny>>,
}

impl<'py> Lists<'py> {
    pub fn of(
        a: &Bound<'py, PyAny>,
        b: &Bound<'py, PyAny>,
        options: &GroupedOptions<'_, 'py>,
    ) -> Result<Lists<'py>> {
        let a = taken("a", a, None)?;
        let many = Some(a.len());
        let b = taken("b", b, many)?;
        if options.offsets.is_some() {
            return Err(Error::ListedOffsets);
        }
        let bias = options.bias.map(|bias| taken("bias", bias, many)).transpose()?;
        let gate = options.gate.map(|gate| taken("gate", gate, many)).transpose()?;
        let out = options.out.map(|out| taken("out", out, many)).transpose()?;
        Ok(Lists { a, b, bias, gate, out })
    }

    fn pair(&self, i: usize) -> Pair<'_, 'py> {
        let [bias, gate, out] =
            [&self.bias, &self.gate, &self.out].map(|list| list.as_ref().map(|list| &list[i]));
        Pair { a: &self.a[i], b: &self.b[i], bias, gate, out }
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
    let mut call = Call::new(py, OP, &DType::FLOATS).with_autocast(Autocast::Everywhere);
    let (outputs, problems) = problems(&mut call, &lists, options.checked()?)?;
    Ok(PyList::new(py, solve_all(call, outputs, &problems)?)?.into_any())
}

/// Whether the lists are in order, as far as their memory tells: tensors without any are torch's to check.
pub fn check<'py>(
    py: Python<'py>,
    a: &Bound<'py, PyAny>,
    b: &Bound<'py, PyAny>,
    options: &GroupedOptions<'_, 'py>,
) -> Result<()> {
    let lists = Lists::of(a, b, options)?;
    let mut call = Call::planning(py, OP, &DType::FLOATS);
    match problems(&mut call, &lists, options.checked()?) {
        Err(error) if error.is_of_memory() => Ok(()),
        // Which autocast converts.
        Err(Error::AtIndex { error, .. })
            if matches!(*error, Error::DTypesDiffer { .. }) && call.is_autocast()? =>
        {
            Ok(())
        }
        checked => checked.map(drop),
    }
}

/// As `add::problem`, of all products: `MOST` to a problem.
pub fn problems<'py>(
    call: &mut Call<'py>,
    lists: &Lists<'py>,
    activation: Activation,
) -> Result<(Vec<Output<'py>>, Vec<ListedMatmulProblem>)> {
    let many = lists.a.len();
    for i in 0..many {
        let Pair { a, b, bias, gate, out } = lists.pair(i);
        call.classify([Some(a), Some(b), bias, gate, out]).map_err(|error| at_index(i, error))?;
    }
    let mut products = Vec::with_capacity(many);
    let mut outputs: Vec<Output<'py>> = Vec::with_capacity(many);
    let mut places = Places::default();
    for i in 0..many {
        let (out, product) =
            product(call, lists.pair(i), activation, i, &mut places).map_err(|error| at_index(i, error))?;
        let dtype = products.first().map_or(product.dtype, |first: &MatmulProblem| first.dtype);
        if product.dtype != dtype {
            let (got, expected) = (product.dtype, dtype);
            let differ = Error::DTypesDiffer { op: OP, argument: "a", got, other: "a[0]", expected };
            return Err(at_index(i, differ));
        }
        products.push(product);
        outputs.push(out);
    }
    places.check()?;
    let mut problems = Vec::with_capacity(many.div_ceil(MOST));
    let mut products = products.into_iter().peekable();
    while products.peek().is_some() {
        problems.push(ListedMatmulProblem { products: products.by_ref().take(MOST).collect() });
    }
    Ok((outputs, problems))
}

fn product<'py>(
    call: &mut Call<'py>,
    pair: Pair<'_, 'py>,
    activation: Activation,
    index: usize,
    places: &mut Places,
) -> Result<(Output<'py>, MatmulProblem)> {
    let a = call.input("a", pair.a)?;
    let b = call.input("b", pair.b)?;
    let bias = pair.bias.map(|bias| call.input("bias", bias)).transpose()?;
    let gate = pair.gate.map(|gate| call.input("gate", gate)).transpose()?;
    let [bias, gate] = [&bias, &gate].map(|t| t.as_ref().map(|t| t.view.as_ref()));
    if a.view.rank() != 2 || b.view.rank() != 2 {
        return Err(Error::ListedRank { a: a.view.rank(), b: b.view.rank() });
    }
    let operands = Operands { a: &a.view, b: &b.view, bias, gate, residual: None };
    let spec = matmul::output(&operands)?;
    let out = call.output(&spec, pair.out, &a)?;
    let problem = matmul::problem(&operands, &out.view, activation, Precision::Ieee, &spec)?;
    if pair.out.is_some() {
        places.add(index, &operands, &out.view);
    }
    Ok((out, problem))
}

/// What the caller is told of an error that a pair of matrices makes.
fn at_index(index: usize, mut error: Error) -> Error {
    // The first tensor of the call, which others are compared with.
    if let Error::DevicesDiffer { other, .. } | Error::KindsDiffer { other, .. } = &mut error {
        *other = "a[0]";
    }
    match error.family() {
        Some(_) => Error::AtIndex { index, error: Box::new(error) },
        None => error,
    }
}
