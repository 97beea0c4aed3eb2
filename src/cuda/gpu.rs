//! The GPUs of this machine, each opened when first used.

use std::sync::{Mutex, OnceLock, PoisonError};

use super::device::DeviceFacts;
use super::driver::{self, Context};
use super::module::{self, Loaded};
use super::targets::Capability;
use crate::error::{Error, Result};
use crate::tensor::Device;

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
        check(op, Device::Cuda(ordinal), facts.compute_capability)?;
        let gpu = Gpu { facts, context: Context::primary(op, ordinal)?, loaded: Loaded::default() };
        Ok(slot.get_or_init(|| gpu))
    }
}

/// Refuses a GPU for which this build has no code, or other code than plans are made for.
fn check(op: &'static str, device: Device, (major, minor): Capability) -> Result<()> {
    if (major, minor) < OLDEST {
        return Err(Error::GpuTooOld { op, device, major, minor });
    }
    if !module::serves((major, minor)) {
        return Err(Error::GpuNotBuiltFor { op, device, major, minor, built: module::built() });
    }
    Ok(())
}
