//! What a tensor's dispatch keys say of it and DLPack does not: whether torch negates the values in its memory
//! (`torch.conj(z).imag`), and whether it is functionalize's wrapper, which has no memory.
//!
//! `is_neg()` gives up the GIL to read one bit: 95 ns, where an addition of four numbers takes 850. So the bits are looked up
//! where torch keeps them, if a comparison of tensors that differ in nothing else shows where that is.

use std::ptr;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::interop::builtin::{Builtin, Method, truth};

#[derive(Debug)]
pub struct Keys {
    is_neg: Method,
    negative: Option<Bit>,
    is_functional: Builtin,
    functional: Option<Bit>,
}

/// A bit of the C++ object behind a Python tensor; the layouts of both are fixed when torch is compiled.
#[derive(Clone, Copy, Debug)]
struct Bit {
    /// Offset in the Python object of the pointer to the C++ object, in bytes.
    pointer: usize,
    /// Offset in the C++ object of the word that has the bit, in bytes.
    word: usize,
    mask: u64,
}

const WORD: usize = size_of::<u64>();
/// The bit is looked for in so many words of the C++ object: in torch 2.15 it is in the 22nd, which is the last one.
const WORDS: usize = 24;

impl Keys {
    pub fn of(torch: &Bound<'_, PyAny>, probe: &Bound<'_, PyAny>) -> PyResult<Keys> {
        let is_neg = Method::of(probe, "is_neg")?;
        let is_functional = Builtin::of(torch.getattr("_is_functional_tensor")?);
        // Without the names that probing needs, torch is asked.
        let negative = if cfg!(target_pointer_width = "64") { find(torch).unwrap_or(None) } else { None };
        let functional = negative.and_then(|bit| functional_bit(torch, probe, bit).unwrap_or(None));
        Ok(Keys { is_neg, negative, is_functional, functional })
    }

    /// Where the address of the C++ object is in a tensor's Python object, and the keys' word in the C++ object, in bytes.
    pub fn word(&self) -> Option<(usize, usize)> {
        self.negative.map(|bit| (bit.pointer, bit.word))
    }

    /// `tensor` must be an instance of torch.Tensor that torch has described.
    pub fn is_negated(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        match self.negative {
            // SAFETY: by the caller's promise.
            Some(bit) => Ok(unsafe { bit.is_set(tensor) }),
            None => truth(&self.is_neg.call(tensor)?),
        }
    }

    /// Whether torch.func.functionalize has wrapped `tensor`, of which the same is to be true.
    pub fn is_functional(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        match self.functional {
            // SAFETY: by the caller's promise.
            Some(bit) => Ok(unsafe { bit.is_set(tensor) }),
            None => truth(&self.is_functional.call1(tensor)?),
        }
    }
}

impl Bit {
    /// # Safety
    /// `tensor` must be an instance of torch.Tensor that torch has described.
    unsafe fn is_set(self, tensor: &Bound<'_, PyAny>) -> bool {
        // SAFETY: every tensor in Python begins with the struct in which `find` saw the pointer, and one that has been
        // described has a C++ object, which begins with the struct in which it saw the bit. The GIL is held, so that
        // neither goes away.
        unsafe {
            let object: *const u64 =
                ptr::with_exposed_provenance(read(tensor.as_ptr().cast(), self.pointer) as usize);
            read(object, self.word) & self.mask != 0
        }
    }
}

/// # Safety
/// An aligned word must be readable at so many bytes from `base`.
unsafe fn read(base: *const u64, offset: usize) -> u64 {
    // SAFETY: by the caller's promise.
    unsafe { base.byte_add(offset).read() }
}

/// A tensor and what differs from it by the bit, and otherwise as views of it may.
struct Pair<'py> {
    plain: Bound<'py, PyAny>,
    negated: Bound<'py, PyAny>,
}

