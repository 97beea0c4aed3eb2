//! How a GPU solves a problem: plan, load, launch on the caller's stream.

pub mod device;
pub mod plan;

use crate::error::Result;
use crate::ops::add::AddProblem;
use crate::ops::dispatch::RawStream;
use crate::ops::matmul::MatmulProblem;
use crate::ops::softmax::SoftmaxProblem;

pub fn add(_problem: &AddProblem, _ordinal: i32, _stream: RawStream) -> Result<()> {
    Ok(())
}

pub fn softmax(_problem: &SoftmaxProblem, _ordinal: i32, _stream: RawStream) -> Result<()> {
    Ok(())
}

pub fn matmul(_problem: &MatmulProblem, _ordinal: i32, _stream: RawStream) -> Result<()> {
    Ok(())
}
