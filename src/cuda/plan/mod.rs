//! Problem + device facts -> launch plan. Pure: nothing here talks to a driver, so every plan for every
//! GPU can be printed and tested on a machine that has none.

pub mod activation_backward;
pub mod add;
#[cfg(test)]
mod host_cpp;
pub mod index;
pub mod matmul;
pub mod occupancy;
mod ragged;
pub mod reason;
pub mod softmax;
pub mod softmax_backward;
pub mod tile_order;

use std::fmt;

use reason::Reasons;

/// One kernel launch, complete: what is printed is what runs.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchPlan<P> {
    pub kernel: Kernel,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory per block, in bytes.
    pub shared_bytes: u32,
    /// The kernel's single parameter, by value.
    pub params: P,
    /// Why this kernel; empty for one that only goes with another.
    pub why: Reasons,
}

/// A kernel by the file it lives in (`kernels/{file}.cu`) and its symbol, `{op}_{variant}_{dtype}`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    pub file: &'static str,
    pub name: String,
}

impl<P: fmt::Debug> fmt::Display for LaunchPlan<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([gx, gy, gz], [bx, by, bz]) = (self.grid, self.block);
        write!(
            f,
            "{} ({}.cu): grid {gx}x{gy}x{gz}, block {bx}x{by}x{bz}, {} bytes of shared memory",
            self.kernel.name, self.kernel.file, self.shared_bytes
        )
    }
}

/// A Rust mirror of a kernel's parameter struct.
///
/// # Safety
/// The type must be `#[repr(C)]`, plain data, and laid out exactly as the struct of the same name in the
/// kernel's file; both sides assert size and offsets. The kernel touches no memory before it has waited for what was
/// queued before it, unless its launches are cooperative (kernels/common/ptx/grid.cuh).
pub unsafe trait KernelParams: Copy + fmt::Debug {
    /// The choices among the parameters, for who reads a plan: (name, value).
    fn settings(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }

    /// Neighbouring blocks of the grid that run as a cluster; none if fewer than two.
    fn cluster(&self) -> u32 {
        1
    }

    /// Whether blocks wait for others of the grid, which must all run at the same time.
    fn cooperative(&self) -> bool {
        false
    }
}

/// Parameters of kernels that work on `N` operands.
pub trait Movable<const N: usize>: KernelParams {
    /// Adds to the operands' addresses, and to whatever was calculated from them.
    fn move_by(&mut self, steps: [u64; N]);
}
