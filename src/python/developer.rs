//! For those who measure or test kernels; not part of the public interface.

use std::collections::BTreeMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::cuda::device::published;
use crate::cuda::forced;
use crate::cuda::plan::matmul;
use crate::cuda::plan::matmul::blocks::{self, TILE_NAMES};
use crate::cuda::plan::matmul::skinny;
use crate::cuda::plan::matmul::wgmma::{Overrides, TILES, TileCluster, bf16x6, fit, forced_tiles, tf32};
use crate::cuda::plan::variants::{ADD, Forcible, MATMUL, SOFTMAX, find};
use crate::cuda::plan_cache;
use crate::interop::torch_threads;

/// The variants that `force_add_schedule`, `force_softmax` and `force_matmul_kernel` know, by operation.
///
/// Returns:
///     For each operation a list of dictionaries: name and about (text); for softmax also parameter (what it counts, or
///     ""), values (parameters to try), row_length (a row length that the variant supports) and columns
///     (whether it supports rows that are not contiguous).
///
/// Sources: src/python/developer.rs, src/cuda/plan/variants.rs.
#[pyfunction]
#[pyo3(text_signature = "()")]
pub fn variants(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let result = PyDict::new(py);
    let entry = |name: &str, about: &str| {
        let entry = PyDict::new(py);
        entry.set_item("name", name)?;
        entry.set_item("about", about)?;
        PyResult::Ok(entry)
    };
    let add = ADD.iter().map(|v| entry(v.name, v.about)).collect::<PyResult<Vec<_>>>()?;
    result.set_item("add", add)?;
    let softmax = SOFTMAX.iter().map(|v| {
        let entry = entry(v.name, v.about)?;
        entry.set_item("parameter", v.parameter)?;
        entry.set_item("values", v.values.to_vec())?;
        entry.set_item("row_length", v.row_length)?;
        entry.set_item("columns", v.columns)?;
        PyResult::Ok(entry)
    });
    result.set_item("softmax", softmax.collect::<PyResult<Vec<_>>>()?)?;
    let matmul = MATMUL.iter().map(|(name, about)| entry(name, about)).collect::<PyResult<Vec<_>>>()?;
    result.set_item("matmul", matmul)?;
    Ok(result)
}

/// The entry of a table with this name.
fn known<T>(argument: &str, name: &str, table: &'static [Forcible<T>]) -> PyResult<&'static Forcible<T>> {
    find(table, name).ok_or_else(|| unknown(argument, name, table.iter().map(|entry| entry.name)))
}

fn unknown<'a>(argument: &str, got: &str, accepted: impl Iterator<Item = &'a str>) -> PyErr {
    let accepted = accepted.map(|name| format!("{name:?}, ")).collect::<String>();
    PyValueError::new_err(format!("{argument}={got:?} is not known; accepted: {accepted}None"))
}

/// Makes additions of contiguous tensors on GPUs use one schedule, for the whole process.
///
/// Args:
///     schedule: "fixed_grid" (one block for each tile), "grid_stride" (as many blocks as run at once, which loop over
///         tiles), or None to leave the choice to the plan again.
///
/// Raises:
///     ValueError: any other name.
///
/// Source: src/python/developer.rs; takes effect in src/cuda/plan/add/mod.rs.
#[pyfunction]
#[pyo3(text_signature = "(schedule)")]
pub fn force_add_schedule(schedule: Option<&str>) -> PyResult<()> {
    let entry = schedule.map(|name| known("schedule", name, &ADD)).transpose()?;
    forced::set_add_schedule(entry.map(|entry| (entry.make)(1)));
    Ok(())
}

/// Keeps calls on torch tensors from using torch's threads, for the whole process; False allows it again.
///
/// Source: src/python/developer.rs; takes effect in src/interop/torch/threads.rs.
#[pyfunction]
#[pyo3(text_signature = "(withheld)")]
pub fn withhold_torch_threads(withheld: bool) {
    torch_threads::withhold(withheld);
}

