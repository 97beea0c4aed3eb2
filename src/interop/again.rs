//! Calls like an earlier one of their thread: the same options, and torch tensors that differ from the earlier ones in
//! nothing but where their memory is. What that call was checked for holds of them too, and its problem is moved to
//! the new addresses rather than posed again. What remains is to ask torch whether the call is still ours to make.

mod layout;

use std::cell::RefCell;
use std::thread::LocalKey;

use dlpark::ffi::DLTensor;
use layout::{Described, Layout, torch_class};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use smallvec::SmallVec;

use super::call::without_gil;
use super::scalar::is_number;
use super::torch::{Torch, TorchClass};
use super::{Argument, allocate, descriptor, dispatcher};
use crate::cuda::RawStream;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::Recurring;
use crate::ops::output::OutputSpec;
use crate::tensor::Device;

/// Different calls of one operation that a thread remembers: as many as a layer of a model has, and more.
const KEPT: usize = 16;

/// The arguments of a call.
#[derive(Debug)]
pub struct Arguments<'a, 'py, const T: usize, const K: usize> {
    pub op: &'static str,
    /// In the order of the problem's addresses, where the result comes last.
    pub tensors: [Option<&'a Bound<'py, PyAny>>; T],
    pub options: [Option<Borrowed<'a, 'py, PyAny>>; K],
    pub out: Option<&'a Bound<'py, PyAny>>,
    /// Whether the operation is on one of torch's lists for autocast.
    pub autocast: bool,
}

/// The calls of one operation that a thread remembers.
pub type Memory<P, const T: usize, const K: usize> = RefCell<Vec<Entry<P, T, K>>>;

#[derive(Debug)]
pub struct Entry<P, const T: usize, const K: usize> {
    tensors: [Option<Layout>; T],
    /// Immutable, so that the same object is the same value.
    options: [Option<Py<PyAny>>; K],
    out: Option<Layout>,
    /// What a result is allocated from where there is no `out`: shape, strides and dtype.
    result: Option<Py<PyTuple>>,
    device: Device,
    problem: P,
    steps: i64,
}

/// What came of looking for an earlier call.
#[derive(Debug)]
pub enum Again<'py> {
    Made(Bound<'py, PyAny>),
    /// There was none.
    New,
    /// More than memory has to be asked, or where it is was not to the purpose.
    Otherwise,
}

/// What solves a problem gets besides it.
#[derive(Debug)]
pub struct Lender<'a, 'py> {
    class: &'static TorchClass,
    like: &'a Bound<'py, PyAny>,
    device: Device,
    stream: RawStream,
    steps: i64,
    lent: Option<Bound<'py, PyAny>>,
}

impl Lender<'_, '_> {
    /// The address of so many bytes, to be let go of once the work is queued.
    pub fn lend(&mut self, bytes: u64) -> Result<usize> {
        if bytes == 0 {
            return Ok(0);
        }
        let shape = [bytes.cast_signed()].into_iter().collect();
        let spec = OutputSpec::contiguous(shape, DType::U8, self.device);
        let memory = allocate::torch_empty(self.class.torch, &spec, self.like)?;
        let argument = Argument { op: "workspace", name: "out", accepted: &DType::ALL };
        let address = self.class.address(argument, &memory)?;
        self.lent = Some(memory);
        Ok(address)
    }

    /// Runs the work on its stream, without the GIL where that is due.
    pub fn run(&self, work: impl FnOnce(RawStream) -> Result<()> + Send) -> Result<()> {
        let stream = self.stream;
        without_gil(self.like.py(), self.device, self.steps, || work(stream))
    }
}

