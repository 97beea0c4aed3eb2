//! A tensor that torch has handed over, or made for us.

use std::ptr;

use super::abi::{Abi, Handle};
use super::objects;
use crate::error::{Error, Result};
use crate::interop::{Argument, descriptor};
use crate::ops::output::OutputSpec;
use crate::tensor::{Device, Dims, TensorView};

/// Let go of when dropped.
#[derive(Debug)]
pub struct Tensor {
    abi: &'static Abi,
    handle: Handle,
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: the handle is ours, and is used by nobody afterwards. Nothing can be done about a failure.
        unsafe { (self.abi.functions.delete_tensor)(self.handle) };
    }
}

impl Tensor {
    /// # Safety
    /// `handle` must be one that nobody else lets go of.
    pub unsafe fn owned(abi: &'static Abi, handle: Handle) -> Tensor {
        Tensor { abi, handle }
    }

    /// Uninitialised memory of torch's allocator, as `spec` says, and its view.
    #[inline]
    pub fn empty(abi: &'static Abi, argument: Argument, spec: &OutputSpec) -> Result<(Tensor, TensorView)> {
        let (device_type, index) = match spec.device {
            Device::Cpu => (abi.cpu, -1),
            Device::Cuda(ordinal) => (abi.cuda, ordinal),
        };
        let rank = spec.shape.len() as i64;
        let (sizes, strides, dtype) = (spec.shape.as_ptr(), spec.strides.as_ptr(), abi.number_of(spec.dtype));
        let mut handle = ptr::null_mut();
        // SAFETY: sizes and strides are of `rank` integers, and the handle is ours where the call succeeds.
        let code = unsafe {
            (abi.functions.empty_strided)(rank, sizes, strides, dtype, device_type, index, &raw mut handle)
        };
        let tensor = match code {
            0 if !handle.is_null() => Tensor { abi, handle },
            _ => objects::allocate(abi, argument.op, spec)?,
        };
        let mut address = ptr::null_mut();
        // SAFETY: the tensor is alive, and the pointer ours to write.
        let code = unsafe { (abi.functions.mutable_data_ptr)(tensor.handle, &raw mut address) };
        match code {
            0 => Ok((tensor, TensorView { address: address.expose_provenance(), ..spec.view() })),
            _ => Err(no_memory(argument)),
        }
    }

    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Hands it to torch.
    pub fn into_handle(self) -> Handle {
        std::mem::ManuallyDrop::new(self).handle
    }

    /// What a backend may read of it while it lives.
    #[inline]
    pub fn view(&self, argument: Argument) -> Result<TensorView> {
        let (functions, handle) = (&self.abi.functions, self.handle);
        let (mut rank, mut dtype, mut device_type, mut index) = (0, 0, 0, 0);
        let (mut sizes, mut strides, mut address) = (ptr::null_mut(), ptr::null_mut(), ptr::null());
        // SAFETY: the tensor is alive, and each function writes one variable.
        let codes = unsafe {
            [
                (functions.dim)(handle, &raw mut rank),
                (functions.sizes)(handle, &raw mut sizes),
                (functions.strides)(handle, &raw mut strides),
                (functions.dtype)(handle, &raw mut dtype),
                (functions.device_type)(handle, &raw mut device_type),
                (functions.device_index)(handle, &raw mut index),
                (functions.const_data_ptr)(handle, &raw mut address),
            ]
        };
        if codes != [0; 7] {
            return Err(no_memory(argument));
        }
        let rank = descriptor::rank(argument, i32::try_from(rank).unwrap_or(i32::MAX))?;
        let dims = |from: *mut i64| match rank {
            0 => Dims::new(),
            // SAFETY: torch keeps so many sizes and strides of a tensor that is alive.
            _ => Dims::from_slice(unsafe { std::slice::from_raw_parts(from, rank) }),
        };
        let dtype =
            self.abi.dtype_of(dtype).map_err(|name| descriptor::not_accepted(argument, name.into()))?;
        let device = match device_type {
            cpu if cpu == self.abi.cpu => Device::Cpu,
            cuda if cuda == self.abi.cuda => Device::Cuda(index),
            other => {
                let got = format!("device type {other}");
                return Err(Error::DeviceNotSupported { op: argument.op, argument: argument.name, got });
            }
        };
        let (shape, strides) = (dims(sizes), dims(strides));
        let address = address.expose_provenance();
        let mut view = TensorView { address, dtype, device, shape, strides, writable: true };
        descriptor::check(argument, &mut view)?;
        Ok(view)
    }
}

fn no_memory(argument: Argument) -> Error {
    Error::NoMemory { op: argument.op, argument: argument.name }
}
