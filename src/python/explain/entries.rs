//! An explanation as dicts.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::OP;
use crate::backend::{Method, Operation};
use crate::cpu::{isa, parallel, workers};
use crate::cuda::device::{self, DeviceFacts};
use crate::cuda::explain::{self, Explanation, Launched};
use crate::cuda::gpu::Gpu;
use crate::cuda::module;
use crate::cuda::plan::reason::Reason;
use crate::cuda::plan::tile_order::strips_read;
use crate::error::{Error, Result};
use crate::interop::Call;
use crate::ops::matmul::MatmulProblem;
use crate::tensor::Device;

/// Writes down what the problem takes and how the device asked for, or else the tensors' own, would do it: by
/// nothing at all if the problem is empty.
pub fn describe(
    explained: &Bound<'_, PyDict>,
    call: &Call<'_>,
    problem: &impl Operation,
    asked: Option<&str>,
) -> Result<Option<Explanation>> {
    let (py, work) = (explained.py(), problem.work());
    let entry = PyDict::new(py);
    entry.set_item("bytes_read", work.bytes_read)?;
    entry.set_item("bytes_written", work.bytes_written)?;
    entry.set_item("operations", work.operations)?;
    entry.set_item("intensity", work.intensity())?;
    explained.set_item("work", entry)?;
    let Some(facts) = facts(problem.device(), asked)? else {
        let cpu = PyDict::new(py);
        let method = if problem.is_empty() { None } else { problem.method_on_cpu() };
        let instructions = method.as_ref().map_or_else(isa::name, |method| method.instructions);
        cpu.set_item("instructions", instructions)?;
        cpu.set_item("threads", workers::with(call.workers(), parallel::threads))?;
        if let Some(Method { loops, file, .. }) = method {
            cpu.set_item("loops", loops)?;
            cpu.set_item("file", file)?;
        }
        explained.set_item("cpu", cpu)?;
        return Ok(None);
    };
    explained.set_item("device", device_entry(py, &facts)?)?;
    if problem.is_empty() {
        return Ok(None);
    }
    explain::check_work(work)?;
    let planned = explain::explain(problem, &facts);
    planned.check()?;
    explained.set_item("plan", launch_entry(py, &planned.main)?)?;
    for (name, launches) in [("before", &planned.before), ("after", &planned.after)] {
        let entries: Vec<_> =
            launches.iter().map(|launch| launch_entry(py, launch)).collect::<Result<_>>()?;
        explained.set_item(name, entries)?;
    }
    let why: Vec<_> = planned.why.iter().map(|reason| reason_entry(py, reason)).collect::<Result<_>>()?;
    explained.set_item("why", why)?;
    if let Some(occupancy) = &planned.occupancy {
        let entry = PyDict::new(py);
        entry.set_item("blocks_per_multiprocessor", occupancy.blocks_per_multiprocessor)?;
        entry.set_item("limited_by", &occupancy.limited_by)?;
        entry.set_item("threads_used", occupancy.threads_used)?;
        entry.set_item("waves", occupancy.waves)?;
        entry.set_item("last_wave", occupancy.last_wave)?;
        explained.set_item("occupancy", entry)?;
    }
    if let (Some(memory), Some(arithmetic)) = (planned.memory_seconds, planned.arithmetic_seconds) {
        let entry = PyDict::new(py);
        entry.set_item("memory_seconds", memory)?;
        entry.set_item("arithmetic_seconds", arithmetic)?;
        entry.set_item("bound_by", if memory >= arithmetic { "memory" } else { "arithmetic" })?;
        explained.set_item("ceiling", entry)?;
    }
    Ok(Some(planned))
}

/// None: on the CPU.
fn facts(own: Device, asked: Option<&str>) -> Result<Option<DeviceFacts>> {
    let remedy = "name a GPU, which need not be present, such as device=\"h200\"";
    let here = |ordinal| match Gpu::get(OP, ordinal) {
        Ok(gpu) => Ok(Some(gpu.facts.clone())),
        Err(Error::NoDriver { op, looked_for, .. }) => Err(Error::NoDriver { op, looked_for, remedy }),
        Err(error) => Err(error),
    };
    match (asked, own) {
        (None, Device::Cpu) | (Some("cpu" | "cpu:0"), _) => Ok(None),
        (None, Device::Cuda(ordinal)) => here(ordinal),
        (Some("cuda"), _) => here(0),
        (Some(name), _) => {
            let ordinal = name.strip_prefix("cuda:").and_then(|digits| digits.parse().ok());
            if let Some(ordinal) = ordinal.filter(|ordinal| *ordinal >= 0) {
                return here(ordinal);
            }
            let facts = device::published(name);
            facts
                .map(Some)
                .ok_or_else(|| Error::UnknownGpu { got: format!("{name:?}"), known: &device::PUBLISHED })
        }
    }
}

