//! The tiles of kernels/matmul_skinny.cu, kernels/matmul_skinny_simt.cu and kernels/matmul_skinny_stream.cu.

use crate::cuda::device::DeviceFacts;

/// A tile of the result that one block computes: rows of the weights by few rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tile {
    pub name: &'static str,
    pub m: u32,
    pub n: u32,
    /// k of a stage, and stages; two where nothing is asynchronous.
    pub k: u32,
    pub stages: u32,
    pub threads: u32,
    /// Blocks that a multiprocessor's registers have room for.
    pub blocks: u32,
    /// Bytes of an element in shared memory.
    pub element: u32,
}

#[rustfmt::skip]
pub const HALVES: [Tile; 1] = [
    Tile { name: "64x16",  m:  64, n: 16, k: 128, stages: 4, threads: 128, blocks: 2, element: 2 },
];
#[rustfmt::skip]
pub const ANY_HALVES: [Tile; 1] = [
    Tile { name: "64x16",  m:  64, n: 16, k:  64, stages: 3, threads: 128, blocks: 4, element: 2 },
];
#[rustfmt::skip]
pub const SIMT: [Tile; 3] = [
    Tile { name: "128x8",  m: 128, n:  8, k:  16, stages: 5, threads: 128, blocks: 4, element: 4 },
    Tile { name: "128x32", m: 128, n: 32, k:  16, stages: 4, threads: 128, blocks: 4, element: 4 },
    Tile { name: "128x64", m: 128, n: 64, k:  16, stages: 3, threads: 128, blocks: 3, element: 4 },
];
/// Of operands that are both contiguous along k.
#[rustfmt::skip]
pub const SIMT_K: [Tile; 2] = [
    Tile { name: "128x32", m: 128, n: 32, k:  16, stages: 3, threads: 128, blocks: 4, element: 4 },
    Tile { name: "128x64", m: 128, n: 64, k:  16, stages: 3, threads: 128, blocks: 3, element: 4 },
];
/// Of matmul_skinny_stream.cu, whose weights go to registers: what is in flight is a stage.
#[rustfmt::skip]
pub const STREAM_K: [Tile; 2] = [
    Tile { name: "8x4",    m:   8, n:  4, k: 512, stages: 2, threads: 128, blocks: 4, element: 0 },
    Tile { name: "8x8",    m:   8, n:  8, k: 512, stages: 2, threads: 128, blocks: 3, element: 0 },
];
#[rustfmt::skip]
pub const STREAM_M: [Tile; 2] = [
    Tile { name: "32x4",   m:  32, n:  4, k: 128, stages: 2, threads: 128, blocks: 5, element: 0 },
    Tile { name: "32x8",   m:  32, n:  8, k: 128, stages: 2, threads: 128, blocks: 5, element: 0 },
];
#[rustfmt::skip]
pub const SIMT_F64: [Tile; 2] = [
    Tile { name: "64x8",   m:  64, n:  8, k:  16, stages: 4, threads: 128, blocks: 4, element: 8 },
    Tile { name: "64x32",  m:  64, n: 32, k:  16, stages: 3, threads: 128, blocks: 4, element: 8 },
];

impl Tile {
    pub fn stages(&self, device: &DeviceFacts) -> u32 {
        if device.compute_capability >= (8, 0) { self.stages } else { 2 }
    }

    /// Of the ring of stages.
    pub fn bytes(&self, device: &DeviceFacts) -> u32 {
        self.stages(device) * (self.m + self.n) * self.k * self.element
    }

    /// On one multiprocessor; a block's shared memory comes with 1 KB for the system.
    pub fn resident(&self, device: &DeviceFacts) -> u32 {
        let by_shared = device.shared_bytes_per_multiprocessor / (self.bytes(device) + 1024);
        self.blocks.min(by_shared).min(device.threads_per_multiprocessor / self.threads).max(1)
    }
}
