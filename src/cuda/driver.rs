//! The CUDA driver, and the only place that launches through it. Every function here returns errors of
//! ours; none panics when there is no driver.

use std::ffi::{CString, c_void};
use std::sync::OnceLock;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use smallvec::SmallVec;

use super::RawStream;
use super::device::DeviceFacts;
use super::tensor_map::{MAX_DIMS, TensorMap, TensorMapSpec};
use crate::dtype::DType;
use crate::error::{Error, Result};

/// What the loader looks for.
const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// Names a driver error and what was being done.
pub fn error(op: &'static str, during: &'static str, error: DriverError) -> Error {
    let text = |s: std::result::Result<&std::ffi::CStr, DriverError>| {
        s.map_or_else(|e| format!("error {}", e.0 as u32), |s| s.to_string_lossy().into_owned())
    };
    Error::Cuda { op, name: text(error.error_name()), description: text(error.error_string()), during }
}

/// Loads and initialises the driver, once; every other function here relies on it having been asked.
pub fn require(op: &'static str) -> Result<()> {
    static STATE: OnceLock<Option<std::result::Result<(), DriverError>>> = OnceLock::new();
    let state = STATE.get_or_init(|| {
        // SAFETY: only looks the library up; loading it runs NVIDIA's own constructors, which the
        // process would run anyway at its first CUDA call.
        let present = unsafe { sys::is_culib_present() };
        present.then(result::init)
    });
    match state {
        None => Err(Error::NoDriver { op, looked_for: LIBRARY, remedy: "move the tensors to the CPU" }),
        Some(Err(e)) => Err(error(op, "initialising the driver", *e)),
        Some(Ok(())) => Ok(()),
    }
}

