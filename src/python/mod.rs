//! The Python face: arguments in, result out, exceptions.

mod activation_backward;
mod add;
mod arguments;
mod developer;
mod exceptions;
mod explain;
mod grouped_matmul;
mod info;
mod listed_matmul;
mod matmul;
mod matmul_training;
mod native;
mod recording;
mod routing;
mod run;
mod softmax;
mod softmax_backward;

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// The compiled part of tilewise; import tilewise instead.
///
/// Written for the GIL: where Python runs without one, the import switches it on again.
#[pymodule(gil_used = true)]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    refuse_subinterpreters()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    exceptions::register(module)?;
    for function in [
        wrap_pyfunction!(add::add, module)?,
        wrap_pyfunction!(softmax::softmax, module)?,
        wrap_pyfunction!(softmax::log_softmax, module)?,
        wrap_pyfunction!(matmul::matmul, module)?,
        wrap_pyfunction!(matmul::check_matmul_options, module)?,
        wrap_pyfunction!(matmul_training::matmul_for_training, module)?,
        wrap_pyfunction!(grouped_matmul::grouped_matmul, module)?,
        wrap_pyfunction!(softmax_backward::softmax_backward, module)?,
        wrap_pyfunction!(softmax_backward::log_softmax_backward, module)?,
        wrap_pyfunction!(activation_backward::activation_backward, module)?,
        wrap_pyfunction!(explain::explain_call, module)?,
        wrap_pyfunction!(info::devices, module)?,
        wrap_pyfunction!(info::build_info, module)?,
        wrap_pyfunction!(recording::recorded, module)?,
        wrap_pyfunction!(routing::on_memory, module)?,
        wrap_pyfunction!(native::implement_operators, module)?,
        wrap_pyfunction!(developer::choices_made, module)?,
        wrap_pyfunction!(developer::variants, module)?,
        wrap_pyfunction!(developer::force_add_schedule, module)?,
        wrap_pyfunction!(developer::force_softmax, module)?,
        wrap_pyfunction!(developer::force_matmul_kernel, module)?,
        wrap_pyfunction!(developer::wgmma_clocks, module)?,
        wrap_pyfunction!(developer::wgmma_model, module)?,
        wrap_pyfunction!(developer::withhold_torch_threads, module)?,
    ] {
        module.add_function(function)?;
    }
    Ok(())
}

/// What is known of types and of torch is kept for the process, and objects of one interpreter are none of another's.
fn refuse_subinterpreters() -> PyResult<()> {
    // SAFETY: the module is being imported, so that this thread holds the GIL of a live interpreter.
    match unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) } {
        0 => Ok(()),
        _ => {
            Err(PyImportError::new_err("tilewise works in the main interpreter only, as torch and NumPy do"))
        }
    }
}
