//! Results, allocated by the caller's library, with its own allocator where it has one.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyTuple};

use super::call::Tensor;
use super::export::Exported;
use super::producer::{Producer, hand_over};
use super::source::{Known, Source, loaded_module, type_name};
use super::torch::Torch;
use super::{Argument, Role, descriptor, numpy};
use crate::cuda::RawStream;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::output::OutputSpec;
use crate::tensor::{Device, TensorView};

/// Where the result is written.
#[derive(Debug)]
pub struct Output<'py> {
    pub view: Box<TensorView>,
    result: Returned<'py>,
}

/// What the caller gets for it.
#[derive(Debug)]
enum Returned<'py> {
    /// The caller's own `out`.
    Given {
        object: Bound<'py, PyAny>,
        source: Known,
    },
    Fresh(Bound<'py, PyAny>),
    /// None: the problem is posed, not solved.
    Nothing(Bound<'py, PyAny>),
    /// Memory of ours, to be handed to the library's `from_dlpack` once it is written.
    Exported {
        memory: Bound<'py, Exported>,
        from_dlpack: Bound<'py, PyAny>,
    },
}

impl<'py> Output<'py> {
    pub(super) fn given(tensor: Tensor<'py>) -> Output<'py> {
        let Tensor { view, object, source } = tensor;
        Output { view, result: Returned::Given { object, source } }
    }

    /// What `fresh` would make, to be reasoned about only, at an address where no tensor is.
    pub(super) fn imagined(py: Python<'py>, spec: &OutputSpec, like: &Tensor<'py>) -> Output<'py> {
        let exported = matches!(&*like.source, Source::Producer(producer) if !producer.is_cupy());
        let spec = if exported { Exported::row_major(spec) } else { spec.clone() };
        let OutputSpec { shape, strides, dtype, device } = spec;
        let view = TensorView { address: 1 << 62, dtype, device, shape, strides, writable: true };
        Output { view: Box::new(view), result: Returned::Nothing(py.None().into_bound(py)) }
    }

    /// Called when the work is done or queued.
    pub(super) fn finish(self, op: &'static str) -> Result<Bound<'py, PyAny>> {
        match self.result {
            Returned::Nothing(none) => Ok(none),
            Returned::Given { object, source } => {
                if let Source::Torch(class) = &*source {
                    class.torch.dispatcher.overwritten(&object)?;
                }
                Ok(object)
            }
            Returned::Fresh(object) => Ok(object),
            Returned::Exported { memory, from_dlpack } => {
                memory.get().finish(memory.py(), op)?;
                hand_over(op, &from_dlpack, memory.into_any())
            }
        }
    }
}

/// An uninitialised tensor as `spec` says, of the library of `like`.
pub fn fresh<'py>(
    argument: Argument,
    spec: &OutputSpec,
    like: &Tensor<'py>,
    stream: impl FnOnce() -> Result<RawStream>,
) -> Result<Output<'py>> {
    let py = like.object.py();
    let mut view = Box::new(descriptor::blank());
    let object = match &*like.source {
        Source::Torch(class) => {
            let object = torch_empty(class.torch, spec, &like.object)?;
            *view = TensorView { address: class.address(argument, &object)?, ..spec.view() };
            object
        }
        Source::Numpy(class) => {
            let empty = py.import(intern!(py, "numpy"))?.getattr(intern!(py, "empty"))?;
            let dtype = match spec.dtype == like.view.dtype {
                true => numpy::descr(&like.object).into_any(),
                false => numpy_dtype(argument, py, spec.dtype)?,
            };
            let object = permuted_empty(&empty, spec, dtype)?;
            numpy::take(argument, *class, &object, &mut view)?;
            object
        }
        Source::Producer(producer) if producer.is_cupy() => {
            let object = cupy_empty(argument, spec, like)?;
            producer.take(argument, Role::Output, &object, &mut view)?;
            object
        }
        Source::Producer(producer) => {
            let from_dlpack = from_dlpack(argument, producer, like)?;
            let exported = Exported::allocate(py, argument.op, spec, stream()?)?;
            let view = Box::new(exported.view());
            let memory = Bound::new(py, exported)?;
            return Ok(Output { view, result: Returned::Exported { memory, from_dlpack } });
        }
        Source::NumpyScalar | Source::Overrides | Source::None => {
            let got = type_name(&like.object);
            return Err(Error::NotATensor { op: argument.op, argument: argument.name, got });
        }
    };
    Ok(Output { view, result: Returned::Fresh(object) })
}

