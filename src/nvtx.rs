//! Ranges for profilers, where TILEWISE_NVTX=1 asks for them: one for each operation, by its name, shapes and dtypes.
//!
//! NVTX is a handshake: a profiler names its library in NVTX_INJECTION64_PATH, the program loads that and hands it a
//! function, from which it gets tables of places to put its own functions in. NVIDIA's headers do so in C; of all that
//! they know, this is what a range takes.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use libloading::Library;

/// Where the profiler puts a function.
type Slot = AtomicPtr<c_void>;
type ExportTable = unsafe extern "C" fn(u32) -> *const c_void;
type Initialize = unsafe extern "C" fn(ExportTable) -> c_int;
type Push = unsafe extern "C" fn(*const c_char) -> c_int;
type Pop = unsafe extern "C" fn() -> c_int;

static PUSH: Slot = Slot::new(ptr::null_mut());
static POP: Slot = Slot::new(ptr::null_mut());
/// Of all functions that are never called.
static OTHERS: Slot = Slot::new(ptr::null_mut());

/// A range that ends with this; nothing without a profiler.
#[derive(Debug)]
pub struct Range(Option<Pop>);

/// `name` is asked for only where there is somebody to tell.
pub fn range(name: impl FnOnce() -> String) -> Range {
    let Some((push, pop)) = *profiler() else { return Range(None) };
    // A name of ours holds no zero.
    let name = CString::new(name()).unwrap_or_default();
    // SAFETY: `load` found the profiler's nvtxRangePushA, which copies the string.
    unsafe { push(name.as_ptr()) };
    Range(Some(pop))
}

impl Drop for Range {
    fn drop(&mut self) {
        if let Some(pop) = self.0 {
            // SAFETY: `load` found the profiler's nvtxRangePop; this thread has pushed.
            unsafe { pop() };
        }
    }
}

/// Its functions; read once.
fn profiler() -> &'static Option<(Push, Pop)> {
    static PROFILER: OnceLock<Option<(Push, Pop)>> = OnceLock::new();
    PROFILER.get_or_init(|| {
        let asked = std::env::var("TILEWISE_NVTX").is_ok_and(|value| !matches!(value.as_str(), "" | "0"));
        let path = PathBuf::from(std::env::var_os("NVTX_INJECTION64_PATH").filter(|_| asked)?);
        load(&path)
            .inspect_err(|error| eprintln!("tilewise: no NVTX ranges, by {}: {error}", path.display()))
            .ok()
    })
}

fn load(path: &Path) -> Result<(Push, Pop), libloading::Error> {
    // SAFETY: whoever sets the variable wants this library's initialisers to run.
    let library = unsafe { Library::new(path) }?;
    // SAFETY: NVTX defines the type of this function.
    let initialize = unsafe { library.get::<Initialize>(b"InitializeInjectionNvtx2\0") }?;
    // SAFETY: `export_table` behaves as NVTX's does.
    let ready = unsafe { initialize(export_table) } != 0;
    let [push, pop] = [&PUSH, &POP].map(|slot| slot.load(Ordering::Acquire));
    // The profiler's functions are called until the process ends.
    std::mem::forget(library);
    if !ready || push.is_null() || pop.is_null() {
        return Ok((ignore_push, ignore_pop));
    }
    // SAFETY: NVTX defines the types of the functions in these places of its tables.
    Ok(unsafe {
        (std::mem::transmute::<*mut c_void, Push>(push), std::mem::transmute::<*mut c_void, Pop>(pop))
    })
}

/// For a profiler that does not look at ranges.
unsafe extern "C" fn ignore_push(_: *const c_char) -> c_int {
    0
}

unsafe extern "C" fn ignore_pop() -> c_int {
    0
}

/// NvtxExportTableCallbacks.
#[repr(C)]
struct Callbacks {
    bytes: usize,
    module_table: unsafe extern "C" fn(c_int, *mut *const *const Slot, *mut c_uint) -> c_int,
}

/// NvtxExportTableVersionInfo.
#[repr(C)]
struct Version {
    bytes: usize,
    version: u32,
    reserved: u32,
    set_version: unsafe extern "C" fn(u32),
}

unsafe extern "C" fn export_table(id: u32) -> *const c_void {
    static CALLBACKS: Callbacks = Callbacks { bytes: size_of::<Callbacks>(), module_table };
    static VERSION: Version = Version { bytes: size_of::<Version>(), version: 3, reserved: 0, set_version };
    match id {
        1 => (&raw const CALLBACKS).cast(),
        3 => (&raw const VERSION).cast(),
        _ => ptr::null(),
    }
}

unsafe extern "C" fn set_version(_: u32) {}

/// Writes where a module's table is and how many entries it has; 0 for no such module.
unsafe extern "C" fn module_table(module: c_int, table: *mut *const *const Slot, size: *mut c_uint) -> c_int {
    const CORE: c_int = 1;
    // NVTX_CBID_*_SIZE: one more than the functions, which are counted from 1.
    let entries = match module {
        CORE | 5 => 16,
        2 => 9,
        3 => 15,
        4 | 6 => 7,
        _ => return 0,
    };
    let slots = (0..=entries).map(|index| match (module, index) {
        (_, 0) => ptr::null(),
        (_, last) if last == entries => ptr::null(),
        (CORE, 9) => &raw const PUSH,
        (CORE, 11) => &raw const POP,
        _ => &raw const OTHERS,
    });
    // A profiler asks once for each module, and keeps the table.
    let slots = Vec::leak(slots.collect::<Vec<_>>());
    // SAFETY: the profiler passes null, or where it wants these written.
    unsafe {
        if let Some(table) = table.as_mut() {
            *table = slots.as_ptr();
        }
        if let Some(size) = size.as_mut() {
            *size = entries;
        }
    }
    1
}
