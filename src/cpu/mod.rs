//! How a CPU solves a problem: threads over rows and blocks, SIMD inside.
//!
//! Reading order: [`isa`] (instruction sets and how code is compiled for each), [`element`] (what a dtype
//! can do), [`float`], [`operand`] (strided memory as contiguous blocks), [`parallel`]; then the operations.

pub mod activation_backward;
pub mod add;
pub mod element;
pub mod exp;
pub mod float;
pub mod float_modes;
pub mod forks;
pub mod half_float;
pub mod isa;
pub mod matmul;
pub mod memory;
pub mod method;
pub mod operand;
pub mod parallel;
pub mod pool;
pub mod register;
pub mod softmax;
pub mod streaming;
pub mod widened;
pub mod workers;

#[cfg(test)]
mod tests;
