//! torch tensors in: what the exchange table does not check, and reading attributes where there is no
//! table (torch before 2.10).

pub mod autocast;
mod keys;
mod memory;
mod refusal;
pub mod threads;

use autocast::AutocastState;
use dlpark::ffi::DLTensor;
use keys::Keys;
use memory::{Allocators, Gpus};
use pyo3::exceptions::PyException;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};
pub use refusal::first_line;
use refusal::{explain, is_true, masked, nested};

use super::builtin::{Attribute, Method, truth};
use super::dispatcher::{self, Dispatcher, Overrides};
use super::exchange::Table;
use super::source::loaded_module;
use super::{Argument, Role, descriptor, stable};
use crate::cuda::RawStream;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::output::OutputSpec;
use crate::tensor::{Device, Dims, TensorView};

/// The objects of the torch module that calls need, looked up once.
#[derive(Debug)]
pub struct Torch {
    tensor: Py<PyType>,
    pub dispatcher: Dispatcher,
    keys: Keys,
    autocast: AutocastState,
    data_ptr: Method,
    dtype: Attribute,
    requires_grad: Attribute,
    rank: Attribute,
    /// What stands for "no __torch_function__".
    no_torch_function: Py<PyAny>,
    get_default_dtype: Py<PyAny>,
    allocators: Option<Allocators>,
    pub gpus: Gpus,
    pub empty: Py<PyAny>,
    pub empty_strided: Py<PyAny>,
    /// In the order of `DType::ALL`.
    dtypes: [Py<PyAny>; DType::ALL.len()],
}

impl Torch {
    /// None while torch is not imported (or only half).
    pub fn get(py: Python<'_>) -> PyResult<Option<&'static Torch>> {
        static TORCH: PyOnceLock<Torch> = PyOnceLock::new();
        if let Some(torch) = TORCH.get(py) {
            return Ok(Some(torch));
        }
        let Some(module) = loaded_module(py, "torch")? else { return Ok(None) };
        if module.getattr_opt("get_default_dtype")?.is_none() || module.getattr_opt("autograd")?.is_none() {
            return Ok(None);
        }
        let look_up = || {
            let torch = Torch::of(&module)?;
            // Where a name is missing, all that is found by it is asked of torch.
            let _ = stable::find(py, &torch);
            Ok(torch)
        };
        TORCH.get_or_try_init(py, || without_modes(&module, look_up)).map(Some)
    }

    fn of(module: &Bound<'_, PyAny>) -> PyResult<Torch> {
        let attribute = |name: &str| module.getattr(name).map(Bound::unbind);
        let probe = dispatcher::probe(module)?;
        let dtypes: Vec<Py<PyAny>> =
            DType::ALL.into_iter().map(|d| attribute(d.name())).collect::<PyResult<_>>()?;
        Ok(Torch {
            tensor: module.getattr("Tensor")?.cast_into::<PyType>()?.unbind(),
            dispatcher: Dispatcher::of(module)?,
            keys: Keys::of(module, &probe)?,
            autocast: AutocastState::of(module)?,
            data_ptr: Method::of(&probe, "data_ptr")?,
            dtype: Attribute::of(&module.getattr("Tensor")?, "dtype")?,
            requires_grad: Attribute::of(&module.getattr("Tensor")?, "requires_grad")?,
            rank: Attribute::of(&module.getattr("Tensor")?, "ndim")?,
            no_torch_function: module.getattr("_C")?.getattr("_disabled_torch_function_impl")?.unbind(),
            get_default_dtype: attribute("get_default_dtype")?,
            allocators: Allocators::of(module)?,
            gpus: Gpus::of(module)?,
            empty: attribute("empty")?,
            empty_strided: attribute("empty_strided")?,
            dtypes: dtypes.try_into().map_err(|_| PyException::new_err("torch lacks a dtype"))?,
        })
    }

    /// What `allocate` is asked for.
    pub fn asked<'py>(&self, py: Python<'py>, spec: &OutputSpec) -> PyResult<Bound<'py, PyTuple>> {
        let (shape, strides) = (PyTuple::new(py, &spec.shape)?, PyTuple::new(py, &spec.strides)?);
        (shape, strides, self.dtype(py, spec.dtype)).into_pyobject(py)
    }

    /// An uninitialised tensor, where torch has a shorter way to one than through its dispatcher: on the CPU and on the
    /// current GPU. Not for calls that the dispatcher takes.
    pub fn allocate<'py>(
        &self,
        device: Device,
        asked: &Bound<'py, PyTuple>,
    ) -> Option<PyResult<Bound<'py, PyAny>>> {
        match device {
            Device::Cuda(ordinal) if !self.gpus.is_current(asked.py(), ordinal) => None,
            _ => self.allocate_here(device, asked),
        }
    }

    /// As `allocate`, for a device of which it is known that it is not another GPU than the current one.
    pub fn allocate_here<'py>(
        &self,
        device: Device,
        asked: &Bound<'py, PyTuple>,
    ) -> Option<PyResult<Bound<'py, PyAny>>> {
        Some(self.allocators.as_ref()?.allocate(device, asked))
    }

    /// Where the address of a tensor's C++ object is in its Python object, and its dispatch keys in the C++ object, in bytes.
    pub fn key_word(&self) -> Option<(usize, usize)> {
        self.keys.word()
    }

    pub fn dtype<'py>(&self, py: Python<'py>, dtype: DType) -> &Bound<'py, PyAny> {
        self.dtypes[dtype as usize].bind(py)
    }

    fn dtype_of(&self, object: &Bound<'_, PyAny>) -> Option<DType> {
        DType::ALL.into_iter().find(|&d| self.dtypes[d as usize].is(object))
    }

    /// What a Python float makes of an integer tensor.
    pub fn default_dtype(&self, py: Python<'_>) -> PyResult<DType> {
        let dtype = self.get_default_dtype.bind(py).call0()?;
        Ok(self.dtype_of(&dtype).unwrap_or(DType::F32))
    }
}

