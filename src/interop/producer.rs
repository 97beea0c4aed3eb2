//! Tensors of any other library in, by `__dlpack__`.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dlpark::DlpackFlags;
use dlpark::ffi::{DLDevice, DLDeviceType, DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
use dlpark::python::{ImportedDlpack, from_dlpack};
use pyo3::exceptions::{PyException, PyMemoryError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};

use super::exchange::Table;
use super::torch::first_line;
use super::{Argument, Role, descriptor};
use crate::cuda::RawStream;
use crate::cuda::memory::Event;
use crate::error::{Error, Result};
use crate::tensor::{Device, TensorView};

/// What is known of a type with `__dlpack__`.
#[derive(Debug)]
pub struct Producer {
    /// The top-level module of the type: `cupy`, `jaxlib`.
    pub library: String,
    stream: StreamOf,
    /// Arrays of this library are never written; older capsules cannot say so themselves.
    immutable: bool,
    /// What jax traces a function with, in place of arrays.
    is_tracer: bool,
}

/// Whom to ask for the stream that a library works on.
#[derive(Clone, Copy, Debug)]
enum StreamOf {
    Table(Table),
    Cupy,
    /// Nobody: tensors are handed over on the legacy default stream.
    Unknown,
}

impl Producer {
    pub fn of(class: &Bound<'_, PyType>) -> PyResult<Producer> {
        let module = class.module()?.to_string();
        let library = module.split('.').next().unwrap_or_default().to_string();
        let stream = match Table::of_type(class)? {
            Some(table) => StreamOf::Table(table),
            None if library == "cupy" => StreamOf::Cupy,
            None => StreamOf::Unknown,
        };
        let immutable = library.starts_with("jax");
        let is_tracer = immutable && class.name()?.to_string().ends_with("Tracer");
        Ok(Producer { library, stream, immutable, is_tracer })
    }

    pub fn is_cupy(&self) -> bool {
        matches!(self.stream, StreamOf::Cupy)
    }

    /// Where work on this library's tensors is queued.
    pub fn stream(&self, py: Python<'_>, ordinal: i32) -> Result<RawStream> {
        Ok(match self.stream {
            StreamOf::Table(table) => table.stream(py, ordinal)?,
            StreamOf::Cupy => py
                .import("cupy.cuda")?
                .call_method1("get_current_stream", (ordinal,))?
                .getattr("ptr")?
                .extract()?,
            StreamOf::Unknown => 0,
        })
    }

    /// Fills in the view of a tensor, and returns what must live until the work on it is done.
    pub fn take(
        &self,
        argument: Argument,
        role: Role,
        object: &Bound<'_, PyAny>,
        view: &mut TensorView,
    ) -> Result<Option<Hold>> {
        release_done(object.py());
        let Argument { op, name, .. } = argument;
        if role == Role::Output && self.immutable {
            return Err(Error::ReadOnlyOut { op });
        }
        if self.is_tracer {
            let (got, remedy) =
                ("what jax traces a function with, not an array", "call it outside of jax.jit");
            return Err(Error::TensorKind { op, argument: name, got: got.into(), remedy });
        }
        let StreamOf::Table(table) = self.stream else {
            return self.import(argument, role, object, view).map(Some);
        };
        if role == Role::Output {
            // Whether it may be written is told by the flags of an exported tensor.
            if !table.exports() {
                return self.import(argument, role, object, view).map(Some);
            }
            let managed = table.export(object).map_err(|raised| refused(op, name, raised))?;
            return hold(argument, role, ImportedDlpack::Versioned(managed), view).map(Some);
        }
        let described = table.describe(object, |raw| {
            // SAFETY: the table filled `raw`, whose shape and strides last while `describe` runs.
            unsafe { descriptor::read(argument, raw, view) }
        });
        let (read, managed) = described.map_err(|raised| refused(op, name, raised))?;
        read?;
        Ok(managed.map(|managed| {
            let copied = managed.flags().contains(DlpackFlags::IS_COPIED);
            Hold { _imported: Kept(ImportedDlpack::Versioned(managed)), until_done: copied }
        }))
    }

    fn import(
        &self,
        argument: Argument,
        role: Role,
        object: &Bound<'_, PyAny>,
        view: &mut TensorView,
    ) -> Result<Hold> {
        let (py, Argument { op, name, .. }) = (object.py(), argument);
        let refuse = |raised| refused(op, name, raised);
        let (kind, id): (u32, i32) = object
            .call_method0(intern!(py, "__dlpack_device__"))
            .and_then(|d| d.extract())
            .map_err(refuse)?;
        let device =
            descriptor::device(argument, DLDevice { device_type: DLDeviceType(kind), device_id: id })?;
        let stream = match device {
            Device::Cpu => None,
            Device::Cuda(ordinal) => Some(self.stream(py, ordinal)?),
        };
        let ours_to_order = stream.is_some() && !self.is_cupy();
        if role == Role::Output && ours_to_order {
            return Err(Error::TensorKind {
                op,
                argument: name,
                got: "a CUDA tensor of a library that does not tell its stream".into(),
                remedy: "call without `out`",
            });
        }
        let capsule = capsule(object, stream).map_err(refuse)?;
        let managed = from_dlpack(capsule.as_borrowed(), None, None).map_err(refuse)?;
        let hold = hold(argument, role, managed, view)?;
        if view.device != device {
            let reason = format!("it said to be on {device}, but is on {}", view.device);
            return Err(Error::Producer { op, argument: name, reason });
        }
        Ok(Hold { until_done: hold.until_done || ours_to_order, ..hold })
    }
}

/// Fills in the view of an imported tensor, unless it is to be written and may not be.
fn hold(argument: Argument, role: Role, imported: ImportedDlpack, view: &mut TensorView) -> Result<Hold> {
    let Argument { op, name, .. } = argument;
    let raw = match &imported {
        // SAFETY: its library gave us the tensor; nobody changes its descriptor.
        ImportedDlpack::Legacy(tensor) => unsafe { tensor.tensor() },
        // SAFETY: as above.
        ImportedDlpack::Versioned(tensor) => unsafe { tensor.tensor() },
    };
    // SAFETY: DLPack promises that shape and strides are as long as the tensor has dimensions.
    unsafe { descriptor::read(argument, raw, view) }?;
    let flags = imported.flags();
    view.writable = !flags.contains(DlpackFlags::READ_ONLY);
    let copied = flags.contains(DlpackFlags::IS_COPIED);
    if copied && role == Role::Output {
        let got = "so that its library hands out a copy".into();
        return Err(Error::Storage { op, argument: name, got, remedy: "call without `out`" });
    }
    Ok(Hold { _imported: Kept(imported), until_done: copied })
}

/// `object.__dlpack__(...)`: with the version we know, which producers of before 2024 do not take.
fn capsule<'py>(object: &Bound<'py, PyAny>, stream: Option<RawStream>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let export = object.getattr(intern!(py, "__dlpack__"))?;
    let options = PyDict::new(py);
    if let Some(stream) = stream {
        // The protocol's 1 is the legacy default stream; its 0 is forbidden as ambiguous.
        options.set_item(intern!(py, "stream"), stream.max(1))?;
    }
    options.set_item(intern!(py, "max_version"), (DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION))?;
    match export.call((), Some(&options)) {
        Err(raised) if raised.is_instance_of::<PyTypeError>(py) => {
            options.del_item(intern!(py, "max_version"))?;
            export.call((), Some(&options))
        }
        other => other,
    }
}

