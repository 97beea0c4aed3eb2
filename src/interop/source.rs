//! Decides, once per Python type, where the tensors of that type come from.

use std::sync::{Arc, PoisonError, RwLock};

use pyo3::prelude::*;
use pyo3::types::PyType;
use pyo3::{Py, intern};

use super::numpy;
use super::producer::Producer;
use super::torch::{Torch, TorchClass};

/// How the instances of one Python type are taken.
#[derive(Debug)]
pub enum Source {
    Torch(TorchClass),
    Numpy(numpy::ArrayClass),
    /// `numpy.float32(3)` and the like.
    NumpyScalar,
    /// No tensor of torch's, but with a `__torch_function__`.
    Overrides,
    /// Anything else with `__dlpack__`.
    Producer(Producer),
    /// Not a tensor.
    None,
}

/// Types seen so far, each held so that its address stays its own. Small and searched front to back:
/// programs call with the same few types.
static KNOWN: RwLock<Vec<(Py<PyType>, Arc<Source>)>> = RwLock::new(Vec::new());

/// Enough for any real program; a test suite that makes types in a loop starts over instead of growing.
const MOST_KNOWN: usize = 64;

impl Source {
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Arc<Source>> {
        let address = object.get_type_ptr();
        {
            let known = KNOWN.read().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, source)) = known.iter().find(|(class, _)| class.as_ptr() == address.cast()) {
                return Ok(Arc::clone(source));
            }
        }
        let class = object.get_type();
        let source = Arc::new(Source::classify(&class)?);
        // Being no tensor is not remembered: a type may get its protocol, or its library its module
        // entry, later, and nobody waits for an error.
        if !matches!(*source, Source::None) {
            let mut known = KNOWN.write().unwrap_or_else(PoisonError::into_inner);
            let forgotten = if known.len() < MOST_KNOWN { Vec::new() } else { std::mem::take(&mut *known) };
            known.push((class.unbind(), Arc::clone(&source)));
            drop(known);
            // Outside the lock: the last reference to a type runs Python code.
            drop(forgotten);
        }
        Ok(source)
    }

    fn classify(class: &Bound<'_, PyType>) -> PyResult<Source> {
        if let Some(torch) = TorchClass::of(class)? {
            return Ok(Source::Torch(torch));
        }
        if let Some(numpy) = numpy::classify(class)? {
            return Ok(numpy);
        }
        if class.hasattr(intern!(class.py(), "__torch_function__"))? && Torch::get(class.py())?.is_some() {
            return Ok(Source::Overrides);
        }
        if class.hasattr(intern!(class.py(), "__dlpack__"))? {
            return Ok(Source::Producer(Producer::of(class)?));
        }
        Ok(Source::None)
    }

    /// Whether tensors of both may meet in one call.
    pub fn mixes_with(&self, other: &Source) -> bool {
        match (self, other) {
            (Source::Torch(_), Source::Torch(_)) | (Source::Numpy(_), Source::Numpy(_)) => true,
            (Source::Producer(a), Source::Producer(b)) => a.library == b.library,
            _ => false,
        }
    }
}

/// `torch.Tensor`, `numpy.ndarray`, `list`: how messages name an object's type.
pub fn type_name(object: &Bound<'_, PyAny>) -> String {
    let class = object.get_type();
    let text = |s: PyResult<Bound<'_, pyo3::types::PyString>>| s.ok().map(|s| s.to_string());
    match (text(class.module()), text(class.qualname())) {
        (Some(module), Some(name)) if module != "builtins" && module != "__main__" => {
            format!("{module}.{name}")
        }
        (_, Some(name)) => name,
        _ => "object".into(),
    }
}

/// A module that is imported already. Never imports: whoever has a tensor has imported its library.
pub fn loaded_module<'py>(py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?;
    let module = modules.call_method1(intern!(py, "get"), (name,))?;
    Ok((!module.is_none()).then_some(module))
}