/// What recording a tensor's part in a call asks of it.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    pub requires_grad: bool,
    pub rank: i64,
}

/// `tensor` must be torch's.
pub fn facts(tensor: &Bound<'_, PyAny>) -> PyResult<Facts> {
    let Some(torch) = Torch::get(tensor.py())? else {
        return Err(PyException::new_err("torch is not imported"));
    };
    if let Some(reader) = stable::reader()
        && let Some(rank) = reader.rank(tensor)
    {
        return Ok(Facts { requires_grad: reader.requires_grad(tensor), rank });
    }
    let requires_grad = truth(&torch.requires_grad.read(tensor)?)?;
    Ok(Facts { requires_grad, rank: torch.rank.read(tensor)?.extract()? })
}

/// Runs what is no part of the caller's program, and not for its modes to see or to change.
fn without_modes<T>(module: &Bound<'_, PyAny>, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    let (py, native) = (module.py(), module.getattr("_C")?);
    let mut guards = Vec::new();
    for name in ["DisableTorchFunction", "_DisableTorchDispatch"] {
        guards.extend(native.getattr_opt(name)?.map(|guard| guard.call0()).transpose()?);
    }
    for guard in &guards {
        guard.call_method0("__enter__")?;
    }
    let result = work();
    for guard in guards.iter().rev() {
        guard.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
    }
    result
}

/// What is known of `torch.Tensor` or of a subclass.
#[derive(Debug)]
pub struct TorchClass {
    pub torch: &'static Torch,
    table: Option<Table>,
    pub overrides: Overrides,
    masked: bool,
}

