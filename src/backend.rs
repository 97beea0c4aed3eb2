//! Hands a problem to the backend of the device its memory lives on.

use std::sync::Arc;

use crate::error::Result;
use crate::ops::Problem as _;
use crate::ops::activation_backward::ActivationBackwardProblem;
use crate::ops::add::AddProblem;
use crate::ops::grouped_matmul::GroupedMatmulProblem;
use crate::ops::listed_matmul::ListedMatmulProblem;
use crate::ops::matmul::MatmulProblem;
use crate::ops::softmax::SoftmaxProblem;
use crate::ops::softmax_backward::SoftmaxBackwardProblem;
use crate::tensor::Device;
use crate::{cpu, cuda, nvtx};

pub use crate::cpu::method::Method;
pub use crate::cpu::workers::Workers;
pub use crate::cuda::RawStream;

/// What the library of a call's tensors lends for the work.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    /// Its current stream of the tensors' GPU, if they are on one.
    pub stream: RawStream,
    /// Its threads, if they are on the CPU.
    pub workers: Option<&'static dyn Workers>,
}

/// A problem that every backend solves.
pub trait Operation: cuda::Planned {
    fn run_on_cpu(&self) -> Result<()>;

    /// What that does, if there is anything to do.
    fn method_on_cpu(&self) -> Option<Method>;
}

impl Operation for AddProblem {
    fn run_on_cpu(&self) -> Result<()> {
        cpu::add::run(self)
    }

    fn method_on_cpu(&self) -> Option<Method> {
        Some(cpu::add::method(self))
    }
}

impl Operation for SoftmaxProblem {
    fn run_on_cpu(&self) -> Result<()> {
        cpu::softmax::run(self)
    }

    fn method_on_cpu(&self) -> Option<Method> {
        Some(cpu::softmax::method(self))
    }
}

impl Operation for SoftmaxBackwardProblem {
    fn run_on_cpu(&self) -> Result<()> {
        cpu::softmax::backward(self)
    }

    fn method_on_cpu(&self) -> Option<Method> {
        Some(cpu::softmax::backward_method(self))
    }
}

impl Operation for MatmulProblem {
    fn run_on_cpu(&self) -> Result<()> {
        cpu::matmul::run(self)
    }

    fn method_on_cpu(&self) -> Option<Method> {
        Some(cpu::matmul::method(self))
    }
}

impl Operation for GroupedMatmulProblem {
    fn run_on_cpu(&self) -> Result<()> {
        cpu::matmul::grouped::run(self)
    }

    fn method_on_cpu(&self) -> Option<Method> {
        Some(cpu::matmul::grouped::method(self))
    }
}

impl Operation for ListedMatmulProblem {
    fn run_on_cpu(&self) -> Result<()> {
        self.products.iter().filter(|product| !product.is_empty()).try_for_each(cpu::matmul::run)
    }

    fn method_on_cpu(&self) -> Option<Method> {
        self.products.iter().max_by_key(|product| product.steps()).map(cpu::matmul::method)
    }
}

impl Operation for ActivationBackwardProblem {
    fn run_on_cpu(&self) -> Result<()> {
        cpu::activation_backward::run(self)
    }

    fn method_on_cpu(&self) -> Option<Method> {
        Some(cpu::activation_backward::method())
    }
}

/// What solves a problem, and those like it.
#[derive(Debug)]
pub enum Prepared {
    Nothing,
    Cpu,
    Cuda(Arc<cuda::Prepared>),
}

/// Decides how to solve a problem, if that was not decided for one like it before.
pub fn prepare<P: Operation>(problem: &P) -> Result<Prepared> {
    Ok(match (problem.is_empty(), problem.device()) {
        (true, _) => Prepared::Nothing,
        (false, Device::Cpu) => Prepared::Cpu,
        (false, Device::Cuda(ordinal)) => Prepared::Cuda(cuda::prepare(problem, ordinal)?),
    })
}

/// The same of a gated product that is to keep what its gradients need; None where a backend does not.
pub fn prepare_keeping(problem: &MatmulProblem) -> Result<Option<Prepared>> {
    match (problem.is_empty(), problem.device()) {
        (true, _) | (false, Device::Cpu) => Ok(None),
        (false, Device::Cuda(ordinal)) => Ok(cuda::prepare_keeping(problem, ordinal)?.map(Prepared::Cuda)),
    }
}

impl Prepared {
    /// Whether it still is what `prepare` would return for a problem that only has its operands elsewhere.
    pub fn suits<P: Operation>(&self, problem: &P) -> bool {
        match self {
            Prepared::Nothing | Prepared::Cpu => true,
            Prepared::Cuda(prepared) => prepared.suits(&problem.addresses()),
        }
    }

    /// Bytes of memory on the problem's device to be lent to `run`, from the library that makes its result.
    pub fn workspace_bytes(&self) -> u64 {
        match self {
            Prepared::Nothing | Prepared::Cpu => 0,
            Prepared::Cuda(prepared) => prepared.workspace_bytes(),
        }
    }

    /// Solves the problem, or queues what does; `workspace` is the address of `workspace_bytes` bytes.
    pub fn run<P: Operation>(&self, problem: &P, workspace: usize, resources: Resources) -> Result<()> {
        let Resources { stream, workers } = resources;
        // What a profiler sees, until all of it is queued or done.
        let _range = nvtx::range(|| format!("tilewise.{} {problem}", problem.op()));
        match self {
            Prepared::Nothing => Ok(()),
            Prepared::Cpu => cpu::workers::with(workers, || problem.run_on_cpu()),
            Prepared::Cuda(prepared) => prepared.queue(problem, workspace, stream),
        }
    }
}
