//! Registration of the operators that torch calls without Python.

use std::ffi::CStr;

use pyo3::prelude::*;

use super::exceptions::raise;
use crate::interop::stable;
use crate::native::KERNELS;

/// Registers kernels of torch.ops.tilewise with torch's dispatcher that need no Python, for CPUs and GPUs.
///
/// Args:
///     recorder: returns, for the name of an operator (with its overload), the function for calls that need Python: those
///         recorded for gradients, under a mode or a transform, or with a subclass. The function takes the arguments of
///         the schema, by position.
///
/// Returns:
///     The names of the operators that have such kernels; an empty list where torch lacks the functions that they need.
///
/// Sources: src/python/native.rs, called by tilewise.torch; kernels in src/native/, through src/interop/stable/.
#[pyfunction]
#[pyo3(signature = (recorder), text_signature = "(recorder)")]
pub fn implement_operators(py: Python<'_>, recorder: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let name = |of: &CStr| of.to_string_lossy().into_owned();
    let done = stable::implement(py, &KERNELS, raise, |of| Ok(recorder.call1((name(of),))?.unbind()))?;
    Ok(KERNELS.iter().filter(|_| done).map(|of| name(of.name)).collect())
}
