//! One call: its arguments are taken one by one, must agree, and the work runs where they live.

mod results;

pub use results::without_gil;

use pyo3::prelude::*;

use super::dispatcher;
use super::producer::Hold;
use super::scalar::Number;
use super::source::{Known, Source, type_name};
use super::torch::TorchClass;
use super::{Argument, Autocast, Role, descriptor, numpy, scalar};
use crate::dtype::DType;
use crate::error::{Error, Handler, Result};
use crate::ops::add::{Addend, ScalarOrigin};
use crate::tensor::{Device, TensorView};

/// A tensor of the caller's, alive as long as this is.
#[derive(Debug)]
pub struct Tensor<'py> {
    /// Boxed, as views are large: moving them about costs more than the memory.
    pub view: Box<TensorView>,
    pub(super) object: Bound<'py, PyAny>,
    pub(super) source: Known,
}

/// The tensors of one call to one operation.
pub struct Call<'py> {
    py: Python<'py>,
    op: &'static str,
    accepted: &'static [DType],
    first: Option<First<'py>>,
    /// Tensors that libraries lent us for the call.
    holds: Vec<Hold>,
    /// Tensors that stand for arguments which memory alone does not describe.
    resolved: Vec<Bound<'py, PyAny>>,
    /// Nothing is to be run, so no result is allocated.
    planning: bool,
    on_memory: bool,
    autocast: Autocast,
    /// A tensor that requires grad.
    differentiated: Option<&'static str>,
    /// Whether autograd can be told of the result afterwards.
    recordable: bool,
}

impl std::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Call").field("op", &self.op).field("first", &self.first).finish_non_exhaustive()
    }
}

/// What the first tensor of a call decides for all others.
#[derive(Debug)]
struct First<'py> {
    name: &'static str,
    object: Bound<'py, PyAny>,
    source: Known,
    device: Device,
}

impl<'py> Call<'py> {
    /// `accepted` are the dtypes the operation takes, for messages.
    pub fn new(py: Python<'py>, op: &'static str, accepted: &'static [DType]) -> Call<'py> {
        let on_memory = dispatcher::begins_on_memory();
        Call {
            py,
            op,
            accepted,
            first: None,
            holds: Vec::new(),
            resolved: Vec::new(),
            on_memory,
            autocast: Autocast::Nowhere,
            planning: false,
            differentiated: None,
            recordable: false,
        }
    }

    /// A call whose problem is wanted and not its result, for the memory that its tensors have.
    pub fn planning(py: Python<'py>, op: &'static str, accepted: &'static [DType]) -> Call<'py> {
        Call { planning: true, on_memory: true, ..Call::new(py, op, accepted) }
    }

    /// For operations that are on one of torch's lists for autocast.
    pub fn with_autocast(mut self, lists: Autocast) -> Call<'py> {
        self.autocast = lists;
        self
    }

    /// For operations of which autograd needs no more than arguments and result.
    pub fn recordable(mut self) -> Call<'py> {
        self.recordable = true;
        self
    }

    /// Whether the result is to be shown to autograd.
    pub fn is_recorded(&self) -> bool {
        self.differentiated.is_some()
    }

    pub fn argument(&self, name: &'static str) -> Argument {
        Argument { op: self.op, name, accepted: self.accepted }
    }

