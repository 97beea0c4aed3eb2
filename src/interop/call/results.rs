//! The second half of a call: where its results go, and the work itself.

use pyo3::prelude::*;

use super::{Call, First, Tensor};
use crate::backend::{RawStream, Resources, Workers};
use crate::dtype::DType;
use crate::error::{Error, Handler, Result};
use crate::interop::allocate::{self, Output};
use crate::interop::source::Source;
use crate::interop::torch::threads;
use crate::interop::{Role, descriptor, producer};
use crate::ops::output::OutputSpec;
use crate::tensor::Device;

/// CPU work of fewer elementary steps is over before giving up the GIL would pay.
const STEPS_WITH_GIL: i64 = 1 << 14;

/// Runs `work` of about `steps` elementary steps. A call of the driver may block, until a host function on the stream has
/// had the GIL or another thread has launched its part of a collective: it never holds the GIL.
pub fn without_gil<T: Send>(
    py: Python<'_>,
    device: Device,
    steps: i64,
    work: impl FnOnce() -> T + Send,
) -> T {
    match device {
        Device::Cpu if steps < STEPS_WITH_GIL => work(),
        Device::Cpu | Device::Cuda(_) => py.detach(work),
    }
}

impl<'py> Call<'py> {
    /// The caller's `out`, or a fresh one from the library of `like`. Nothing is allocated before all
    /// that can be checked without an output has been.
    pub fn output(
        &mut self,
        spec: &OutputSpec,
        out: Option<&Bound<'py, PyAny>>,
        like: &Tensor<'py>,
    ) -> Result<Output<'py>> {
        let out = out.map(|object| self.take("out", Role::Output, object)).transpose()?;
        if let Some(argument) = self.differentiated {
            let needs = |by| Err(Error::NeedsTorch { op: self.op, argument, by });
            // An `out` is torch's to refuse; inside torch.func, what is recorded belongs to one of its levels.
            if out.is_some() || self.is_transformed()? {
                return needs(Handler::Dispatcher);
            }
            if !self.recordable {
                return needs(Handler::Autograd);
            }
        }
        match out {
            Some(tensor) => {
                self.same_library("out", &tensor)?;
                self.same_device("out", &tensor)?;
                Ok(Output::given(tensor))
            }
            None if self.planning => Ok(Output::imagined(self.py, spec, like)),
            None => allocate::fresh(self.argument("out"), spec, like, || self.stream()),
        }
    }

    /// Memory for the work itself, of which results are made; to be let go of once the work is queued. None for no
    /// bytes.
    pub fn workspace(&self, bytes: u64) -> Result<Option<Output<'py>>> {
        let Some(First { object, source, device, .. }) = self.first.as_ref().filter(|_| bytes > 0) else {
            return Ok(None);
        };
        let shape = [bytes.cast_signed()].into_iter().collect();
        let spec = OutputSpec::contiguous(shape, DType::U8, *device);
        // A view of another dtype and shape: only the library and the device are alike.
        let like =
            Tensor { view: Box::new(descriptor::blank()), object: object.clone(), source: source.clone() };
        allocate::fresh(self.argument("out"), &spec, &like, || self.stream()).map(Some)
    }

    /// What the device has to be asked for before the work, such as the bytes of workspace.
    pub fn ask<T: Send>(&self, question: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let device = self.first.as_ref().map_or(Device::Cpu, |first| first.device);
        without_gil(self.py, device, 0, question)
    }

    /// Solves a problem of about `steps` elementary steps and returns what the caller gets: a result, or two.
    pub fn run(
        self,
        out: Output<'py>,
        second: Option<Output<'py>>,
        steps: i64,
        solve: impl FnOnce(Resources) -> Result<()> + Send,
    ) -> Result<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)> {
        let mut results = self.run_all([out].into_iter().chain(second).collect(), steps, solve)?.into_iter();
        let none = || Error::NoMemory { op: "run", argument: "out" };
        Ok((results.next().ok_or_else(none)?, results.next()))
    }

    /// The same of as many results as there are.
    pub fn run_all(
        self,
        outputs: Vec<Output<'py>>,
        steps: i64,
        solve: impl FnOnce(Resources) -> Result<()> + Send,
    ) -> Result<Vec<Bound<'py, PyAny>>> {
        let stream = self.stream()?;
        let device = self.first.as_ref().map_or(Device::Cpu, |first| first.device);
        let resources = Resources { stream, workers: self.workers() };
        without_gil(self.py, device, steps, || solve(resources))?;
        let results: Vec<_> = outputs.into_iter().map(|out| out.finish(self.op)).collect();
        producer::release(self.py, self.op, device, stream, self.holds)?;
        results.into_iter().collect()
    }

    /// The threads that the library of the tensors lends.
    pub fn workers(&self) -> Option<&'static dyn Workers> {
        match &self.first {
            Some(First { source, device: Device::Cpu, .. }) if matches!(**source, Source::Torch(_)) => {
                threads::workers()
            }
            _ => None,
        }
    }

    fn stream(&self) -> Result<RawStream> {
        let Some(First { source, device: Device::Cuda(ordinal), .. }) = &self.first else { return Ok(0) };
        match &**source {
            Source::Torch(class) => Ok(class.stream(self.py, *ordinal)?),
            Source::Producer(producer) => producer.stream(self.py, *ordinal),
            Source::Numpy(_) | Source::NumpyScalar | Source::Overrides | Source::None => Ok(0),
        }
    }
}
