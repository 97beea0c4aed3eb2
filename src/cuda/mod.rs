//! How a GPU solves a problem: plan, load, launch on the caller's stream.

pub mod device;
pub mod driver;
pub mod explain;
pub mod forced;
pub mod gpu;
pub mod memory;
pub mod module;
pub mod plan;
pub mod plan_cache;
pub mod queue;
pub mod targets;
pub mod tensor_map;

use std::sync::Arc;
use std::thread::LocalKey;

use device::DeviceFacts;
use gpu::Gpu;
use plan::Choice;
use plan_cache::PlanCache;
pub use queue::Prepared;

use crate::error::Result;
use crate::ops::Problem;
use crate::ops::activation_backward::ActivationBackwardProblem;
use crate::ops::add::AddProblem;
use crate::ops::grouped_matmul::GroupedMatmulProblem;
use crate::ops::listed_matmul::ListedMatmulProblem;
use crate::ops::matmul::MatmulProblem;
use crate::ops::softmax::SoftmaxProblem;
use crate::ops::softmax_backward::SoftmaxBackwardProblem;

/// A CUstream as an integer; 0 is the legacy default stream. Meaningless on the CPU.
pub type RawStream = usize;

/// A problem that a GPU solves.
pub trait Planned: Problem + 'static {
    /// How, as far as no developer forces it.
    fn choose(&self, device: &DeviceFacts) -> Choice;

    /// Where this thread's choices are kept.
    fn cache() -> &'static LocalKey<PlanCache<Self>>;
}

/// What solves a problem on the GPU of this ordinal.
pub fn prepare<P: Planned>(problem: &P, ordinal: i32) -> Result<Arc<Prepared>> {
    let gpu = Gpu::get(problem.op(), ordinal)?;
    plan_cache::prepared(P::cache(), problem, || Prepared::new(gpu, problem, problem.choose(&gpu.facts)))
}

/// The same of a gated product that is to keep what its gradients need; None where no kernel does that.
pub fn prepare_keeping(problem: &MatmulProblem, ordinal: i32) -> Result<Option<Arc<Prepared>>> {
    let gpu = Gpu::get(problem.op(), ordinal)?;
    let keeps = plan::matmul::wgmma::training::choose(problem, &gpu.facts, None).is_some();
    keeps.then(|| prepare(problem, ordinal)).transpose()
}

/// Each with a cache of its own: a problem is compared with those of its operation alone.
macro_rules! planned {
    ($($problem:ty: $choose:expr;)*) => {$(
        impl Planned for $problem {
            fn choose(&self, device: &DeviceFacts) -> Choice {
                $choose(self, device)
            }

            fn cache() -> &'static LocalKey<PlanCache<Self>> {
                thread_local!(static CACHE: PlanCache<$problem> = const { PlanCache::new(Vec::new()) });
                &CACHE
            }
        }
    )*};
}

planned! {
    AddProblem: |p, device| plan::add::choose(p, device, forced::add_schedule());
    SoftmaxProblem: |p, device| plan::softmax::choose(p, device, forced::softmax());
    SoftmaxBackwardProblem: |p, device| plan::softmax_backward::choose(p, device, forced::softmax());
    MatmulProblem: |p, device| plan::matmul::choose(p, device, forced::matmul());
    GroupedMatmulProblem: |p, device| plan::matmul::grouped::choose(p, device, forced::matmul());
    ListedMatmulProblem: |p, device| plan::matmul::grouped::listed::choose(p, device, forced::matmul());
    ActivationBackwardProblem: plan::activation_backward::choose;
}
