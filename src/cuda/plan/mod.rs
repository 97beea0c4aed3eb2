//! Problem + device facts -> launch plan. Pure: nothing here talks to a driver, so every plan for every
//! GPU can be printed and tested on a machine that has none.

pub mod activation_backward;
pub mod add;
mod column_slices;
#[cfg(test)]
mod host_cpp;
pub mod index;
pub mod launch;
mod limits;
pub mod matmul;
mod misaligned;
pub mod occupancy;
pub mod reason;
pub mod softmax;
pub mod softmax_backward;
pub mod tile_order;
pub mod variants;

pub use launch::{Bases, Choice, Kernel, KernelParams, Launch, LaunchPlan, settings};
