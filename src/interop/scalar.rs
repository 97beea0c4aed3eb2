//! Numbers that are not tensors: Python's own, numpy's scalars, and the value of a 0-dimensional tensor.

use std::borrow::Cow;

use ::numpy::{PyArrayDescr, PyArrayDescrMethods};
use half::{bf16, f16};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt};

use super::source::{Source, type_name};
use super::{Argument, Role, descriptor, numpy};
use crate::dtype::{Category, DType};
use crate::error::{Error, Result};
use crate::ops::Scalar;
use crate::tensor::{Device, TensorView};

/// The value of a Python bool, int or float; None for anything else.
pub fn python_number(argument: Argument, object: &Bound<'_, PyAny>) -> Result<Option<Scalar>> {
    Ok(if let Ok(float) = object.cast_exact::<PyFloat>() {
        Some(Scalar::Float(float.value()))
    } else if let Ok(bool) = object.cast_exact::<PyBool>() {
        Some(Scalar::Bool(bool.is_true()))
    } else if object.is_instance_of::<PyInt>() {
        Some(integer(argument, object)?)
    } else if object.is_instance_of::<PyFloat>() {
        // numpy.float64 is a float too; every other subclass counts as the float it holds.
        Some(Scalar::Float(object.extract()?))
    } else {
        None
    })
}

/// Whether an object is one of Python's own numbers, and of no subclass.
pub fn is_number(object: &Bound<'_, PyAny>) -> bool {
    object.is_exact_instance_of::<PyFloat>()
        || object.is_exact_instance_of::<PyInt>()
        || object.is_exact_instance_of::<PyBool>()
}

/// Whether an object is `numpy.float32(2)` or another scalar of numpy's.
pub fn is_numpy_scalar(object: &Bound<'_, PyAny>) -> Result<bool> {
    Ok(matches!(*Source::of(object)?, Source::NumpyScalar))
}

/// A number where no tensor may stand: bool, int, float, a numpy scalar or, as in torch, a 0-dimensional tensor
/// of the CPU that nothing is to be differentiated by.
pub fn number(argument: Argument, object: &Bound<'_, PyAny>) -> Result<Scalar> {
    if let Some(number) = python_number(argument, object)? {
        return Ok(number);
    }
    match &*Source::of(object)? {
        Source::NumpyScalar => {
            if let Ok(Number { value, .. }) = numpy_number(argument, object) {
                return Ok(value);
            }
        }
        Source::Torch(class) => {
            let mut view = descriptor::blank();
            let differentiated = object.getattr(intern!(object.py(), "requires_grad"))?.is_truthy()?;
            let taken = class.take(argument, Role::Input, object, &mut view);
            if !differentiated && taken.is_ok() && view.rank() == 0 && view.device == Device::Cpu {
                // SAFETY: what was taken keeps the memory alive.
                return Ok(unsafe { read(&view) });
            }
            let got = format!("{}; pass its item()", type_name(object));
            return Err(Error::NotANumber { op: argument.op, argument: argument.name, got });
        }
        _ => {}
    }
    Err(Error::NotANumber { op: argument.op, argument: argument.name, got: type_name(object) })
}

/// The same as a float64, which holds larger integers than an int64 does.
pub fn real(argument: Argument, object: &Bound<'_, PyAny>) -> Result<f64> {
    if object.is_exact_instance_of::<PyInt>() {
        return object.extract().map_err(|_| integer_range(argument, object, "float64"));
    }
    Ok(number(argument, object)?.as_f64())
}

/// A number that stands for a tensor.
#[derive(Debug)]
pub struct Number {
    pub value: Scalar,
    /// Of a numpy scalar, or why that is none of ours.
    pub dtype: Option<Result<DType>>,
}

/// The value of a numpy scalar of any real dtype.
pub fn numpy_number(argument: Argument, object: &Bound<'_, PyAny>) -> Result<Number> {
    let descr = object.getattr(intern!(object.py(), "dtype"))?.cast_into::<PyArrayDescr>();
    let descr = descr.map_err(PyErr::from)?;
    let dtype = numpy::dtype(argument, &descr);
    let category = match descr.kind() {
        b'b' => Category::Bool,
        b'i' | b'u' => Category::Integer,
        b'f' => Category::Float,
        // bfloat16 of another package, or no number.
        _ => numpy::dtype(argument, &descr)?.category(),
    };
    Ok(Number { value: of_category(argument, object, category)?, dtype: Some(dtype) })
}

fn of_category(argument: Argument, object: &Bound<'_, PyAny>, category: Category) -> Result<Scalar> {
    Ok(match category {
        Category::Bool => Scalar::Bool(object.is_truthy()?),
        Category::Integer => integer(argument, object)?,
        Category::Float => Scalar::Float(object.call_method0(intern!(object.py(), "__float__"))?.extract()?),
    })
}

