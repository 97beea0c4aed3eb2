//! The call memo: calls like an earlier one of their thread, with the same options, on torch tensors that differ from the
//! earlier ones in nothing but where their memory is. What that call was checked for holds of them too, and its problem is
//! moved to the new addresses rather than posed again.
//!
//! | what a call depends on | where it is compared |
//! | --- | --- |
//! | shapes, strides, dtypes, devices | `Layout`, for each tensor |
//! | addresses modulo 16; whether `out` is an input | `Layout`; `Entry::aliases` |
//! | options | by identity: numbers, strings and dtypes are immutable |
//! | class, modes, subclass, inference, negation | asked of torch at each call: `Arguments::describe` |
//! | whether a gradient is recorded | asked likewise, and compared: `Entry::recorded` |
//! | autocast | asked at each call: `call` |
//! | current GPU, stream, whether `out` may be written | asked at each call: `Entry::make` |
//! | torch's default dtype | not kept: such sums are not remembered |
//! | what backends see besides, such as addresses modulo 128 | by what is kept of the call: `K` |

mod layout;

use std::cell::RefCell;
use std::thread::LocalKey;

use dlpark::ffi::{DLDeviceType, DLTensor};
use layout::{Described, Layout, torch_class};
use pyo3::prelude::*;
use pyo3::types::{PyString, PyTuple};
use smallvec::SmallVec;

use super::call::without_gil;
use super::scalar::is_number;
use super::stable::Event;
use super::torch::{Torch, TorchClass, threads};
use super::{Argument, Autocast, Role, allocate, descriptor, dispatcher};
use crate::backend::Resources;
use crate::dtype::DType;
use crate::error::{Handler, Result};
use crate::ops::output::OutputSpec;
use crate::tensor::Device;

/// Different calls of one operation that a thread remembers: as many as a model's layers make.
const ENTRIES: usize = 64;

/// The arguments of a call.
#[derive(Debug)]
pub struct Arguments<'a, 'py, const T: usize, const O: usize> {
    pub op: &'static str,
    /// In the order of the problem's addresses, where the result comes last.
    pub tensors: [Option<&'a Bound<'py, PyAny>>; T],
    pub options: [Option<Borrowed<'a, 'py, PyAny>>; O],
    pub out: Option<&'a Bound<'py, PyAny>>,
    pub autocast: Autocast,
}

/// The calls of one operation that a thread remembers, the last used first, each with what is kept of it.
pub type Memo<K, const T: usize, const O: usize> = RefCell<Vec<Box<Entry<K, T, O>>>>;

#[derive(Debug)]
pub struct Entry<K, const T: usize, const O: usize> {
    tensors: [Option<Layout>; T],
    options: [Option<Py<PyAny>>; O],
    out: Option<Layout>,
    /// Which tensors are `out` itself.
    aliases: [bool; T],
    /// Whether a gradient was recorded: the problem of an operation may be another one then.
    recorded: bool,
    /// What a result is allocated from where there is no `out`: shape, strides and dtype.
    result: Option<Py<PyTuple>>,
    device: Device,
    known: K,
}

/// What came of looking for an earlier call.
#[derive(Debug)]
pub enum Memoised<'py> {
    Made {
        result: Bound<'py, PyAny>,
        /// Whether it is still to be shown to autograd.
        recorded: bool,
    },
    /// torch.autocast has other dtypes in mind.
    Autocast,
    /// There was none. An event for the profiler, if it listens, until the call is made.
    New(Option<Event>),
    /// More than memory has to be asked, or where it is was not to the purpose.
    Otherwise,
}

/// The device, stream and allocator of a remembered call, for the code that solves its problem.
#[derive(Debug)]
pub struct CallContext<'a, 'py> {
    class: &'static TorchClass,
    like: &'a Bound<'py, PyAny>,
    device: Device,
    resources: Resources,
    workspace: Option<Bound<'py, PyAny>>,
}

