//! Calls that need more of torch than its tensors' memory go to tilewise.torch, which is imported for the first
//! of them; from below torch's dispatcher they come back by `on_memory`.
//!
//! It is imported whole and under one lock, the package's own: a thread that imports one of its modules can get another
//! thread's half made ones.

use pyo3::exceptions::{PyAssertionError, PyException};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};

use super::exceptions::{is_ours, raise};
use crate::error::{Error, Handler, Result};
use crate::interop;

/// What a call returns: its result, or what torch makes of the very same call.
pub fn finish<'py, const P: usize, const K: usize>(
    py: Python<'py>,
    result: Result<Bound<'py, PyAny>>,
    positional: [&Bound<'py, PyAny>; P],
    keywords: [(&str, Option<Borrowed<'_, 'py, PyAny>>); K],
) -> PyResult<Bound<'py, PyAny>> {
    finish_checked(py, result, positional, keywords, || Ok(()))
}

/// As `finish`, of arguments that torch's dispatcher may be the first to see. `check`: whether they are in order, as far as
/// their memory tells.
pub fn finish_checked<'py, const P: usize, const K: usize>(
    py: Python<'py>,
    result: Result<Bound<'py, PyAny>>,
    positional: [&Bound<'py, PyAny>; P],
    keywords: [(&str, Option<Borrowed<'_, 'py, PyAny>>); K],
    check: impl FnOnce() -> Result<()>,
) -> PyResult<Bound<'py, PyAny>> {
    let Err(Error::NeedsTorch { op, by, .. }) = result else {
        return result.map_err(|error| raise(py, error));
    };
    let options = PyDict::new(py);
    for (name, given) in keywords {
        if let Some(value) = given {
            options.set_item(name, value)?;
        }
    }
    let made = module(py, by)?.getattr(op)?.call(PyTuple::new(py, positional)?, Some(&options));
    made.map_err(|raised| match by {
        Handler::Dispatcher => in_our_words(py, raised, check),
        _ => raised,
    })
}

/// torch's own words for arguments that an operator does not take are of schemas and backends.
fn in_our_words(py: Python<'_>, raised: PyErr, check: impl FnOnce() -> Result<()>) -> PyErr {
    // A real tensor beside a fake one is asserted to be none, and looking at the memory of either makes torch warn.
    let is_asserted = raised.is_instance_of::<PyAssertionError>(py);
    if is_ours(py, &raised) || is_asserted || !raised.is_instance_of::<PyException>(py) {
        return raised;
    }
    match check() {
        Err(error) if error.family().is_some() && !error.is_of_memory() => raise(py, error),
        _ => raised,
    }
}

fn module(py: Python<'_>, by: Handler) -> PyResult<&Bound<'_, PyAny>> {
    static OPERATORS: Entry<1> = Entry::new(["operators"]);
    static RECORDED: Entry<1> = Entry::new(["recorded"]);
    static AUTOCAST: Entry<1> = Entry::new(["autocast"]);
    match by {
        Handler::Dispatcher => &OPERATORS,
        Handler::Autograd => &RECORDED,
        Handler::Autocast => &AUTOCAST,
    }
    .get(py)
}

/// Something in tilewise.torch: the attributes that lead to it, looked up once.
pub struct Entry<const N: usize> {
    path: [&'static str; N],
    found: PyOnceLock<Py<PyAny>>,
}

impl<const N: usize> Entry<N> {
    pub const fn new(path: [&'static str; N]) -> Entry<N> {
        Entry { path, found: PyOnceLock::new() }
    }

    pub fn get<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyAny>> {
        if let Some(found) = self.found.get(py) {
            return Ok(found.bind(py));
        }
        // Outside of the cell, which other threads would wait for while they hold what this import waits for.
        let package = py.import("tilewise.torch")?.into_any();
        let found = self.path.iter().try_fold(package, |object, name| object.getattr(*name))?.unbind();
        Ok(self.found.get_or_init(py, || found).bind(py))
    }
}

/// Calls one of tilewise's functions on the memory of torch tensors: without gradients,
/// modes, subclasses or autocast, which torch's dispatcher has already handled.
///
/// Args:
///     function: add, softmax, log_softmax or matmul.
///     *args, **kwargs: its arguments.
///
/// Returns:
///     What `function` returns.
///
/// Source: src/python/routing.rs; takes effect in src/interop/dispatcher.rs.
#[pyfunction]
#[pyo3(signature = (function, *args, **kwargs), text_signature = "(function, *args, **kwargs)")]
pub fn on_memory<'py>(
    function: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    interop::on_memory(|| function.call(args, kwargs))
}
