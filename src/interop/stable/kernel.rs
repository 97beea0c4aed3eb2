//! The functions that torch's dispatcher calls, and how they fail.
//!
//! Exceptions of C++ unwind through them. A kernel of ours raises one only when nothing is left to drop; what torch's own
//! functions fail with comes back as a number.

use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::sync::OnceLock;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use smallvec::SmallVec;

use super::abi::{Abi, Kernel, Value};
use super::arguments::Arguments;
use super::objects;
use super::private::Private;
use super::tensor::Tensor;
use crate::error::{Error, Result};

/// An operator that torch calls without Python.
pub trait Operator: 'static {
    /// With its overload.
    const NAME: &'static CStr;
    type Arguments: Arguments;

    fn call(abi: &'static Abi, arguments: Self::Arguments) -> Result<Results>;
}

pub type Results = SmallVec<[Tensor; 2]>;

/// What every kernel needs; from the registration of the first to the end of the process.
#[derive(Debug)]
pub struct Shared {
    pub abi: &'static Abi,
    pub private: &'static Private,
    /// The exception for an error of ours.
    pub exception: fn(Python<'_>, Error) -> PyErr,
    /// By the operator's name: the function for calls that are more than memory.
    pub recorders: Vec<(&'static CStr, Py<PyAny>)>,
}

pub static SHARED: OnceLock<Shared> = OnceLock::new();

/// One operator's kernels, for backends and for autograd.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    pub name: &'static CStr,
    pub backend: Kernel,
    pub autograd: Kernel,
}

impl Kernels {
    pub const fn of<O: Operator>() -> Kernels {
        Kernels { name: O::NAME, backend: backend::<O>, autograd: autograd::<O> }
    }
}

unsafe extern "C-unwind" fn backend<O: Operator>(stack: *mut Value, inputs: u64, outputs: u64) {
    // SAFETY: torch calls by its convention.
    if let Err(error) = unsafe { compute::<O>(stack, inputs, outputs) } {
        raise(error);
    }
}

/// Computes what is a matter of memory alone, and leaves the rest to Python: what is recorded for gradients, and what
/// modes, transforms or subclasses have a say in.
unsafe extern "C-unwind" fn autograd<O: Operator>(stack: *mut Value, inputs: u64, outputs: u64) {
    // SAFETY: torch calls by its convention.
    let done = unsafe {
        match is_memory::<O>(stack, inputs) {
            true => compute::<O>(stack, inputs, outputs),
            false => record::<O>(stack, inputs, outputs),
        }
    };
    if let Err(error) = done {
        raise(error);
    }
}

/// # Safety
/// As torch's convention says: `stack` holds `inputs` arguments of the operator's schema.
unsafe fn is_memory<O: Operator>(stack: *mut Value, inputs: u64) -> bool {
    let Some(Shared { abi, private, .. }) = SHARED.get() else { return false };
    if inputs != O::Arguments::COUNT || private.is_disturbed() {
        return false;
    }
    // SAFETY: a question without arguments.
    let recorded = unsafe { (abi.functions.grad_mode_is_enabled)() };
    // SAFETY: the schema has these arguments, and the tensors live while they are on the stack.
    unsafe { O::Arguments::all(stack, |tensor| private.is_memory(abi, tensor, recorded)) }
}

/// # Safety
/// As `is_memory`; the arguments are the kernel's to free, and there is room for `outputs` results.
unsafe fn compute<O: Operator>(stack: *mut Value, inputs: u64, outputs: u64) -> Result<()> {
    let shared = shared::<O>(inputs)?;
    // SAFETY: the schema has these arguments.
    let results = O::call(shared.abi, unsafe { O::Arguments::take(shared.abi, stack) })?;
    // SAFETY: by the caller's promise.
    unsafe { give(stack, outputs, results) }
}

/// # Safety
/// As `compute`.
unsafe fn record<O: Operator>(stack: *mut Value, inputs: u64, outputs: u64) -> Result<()> {
    let Shared { abi, recorders, .. } = shared::<O>(inputs)?;
    // SAFETY: the schema has these arguments.
    let arguments = unsafe { O::Arguments::take(abi, stack) };
    let results = objects::with_gil(|py| -> PyResult<Results> {
        let recorder = recorders.iter().find(|(name, _)| *name == O::NAME);
        let Some((_, recorder)) = recorder else { return Err(unregistered()) };
        let result = recorder.bind(py).call1(PyTuple::new(py, arguments.into_objects(py, abi)?)?)?;
        let tensor =
            |object: &Bound<'_, PyAny>| objects::to_tensor(abi, object).ok_or_else(|| objects::failed(abi));
        match result.cast::<PyTuple>() {
            Ok(several) => several.iter().map(|object| tensor(&object)).collect(),
            Err(_) => Ok(Results::from_iter([tensor(&result)?])),
        }
    });
    let results = results.unwrap_or_else(|| Err(PyRuntimeError::new_err("Python is shutting down")))?;
    // SAFETY: by the caller's promise.
    unsafe { give(stack, outputs, results) }
}

fn shared<O: Operator>(inputs: u64) -> Result<&'static Shared> {
    let shared = SHARED.get().filter(|_| inputs == O::Arguments::COUNT);
    shared.ok_or_else(|| Error::Python(unregistered()))
}

fn unregistered() -> PyErr {
    PyRuntimeError::new_err("tilewise's kernels and its operators' schemas do not fit together")
}

/// # Safety
/// There must be room for `outputs` results, as which these are handed over.
unsafe fn give(stack: *mut Value, outputs: u64, results: Results) -> Result<()> {
    if results.len() as u64 != outputs {
        return Err(Error::Python(unregistered()));
    }
    for (i, result) in results.into_iter().enumerate() {
        // SAFETY: by the caller's promise.
        unsafe { *stack.add(i) = result.into_handle().expose_provenance() as Value };
    }
    Ok(())
}

/// Does not return: throws the error as an exception of its class in Python, or on a thread that Python knows nothing of
/// as torch's own.
fn raise(error: Error) {
    let Some(Shared { abi, private, exception, .. }) = SHARED.get() else { std::process::abort() };
    // SAFETY: may be asked at any time.
    let in_python = !unsafe { pyo3::ffi::PyGILState_GetThisThreadState() }.is_null();
    if in_python {
        objects::with_gil(|py| {
            exception(py, error).restore(py);
            // SAFETY: the exception is raised. What is dropped on the way to torch is the hold of the GIL.
            unsafe { private.throw(py) };
        });
    } else {
        MESSAGE.replace(CString::new(error.to_string().replace('\0', " ")).unwrap_or_default());
        drop(error);
    }
    let message = MESSAGE.with_borrow(|message| message.as_ptr());
    let (function, file) = (c"tilewise".as_ptr(), c"tilewise".as_ptr());
    // SAFETY: the strings last until they are copied into the exception, with which this unwinds. Nothing is left to drop.
    unsafe { (abi.functions.check)(false, function, file, 0, message) };
    // A check that is not met throws.
    std::process::abort();
}

thread_local! {
    /// Of what was raised last: kept here, as nothing may be dropped by unwinding.
    static MESSAGE: RefCell<CString> = RefCell::default();
}

/// Why a function of the ABI has failed.
pub fn reason(abi: &Abi) -> String {
    // SAFETY: the string lasts until the next exception of this thread.
    let text = abi.exception.map_or(std::ptr::null(), |exception| unsafe { exception() });
    if text.is_null() {
        return "torch gave no reason".into();
    }
    // SAFETY: as above.
    crate::interop::torch::first_line(&unsafe { CStr::from_ptr(text) }.to_string_lossy())
}
