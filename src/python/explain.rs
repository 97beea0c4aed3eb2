//! The plan of a call that is not run.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use super::arguments::Keyword;
use super::exceptions::raise;
use super::problems::{self, MatmulOptions};
use crate::cpu::{isa, parallel};
use crate::cuda::device::{self, DeviceFacts};
use crate::cuda::explain::{Arithmetic, Explanation, explain};
use crate::cuda::gpu::Gpu;
use crate::cuda::plan::add::AddPlan;
use crate::cuda::plan::matmul::{Route, route};
use crate::cuda::plan::softmax::Launch;
use crate::cuda::plan::tile_order::strips_read;
use crate::cuda::{forced, plan};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::interop::Call;
use crate::ops::matmul::{MatmulProblem, Precision};
use crate::ops::softmax::Kind;
use crate::ops::work::Work;
use crate::tensor::Device;

const OP: &str = "explain";

/// What `op` would do with these arguments: the facts that `tilewise.explain` shows.
///
/// Args:
///     op: "add", "softmax", "log_softmax" or "matmul".
///     arguments: dict of the operation's arguments by name; what is left out has its default.
///     device: None for the device the tensors are on; "cuda" or "cuda:1" for one that is here; or the name
///         of a GPU that need not be, such as "h200".
///
/// Returns:
///     A dict of dicts: problem, work and, by where it would run, cpu, or device, plan, occupancy, ceiling and
///     tile_order (matmul only). What is not known is left out.
///
/// Raises:
///     As the operation; DeviceError: a device that is not known; UnsupportedError: another op; TypeError: a
///         missing argument.
///
/// Lives in src/python/explain.rs; plans are made in src/cuda/plan/.
#[pyfunction(name = "explain")]
#[pyo3(text_signature = "(op, arguments, device=None)", signature = (op, arguments, device = None))]
pub fn explain_call<'py>(
    py: Python<'py>,
    op: &str,
    arguments: &Bound<'py, PyDict>,
    device: Option<&str>,
) -> PyResult<Bound<'py, PyDict>> {
    let run = || -> Result<Bound<'py, PyDict>> {
        let given = Given(arguments);
        let explained = PyDict::new(py);
        match op {
            "add" => {
                let mut call = Call::planning(py, "add", &DType::ALL);
                let (x, y) = (given.required("x")?, given.required("y")?);
                let (alpha, out) = (given.optional("alpha")?, given.optional("out")?);
                let (_, p) = problems::add(&mut call, &x, &y, &keyword(alpha.as_ref()), out.as_ref())?;
                let problem = PyDict::new(py);
                problem.set_item("shape", p.shape.as_slice())?;
                problem.set_item("x_strides", p.x.strides.as_slice())?;
                problem.set_item("out_strides", p.out.strides.as_slice())?;
                problem.set_item("dtype", p.out.dtype.name())?;
                problem.set_item("alpha", p.alpha.as_f64())?;
                explained.set_item("problem", problem)?;
                let arithmetic = Arithmetic { dtype: p.out.dtype, precision: Precision::Ieee, matrix: false };
                describe(&explained, p.device, device, p.work(), |facts| {
                    match plan::add::plan(&p, facts, forced::add_schedule()) {
                        AddPlan::Few(plan) => explain(&plan, p.work(), arithmetic, facts),
                        AddPlan::Many(plan) => explain(plan.as_ref(), p.work(), arithmetic, facts),
                    }
                })?;
            }
            "softmax" | "log_softmax" => {
                let kind = if op == "softmax" { Kind::Softmax } else { Kind::LogSoftmax };
                let mut call = Call::planning(py, kind.name(), &DType::FLOATS);
                let x = given.required("x")?;
                let (dim, out) = (given.optional("dim")?, given.optional("out")?);
                let dtype = given.optional("dtype")?;
                let dim = keyword(dim.as_ref());
                let (_, p) = problems::softmax(&mut call, kind, &x, &dim, dtype.as_ref(), out.as_ref())?;
                let problem = PyDict::new(py);
                problem.set_item("rows", p.row_count())?;
                problem.set_item("length", p.length)?;
                problem.set_item("x_stride", p.x_stride)?;
                problem.set_item("x_dtype", p.x.dtype.name())?;
                problem.set_item("dtype", p.out.dtype.name())?;
                explained.set_item("problem", problem)?;
                let arithmetic = Arithmetic { dtype: p.out.dtype, precision: Precision::Ieee, matrix: false };
                describe(&explained, p.device, device, p.work(), |facts| {
                    let plan = plan::softmax::plan(&p, facts, forced::softmax(), 0);
                    let explained = match &plan.launch {
                        Launch::Rows(plan) => explain(plan, p.work(), arithmetic, facts),
                        Launch::Tiles(plan) => explain(plan, p.work(), arithmetic, facts),
                    };
                    Explanation { first: plan.first, ..explained }
                })?;
            }
            "matmul" => {
                let mut call = Call::planning(py, "matmul", &DType::FLOATS);
                let (a, b) = (given.required("a")?, given.required("b")?);
                let (bias, activation) = (given.optional("bias")?, given.optional("activation")?);
                let (slope, precision) = (given.optional("negative_slope")?, given.optional("precision")?);
                let out = given.optional("out")?;
                let options = MatmulOptions {
                    bias: bias.as_ref(),
                    activation: activation.as_ref(),
                    negative_slope: keyword(slope.as_ref()),
                    precision: keyword(precision.as_ref()),
                    out: out.as_ref(),
                };
                let (_, p) = problems::matmul(&mut call, &a, &b, &options)?;
                let problem = PyDict::new(py);
                problem.set_item("m", p.m)?;
                problem.set_item("n", p.n)?;
                problem.set_item("k", p.k)?;
                problem.set_item("batch", p.batch_count())?;
                problem.set_item("dtype", p.dtype.name())?;
                problem.set_item("activation", p.activation.name())?;
                problem.set_item("bias", p.bias.is_some())?;
                explained.set_item("problem", problem)?;
                let arithmetic = Arithmetic { dtype: p.dtype, precision: p.precision, matrix: true };
                let planned = describe(&explained, p.device, device, p.work(), |facts| {
                    match route(&p, facts, forced::matmul()) {
                        Route::Blocks => explain(&plan::matmul::plan(&p, facts), p.work(), arithmetic, facts),
                        Route::Wgmma(choice) => {
                            explain(&choice.launches(&p, facts, 0).multiply, p.work(), arithmetic, facts)
                        }
                    }
                })?;
                if let Some(planned) = planned {
                    tile_order(&explained, &p, &planned)?;
                }
            }
            other => {
                return Err(Error::NotExplained { got: other.to_string() });
            }
        }
        Ok(explained)
    };
    run().map_err(|error| raise(py, error))
}

