//! When a call on torch tensors is torch's dispatcher's to make, and what autograd is told after a tensor has
//! been overwritten.
//!
//! Every question is one function of torch's in C, looked up once.

use std::cell::Cell;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyBool, PyDict, PyTuple};

use super::builtin::{Attribute, Builtin, Method, truth};
use super::stable;
use crate::error::Handler;
use crate::tensor::Device;

/// The functions of torch for it.
#[derive(Debug)]
pub struct Dispatcher {
    has_torch_function: Builtin,
    /// How many modes of the dispatcher are active, and whether torch.jit.trace records.
    takers: [Builtin; 2],
    requires_grad: Attribute,
    is_any_autocast: Option<Builtin>,
    is_key_excluded: Builtin,
    /// The keys that autocast excludes while it is off, on CPUs and on GPUs: arguments of `is_key_excluded`,
    /// which takes a third of the time of torch.is_autocast_enabled.
    autocast_keys: [Py<PyAny>; 2],
    is_grad_enabled: Builtin,
    is_inference_mode_enabled: Builtin,
    are_transforms_active: Builtin,
    is_inference: Method,
    /// What the module torch.autograd.forward_ad holds.
    forward_ad: Py<PyDict>,
    /// Its -1: an object that there is only one of, where the interpreter keeps small numbers.
    no_level: Py<PyAny>,
    increment_version: IncrementVersion,
}

/// torch.autograd.graph.increment_version, or below it the function in C at a third of the cost, which
/// takes a tuple (since torch 2.5).
#[derive(Debug)]
enum IncrementVersion {
    Public(Py<PyAny>),
    Direct(Builtin),
}

/// The devices on which an operation is on one of torch's lists for autocast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Autocast {
    Nowhere,
    Gpus,
    Everywhere,
}

impl Autocast {
    fn is_on(self, device: Device) -> bool {
        self == Autocast::Everywhere || (self == Autocast::Gpus && device != Device::Cpu)
    }
}

/// What a class replaces of what tensors do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overrides {
    /// `__torch_function__`, which may be switched off for a while.
    pub function: bool,
    /// `__torch_dispatch__`: its tensors need not have memory of their own.
    pub dispatch: bool,
}

impl Dispatcher {
    pub fn of(torch: &Bound<'_, PyAny>) -> PyResult<Dispatcher> {
        let py = torch.py();
        let (autograd, native) = (torch.getattr("autograd")?, torch.getattr("_C")?);
        let probe = probe(torch)?;
        let increment_version = match native.getattr_opt("_increment_version")? {
            Some(direct) if direct.call1(((&probe,),)).is_ok() => {
                IncrementVersion::Direct(Builtin::of(direct))
            }
            _ => IncrementVersion::Public(autograd.getattr("graph")?.getattr("increment_version")?.unbind()),
        };
        let keys = native.getattr("DispatchKey")?;
        let key = |name: &str| keys.getattr(name).map(Bound::unbind);
        Ok(Dispatcher {
            has_torch_function: Builtin::of(native.getattr("_has_torch_function_unary")?),
            takers: [
                Builtin::of(native.getattr("_len_torch_dispatch_stack")?),
                Builtin::of(native.getattr("_is_tracing")?),
            ],
            requires_grad: Attribute::of(&torch.getattr("Tensor")?, "requires_grad")?,
            is_any_autocast: native.getattr_opt("_is_any_autocast_enabled")?.map(Builtin::of),
            is_key_excluded: Builtin::of(native.getattr("_dispatch_tls_is_dispatch_key_excluded")?),
            autocast_keys: [key("AutocastCPU")?, key("AutocastCUDA")?],
            is_grad_enabled: Builtin::of(torch.getattr("is_grad_enabled")?),
            is_inference_mode_enabled: Builtin::of(torch.getattr("is_inference_mode_enabled")?),
            are_transforms_active: Builtin::of(native.getattr("_are_functorch_transforms_active")?),
            is_inference: Method::of(&probe, "is_inference")?,
            forward_ad: autograd
                .getattr("forward_ad")?
                .cast::<PyModule>()
                .map_err(PyErr::from)?
                .dict()
                .unbind(),
            no_level: (-1i64).into_pyobject(py)?.into_any().unbind(),
            increment_version,
        })
    }

