//! DLPack's C exchange table: a view of a tensor and the stream its library works on, without a capsule.
//!
//! 150 ns a tensor where `__dlpack__` takes 14 us (one H200 host, torch 2.15).

use std::ffi::c_void;
use std::ptr::NonNull;

use dlpark::Managed;
use dlpark::ffi::{
    DLDeviceType, DLManagedTensorVersioned, DLPACK_MAJOR_VERSION, DLPackExchangeAPI, DLPackExchangeAPIHeader,
    DLTensor,
};
use pyo3::exceptions::{PyBufferError, PyRuntimeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyInt, PyType};

use crate::cuda::RawStream;

/// A library's table. Libraries keep it alive for the life of the process.
#[derive(Clone, Copy, Debug)]
pub struct Table(NonNull<DLPackExchangeAPI>);

// SAFETY: the table is constant data that outlives every thread.
unsafe impl Send for Table {}
// SAFETY: as above.
unsafe impl Sync for Table {}

impl Table {
    /// The table a type publishes, under the name of DLPack 1.3 (a capsule) or under the one before (an
    /// address, or a capsule); None if there is none of a version we know.
    pub fn of_type(class: &Bound<'_, PyType>) -> PyResult<Option<Table>> {
        let py = class.py();
        for name in [intern!(py, "__dlpack_c_exchange_api__"), intern!(py, "__c_dlpack_exchange_api__")] {
            let Some(published) = class.getattr_opt(name)? else { continue };
            let address = if let Ok(capsule) = published.cast::<PyCapsule>() {
                match capsule.pointer_checked(Some(c"dlpack_exchange_api")) {
                    Ok(pointer) => pointer.as_ptr() as usize,
                    Err(_) => continue,
                }
            } else if let Ok(address) = published.cast_exact::<PyInt>() {
                address.extract::<usize>().unwrap_or(0)
            } else {
                continue;
            };
            if let Some(table) = Table::compatible(std::ptr::with_exposed_provenance_mut(address)) {
                return Ok(Some(table));
            }
        }
        Ok(None)
    }

    /// Walks from the newest table of a library to the one of our major version.
    fn compatible(newest: *mut DLPackExchangeAPIHeader) -> Option<Table> {
        let mut header = newest;
        // A library has as many tables as there are major versions; the bound only guards against a ring.
        for _ in 0..16 {
            if header.is_null() || !header.is_aligned() {
                return None;
            }
            // SAFETY: DLPack promises that the published address, and each `prev_api`, is a header that
            // stays valid for the life of the process.
            let DLPackExchangeAPIHeader { version, prev_api } = unsafe { *header };
            if version.major == DLPACK_MAJOR_VERSION {
                return NonNull::new(header.cast()).map(Table).filter(Table::is_usable);
            }
            header = prev_api;
        }
        None
    }

    fn api(&self) -> &DLPackExchangeAPI {
        // SAFETY: `compatible` saw our major version, under which the whole table follows the header.
        unsafe { self.0.as_ref() }
    }

    fn is_usable(&self) -> bool {
        let api = self.api();
        api.current_work_stream.is_some()
            && (api.dltensor_from_py_object_no_sync.is_some()
                || api.managed_tensor_from_py_object_no_sync.is_some())
    }

    /// Describes `object`, which must be of the type this table was found on, to `read`. The description
    /// is valid only meanwhile; the memory is, while both `object` and the tensor that some libraries make
    /// for the purpose live.
    pub fn describe<T>(
        &self,
        object: &Bound<'_, PyAny>,
        read: impl FnOnce(&DLTensor) -> T,
    ) -> PyResult<(T, Option<Managed<DLManagedTensorVersioned>>)> {
        let py = object.py();
        let (api, pointer) = (self.api(), object.as_ptr().cast::<c_void>());
        if let Some(fill) = api.dltensor_from_py_object_no_sync {
            let mut raw = DLTensor::default();
            // SAFETY: `object` is alive and of the table's type, the GIL is held, `raw` is ours to fill.
            return match unsafe { fill(pointer, &raw mut raw) } {
                0 => Ok((read(&raw), None)),
                _ => Err(raised(py)),
            };
        }
        let Some(export) = api.managed_tensor_from_py_object_no_sync else {
            return Err(PyBufferError::new_err("its DLPack exchange table is empty"));
        };
        let mut managed: *mut DLManagedTensorVersioned = std::ptr::null_mut();
        // SAFETY: as above; on success `managed` is ours.
        if unsafe { export(pointer, &raw mut managed) } != 0 {
            return Err(raised(py));
        }
        // SAFETY: the table just gave us this tensor; from here on dlpark releases it, once.
        let owned =
            unsafe { Managed::from_raw(managed) }.map_err(|e| PyBufferError::new_err(e.to_string()))?;
        // SAFETY: nobody else knows this descriptor.
        let described = read(unsafe { owned.tensor() });
        Ok((described, Some(owned)))
    }

    /// The stream that the library queues its own work on, on this thread.
    pub fn stream(&self, py: Python<'_>, ordinal: i32) -> PyResult<RawStream> {
        let mut stream: *mut c_void = std::ptr::null_mut();
        let Some(current) = self.api().current_work_stream else { return Ok(0) };
        // SAFETY: a plain query that writes one pointer.
        match unsafe { current(DLDeviceType::CUDA, ordinal, &raw mut stream) } {
            0 => Ok(stream as RawStream),
            _ => Err(raised(py)),
        }
    }
}

/// The exception a table function left behind.
fn raised(py: Python<'_>) -> PyErr {
    PyErr::take(py).unwrap_or_else(|| PyRuntimeError::new_err("the library gave no reason"))
}
