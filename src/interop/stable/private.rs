//! What the stable ABI does not say, and what an operator's autograd kernel has to ask: whether a call is about more than
//! its tensors' memory. Each is looked for where torch keeps it and checked against what torch says of it in Python;
//! without one of them no operator is native, and python/tilewise/torch/library.py registers kernels in Python.
//!
//! | what | where |
//! | --- | --- |
//! | whether a tensor requires grad, or has a tangent | two functions of c10::TensorImpl |
//! | a tensor's dispatch keys | the word of c10::TensorImpl that has the negative bit (`torch::keys`) |
//! | the keys that modes and transforms include on this thread | c10::impl::raw_local_dispatch_key_set |
//! | an exception of Python's as one of C++ | THPUtils_unpackLongs, which throws what is raised already |
//! | that such an exception can pass through our frames | libgcc_s, whose unwinder must be ours too |

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;

use libloading::os::unix::Library;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use super::abi::{Abi, Handle, loaded, symbol};
use crate::interop::torch::Torch;

/// std::vector<int64_t>, returned in memory.
#[repr(C)]
struct Vector([usize; 3]);

type RequiresGrad = unsafe extern "C-unwind" fn(*const c_void) -> bool;
type ForwardGradient = unsafe extern "C-unwind" fn(*const c_void, u64, *const c_void) -> Handle;
type UnpackLongs = unsafe extern "C-unwind" fn(*mut pyo3::ffi::PyObject) -> Vector;

#[derive(Debug)]
pub struct Private {
    requires_grad: RequiresGrad,
    forward_gradient: ForwardGradient,
    unpack_longs: UnpackLongs,
    /// Where a tensor's dispatch keys are in its c10::TensorImpl, in bytes.
    keys: usize,
    /// Those of a CPU's and of a GPU's tensor that is nothing but memory, and may be differentiated.
    plain: [u64; 2],
    c10: Library,
    /// What UnpackLongs fails with: (-1,).
    minus_one: Py<PyTuple>,
}

const LOCAL_KEYS: &str = "_ZN3c104impl26raw_local_dispatch_key_setE";

impl Private {
    pub fn find(py: Python<'_>, abi: &'static Abi) -> PyResult<Option<Private>> {
        if !has_its_unwinder() {
            return Ok(None);
        }
        let found = || -> Option<_> {
            let (c10, python) = (loaded(c"libc10.so")?, loaded(c"libtorch_python.so")?);
            // SAFETY: the names say the types, but for the last ones' results, which are as torch's headers have them.
            unsafe {
                let requires_grad = symbol(&c10, "_ZNK3c1010TensorImpl13requires_gradEv")?;
                let forward_gradient = symbol(&c10, "_ZNK3c1010TensorImpl8_fw_gradEmRKN2at10TensorBaseE")?;
                let unpack_longs = symbol(&python, "_Z20THPUtils_unpackLongsP7_object")?;
                Some((requires_grad, forward_gradient, unpack_longs, c10))
            }
        };
        let Some((requires_grad, forward_gradient, unpack_longs, c10)) = found() else { return Ok(None) };
        let Some(torch) = Torch::get(py)? else { return Ok(None) };
        let Some(keys) = torch.key_word() else { return Ok(None) };
        let native = py.import("torch._C")?;
        let plain = [plain_keys(&native, "CPU")?, plain_keys(&native, "CUDA")?];
        let minus_one = PyTuple::new(py, [-1])?.unbind();
        let private = Private { requires_grad, forward_gradient, unpack_longs, keys, plain, c10, minus_one };
        Ok(private.is_right(py, abi, &native)?.then_some(private))
    }

    /// Whether it says of some tensors what torch says.
    fn is_right(&self, py: Python<'_>, abi: &'static Abi, native: &Bound<'_, PyModule>) -> PyResult<bool> {
        let torch = py.import("torch")?;
        let on_cpu = PyDict::new(py);
        on_cpu.set_item("device", "cpu")?;
        let plain = torch.call_method("empty", (2,), Some(&on_cpu))?;
        let parameter = torch.getattr("nn")?.getattr("Parameter")?.call1((&plain,))?;
        let negated = torch.call_method1("_neg_view", (&plain,))?;
        for (tensor, is_plain, needs_grad) in
            [(&plain, true, false), (&parameter, true, true), (&negated, false, false)]
        {
            let said: u64 =
                native.call_method1("_dispatch_keys", (tensor,))?.call_method0("raw_repr")?.extract()?;
            let Some(tensor) = super::objects::to_tensor(abi, tensor) else { return Ok(false) };
            // SAFETY: the handle is of a live tensor.
            let (found, requires_grad) = unsafe {
                (self.keys_of(tensor.handle()), (self.requires_grad)(implementation(tensor.handle())))
            };
            if found != said || (said == self.plain[0]) != is_plain || requires_grad != needs_grad {
                return Ok(false);
            }
        }
        let included = || -> PyResult<u64> {
            native.call_method0("_dispatch_tls_local_include_set")?.call_method0("raw_repr")?.extract()
        };
        let (before, usual) = (included()?, self.included());
        let key = native.getattr("DispatchKey")?.getattr("Negative")?;
        let guard = native.getattr("_IncludeDispatchKeyGuard")?.call1((key,))?;
        guard.call_method0("__enter__")?;
        let (within, with_key) = (included(), self.included());
        guard.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
        Ok(usual.is_some()
            && with_key.is_some()
            && usual != with_key
            && usual.zip(with_key).is_some_and(|(a, b)| within.is_ok_and(|within| a ^ b == before ^ within)))
    }