    /// Whether `__torch_function__` of the tensor's class has a say.
    fn has_torch_function(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        truth(&self.has_torch_function.call1(object)?)
    }

    /// Whether all calls on this thread are torch's to dispatch: under a mode, while they are recorded, or in a
    /// dual_level, where a tensor's memory does not show its tangent. `object`: one of the call's.
    pub fn takes_all(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        let py = object.py();
        // Sees to modes for functions too, in a third of the time that counting them takes.
        if self.has_torch_function(object)? {
            return Ok(true);
        }
        if stable::is_disturbed() != Some(false) {
            for taker in &self.takers {
                if taker.asks(py)? {
                    return Ok(true);
                }
            }
        }
        // torch's own guard: -1 outside of every dual_level.
        let level = self.forward_ad.bind(py).get_item(intern!(py, "_current_level"))?;
        Ok(level.is_some_and(|l| !l.is(&self.no_level) && l.extract::<i64>().unwrap_or(-1) >= 0))
    }

    /// Who must make a call that reads or writes `object`, as far as that is its own matter.
    pub fn handler(&self, overrides: Overrides, object: &Bound<'_, PyAny>) -> PyResult<Option<Handler>> {
        let py = object.py();
        if overrides.dispatch || (overrides.function && self.has_torch_function(object)?) {
            return Ok(Some(Handler::Dispatcher));
        }
        // In inference mode torch records nothing, whatever the grad mode.
        let requires_grad = match stable::reader() {
            Some(reader) => reader.requires_grad(object),
            None => self.requires_grad.read(object)?.is(PyBool::new(py, true)),
        };
        let differentiated =
            requires_grad && self.is_grad_enabled.asks(py)? && !self.is_inference_mode_enabled.asks(py)?;
        Ok(differentiated.then_some(Handler::Autograd))
    }

    /// Inside torch.func, whatever its tensors look like.
    pub fn is_transformed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(stable::is_disturbed() != Some(false) && self.are_transforms_active.asks(py)?)
    }

    /// Whether torch has other dtypes in mind for an operation on these lists.
    pub fn is_autocast(&self, py: Python<'_>, lists: Autocast, device: Device) -> PyResult<bool> {
        if !lists.is_on(device) {
            return Ok(false);
        }
        if let Some(is_on) = stable::is_autocast(device) {
            return Ok(is_on);
        }
        if let Some(any) = &self.is_any_autocast
            && !any.asks(py)?
        {
            return Ok(false);
        }
        let key = &self.autocast_keys[usize::from(device != Device::Cpu)];
        Ok(!truth(&self.is_key_excluded.call1(key.bind(py))?)?)
    }

    /// Whether a tensor may be written: one made in inference mode has no version to count outside of it.
    pub fn is_writable(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        if stable::reader().is_some_and(|reader| reader.is_tracked(tensor)) {
            return Ok(true);
        }
        Ok(!truth(&self.is_inference.call(tensor)?)? || self.is_inference_mode_enabled.asks(tensor.py())?)
    }

    /// Counts one more version of a tensor: by comparing versions, autograd notices that what it saved for
    /// a backward pass has been overwritten.
    pub fn overwritten(&self, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = tensor.py();
        match &self.increment_version {
            IncrementVersion::Public(function) => function.bind(py).call1((tensor,)),
            IncrementVersion::Direct(function) => function.call1(PyTuple::new(py, [tensor])?.as_any()),
        }
        .map(|_| ())
    }
}

/// Some tensor.
pub fn probe<'py>(torch: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let on_cpu = [("device", "cpu")].into_py_dict(torch.py())?;
    torch.call_method("empty", (0,), Some(&on_cpu))
}

thread_local! {
    static ON_MEMORY: Cell<bool> = const { Cell::new(false) };
}

/// Whether the call that begins now comes from below torch's dispatcher. Calls within it do not.
pub fn begins_on_memory() -> bool {
    ON_MEMORY.replace(false)
}

pub fn is_on_memory() -> bool {
    ON_MEMORY.get()
}

/// Makes the one call of ours in `work` take its tensors for what is in their memory. Below the dispatcher they
/// still require grad, and grad mode is still on: asked again, it would be handed the call again.
pub fn on_memory<T>(work: impl FnOnce() -> T) -> T {
    ON_MEMORY.set(true);
    let result = work();
    ON_MEMORY.set(false);
    result
}