impl CallContext<'_, '_> {
    /// What the device has to be asked for before the work.
    pub fn ask<T: Send>(&self, question: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        without_gil(self.like.py(), self.device, 0, question)
    }

    /// The address of so many bytes, to be let go of once the work is queued.
    pub fn allocate_workspace(&mut self, bytes: u64) -> Result<usize> {
        if bytes == 0 {
            return Ok(0);
        }
        let shape = [bytes.cast_signed()].into_iter().collect();
        let spec = OutputSpec::contiguous(shape, DType::U8, self.device);
        let memory = allocate::torch_empty(self.class.torch, &spec, self.like)?;
        let argument = Argument { op: "workspace", name: "out", accepted: &DType::ALL };
        let address = self.class.address(argument, &memory)?;
        self.workspace = Some(memory);
        Ok(address)
    }

    /// Runs work of about `steps` elementary steps, without the GIL where that is due.
    pub fn run(&self, steps: i64, work: impl FnOnce(Resources) -> Result<()> + Send) -> Result<()> {
        let resources = self.resources;
        without_gil(self.like.py(), self.device, steps, || work(resources))
    }
}

/// Makes a call that is like a remembered one: by `solve`, which gets what is kept of it and the addresses of its tensors
/// and of the result.
pub fn call<'py, K, const T: usize, const O: usize>(
    memo: &'static LocalKey<Memo<K, T, O>>,
    arguments: &Arguments<'_, 'py, T, O>,
    solve: impl FnOnce(&mut K, &[usize], &mut CallContext<'_, 'py>) -> Result<()>,
) -> Result<Memoised<'py>> {
    let make = |memo: &Memo<K, T, O>| {
        // Borrowed already: something that this thread runs within a call calls us, such as a finalizer.
        let Ok(mut entries) = memo.try_borrow_mut() else { return Ok(Memoised::Otherwise) };
        // Large: filled in where it is.
        let mut operands =
            Operands { tensors: [const { None }; T], out: None, recorded: false, elsewhere: true };
        if arguments.describe(&mut operands).is_none() {
            return Ok(Memoised::Otherwise);
        }
        if arguments.is_autocast(&operands)? {
            return Ok(Memoised::Autocast);
        }
        let event = Event::begin(arguments.op, arguments.tensors.into_iter().flatten());
        let Some(found) = entries.iter().position(|entry| entry.is_like(arguments, &operands)) else {
            return Ok(Memoised::New(event));
        };
        entries[..=found].rotate_right(1);
        entries[0].make(arguments, &operands, solve)
    };
    memo.try_with(make).unwrap_or(Ok(Memoised::Otherwise))
}

impl<'py, const T: usize, const O: usize> Arguments<'_, 'py, T, O> {
    /// All that is to be compared, if the call is no business of torch's dispatcher, and of autograd's no sooner than there is
    /// a result.
    fn describe(&self, operands: &mut Operands<T>) -> Option<()> {
        if dispatcher::is_on_memory() {
            return None;
        }
        for tensor in self.tensors.iter().chain([&self.out]).flatten() {
            torch_class(tensor)?;
        }
        let argument = Argument { op: self.op, name: "x", accepted: &DType::ALL };
        let (mut first, mut of_all, mut recorded) = (true, None, false);
        let mut take = |tensor: Option<&Bound<'py, PyAny>>,
                        role: Role,
                        described: &mut Option<Described>|
         -> Option<()> {
            let Some(tensor) = tensor else { return Some(()) };
            let class = torch_class(tensor)?;
            let Torch { dispatcher, gpus, .. } = class.torch;
            if std::mem::take(&mut first) && dispatcher.takes_all(tensor).ok()? {
                return None;
            }
            match dispatcher.handler(class.overrides, tensor).ok()? {
                None => {}
                Some(Handler::Autograd) => recorded = true,
                Some(_) => return None,
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
            class.raw(argument, role, tensor, &mut described.raw)
        };
        for (described, tensor) in operands.tensors.iter_mut().zip(self.tensors) {
            take(tensor, Role::Input, described)?;
        }
        take(self.out, Role::Output, &mut operands.out)?;
        operands.elsewhere = of_all.is_none_or(|(_, elsewhere)| elsewhere);
        operands.recorded = recorded;
        let apart = || -> Option<bool> {
            let class = torch_class(self.tensors[0]?)?;
            Some(self.out.is_none() && !class.torch.dispatcher.is_transformed(self.tensors[0]?.py()).ok()?)
        };
        (!recorded || apart()?).then_some(())
    }
}