    /// Takes an input.
    pub fn input(&mut self, name: &'static str, object: &Bound<'py, PyAny>) -> Result<Tensor<'py>> {
        let tensor = self.take(name, Role::Input, object)?;
        self.same_library(name, &tensor)?;
        self.same_device(name, &tensor)?;
        Ok(tensor)
    }

    /// Decides where tensors of these types come from. That may run the code of a type, which is not to run when the
    /// first tensor has been described: it could move that tensor's memory.
    pub fn classify<const N: usize>(&self, objects: [Option<&Bound<'py, PyAny>>; N]) -> Result<()> {
        objects.into_iter().flatten().try_for_each(|object| Source::of(object).map(|_| ()))?;
        Ok(())
    }

    /// Takes what may be a number or, else, a tensor: the second operand of add. A number is looked at before the
    /// first tensor is described, for the same reason.
    pub fn number(&self, name: &'static str, object: &Bound<'py, PyAny>) -> Result<Option<Number>> {
        let argument = self.argument(name);
        if let Some(value) = scalar::python_number(argument, object)? {
            return Ok(Some(Number { value, dtype: None }));
        }
        match *Source::of(object)? {
            Source::NumpyScalar => scalar::numpy_number(argument, object).map(Some),
            _ => Ok(None),
        }
    }

    /// What a number counts as beside the first tensor.
    pub fn addend(&self, number: Number) -> Result<Addend> {
        let value = number.value;
        let of_torch = self.first.as_ref().is_some_and(|f| matches!(*f.source, Source::Torch(_)));
        // As in each library itself: a numpy scalar is a number to torch, an array without dimensions to the others.
        let origin = match number.dtype {
            Some(dtype) if !of_torch => ScalarOrigin::ZeroDimensional(dtype?),
            _ => ScalarOrigin::Number,
        };
        Ok(Addend::Scalar { value, origin })
    }

    /// Takes the second operand of add where it is no number.
    pub fn operand(&mut self, name: &'static str, object: &Bound<'py, PyAny>) -> Result<Addend> {
        if matches!(*Source::of(object)?, Source::None) {
            return Err(scalar::not_an_operand(self.argument(name), object));
        }
        let tensor = self.take(name, Role::Input, object)?;
        self.same_library(name, &tensor)?;
        let beside_cuda = self.first.as_ref().is_some_and(|f| matches!(f.device, Device::Cuda(_)));
        if beside_cuda && tensor.view.device == Device::Cpu && tensor.view.rank() == 0 {
            // SAFETY: `tensor` keeps the memory alive.
            let value = unsafe { scalar::read(&tensor.view) };
            let origin = ScalarOrigin::ZeroDimensional(tensor.view.dtype);
            return Ok(Addend::Scalar { value, origin });
        }
        self.same_device(name, &tensor)?;
        Ok(Addend::Tensor(*tensor.view))
    }

    /// What an integer tensor plus a Python float becomes. Asked of torch only where it decides.
    pub fn default_float(&self, x: &Tensor<'py>, y: &Addend) -> Result<DType> {
        let asked = !x.view.dtype.is_float()
            && matches!(
                y,
                Addend::Scalar { value: crate::ops::Scalar::Float(_), origin: ScalarOrigin::Number }
            );
        match &*x.source {
            Source::Torch(class) if asked => Ok(class.torch.default_dtype(self.py)?),
            _ => Ok(DType::F32),
        }
    }

    fn take(&mut self, name: &'static str, role: Role, object: &Bound<'py, PyAny>) -> Result<Tensor<'py>> {
        let argument = self.argument(name);
        let source = Source::of(object)?;
        let mut tensor = Tensor { view: Box::new(descriptor::blank()), object: object.clone(), source };
        match &*tensor.source {
            Source::Torch(class) => {
                self.ask_dispatcher(name, class, object)?;
                let by = Handler::Dispatcher;
                let needs_torch = || Error::NeedsTorch { op: self.op, argument: name, by };
                tensor.object = match class.take(argument, role, object, &mut tensor.view) {
                    // A meta tensor, or one inside torch.func.
                    Err(Error::NoMemory { .. }) if !self.on_memory => return Err(needs_torch()),
                    taken => taken?,
                };
                let asks = !self.on_memory && self.first.is_none();
                let device = tensor.view.device;
                if asks && class.torch.dispatcher.is_autocast(self.py, self.autocast, device)? {
                    let by = Handler::Autocast;
                    return Err(Error::NeedsTorch { op: self.op, argument: name, by });
                }
                if !tensor.object.is(object) {
                    self.resolved.push(tensor.object.clone());
                }
            }
            Source::Numpy(class) => numpy::take(argument, *class, object, &mut tensor.view)?,
            Source::Producer(producer) => {
                self.holds.extend(producer.take(argument, role, object, &mut tensor.view)?);
            }
            Source::Overrides if !self.on_memory => {
                return Err(Error::NeedsTorch { op: self.op, argument: name, by: Handler::Dispatcher });
            }
            Source::NumpyScalar | Source::Overrides | Source::None => {
                return Err(Error::NotATensor { op: self.op, argument: name, got: type_name(object) });
            }
        }
        Ok(tensor)
    }

    /// A tensor may be more than its memory: then the call is torch's to dispatch, or autograd's to record.
    fn ask_dispatcher(
        &mut self,
        name: &'static str,
        class: &TorchClass,
        object: &Bound<'py, PyAny>,
    ) -> Result<()> {
        if self.on_memory {
            return Ok(());
        }
        let dispatcher = &class.torch.dispatcher;
        let by = match self.first.is_none() && dispatcher.takes_all(object)? {
            true => Some(Handler::Dispatcher),
            false => dispatcher.handler(class.overrides, object)?,
        };
        match by {
            Some(by @ Handler::Dispatcher) => {
                class.check_dispatched(self.argument(name), object)?;
                Err(Error::NeedsTorch { op: self.op, argument: name, by })
            }
            Some(_) => {
                // Gradients. Whether that is all has still to be seen from the other tensors.
                self.differentiated.get_or_insert(name);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn is_transformed(&self) -> Result<bool> {
        match self.first.as_ref().map(|first| &*first.source) {
            Some(Source::Torch(class)) => Ok(class.torch.dispatcher.is_transformed(self.py)?),
            _ => Ok(false),
        }
    }

    /// Whether autocast is on for the first tensor's device.
    pub fn is_autocast(&self) -> Result<bool> {
        match self.first.as_ref().map(|first| (&*first.source, first.device)) {
            Some((Source::Torch(class), device)) => {
                Ok(class.torch.dispatcher.is_autocast(self.py, Autocast::Everywhere, device)?)
            }
            _ => Ok(false),
        }
    }

    fn same_library(&self, name: &'static str, tensor: &Tensor<'py>) -> Result<()> {
        match &self.first {
            Some(first) if !first.source.mixes_with(&tensor.source) => Err(Error::KindsDiffer {
                op: self.op,
                argument: name,
                got: type_name(&tensor.object),
                other: first.name,
                expected: type_name(&first.object),
            }),
            _ => Ok(()),
        }
    }

    /// The first tensor sets the device; the others must be there too.
    fn same_device(&mut self, name: &'static str, tensor: &Tensor<'py>) -> Result<()> {
        let Some(first) = &self.first else {
            self.first = Some(First {
                name,
                object: tensor.object.clone(),
                source: tensor.source.clone(),
                device: tensor.view.device,
            });
            return Ok(());
        };
        if first.device == tensor.view.device {
            return Ok(());
        }
        Err(Error::DevicesDiffer {
            op: self.op,
            argument: name,
            got: tensor.view.device,
            other: first.name,
            expected: first.device,
        })
    }
}
