//! The second half of a call: where its results go, and the work itself.

use pyo3::prelude::*;

use super::{Call, First, Tensor};
use crate::cuda::RawStream;
use crate::dtype::DType;
use crate::error::{Error, Handler, Result};
use crate::interop::allocate::{self, Output};
use crate::interop::source::Source;
use crate::interop::{Role, descriptor, producer};
use crate::ops::output::OutputSpec;
use crate::tensor::Device;

/// CPU work of fewer elementary steps is over before giving up the GIL would pay. A launch takes microseconds; getting
/// the GIL back may take milliseconds.
pub fn releases_gil(device: Device, steps: i64) -> bool {
    device == Device::Cpu && steps >= 1 << 14
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

    /// Solves a problem of about `steps` elementary steps and returns what the caller gets.
    pub fn run(
        self,
        out: Output<'py>,
        steps: i64,
        solve: impl FnOnce(RawStream) -> Result<()> + Send,
    ) -> Result<Bound<'py, PyAny>> {
        self.run_with(out, None, steps, solve).map(|(result, _)| result)
    }

    /// As `run`, where there may be a second result.
    pub fn run_with(
        self,
        out: Output<'py>,
        second: Option<Output<'py>>,
        steps: i64,
        solve: impl FnOnce(RawStream) -> Result<()> + Send,
    ) -> Result<(Bound<'py, PyAny>, Option<Bound<'py, PyAny>>)> {
        let stream = self.stream()?;
        if releases_gil(out.view.device, steps) {
            self.py.detach(|| solve(stream))?;
        } else {
            solve(stream)?;
        }
        let device = out.view.device;
        let result = out.finish(self.op);
        let second = second.map(|out| out.finish(self.op)).transpose();
        producer::release(self.op, device, stream, self.holds)?;
        Ok((result?, second?))
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
