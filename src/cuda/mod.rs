//! How a GPU solves a problem: plan, load, launch on the caller's stream.

pub mod device;
pub mod driver;
pub mod explain;
pub mod forced;
pub mod gpu;
pub mod launch;
pub mod mapped;
pub mod memory;
pub mod module;
pub mod plan;
pub mod recent;
pub mod tensor_map;

use std::sync::Arc;

use device::DeviceFacts;
use gpu::Gpu;
use launch::Prepared;
use mapped::Mapped;
use plan::add::AddPlan;
use plan::matmul::Route;
use plan::softmax::Launch;
use recent::{Decisions, Recent};

use crate::error::{Error, Result};
use crate::ops::activation_backward::{self, ActivationBackwardProblem};
use crate::ops::add::AddProblem;
use crate::ops::matmul::MatmulProblem;
use crate::ops::softmax::SoftmaxProblem;
use crate::ops::softmax_backward::SoftmaxBackwardProblem;
use plan::softmax_backward::Plan;

/// A CUstream as an integer; 0 is the legacy default stream. Meaningless on the CPU.
pub type RawStream = usize;

thread_local! {
    static ADDS: Recent<AddProblem, 3> = const { Recent::new(Vec::new()) };
    /// Of x, the result and the partials between two launches.
    static SOFTMAXES: Recent<SoftmaxProblem, 3> = const { Recent::new(Vec::new()) };
    /// Those that are one launch.
    static MATMULS: Recent<MatmulProblem, 4> = const { Recent::new(Vec::new()) };
    static ROUTES: Decisions<MatmulProblem, Route> = const { Decisions::new(Vec::new()) };
}

pub fn add(problem: &AddProblem, ordinal: i32, stream: RawStream) -> Result<()> {
    const OP: &str = "add";
    let gpu = Gpu::get(OP, ordinal)?;
    let placed = (problem, problem.addresses());
    if let Some(queued) = recent::queue(&ADDS, placed, OP, gpu, stream) {
        return queued;
    }
    let how = (OP, gpu, 0, stream);
    match plan::add::plan(problem, &gpu.facts, forced::add_schedule()) {
        AddPlan::Few(plan) => recent::queue_new(&ADDS, placed, how, Prepared::new(OP, gpu, None, plan)?),
        AddPlan::Many(plan) => recent::queue_new(&ADDS, placed, how, Prepared::new(OP, gpu, None, *plan)?),
    }
}

/// `partials`: address of as much memory as `softmax_workspace` says.
pub fn softmax(problem: &SoftmaxProblem, partials: usize, ordinal: i32, stream: RawStream) -> Result<()> {
    let op = problem.kind.name();
    let gpu = Gpu::get(op, ordinal)?;
    let [x, out] = problem.addresses();
    let placed = (problem, [x, out, partials]);
    let queue_new = |facts: &DeviceFacts| {
        let planned = plan::softmax::plan(problem, facts, forced::softmax(), partials);
        let workspace = plan::softmax::workspace(problem, &gpu.facts, forced::softmax());
        let (how, first) = ((op, gpu, workspace, stream), planned.first);
        match planned.launch {
            Launch::Rows(p) => recent::queue_new(&SOFTMAXES, placed, how, Prepared::new(op, gpu, first, p)?),
            Launch::Ragged(p) => {
                recent::queue_new(&SOFTMAXES, placed, how, Prepared::new(op, gpu, first, p)?)
            }
            Launch::Panels(p) => {
                recent::queue_new(&SOFTMAXES, placed, how, Prepared::new(op, gpu, first, p)?)
            }
            Launch::Tiles(p) => recent::queue_new(&SOFTMAXES, placed, how, Prepared::new(op, gpu, first, p)?),
            Launch::Turned(p) => {
                recent::queue_new(&SOFTMAXES, placed, how, Prepared::new(op, gpu, first, p)?)
            }
        }
    };
    let queued = recent::queue(&SOFTMAXES, placed, op, gpu, stream).unwrap_or_else(|| queue_new(&gpu.facts));
    match queued {
        // A stream of a green context, say, has fewer multiprocessors than the device.
        Err(Error::Cuda { name, .. }) if name == "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE" => {
            queue_new(&gpu.facts.without_cooperation())
        }
        queued => queued,
    }
}

/// Bytes of device memory that a softmax needs besides its operands.
pub fn softmax_workspace(problem: &SoftmaxProblem, ordinal: i32) -> Result<u64> {
    if let Some(bytes) = recent::workspace(&SOFTMAXES, problem) {
        return Ok(bytes);
    }
    let gpu = Gpu::get(problem.kind.name(), ordinal)?;
    Ok(plan::softmax::workspace(problem, &gpu.facts, forced::softmax()))
}

/// How a product will be computed; then what it needs can be allocated before it runs.
#[derive(Debug)]
pub struct MatmulRun<'a> {
    pub problem: &'a MatmulProblem,
    gpu: &'static Gpu,
    /// None: the launch of a problem like it is remembered.
    route: Option<Arc<Route>>,
}

const MATMUL: &str = "matmul";

