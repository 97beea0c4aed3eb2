//! Tensors and dtypes as Python has them, for calls that end there.

use std::ptr;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};

use super::abi::Abi;
use super::arguments::DTypeNumber;
use super::tensor::Tensor;
use crate::error::{Error, Result};
use crate::interop::torch::Torch;
use crate::ops::output::OutputSpec;

/// Runs `work` with the GIL, from within a kernel; None where Python has ended. torch gives up the GIL without telling pyo3,
/// which would go by what this thread's outer frames hold.
pub fn with_gil<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    struct Held(pyo3::ffi::PyGILState_STATE);
    impl Drop for Held {
        fn drop(&mut self) {
            // SAFETY: matches the call below, on the same thread.
            unsafe { pyo3::ffi::PyGILState_Release(self.0) };
        }
    }
    // SAFETY: may be asked at any time, and is only a question where Python has not begun or has ended.
    let _held =
        unsafe { (pyo3::ffi::Py_IsInitialized() != 0).then(|| Held(pyo3::ffi::PyGILState_Ensure())) }?;
    Python::try_attach(work)
}

pub fn of_tensor(py: Python<'_>, abi: &Abi, tensor: &Tensor) -> PyResult<Py<PyAny>> {
    let mut object = ptr::null_mut();
    let Some(tensor_to_object) = abi.tensor_to_object else { return of_tensor_by_python(py, abi, tensor) };
    // SAFETY: the tensor is alive and the GIL is held; without a class the result is of torch's own.
    let code = unsafe { tensor_to_object(tensor.handle(), ptr::null_mut(), &raw mut object) };
    // SAFETY: on success the object is a new reference.
    let object = unsafe { Bound::from_owned_ptr_or_opt(py, object.cast()) };
    object.filter(|_| code == 0).map(Bound::unbind).ok_or_else(|| failed(abi))
}

fn of_tensor_by_python(py: Python<'_>, abi: &Abi, tensor: &Tensor) -> PyResult<Py<PyAny>> {
    let mut handle = ptr::null_mut();
    // SAFETY: the tensor is alive, and on success the handle is a new reference.
    if unsafe { (abi.functions.new_tensor)(tensor.handle(), &raw mut handle) } != 0 {
        return Err(failed(abi));
    }
    // SAFETY: an address for torch, which takes the reference over.
    let capsule = unsafe { pyo3::ffi::PyCapsule_New(handle, ptr::null(), None) };
    // SAFETY: a new reference, or null and an exception.
    let capsule = unsafe { Bound::from_owned_ptr_or_err(py, capsule) }?;
    // The one for a single tensor keeps the reference.
    let tensors = aoti(py)?.call_method1("alloc_tensors_by_stealing_from_void_ptrs", ([capsule],))?;
    Ok(tensors.get_item(0)?.unbind())
}

/// None of what is no tensor.
pub fn to_tensor(abi: &'static Abi, object: &Bound<'_, PyAny>) -> Option<Tensor> {
    let mut handle = ptr::null_mut();
    match abi.tensor_from_object {
        // SAFETY: the object is alive and the GIL is held.
        Some(tensor_from_object) => unsafe {
            if tensor_from_object(object.as_ptr().cast(), &raw mut handle) != 0 {
                return None;
            }
        },
        None => {
            let of = "unsafe_alloc_void_ptr_from_tensor";
            let capsule = aoti(object.py()).and_then(|aoti| aoti.call_method1(of, (object,))).ok()?;
            handle = capsule.cast::<PyCapsule>().ok()?.pointer_checked(None).ok()?.as_ptr();
        }
    }
    // SAFETY: the handle is a new reference.
    (!handle.is_null()).then(|| unsafe { Tensor::owned(abi, handle) })
}

/// What torch's own runtime of compiled models converts tensors with.
fn aoti(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    py.import("torch._C")?.getattr("_aoti")
}

pub fn of_dtype(py: Python<'_>, abi: &Abi, number: DTypeNumber) -> PyResult<Py<PyAny>> {
    match abi.dtype_of(number.0) {
        Ok(dtype) => match Torch::get(py)? {
            Some(torch) => Ok(torch.dtype(py, dtype).clone().unbind()),
            None => Err(PyRuntimeError::new_err("torch is not imported")),
        },
        Err(name) => Ok(py.import("torch")?.getattr(name)?.unbind()),
    }
}

/// As `Tensor::empty`, where that fails: torch raises the exceptions that its users know in Python only.
pub fn allocate(abi: &'static Abi, op: &'static str, spec: &OutputSpec) -> Result<Tensor> {
    let bytes =
        spec.shape.iter().fold(spec.dtype.size(), |n, &size| n.saturating_mul(size.unsigned_abs() as usize));
    let in_python = |py: Python<'_>| -> PyResult<Tensor> {
        let options = PyDict::new(py);
        options.set_item("device", spec.device.to_string())?;
        let torch = py.import("torch")?;
        options.set_item("dtype", torch.getattr(spec.dtype.name())?)?;
        let dims = (PyTuple::new(py, &spec.shape)?, PyTuple::new(py, &spec.strides)?);
        let made = torch.getattr("empty_strided")?.call(dims, Some(&options))?;
        to_tensor(abi, &made).ok_or_else(|| failed(abi))
    };
    match with_gil(in_python) {
        Some(made) => Ok(made?),
        None => Err(Error::OutOfMemory { op, bytes }),
    }
}

/// What the ABI has failed with.
pub fn failed(abi: &Abi) -> PyErr {
    PyRuntimeError::new_err(super::kernel::reason(abi))
}
