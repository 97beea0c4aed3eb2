//! Decides, once per Python type, where the tensors of that type come from.

use std::ops::Deref;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

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

/// What is known of a type, shared by all that uses it.
#[derive(Clone, Debug)]
pub enum Known {
    Lasting(&'static Source),
    Counted(Arc<Source>),
}

impl Deref for Known {
    type Target = Source;

    fn deref(&self) -> &Source {
        match self {
            Known::Lasting(source) => source,
            Known::Counted(source) => source,
        }
    }
}

/// The first types that a program calls with are its usual ones: found without a lock, and kept for good. Every type
/// is held, so that its address stays its own.
static FIRST: [OnceLock<(Py<PyType>, Source)>; 4] = [const { OnceLock::new() }; 4];

/// The other types seen so far, searched front to back.
static OTHERS: RwLock<Vec<(Py<PyType>, Arc<Source>)>> = RwLock::new(Vec::new());

/// Enough for any real program; a test suite that makes types in a loop starts over instead of growing.
const MOST_OTHERS: usize = 64;

impl Source {
    /// Of a type that was seen before, and early.
    pub fn known(object: &Bound<'_, PyAny>) -> Option<&'static Source> {
        let address: *mut pyo3::ffi::PyObject = object.get_type_ptr().cast();
        let mut first = FIRST.iter().map_while(OnceLock::get);
        first.find(|(class, _)| class.as_ptr() == address).map(|(_, source)| source)
    }

    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<Known> {
        if let Some(source) = Source::known(object) {
            return Ok(Known::Lasting(source));
        }
        let address: *mut pyo3::ffi::PyObject = object.get_type_ptr().cast();
        {
            let others = OTHERS.read().unwrap_or_else(PoisonError::into_inner);
            if let Some((_, source)) = others.iter().find(|(class, _)| class.as_ptr() == address) {
                return Ok(Known::Counted(Arc::clone(source)));
            }
        }
        Source::remember(object.get_type())
    }

    fn remember(class: Bound<'_, PyType>) -> PyResult<Known> {
        let source = Source::classify(&class)?;
        // Being no tensor is not remembered: a type may get its protocol, or its library its module
        // entry, later, and nobody waits for an error.
        if matches!(source, Source::None) {
            return Ok(Known::Lasting(&Source::None));
        }
        let mut entry = (class.unbind(), source);
        for slot in &FIRST {
            match slot.set(entry) {
                Ok(()) => {
                    return Ok(slot.get().map_or(Known::Lasting(&Source::None), |(_, s)| Known::Lasting(s)));
                }
                Err(refused) => entry = refused,
            }
        }
        let (class, source) = (entry.0, Arc::new(entry.1));
        let mut others = OTHERS.write().unwrap_or_else(PoisonError::into_inner);
        let forgotten = if others.len() < MOST_OTHERS { Vec::new() } else { std::mem::take(&mut *others) };
        others.push((class, Arc::clone(&source)));
        drop(others);
        // Outside the lock: the last reference to a type runs Python code.
        drop(forgotten);
        Ok(Known::Counted(source))
    }

    fn classify(class: &Bound<'_, PyType>) -> PyResult<Source> {
        // First: another thread may be importing torch, of which these have nothing to ask.
        if let Some(numpy) = numpy::classify(class)? {
            return Ok(numpy);
        }
        if let Some(torch) = TorchClass::of(class)? {
            return Ok(Source::Torch(torch));
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