/// How often this process has chosen how to solve a problem on a GPU: once for each problem that is new to its thread.
///
/// Sources: src/python/developer.rs, src/cuda/plan_cache.rs.
#[pyfunction]
#[pyo3(text_signature = "()")]
pub fn choices_made() -> u64 {
    plan_cache::choices()
}

/// Makes softmax and log_softmax on GPUs use one variant of their kernels, for the whole process, wherever it supports
/// the call.
///
/// Args:
///     variant: a name in `variants()["softmax"]`, or None to leave the choice to the plan again.
///     parameter: what that entry's "parameter" counts; ignored where it is "".
///
/// For the gradients "misaligned", "smem", "short", "cluster", "online" and, for other dims, "split" can be forced in the
/// same way; any other variant excludes the first three.
///
/// Raises:
///     ValueError: any other name.
///
/// Source: src/python/developer.rs; takes effect in src/cuda/plan/softmax/choose/mod.rs and
/// src/cuda/plan/softmax_backward/; the variants are described in kernels/softmax*.cu.
#[pyfunction]
#[pyo3(signature = (variant, parameter = 1), text_signature = "(variant, parameter=1)")]
pub fn force_softmax(variant: Option<&str>, parameter: u32) -> PyResult<()> {
    let entry = variant.map(|name| known("variant", name, &SOFTMAX)).transpose()?;
    forced::set_softmax(entry.map(|entry| (entry.make)(u64::from(parameter))));
    Ok(())
}

/// Makes matmul on GPUs use one kind of kernel, for the whole process, wherever it supports the problem.
///
/// Args:
///     kernel: "blocks" (kernels/matmul_mma.cu and its siblings), "wgmma" (kernels/matmul_wgmma.cu: float16 and
///         bfloat16 on compute capability 9.0), "bf16x6" (kernels/matmul_bf16x6.cu: float32 there), "few"
///         (kernels/matmul_wgmma_few.cu and matmul_bf16x6_few.cu: few rows or columns there), "tf32"
///         (kernels/matmul_wgmma_tf32.cu: float32 with precision="tf32"), "skinny" (kernels/matmul_skinny.cu and
///         matmul_skinny_simt.cu: up to 16 rows or columns of fp16/bf16, 64 of others), "copied"
///         (kernels/matmul_mma.cu on copies of operands that it could only read element by element), or None to leave
///         the choice to the plan again.
///     tile: for "blocks" (of fp16/bf16 and float64), "wgmma", "bf16x6", "few" and "tf32": rows x columns of a block, as
///         "128x256"; None: the plan's.
///     splits: for "wgmma", "bf16x6", "few" (of float32 1, 2, 4, 8), "tf32", "skinny" and, where they divide k of float32 or float64,
///         "blocks": k splits; None: the plan's.
///     cluster: for "wgmma" and "tf32": rows x columns of blocks that load for each other, as "2x1"; "1x1" for none, and for
///         "wgmma", "bf16x6" and "skinny" also for split-K through memory where the splits could be a cluster.
///     group_m: for "wgmma", "bf16x6" and "tf32": rows of tiles that blocks visit together; None: the plan's.
///
/// Raises:
///     ValueError: any other kernel, tile or cluster.
///
/// Source: src/python/developer.rs; takes effect in src/cuda/plan/matmul/mod.rs.
#[pyfunction]
#[pyo3(
    text_signature = "(kernel, *, tile=None, splits=None, cluster=None, group_m=None)",
    signature = (kernel, *, tile = None, splits = None, cluster = None, group_m = None)
)]
pub fn force_matmul_kernel(
    kernel: Option<&str>,
    tile: Option<&str>,
    splits: Option<u32>,
    cluster: Option<&str>,
    group_m: Option<u32>,
) -> PyResult<()> {
    let cluster = cluster.map(cluster_named).transpose()?;
    let of_tiles = |tiles: &[&str]| -> PyResult<Overrides> {
        let tile = tile.map(|tile| tile_index(tile, tiles)).transpose()?;
        Ok(Overrides { tile, splits, cluster, group_m })
    };
    let forced = match kernel {
        None => None,
        Some("blocks") => {
            let index = tile.map(|tile| tile_index(tile, &TILE_NAMES)).transpose()?;
            let tile = index.map(|index| TILE_NAMES[index]);
            Some(matmul::Forced::Blocks(blocks::Overrides { tile, splits }))
        }
        Some("wgmma") => Some(matmul::Forced::Wgmma(of_tiles(&forced_tiles())?)),
        Some("bf16x6") => Some(matmul::Forced::Bf16x6(of_tiles(&bf16x6::TILES.map(|tile| tile.name))?)),
        Some("few") => Some(matmul::Forced::Few(of_tiles(&bf16x6::few::TILES.map(|tile| tile.name))?)),
        Some("tf32") => Some(matmul::Forced::Tf32(of_tiles(&tf32::TILES.map(|tile| tile.name))?)),
        Some("skinny") => Some(matmul::Forced::Skinny(skinny::Overrides {
            splits,
            cluster: cluster.map(|cluster| !cluster.is_alone()),
        })),
        Some("copied") => Some(matmul::Forced::Copied),
        Some(other) => return Err(unknown("kernel", other, MATMUL.iter().map(|(name, _)| *name))),
    };
    forced::set_matmul(forced);
    Ok(())
}

