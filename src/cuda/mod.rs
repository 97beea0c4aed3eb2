//! How a GPU solves a problem: plan, load, launch on the caller's stream.

pub mod device;
pub mod driver;
pub mod explain;
pub mod forced;
pub mod gpu;
pub mod launch;
pub mod memory;
pub mod module;
pub mod plan;

use gpu::Gpu;
use plan::add::AddPlan;
use plan::softmax::Launch;

use crate::error::Result;
use crate::ops::add::AddProblem;
use crate::ops::matmul::MatmulProblem;
use crate::ops::softmax::SoftmaxProblem;

/// A CUstream as an integer; 0 is the legacy default stream. Meaningless on the CPU.
pub type RawStream = usize;

pub fn add(problem: &AddProblem, ordinal: i32, stream: RawStream) -> Result<()> {
    let gpu = Gpu::get("add", ordinal)?;
    match plan::add::plan(problem, &gpu.facts, forced::add_schedule()) {
        AddPlan::Few(plan) => launch::launch("add", gpu, &plan, problem, stream),
        AddPlan::Many(plan) => launch::launch("add", gpu, plan.as_ref(), problem, stream),
    }
}

/// `partials`: address of as much memory as `softmax_workspace` says.
pub fn softmax(problem: &SoftmaxProblem, partials: usize, ordinal: i32, stream: RawStream) -> Result<()> {
    let op = problem.kind.name();
    let gpu = Gpu::get(op, ordinal)?;
    let planned = plan::softmax::plan(problem, &gpu.facts, forced::softmax(), partials);
    match planned.launch {
        Launch::Rows(plan) => launch::launch_both(op, gpu, planned.first, plan, problem, stream),
        Launch::Tiles(plan) => launch::launch_both(op, gpu, planned.first, plan, problem, stream),
    }
}

/// Bytes of device memory that a softmax needs besides its operands.
pub fn softmax_workspace(problem: &SoftmaxProblem, ordinal: i32) -> Result<u64> {
    let gpu = Gpu::get(problem.kind.name(), ordinal)?;
    Ok(plan::softmax::workspace(problem, &gpu.facts, forced::softmax()))
}

pub fn matmul(problem: &MatmulProblem, ordinal: i32, stream: RawStream) -> Result<()> {
    let gpu = Gpu::get("matmul", ordinal)?;
    launch::launch("matmul", gpu, &plan::matmul::plan(problem, &gpu.facts), problem, stream)
}