/// A call's arguments by name.
struct Given<'a, 'py>(&'a Bound<'py, PyDict>);

impl<'py> Given<'_, 'py> {
    fn optional(&self, name: &str) -> Result<Option<Bound<'py, PyAny>>> {
        Ok(self.0.get_item(name)?.filter(|value| !value.is_none()))
    }

    fn required(&self, name: &'static str) -> Result<Bound<'py, PyAny>> {
        let missing = || PyTypeError::new_err(format!("{OP}: `{name}` is missing"));
        Ok(self.0.get_item(name)?.ok_or_else(missing)?)
    }
}

fn keyword<'a, 'py>(given: Option<&'a Bound<'py, PyAny>>) -> Keyword<'a, 'py> {
    given.map_or(Keyword::Default, |object| Keyword::Given(object.as_borrowed()))
}

/// Writes down what the problem takes and how the device asked for, or else the tensors' own, would do it.
fn describe(
    explained: &Bound<'_, PyDict>,
    own: Device,
    asked: Option<&str>,
    work: Work,
    planned: impl FnOnce(&DeviceFacts) -> Explanation,
) -> Result<Option<Explanation>> {
    let py = explained.py();
    let entry = PyDict::new(py);
    entry.set_item("bytes_read", work.bytes_read)?;
    entry.set_item("bytes_written", work.bytes_written)?;
    entry.set_item("operations", work.operations)?;
    entry.set_item("intensity", work.intensity())?;
    explained.set_item("work", entry)?;
    let Some(facts) = facts(own, asked)? else {
        let cpu = PyDict::new(py);
        cpu.set_item("instructions", isa::name())?;
        cpu.set_item("threads", parallel::threads())?;
        explained.set_item("cpu", cpu)?;
        return Ok(None);
    };
    let planned = planned(&facts);
    explained.set_item("device", device_entry(py, &planned.device)?)?;
    explained.set_item("plan", plan_entry(py, &planned)?)?;
    if let Some(occupancy) = planned.occupancy {
        let entry = PyDict::new(py);
        entry.set_item("blocks_per_multiprocessor", occupancy.blocks_per_multiprocessor)?;
        entry.set_item("limited_by", occupancy.limited_by)?;
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
    let here = |ordinal| Ok(Some(Gpu::get(OP, ordinal)?.facts.clone()));
    match (asked, own) {
        (None, Device::Cpu) | (Some("cpu"), _) => Ok(None),
        (None, Device::Cuda(ordinal)) => here(ordinal),
        (Some("cuda"), _) => here(0),
        (Some(name), _) => {
            if let Some(ordinal) = name.strip_prefix("cuda:").and_then(|n| n.parse().ok()) {
                return here(ordinal);
            }
            let facts = device::published(name);
            facts
                .map(Some)
                .ok_or_else(|| Error::UnknownGpu { got: name.to_string(), known: &device::PUBLISHED })
        }
    }
}

fn device_entry<'py>(py: Python<'py>, facts: &DeviceFacts) -> Result<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    entry.set_item("name", &facts.name)?;
    entry.set_item("compute_capability", facts.compute_capability)?;
    entry.set_item("multiprocessors", facts.multiprocessors)?;
    entry.set_item("memory_bytes_per_second", facts.memory_bandwidth())?;
    Ok(entry)
}

