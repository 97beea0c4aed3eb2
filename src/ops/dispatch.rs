//! Hands a problem to the backend of the device its memory lives on.

use std::fmt::Display;

use super::activation_backward::{self, ActivationBackwardProblem};
use super::add::AddProblem;
use super::matmul::MatmulProblem;
use super::softmax::SoftmaxProblem;
use super::softmax_backward::SoftmaxBackwardProblem;
use crate::error::Result;
use crate::tensor::Device;
use crate::{cpu, cuda, nvtx};

pub use crate::cuda::RawStream;

/// What a profiler sees of an operation, from here until all of it is queued or done.
fn range(op: &str, problem: &impl Display) -> nvtx::Range {
    nvtx::range(|| format!("tilewise.{op} {problem}"))
}

pub fn add(problem: &AddProblem, stream: RawStream) -> Result<()> {
    let _range = range("add", problem);
    match (problem.is_empty(), problem.device) {
        (true, _) => Ok(()),
        (false, Device::Cpu) => cpu::add::run(problem),
        (false, Device::Cuda(ordinal)) => cuda::add(problem, ordinal, stream),
    }
}

/// `partials`: address of as much memory as `softmax_workspace` says.
pub fn softmax(problem: &SoftmaxProblem, partials: usize, stream: RawStream) -> Result<()> {
    let _range = range(problem.kind.name(), problem);
    match (problem.is_empty(), problem.device) {
        (true, _) => Ok(()),
        (false, Device::Cpu) => cpu::softmax::run(problem),
        (false, Device::Cuda(ordinal)) => cuda::softmax(problem, partials, ordinal, stream),
    }
}

/// Bytes of the device's memory that a softmax needs besides its operands, from the library that makes its result.
pub fn softmax_workspace(problem: &SoftmaxProblem) -> Result<u64> {
    match (problem.is_empty(), problem.device) {
        (true, _) | (false, Device::Cpu) => Ok(0),
        (false, Device::Cuda(ordinal)) => cuda::softmax_workspace(problem, ordinal),
    }
}

/// A product that is about to be computed.
#[derive(Debug)]
pub enum MatmulRun<'a> {
    Nothing,
    Cpu(&'a MatmulProblem),
    Cuda(cuda::MatmulRun<'a>),
}

pub fn matmul(problem: &MatmulProblem) -> Result<MatmulRun<'_>> {
    Ok(match (problem.is_empty(), problem.device) {
        (true, _) => MatmulRun::Nothing,
        (false, Device::Cpu) => MatmulRun::Cpu(problem),
        (false, Device::Cuda(ordinal)) => MatmulRun::Cuda(cuda::matmul(problem, ordinal)?),
    })
}

impl MatmulRun<'_> {
    /// Bytes of memory on the problem's device to be lent to `run`.
    pub fn workspace_bytes(&self) -> u64 {
        match self {
            MatmulRun::Nothing | MatmulRun::Cpu(_) => 0,
            MatmulRun::Cuda(run) => run.workspace_bytes(),
        }
    }

    /// `workspace` is the address of so many bytes.
    pub fn run(&self, workspace: usize, stream: RawStream) -> Result<()> {
        match self {
            MatmulRun::Nothing => Ok(()),
            MatmulRun::Cpu(problem) => {
                let _range = range("matmul", problem);
                cpu::matmul::run(problem)
            }
            MatmulRun::Cuda(run) => {
                let _range = range("matmul", run.problem);
                run.queue(workspace, stream)
            }
        }
    }
}

/// `partials`: address of as much memory as `softmax_backward_workspace` says.
pub fn softmax_backward(problem: &SoftmaxBackwardProblem, partials: usize, stream: RawStream) -> Result<()> {
    let _range = range(problem.kind.backward_name(), problem);
    match (problem.is_empty(), problem.device) {
        (true, _) => Ok(()),
        (false, Device::Cpu) => cpu::softmax::backward(problem),
        (false, Device::Cuda(ordinal)) => cuda::softmax_backward(problem, partials, ordinal, stream),
    }
}

/// Bytes of the device's memory that it needs besides its operands, from the library that makes its result.
pub fn softmax_backward_workspace(problem: &SoftmaxBackwardProblem) -> Result<u64> {
    match (problem.is_empty(), problem.device) {
        (true, _) | (false, Device::Cpu) => Ok(0),
        (false, Device::Cuda(ordinal)) => cuda::softmax_backward_workspace(problem, ordinal),
    }
}

/// `partials`: address of as much memory as `activation_backward_workspace` says.
pub fn activation_backward(
    problem: &ActivationBackwardProblem,
    partials: usize,
    stream: RawStream,
) -> Result<()> {
    let _range = range(activation_backward::OP, problem);
    match (problem.is_empty(), problem.device) {
        (true, _) => Ok(()),
        (false, Device::Cpu) => cpu::activation_backward::run(problem),
        (false, Device::Cuda(ordinal)) => cuda::activation_backward(problem, partials, ordinal, stream),
    }
}

/// Bytes of the device's memory that it needs besides its operands, from the library that makes its result.
pub fn activation_backward_workspace(problem: &ActivationBackwardProblem) -> Result<u64> {
    match (problem.is_empty(), problem.device) {
        (true, _) | (false, Device::Cpu) => Ok(0),
        (false, Device::Cuda(ordinal)) => cuda::activation_backward_workspace(problem, ordinal),
    }
}
