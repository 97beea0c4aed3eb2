//! Arguments that are not tensors: what a caller may write, and what it means.

use std::convert::Infallible;

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString};

use super::exceptions::raise;
use crate::cuda::device::PUBLISHED;
use crate::dtype::{self, DType};
use crate::error::{Error, Result};
use crate::interop::{Argument, scalar};
use crate::ops::Scalar;
use crate::ops::activation_backward::{self, SavedIs};
use crate::ops::matmul::{Activation, Precision};

/// A keyword argument with a default that is not None, taken as it comes: what it may be is decided by
/// us, in our words, and not by its Rust type in PyO3's.
#[derive(Clone, Copy, Debug)]
pub enum Keyword<'a, 'py> {
    Default,
    Given(Borrowed<'a, 'py, PyAny>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Keyword<'a, 'py> {
    type Error = Infallible;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> std::result::Result<Self, Infallible> {
        Ok(Keyword::Given(object))
    }
}

impl<'a, 'py> Keyword<'a, 'py> {
    pub fn given(&self) -> Option<Borrowed<'a, 'py, PyAny>> {
        match self {
            Keyword::Default => None,
            Keyword::Given(object) => Some(*object),
        }
    }

    /// The number that it is now, of which `kept` holds one: a tensor may change between a call and its gradient.
    pub fn settled_number<'b>(
        self,
        argument: Argument,
        kept: &'b mut Option<Bound<'py, PyAny>>,
    ) -> PyResult<Keyword<'b, 'py>>
    where
        'a: 'b,
    {
        self.settled(kept, |object| {
            let py = object.py();
            Ok(match scalar::number(argument, object)? {
                Scalar::Bool(value) => PyBool::new(py, value).to_owned().into_any(),
                Scalar::Int(value) => value.into_bound_py_any(py)?,
                Scalar::Float(value) => PyFloat::new(py, value).into_any(),
            })
        })
    }

    /// The same of an index, as of an object with an `__index__` of its own.
    pub fn settled_index<'b>(
        self,
        argument: Argument,
        kept: &'b mut Option<Bound<'py, PyAny>>,
    ) -> PyResult<Keyword<'b, 'py>>
    where
        'a: 'b,
    {
        self.settled(kept, |object| Ok(scalar::index(argument, object)?.into_bound_py_any(object.py())?))
    }

    fn settled<'b>(
        self,
        kept: &'b mut Option<Bound<'py, PyAny>>,
        read: impl FnOnce(&Bound<'py, PyAny>) -> Result<Bound<'py, PyAny>>,
    ) -> PyResult<Keyword<'b, 'py>>
    where
        'a: 'b,
    {
        match self {
            Keyword::Given(object) if !scalar::is_number(&object) => {
                let read = read(&object).map_err(|error| raise(object.py(), error))?;
                Ok(Keyword::Given(kept.insert(read).as_borrowed()))
            }
            settled => Ok(settled),
        }
    }

    pub fn number(&self, argument: Argument, default: Scalar) -> Result<Scalar> {
        match self {
            Keyword::Default => Ok(default),
            Keyword::Given(object) => scalar::number(argument, object),
        }
    }

    /// A number of which only the value counts, not its type.
    pub fn real(&self, argument: Argument, default: f64) -> Result<f64> {
        match self {
            Keyword::Default => Ok(default),
            Keyword::Given(object) => scalar::real(argument, object),
        }
    }

    pub fn index(&self, argument: Argument, default: i64) -> Result<i64> {
        match self {
            Keyword::Default => Ok(default),
            Keyword::Given(object) => scalar::index(argument, object),
        }
    }

    pub fn precision(&self) -> Result<Precision> {
        match self {
            Keyword::Default => Ok(Precision::Ieee),
            Keyword::Given(object) => match text(object) {
                Ok(name) => Precision::from_name(&name),
                Err(got) => Err(Error::Precision { got }),
            },
        }
    }

    pub fn saved_is(&self) -> Result<SavedIs> {
        match self {
            Keyword::Default => Ok(SavedIs::Output),
            Keyword::Given(object) => match text(object) {
                Ok(name) => SavedIs::from_name(&name),
                Err(got) => Err(Error::SavedIs { op: activation_backward::OP, got }),
            },
        }
    }
}

/// The same of an argument whose default is None.
pub fn given<'a, 'py>(object: Option<&'a Bound<'py, PyAny>>) -> Option<Borrowed<'a, 'py, PyAny>> {
    object.map(Bound::as_borrowed)
}

/// The text of a string; Err: anything else, as Python would print it.
fn text(object: &Bound<'_, PyAny>) -> std::result::Result<String, String> {
    match object.cast::<PyString>() {
        Ok(string) => Ok(scalar::shortened(&string.to_string_lossy()).into_owned()),
        Err(_) => Err(scalar::shown(object)),
    }
}

pub fn activation(
    op: &'static str,
    object: Option<&Bound<'_, PyAny>>,
    negative_slope: f64,
) -> Result<Activation> {
    match object.map(text).transpose() {
        Ok(name) => Activation::from_name(op, name.as_deref(), negative_slope),
        Err(got) => Err(Error::Activation { op, got, known: &Activation::NAMES }),
    }
}

/// device=: an index, a torch.device or a name, as a name.
pub fn device(object: &Bound<'_, PyAny>) -> Result<String> {
    let class = object.get_type();
    if object.is_instance_of::<PyInt>() && !object.is_instance_of::<PyBool>() {
        return Ok(format!("cuda:{}", scalar::shown(object)));
    }
    if class.name()? == "device" && class.module()? == "torch" {
        return Ok(object.str()?.to_string());
    }
    text(object).map_err(|got| Error::UnknownGpu { got, known: &PUBLISHED })
}

/// dtype=: a name, a torch.dtype, a numpy.dtype, or whatever numpy.dtype() makes one of.
pub fn dtype(op: &'static str, object: Option<&Bound<'_, PyAny>>) -> Result<Option<DType>> {
    let Some(object) = object else { return Ok(None) };
    let name = dtype_name(object).unwrap_or(None);
    match name.as_deref().and_then(DType::from_name) {
        Some(dtype) => Ok(Some(dtype)),
        None => Err(Error::DTypeArgument {
            op,
            got: scalar::shown(object),
            accepted: dtype::list(&DType::FLOATS),
        }),
    }
}

fn dtype_name(object: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let py = object.py();
    if let Ok(name) = object.cast::<PyString>() {
        return Ok(Some(name.to_string_lossy().into_owned()));
    }
    let printed = object.str()?.to_string_lossy().into_owned();
    if let Some(name) = printed.strip_prefix("torch.") {
        let is_torch = object.get_type().module()? == "torch";
        return Ok(is_torch.then(|| name.to_string()));
    }
    if object.is(py.get_type::<PyFloat>()) {
        return Ok(Some("float64".into()));
    }
    let Some(numpy) = crate::interop::loaded_module(py, "numpy")? else { return Ok(None) };
    let dtype = numpy.call_method1("dtype", (object,))?;
    if !dtype.getattr("isnative")?.is_truthy()? {
        return Ok(None);
    }
    dtype.getattr("name")?.extract().map(Some)
}
