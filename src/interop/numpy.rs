//! numpy arrays in.

use ::numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods, npyffi};
use pyo3::prelude::*;
use pyo3::types::PyType;

use super::source::{Source, loaded_module};
use super::{Argument, descriptor};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::TensorView;

/// What is known of `numpy.ndarray` or of a subclass.
#[derive(Clone, Copy, Debug)]
pub struct ArrayClass {
    /// A masked array, whose mask we would ignore.
    masked: bool,
}

/// Arrays and scalars of numpy, if it is imported.
pub fn classify(class: &Bound<'_, PyType>) -> PyResult<Option<Source>> {
    let py = class.py();
    let Some(numpy) = loaded_module(py, "numpy")? else { return Ok(None) };
    let is = |name: &str| match numpy.getattr_opt(name)? {
        Some(base) => class.is_subclass(&base),
        None => Ok(false),
    };
    if is("ndarray")? {
        let masked = match loaded_module(py, "numpy.ma")? {
            Some(ma) => class.is_subclass(&ma.getattr("MaskedArray")?)?,
            None => false,
        };
        return Ok(Some(Source::Numpy(ArrayClass { masked })));
    }
    Ok(is("generic")?.then_some(Source::NumpyScalar))
}

/// Fills in the view of an array; `object` must be of a type that `classify` called an array.
pub fn take(
    argument: Argument,
    class: ArrayClass,
    object: &Bound<'_, PyAny>,
    view: &mut TensorView,
) -> Result<()> {
    let Argument { op, name, .. } = argument;
    if class.masked {
        let got = "a masked array".into();
        return Err(Error::TensorKind { op, argument: name, got, remedy: "pass its .filled(...)" });
    }
    // SAFETY: the caller vouches for the type, and numpy is loaded, as that type is its own.
    let array = unsafe { object.cast_unchecked::<PyUntypedArray>() };
    view.dtype = dtype(argument, &descr(object))?;
    let size = view.dtype.size() as isize;
    let layout = |problem| Error::NumpyLayout { op, argument: name, problem };
    for (&n, &bytes) in array.shape().iter().zip(array.strides()) {
        if bytes % size != 0 && n > 1 && !array.is_empty() {
            return Err(layout("strides are not multiples of its element size"));
        }
        view.shape.push(n as i64);
        view.strides.push((bytes / size) as i64);
    }
    // SAFETY: as above; the fields of a live array are readable while the GIL is held.
    let fields = unsafe { &*npyffi::_PyArray_GET_ITEM_DATA(array.as_array_ptr()) };
    view.address = fields.data as usize;
    if !view.is_empty() && !view.address.is_multiple_of(view.dtype.size()) {
        return Err(layout("elements are not aligned"));
    }
    view.writable = fields.flags & npyffi::NPY_ARRAY_WRITEABLE != 0;
    descriptor::check(argument, view)
}

/// The descriptor that an array has, whatever a subclass says of its dtype. `array` must be of a type that `classify`
/// called an array.
pub fn descr<'py>(array: &Bound<'py, PyAny>) -> Bound<'py, PyArrayDescr> {
    // SAFETY: the caller vouches for the type, and numpy is loaded, as that type is its own.
    unsafe { array.cast_unchecked::<PyUntypedArray>() }.dtype()
}

/// The dtype of an array or scalar.
pub fn dtype(argument: Argument, descr: &Bound<'_, PyArrayDescr>) -> Result<DType> {
    let refuse = || {
        let name = descr.str().map_or_else(|_| "of an unknown kind".into(), |s| s.to_string());
        descriptor::not_accepted(argument, name)
    };
    if descr.is_native_byteorder() == Some(false) {
        return Err(refuse());
    }
    Ok(match (descr.kind(), descr.itemsize()) {
        (b'b', 1) => DType::Bool,
        (b'u', 1) => DType::U8,
        (b'i', 1) => DType::I8,
        (b'i', 2) => DType::I16,
        (b'i', 4) => DType::I32,
        (b'i', 8) => DType::I64,
        (b'f', 2) if descr.num() == npyffi::NPY_TYPES::NPY_HALF as i32 => DType::F16,
        (b'f', 4) => DType::F32,
        (b'f', 8) => DType::F64,
        // The type that ml_dtypes (jax) registers with numpy.
        (_, 2) if descr.typeobj().name().is_ok_and(|n| n == "bfloat16") => DType::BF16,
        _ => return Err(refuse()),
    })
}
