//! From a plan to one kernel queued on the caller's stream.

use std::fmt::Display;
use std::io::Write as _;
use std::sync::OnceLock;

use super::RawStream;
use super::driver::{self, Shape};
use super::gpu::Gpu;
use super::plan::{Kernel, KernelParams, LaunchPlan};
use crate::error::Result;

/// Queues the plan's kernel, which solves `problem`. Never synchronises, never allocates device memory, restores the caller's
/// context; legal under graph capture from the first call on.
pub fn launch<P: KernelParams>(
    op: &'static str,
    gpu: &Gpu,
    plan: &LaunchPlan<P>,
    problem: &impl Display,
    stream: RawStream,
) -> Result<()> {
    if logged() {
        // A log that cannot be written is no reason to fail.
        let line = format!("tilewise: {op} {problem}: {plan}, stream {stream:#x}\n");
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    let _entered = gpu.context.enter(op)?;
    let function = gpu.loaded.function(op, &plan.kernel, &gpu.facts)?;
    let shape = Shape {
        grid: plan.grid,
        block: plan.block,
        shared_bytes: plan.shared_bytes,
        cluster: plan.params.cluster(),
    };
    // SAFETY: `KernelParams` promises the layout of the kernel's parameter struct, and the problem the
    // plan was made from holds addresses of tensors that are stream-ordered on `stream`.
    unsafe { driver::launch(op, function, shape, stream, (&raw const plan.params).cast()) }
}

/// Queues `first`, if there is one, with all that the plan says of its own kernel, and then the plan.
pub fn launch_both<P: KernelParams>(
    op: &'static str,
    gpu: &Gpu,
    first: Option<Kernel>,
    mut plan: LaunchPlan<P>,
    problem: &impl Display,
    stream: RawStream,
) -> Result<()> {
    if let Some(first) = first {
        let second = std::mem::replace(&mut plan.kernel, first);
        launch(op, gpu, &plan, problem, stream)?;
        plan.kernel = second;
    }
    launch(op, gpu, &plan, problem, stream)
}

/// Whether TILEWISE_LOG asks for a line a launch; read once.
fn logged() -> bool {
    static LOGGED: OnceLock<bool> = OnceLock::new();
    *LOGGED
        .get_or_init(|| std::env::var("TILEWISE_LOG").is_ok_and(|log| log.split(',').any(|w| w == "launch")))
}
