//! Where torch's memory is among several GPUs, and its shortest way to memory for results.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyTuple};

use crate::cuda::driver;
use crate::interop::builtin::{Builtin, Method, truth};
use crate::interop::dispatcher;
use crate::tensor::Device;

/// What torch's own compiler allocates with, from shape, strides and dtype: half the time of torch.empty_like.
#[derive(Debug)]
pub struct Allocators {
    cpu: Builtin,
    /// On torch's current device.
    cuda: Builtin,
}

impl Allocators {
    /// None where they are missing, or no longer what they were.
    pub fn of(torch: &Bound<'_, PyAny>) -> PyResult<Option<Allocators>> {
        let py = torch.py();
        let Some(guards) = torch.getattr("_C")?.getattr_opt("_dynamo")? else { return Ok(None) };
        let Some(guards) = guards.getattr_opt("guards")? else { return Ok(None) };
        let allocator =
            |name: &str| -> PyResult<Option<Builtin>> { Ok(guards.getattr_opt(name)?.map(Builtin::of)) };
        let found = (allocator("_empty_strided_cpu")?, allocator("_empty_strided_cuda")?);
        let (Some(cpu), Some(cuda)) = found else { return Ok(None) };
        let dtype = torch.getattr("int16")?;
        let columns = (PyTuple::new(py, [2, 3])?, PyTuple::new(py, [1, 2])?, &dtype).into_pyobject(py)?;
        let as_asked = || -> PyResult<bool> {
            let made = cpu.call(&columns)?;
            Ok(made.getattr("shape")?.eq((2, 3))?
                && made.call_method0("stride")?.eq((1, 2))?
                && made.getattr("dtype")?.is(&dtype))
        };
        Ok(as_asked().unwrap_or(false).then_some(Allocators { cpu, cuda }))
    }

    pub fn allocate<'py>(&self, device: Device, asked: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        match device {
            Device::Cpu => self.cpu.call(asked),
            Device::Cuda(_) => self.cuda.call(asked),
        }
    }
}

/// Whether torch has begun to use GPUs: before, no tensor is on one.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// The GPUs that torch sees, and which of them is current on this thread.
#[derive(Debug)]
pub struct Gpus {
    /// torch.cuda.current_device, below it; torch without CUDA has none.
    current: Option<Builtin>,
    is_alone: OnceLock<bool>,
    /// Of a tensor: the number of its GPU, or below 0.
    get_device: Method,
    is_lazily_cloned: Option<Builtin>,
}

impl Gpus {
    pub fn of(torch: &Bound<'_, PyAny>) -> PyResult<Gpus> {
        let below = torch.getattr("_C")?;
        let builtin = |name: &str| -> PyResult<_> { Ok(below.getattr_opt(name)?.map(Builtin::of)) };
        Gpus::when_begun(torch)?;
        Ok(Gpus {
            current: builtin("_cuda_getDevice")?,
            is_alone: OnceLock::new(),
            get_device: Method::of(&dispatcher::probe(torch)?, "get_device")?,
            is_lazily_cloned: builtin("_is_cow_tensor")?,
        })
    }

    /// Asking each tensor instead would cost calls on the CPU a tenth of their time.
    fn when_begun(torch: &Bound<'_, PyAny>) -> PyResult<()> {
        let begun =
            PyCFunction::new_closure(torch.py(), None, None, |_, _| BEGUN.store(true, Ordering::Relaxed))?;
        let told = torch.getattr_opt("cuda")?.map(|cuda| cuda.call_method1("_lazy_call", (begun,)));
        if told.is_none_or(|told| told.is_err()) {
            BEGUN.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Counting initialises the driver: only for a process with a tensor on a GPU.
    fn is_alone(&self) -> bool {
        *self.is_alone.get_or_init(|| driver::device_count("allocate").is_ok_and(|count| count == 1))
    }

    /// The driver's current device need not be torch's, which changes back to one without a context only when something
    /// is to be done there.
    pub fn is_current(&self, py: Python<'_>, ordinal: i32) -> bool {
        // Of programs that do not begin by Python.
        BEGUN.store(true, Ordering::Relaxed);
        if self.is_alone() {
            return true;
        }
        let current = self.current.as_ref().and_then(|current| current.call0(py).ok());
        current.and_then(|current| current.extract::<i32>().ok()) == Some(ordinal)
    }

    /// The number of a tensor's GPU where there are several, below 0 for what is on none.
    pub fn place(&self, tensor: &Bound<'_, PyAny>) -> Option<i32> {
        if !BEGUN.load(Ordering::Relaxed) || self.is_alone() {
            return None;
        }
        // What has no device, or no memory, is told when it is described.
        Some(self.get_device.call(tensor).and_then(|found| found.extract::<i32>()).unwrap_or(-1))
    }

    /// Whether that is another GPU than the current one.
    pub fn is_elsewhere(&self, py: Python<'_>, place: Option<i32>) -> bool {
        place.is_some_and(|ordinal| ordinal >= 0 && !self.is_current(py, ordinal))
    }

    /// Gives a tensor that is elsewhere memory of its own, if it is lazily cloned (torch._lazy_clone). Asked where its
    /// memory is, torch would copy it to the current GPU.
    pub fn settle(&self, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = tensor.py();
        let Some(is_lazily_cloned) = &self.is_lazily_cloned else { return Ok(()) };
        let lazily_cloned = is_lazily_cloned.call1(tensor);
        if !lazily_cloned.and_then(|answer| truth(&answer)).unwrap_or(false) {
            return Ok(());
        }
        let gpu = (tensor.getattr(intern!(py, "device"))?,);
        let there = py.import(intern!(py, "torch.cuda"))?.call_method1(intern!(py, "device"), gpu)?;
        there.call_method0(intern!(py, "__enter__"))?;
        let settled = tensor.call_method0(intern!(py, "data_ptr"));
        there.call_method1(intern!(py, "__exit__"), (py.None(), py.None(), py.None()))?;
        settled.map(|_| ())
    }
}