/// Makes a call that is like a remembered one, by `solve`.
pub fn again<'py, P: Recurring, const T: usize, const K: usize>(
    memory: &'static LocalKey<Memory<P, T, K>>,
    arguments: &Arguments<'_, 'py, T, K>,
    solve: impl FnOnce(&P, &mut Lender<'_, 'py>) -> Result<()>,
) -> Result<Again<'py>> {
    let make = |memory: &Memory<P, T, K>| {
        // Borrowed already: something that this thread runs within a call calls us, such as a finalizer.
        let Ok(mut entries) = memory.try_borrow_mut() else { return Ok(Again::Otherwise) };
        // Large: filled in where it is.
        let mut operands = Operands { tensors: [const { None }; T], out: None, elsewhere: true };
        if arguments.describe(&mut operands).is_none() {
            return Ok(Again::Otherwise);
        }
        match entries.iter_mut().find(|entry| entry.is_like(arguments, &operands)) {
            None => Ok(Again::New),
            Some(entry) => entry.make(arguments, &operands, solve),
        }
    };
    memory.try_with(make).unwrap_or(Ok(Again::Otherwise))
}

impl<'py, const T: usize, const K: usize> Arguments<'_, 'py, T, K> {
    /// All that is to be compared, if the call is no business of torch's dispatcher, and none of autograd's.
    fn describe(&self, operands: &mut Operands<T>) -> Option<()> {
        if dispatcher::is_on_memory() {
            return None;
        }
        for tensor in self.tensors.iter().chain([&self.out]).flatten() {
            torch_class(tensor)?;
        }
        let argument = Argument { op: self.op, name: "x", accepted: &DType::ALL };
        let (mut first, mut of_all) = (true, None);
        let mut take =
            |tensor: Option<&Bound<'py, PyAny>>, described: &mut Option<Described>| -> Option<()> {
                let Some(tensor) = tensor else { return Some(()) };
                let class = torch_class(tensor)?;
                let Torch { dispatcher, gpus, .. } = class.torch;
                if std::mem::take(&mut first) && dispatcher.takes_all(tensor).ok()? {
                    return None;
                }
                if !matches!(dispatcher.handler(class.overrides, tensor), Ok(None)) {
                    return None;
                }
                let place = gpus.place(tensor);
                let &mut (known, elsewhere) =
                    of_all.get_or_insert_with(|| (place, gpus.is_elsewhere(tensor.py(), place)));
                // Describing a tensor may have it copied to the current GPU.
                if place != known {
                    return None;
                }
                if elsewhere {
                    gpus.settle(tensor).ok()?;
                }
                let described = described.insert(Described { class, raw: DLTensor::default() });
                class.raw(argument, tensor, &mut described.raw)
            };
        for (described, tensor) in operands.tensors.iter_mut().zip(self.tensors) {
            take(tensor, described)?;
        }
        take(self.out, &mut operands.out)?;
        operands.elsewhere = of_all.is_none_or(|(_, elsewhere)| elsewhere);
        Some(())
    }
}

/// The tensors of a call.
struct Operands<const T: usize> {
    tensors: [Option<Described>; T],
    out: Option<Described>,
    /// On another GPU than the current one.
    elsewhere: bool,
}

impl<P: Recurring, const T: usize, const K: usize> Entry<P, T, K> {
    fn is_like(&self, arguments: &Arguments<'_, '_, T, K>, operands: &Operands<T>) -> bool {
        let same_layout = |(layout, tensor): (&Option<Layout>, &Option<Described>)| match (layout, tensor) {
            (Some(layout), Some(tensor)) => layout.is_of(&tensor.raw),
            (layout, tensor) => layout.is_none() && tensor.is_none(),
        };
        let same_object = |(kept, given): (&Option<Py<PyAny>>, &Option<Borrowed<'_, '_, PyAny>>)| {
            kept.as_ref().map(Py::as_ptr) == given.as_ref().map(|given| given.as_ptr())
        };
        self.tensors.iter().zip(&operands.tensors).all(same_layout)
            && same_layout((&self.out, &operands.out))
            && self.options.iter().zip(&arguments.options).all(same_object)
    }