fn device_entry<'py>(py: Python<'py>, facts: &DeviceFacts) -> Result<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("name", &facts.name)?;
    entry.set_item("compute_capability", facts.compute_capability)?;
    entry.set_item("multiprocessors", facts.multiprocessors)?;
    entry.set_item("threads_per_multiprocessor", facts.threads_per_multiprocessor)?;
    entry.set_item("clock_hertz", (facts.clock_khz > 0).then(|| f64::from(facts.clock_khz) * 1e3))?;
    entry.set_item("memory_bytes_per_second", facts.memory_bandwidth())?;
    entry.set_item("targets", module::runs_on(facts.compute_capability))?;
    Ok(entry)
}

fn launch_entry<'py>(
    py: Python<'py>,
    Launched { launch, compiled }: &Launched,
) -> Result<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("kernel", &launch.kernel.name)?;
    entry.set_item("file", format!("kernels/{}.cu", launch.kernel.file))?;
    entry.set_item("grid", launch.grid)?;
    entry.set_item("block", launch.block)?;
    entry.set_item("dynamic_shared_bytes", launch.shared_bytes)?;
    for &(name, value) in &launch.settings {
        entry.set_item(name, value)?;
    }
    if let Some(compiled) = compiled {
        entry.set_item("static_shared_bytes", compiled.shared_bytes)?;
        entry.set_item("registers", compiled.registers)?;
        entry.set_item("compiled_for", compiled.target)?;
    }
    Ok(entry)
}

fn reason_entry<'py>(py: Python<'py>, reason: &Reason) -> Result<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("chosen", reason.chosen)?;
    entry.set_item("over", reason.over)?;
    entry.set_item("because", reason.because)?;
    let metrics = PyDict::new(py);
    for (name, value) in reason.metrics.into_iter().flatten() {
        metrics.set_item(name, value)?;
    }
    entry.set_item("metrics", metrics)?;
    Ok(entry)
}

/// What the grouped order saves: the strips of a and b that the blocks of the first wave read between them.
pub fn tile_order(explained: &Bound<'_, PyDict>, p: &MatmulProblem, planned: &Explanation) -> Result<()> {
    let setting = |name| planned.main.launch.settings.iter().find(|s| s.0 == name).map(|s| s.1 as u32);
    let (Some(tiles_m), Some(tiles_n), Some(group_m)) =
        (setting("tiles_m"), setting("tiles_n"), setting("group_m"))
    else {
        return Ok(());
    };
    let Some(occupancy) = &planned.occupancy else { return Ok(()) };
    // Blocks of a cluster share a tile, or have neighbouring ones that are counted as one.
    let cluster = setting("cluster").unwrap_or(1);
    let at_once = occupancy.blocks_per_multiprocessor * planned.device.multiprocessors / cluster;
    let py = explained.py();
    let entry = PyDict::new(py);
    let tiles_at_once = u64::from(at_once).min(u64::from(tiles_m) * u64::from(tiles_n));
    entry.set_item("blocks_at_once", tiles_at_once * u64::from(cluster))?;
    for (name, group) in [("row_major", 1), ("grouped", group_m)] {
        let (rows, columns) = strips_read(tiles_m, tiles_n, group, at_once);
        entry.set_item(name, PyList::new(py, [rows, columns])?)?;
    }
    // A strip is a row of tiles of a or a column of tiles of b: all of k.
    let tile = |size: i64, tiles: u32| (size as f64 / f64::from(tiles)).ceil();
    entry.set_item("strip_elements", [tile(p.m, tiles_m) * p.k as f64, tile(p.n, tiles_n) * p.k as f64])?;
    Ok(explained.set_item("tile_order", entry)?)
}
