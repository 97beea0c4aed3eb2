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
        let mut raw = DLTensor::default();
        if let Some(filled) = self.fill(object, &mut raw) {
            return filled.map(|()| (read(&raw), None));
        }
        let owned = self.export(object)?;
        // SAFETY: nobody else knows this descriptor.
        let described = read(unsafe { owned.tensor() });
        Ok((described, Some(owned)))
    }

    /// Fills in a description that lasts as long as the tensor; None where the library makes no such thing.
    pub fn fill(&self, object: &Bound<'_, PyAny>, raw: &mut DLTensor) -> Option<PyResult<()>> {
        let fill = self.api().dltensor_from_py_object_no_sync?;
        // SAFETY: `object` is alive and of the table's type, the GIL is held, `raw` is ours to fill.
        Some(match unsafe { fill(object.as_ptr().cast(), raw) } {
            0 => Ok(()),
            _ => Err(raised(object.py())),
        })
    }

    /// Whether `export` works; a table without it only describes.
    pub fn exports(&self) -> bool {
        self.api().managed_tensor_from_py_object_no_sync.is_some()
    }

    /// As `describe`, with what only an exported tensor has: flags.
    pub fn export(&self, object: &Bound<'_, PyAny>) -> PyResult<Managed<DLManagedTensorVersioned>> {
        let Some(export) = self.api().managed_tensor_from_py_object_no_sync else {
            return Err(PyBufferError::new_err("its DLPack exchange table is empty"));
        };
        let mut managed: *mut DLManagedTensorVersioned = std::ptr::null_mut();
        // SAFETY: `object` is alive and of the table's type, and the GIL is held; on success `managed` is ours.
        if unsafe { export(object.as_ptr().cast(), &raw mut managed) } != 0 {
            return Err(raised(object.py()));
        }
        // SAFETY: the table just gave us this tensor; from here on dlpark releases it, once.
        unsafe { Managed::from_raw(managed) }.map_err(|e| PyBufferError::new_err(e.to_string()))
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

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use dlpark::DlpackFlags;
    use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLPackVersion};
    use pyo3::types::PyDict;

    use super::*;

    static RELEASED: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn release(tensor: *mut DLManagedTensorVersioned) {
        RELEASED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: made by `export` with Box::into_raw, and released once.
        drop(unsafe { Box::from_raw(tensor) });
    }

    unsafe extern "C" fn export(_: *mut c_void, out: *mut *mut DLManagedTensorVersioned) -> c_int {
        let tensor = DLManagedTensorVersioned {
            version: DLPackVersion { major: 1, minor: 0 },
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(release),
            flags: DlpackFlags::empty(),
            dl_tensor: DLTensor {
                device: DLDevice { device_type: DLDeviceType::CPU, device_id: 0 },
                dtype: DLDataType { code: DLDataTypeCode::INT, bits: 64, lanes: 1 },
                byte_offset: 24,
                ..DLTensor::default()
            },
        };
        // SAFETY: the caller's pointer is writable.
        unsafe { *out = Box::into_raw(Box::new(tensor)) };
        0
    }

    unsafe extern "C" fn stream(_: DLDeviceType, id: i32, out: *mut *mut c_void) -> c_int {
        // SAFETY: the caller's pointer is writable.
        unsafe { *out = std::ptr::without_provenance_mut(1000 + id as usize) };
        0
    }

    fn table(major: u32, prev_api: *mut DLPackExchangeAPIHeader) -> *mut DLPackExchangeAPIHeader {
        let header = DLPackExchangeAPIHeader { version: DLPackVersion { major, minor: 3 }, prev_api };
        let table = DLPackExchangeAPI {
            header,
            managed_tensor_allocator: None,
            managed_tensor_from_py_object_no_sync: Some(export),
            managed_tensor_to_py_object_no_sync: None,
            dltensor_from_py_object_no_sync: None,
            current_work_stream: Some(stream),
        };
        Box::into_raw(Box::new(table)).cast()
    }

    fn class<'py>(py: Python<'py>, name: &str, address: usize) -> Bound<'py, PyType> {
        let attributes = PyDict::new(py);
        attributes.set_item(name, address).unwrap();
        py.get_type::<PyType>().call1(("Tensor", (), attributes)).unwrap().cast_into().unwrap()
    }

    #[test]
    fn an_older_table_without_views_is_found_and_its_tensors_released_once() {
        Python::initialize();
        Python::attach(|py| {
            let newest = table(2, table(DLPACK_MAJOR_VERSION, std::ptr::null_mut()));
            let class = class(py, "__c_dlpack_exchange_api__", newest.expose_provenance());
            let found = Table::of_type(&class).unwrap().unwrap();
            assert_eq!(found.stream(py, 7).unwrap(), 1007);
            let object = class.call0().unwrap();
            let (offset, owned) = found.describe(&object, |raw| raw.byte_offset).unwrap();
            assert_eq!((offset, RELEASED.load(Ordering::Relaxed)), (24, 0));
            drop(owned);
            assert_eq!(RELEASED.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn tables_of_unknown_versions_and_other_attributes_are_none() {
        Python::initialize();
        Python::attach(|py| {
            let unknown = table(2, std::ptr::null_mut()).expose_provenance();
            for (name, value) in [
                ("__dlpack_c_exchange_api__", unknown),
                ("__dlpack_c_exchange_api__", 0),
                ("__dlpack_c_exchange_api__", 3),
                ("unrelated", unknown),
            ] {
                assert!(Table::of_type(&class(py, name, value)).unwrap().is_none());
            }
            let class = class(py, "__dlpack_c_exchange_api__", 0);
            class.setattr("__dlpack_c_exchange_api__", "text").unwrap();
            assert!(Table::of_type(&class).unwrap().is_none());
        });
    }
}
