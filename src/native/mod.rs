//! The operators as torch's dispatcher calls them, without Python: as `python` has them for the functions, this puts
//! interop, ops and backend in sequence.

mod activation_backward;
mod add;
mod grouped_matmul;
mod matmul;
mod softmax;

use crate::backend::{self, Operation};
use crate::error::Result;
use crate::interop::scalar::shortened;
use crate::interop::stable::{Call, Kernels, Output, Results, Text};
use crate::ops::matmul::Activation;

/// Of all operators whose arguments the ABI can pass.
pub const KERNELS: [Kernels; 9] = [
    Kernels::of::<add::Add>(),
    Kernels::of::<softmax::Softmax>(),
    Kernels::of::<softmax::LogSoftmax>(),
    Kernels::of::<softmax::SoftmaxBackward>(),
    Kernels::of::<softmax::LogSoftmaxBackward>(),
    Kernels::of::<matmul::Matmul>(),
    Kernels::of::<matmul::FusedMatmul>(),
    Kernels::of::<grouped_matmul::GroupedMatmul>(),
    Kernels::of::<activation_backward::ActivationBackward>(),
];

fn activation(op: &'static str, name: Option<&Text>, slope: f64) -> Result<Activation> {
    let name = name.map(Text::as_str);
    Activation::from_name(op, name.as_deref().map(shortened).as_deref(), slope)
}

/// Solves a problem, or queues what does, and returns the results that it is written to.
fn solve<P: Operation, const N: usize>(call: &Call, problem: &P, outputs: [Output; N]) -> Result<Results> {
    let prepared = backend::prepare(problem)?;
    // Let go of here, when all is queued.
    let workspace = call.workspace(prepared.workspace_bytes())?;
    let address = workspace.as_ref().map_or(0, |workspace| workspace.view.address);
    prepared.run(problem, address, call.resources()?)?;
    Ok(outputs.into_iter().map(|output| output.tensor).collect())
}
