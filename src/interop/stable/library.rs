//! Registration of kernels with torch's dispatcher.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use super::abi::{Abi, Kernel};
use super::kernel::{Kernels, SHARED, Shared};
use super::reader::{Reader, find, reader};
use crate::error::Error;
use crate::interop::torch::Torch;

/// Registers the kernels, once in a process; false where the torch that is imported lacks what they take. `recorder`
/// returns the function in Python for an operator's calls that are more than memory.
pub fn implement(
    py: Python<'_>,
    kernels: &[Kernels],
    exception: fn(Python<'_>, Error) -> PyErr,
    recorder: impl Fn(&CStr) -> PyResult<Py<PyAny>>,
) -> PyResult<bool> {
    static DONE: AtomicBool = AtomicBool::new(false);
    if SHARED.get().is_some() {
        return Ok(DONE.load(Ordering::Relaxed));
    }
    let Some(torch) = Torch::get(py)? else { return Ok(false) };
    find(py, torch)?;
    let Some(Reader { abi, private, .. }) = reader() else { return Ok(false) };
    let recorders = kernels.iter().map(|of| Ok((of.name, recorder(of.name)?))).collect::<PyResult<_>>()?;
    // From here on nothing runs that may raise.
    if SHARED.set(Shared { abi, private, exception, recorders }).is_err() {
        return Ok(false);
    }
    let all = |key: &CStr, kernel: fn(&Kernels) -> Kernel| {
        register(abi, key, kernels.iter().map(|of| (of.name, kernel(of))))
    };
    let backends = [c"CPU", c"CUDA"].into_iter().all(|key| all(key, |of| of.backend));
    let done =
        backends && [c"AutogradCPU", c"AutogradCUDA"].into_iter().all(|key| all(key, |of| of.autograd));
    DONE.store(done, Ordering::Relaxed);
    Ok(done)
}

fn register(abi: &Abi, key: &CStr, mut kernels: impl Iterator<Item = (&'static CStr, Kernel)>) -> bool {
    let mut library: *mut c_void = ptr::null_mut();
    let (namespace, file) = (c"tilewise".as_ptr(), c"tilewise".as_ptr());
    // SAFETY: strings of ours, which torch copies; the kernels follow torch's convention. The library lives as long as the
    // process, as its kernels do.
    unsafe {
        (abi.functions.library_init_impl)(namespace, key.as_ptr(), file, 0, &raw mut library) == 0
            && kernels.all(|(name, kernel)| (abi.functions.library_impl)(library, name.as_ptr(), kernel) == 0)
    }
}
