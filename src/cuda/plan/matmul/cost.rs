//! How long it takes to read a product's operands: what few rows are bound by. The two rates are read off an H200's
//! times for matmul_mma's 32x64 tile at 1x4096x4096 (22.1 us by 64 blocks) and its 64x64 tile at 64x14336x4096 (53 us).

use crate::cuda::device::DeviceFacts;
use crate::ops::matmul::MatmulProblem;

/// Clocks of the kernel's start and end, in which nothing streams.
const START: f64 = 8000.0;
/// Clocks from a request to its data, where the memory is busy.
const LATENCY: f64 = 2300.0;
/// Bytes in a clock that one block of few warps takes in, however many are on their way.
const BLOCK_RATE: f64 = 18.0;
/// Share of the memory's nominal rate that is reached.
const MEMORY: f64 = 0.9;
/// Share of the shorter of the memory's time and the blocks' that the longer does not hide.
const OVERLAP: f64 = 0.2;

/// How a kernel reads its operands.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    pub blocks: f64,
    /// Blocks on one multiprocessor.
    pub resident: u32,
    /// That one block reads in all, and that are on their way to it at once.
    pub bytes: f64,
    pub in_flight: f64,
}

/// Clocks in which the memory moves so many bytes; 0 if its rate is not known.
pub fn memory_clocks(bytes: f64, device: &DeviceFacts) -> f64 {
    let clock = f64::from(device.clock_khz) * 1e3;
    match device.memory_bandwidth() {
        Some(rate) if clock > 0.0 => bytes * clock / (MEMORY * rate),
        _ => 0.0,
    }
}

/// Clocks until the result is complete, if the arithmetic alone takes `computing`.
pub fn clocks(problem: &MatmulProblem, reading: &Reading, computing: f64, device: &DeviceFacts) -> f64 {
    let memory = memory_clocks(problem.work().bytes() as f64, device);
    let rounds = (reading.blocks / f64::from(device.multiprocessors * reading.resident)).ceil();
    let rate = BLOCK_RATE.min(reading.in_flight / LATENCY);
    let blocks = (rounds * reading.bytes / rate).max(computing);
    START + memory.max(blocks) + OVERLAP * memory.min(blocks)
}
