//! The exception classes, and the one map from our errors to them.

use pyo3::exceptions::{
    PyException, PyIndexError, PyMemoryError, PyNotImplementedError, PyRuntimeError, PySystemError,
    PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::error::{Error, Family};

/// The classes; each one after the first derives from it and from the builtin a user would expect, so
/// they are made by calling `type`, which alone knows several bases.
#[derive(Debug)]
struct Classes {
    base: Py<PyType>,
    dtype: Py<PyType>,
    shape: Py<PyType>,
    dim: Py<PyType>,
    layout: Py<PyType>,
    device: Py<PyType>,
    option: Py<PyType>,
    unsupported: Py<PyType>,
    cuda: Py<PyType>,
    memory: Py<PyType>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

impl Classes {
    fn make(py: Python<'_>) -> PyResult<Classes> {
        let class = |name: &str, bases: &[&Bound<'_, PyType>], doc: &str| -> PyResult<Py<PyType>> {
            let namespace = PyDict::new(py);
            namespace.set_item("__module__", "tilewise")?;
            namespace.set_item("__doc__", doc)?;
            let made = py.get_type::<PyType>().call1((name, PyTuple::new(py, bases)?, namespace))?;
            Ok(made.cast_into::<PyType>()?.unbind())
        };
        let base = class(
            "TilewiseError",
            &[&py.get_type::<PyException>()],
            "Base of every error that tilewise raises itself.",
        )?;
        let root = base.bind(py);
        let shape = class(
            "ShapeError",
            &[root, &py.get_type::<PyValueError>()],
            "Shapes do not fit together, or `out` does not have the shape of the result.",
        )?;
        Ok(Classes {
            dtype: class(
                "DTypeError",
                &[root, &py.get_type::<PyTypeError>()],
                "An argument is not a tensor or number, or is of a dtype that the operation does not take.",
            )?,
            dim: class(
                "DimError",
                &[shape.bind(py), &py.get_type::<PyIndexError>()],
                "A dim is out of range.",
            )?,
            layout: class(
                "LayoutError",
                &[root, &py.get_type::<PyValueError>()],
                "Memory is stored in a way that cannot be used: not strided, misaligned, read-only or overlapping.",
            )?,
            device: class(
                "DeviceError",
                &[root, &py.get_type::<PyValueError>()],
                "Tensors are on different or unsupported devices, of different libraries, or without memory; or there is no usable GPU.",
            )?,
            option: class(
                "OptionError",
                &[root, &py.get_type::<PyValueError>()],
                "An option such as activation= has a value that is not accepted.",
            )?,
            unsupported: class(
                "UnsupportedError",
                &[root, &py.get_type::<PyNotImplementedError>()],
                "The request makes sense, but is not supported (yet).",
            )?,
            cuda: class(
                "CudaError",
                &[root, &py.get_type::<PyRuntimeError>()],
                "The CUDA driver reported an error, possibly of work queued earlier.",
            )?,
            memory: class(
                "OutOfMemoryError",
                &[root, &py.get_type::<PyMemoryError>()],
                "An operation needs more memory, besides its operands, than is available.",
            )?,
            shape,
            base,
        })
    }

    fn of(&self, family: Family) -> &Py<PyType> {
        match family {
            Family::DType => &self.dtype,
            Family::Shape => &self.shape,
            Family::Dim => &self.dim,
            Family::Layout => &self.layout,
            Family::Device => &self.device,
            Family::Option => &self.option,
            Family::Unsupported => &self.unsupported,
            Family::Cuda => &self.cuda,
            Family::OutOfMemory => &self.memory,
        }
    }
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let classes = CLASSES.get_or_try_init(py, || Classes::make(py))?;
    let Classes { base, dtype, shape, dim, layout, device, option, unsupported, cuda, memory } = classes;
    for class in [base, dtype, shape, dim, layout, device, option, unsupported, cuda, memory] {
        let class = class.bind(py);
        module.add(class.name()?, class)?;
    }
    Ok(())
}

/// Whether an exception is one of tilewise's.
pub fn is_ours(py: Python<'_>, raised: &PyErr) -> bool {
    CLASSES.get(py).is_some_and(|classes| raised.is_instance(py, classes.base.bind(py)))
}

/// The exception a caller sees for an error of ours.
pub fn raise(py: Python<'_>, error: Error) -> PyErr {
    match (error, CLASSES.get(py)) {
        (Error::Python(raised), _) => raised,
        (error, Some(classes)) => match error.family() {
            Some(family) => PyErr::from_type(classes.of(family).bind(py).clone(), error.to_string()),
            None => PySystemError::new_err(error.to_string()),
        },
        // The module registers the classes before it has a function that could fail.
        (error, None) => PySystemError::new_err(error.to_string()),
    }
}