impl<'py, const T: usize, const O: usize> Arguments<'_, 'py, T, O> {
    /// Whether torch.autocast has dtypes in mind that the tensors do not have already.
    fn is_autocast(&self, operands: &Operands<T>) -> Result<bool> {
        let (Some(Some(first)), Some(Some(Described { class, raw }))) =
            (self.tensors.first(), operands.tensors.first())
        else {
            return Ok(false);
        };
        let device = match raw.device.device_type {
            DLDeviceType::CPU => Device::Cpu,
            _ => Device::Cuda(raw.device.device_id),
        };
        let (py, torch) = (first.py(), class.torch);
        if !torch.dispatcher.is_autocast(py, self.autocast, device)? {
            return Ok(false);
        }
        if self.autocast != Autocast::Everywhere {
            return Ok(true);
        }
        let lower = torch.autocast_dtype(py, device != Device::Cpu)?;
        let is_lower =
            |tensor: &Described| lower.is_some() && descriptor::known_dtype(tensor.raw.dtype) == lower;
        Ok(!operands.tensors.iter().flatten().all(is_lower))
    }
}

/// The tensors of a call.
struct Operands<const T: usize> {
    tensors: [Option<Described>; T],
    out: Option<Described>,
    recorded: bool,
    /// On another GPU than the current one.
    elsewhere: bool,
}

impl<const T: usize> Operands<T> {
    /// Which tensors begin where `out` does.
    fn begin_where_out_does(&self) -> [bool; T] {
        let out = self.out.as_ref().map(Described::address);
        std::array::from_fn(|i| out.is_some() && self.tensors[i].as_ref().map(Described::address) == out)
    }
}

impl<K, const T: usize, const O: usize> Entry<K, T, O> {
    fn is_like(&self, arguments: &Arguments<'_, '_, T, O>, operands: &Operands<T>) -> bool {
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
            && self.recorded == operands.recorded
            && (self.out.is_none() || self.aliases == operands.begin_where_out_does())
    }

