//! torch's own threads on CPUs, as `torch.set_num_threads` has them: two functions of its stable C ABI, which
//! torch/csrc/stable/c/shim.h declares (since torch 2.10), in the library that `import torch` has loaded.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use libloading::os::unix::{Library, RTLD_LAZY};

use crate::backend::Workers;

/// Gets the first and one past the last index of a range, and what `ParallelFor` was given to pass on.
type Range = unsafe extern "C" fn(i64, i64, *mut c_void);
/// Splits first..end into ranges of a least length. 0 for success.
type ParallelFor = unsafe extern "C" fn(i64, i64, i64, Range, *mut c_void) -> i32;
/// Writes how many threads there are for the calling one. 0 for success.
type NumThreads = unsafe extern "C" fn(*mut u32) -> i32;

#[derive(Debug)]
struct Threads {
    parallel_for: ParallelFor,
    num_threads: NumThreads,
}

/// torch's threads, for calls on its tensors; None of a torch that does not lend them.
pub fn workers() -> Option<&'static dyn Workers> {
    // No OnceLock, which a forked child would wait for forever if another thread of its parent was in it. Found twice,
    // one is leaked.
    static FOUND: AtomicPtr<Option<Threads>> = AtomicPtr::new(ptr::null_mut());
    if WITHHELD.load(Ordering::Relaxed) {
        return None;
    }
    let mut found = FOUND.load(Ordering::Acquire);
    if found.is_null() {
        found = Box::into_raw(Box::new(Threads::find()));
        FOUND.store(found, Ordering::Release);
    }
    // SAFETY: what is in FOUND came from Box::into_raw, fully initialised, and is never freed.
    let found: &'static Option<Threads> = unsafe { &*found };
    found.as_ref().map(|threads| threads as _)
}

static WITHHELD: AtomicBool = AtomicBool::new(false);

/// Whether calls are to do without torch's threads, as beside a torch that does not lend them.
pub fn withhold(withheld: bool) {
    WITHHELD.store(withheld, Ordering::Relaxed);
}

impl Threads {
    fn find() -> Option<Threads> {
        // SAFETY: the library is there already, or else is not loaded: no code of its own runs.
        let library =
            unsafe { Library::open(Some("libtorch_cpu.so"), RTLD_LAZY | libc::RTLD_NOLOAD) }.ok()?;
        // SAFETY: the header declares the functions of these names so. torch is never unloaded.
        unsafe {
            Some(Threads {
                parallel_for: *library.get::<ParallelFor>(b"torch_parallel_for").ok()?,
                num_threads: *library.get::<NumThreads>(b"torch_get_num_threads").ok()?,
            })
        }
    }
}

impl Workers for Threads {
    fn count(&self) -> usize {
        let mut count = 1;
        // SAFETY: the function writes one number, where there is room for it.
        let code = unsafe { (self.num_threads)(&raw mut count) };
        if code == 0 { count as usize } else { 1 }
    }

    fn run(&self, times: usize, work: &(dyn Fn(usize) + Sync)) {
        let job = Job { work, panic: Mutex::new(None) };
        let context = (&raw const job).cast_mut().cast();
        // An error can only be torch's own, for `range` raises none: then fewer calls were made, or none.
        // SAFETY: `range` gets `job`, alive until all calls of it have returned, which torch waits for.
        let _code = unsafe { (self.parallel_for)(0, times.cast_signed() as i64, 1, range, context) };
        if let Some(payload) = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            panic::resume_unwind(payload);
        }
    }
}

struct Job<'a> {
    work: &'a (dyn Fn(usize) + Sync),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Does the work once for each index. Nothing may unwind into torch.
unsafe extern "C" fn range(first: i64, end: i64, context: *mut c_void) {
    // SAFETY: `Threads::run` passes a job, of which threads share all.
    let job = unsafe { &*context.cast_const().cast::<Job<'_>>() };
    let work = || (first..end).for_each(|place| (job.work)(place as usize));
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(work)) {
        *job.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
    }
}
