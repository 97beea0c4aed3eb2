//! From a plan to one kernel queued on the caller's stream.

use std::fmt::Display;
use std::io::Write as _;
use std::sync::OnceLock;

use smallvec::SmallVec;

use super::RawStream;
use super::driver::{self, Function, Shape};
use super::gpu::Gpu;
use super::plan::{Kernel, KernelParams, LaunchPlan};
use crate::error::Result;

/// A plan whose kernels are loaded. Usually one; where there are two, they run one after the other, with the same
/// parameters.
#[derive(Debug)]
pub struct Prepared<P> {
    plan: LaunchPlan<P>,
    kernels: SmallVec<[(Kernel, Function); 2]>,
}

impl<P: KernelParams> Prepared<P> {
    /// With `first`, if there is one, before the plan's own kernel. Legal under graph capture from the first call on.
    pub fn new(
        op: &'static str,
        gpu: &Gpu,
        first: Option<Kernel>,
        plan: LaunchPlan<P>,
    ) -> Result<Prepared<P>> {
        let _entered = gpu.context.enter(op)?;
        let kernels = first.into_iter().chain([plan.kernel.clone()]).map(|kernel| {
            let function = gpu.loaded.function(op, &kernel, &gpu.facts)?;
            Ok((kernel, function))
        });
        Ok(Prepared { kernels: kernels.collect::<Result<_>>()?, plan })
    }

    pub fn params(&mut self) -> &mut P {
        &mut self.plan.params
    }

    /// Queues what solves `problem`. Never synchronises, never allocates device memory, restores the caller's context.
    ///
    /// Launches may begin before the work queued before them is done, for which the kernels wait: the driver queues them
    /// sooner so, in 3.25 us instead of 3.9 on the host of an H200. Not in a graph, where not every driver can.
    pub fn queue(&self, op: &'static str, gpu: &Gpu, problem: &dyn Display, stream: RawStream) -> Result<()> {
        let plan = &self.plan;
        let _entered = gpu.context.enter(op)?;
        let shape = Shape {
            grid: plan.grid,
            block: plan.block,
            shared_bytes: plan.shared_bytes,
            cluster: plan.params.cluster(),
            cooperative: plan.params.cooperative(),
            early: false,
        };
        let may_begin_early = !shape.cooperative && !driver::may_be_captured(stream);
        for (i, (kernel, function)) in self.kernels.iter().enumerate() {
            if logged() {
                let plan = LaunchPlan { kernel: kernel.clone(), ..plan.clone() };
                // A log that cannot be written is no reason to fail.
                let line = format!("tilewise: {op} {problem}: {plan}, stream {stream:#x}\n");
                let _ = std::io::stderr().write_all(line.as_bytes());
            }
            // Of two, the second reads some of what the first does before it waits: that begins in its turn.
            let early = may_begin_early && function.waits && i + 1 == self.kernels.len();
            let shape = Shape { early, ..shape };
            // SAFETY: `KernelParams` promises the layout of the kernel's parameter struct, and that it waits where it
            // begins early; the problem the plan was made for holds addresses of tensors that are stream-ordered on
            // `stream`.
            unsafe { driver::launch(op, *function, shape, stream, (&raw const plan.params).cast()) }?;
        }
        Ok(())
    }
}

/// Queues the plan's kernel, which solves `problem`.
pub fn launch<P: KernelParams>(
    op: &'static str,
    gpu: &Gpu,
    plan: LaunchPlan<P>,
    problem: &dyn Display,
    stream: RawStream,
) -> Result<()> {
    Prepared::new(op, gpu, None, plan)?.queue(op, gpu, problem, stream)
}

/// Whether TILEWISE_LOG asks for a line a launch; read once.
fn logged() -> bool {
    static LOGGED: OnceLock<bool> = OnceLock::new();
    *LOGGED
        .get_or_init(|| std::env::var("TILEWISE_LOG").is_ok_and(|log| log.split(',').any(|w| w == "launch")))
}