fn wgmma_tiles() -> [&'static str; TILES.len()] {
    TILES.map(|tile| tile.name)
}

fn cluster_named(name: &str) -> PyResult<TileCluster> {
    let known = TileCluster::ALL.map(|cluster| cluster.to_string());
    TileCluster::parse(name).ok_or_else(|| unknown("cluster", name, known.iter().map(String::as_str)))
}

fn tile_index(name: &str, known: &[&str]) -> PyResult<usize> {
    let position = known.iter().position(|tile| *tile == name);
    position.ok_or_else(|| unknown("tile", name, known.iter().copied()))
}

/// The constants of the cost model with which the plan chooses tiles and splits of kernels/matmul_wgmma.cu, by name.
///
/// Sources: src/python/developer.rs, src/cuda/plan/matmul/wgmma/fit.rs; benchmarks/fit_matmul.py fits them.
#[pyfunction]
pub fn wgmma_model() -> BTreeMap<&'static str, f64> {
    fit::constants().into_iter().collect()
}

type ClockedPlan = (u64, u64, u64, String, u64, String, bool, (bool, bool, bool));

/// The time that the cost model estimates for plans of kernels/matmul_wgmma.cu on an H200, in clock cycles.
///
/// Args:
///     plans: for each (m, n, k, tile, splits, blocks that load for each other as "2x1", whether the splits are a
///         cluster, (whether rows of a, and of b, are not aligned to cache lines, whether b is contiguous along n)).
///     constants: replace some of `wgmma_model()`.
///
/// Raises:
///     ValueError: a tile or constant that is not known.
///
/// Sources: src/python/developer.rs, src/cuda/plan/matmul/wgmma/fit.rs.
#[pyfunction]
#[pyo3(text_signature = "(plans, constants)")]
pub fn wgmma_clocks(plans: Vec<ClockedPlan>, constants: BTreeMap<String, f64>) -> PyResult<Vec<f64>> {
    let device = published("h200").ok_or_else(|| PyValueError::new_err("the H200 is not known"))?;
    let plan = |(m, n, k, tile, splits, cluster, cluster_splitk, (a_off, b_off, b_by_rows)): ClockedPlan| {
        let (off_lines, tile) = ([a_off, b_off], tile_index(&tile, &wgmma_tiles())?);
        let cluster = cluster_named(&cluster)?;
        Ok(fit::Plan { m, n, k, off_lines, b_by_rows, tile, splits, cluster, cluster_splitk })
    };
    let plans = plans.into_iter().map(plan).collect::<PyResult<Vec<_>>>()?;
    let constants = constants.iter().map(|(name, value)| (name.as_str(), *value));
    let unknown = |name| PyValueError::new_err(format!("constant {name:?} is not known"));
    fit::clocks(&plans, constants, &device).map_err(unknown)
}
