//! For those who measure or test kernels; not part of the public interface.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::cuda::forced;
use crate::cuda::plan::add::Schedule;
use crate::cuda::plan::softmax::Forced;

/// Makes contiguous additions on GPUs use one schedule, for the whole process.
///
/// Args:
///     schedule: "fixed_grid" (one block for each tile), "grid_stride" (as many blocks as run at once, each
///         taking every so-many-th tile), or None to leave the choice to the plan again.
///
/// Raises:
///     ValueError: any other name.
///
/// Lives in src/python/developer.rs; takes effect in src/cuda/plan/add.rs.
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

/// Makes softmax and log_softmax on GPUs use one variant of their kernels, for the whole process, wherever it can
/// do the call.
///
/// Args:
///     variant: None to leave the choice to the plan again. For dims whose elements lie side by side: "warp",
///         "block", "pipeline", "online", "cluster" or "split". For other dims: "column", "cluster" or "split".
///     figure: of warp, loads of one row in flight per lane (1, 2 or 4; with those of other rows 4); of
///         pipeline, the depth of its software pipeline, 1 to 4 rows in shared memory; of cluster, its blocks (1,
///         2, 4, 8 or 16); of split, slices of a row or column.
///
/// Raises:
///     ValueError: any other name.
///
/// Lives in src/python/developer.rs; takes effect in src/cuda/plan/softmax/choose.rs; the variants are described in
/// kernels/softmax*.cu.
#[pyfunction]
#[pyo3(signature = (variant, figure = 1), text_signature = "(variant, figure=1)")]
pub fn force_softmax(variant: Option<&str>, figure: u32) -> PyResult<()> {
    let figure = u64::from(figure);
    let forced = match variant {
        None => None,
        Some("warp") => Some(Forced::Warp(figure)),
        Some("block") => Some(Forced::Block),
        Some("pipeline") => Some(Forced::Pipeline(figure)),
        Some("online") => Some(Forced::Online),
        Some("cluster") => Some(Forced::Cluster(figure)),
        Some("split") => Some(Forced::Split(figure)),
        Some("column") => Some(Forced::Column),
        Some(other) => {
            let message = format!(
                "variant={other:?} is not known; accepted: \"warp\", \"block\", \"pipeline\", \"online\", \
                 \"cluster\", \"split\", \"column\", None"
            );
            return Err(PyValueError::new_err(message));
        }
    };
    forced::set_softmax(forced);
    Ok(())
}