    /// Whether `tensor` is nothing but memory, and `needs_grad` says whether it counts that it requires grad.
    ///
    /// # Safety
    /// `tensor` must be the handle of a live tensor.
    pub unsafe fn is_memory(&self, abi: &Abi, tensor: Handle, needs_grad: bool) -> bool {
        // SAFETY: by the caller's promise; `is_right` has seen that these are where they are looked for. What is returned
        // for a tensor without a tangent is an undefined tensor, which lives for ever.
        unsafe {
            let object = implementation(tensor);
            if !self.plain.contains(&self.keys_of(tensor)) || (needs_grad && (self.requires_grad)(object)) {
                return false;
            }
            let (tangent, mut has_tangent) = ((self.forward_gradient)(object, 0, tensor), true);
            (abi.functions.is_defined)(tangent, &raw mut has_tangent);
            !has_tangent
        }
    }

    /// # Safety
    /// `tensor` must be the handle of a live tensor.
    unsafe fn keys_of(&self, tensor: Handle) -> u64 {
        // SAFETY: by the caller's promise there is a c10::TensorImpl, of which `Keys` has read this word.
        unsafe { implementation(tensor).byte_add(self.keys).cast::<u64>().read() }
    }

    /// Whether a mode, a transform or a dispatcher in Python has a say in this thread's calls.
    pub fn is_disturbed(&self) -> bool {
        self.included() != Some(0)
    }

    /// The keys that are included on this thread, but for those that always are.
    fn included(&self) -> Option<u64> {
        thread_local!(static KEYS: Cell<*const u64> = const { Cell::new(ptr::null()) });
        let address = KEYS.get();
        let address = if address.is_null() {
            // SAFETY: a variable of this thread, of two words. The first are the included keys.
            let found = unsafe { symbol::<*const u64>(&self.c10, LOCAL_KEYS) }?;
            KEYS.set(found);
            found
        } else {
            address
        };
        // SAFETY: it lives as long as the thread.
        Some(unsafe { address.read() })
    }

    /// Throws the exception that is raised in Python as one of C++.
    ///
    /// # Safety
    /// An exception must be raised, and nothing may be left to drop but what may be dropped while C++ unwinds.
    pub unsafe fn throw(&self, _py: Python<'_>) {
        // SAFETY: the tuple lives as long as `self`. A number that may mean failure is looked for among raised exceptions.
        let _ = unsafe { (self.unpack_longs)(self.minus_one.as_ptr()) };
    }
}

/// Whether we unwind by the library that torch throws by. With an unwinder of its own in the module (zig links one unless
/// the Makefile's flags say otherwise) an exception that passes through a frame of ours ends the process.
fn has_its_unwinder() -> bool {
    unsafe extern "C" {
        fn _Unwind_GetLanguageSpecificData();
    }
    let ours: *const c_void = (_Unwind_GetLanguageSpecificData as unsafe extern "C" fn()) as _;
    // SAFETY: the address of a function, which is not called.
    let theirs = loaded(c"libgcc_s.so.1")
        .and_then(|library| unsafe { symbol::<*const c_void>(&library, "_Unwind_GetLanguageSpecificData") });
    theirs == Some(ours)
}

/// The c10::TensorImpl of a tensor, to which its at::Tensor points.
///
/// # Safety
/// `tensor` must be the handle of a live tensor.
unsafe fn implementation(tensor: Handle) -> *const c_void {
    // SAFETY: by the caller's promise; an at::Tensor is one pointer.
    unsafe { tensor.cast::<*const c_void>().read() }
}

/// The keys of a tensor on such a device that is nothing but memory.
fn plain_keys(native: &Bound<'_, PyModule>, device: &str) -> PyResult<u64> {
    let set = native.getattr("DispatchKeySet")?;
    let mut keys = set.call1((native.getattr("DispatchKey")?.getattr("ADInplaceOrView")?,))?;
    for name in [device.to_string(), format!("Autograd{device}"), format!("Autocast{device}")] {
        keys = keys
            .call_method1("__or__", (set.call1((native.call_method1("_dispatch_key_parse", (name,))?,))?,))?;
    }
    keys.call_method0("raw_repr")?.extract()
}