/// A whole number of 64 bits, with a sign or without.
fn integer(argument: Argument, object: &Bound<'_, PyAny>) -> Result<Scalar> {
    let signed = object.extract::<i64>().map(i128::from);
    let value = signed.or_else(|_| object.extract::<u64>().map(i128::from));
    value.map(Scalar::Int).map_err(|_| integer_range(argument, object, "int64 or uint64"))
}

fn integer_range(argument: Argument, object: &Bound<'_, PyAny>, into: &'static str) -> Error {
    Error::IntegerRange { op: argument.op, argument: argument.name, value: shown(object), into }
}

/// How a value looks in a message, cut where it would bury the sentence. Python refuses to print integers
/// of thousands of digits.
pub fn shown(object: &Bound<'_, PyAny>) -> String {
    object.repr().map_or_else(
        |_| format!("a {} too long to print", type_name(object)),
        |r| shortened(&r.to_string()).into_owned(),
    )
}

pub fn shortened(text: &str) -> Cow<'_, str> {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => Cow::Owned(format!("{}...", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// An integer argument such as dim=: anything with `__index__`.
pub fn index(argument: Argument, object: &Bound<'_, PyAny>) -> Result<i64> {
    let py = object.py();
    let Argument { op, name, .. } = argument;
    object.extract().map_err(|raised: PyErr| {
        if raised.is_instance_of::<PyOverflowError>(py) {
            integer_range(argument, object, "int64")
        } else if raised.is_instance_of::<PyTypeError>(py) {
            Error::NotAnInteger { op, argument: name, got: type_name(object) }
        } else {
            // Out of the caller's own __index__.
            Error::Python(raised)
        }
    })
}

/// Refuses what is neither a tensor nor a number.
pub fn not_an_operand(argument: Argument, object: &Bound<'_, PyAny>) -> Error {
    if object.is_instance_of::<PyComplex>() {
        return Error::ComplexNumber { op: argument.op, argument: argument.name };
    }
    Error::NotAnOperand { op: argument.op, argument: argument.name, got: type_name(object) }
}

/// Refuses two numbers where one must be a tensor.
pub fn only_numbers(x: &Bound<'_, PyAny>, y: &Bound<'_, PyAny>) -> Error {
    Error::OnlyNumbers { x: type_name(x), y: type_name(y) }
}

/// The value of a 0-dimensional tensor on the CPU.
///
/// # Safety
/// The memory the view describes must be alive.
pub unsafe fn read(view: &TensorView) -> Scalar {
    let pointer: *const u8 = std::ptr::with_exposed_provenance(view.address);
    // SAFETY: a 0-dimensional view has one element, at an address that `descriptor::checked` found
    // aligned and not null; a bool is read as a byte, so that any pattern is valid.
    unsafe {
        match view.dtype {
            DType::Bool => Scalar::Bool(*pointer != 0),
            DType::U8 => Scalar::Int(i128::from(*pointer)),
            DType::I8 => Scalar::Int(i128::from(*pointer.cast::<i8>())),
            DType::I16 => Scalar::Int(i128::from(*pointer.cast::<i16>())),
            DType::I32 => Scalar::Int(i128::from(*pointer.cast::<i32>())),
            DType::I64 => Scalar::Int(i128::from(*pointer.cast::<i64>())),
            DType::F16 => Scalar::Float((*pointer.cast::<f16>()).to_f64()),
            DType::BF16 => Scalar::Float((*pointer.cast::<bf16>()).to_f64()),
            DType::F32 => Scalar::Float(f64::from(*pointer.cast::<f32>())),
            DType::F64 => Scalar::Float(*pointer.cast::<f64>()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Dims;

    #[test]
    fn reads_one_element_of_every_dtype() {
        let bits: [u64; 1] = [0x4248_0000_4248_c248];
        let view = |dtype| TensorView {
            address: bits.as_ptr().expose_provenance(),
            dtype,
            device: Device::Cpu,
            shape: Dims::new(),
            strides: Dims::new(),
            writable: false,
        };
        // SAFETY: `bits` outlives every read.
        let value = |dtype| unsafe { read(&view(dtype)) };
        assert_eq!(value(DType::Bool), Scalar::Bool(true));
        assert_eq!(value(DType::U8), Scalar::Int(0x48));
        assert_eq!(value(DType::I8), Scalar::Int(0x48));
        assert_eq!(value(DType::I16), Scalar::Int(i128::from(0xc248_u16.cast_signed())));
        assert_eq!(value(DType::I32), Scalar::Int(0x4248_c248));
        assert_eq!(value(DType::I64), Scalar::Int(0x4248_0000_4248_c248));
        assert_eq!(value(DType::F16), Scalar::Float(f16::from_bits(0xc248).to_f64()));
        assert_eq!(value(DType::BF16), Scalar::Float(-50.0));
        assert_eq!(value(DType::F32), Scalar::Float(f64::from(f32::from_bits(0x4248_c248))));
        assert_eq!(value(DType::F64), Scalar::Float(f64::from_bits(0x4248_0000_4248_c248)));
    }
}