/// On the device of `like`.
pub fn torch_empty<'py>(
    torch: &Torch,
    spec: &OutputSpec,
    like: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = like.py();
    if let Some(allocated) = torch.allocate(spec.device, &torch.asked(py, spec)?) {
        return allocated;
    }
    let device = like.getattr(intern!(py, "device"))?;
    let options = [(intern!(py, "dtype"), torch.dtype(py, spec.dtype)), (intern!(py, "device"), &device)]
        .into_py_dict(py)?;
    let shape = PyTuple::new(py, &spec.shape)?;
    if spec.is_contiguous() {
        return torch.empty.bind(py).call((shape,), Some(&options));
    }
    let strides = PyTuple::new(py, &spec.strides)?;
    torch.empty_strided.bind(py).call((shape, strides), Some(&options))
}

fn numpy_dtype<'py>(argument: Argument, py: Python<'py>, dtype: DType) -> Result<Bound<'py, PyAny>> {
    let made = py.import(intern!(py, "numpy"))?.call_method1(intern!(py, "dtype"), (dtype.name(),));
    // numpy knows bfloat16 only by another package.
    made.map_err(|_| Error::DTypeArgument {
        op: argument.op,
        got: format!("{dtype}, which numpy has only after `import ml_dtypes`,"),
        accepted: "float16, float32, float64".into(),
    })
}

/// numpy and cupy have no `empty_strided`: the dimensions are allocated in the order of their strides,
/// then put back.
fn permuted_empty<'py>(
    empty: &Bound<'py, PyAny>,
    spec: &OutputSpec,
    dtype: Bound<'py, PyAny>,
) -> Result<Bound<'py, PyAny>> {
    let py = empty.py();
    if spec.is_contiguous() {
        return Ok(empty.call1((PyTuple::new(py, &spec.shape)?, dtype))?);
    }
    let mut order: Vec<usize> = (0..spec.shape.len()).collect();
    order.sort_by_key(|&d| std::cmp::Reverse(spec.strides[d]));
    let allocated = PyTuple::new(py, order.iter().map(|&d| spec.shape[d]))?;
    let mut back = vec![0; order.len()];
    for (position, &d) in order.iter().enumerate() {
        back[d] = position;
    }
    let back = PyTuple::new(py, back)?;
    Ok(empty.call1((allocated, dtype))?.call_method1(intern!(py, "transpose"), (back,))?)
}

/// cupy allocates on its current device, which need not be that of the inputs.
fn cupy_empty<'py>(argument: Argument, spec: &OutputSpec, like: &Tensor<'py>) -> Result<Bound<'py, PyAny>> {
    let py = like.object.py();
    let cupy = py.import(intern!(py, "cupy"))?;
    let empty = cupy.getattr(intern!(py, "empty"))?;
    let dtype = match spec.dtype == like.view.dtype {
        true => like.object.getattr(intern!(py, "dtype"))?,
        false => numpy_dtype(argument, py, spec.dtype)?,
    };
    let Device::Cuda(ordinal) = spec.device else { return permuted_empty(&empty, spec, dtype) };
    let device = cupy.getattr(intern!(py, "cuda"))?.call_method1(intern!(py, "Device"), (ordinal,))?;
    device.call_method0(intern!(py, "__enter__"))?;
    let made = permuted_empty(&empty, spec, dtype);
    device.call_method1(intern!(py, "__exit__"), (py.None(), py.None(), py.None()))?;
    made
}

/// The function that makes a tensor of a library over memory of ours: of its array namespace, or of the
/// library itself.
fn from_dlpack<'py>(
    argument: Argument,
    producer: &Producer,
    like: &Tensor<'py>,
) -> Result<Bound<'py, PyAny>> {
    let py = like.object.py();
    let name = intern!(py, "from_dlpack");
    if let Some(namespace) = like.object.getattr_opt(intern!(py, "__array_namespace__"))?
        && let Some(function) = namespace.call0()?.getattr_opt(name)?
    {
        return Ok(function);
    }
    if producer.library != "__main__"
        && let Some(library) = loaded_module(py, &producer.library)?
        && let Some(function) = library.getattr_opt(name)?
    {
        return Ok(function);
    }
    Err(Error::NoFromDlpack { op: argument.op, class: type_name(&like.object) })
}