fn pairs<'py>(torch: &Bound<'py, PyAny>) -> PyResult<Vec<Pair<'py>>> {
    let negated = |tensor: Bound<'py, PyAny>| torch.call_method1("_neg_view", (tensor,));
    let mut pairs = Vec::new();
    for (shape, dtype) in
        [(vec![3], "float32"), (vec![2, 4], "float64"), (vec![], "int32"), (vec![0], "float16")]
    {
        let (shape, options) = (PyTuple::new(torch.py(), shape)?, PyDict::new(torch.py()));
        options.set_item("device", "cpu")?;
        options.set_item("dtype", torch.getattr(dtype)?)?;
        let plain = torch.call_method("empty", (shape,), Some(&options))?;
        let view = plain.call_method0("detach")?;
        let twice = negated(negated(plain.clone())?)?;
        pairs.push(Pair { negated: negated(plain.clone())?, plain });
        pairs.push(Pair { negated: negated(view.clone())?.getattr("data")?, plain: twice });
        pairs.push(Pair { negated: negated(view.clone())?.call_method0("detach")?, plain: view });
    }
    let parameter = torch.getattr("nn")?.getattr("Parameter")?.call1((pairs[0].plain.clone(),))?;
    pairs.push(Pair { negated: negated(parameter.clone())?, plain: parameter });
    Ok(pairs)
}

/// The one bit that is set in all negated tensors, in none of the others, and is alone so in its word.
fn find(torch: &Bound<'_, PyAny>) -> PyResult<Option<Bit>> {
    let pairs = pairs(torch)?;
    let Some(pointer) = find_pointer(&pairs)? else { return Ok(None) };
    let read_word = |tensor: &Bound<'_, PyAny>, word: usize| -> u64 {
        // SAFETY: `find_pointer` saw an aligned word of the Python object there, which is the address of a C++ object that
        // lives as long as the tensor. Nothing is read behind the word with the bit.
        unsafe {
            let object: *const u64 =
                ptr::with_exposed_provenance(read(tensor.as_ptr().cast(), pointer) as usize);
            read(object, word)
        }
    };
    for word in (0..WORDS).map(|i| i * WORD) {
        let mask = read_word(&pairs[0].plain, word) ^ read_word(&pairs[0].negated, word);
        let is_bit = |Pair { plain, negated }: &Pair<'_>| {
            let plain = read_word(plain, word);
            plain & mask == 0 && read_word(negated, word) == plain | mask
        };
        if mask.is_power_of_two() && pairs.iter().all(is_bit) {
            return Ok(Some(Bit { pointer, word, mask }));
        }
    }
    Ok(None)
}

/// The bit of functionalize's key in the word of `negative`, if a wrapper has it and what it wraps has not.
fn functional_bit(
    torch: &Bound<'_, PyAny>,
    probe: &Bound<'_, PyAny>,
    negative: Bit,
) -> PyResult<Option<Bit>> {
    let native = torch.getattr("_C")?;
    let key = native.getattr("DispatchKey")?.getattr("Functionalize")?;
    let mask = native.getattr("DispatchKeySet")?.call1((key,))?.call_method0("raw_repr")?.extract()?;
    let bit = Bit { mask, ..negative };
    let wrapper = torch.call_method1("_to_functional_tensor", (probe,))?;
    // SAFETY: tensors of torch's own, which have their C++ objects from the start.
    let is_right = unsafe { bit.is_set(&wrapper) && !bit.is_set(probe) };
    Ok((mask.is_power_of_two() && is_right).then_some(bit))
}

/// The one word of all these Python objects that is the address of their C++ object, in bytes from the start.
fn find_pointer(pairs: &[Pair<'_>]) -> PyResult<Option<usize>> {
    let mut candidates: Option<Vec<usize>> = None;
    for tensor in pairs.iter().flat_map(|pair| [&pair.plain, &pair.negated]) {
        let address: u64 = tensor.getattr("_cdata")?.extract()?;
        let size: usize = tensor.get_type().getattr("__basicsize__")?.extract()?;
        let all = (0..size / WORD).map(|word| word * WORD);
        // SAFETY: the Python object has so many bytes.
        let here = all.filter(|&offset| unsafe { read(tensor.as_ptr().cast(), offset) } == address);
        candidates = Some(match candidates {
            None => here.collect(),
            Some(before) => here.filter(|offset| before.contains(offset)).collect(),
        });
    }
    Ok(match candidates.as_deref() {
        Some(&[pointer]) => Some(pointer),
        _ => None,
    })
}