/// An exception of somebody's `__dlpack__`, in our words.
fn refused(op: &'static str, argument: &'static str, raised: PyErr) -> Error {
    in_words(raised, |reason| Error::Producer { op, argument, reason })
}

/// Hands a result over to a library by its `from_dlpack`.
pub fn hand_over<'py>(
    op: &'static str,
    from_dlpack: &Bound<'py, PyAny>,
    memory: Bound<'py, PyAny>,
) -> Result<Bound<'py, PyAny>> {
    let module =
        || from_dlpack.getattr(intern!(from_dlpack.py(), "__module__")).and_then(|module| module.extract());
    let library = || module().unwrap_or_else(|_: PyErr| "its library".to_string());
    let refused = |reason| Error::ResultRefused { op, library: library(), reason };
    let result = from_dlpack.call1((memory,)).map_err(|raised| in_words(raised, refused))?;
    if result.is_none() { Err(refused("its from_dlpack returned None".into())) } else { Ok(result) }
}

/// An error with the sentence of somebody's exception, but for those that nobody else is to handle.
fn in_words(raised: PyErr, error: impl FnOnce(String) -> Error) -> Error {
    Python::attach(|py| {
        if !raised.is_instance_of::<PyException>(py) || raised.is_instance_of::<PyMemoryError>(py) {
            return Error::Python(raised);
        }
        let kind = raised.get_type(py).name().map_or_else(|_| "error".into(), |n| n.to_string());
        error(format!("{kind}: {}", first_line(&raised.value(py).to_string())))
    })
}

/// An imported tensor: dropping it tells its library that we are done.
#[derive(Debug)]
pub struct Hold {
    _imported: Kept,
    /// Whether queued work still needs it after the call.
    until_done: bool,
}

struct Kept(#[expect(dead_code, reason = "only its drop matters")] ImportedDlpack);

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ImportedDlpack")
    }
}

/// Tensors that queued work may still be reading, each with the point after which it does not.
static UNTIL_DONE: Mutex<Vec<(Event, Vec<Hold>)>> = Mutex::new(Vec::new());

fn until_done() -> MutexGuard<'static, Vec<(Event, Vec<Hold>)>> {
    UNTIL_DONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets go of the tensors of a call: at once where the library itself orders its memory by the stream the
/// work is on, else when the work is done, as seen by a later call.
pub fn release(
    py: Python<'_>,
    op: &'static str,
    device: Device,
    stream: RawStream,
    holds: Vec<Hold>,
) -> Result<()> {
    let Device::Cuda(ordinal) = device else { return Ok(()) };
    let kept: Vec<Hold> = holds.into_iter().filter(|h| h.until_done).collect();
    if kept.is_empty() {
        return Ok(());
    }
    match py.detach(|| Event::record(op, ordinal, stream)) {
        Ok(event) => {
            until_done().push((event, kept));
            Ok(())
        }
        Err(error) => {
            // Without a point to wait for, losing the memory is the one safe choice.
            std::mem::forget(kept);
            Err(error)
        }
    }
}

fn release_done(py: Python<'_>) {
    let pending = std::mem::take(&mut *until_done());
    if pending.is_empty() {
        return;
    }
    let state: Vec<bool> = {
        let events: Vec<&Event> = pending.iter().map(|(event, _)| event).collect();
        py.detach(|| events.into_iter().map(Event::is_done).collect())
    };
    let (done, still): (Vec<_>, Vec<_>) = pending.into_iter().zip(state).partition(|(_, done)| *done);
    until_done().extend(still.into_iter().map(|(entry, _)| entry));
    let (events, holds): (Vec<_>, Vec<_>) = done.into_iter().map(|(entry, _)| entry).unzip();
    py.detach(|| drop(events));
    // Outside the lock: a library's deleter may run Python code.
    drop(holds);
}
