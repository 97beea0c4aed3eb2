//! For those who measure or test kernels; not part of the public interface.

use std::collections::BTreeMap;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::cuda::device::published;
use crate::cuda::forced;
use crate::cuda::plan::add::Schedule;
use crate::cuda::plan::matmul::blocks::{self, TILE_NAMES};
use crate::cuda::plan::matmul::skinny;
use crate::cuda::plan::matmul::wgmma::{Overrides, TILES, fit};
use crate::cuda::plan::{matmul, softmax};
use crate::cuda::plan_cache;

/// Makes contiguous additions on GPUs use one schedule, for the whole process.
///
/// Args:
///     schedule: "fixed_grid" (one block for each tile), "grid_stride" (as many blocks as run at once, each
///         taking every so-many-th tile), or None to leave the choice to the plan again.
///
/// Raises:
///     ValueError: any other name.
///
/// Lives in src/python/developer.rs; takes effect in src/cuda/plan/add/mod.rs.
#[pyfunction]
#[pyo3(text_signature = "(schedule)")]
pub fn force_add_schedule(schedule: Option<&str>) -> PyResult<()> {
    let schedule = match schedule {
        None => None,
        Some("fixed_grid") => Some(Schedule::FixedGrid),
        Some("grid_stride") => Some(Schedule::GridStride),
        Some(other) => {
            let message =
                format!("schedule={other:?} is not known; accepted: \"fixed_grid\", \"grid_stride\", None");
            return Err(PyValueError::new_err(message));
        }
    };
    forced::set_add_schedule(schedule);
    Ok(())
}

/// How often this process has chosen how to solve a problem on a GPU: once for each problem that is new to its thread.
///
/// Lives in src/python/developer.rs, of src/cuda/plan_cache.rs.
#[pyfunction]
#[pyo3(text_signature = "()")]
pub fn choices_made() -> u64 {
    plan_cache::choices()
}

/// Makes softmax and log_softmax on GPUs use one variant of their kernels, for the whole process, wherever it can
/// do the call.
///
/// Args:
///     variant: None to leave the choice to the plan again. For dims of contiguous elements: "warp", "block", "short",
///         "misaligned", "pipeline", "online", "cluster", "smem", "split" or "grid". For other dims: "column", "cluster"
///         or "split".
///     parameter: of warp, loads of one row in flight per lane (1, 2 or 4); of misaligned and pipeline, the depth of the
///         software pipeline, 1 to 4 tiles or rows in shared memory; of cluster and smem, blocks of a cluster (1, 2, 4, 8
///         or 16); of split and grid, slices of a row or column.
///
/// For the gradients "misaligned", "smem", "short" and, for other dims, "split" can be forced in the same way; any other
/// variant excludes these four.
///
/// Raises:
///     ValueError: any other name.
///
/// Lives in src/python/developer.rs; takes effect in src/cuda/plan/softmax/choose/mod.rs and
/// src/cuda/plan/softmax_backward/; the variants are described in kernels/softmax*.cu.
#[pyfunction]
#[pyo3(signature = (variant, parameter = 1), text_signature = "(variant, parameter=1)")]
pub fn force_softmax(variant: Option<&str>, parameter: u32) -> PyResult<()> {
    let parameter = u64::from(parameter);
    let forced = match variant {
        None => None,
        Some("warp") => Some(softmax::Forced::Warp(parameter)),
        Some("block") => Some(softmax::Forced::Block),
        Some("misaligned") => Some(softmax::Forced::Misaligned(parameter)),
        Some("pipeline") => Some(softmax::Forced::Pipeline(parameter)),
        Some("online") => Some(softmax::Forced::Online),
        Some("short") => Some(softmax::Forced::Short),
        Some("cluster") => Some(softmax::Forced::Cluster(parameter)),
        Some("smem") => Some(softmax::Forced::Smem(parameter)),
        Some("split") => Some(softmax::Forced::Split(parameter)),
        Some("grid") => Some(softmax::Forced::Grid(parameter)),
        Some("column") => Some(softmax::Forced::Column),
        Some(other) => {
            let message = format!(
                "variant={other:?} is not known; accepted: \"warp\", \"block\", \"short\", \"misaligned\", \
                 \"pipeline\", \"online\", \"cluster\", \"smem\", \"split\", \"grid\", \"column\", None"
            );
            return Err(PyValueError::new_err(message));
        }
    };
    forced::set_softmax(forced);
    Ok(())
}