    fn make<'py>(
        &mut self,
        arguments: &Arguments<'_, 'py, T, K>,
        operands: &Operands<T>,
        solve: impl FnOnce(&P, &mut Lender<'_, 'py>) -> Result<()>,
    ) -> Result<Again<'py>> {
        let (Some(Some(like)), Some(Some(Described { class, .. }))) =
            (arguments.tensors.first(), operands.tensors.first())
        else {
            return Ok(Again::Otherwise);
        };
        let (py, torch) = (like.py(), class.torch);
        if arguments.autocast && torch.dispatcher.is_autocast(py, self.device)? {
            return Ok(Again::Otherwise);
        }
        let address = |tensor: &Option<Described>| tensor.as_ref().map_or(0, |t| descriptor::address(&t.raw));
        let mut addresses: SmallVec<[usize; 4]> = operands.tensors.iter().map(address).collect();
        let result = match (arguments.out, &self.result) {
            (Some(out), _) => {
                let at = address(&operands.out);
                if !self.is_apart(&addresses, at) || !torch.dispatcher.is_writable(out)? {
                    return Ok(Again::Otherwise);
                }
                addresses.push(at);
                out.clone()
            }
            (None, Some(asked)) if !operands.elsewhere => {
                let Some(result) = torch.allocate_here(self.device, asked.bind(py)) else {
                    return Ok(Again::Otherwise);
                };
                let result = result?;
                let argument = Argument { op: arguments.op, name: "out", accepted: &DType::ALL };
                addresses.push(class.address(argument, &result)?);
                result
            }
            (None, _) => return Ok(Again::Otherwise),
        };
        let stream = match self.device {
            Device::Cpu => 0,
            Device::Cuda(ordinal) => class.stream(py, ordinal)?,
        };
        self.problem.place(&addresses);
        let (device, steps) = (self.device, self.steps);
        let mut lender = Lender { class, like, device, stream, steps, lent: None };
        solve(&self.problem, &mut lender)?;
        if let Some(out) = arguments.out {
            torch.dispatcher.overwritten(out)?;
        }
        Ok(Again::Made(result))
    }

    /// Whether an `out` at this address shares no byte with an input.
    fn is_apart(&self, inputs: &[usize], out: usize) -> bool {
        let out_reach = self.out.as_ref().map_or(0, |layout| layout.reach);
        let apart = |(layout, &at): (&Option<Layout>, &usize)| match layout {
            Some(layout) => at + layout.reach <= out || out + out_reach <= at,
            None => true,
        };
        self.tensors.iter().zip(inputs).all(apart)
    }
}

/// Remembers a call that was new. `result`: what it returned; `problem`: what it was, and of about how many elementary
/// steps.
pub fn remember<'py, P: Recurring, const T: usize, const K: usize>(
    memory: &'static LocalKey<Memory<P, T, K>>,
    arguments: &Arguments<'_, 'py, T, K>,
    result: &Bound<'py, PyAny>,
    problem: (P, i64),
) {
    let Some(entry) = arguments.entry(result, problem) else { return };
    let keep = |memory: &Memory<P, T, K>| {
        let Ok(mut entries) = memory.try_borrow_mut() else { return Vec::new() };
        let kept = entries.len().min(KEPT - 1);
        let forgotten = entries.split_off(kept);
        entries.insert(0, entry);
        forgotten
    };
    // Dropped out here: that may run Python code, and so calls of ours.
    drop(memory.try_with(keep));
}

impl<'py, const T: usize, const K: usize> Arguments<'_, 'py, T, K> {
    fn entry<P>(&self, result: &Bound<'py, PyAny>, (problem, steps): (P, i64)) -> Option<Entry<P, T, K>> {
        let (of_result, spec) = Layout::of(self.op, result)?;
        let mut tensors = [const { None }; T];
        for (kept, tensor) in tensors.iter_mut().zip(self.tensors) {
            let Some(tensor) = tensor else { continue };
            let (layout, OutputSpec { device, .. }) = Layout::of(self.op, tensor)?;
            *kept = (device == spec.device).then_some(Some(layout))?;
        }
        if !self.options.iter().flatten().all(is_immutable) {
            return None;
        }
        let options = self.options.map(|option| option.map(|option| option.to_owned().unbind()));
        let (out, asked) = match self.out {
            Some(_) => (Some(of_result), None),
            None => (None, Some(torch_class(result)?.torch.asked(result.py(), &spec).ok()?.unbind())),
        };
        Some(Entry { tensors, options, out, result: asked, device: spec.device, problem, steps })
    }
}

fn is_immutable(option: &Borrowed<'_, '_, PyAny>) -> bool {
    is_number(option) || option.is_exact_instance_of::<PyString>()
}
