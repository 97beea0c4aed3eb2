//! torch's stable C ABI, by which its dispatcher calls us without Python. [`Operator`] and [`Call`] are the whole
//! interface of that: what an operator takes, and the tensors of one call. [`reader`] reads tensors of Python's for calls
//! that come from there. `private` is what the ABI lacks. [`Event`] shows calls to torch.profiler.

mod abi;
mod arguments;
mod call;
mod kernel;
mod library;
mod objects;
mod private;
mod profiler;
mod reader;
mod tensor;

pub use abi::Abi;
pub use arguments::{DTypeNumber, Text};
pub use call::{Call, Output};
pub use kernel::{Kernels, Operator, Results};
pub use library::implement;
pub use profiler::Event;
pub use reader::{find, is_autocast, is_disturbed, reader};
pub use tensor::Tensor;
