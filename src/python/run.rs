//! A problem in the hands of the backend: the first time, and each time that the call memo knows the call.

use pyo3::prelude::*;
use smallvec::SmallVec;

use crate::backend::{self, Operation};
use crate::error::Result;
use crate::interop::{Call, CallContext, Output};
use crate::ops::Problem as _;
use crate::ops::matmul::MatmulProblem;

/// What the call memo keeps of a call: its problem, and what solves it wherever its operands are.
#[derive(Debug)]
pub struct Known<P> {
    problem: P,
    prepared: backend::Prepared,
}

impl<P: Operation> Known<P> {
    pub fn problem(&self) -> &P {
        &self.problem
    }

    /// Solves it with its operands at these addresses.
    pub fn solve(&mut self, addresses: &[usize], context: &mut CallContext<'_, '_>) -> Result<()> {
        let Known { problem, prepared } = self;
        problem.place(addresses);
        if !prepared.suits(problem) {
            *prepared = context.ask(|| backend::prepare(problem))?;
        }
        let workspace = context.allocate_workspace(prepared.workspace_bytes())?;
        context.run(problem.steps(), |resources| prepared.run(problem, workspace, resources))
    }
}

/// Solves a problem and returns what the caller gets, and what to know of the call.
pub fn solve<'py, P: Operation>(
    call: Call<'py>,
    out: Output<'py>,
    problem: P,
) -> Result<(Bound<'py, PyAny>, Known<P>)> {
    let ((result, _), known) = solve_with(call, out, None, problem)?;
    Ok((result, known))
}

/// As `solve`, of as many problems and results as there are. Nothing is written before all problems are prepared.
pub fn solve_all<'py, P: Operation>(
    call: Call<'py>,
    outputs: Vec<Output<'py>>,
    problems: &[P],
) -> Result<Vec<Bound<'py, PyAny>>> {
    let prepare = || problems.iter().map(backend::prepare).collect::<Result<SmallVec<[_; 1]>>>();
    let prepared = call.ask(prepare)?;
    // One workspace serves all: they run in turn.
    let bytes = prepared.iter().map(backend::Prepared::workspace_bytes).max().unwrap_or(0);
    let workspace = call.workspace(bytes)?;
    let address = workspace.as_ref().map_or(0, |workspace| workspace.view.address);
    let steps = problems.iter().fold(0i64, |sum, problem| sum.saturating_add(problem.steps()));
    call.run_all(outputs, steps, |resources| {
        let mut each = problems.iter().zip(&prepared);
        each.try_for_each(|(problem, prepared)| prepared.run(problem, address, resources))
    })
}

/// The same of a gated product that is to keep what its gradients need; None where no backend does that.
pub fn solve_keeping<'py>(
    call: Call<'py>,
    outputs: Vec<Output<'py>>,
    problem: &MatmulProblem,
) -> Result<Option<Vec<Bound<'py, PyAny>>>> {
    let Some(prepared) = call.ask(|| backend::prepare_keeping(problem))? else { return Ok(None) };
    let solve = |resources| prepared.run(problem, 0, resources);
    call.run_all(outputs, problem.steps(), solve).map(Some)
}

/// A result, and a second one if there is one.
pub type Results<'py> = (Bound<'py, PyAny>, Option<Bound<'py, PyAny>>);

/// As `solve`, where there may be a second result.
pub fn solve_with<'py, P: Operation>(
    call: Call<'py>,
    out: Output<'py>,
    second: Option<Output<'py>>,
    problem: P,
) -> Result<(Results<'py>, Known<P>)> {
    let prepared = call.ask(|| backend::prepare(&problem))?;
    let workspace = call.workspace(prepared.workspace_bytes())?;
    let address = workspace.as_ref().map_or(0, |workspace| workspace.view.address);
    let solve = |resources| prepared.run(&problem, address, resources);
    let results = call.run(out, second, problem.steps(), solve)?;
    Ok((results, Known { problem, prepared }))
}
