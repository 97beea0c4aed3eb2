//! tilewise: `add`, `softmax` and `matmul` on the memory of the caller's own tensors.
//!
//! One way through, always downwards: [`python`] takes arguments, [`interop`] turns foreign tensors into
//! views, [`ops`] decides what the call means, and [`backend`] has [`cpu`] or [`cuda`] do it.

pub mod backend;
pub mod cpu;
pub mod cuda;
pub mod dtype;
pub mod error;
pub mod interop;
pub mod native;
pub mod nvtx;
pub mod ops;
pub mod python;
pub mod tensor;

/// The tests of what the build script is made of, which stand beside it: here, so that they need no other build.
#[cfg(test)]
// The script has a `main` of its own, and what only that needs; targets.rs is part of both.
#[allow(dead_code, clippy::duplicate_mod)]
#[path = "../build.rs"]
mod build_script;