pub fn matmul(problem: &MatmulProblem, ordinal: i32) -> Result<MatmulRun<'_>> {
    let gpu = Gpu::get(MATMUL, ordinal)?;
    let run = MatmulRun { problem, gpu, route: None };
    let route = match recent::workspace(&MATMULS, problem) {
        Some(_) => None,
        None => Some(run.routed()),
    };
    Ok(MatmulRun { route, ..run })
}

impl MatmulRun<'_> {
    fn routed(&self) -> Arc<Route> {
        let route = || plan::matmul::route(self.problem, &self.gpu.facts, forced::matmul());
        recent::decided(&ROUTES, self.problem, route)
    }

    /// Bytes of device memory to be lent to `queue`.
    pub fn workspace_bytes(&self) -> u64 {
        self.route.as_ref().map_or(0, |route| route.workspace_bytes(self.problem))
    }

    /// `workspace` is the address of so many bytes, which may be reused by what is queued on `stream` afterwards.
    pub fn queue(&self, workspace: usize, stream: RawStream) -> Result<()> {
        let placed = (self.problem, plan::matmul::addresses(self.problem));
        match &self.route {
            Some(route) => self.queue_new(route, workspace, stream),
            None => recent::queue(&MATMULS, placed, MATMUL, self.gpu, stream)
                .unwrap_or_else(|| self.queue_new(&self.routed(), workspace, stream)),
        }
    }

    fn queue_new(&self, route: &Route, workspace: usize, stream: RawStream) -> Result<()> {
        const OP: &str = MATMUL;
        let MatmulRun { problem, gpu, .. } = *self;
        let (placed, how) = ((problem, plan::matmul::addresses(problem)), (OP, gpu, 0, stream));
        match route {
            Route::Blocks(overrides) => {
                let plan = plan::matmul::plan(problem, *overrides, &gpu.facts);
                recent::queue_new(&MATMULS, placed, how, Prepared::new(OP, gpu, None, plan)?)
            }
            Route::Skinny(choice) => {
                let launches = choice.launches(problem, &gpu.facts, workspace);
                launch::launch(OP, gpu, launches.multiply, problem, stream)?;
                let Some(reduce) = launches.reduce else { return Ok(()) };
                launch::launch(OP, gpu, reduce, problem, stream)
            }
            Route::Copied(choice) => {
                let launches = choice.launches(problem, &gpu.facts, workspace);
                launch::launch(OP, gpu, launches.repack, problem, stream)?;
                launch::launch(OP, gpu, launches.multiply, problem, stream)
            }
            Route::Wgmma(choice) => {
                let launches = choice.launches(problem, &gpu.facts, workspace);
                if !launches.are_many() {
                    return recent::queue_new(&MATMULS, placed, how, Mapped::new(OP, gpu, launches)?);
                }
                if let Some(repack) = launches.repack {
                    launch::launch(OP, gpu, repack, problem, stream)?;
                }
                mapped::launch(OP, gpu, (launches.multiply, launches.maps), problem, stream)?;
                let Some(reduce) = launches.reduce else { return Ok(()) };
                launch::launch(OP, gpu, reduce, problem, stream)
            }
        }
    }
}

/// `partials`: address of as much memory as `softmax_backward_workspace` says.
pub fn softmax_backward(
    problem: &SoftmaxBackwardProblem,
    partials: usize,
    ordinal: i32,
    stream: RawStream,
) -> Result<()> {
    let op = problem.kind.backward_name();
    let gpu = Gpu::get(op, ordinal)?;
    match plan::softmax_backward::plan(problem, &gpu.facts, forced::softmax(), partials) {
        Plan::Rows(first, plan) => Prepared::new(op, gpu, first, plan)?.queue(op, gpu, problem, stream),
        Plan::Ragged(plan) => launch::launch(op, gpu, plan, problem, stream),
        Plan::Tiles(first, plan) => Prepared::new(op, gpu, first, plan)?.queue(op, gpu, problem, stream),
    }
}

/// Bytes of device memory that it needs besides its operands.
pub fn softmax_backward_workspace(problem: &SoftmaxBackwardProblem, ordinal: i32) -> Result<u64> {
    let gpu = Gpu::get(problem.kind.backward_name(), ordinal)?;
    Ok(plan::softmax_backward::workspace(problem, &gpu.facts, forced::softmax()))
}

/// `partials`: address of as much memory as `activation_backward_workspace` says.
pub fn activation_backward(
    problem: &ActivationBackwardProblem,
    partials: usize,
    ordinal: i32,
    stream: RawStream,
) -> Result<()> {
    let op = activation_backward::OP;
    let gpu = Gpu::get(op, ordinal)?;
    let (first, second) = plan::activation_backward::plan(problem, &gpu.facts, partials);
    launch::launch(op, gpu, first, problem, stream)?;
    second.map_or(Ok(()), |second| launch::launch(op, gpu, second, problem, stream))
}

/// Bytes of device memory that it needs besides its operands.
pub fn activation_backward_workspace(problem: &ActivationBackwardProblem, ordinal: i32) -> Result<u64> {
    let gpu = Gpu::get(activation_backward::OP, ordinal)?;
    Ok(plan::activation_backward::workspace(problem, &gpu.facts))
}
