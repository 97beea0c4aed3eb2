//! Registration of the operators that torch calls without Python.

use std::ffi::CStr;

use pyo3::prelude::*;

use super::exceptions::raise;
use crate::interop::stable;
use crate::native::KERNELS;

/// Registers kernels of torch.ops.tilewise with torch's dispatcher that need no Python, for CPUs and GPUs.
///
/// Args:
///     recorder: returns for the name of an operator, overload included, the function that makes its calls which are more
///         than memory: recorded for gradients, or under a mode, a transform or with a subclass. Its arguments are the
///         schema's, by position.
///
/// Returns:
///     The names of the operators that have such kernels; none where torch lacks what they take.
///
/// Lives in src/python/native.rs; asked by tilewise.torch. Kernels: src/native/, by src/interop/stable/.
#[pyfunction]
#[pyo3(signature = (recorder), text_signature = "(recorder)")]
pub fn implement_operators(py: Python<'_>, recorder: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    let name = |of: &CStr| of.to_string_lossy().into_owned();
    let done = stable::implement(py, &KERNELS, raise, |of| Ok(recorder.call1((name(of),))?.unbind()))?;
    Ok(KERNELS.iter().filter(|_| done).map(|of| name(of.name)).collect())
}
