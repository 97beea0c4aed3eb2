//! What the stable ABI does not say, and what an operator's autograd kernel has to ask: whether a call is about more than
//! its tensors' memory. Each is looked for where torch keeps it and checked against what torch says of it in Python;
//! without one of them no operator is native, and python/tilewise/torch/library.py registers kernels in Python.
//!
//! | what | where |
//! | --- | --- |
//! | whether a tensor requires grad, or has a tangent | two functions of c10::TensorImpl |
//! | a tensor's dispatch keys | the word of c10::TensorImpl that has the negative bit (`torch::keys`) |
//! | the C++ object of a tensor in Python | the word of the Python object that is its address (`torch::keys`) |
//! | the keys that modes and transforms include on this thread, and those that autocast excludes | c10::impl::raw_local_dispatch_key_set |
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
use crate::tensor::Device;

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
    /// Where the address of its c10::TensorImpl is in a tensor's Python object, in bytes.
    pointer: usize,
    /// Where a tensor's dispatch keys are in its c10::TensorImpl, in bytes.
    keys: usize,
    /// Those of a CPU's and of a GPU's tensor that is nothing but memory, and may be differentiated; then of those made in
    /// inference mode.
    plain: [u64; 4],
    /// The keys of autocast, on CPUs and on GPUs, and all that are excluded where a thread has not changed anything.
    autocast: [u64; 2],
    excluded: u64,
    c10: Library,
    /// What UnpackLongs fails with: (-1,).
    minus_one: Py<PyTuple>,
}

const LOCAL_KEYS: &str = "_ZN3c104impl26raw_local_dispatch_key_setE";
const INCLUDED: &str = "_dispatch_tls_local_include_set";
const EXCLUDED: &str = "_dispatch_tls_local_exclude_set";

