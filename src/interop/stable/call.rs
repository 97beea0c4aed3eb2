//! One dispatched call: its tensors are taken one by one, and must agree.

use std::ptr;

use super::abi::Abi;
use super::arguments::DTypeNumber;
use super::tensor::Tensor;
use crate::backend::{RawStream, Resources};
use crate::dtype::{self, DType};
use crate::error::{Error, Result};
use crate::interop::torch::threads;
use crate::interop::{Argument, scalar};
use crate::ops::add::{Addend, ScalarOrigin};
use crate::ops::output::OutputSpec;
use crate::tensor::{Device, TensorView};

#[derive(Debug)]
pub struct Call {
    abi: &'static Abi,
    op: &'static str,
    accepted: &'static [DType],
    /// The name and the device of the first tensor.
    first: Option<(&'static str, Device)>,
}

/// A result, to be written.
#[derive(Debug)]
pub struct Output {
    pub tensor: Tensor,
    pub view: TensorView,
}

impl Call {
    /// `accepted` are the dtypes the operation takes, for messages.
    pub fn new(abi: &'static Abi, op: &'static str, accepted: &'static [DType]) -> Call {
        Call { abi, op, accepted, first: None }
    }

    fn argument(&self, name: &'static str) -> Argument {
        Argument { op: self.op, name, accepted: self.accepted }
    }

    // Views are large: inlined, they are moved less often.
    #[inline]
    pub fn input(&mut self, name: &'static str, tensor: &Tensor) -> Result<TensorView> {
        let view = tensor.view(self.argument(name))?;
        self.same_device(name, &view)?;
        Ok(view)
    }

    /// One that may be left out.
    pub fn optional(&mut self, name: &'static str, tensor: Option<&Tensor>) -> Result<Option<TensorView>> {
        tensor.map(|tensor| self.input(name, tensor)).transpose()
    }

    /// The second operand of add.
    pub fn operand(&mut self, name: &'static str, tensor: &Tensor) -> Result<Addend> {
        let view = tensor.view(self.argument(name))?;
        let beside_cuda = matches!(self.first, Some((_, Device::Cuda(_))));
        if beside_cuda && view.device == Device::Cpu && view.rank() == 0 {
            // SAFETY: `tensor` keeps the memory alive.
            let value = unsafe { scalar::read(&view) };
            return Ok(Addend::Scalar { value, origin: ScalarOrigin::ZeroDimensional(view.dtype) });
        }
        self.same_device(name, &view)?;
        Ok(Addend::Tensor(view))
    }

    /// dtype=, if it is one of ours.
    pub fn dtype(&self, given: Option<DTypeNumber>) -> Result<Option<DType>> {
        let Some(DTypeNumber(number)) = given else { return Ok(None) };
        self.abi.dtype_of(number).map(Some).map_err(|name| Error::DTypeArgument {
            op: self.op,
            got: format!("torch.{name}"),
            accepted: dtype::list(&DType::FLOATS),
        })
    }

    #[inline]
    pub fn output(&self, spec: &OutputSpec) -> Result<Output> {
        let (tensor, view) = Tensor::empty(self.abi, self.argument("out"), spec)?;
        Ok(Output { tensor, view })
    }

    /// Memory for the work itself, to be let go of once that is queued. None for no bytes.
    pub fn workspace(&self, bytes: u64) -> Result<Option<Output>> {
        let Some((_, device)) = self.first.filter(|_| bytes > 0) else { return Ok(None) };
        let shape = [bytes.cast_signed()].into_iter().collect();
        self.output(&OutputSpec::contiguous(shape, DType::U8, device)).map(Some)
    }

    /// What torch lends for the work: its current stream of the tensors' GPU, or its threads.
    pub fn resources(&self) -> Result<Resources> {
        let Some((_, Device::Cuda(ordinal))) = self.first else {
            return Ok(Resources { stream: 0, workers: threads::workers() });
        };
        let mut stream = ptr::null_mut();
        // SAFETY: a query that writes one pointer.
        let code = self.abi.current_cuda_stream.map(|current| unsafe { current(ordinal, &raw mut stream) });
        match code {
            Some(0) => Ok(Resources { stream: stream as RawStream, workers: None }),
            _ => Err(Error::Producer { op: self.op, argument: "x", reason: super::kernel::reason(self.abi) }),
        }
    }

    /// The first tensor sets the device; the others must be there too.
    fn same_device(&mut self, argument: &'static str, view: &TensorView) -> Result<()> {
        let &mut (other, expected) = self.first.get_or_insert((argument, view.device));
        match view.device == expected {
            true => Ok(()),
            false => Err(Error::DevicesDiffer { op: self.op, argument, got: view.device, other, expected }),
        }
    }
}
