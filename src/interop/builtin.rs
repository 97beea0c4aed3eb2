//! Functions that a library wrote in C, called where they live: looking up a method, packing arguments and the
//! interpreter's own checks take as long as what the functions called here do.

use std::ffi::c_int;

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyCFunction, PyTuple};

/// What C expects of such a function: itself (a module or an object) and at most one argument.
type Function = unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject;

/// The C function of a builtin, if it is called by `convention`.
fn function(builtin: &Bound<'_, PyAny>, convention: c_int) -> Option<Function> {
    builtin.cast::<PyCFunction>().ok()?;
    // SAFETY: `builtin` is a builtin function or method, as just seen, of which these read a field.
    unsafe {
        (ffi::PyCFunction_GetFlags(builtin.as_ptr()) == convention)
            .then(|| ffi::PyCFunction_GetFunction(builtin.as_ptr()))
            .flatten()
    }
}

/// The same of one that takes a tuple of arguments and keywords.
type WithKeywords =
    unsafe extern "C" fn(*mut ffi::PyObject, *mut ffi::PyObject, *mut ffi::PyObject) -> *mut ffi::PyObject;

/// The same of one that takes an array of arguments, and keywords.
type Fast = unsafe extern "C" fn(
    *mut ffi::PyObject,
    *const *mut ffi::PyObject,
    ffi::Py_ssize_t,
    *mut ffi::PyObject,
) -> *mut ffi::PyObject;

/// A function of a module.
#[derive(Debug)]
pub struct Builtin {
    object: Py<PyAny>,
    /// What it is called on.
    module: Option<Py<PyAny>>,
    convention: Convention,
}

#[derive(Clone, Copy, Debug)]
enum Convention {
    None(Function),
    One(Function),
    Tuple(Function),
    /// That of what pybind11 wraps; since its release 3, `Fast`.
    TupleAndKeywords(WithKeywords),
    Fast(Fast),
    Other,
}

impl Builtin {
    pub fn of(object: Bound<'_, PyAny>) -> Builtin {
        let by = |flags| function(&object, flags);
        let convention = if let Some(f) = by(ffi::METH_NOARGS) {
            Convention::None(f)
        } else if let Some(f) = by(ffi::METH_O) {
            Convention::One(f)
        } else if let Some(f) = by(ffi::METH_VARARGS) {
            Convention::Tuple(f)
        } else if let Some(f) = by(ffi::METH_VARARGS | ffi::METH_KEYWORDS) {
            // SAFETY: the flags say that the function takes a third pointer.
            Convention::TupleAndKeywords(unsafe { std::mem::transmute::<Function, WithKeywords>(f) })
        } else if let Some(f) = by(ffi::METH_FASTCALL | ffi::METH_KEYWORDS) {
            // SAFETY: the flags say that the function takes an array, its length and the names of keywords.
            Convention::Fast(unsafe { std::mem::transmute::<Function, Fast>(f) })
        } else {
            Convention::Other
        };
        let module = object.getattr("__self__").ok().map(Bound::unbind);
        Builtin { object: object.unbind(), module, convention }
    }

    pub fn call0<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match (self.convention, &self.module) {
            // SAFETY: the function is called as its flags say, on what it is bound to, holding the GIL.
            (Convention::None(function), Some(module)) => unsafe {
                Bound::from_owned_ptr_or_err(py, function(module.as_ptr(), std::ptr::null_mut()))
            },
            (Convention::Tuple(_) | Convention::TupleAndKeywords(_), _) => self.call(&PyTuple::empty(py)),
            // SAFETY: as above; without keywords the last pointer is null.
            (Convention::Fast(function), Some(module)) => unsafe {
                let returned = function(module.as_ptr(), std::ptr::null(), 0, std::ptr::null_mut());
                Bound::from_owned_ptr_or_err(py, returned)
            },
            _ => self.object.bind(py).call0(),
        }
    }

    /// The answer to a question.
    pub fn asks(&self, py: Python<'_>) -> PyResult<bool> {
        truth(&self.call0(py)?)
    }

    pub fn call1<'py>(&self, argument: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = argument.py();
        match (self.convention, &self.module) {
            // SAFETY: as above; the argument lives as long as the call.
            (Convention::One(function), Some(module)) => unsafe {
                Bound::from_owned_ptr_or_err(py, function(module.as_ptr(), argument.as_ptr()))
            },
            // SAFETY: as above; without keywords the last pointer is null.
            (Convention::Fast(function), Some(module)) => unsafe {
                let arguments = [argument.as_ptr()];
                let returned = function(module.as_ptr(), arguments.as_ptr(), 1, std::ptr::null_mut());
                Bound::from_owned_ptr_or_err(py, returned)
            },
            _ => self.object.bind(py).call1((argument,)),
        }
    }

    pub fn call<'py>(&self, arguments: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyAny>> {
        let py = arguments.py();
        let (Some(module), pointer) = (&self.module, arguments.as_ptr()) else {
            return self.object.bind(py).call1(arguments);
        };
        // SAFETY: as above; without keywords the third pointer is null.
        let returned = unsafe {
            match self.convention {
                Convention::Tuple(function) => function(module.as_ptr(), pointer),
                Convention::TupleAndKeywords(function) => {
                    function(module.as_ptr(), pointer, std::ptr::null_mut())
                }
                _ => return self.object.bind(py).call1(arguments),
            }
        };
        // SAFETY: what C returned is ours, or null with an exception set.
        unsafe { Bound::from_owned_ptr_or_err(py, returned) }
    }
}

/// Whether an object counts as true; nearly all that are asked are True or False.
pub fn truth(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    match object.cast_exact::<PyBool>() {
        Ok(bool) => Ok(bool.is_true()),
        Err(_) => object.is_truthy(),
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
