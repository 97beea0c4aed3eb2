//! Results, made by the caller's own library with its own allocator.

use std::sync::Arc;

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyTuple};

use super::call::Tensor;
use super::source::Source;
use super::torch::TorchClass;
use super::{Argument, Role, numpy};
use crate::error::{Error, Result};
use crate::ops::output::OutputSpec;
use crate::tensor::TensorView;

/// Where the result is written, and what the caller gets for it.
#[derive(Debug)]
pub struct Output<'py> {
    pub view: TensorView,
    tensor: Tensor<'py>,
    /// The caller's own `out`.
    given: bool,
}

impl<'py> Output<'py> {
    pub(super) fn given(tensor: Tensor<'py>) -> Output<'py> {
        Output { view: tensor.view.clone(), tensor, given: true }
    }

    /// Called when the work is done or queued.
    pub(super) fn finish(self) -> Result<Bound<'py, PyAny>> {
        let object = self.tensor.object;
        let py = object.py();
        if let Source::Torch(class) = &*self.tensor.source {
            if self.given {
                // Autograd compares versions to notice that what it saved has been overwritten.
                class.torch.increment_version.bind(py).call1((&object,))?;
            } else if let Some(subclass) = &class.subclass {
                return Ok(object.call_method1(intern!(py, "as_subclass"), (subclass,))?);
            }
        }
        Ok(object)
    }
}

/// An uninitialised tensor as `spec` says, of the library of `like`.
pub fn fresh<'py>(argument: Argument, spec: &OutputSpec, like: &Tensor<'py>) -> Result<Output<'py>> {
    let (object, view) = match &*like.source {
        Source::Torch(class) => {
            let object = torch_empty(class, spec, like)?;
            class.take(argument, Role::Output, &object)?
        }
        Source::Numpy(class) => {
            let object = numpy_empty(spec, like)?;
            let view = numpy::take(argument, *class, &object)?;
            (object, view)
        }
        Source::NumpyScalar | Source::None => {
            return Err(Error::NotATensor {
                op: argument.op,
                argument: argument.name,
                got: super::source::type_name(&like.object),
            });
        }
    };
    let tensor = Tensor { view: view.clone(), object, source: Arc::clone(&like.source) };
    Ok(Output { view, tensor, given: false })
}

fn torch_empty<'py>(
    class: &TorchClass,
    spec: &OutputSpec,
    like: &Tensor<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let (torch, object) = (class.torch, &like.object);
    let py = object.py();
    // By far the most common, and 0.5 us cheaper than naming shape, dtype and device.
    if spec.dtype == like.view.dtype && spec.shape == like.view.shape && spec.strides == like.view.strides {
        return torch.empty_like.bind(py).call1((object,));
    }
    let device = object.getattr(intern!(py, "device"))?;
    let options = [(intern!(py, "dtype"), torch.dtype(py, spec.dtype)), (intern!(py, "device"), &device)]
        .into_py_dict(py)?;
    let shape = PyTuple::new(py, &spec.shape)?;
    if spec.is_contiguous() {
        return torch.empty.bind(py).call((shape,), Some(&options));
    }
    let strides = PyTuple::new(py, &spec.strides)?;
    torch.empty_strided.bind(py).call((shape, strides), Some(&options))
}

/// numpy has no `empty_strided`: the dimensions are allocated in the order of their strides, then put back.
fn numpy_empty<'py>(spec: &OutputSpec, like: &Tensor<'py>) -> PyResult<Bound<'py, PyAny>> {
    let py = like.object.py();
    let empty = py.import(intern!(py, "numpy"))?.getattr(intern!(py, "empty"))?;
    let dtype = if spec.dtype == like.view.dtype {
        like.object.getattr(intern!(py, "dtype"))?
    } else {
        spec.dtype.name().into_pyobject(py)?.into_any()
    };
    if spec.is_contiguous() {
        return empty.call1((PyTuple::new(py, &spec.shape)?, dtype));
    }
    let mut order: Vec<usize> = (0..spec.shape.len()).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(spec.strides[d]));
    let allocated = PyTuple::new(py, order.iter().map(|&d| spec.shape[d]))?;
    let mut back = vec![0; order.len()];
    for (position, &d) in order.iter().enumerate() {
        back[d] = position;
    }
    empty.call1((allocated, dtype))?.call_method1(intern!(py, "transpose"), (PyTuple::new(py, back)?,))
}
