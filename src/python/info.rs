//! What this machine has and what this build contains.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::exceptions::raise;
use crate::cuda::device::DeviceFacts;
use crate::cuda::{driver, module};
use crate::error::{Error, Result};

const OP: &str = "devices";

/// The CUDA devices that the driver shows, in its order; an empty list without a driver or a device.
///
/// Returns:
///     A list of dicts: index, name, compute_capability (major, minor), multiprocessors; for one multiprocessor,
///     threads, blocks, registers and shared_bytes; shared_bytes_per_block, l2_bytes, memory_bytes;
///     clock_hz, memory_clock_hz and memory_bus_bits (None where the driver does not say);
///     memory_bytes_per_second (NVIDIA's number for products that explain knows, else memory clock times bus width);
///     and targets, those of build_info() that the device runs: none if this build was made for other GPUs.
///
/// Raises:
///     CudaError: there is a driver, but it fails.
///
/// Example:
///     >>> [d["name"] for d in tilewise.devices()]
///     ['NVIDIA H200']
///
/// Sources: src/python/info.rs; src/cuda/driver.rs queries the driver.
#[pyfunction]
#[pyo3(text_signature = "()")]
pub fn devices(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let found = PyList::empty(py);
    for (index, facts) in facts().map_err(|error| raise(py, error))?.into_iter().enumerate() {
        let device = PyDict::new(py);
        device.set_item("index", index)?;
        device.set_item("name", &facts.name)?;
        device.set_item("compute_capability", facts.compute_capability)?;
        device.set_item("multiprocessors", facts.multiprocessors)?;
        device.set_item("threads", facts.threads_per_multiprocessor)?;
        device.set_item("blocks", facts.blocks_per_multiprocessor)?;
        device.set_item("registers", facts.registers_per_multiprocessor)?;
        device.set_item("shared_bytes", facts.shared_bytes_per_multiprocessor)?;
        device.set_item("shared_bytes_per_block", facts.shared_bytes_per_block)?;
        device.set_item("l2_bytes", facts.l2_bytes)?;
        device.set_item("memory_bytes", facts.memory_bytes)?;
        device.set_item("clock_hz", hertz(facts.clock_khz))?;
        device.set_item("memory_clock_hz", hertz(facts.memory_clock_khz))?;
        device.set_item("memory_bus_bits", (facts.memory_bus_bits > 0).then_some(facts.memory_bus_bits))?;
        device.set_item("memory_bytes_per_second", facts.memory_bandwidth())?;
        device.set_item("targets", module::runs_on(facts.compute_capability))?;
        found.append(device)?;
    }
    Ok(found)
}

fn hertz(khz: u32) -> Option<u64> {
    (khz > 0).then_some(u64::from(khz) * 1000)
}

fn facts() -> Result<Vec<DeviceFacts>> {
    let count = match driver::device_count(OP) {
        Ok(count) => count,
        Err(Error::NoDriver { .. }) => 0,
        Err(Error::Cuda { name, .. }) if name == "CUDA_ERROR_NO_DEVICE" => 0,
        Err(error) => return Err(error),
    };
    (0..count).map(|ordinal| driver::facts(OP, i32::try_from(ordinal).unwrap_or(i32::MAX))).collect()
}

/// What this build was made of: version, nvcc, GPU targets, and what every kernel needs.
///
/// Returns:
///     A dict: version; nvcc (the compiler's version, None in a build without kernels); targets (sm_* for
///     machine code, compute_* for PTX); emulated (whether most of them are there by name only, for the tests
///     that emulate a GPU);
///     kernels, a list of dicts with file, kernel, target, registers (per thread), shared_bytes (static,
///     per block), stack_bytes and spill_bytes (per thread), as ptxas reported them.
///
/// Example:
///     >>> sum(k["spill_bytes"] for k in tilewise.build_info()["kernels"])
///     0
///
/// Sources: src/python/info.rs; build.rs compiles the kernels and records these numbers.
#[pyfunction]
#[pyo3(text_signature = "()")]
pub fn build_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let kernels = PyList::empty(py);
    for fatbin in module::FATBINS {
        for resources in fatbin.kernels {
            let kernel = PyDict::new(py);
            kernel.set_item("file", fatbin.file)?;
            kernel.set_item("kernel", resources.kernel)?;
            kernel.set_item("target", resources.target)?;
            kernel.set_item("registers", resources.registers)?;
            kernel.set_item("shared_bytes", resources.shared_bytes)?;
            kernel.set_item("stack_bytes", resources.stack_bytes)?;
            kernel.set_item("spill_bytes", resources.spill_bytes)?;
            kernels.append(kernel)?;
        }
    }
    let info = PyDict::new(py);
    info.set_item("version", env!("CARGO_PKG_VERSION"))?;
    info.set_item("nvcc", module::NVCC_VERSION)?;
    info.set_item("targets", module::built())?;
    info.set_item("emulated", module::EMULATED)?;
    info.set_item("kernels", kernels)?;
    Ok(info)
}
