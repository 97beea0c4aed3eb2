//! From a plan to one kernel queued on the caller's stream.

use super::RawStream;
use super::driver::{self, Shape};
use super::gpu::Gpu;
use super::plan::{KernelParams, LaunchPlan};
use crate::error::Result;

/// Queues the plan's kernel. Never synchronises, never allocates device memory, restores the caller's
/// context; legal under graph capture from the first call on.
pub fn launch<P: KernelParams>(
    op: &'static str,
    gpu: &Gpu,
    plan: &LaunchPlan<P>,
    stream: RawStream,
) -> Result<()> {
    let _entered = gpu.context.enter(op)?;
    let function = gpu.loaded.function(op, &plan.kernel, gpu.facts.shared_bytes_per_block)?;
    let shape = Shape { grid: plan.grid, block: plan.block, shared_bytes: plan.shared_bytes };
    // SAFETY: `KernelParams` promises the layout of the kernel's parameter struct, and the problem the
    // plan was made from holds addresses of tensors that are stream-ordered on `stream`.
    unsafe { driver::launch(op, function, shape, stream, (&raw const plan.params).cast()) }
}