impl Private {
    pub fn find(py: Python<'_>, abi: &'static Abi, torch: &Torch) -> PyResult<Option<Private>> {
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
                // Each thread has its own.
                symbol::<*const [u64; 2]>(&c10, LOCAL_KEYS)?;
                Some((requires_grad, forward_gradient, unpack_longs, c10))
            }
        };
        let Some((requires_grad, forward_gradient, unpack_longs, c10)) = found() else { return Ok(None) };
        let Some((pointer, keys)) = torch.key_word() else { return Ok(None) };
        let native = py.import("torch._C")?;
        let of = |names: &[&str]| key_set(&native, names);
        let plain = [
            of(&["CPU", "AutogradCPU", "AutocastCPU", "ADInplaceOrView"])?,
            of(&["CUDA", "AutogradCUDA", "AutocastCUDA", "ADInplaceOrView"])?,
            of(&["CPU", "AutocastCPU"])?,
            of(&["CUDA", "AutocastCUDA"])?,
        ];
        let autocast = [of(&["AutocastCPU"])?, of(&["AutocastCUDA"])?];
        let minus_one = PyTuple::new(py, [-1])?.unbind();
        let mut private = Private {
            requires_grad,
            forward_gradient,
            unpack_longs,
            pointer,
            keys,
            plain,
            autocast,
            excluded: 0,
            c10,
            minus_one,
        };
        private.excluded = local_keys(&native, EXCLUDED)? ^ private.local()[1];
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
            let object = self.implementation(tensor);
            let Some(tensor) = super::objects::to_tensor(abi, tensor) else { return Ok(false) };
            // SAFETY: the handle is of a live tensor.
            if object.is_null() || object != unsafe { implementation(tensor.handle()) } {
                return Ok(false);
            }
            // SAFETY: as above.
            let found = unsafe { self.keys_of(object) };
            if found != said
                || self.plain.contains(&said) != is_plain
                || self.is_plain(object) != is_plain
                || self.requires_grad(object) != needs_grad
            {
                return Ok(false);
            }
        }
        let key = native.getattr("DispatchKey")?.getattr("Negative")?;
        let set = native.getattr("DispatchKeySet")?.call1((&key,))?;
        for (i, (which, guard, given)) in
            [(INCLUDED, "_IncludeDispatchKeyGuard", key), (EXCLUDED, "_ExcludeDispatchKeyGuard", set)]
                .into_iter()
                .enumerate()
        {
            let (said, found) = (local_keys(native, which)?, self.local()[i]);
            let guard = native.getattr(guard)?.call1((given,))?;
            guard.call_method0("__enter__")?;
            let (said_within, found_within) = (local_keys(native, which), self.local()[i]);
            guard.call_method1("__exit__", (py.None(), py.None(), py.None()))?;
            if found == found_within || said_within? ^ said != found_within ^ found {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The c10::TensorImpl of a tensor in Python, which must be one of torch's; null of one that was never initialised.
    pub fn implementation(&self, tensor: &Bound<'_, PyAny>) -> *const c_void {
        // SAFETY: every tensor in Python begins with the struct in which `Keys` saw the pointer; the GIL is held, so that
        // nobody changes it.
        unsafe { tensor.as_ptr().byte_add(self.pointer).cast::<*const c_void>().read() }
    }

    /// Whether a tensor is nothing but memory on a CPU or a GPU.
    pub fn is_plain(&self, object: *const c_void) -> bool {
        // SAFETY: what `implementation` returns is null or a live object.
        !object.is_null() && self.plain.contains(&unsafe { self.keys_of(object) })
    }

    /// The same of one that was not made in inference mode.
    pub fn is_tracked(&self, object: *const c_void) -> bool {
        // SAFETY: as above.
        !object.is_null() && self.plain[..2].contains(&unsafe { self.keys_of(object) })
    }

    pub fn requires_grad(&self, object: *const c_void) -> bool {
        // SAFETY: as above.
        !object.is_null() && unsafe { (self.requires_grad)(object) }
    }

    /// Whether torch.autocast is on for a device, on this thread.
    pub fn is_autocast(&self, device: Device) -> bool {
        let key = self.autocast[usize::from(device != Device::Cpu)];
        (self.local()[1] ^ self.excluded) & key == 0
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
            if !self.plain.contains(&self.keys_of(object)) || (needs_grad && (self.requires_grad)(object)) {
                return false;
            }
            let (tangent, mut has_tangent) = ((self.forward_gradient)(object, 0, tensor), true);
            (abi.functions.is_defined)(tangent, &raw mut has_tangent);
            !has_tangent
        }
    }

    /// # Safety
    /// `object` must be the c10::TensorImpl of a live tensor.
    unsafe fn keys_of(&self, object: *const c_void) -> u64 {
        // SAFETY: by the caller's promise; `Keys` has read this word.
        unsafe { object.byte_add(self.keys).cast::<u64>().read() }
    }

    /// Whether a mode, a transform or a dispatcher in Python has a say in this thread's calls.
    pub fn is_disturbed(&self) -> bool {
        self.local()[0] != 0
    }

    /// The keys that are included on this thread and those that are excluded, as far as that is not what threads begin with.
    fn local(&self) -> [u64; 2] {
        thread_local!(static KEYS: Cell<*const [u64; 2]> = const { Cell::new(ptr::null()) });
        let mut address = KEYS.get();
        if address.is_null() {
            // SAFETY: a variable of this thread, of two words; `find` has seen the symbol.
            address = unsafe { symbol(&self.c10, LOCAL_KEYS) }.unwrap_or(address);
            KEYS.set(address);
        }
        // SAFETY: it lives as long as the thread.
        unsafe { address.read() }
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

/// Keys by their names.
fn key_set(native: &Bound<'_, PyModule>, names: &[&str]) -> PyResult<u64> {
    let set = native.getattr("DispatchKeySet")?;
    names.iter().try_fold(0, |keys, name| {
        let key = native.call_method1("_dispatch_key_parse", (name,))?;
        Ok(keys | set.call1((key,))?.call_method0("raw_repr")?.extract::<u64>()?)
    })
}

/// The keys that are included on this thread, or excluded.
fn local_keys(native: &Bound<'_, PyModule>, which: &str) -> PyResult<u64> {
    native.call_method0(which)?.call_method0("raw_repr")?.extract()
}