/// Makes matmul on GPUs use one kind of kernel, for the whole process, where that can do the problem.
///
/// Args:
///     kernel: "blocks" (kernels/matmul_mma.cu and its siblings), "wgmma" (kernels/matmul_wgmma.cu: float16 and
///         bfloat16 on compute capability 9.0), "skinny" (kernels/matmul_skinny.cu and matmul_skinny_simt.cu: up to
///         64 rows or columns), "copied" (kernels/matmul_mma.cu on copies of what it could only read element by
///         element), or None to leave the choice to the plan again.
///     tile: for "blocks" (of halves) and "wgmma": rows x columns of a block, such as "128x256"; None: the plan's.
///     splits: for "wgmma" and "skinny": parts that k is summed in; None: the plan's.
///     cluster: for "wgmma": whether blocks load in pairs; for "wgmma" and "skinny": False to have the parts meet in memory
///         where they could in a cluster.
///     group_m: for "wgmma": rows of tiles that blocks visit together; None: the plan's.
///
/// Raises:
///     ValueError: any other kernel or tile.
///
/// Lives in src/python/developer.rs; takes effect in src/cuda/plan/matmul/mod.rs.
#[pyfunction]
#[pyo3(
    text_signature = "(kernel, *, tile=None, splits=None, cluster=None, group_m=None)",
    signature = (kernel, *, tile = None, splits = None, cluster = None, group_m = None)
)]
pub fn force_matmul_kernel(
    kernel: Option<&str>,
    tile: Option<&str>,
    splits: Option<u32>,
    cluster: Option<bool>,
    group_m: Option<u32>,
) -> PyResult<()> {
    let forced = match kernel {
        None => None,
        Some("blocks") => {
            let index = tile.map(|tile| tile_index(tile, &TILE_NAMES)).transpose()?;
            Some(matmul::Forced::Blocks(blocks::Overrides { tile: index.map(|index| TILE_NAMES[index]) }))
        }
        Some("wgmma") => Some(matmul::Forced::Wgmma(Overrides {
            tile: tile.map(|tile| tile_index(tile, &wgmma_tiles())).transpose()?,
            splits,
            cluster,
            group_m,
        })),
        Some("skinny") => Some(matmul::Forced::Skinny(skinny::Overrides { parts: splits, cluster })),
        Some("copied") => Some(matmul::Forced::Copied),
        Some(other) => {
            let message = format!(
                "kernel={other:?} is not known; accepted: \"blocks\", \"wgmma\", \"skinny\", \"copied\", None"
            );
            return Err(PyValueError::new_err(message));
        }
    };
    forced::set_matmul(forced);
    Ok(())
}

fn wgmma_tiles() -> [&'static str; TILES.len()] {
    TILES.map(|tile| tile.name)
}

fn tile_index(name: &str, known: &[&str]) -> PyResult<usize> {
    known.iter().position(|tile| *tile == name).ok_or_else(|| {
        let accepted = known.iter().map(|tile| format!("{tile:?}")).collect::<Vec<_>>().join(", ");
        PyValueError::new_err(format!("tile={name:?} is not known; accepted: {accepted}, None"))
    })
}

/// The constants of the model by which the plan chooses among tiles and splits of kernels/matmul_wgmma.cu, by name.
///
/// Lives in src/python/developer.rs, of src/cuda/plan/matmul/wgmma/fit.rs; benchmarks/fit_matmul.py fits them.
#[pyfunction]
pub fn wgmma_model() -> BTreeMap<&'static str, f64> {
    fit::constants().into_iter().collect()
}

type ClockedPlan = (u64, u64, u64, String, u64, u64, (bool, bool, bool));

/// What the model expects plans of kernels/matmul_wgmma.cu to take on an H200, in clocks.
///
/// Args:
///     plans: (m, n, k, tile, splits, blocks of a pair: 1 or 2, or 0: the parts are a cluster, (rows of a, of b off the
///         lines of the caches, b contiguous along n)) of each.
///     constants: to be used in place of some of `wgmma_model()`.
///
/// Raises:
///     ValueError: a tile or constant that is not known.
///
/// Lives in src/python/developer.rs, of src/cuda/plan/matmul/wgmma/fit.rs.
#[pyfunction]
#[pyo3(text_signature = "(plans, constants)")]
pub fn wgmma_clocks(plans: Vec<ClockedPlan>, constants: BTreeMap<String, f64>) -> PyResult<Vec<f64>> {
    let device = published("h200").ok_or_else(|| PyValueError::new_err("the H200 is not known"))?;
    let plan = |(m, n, k, tile, splits, pair, (a_off, b_off, b_by_rows)): ClockedPlan| {
        let (off_lines, tile) = ([a_off, b_off], tile_index(&tile, &wgmma_tiles())?);
        Ok(fit::Plan { m, n, k, off_lines, b_by_rows, tile, splits, pair })
    };
    let plans = plans.into_iter().map(plan).collect::<PyResult<Vec<_>>>()?;
    let constants = constants.iter().map(|(name, value)| (name.as_str(), *value));
    let unknown = |name| PyValueError::new_err(format!("constant {name:?} is not known"));
    fit::clocks(&plans, constants, &device).map_err(unknown)
}