pub fn device_count(op: &'static str) -> Result<usize> {
    require(op)?;
    let count = result::device::get_count().map_err(|e| error(op, "counting devices", e))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Asks the driver for everything a plan may depend on.
pub fn facts(op: &'static str, ordinal: i32) -> Result<DeviceFacts> {
    use sys::CUdevice_attribute_enum as A;
    require(op)?;
    let fail = |e| error(op, "reading the device's attributes", e);
    let device = result::device::get(ordinal).map_err(fail)?;
    let attribute = |which| -> Result<u32> {
        // SAFETY: `device` came from cuDeviceGet just above.
        let value = unsafe { result::device::get_attribute(device, which) }.map_err(fail)?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    Ok(DeviceFacts {
        name: result::device::get_name(device).map_err(fail)?,
        compute_capability: (
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        threads_per_multiprocessor: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        blocks_per_multiprocessor: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR)?,
        registers_per_multiprocessor: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        shared_bytes_per_multiprocessor: attribute(
            A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        )?,
        shared_bytes_per_block: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        l2_bytes: u64::from(attribute(A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        // SAFETY: `device` came from cuDeviceGet just above.
        memory_bytes: unsafe { result::device::total_mem(device) }.map_err(fail)? as u64,
        clock_khz: attribute(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_clock_khz: attribute(A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        memory_bus_bits: attribute(A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        cooperative: attribute(A::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)? > 0,
    })
}

/// A device's primary context, the one torch uses too. Retained for the life of the process.
#[derive(Debug)]
pub struct Context(sys::CUcontext);

// SAFETY: a context handle is a name that any thread may pass to the driver, which locks internally.
unsafe impl Send for Context {}
// SAFETY: as above; the handle is never changed after creation.
unsafe impl Sync for Context {}

impl Context {
    pub fn primary(op: &'static str, ordinal: i32) -> Result<Context> {
        require(op)?;
        let fail = |e| error(op, "retaining the device's primary context", e);
        let device = result::device::get(ordinal).map_err(fail)?;
        // SAFETY: `device` came from cuDeviceGet just above.
        unsafe { result::primary_ctx::retain(device) }.map(Context).map_err(fail)
    }

    /// Makes this context current until the guard goes; free when it is current already.
    pub fn enter(&self, op: &'static str) -> Result<Entered> {
        let fail = |e| error(op, "making the device's context current", e);
        if result::ctx::get_current().map_err(fail)? == Some(self.0) {
            return Ok(Entered { pushed: false });
        }
        // SAFETY: the context is retained for the life of the process, so the handle is valid.
        unsafe { sys::cuCtxPushCurrent_v2(self.0) }.result().map_err(fail)?;
        Ok(Entered { pushed: true })
    }
}

/// Gives the caller's context back when dropped.
#[derive(Debug)]
pub struct Entered {
    pushed: bool,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.pushed {
            let mut popped = std::ptr::null_mut();
            // SAFETY: pops what `enter` pushed on this thread; `popped` outlives the call. The only
            // failure is a driver already shut down, where there is nothing to restore.
            let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut popped) };
        }
    }
}

/// Until dropped, this thread may make calls that a capture, of whichever thread, would otherwise refuse and be broken by:
/// those that queue nothing on the streams that are being captured.
#[derive(Debug)]
pub struct Relaxed(sys::CUstreamCaptureMode);

impl Relaxed {
    pub fn begin() -> Relaxed {
        Relaxed(exchange(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        exchange(self.0);
    }
}

/// Sets this thread's capture mode and returns the one before.
fn exchange(mut mode: sys::CUstreamCaptureMode) -> sys::CUstreamCaptureMode {
    // SAFETY: exchanges the mode with the value behind a valid pointer. It fails where the driver is shut down, and then
    // there is nothing to set.
    let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) };
    mode
}

/// A loaded fatbin. Never unloaded: its functions live as long as the process.
#[derive(Debug)]
pub struct Module(sys::CUmodule);

// SAFETY: a module handle is a name that any thread may pass to the driver, which locks internally.
unsafe impl Send for Module {}
// SAFETY: as above; the handle is never changed after creation.
unsafe impl Sync for Module {}

impl Module {
    /// Loads an image into the current context, which queues no work.
    pub fn load(op: &'static str, image: &'static [u8]) -> Result<Module> {
        let _relaxed = Relaxed::begin();
        // SAFETY: `image` is a complete fatbin written by nvcc, 64-byte aligned and static.
        let loaded = unsafe { result::module::load_data(image.as_ptr().cast()) };
        loaded.map(Module).map_err(|e| error(op, "loading the kernels", e))
    }

    /// Finds a kernel and lets it use all the dynamic shared memory a block may have and, on devices
    /// that may have room for it, a cluster of 16 blocks.
    pub fn function(&self, op: &'static str, name: &str, facts: &DeviceFacts) -> Result<Function> {
        use sys::CUfunction_attribute_enum as A;
        let fail = |e| error(op, "looking up a kernel", e);
        let symbol =
            CString::new(name).map_err(|_| fail(DriverError(sys::CUresult::CUDA_ERROR_NOT_FOUND)))?;
        // SAFETY: the module was loaded by `load` and is never unloaded.
        let function = unsafe { result::module::get_function(self.0, symbol) }.map_err(fail)?;
        // SAFETY: `function` came from the driver just above.
        let ask = |attribute| unsafe { result::function::get_function_attribute(function, attribute) };
        let fixed = ask(A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES).map_err(fail)?;
        let waits = ask(A::CU_FUNC_ATTRIBUTE_PTX_VERSION).map_err(fail)? >= 90;
        let limit = i32::try_from(facts.shared_bytes_per_block).unwrap_or(0) - fixed;
        let mut attributes = vec![(A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, limit)];
        if facts.largest_cluster() > 8 {
            attributes.push((A::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
        }
        for (attribute, value) in attributes {
            // SAFETY: as above.
            unsafe { result::function::set_function_attribute(function, attribute, value) }.map_err(fail)?;
        }
        Ok(Function { handle: function, waits })
    }
}

/// A kernel, ready to be launched in its context.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    handle: sys::CUfunction,
    /// Its code waits for what was queued before it (kernels/common/ptx/grid.cuh): it was compiled for 9.0 or newer, not
    /// made from older PTX by the driver.
    pub waits: bool,
}

// SAFETY: a function handle is a name that any thread may pass to the driver, which locks internally.
unsafe impl Send for Function {}
// SAFETY: as above; the handle is never changed after creation.
unsafe impl Sync for Function {}

/// Grid, block and dynamic shared memory of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    /// Neighbouring blocks in x that run as a cluster; none if fewer than two.
    pub cluster: u32,
    /// All blocks run at the same time, or the launch is refused.
    pub cooperative: bool,
    /// May begin before the launch before it on the stream is done.
    pub early: bool,
}

/// Whether what is queued on `stream` of the current context becomes part of a graph, or may: the driver does not say.
pub fn may_be_captured(stream: RawStream) -> bool {
    // The driver captures no default stream: 0 is its handle, and CU_STREAM_LEGACY.
    if stream <= 1 {
        return false;
    }
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: the caller vouches for the stream, as for every launch; `status` outlives the call.
    let asked =
        unsafe { sys::cuStreamIsCapturing(std::ptr::with_exposed_provenance_mut(stream), &mut status) };
    asked.result().is_err() || status != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE
}

/// Queues one kernel on `stream` of the current context.
///
/// # Safety
/// `parameter` must point to the kernel's one parameter struct, and every address in it must stay valid
/// until the queued work is done.
pub unsafe fn launch(
    op: &'static str,
    function: Function,
    shape: Shape,
    stream: RawStream,
    parameter: *const c_void,
) -> Result<()> {
    let ([gx, gy, gz], [bx, by, bz]) = (shape.grid, shape.block);
    let stream = std::ptr::with_exposed_provenance_mut(stream);
    let mut parameters = [parameter.cast_mut()];
    let mut attributes: SmallVec<[sys::CUlaunchAttribute; 2]> = SmallVec::new();
    let mut with = |id, value| attributes.push(sys::CUlaunchAttribute { id, pad: [0; 4], value });
    if shape.cluster > 1 {
        let cluster = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: shape.cluster, y: 1, z: 1 };
        let value = sys::CUlaunchAttributeValue { clusterDim: cluster };
        with(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, value);
    }
    if shape.cooperative {
        let value = sys::CUlaunchAttributeValue { cooperative: 1 };
        with(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE, value);
    }
    if shape.early {
        let value = sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 };
        with(sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, value);
    }
    let launched = if !attributes.is_empty() {
        let config = sys::CUlaunchConfig {
            gridDimX: gx,
            gridDimY: gy,
            gridDimZ: gz,
            blockDimX: bx,
            blockDimY: by,
            blockDimZ: bz,
            sharedMemBytes: shape.shared_bytes,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        let nothing = std::ptr::null_mut();
        // SAFETY: as below; the attributes and the configuration outlive the call. Drivers have had this function
        // since CUDA 11.8, and one that is older has no device that these attributes are for.
        unsafe { sys::cuLaunchKernelEx(&raw const config, function.handle, parameters.as_mut_ptr(), nothing) }
            .result()
    } else {
        let (grid, block) = ((gx, gy, gz), (bx, by, bz));
        // SAFETY: the driver copies the struct before it returns; the caller vouches for its addresses.
        unsafe {
            result::launch_kernel(function.handle, grid, block, shape.shared_bytes, stream, &mut parameters)
        }
    };
    launched.map_err(|e| error(op, "launching a kernel", e))
}

/// Writes a tensor map: arithmetic on the host that touches no device.
pub fn encode_tensor_map(op: &'static str, spec: &TensorMapSpec) -> Result<TensorMap> {
    use sys::CUtensorMapDataType_enum as Type;
    let element = match spec.dtype {
        DType::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        DType::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_TFLOAT32,
        _ => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
    };
    let mut map = sys::CUtensorMap { opaque: [0; 16] };
    let steps = [1; MAX_DIMS];
    // What L2 fetches at least, in bytes, when a row is asked for: 256, with what the next box along it asks for; but 128
    // where rows are parts of two lines, and of what is read once (docs/measurements/matmul_wgmma.md).
    let whole_lines = spec.strides[0].is_multiple_of(128) && spec.address.is_multiple_of(128);
    let promotion = match whole_lines && !spec.read_once {
        true => sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        false => sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
    };
    // SAFETY: every array has at least `rank` entries, which is at most MAX_DIMS, and the driver only reads them.
    unsafe {
        sys::cuTensorMapEncodeTiled(
            &mut map,
            element,
            spec.rank.min(MAX_DIMS) as u32,
            std::ptr::with_exposed_provenance_mut(spec.address),
            spec.sizes.as_ptr(),
            spec.strides.as_ptr(),
            spec.r#box.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE,
            sys::CUtensorMapSwizzle_enum::CU_TENSOR_MAP_SWIZZLE_128B,
            promotion,
            sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    }
    .result()
    .map_err(|e| error(op, "describing a tensor to the copy engine", e))?;
    Ok(TensorMap(map.opaque))
}
