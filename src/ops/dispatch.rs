//! Hands a problem to the backend of the device its memory lives on.

use super::add::AddProblem;
use super::matmul::MatmulProblem;
use super::softmax::SoftmaxProblem;
use crate::error::Result;
use crate::tensor::Device;
use crate::{cpu, cuda};

pub use crate::cuda::RawStream;

pub fn add(problem: &AddProblem, stream: RawStream) -> Result<()> {
    match (problem.is_empty(), problem.device) {
        (true, _) => Ok(()),
        (false, Device::Cpu) => cpu::add::run(problem),
        (false, Device::Cuda(ordinal)) => cuda::add(problem, ordinal, stream),
    }
}

pub fn softmax(problem: &SoftmaxProblem, stream: RawStream) -> Result<()> {
    match (problem.is_empty(), problem.device) {
        (true, _) => Ok(()),
        (false, Device::Cpu) => cpu::softmax::run(problem),
        (false, Device::Cuda(ordinal)) => cuda::softmax(problem, ordinal, stream),
    }
}

pub fn matmul(problem: &MatmulProblem, stream: RawStream) -> Result<()> {
    match (problem.is_empty(), problem.device) {
        (true, _) => Ok(()),
        (false, Device::Cpu) => cpu::matmul::run(problem),
        (false, Device::Cuda(ordinal)) => cuda::matmul(problem, ordinal, stream),
    }
}
