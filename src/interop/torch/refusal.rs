//! Why torch would not describe a tensor, in our words.

use pyo3::exceptions::{PyException, PyMemoryError};
use pyo3::prelude::*;
use pyo3::types::PyBool;

use crate::error::Error;
use crate::interop::Argument;

pub fn is_true(object: &Bound<'_, PyAny>) -> bool {
    object.is(PyBool::new(object.py(), true))
}

/// Why torch would not describe a tensor, in our words: its own text ends in a C++ stack trace.
pub fn explain(argument: Argument, object: &Bound<'_, PyAny>, raised: PyErr) -> Error {
    let py = object.py();
    let Argument { op, name, .. } = argument;
    if !raised.is_instance_of::<PyException>(py) || raised.is_instance_of::<PyMemoryError>(py) {
        return Error::Python(raised);
    }
    let truth = |attribute: &str| object.getattr(attribute).is_ok_and(|v| is_true(&v));
    let layout =
        object.getattr("layout").and_then(|l| l.str()).map_or_else(|_| String::new(), |s| s.to_string());
    let storage = |got: String, remedy| stored(argument, got, remedy);
    if truth("is_nested") {
        return nested(argument);
    }
    if layout != "torch.strided" && layout.starts_with("torch.") {
        return storage(format!("in layout {layout}"), "pass its .to_dense()");
    }
    if truth("is_quantized") {
        return storage("quantised".into(), "pass its .dequantize()");
    }
    // Inside of torch.func, or of gradients of many seeds at once, a tensor stands for others.
    let has_storage = || {
        py.import("torch._C")
            .and_then(|m| m.call_method1("_has_storage", (object,)))
            .map_or(true, |v| is_true(&v))
    };
    if truth("is_meta") || !has_storage() {
        return Error::NoMemory { op, argument: name };
    }
    let reason = first_line(&raised.value(py).to_string());
    Error::Producer { op, argument: name, reason }
}

pub fn nested(argument: Argument) -> Error {
    let remedy = "pass its parts, or torch.nested.to_padded_tensor of it";
    stored(argument, "as a nested tensor".into(), remedy)
}

pub fn masked(argument: Argument) -> Error {
    stored(argument, "as a masked tensor".into(), "pass its .to_tensor(...), with a value for what is masked")
}

/// `remedy`: for an input; nothing that is made of an `out` is what the caller will look at.
fn stored(Argument { op, name, .. }: Argument, got: String, remedy: &'static str) -> Error {
    let remedy = if name == "out" { "pass a fresh tensor" } else { remedy };
    Error::Storage { op, argument: name, got, remedy }
}

/// The sentence of an exception, without the trace that C++ appends to it.
pub fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or("no reason given").trim().trim_end_matches('.');
    line.to_string()
}