    fn make<'py>(
        &mut self,
        arguments: &Arguments<'_, 'py, T, O>,
        operands: &Operands<T>,
        solve: impl FnOnce(&mut K, &[usize], &mut CallContext<'_, 'py>) -> Result<()>,
    ) -> Result<Memoised<'py>> {
        let (Some(Some(like)), Some(Some(Described { class, .. }))) =
            (arguments.tensors.first(), operands.tensors.first())
        else {
            return Ok(Memoised::Otherwise);
        };
        let (py, torch) = (like.py(), class.torch);
        let address = |tensor: &Option<Described>| tensor.as_ref().map_or(0, Described::address);
        let mut addresses: SmallVec<[usize; 4]> = operands.tensors.iter().map(address).collect();
        let result = match (arguments.out, &self.result) {
            (Some(out), _) => {
                let at = address(&operands.out);
                if !self.is_apart(&addresses, at) || !torch.dispatcher.is_writable(out)? {
                    return Ok(Memoised::Otherwise);
                }
                addresses.push(at);
                out.clone()
            }
            (None, Some(asked)) if !operands.elsewhere => {
                let Some(result) = torch.allocate_here(self.device, asked.bind(py)) else {
                    return Ok(Memoised::Otherwise);
                };
                let result = result?;
                let argument = Argument { op: arguments.op, name: "out", accepted: &DType::ALL };
                addresses.push(class.address(argument, &result)?);
                result
            }
            (None, _) => return Ok(Memoised::Otherwise),
        };
        let resources = match self.device {
            Device::Cpu => Resources { stream: 0, workers: threads::workers() },
            Device::Cuda(ordinal) => Resources { stream: class.stream(py, ordinal)?, workers: None },
        };
        let mut context = CallContext { class, like, device: self.device, resources, workspace: None };
        solve(&mut self.known, &addresses, &mut context)?;
        if let Some(out) = arguments.out {
            torch.dispatcher.overwritten(out)?;
        }
        Ok(Memoised::Made { result, recorded: self.recorded })
    }

    /// Whether an `out` at this address shares no byte with an input that it is not itself.
    fn is_apart(&self, inputs: &[usize], out: usize) -> bool {
        let out_reach = self.out.as_ref().map_or(0, |layout| layout.reach);
        let apart = |((layout, &alias), &at): ((&Option<Layout>, &bool), &usize)| match layout {
            Some(layout) => alias || at + layout.reach <= out || out + out_reach <= at,
            None => true,
        };
        self.tensors.iter().zip(&self.aliases).zip(inputs).all(apart)
    }
}

/// Remembers a call that was new. `result`: what it returned; `recorded`: whether a gradient is; `known`: what solves its
/// problem.
pub fn remember<'py, K, const T: usize, const O: usize>(
    memo: &'static LocalKey<Memo<K, T, O>>,
    arguments: &Arguments<'_, 'py, T, O>,
    result: &Bound<'py, PyAny>,
    recorded: bool,
    known: K,
) {
    let Some(entry) = arguments.entry(result, recorded, known) else { return };
    let keep = |memo: &Memo<K, T, O>| {
        let Ok(mut entries) = memo.try_borrow_mut() else { return Vec::new() };
        let rest = entries.len().min(ENTRIES - 1);
        let forgotten = entries.split_off(rest);
        entries.insert(0, Box::new(entry));
        forgotten
    };
    // Dropped out here: that may run Python code, and so calls of ours.
    drop(memo.try_with(keep));
}

impl<'py, const T: usize, const O: usize> Arguments<'_, 'py, T, O> {
    fn entry<K>(&self, result: &Bound<'py, PyAny>, recorded: bool, known: K) -> Option<Entry<K, T, O>> {
        let (of_result, spec, at) = Layout::of(self.op, result)?;
        let mut tensors = [const { None }; T];
        let mut aliases = [false; T];
        for ((layout, alias), tensor) in tensors.iter_mut().zip(&mut aliases).zip(self.tensors) {
            let Some(tensor) = tensor else { continue };
            let (of_tensor, OutputSpec { device, .. }, begins) = Layout::of(self.op, tensor)?;
            *alias = self.out.is_some() && begins == at;
            *layout = (device == spec.device).then_some(Some(of_tensor))?;
        }
        if !self.options.iter().flatten().all(is_immutable) {
            return None;
        }
        let options = self.options.map(|option| option.map(|option| option.to_owned().unbind()));
        let (out, asked) = match self.out {
            Some(_) => (Some(of_result), None),
            None => (None, Some(torch_class(result)?.torch.asked(result.py(), &spec).ok()?.unbind())),
        };
        let device = spec.device;
        Some(Entry { tensors, options, out, aliases, recorded, result: asked, device, known })
    }
}

/// Whether the same object is the same value for ever.
fn is_immutable(option: &Borrowed<'_, '_, PyAny>) -> bool {
    let is_dtype = || {
        let torch = super::loaded_module(option.py(), "torch").ok()??;
        Some(option.get_type().is(&torch.getattr("dtype").ok()?))
    };
    is_number(option) || option.is_exact_instance_of::<PyString>() || is_dtype().unwrap_or(false)
}
