//! For those who measure or test kernels; not part of the public interface.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::cuda::forced;
use crate::cuda::plan::add::Schedule;

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
