//! Whether torch negates the values in a tensor's memory (`torch.conj(z).imag`), which DLPack does not show.
//!
//! `is_neg()` gives up the GIL to read one bit: 95 ns, where an addition of four numbers takes 850. So the bit is looked up
//! where torch keeps it, if a comparison of tensors that differ in nothing else shows where that is.

use std::ptr;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::interop::builtin::{Method, truth};

#[derive(Debug)]
pub struct Negation {
    is_neg: Method,
    bit: Option<Bit>,
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

impl Negation {
    pub fn of(torch: &Bound<'_, PyAny>, probe: &Bound<'_, PyAny>) -> PyResult<Negation> {
        let is_neg = Method::of(probe, "is_neg")?;
        // Without the names that probing needs, torch is asked.
        let bit = if cfg!(target_pointer_width = "64") { find(torch).unwrap_or(None) } else { None };
        Ok(Negation { is_neg, bit })
    }

    /// Where the bit's word is in the C++ object, in bytes: the bit is one of the dispatch keys, which have that word.
    pub fn word(&self) -> Option<usize> {
        self.bit.map(|bit| bit.word)
    }

    /// `tensor` must be an instance of torch.Tensor that torch has described.
    pub fn is_negated(&self, tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
        match self.bit {
            // SAFETY: every tensor in Python begins with the struct in which `find` saw the pointer, and one that has been
            // described has a C++ object, which begins with the struct in which it saw the bit. The GIL is held, so that
            // neither goes away.
            Some(Bit { pointer, word, mask }) => unsafe {
                let object: *const u64 =
                    ptr::with_exposed_provenance(read(tensor.as_ptr().cast(), pointer) as usize);
                Ok(read(object, word) & mask != 0)
            },
            None => truth(&self.is_neg.call(tensor)?),
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
