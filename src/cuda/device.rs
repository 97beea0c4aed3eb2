//! What a plan needs to know about a GPU, and the GPUs of this machine.

use std::sync::{Mutex, OnceLock, PoisonError};

use super::driver::{self, Context};
use super::module::Loaded;
use crate::error::{Error, Result};
use crate::tensor::Device;

/// The facts of one device that plans depend on. All per-multiprocessor figures are hardware limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    pub name: String,
    /// (major, minor)
    pub compute_capability: (u32, u32),
    pub multiprocessors: u32,
    pub threads_per_multiprocessor: u32,
    pub registers_per_multiprocessor: u32,
    /// Shared memory of one multiprocessor, bytes.
    pub shared_bytes_per_multiprocessor: u32,
    /// The most dynamic shared memory a block may opt in to, bytes.
    pub shared_bytes_per_block: u32,
    pub l2_bytes: u64,
    pub memory_bytes: u64,
}

/// A device in use: its facts, its primary context and the kernels loaded on it.
#[derive(Debug)]
pub struct Gpu {
    pub facts: DeviceFacts,
    pub context: Context,
    pub loaded: Loaded,
}

/// Kernels exist for this capability and newer.
const OLDEST: (u32, u32) = (7, 5);

impl Gpu {
    /// The device of this ordinal, opened at first use and kept for the life of the process.
    pub fn get(op: &'static str, ordinal: i32) -> Result<&'static Gpu> {
        static GPUS: OnceLock<Vec<OnceLock<Gpu>>> = OnceLock::new();
        static OPENING: Mutex<()> = Mutex::new(());
        let gpus = match GPUS.get() {
            Some(gpus) => gpus,
            None => {
                let count = driver::device_count(op)?;
                GPUS.get_or_init(|| (0..count).map(|_| OnceLock::new()).collect())
            }
        };
        let slot = usize::try_from(ordinal).ok().and_then(|i| gpus.get(i)).ok_or(Error::NoSuchGpu {
            op,
            device: Device::Cuda(ordinal),
            count: gpus.len(),
        })?;
        if let Some(gpu) = slot.get() {
            return Ok(gpu);
        }
        let _one_at_a_time = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gpu) = slot.get() {
            return Ok(gpu);
        }
        let facts = driver::facts(op, ordinal)?;
        let (major, minor) = facts.compute_capability;
        if (major, minor) < OLDEST {
            return Err(Error::GpuTooOld { op, device: Device::Cuda(ordinal), major, minor });
        }
        let gpu = Gpu { facts, context: Context::primary(op, ordinal)?, loaded: Loaded::default() };
        Ok(slot.get_or_init(|| gpu))
    }
}

/// The facts of every device the driver shows; none without a driver.
pub fn all() -> Vec<DeviceFacts> {
    const OP: &str = "devices";
    let count = driver::device_count(OP).unwrap_or(0);
    (0..count).filter_map(|i| driver::facts(OP, i32::try_from(i).ok()?).ok()).collect()
}

/// Real devices, so that plans can be tested without one.
#[cfg(test)]
pub mod examples {
    use super::DeviceFacts;

    pub fn h200() -> DeviceFacts {
        DeviceFacts {
            name: "NVIDIA H200".into(),
            compute_capability: (9, 0),
            multiprocessors: 132,
            threads_per_multiprocessor: 2048,
            registers_per_multiprocessor: 65536,
            shared_bytes_per_multiprocessor: 233_472,
            shared_bytes_per_block: 232_448,
            l2_bytes: 60 << 20,
            memory_bytes: 141 << 30,
        }
    }

    pub fn a100() -> DeviceFacts {
        DeviceFacts {
            name: "NVIDIA A100-SXM4-80GB".into(),
            compute_capability: (8, 0),
            multiprocessors: 108,
            threads_per_multiprocessor: 2048,
            registers_per_multiprocessor: 65536,
            shared_bytes_per_multiprocessor: 167_936,
            shared_bytes_per_block: 166_912,
            l2_bytes: 40 << 20,
            memory_bytes: 80 << 30,
        }
    }

    pub fn l4() -> DeviceFacts {
        DeviceFacts {
            name: "NVIDIA L4".into(),
            compute_capability: (8, 9),
            multiprocessors: 58,
            threads_per_multiprocessor: 1536,
            registers_per_multiprocessor: 65536,
            shared_bytes_per_multiprocessor: 102_400,
            shared_bytes_per_block: 101_376,
            l2_bytes: 48 << 20,
            memory_bytes: 24 << 30,
        }
    }

    pub fn rtx5090() -> DeviceFacts {
        DeviceFacts {
            name: "NVIDIA GeForce RTX 5090".into(),
            compute_capability: (12, 0),
            multiprocessors: 170,
            threads_per_multiprocessor: 1536,
            registers_per_multiprocessor: 65536,
            shared_bytes_per_multiprocessor: 102_400,
            shared_bytes_per_block: 101_376,
            l2_bytes: 96 << 20,
            memory_bytes: 32 << 30,
        }
    }

    pub fn t4() -> DeviceFacts {
        DeviceFacts {
            name: "Tesla T4".into(),
            compute_capability: (7, 5),
            multiprocessors: 40,
            threads_per_multiprocessor: 1024,
            registers_per_multiprocessor: 65536,
            shared_bytes_per_multiprocessor: 65_536,
            shared_bytes_per_block: 65_536,
            l2_bytes: 4 << 20,
            memory_bytes: 16 << 30,
        }
    }

    pub fn all() -> Vec<DeviceFacts> {
        vec![h200(), a100(), l4(), rtx5090(), t4()]
    }
}
