//! How a foreign tensor becomes a view, and how results go back.
//!
//! [`Call`] is the whole interface: take the arguments, make or take the output, run. Where the memory
//! comes from is decided once per Python type (`source`): torch (`torch`, through the DLPack exchange
//! table in `exchange`; `dispatcher` says which calls are not ours to make, `builtin` asks torch without detours), numpy
//! (`numpy`), or any other library (`producer`, by `__dlpack__`; its results in `export`). Calls on torch tensors like those
//! of an earlier call go a shorter way (`memo`). Calls that torch's dispatcher makes come by its stable C ABI ([`stable`]).

mod allocate;
pub mod builtin;
mod call;
mod descriptor;
mod dispatcher;
mod exchange;
mod export;
pub mod memo;
mod numpy;
mod producer;
pub mod scalar;
mod source;
pub mod stable;
mod torch;

pub use allocate::Output;
pub use call::{Call, Tensor};
pub use dispatcher::{Autocast, on_memory};
pub use memo::CallContext;
pub use source::loaded_module;
pub use torch::threads as torch_threads;
pub use torch::{Facts as TorchFacts, autocast, facts as torch_facts};

use crate::dtype::DType;

/// Which argument of which operation is being taken, for messages.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    pub op: &'static str,
    pub name: &'static str,
    /// The dtypes the operation takes.
    pub accepted: &'static [DType],
}

/// Whether an argument is read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Input,
    Output,
}
