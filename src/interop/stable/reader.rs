//! Tensors as Python has them, read where torch keeps them by the ABI's functions: in a third of the time that torch's table
//! for DLPack takes. Of tensors that are nothing but memory; others are left to that table.

use std::ffi::c_void;
use std::ptr;
use std::sync::OnceLock;

use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLTensor};
use pyo3::prelude::*;

use super::abi::{Abi, Handle};
use super::private::Private;
use super::profiler::Profiler;
use crate::interop::torch::Torch;
use crate::tensor::Device;

#[derive(Debug)]
pub struct Reader {
    pub abi: &'static Abi,
    pub private: Private,
    pub profiler: Option<Profiler>,
}

/// From the first call on a tensor of torch's to the end of the process.
static READER: OnceLock<Reader> = OnceLock::new();

pub fn reader() -> Option<&'static Reader> {
    READER.get()
}

/// Finds what it takes, if this torch has it. Where TILEWISE_NATIVE_OPERATORS is 0, nothing is looked for.
pub fn find(py: Python<'_>, torch: &Torch) -> PyResult<()> {
    if READER.get().is_some() || std::env::var("TILEWISE_NATIVE_OPERATORS").is_ok_and(|wanted| wanted == "0")
    {
        return Ok(());
    }
    let Some(abi) = Abi::find() else { return Ok(()) };
    // Once in a process, as torch's libraries are.
    let abi: &'static Abi = Box::leak(Box::new(abi));
    if let Some(private) = Private::find(py, abi, torch)? {
        // Another thread may have been quicker.
        let _ = READER.set(Reader { abi, private, profiler: Profiler::find() });
    }
    Ok(())
}

/// Whether a mode, a transform or a tracer may have a say in this thread's calls; None where that is not to be seen without
/// asking torch.
pub fn is_disturbed() -> Option<bool> {
    Some(reader()?.private.is_disturbed())
}

/// Whether torch.autocast is on for a device, on this thread; None as above.
pub fn is_autocast(device: Device) -> Option<bool> {
    Some(reader()?.private.is_autocast(device))
}

impl Reader {
    /// Fills in how torch would describe a tensor, for as long as that lives. None of one that is more than memory.
    pub fn describe(&self, object: &Bound<'_, PyAny>, is_written: bool, raw: &mut DLTensor) -> Option<()> {
        let implementation = self.private.implementation(object);
        if !self.private.is_plain(implementation) {
            return None;
        }
        let (mut rank, mut dtype, mut device_type, mut index) = (0, 0, 0, 0);
        let (functions, handle) = (&self.abi.functions, handle(&implementation));
        // SAFETY: the tensor is alive, as its object is, and each function writes one variable.
        let codes = unsafe {
            [
                (functions.dim)(handle, &raw mut rank),
                (functions.sizes)(handle, &raw mut raw.shape),
                (functions.strides)(handle, &raw mut raw.strides),
                (functions.dtype)(handle, &raw mut dtype),
                (functions.device_type)(handle, &raw mut device_type),
                (functions.device_index)(handle, &raw mut index),
            ]
        };
        if codes != [0; 6] {
            return None;
        }
        raw.data = self.data(handle, is_written)?;
        raw.byte_offset = 0;
        raw.ndim = i32::try_from(rank).ok()?;
        let (code, bits) = self.abi.dtype_of(dtype).ok()?.dlpack();
        raw.dtype = DLDataType { code: DLDataTypeCode(code), bits, lanes: 1 };
        raw.device = match device_type {
            cpu if cpu == self.abi.cpu => DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
            cuda if cuda == self.abi.cuda => DLDevice { device_type: DLDeviceType::CUDA, device_id: index },
            _ => return None,
        };
        Some(())
    }

    fn data(&self, handle: Handle, is_written: bool) -> Option<*mut c_void> {
        let (mut read, mut written) = (ptr::null(), ptr::null_mut());
        // SAFETY: as in `describe`. What is lazily cloned is copied before it is written.
        let code = unsafe {
            match is_written {
                true => (self.abi.functions.mutable_data_ptr)(handle, &raw mut written),
                false => (self.abi.functions.const_data_ptr)(handle, &raw mut read),
            }
        };
        (code == 0).then_some(if is_written { written } else { read.cast_mut() })
    }

    /// Where the memory of a result is. None as above.
    pub fn address(&self, object: &Bound<'_, PyAny>) -> Option<usize> {
        let implementation = self.private.implementation(object);
        if !self.private.is_plain(implementation) {
            return None;
        }
        Some(self.data(handle(&implementation), true)?.expose_provenance())
    }

    /// Whether a tensor is nothing but memory and was not made in inference mode.
    pub fn is_tracked(&self, object: &Bound<'_, PyAny>) -> bool {
        self.private.is_tracked(self.private.implementation(object))
    }

    /// `object` must be a tensor of torch's.
    pub fn requires_grad(&self, object: &Bound<'_, PyAny>) -> bool {
        self.private.requires_grad(self.private.implementation(object))
    }

    /// As `requires_grad`.
    pub fn rank(&self, object: &Bound<'_, PyAny>) -> Option<i64> {
        let (implementation, mut rank) = (self.private.implementation(object), 0);
        if implementation.is_null() {
            return None;
        }
        // SAFETY: as in `describe`.
        let code = unsafe { (self.abi.functions.dim)(handle(&implementation), &raw mut rank) };
        (code == 0).then_some(rank)
    }
}

/// A tensor's handle is the address of an at::Tensor, which is one pointer: a borrowed one, for as long as `implementation`.
pub fn handle(implementation: &*const c_void) -> Handle {
    ptr::from_ref(implementation).cast_mut().cast()
}
