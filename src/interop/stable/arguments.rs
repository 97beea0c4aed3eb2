//! The arguments of a dispatched call, as they lie on its stack. What a kernel takes them for is said by its types alone;
//! the operators' schemas, in python/tilewise/torch/library.py, say the same.

use std::borrow::Cow;
use std::ffi::c_void;
use std::ptr::{self, with_exposed_provenance_mut};

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use smallvec::SmallVec;

use super::abi::{Abi, Handle, Value};
use super::objects;
use super::tensor::Tensor;

/// torch's number of a dtype.
#[derive(Clone, Copy, Debug)]
pub struct DTypeNumber(pub i32);

/// A string, as torch has it: the names that are known are short.
#[derive(Clone, Debug)]
pub struct Text(SmallVec<[u8; 24]>);

impl Text {
    pub fn as_str(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

/// Of a type that a schema may name.
pub trait Argument: Sized {
    /// # Safety
    /// `value` must be what torch makes of an argument of this type, and the caller's to free.
    unsafe fn take(abi: &'static Abi, value: Value) -> Self;

    /// The tensor that `value` stands for, if any, which stays where it is.
    ///
    /// # Safety
    /// As `take`.
    unsafe fn tensor(_value: Value) -> Option<Handle> {
        None
    }

    fn into_object(self, py: Python<'_>, abi: &'static Abi) -> PyResult<Py<PyAny>>;
}

/// All those of a call, in the order of the schema. Once taken, nothing is left on the stack for others to free.
pub trait Arguments: Sized {
    const COUNT: u64;

    /// # Safety
    /// `stack` must begin with values that torch has put there for arguments of these types, the caller's to free.
    unsafe fn take(abi: &'static Abi, stack: *mut Value) -> Self;

    /// Whether all tensors among them are so; they stay where they are.
    ///
    /// # Safety
    /// As `take`.
    unsafe fn all(stack: *mut Value, is_so: impl FnMut(Handle) -> bool) -> bool;

    fn into_objects(self, py: Python<'_>, abi: &'static Abi) -> PyResult<Vec<Py<PyAny>>>;
}

macro_rules! arguments {
    ($count:literal: $($type:ident $value:ident $index:literal),*) => {
        impl<$($type: Argument),*> Arguments for ($($type,)*) {
            const COUNT: u64 = $count;

            unsafe fn take(abi: &'static Abi, stack: *mut Value) -> Self {
                // SAFETY: by the caller's promise.
                unsafe { ($($type::take(abi, *stack.add($index)),)*) }
            }

            unsafe fn all(stack: *mut Value, mut is_so: impl FnMut(Handle) -> bool) -> bool {
                // SAFETY: by the caller's promise.
                unsafe { $($type::tensor(*stack.add($index)).is_none_or(&mut is_so))&&* }
            }

            fn into_objects(self, py: Python<'_>, abi: &'static Abi) -> PyResult<Vec<Py<PyAny>>> {
                let ($($value,)*) = self;
                Ok(vec![$($value.into_object(py, abi)?),*])
            }
        }
    };
}

arguments!(2: A a 0, B b 1);
arguments!(3: A a 0, B b 1, C c 2);
arguments!(4: A a 0, B b 1, C c 2, D d 3);
arguments!(6: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5);
arguments!(7: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6);
arguments!(8: A a 0, B b 1, C c 2, D d 3, E e 4, F f 5, G g 6, H h 7);

impl Argument for Tensor {
    unsafe fn take(abi: &'static Abi, value: Value) -> Tensor {
        // SAFETY: a tensor is on the stack as a handle, which by the caller's promise is ours.
        unsafe { Tensor::owned(abi, pointer(value)) }
    }

    unsafe fn tensor(value: Value) -> Option<Handle> {
        Some(pointer(value))
    }

    fn into_object(self, py: Python<'_>, abi: &'static Abi) -> PyResult<Py<PyAny>> {
        objects::of_tensor(py, abi, &self)
    }
}

impl<T: Argument> Argument for Option<T> {
    unsafe fn take(abi: &'static Abi, value: Value) -> Option<T> {
        let inner: *mut Value = pointer(value);
        if inner.is_null() {
            return None;
        }
        // SAFETY: what is optional is null or the address of a value that was allocated for it.
        unsafe {
            let taken = T::take(abi, *inner);
            (abi.delete_value)(inner);
            Some(taken)
        }
    }

    unsafe fn tensor(value: Value) -> Option<Handle> {
        let inner: *mut Value = pointer(value);
        // SAFETY: as above.
        if inner.is_null() { None } else { unsafe { T::tensor(*inner) } }
    }

    fn into_object(self, py: Python<'_>, abi: &'static Abi) -> PyResult<Py<PyAny>> {
        self.map_or_else(|| Ok(py.None()), |given| given.into_object(py, abi))
    }
}

impl Argument for Text {
    unsafe fn take(abi: &'static Abi, value: Value) -> Text {
        let handle: *mut c_void = pointer(value);
        let (mut length, mut data) = (0usize, ptr::null());
        // SAFETY: a string is on the stack as a handle, which by the caller's promise is ours. Its bytes last until it is
        // deleted.
        unsafe {
            (abi.functions.string_length)(handle, &raw mut length);
            (abi.functions.string_data)(handle, &raw mut data);
            let bytes =
                if data.is_null() { &[][..] } else { std::slice::from_raw_parts(data.cast(), length) };
            let text = Text(SmallVec::from_slice(bytes));
            (abi.functions.delete_string)(handle);
            text
        }
    }

    fn into_object(self, py: Python<'_>, _: &'static Abi) -> PyResult<Py<PyAny>> {
        self.as_str().into_py_any(py)
    }
}

impl Argument for DTypeNumber {
    unsafe fn take(_: &'static Abi, value: Value) -> DTypeNumber {
        DTypeNumber(value as u32 as i32)
    }

    fn into_object(self, py: Python<'_>, abi: &'static Abi) -> PyResult<Py<PyAny>> {
        objects::of_dtype(py, abi, self)
    }
}

macro_rules! numbers {
    ($($type:ty: |$value:ident| $read:expr;)*) => {$(
        impl Argument for $type {
            unsafe fn take(_: &'static Abi, $value: Value) -> $type {
                $read
            }

            fn into_object(self, py: Python<'_>, _: &'static Abi) -> PyResult<Py<PyAny>> {
                self.into_py_any(py)
            }
        }
    )*};
}

numbers! {
    i64: |value| value.cast_signed();
    f64: |value| f64::from_bits(value);
    bool: |value| value & 1 != 0;
}

fn pointer<T>(value: Value) -> *mut T {
    with_exposed_provenance_mut(value as usize)
}
