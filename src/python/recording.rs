//! Results that are there already, shown to autograd.
//!
//! torch makes the node; what is called for it is a builtin of ours, and it is handed tensors alone: torch looks at each
//! argument several times, which takes longest for what is no tensor. All else waits here for the builtin.

use std::cell::RefCell;

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

use super::routing::Entry;
use crate::interop::builtin::Builtin;

/// What a class of tilewise.torch.autograd is to return, and to keep in its context for `backward`.
#[derive(Debug)]
pub struct Recorded<'py> {
    /// A tensor, or a tuple of some.
    pub results: Bound<'py, PyAny>,
    /// As the attribute `how`; None where that has its default.
    pub how: Option<Bound<'py, PyAny>>,
    /// By save_for_backward; some may be None.
    pub saved: Option<Bound<'py, PyTuple>>,
    /// Whether gradients that nobody asks for arrive as zeros, and not as None.
    pub materialized: bool,
}

struct Waiting {
    results: Py<PyAny>,
    how: Option<Py<PyAny>>,
    saved: Option<Py<PyTuple>>,
    materialized: bool,
}

thread_local! {
    /// The last is the innermost call's: what runs between a call and its builtin, such as a finalizer, may make others.
    static WAITING: RefCell<Vec<Waiting>> = const { RefCell::new(Vec::new()) };
}

/// One of the classes that `forward = recorded` makes record results.
pub struct Recorder {
    class: Entry<3>,
    apply: PyOnceLock<Builtin>,
}

impl Recorder {
    pub const fn new(class: &'static str) -> Recorder {
        Recorder { class: Entry::new(["autograd", class, "apply"]), apply: PyOnceLock::new() }
    }

    /// The results as autograd returns them. `tensors`: all those that gradients may be asked of.
    pub fn record<'py>(
        &self,
        py: Python<'py>,
        tensors: &Bound<'py, PyTuple>,
        recorded: Recorded<'py>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let apply = match self.apply.get(py) {
            Some(apply) => apply,
            None => {
                let found = Builtin::of(self.class.get(py)?.clone());
                self.apply.get_or_init(py, || found)
            }
        };
        let Recorded { results, how, saved, materialized } = recorded;
        let waiting = Waiting {
            results: results.unbind(),
            how: how.map(Bound::unbind),
            saved: saved.map(Bound::unbind),
            materialized,
        };
        let before = WAITING.with_borrow_mut(|all| {
            all.push(waiting);
            all.len() - 1
        });
        let result = apply.call(tensors);
        // Still there where torch failed before it came to the builtin.
        let left = WAITING.with_borrow_mut(|all| all.split_off(before.min(all.len())));
        drop(left);
        result
    }
}

/// The `forward` of the classes with which tilewise records results that are already computed.
///
/// Args:
///     ctx: the context of a torch.autograd.Function.
///     *tensors: the inputs of the operation.
///
/// Returns:
///     The result.
///
/// Source: src/python/recording.rs; called by torch for the classes of tilewise.torch.autograd.
#[pyfunction]
#[pyo3(signature = (ctx, *tensors), text_signature = "(ctx, *tensors)")]
pub fn recorded<'py>(ctx: &Bound<'py, PyAny>, tensors: &Bound<'py, PyTuple>) -> PyResult<Py<PyAny>> {
    let _ = tensors;
    let py = ctx.py();
    let Some(waiting) = WAITING.with_borrow_mut(Vec::pop) else {
        return Err(PyRuntimeError::new_err("no result waits to be recorded"));
    };
    if let Some(how) = waiting.how {
        ctx.setattr(intern!(py, "how"), how)?;
    }
    // What set_materialize_grads and save_for_backward do.
    if !waiting.materialized {
        ctx.setattr(intern!(py, "materialize_grads"), false)?;
    }
    if let Some(saved) = waiting.saved {
        ctx.setattr(intern!(py, "to_save"), saved)?;
    }
    Ok(waiting.results)
}
