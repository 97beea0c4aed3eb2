//! Functions that a library wrote in C, called where they live: looking up a method, packing arguments and the
//! interpreter's own checks take as long as what the functions called here do.

use std::ffi::c_int;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyTuple};

/// What C expects of such a function: itself (a module or an object) and at most one argument.
type Function = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject;

/// The C function of a builtin, if it is called in that way.
fn function(builtin: &Bound<'_, PyAny>, convention: c_int) -> Option<Function> {
    builtin.cast::<PyCFunction>().ok()?;
    // SAFETY: `builtin` is a builtin function or method, as just seen, of which these read a field.
    unsafe {
        (ffi::PyCFunction_GetFlags(builtin.as_ptr()) == convention)
            .then(|| ffi::PyCFunction_GetFunction(builtin.as_ptr()))
            .flatten()
    }
}

/// A function of a module.
#[derive(Debug)]
pub struct Builtin {
    object: Py<PyAny>,
    /// Without arguments.
    none: Option<Function>,
    /// With one.
    one: Option<Function>,
    module: Option<Py<PyAny>>,
}

impl Builtin {
    pub fn of(object: Bound<'_, PyAny>) -> Builtin {
        let (none, one) = (function(&object, ffi::METH_NOARGS), function(&object, ffi::METH_O));
        let module = object.getattr("__self__").ok().map(Bound::unbind);
        Builtin { object: object.unbind(), none, one, module }
    }

    pub fn call0<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match (self.none, &self.module) {
            // SAFETY: the function is called as its flags say, on what it is bound to, holding the GIL.
            (Some(function), Some(module)) => unsafe {
                Bound::from_owned_ptr_or_err(py, function(module.as_ptr(), std::ptr::null_mut()))
            },
            _ => self.object.bind(py).call0(),
        }
    }

    pub fn call1<'py>(&self, argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = argument.py();
        match (self.one, &self.module) {
            // SAFETY: as above; the argument lives as long as the call.
            (Some(function), Some(module)) => unsafe {
                Bound::from_owned_ptr_or_err(py, function(module.as_ptr(), argument.as_ptr()))
            },
            _ => self.object.bind(py).call1((argument,)),
        }
    }
}

/// A method of a class that takes no arguments.
#[derive(Debug)]
pub struct Method {
    name: &'static str,
    function: Option<Function>,
}

impl Method {
    /// `instance`: any one of the class.
    pub fn of(instance: &Bound<'_, PyAny>, name: &'static str) -> PyResult<Method> {
        Ok(Method { name, function: function(&instance.getattr(name)?, ffi::METH_NOARGS) })
    }

    /// `object` must be an instance of the class, or of a subclass.
    pub fn call<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self.function {
            // SAFETY: a method without arguments, as its flags say, on an instance of its class.
            Some(function) => unsafe {
                Bound::from_owned_ptr_or_err(object.py(), function(object.as_ptr(), std::ptr::null_mut()))
            },
            None => object.call_method0(self.name),
        }
    }
}

/// An attribute that a class computes in C.
#[derive(Debug)]
pub struct Attribute {
    descriptor: Py<PyAny>,
    get: Option<ffi::descrgetfunc>,
}

impl Attribute {
    pub fn of(class: &Bound<'_, PyAny>, name: &str) -> PyResult<Attribute> {
        let descriptor = class.getattr(name)?;
        // SAFETY: reads a slot of a type; a slot of this number holds a function of this type, or nothing.
        let get = unsafe {
            std::mem::transmute::<*mut std::ffi::c_void, Option<ffi::descrgetfunc>>(ffi::PyType_GetSlot(
                ffi::Py_TYPE(descriptor.as_ptr()),
                ffi::Py_tp_descr_get,
            ))
        };
        Ok(Attribute { descriptor: descriptor.unbind(), get })
    }

    pub fn read<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = object.py();
        match self.get {
            // SAFETY: what the interpreter does for a lookup that ends at this descriptor, which itself checks that
            // `object` is of its class.
            Some(get) => unsafe {
                let class = ffi::Py_TYPE(object.as_ptr());
                Bound::from_owned_ptr_or_err(py, get(self.descriptor.as_ptr(), object.as_ptr(), class.cast()))
            },
            None => self
                .descriptor
                .bind(py)
                .call_method1("__get__", PyTuple::new(py, [object.as_any(), &object.get_type()])?),
        }
    }
}