fn plan_entry<'py>(py: Python<'py>, planned: &Explanation) -> Result<Bound<'py, PyDict>> {
    let entry = PyDict::new(py);
    if let Some(first) = &planned.first {
        entry.set_item("first", &first.name)?;
    }
    entry.set_item("kernel", &planned.kernel.name)?;
    entry.set_item("file", format!("kernels/{}.cu", planned.kernel.file))?;
    entry.set_item("grid", planned.grid)?;
    entry.set_item("block", planned.block)?;
    entry.set_item("dynamic_shared_bytes", planned.shared_bytes)?;
    for &(name, value) in &planned.settings {
        entry.set_item(name, value)?;
    }
    if let Some(compiled) = planned.compiled {
        entry.set_item("static_shared_bytes", compiled.shared_bytes)?;
        entry.set_item("registers", compiled.registers)?;
        entry.set_item("compiled_for", compiled.target)?;
    }
    Ok(entry)
}

/// What the grouped order saves: the strips of a and b that the blocks of the first wave read between them.
fn tile_order(explained: &Bound<'_, PyDict>, p: &MatmulProblem, planned: &Explanation) -> Result<()> {
    let setting = |name| planned.settings.iter().find(|s| s.0 == name).map(|s| s.1 as u32);
    let (Some(tiles_m), Some(tiles_n), Some(group_m)) =
        (setting("tiles_m"), setting("tiles_n"), setting("group_m"))
    else {
        return Ok(());
    };
    let Some(occupancy) = planned.occupancy else { return Ok(()) };
    let at_once = occupancy.blocks_per_multiprocessor * planned.device.multiprocessors;
    let py = explained.py();
    let entry = PyDict::new(py);
    entry.set_item("blocks_at_once", u64::from(at_once).min(u64::from(tiles_m) * u64::from(tiles_n)))?;
    for (name, group) in [("row_major", 1), ("grouped", group_m)] {
        let (rows, columns) = strips_read(tiles_m, tiles_n, group, at_once);
        entry.set_item(name, PyList::new(py, [rows, columns])?)?;
    }
    // A strip is a row of tiles of a or a column of tiles of b: all of k.
    let tile = |size: i64, tiles: u32| (size as f64 / f64::from(tiles)).ceil();
    entry.set_item("strip_elements", [tile(p.m, tiles_m) * p.k as f64, tile(p.n, tiles_n) * p.k as f64])?;
    Ok(explained.set_item("tile_order", entry)?)
}
