//! Results for libraries that only take tensors over: memory of our own, handed to their `from_dlpack`.

use std::alloc::{self, Layout};
use std::ffi::c_void;
use std::sync::Arc;

use dlpark::ffi::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned,
};
use dlpark::metadata::Dynamic;
use dlpark::python::{CudaStreamRequest, DlpackExporter, ExportRequest, export_dlpack};
use dlpark::{DlpackFlags, Managed, ManagedTensorBase};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;

use crate::cuda::RawStream;
use crate::cuda::memory::Block;
use crate::error::{Error, Result};
use crate::ops::output::OutputSpec;
use crate::tensor::{Device, TensorView, layout};

/// jax takes CPU memory without a copy only if it is aligned to 64 bytes.
const ALIGNMENT: usize = 256;

/// Memory that is freed when the last tensor over it is gone.
#[derive(Debug)]
enum Memory {
    Host { address: usize, layout: Layout },
    Device(Block),
}

impl Memory {
    fn allocate(op: &'static str, device: Device, bytes: usize, stream: RawStream) -> Result<Memory> {
        match device {
            Device::Cuda(ordinal) => Block::allocate(op, ordinal, bytes, stream).map(Memory::Device),
            Device::Cpu => {
                let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT)
                    .map_err(|_| Error::OutOfMemory { op, bytes })?;
                // Zeroed, since the backends write through slices, and Rust has none of uninitialised numbers.
                // SAFETY: the size is at least one.
                let pointer = unsafe { alloc::alloc_zeroed(layout) };
                if pointer.is_null() {
                    return Err(Error::OutOfMemory { op, bytes });
                }
                Ok(Memory::Host { address: pointer.expose_provenance(), layout })
            }
        }
    }

    fn address(&self) -> usize {
        match self {
            Memory::Host { address, .. } => *address,
            Memory::Device(block) => block.address,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Memory::Host { address, layout } = *self {
            // SAFETY: allocated in `allocate` with this layout and freed only here.
            unsafe { alloc::dealloc(std::ptr::with_exposed_provenance_mut(address), layout) };
        }
    }
}

/// A row-major tensor of ours, as an object with `__dlpack__`.
#[derive(Debug)]
#[pyclass(frozen, module = "tilewise._core", name = "_Result")]
pub struct Exported {
    memory: Arc<Memory>,
    spec: OutputSpec,
}

impl Exported {
    /// What is made of `spec`: its order of dimensions is not kept.
    pub fn row_major(spec: &OutputSpec) -> OutputSpec {
        OutputSpec::contiguous(spec.shape.clone(), spec.dtype, spec.device)
    }

    /// Uninitialised memory.
    pub fn allocate(
        py: Python<'_>,
        op: &'static str,
        spec: &OutputSpec,
        stream: RawStream,
    ) -> Result<Exported> {
        let elements = usize::try_from(layout::len(&spec.shape)).unwrap_or(usize::MAX);
        let bytes = elements.saturating_mul(spec.dtype.size());
        let memory = py.detach(|| Memory::allocate(op, spec.device, bytes, stream))?;
        Ok(Exported { memory: Arc::new(memory), spec: Exported::row_major(spec) })
    }

    /// Called when the work that writes it is done or queued.
    pub fn finish(&self, py: Python<'_>, op: &'static str) -> Result<()> {
        match &*self.memory {
            Memory::Host { .. } => Ok(()),
            Memory::Device(block) => py.detach(|| block.written(op)),
        }
    }

    pub fn view(&self) -> TensorView {
        TensorView {
            address: self.memory.address(),
            dtype: self.spec.dtype,
            device: self.spec.device,
            shape: self.spec.shape.clone(),
            strides: self.spec.strides.clone(),
            writable: true,
        }
    }

    fn export<M: ManagedTensorBase>(&self) -> PyResult<Managed<M>> {
        let shape_and_strides = Dynamic::new(self.spec.shape.as_slice(), self.spec.strides.as_slice());
        let prepared =
            shape_and_strides.prepare_as::<M>().map_err(|e| PyBufferError::new_err(e.to_string()))?;
        let mut tensor = prepared.initialize(Arc::clone(&self.memory));
        let (code, bits) = self.spec.dtype.dlpack();
        let data: *mut c_void = std::ptr::with_exposed_provenance_mut(self.memory.address());
        tensor.set_data(data).set_device(self.device()).set_dtype(DLDataType {
            code: DLDataTypeCode(code),
            bits,
            lanes: 1,
        });
        // SAFETY: the descriptor is complete, and the memory lives as long as the tensor, which holds it.
        Ok(unsafe { tensor.finish() })
    }
}

impl DlpackExporter for Exported {
    fn device(&self) -> DLDevice {
        match self.spec.device {
            Device::Cpu => DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
            Device::Cuda(ordinal) => DLDevice { device_type: DLDeviceType::CUDA, device_id: ordinal },
        }
    }

    fn flags(&self) -> DlpackFlags {
        DlpackFlags::empty()
    }

    /// Lets the consumer's stream wait for the work that writes the tensor.
    fn prepare_export(&self, py: Python<'_>, request: &ExportRequest<'_>) -> PyResult<()> {
        let Memory::Device(block) = &*self.memory else { return Ok(()) };
        let consumer = match request.cuda_stream()? {
            CudaStreamRequest::NoSync => return Ok(()),
            CudaStreamRequest::Omitted | CudaStreamRequest::LegacyDefault => 0,
            CudaStreamRequest::PerThreadDefault => 2,
            CudaStreamRequest::Pointer(stream) => stream,
        };
        py.detach(|| block.hold_back("__dlpack__", consumer))
            .map_err(|error| PyBufferError::new_err(error.to_string()))
    }

    fn export_legacy(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensor>> {
        self.export()
    }

    fn export_versioned(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensorVersioned>> {
        self.export()
    }
}

#[pymethods]
impl Exported {
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        export_dlpack(self, py, ExportRequest::parse(stream, max_version, dl_device, copy)?)
    }

    fn __dlpack_device__(&self) -> (u32, i32) {
        let device = self.device();
        (device.device_type.0, device.device_id)
    }
}
