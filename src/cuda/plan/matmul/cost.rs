//! What estimates are made of, but for halves on compute capability 9.0, which have wgmma/cost.rs: how fast a device
//! multiplies, and how long it takes to read the operands, which few rows are bound by. The two rates of reading are from an H200's times for small
//! tiles: docs/measurements/matmul_mma.md.
//!
//! No estimate is below what the device's ceilings allow: `Rate` is at most the device's own, and the memory's time is
//! part of each.

use crate::cuda::device::DeviceFacts;
use crate::dtype::DType;
use crate::ops::matmul::{MatmulProblem, Precision};
use crate::ops::work::Workload;

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

/// Multiply-adds of one multiprocessor in a clock on an H200: what mma.sync reaches, of halves and TF32, and the pipelines'.
const HALVES: f64 = 1270.0;
const TF32: f64 = HALVES / 2.0;
const FLOATS: f64 = 128.0;
const DOUBLES: f64 = 64.0;
const DOUBLE_MATRICES: f64 = 128.0;

/// Multiply-adds of one multiprocessor in a clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// At most, on this device and on an H200.
    most: f64,
    h200: f64,
    /// Bytes of an element, and bytes in a clock that L2 brings to the multiprocessor.
    element: f64,
    l2: f64,
}

impl Rate {
    /// Of tensor cores.
    pub fn halves(device: &DeviceFacts) -> Rate {
        Rate::new(device, HALVES, (DType::F16, Precision::Ieee, true))
    }

    pub fn tf32(device: &DeviceFacts) -> Rate {
        Rate::new(device, TF32, (DType::F32, Precision::Tf32, true))
    }

    pub fn floats(device: &DeviceFacts) -> Rate {
        Rate::new(device, FLOATS, (DType::F32, Precision::Ieee, false))
    }

    /// Of tensor cores.
    pub fn double_matrices(device: &DeviceFacts) -> Rate {
        Rate::new(device, DOUBLE_MATRICES, (DType::F64, Precision::Ieee, true))
    }

    pub fn doubles(device: &DeviceFacts) -> Rate {
        Rate::new(device, DOUBLES, (DType::F64, Precision::Ieee, false))
    }

    /// Where the device's own rate is not known, or higher than an H200's, that: nobody has seen mma.sync be faster.
    fn new(device: &DeviceFacts, h200: f64, (dtype, precision, matrix): (DType, Precision, bool)) -> Rate {
        let own = device.multiply_adds_per_clock(dtype, precision, matrix).unwrap_or(h200);
        let (element, l2) = (dtype.size() as f64, device.l2_bytes().unwrap_or(f64::INFINITY));
        Rate { most: own.min(h200), h200, element, l2 }
    }

    /// Where `share` is reached on an H200: what is done there besides multiplying takes as many clocks on any device.
    pub fn reached(self, share: f64) -> f64 {
        1.0 / (1.0 / self.most + (1.0 / share - 1.0) / self.h200)
    }

    /// The same by blocks of m by n elements, whose operands come from L2.
    pub fn reached_by(self, share: f64, m: f64, n: f64) -> f64 {
        self.reached(share).min(self.l2 * m * n / ((m + n) * self.element))
    }
}

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

/// Clocks until the result is complete, if what blocks do takes `blocks`.
pub fn clocks(problem: &MatmulProblem, blocks: f64, device: &DeviceFacts) -> f64 {
    let memory = memory_clocks(problem.work().bytes() as f64, device);
    START + memory.max(blocks) + OVERLAP * memory.min(blocks)
}

/// Clocks that blocks take, if their arithmetic alone takes `computing`.
pub fn reading_clocks(reading: &Reading, computing: f64, device: &DeviceFacts) -> f64 {
    let rounds = (reading.blocks / f64::from(device.multiprocessors * reading.resident)).ceil();
    let rate = BLOCK_RATE.min(reading.in_flight / LATENCY);
    (rounds * reading.bytes / rate).max(computing)
}