impl TorchClass {
    pub fn of<'py>(class: &Bound<'py, PyType>) -> PyResult<Option<TorchClass>> {
        let py = class.py();
        let Some(torch) = Torch::get(py)? else { return Ok(None) };
        let tensor = torch.tensor.bind(py);
        if !class.is_subclass(tensor)? {
            return Ok(None);
        }
        let overrides = |name: &str| -> PyResult<bool> {
            // Class methods are bound anew at each look: compare the functions below.
            let function = |method: Bound<'py, PyAny>| -> PyResult<Bound<'py, PyAny>> {
                Ok(method.getattr_opt("__func__")?.unwrap_or(method))
            };
            Ok(!function(class.getattr(name)?)?.is(&function(tensor.getattr(name)?)?))
        };
        // As torch itself sees it: Parameter and the like have switched theirs off.
        let function = class.getattr("__torch_function__")?;
        let function = !class.is(tensor) && !function.is(torch.no_torch_function.bind(py));
        let overrides = Overrides { function, dispatch: overrides("__torch_dispatch__")? };
        let masked = overrides.dispatch && class.name()? == "MaskedTensor";
        Ok(Some(TorchClass { torch, table: Table::of_type(class)?, overrides, masked }))
    }

    /// Fills in the view of a tensor, and returns the tensor it is of: the object itself, but for negated
    /// views.
    pub fn take<'py>(
        &self,
        argument: Argument,
        role: Role,
        object: &Bound<'py, PyAny>,
        view: &mut TensorView,
    ) -> Result<Bound<'py, PyAny>> {
        let py = object.py();
        let Argument { op, name, .. } = argument;
        if role == Role::Output && !self.torch.dispatcher.is_writable(object)? {
            return Err(Error::InferenceOut { op });
        }
        self.view(argument, object, view)?;
        // What has no elements does not show that it has no memory.
        if view.is_empty() && self.torch.keys.is_functional(object)? {
            return Err(Error::NoMemory { op, argument: name });
        }
        if view.dtype.size() == 1 {
            self.dtype_of(argument, object)?;
        }
        if !self.torch.keys.is_negated(object)? {
            return Ok(object.clone());
        }
        if role == Role::Output {
            return Err(Error::Storage {
                op,
                argument: name,
                got: "negated (a view with the negative bit)".into(),
                remedy: "pass a fresh tensor",
            });
        }
        let resolved = object.call_method0(intern!(py, "resolve_neg"))?;
        *view = descriptor::blank();
        self.view(argument, &resolved, view)?;
        Ok(resolved)
    }

    /// Refuses tensors of classes of torch's own that the dispatcher knows no operation of ours for.
    pub fn check_dispatched(&self, argument: Argument, object: &Bound<'_, PyAny>) -> Result<()> {
        let is_nested =
            || object.getattr(intern!(object.py(), "is_nested")).is_ok_and(|nested| is_true(&nested));
        if self.masked {
            Err(masked(argument))
        } else if self.overrides.dispatch && is_nested() {
            Err(nested(argument))
        } else {
            Ok(())
        }
    }

    /// Fills in the view of a tensor that nothing but its memory has to be asked of.
    pub fn view(&self, argument: Argument, object: &Bound<'_, PyAny>, view: &mut TensorView) -> Result<()> {
        let gpus = &self.torch.gpus;
        if gpus.is_elsewhere(object.py(), gpus.place(object)) {
            gpus.settle(object)?;
        }
        let described = match self.table {
            Some(table) => table
                .describe(object, |raw| {
                    // SAFETY: the table filled `raw`, whose shape and strides last while `describe` runs.
                    unsafe { descriptor::read(argument, raw, view) }
                })
                .map_or_else(|raised| Err(Error::Python(raised)), |(read, _)| read),
            None => self.view_by_attributes(argument, object, view),
        };
        described.map_err(|error| match error {
            Error::Python(raised) => explain(argument, object, raised),
            ours => ours,
        })
    }

    /// Fills in how torch describes a tensor, for as long as it lives; None of one that its memory does not tell all of.
    pub fn raw(
        &self,
        argument: Argument,
        role: Role,
        object: &Bound<'_, PyAny>,
        raw: &mut DLTensor,
    ) -> Option<()> {
        if let Some(reader) = stable::reader()
            && reader.describe(object, role == Role::Output, raw).is_some()
        {
            return Some(());
        }
        self.table?.fill(object, raw)?.ok()?;
        let whole = || raw.dtype.bits != 8 || self.dtype_of(argument, object).is_ok();
        let wrapped = || raw.data.is_null() && self.torch.keys.is_functional(object).unwrap_or(true);
        (!self.torch.keys.is_negated(object).ok()? && whole() && !wrapped()).then_some(())
    }

    /// The tensor's own dtype. torch describes integers of fewer than 8 bits (torch.int4) as int8 or uint8.
    fn dtype_of(&self, argument: Argument, object: &Bound<'_, PyAny>) -> Result<DType> {
        let dtype = self.torch.dtype.read(object)?;
        self.torch.dtype_of(&dtype).ok_or_else(|| {
            let name = dtype.str().map_or_else(|_| "of an unknown kind".into(), |name| name.to_string());
            descriptor::not_accepted(argument, name.trim_start_matches("torch.").into())
        })
    }

    /// Where the memory of a tensor is that was just allocated, of which all else is known.
    pub fn address(&self, argument: Argument, object: &Bound<'_, PyAny>) -> Result<usize> {
        if let Some(address) = stable::reader().and_then(|reader| reader.address(object)) {
            return Ok(address);
        }
        let address = match self.table {
            Some(table) => table.describe(object, descriptor::address).map(|(address, _)| address),
            None => self.torch.data_ptr.call(object).and_then(|address| address.extract()),
        };
        address.map_err(|raised| explain(argument, object, raised))
    }

    fn view_by_attributes(
        &self,
        argument: Argument,
        object: &Bound<'_, PyAny>,
        view: &mut TensorView,
    ) -> Result<()> {
        let py = object.py();
        let device = object.getattr(intern!(py, "device"))?;
        let kind: String = device.getattr(intern!(py, "type"))?.extract()?;
        view.device = match kind.as_str() {
            "cpu" => Device::Cpu,
            "cuda" => Device::Cuda(device.getattr(intern!(py, "index"))?.extract()?),
            "meta" => return Err(Error::NoMemory { op: argument.op, argument: argument.name }),
            _ => {
                let got = device.str()?.to_string();
                return Err(Error::DeviceNotSupported { op: argument.op, argument: argument.name, got });
            }
        };
        view.dtype = self.dtype_of(argument, object)?;
        let dims = |sizes: Bound<'_, PyAny>| -> Result<Dims> {
            let sizes = sizes.cast_into::<PyTuple>().map_err(PyErr::from)?;
            sizes.iter().map(|n| n.extract::<i64>().map_err(Error::from)).collect()
        };
        view.address = self.torch.data_ptr.call(object)?.extract()?;
        view.shape = dims(object.getattr(intern!(py, "shape"))?)?;
        descriptor::rank(argument, i32::try_from(view.rank()).unwrap_or(i32::MAX))?;
        view.strides = dims(object.call_method0(intern!(py, "stride"))?)?;
        descriptor::check(argument, view)
    }

    /// torch's current stream of a device, on this thread.
    pub fn stream(&self, py: Python<'_>, ordinal: i32) -> PyResult<RawStream> {
        if let Some(table) = self.table {
            return table.stream(py, ordinal);
        }
        py.import("torch._C")?.call_method1("_cuda_getCurrentRawStream", (ordinal,))?.extract()
    }
}
