//! How a GPU solves a problem: plan, load, launch on the caller's stream.

pub mod device;
pub mod driver;
pub mod launch;
pub mod memory;
pub mod module;
pub mod plan;

use device::Gpu;

use crate::error::Result;
use crate::ops::add::AddProblem;
use crate::ops::matmul::MatmulProblem;
use crate::ops::softmax::SoftmaxProblem;

/// A CUstream as an integer; 0 is the legacy default stream. Meaningless on the CPU.
pub type RawStream = usize;

pub fn add(_problem: &AddProblem, ordinal: i32, _stream: RawStream) -> Result<()> {
    Gpu::get("x", ordinal).map(|_| ())
}

pub fn softmax(_problem: &SoftmaxProblem, ordinal: i32, _stream: RawStream) -> Result<()> {
    Gpu::get("x", ordinal).map(|_| ())
}

pub fn matmul(_problem: &MatmulProblem, ordinal: i32, _stream: RawStream) -> Result<()> {
    Gpu::get("x", ordinal).map(|_| ())
}
