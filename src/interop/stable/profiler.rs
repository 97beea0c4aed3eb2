//! Events for torch.profiler, of calls that torch's dispatcher is not asked to make.

use std::ffi::{CString, c_char, c_void};
use std::ptr;

use pyo3::prelude::*;
use smallvec::SmallVec;

use super::abi::{Code, Handle, loaded, symbol};
use super::reader::{handle, reader};

/// A c10::IValue*.
type Value = *mut c_void;
/// An at::RecordFunction*.
type Guard = *mut c_void;
type Start = unsafe extern "C-unwind" fn(*const c_char, *mut c_void, *const Value, u64, *mut Guard) -> Code;

/// The ABI's functions for it, from torch 2.10 on.
#[derive(Debug)]
pub struct Profiler {
    /// at::hasThreadLocalCallbacks: profilers listen to the thread that they are started on. Callbacks of all threads would
    /// have to be copied to be asked for.
    listens: unsafe extern "C-unwind" fn() -> bool,
    value_of: unsafe extern "C-unwind" fn(Handle, *mut Value) -> Code,
    delete_value: unsafe extern "C-unwind" fn(Value) -> Code,
    start: Start,
    end: unsafe extern "C-unwind" fn(Guard) -> Code,
}

impl Profiler {
    /// None of a torch that lacks one of them.
    pub fn find() -> Option<Profiler> {
        let library = loaded(c"libtorch_cpu.so")?;
        // SAFETY: torch/csrc/inductor/aoti_torch/c/shim.h declares them so; the first is a function of C++ without arguments.
        unsafe {
            Some(Profiler {
                listens: symbol(&library, "_ZN2at23hasThreadLocalCallbacksEv")?,
                value_of: symbol(&library, "aoti_torch_tensor_to_ivalue")?,
                delete_value: symbol(&library, "aoti_torch_delete_c10_value_object")?,
                start: symbol(&library, "aoti_record_function_start")?,
                end: symbol(&library, "aoti_record_function_end")?,
            })
        }
    }
}

/// Ends when it is dropped.
#[derive(Debug)]
pub struct Event {
    profiler: &'static Profiler,
    guard: Guard,
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the guard is ours, of this thread, and used by nobody afterwards.
        unsafe { (self.profiler.end)(self.guard) };
    }
}

impl Event {
    /// Of a call on these tensors, which are nothing but memory; None where nobody listens.
    #[inline]
    pub fn begin<'a, 'py: 'a>(
        op: &str,
        tensors: impl Iterator<Item = &'a Bound<'py, PyAny>>,
    ) -> Option<Event> {
        let profiler = reader()?.profiler.as_ref()?;
        // SAFETY: a question without arguments.
        match unsafe { (profiler.listens)() } {
            true => profiler.begin(op, tensors),
            false => None,
        }
    }
}

impl Profiler {
    #[cold]
    fn begin<'a, 'py: 'a>(
        &'static self,
        op: &str,
        tensors: impl Iterator<Item = &'a Bound<'py, PyAny>>,
    ) -> Option<Event> {
        let private = &reader()?.private;
        let name = CString::new(format!("tilewise::{op}")).ok()?;
        let mut values: SmallVec<[Value; 6]> = SmallVec::new();
        for tensor in tensors {
            let (implementation, mut value) = (private.implementation(tensor), ptr::null_mut());
            // SAFETY: the handle is of a live tensor, or there is none; the value is ours on success.
            let known = !implementation.is_null()
                && unsafe { (self.value_of)(handle(&implementation), &raw mut value) } == 0;
            if known {
                values.push(value);
            }
        }
        let mut guard = ptr::null_mut();
        // SAFETY: so many values, which are copied as the name is; there are no keyword arguments.
        let code = unsafe {
            let count = values.len() as u64;
            (self.start)(name.as_ptr(), ptr::null_mut(), values.as_ptr(), count, &raw mut guard)
        };
        for value in values {
            // SAFETY: ours, and used no more.
            unsafe { (self.delete_value)(value) };
        }
        (code == 0 && !guard.is_null()).then_some(Event { profiler: self, guard })
    }
}
