//! What torch.autocast makes of an operation's tensors, as far as it can be done here; the rest is in
//! python/tilewise/torch/autocast.py. Conversions are torch's own, so that they are recorded where it records.

use pyo3::intern;
use pyo3::prelude::*;

use super::Torch;
use crate::dtype::DType;
use crate::interop::builtin::{Attribute, truth};
use crate::interop::source::Source;

/// What autocast converts.
const CONVERTED: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// The objects of torch for it.
#[derive(Debug)]
pub struct AutocastState {
    /// torch.get_autocast_dtype, of torch 2.4 and later.
    dtype_on: Option<Py<PyAny>>,
    is_cuda: Attribute,
}

impl AutocastState {
    pub fn of(torch: &Bound<'_, PyAny>) -> PyResult<AutocastState> {
        let dtype_on = torch.getattr_opt("get_autocast_dtype")?.map(Bound::unbind);
        Ok(AutocastState { dtype_on, is_cuda: Attribute::of(&torch.getattr("Tensor")?, "is_cuda")? })
    }
}

impl Torch {
    /// The dtype in which autocast computes matmuls; None of an older torch, or of a dtype that is none of ours.
    pub fn autocast_dtype(&self, py: Python<'_>, on_cuda: bool) -> PyResult<Option<DType>> {
        let Some(dtype_on) = &self.autocast.dtype_on else { return Ok(None) };
        let device = if on_cuda { intern!(py, "cuda") } else { intern!(py, "cpu") };
        Ok(self.dtype_of(&dtype_on.bind(py).call1((device,))?))
    }
}

/// The tensors in the precision of operations that autocast computes in a lower one; None if that is to be seen to in
/// Python. The first decides on the device: what lies elsewhere stays as it is.
pub fn lowered<'py, const N: usize>(
    tensors: [Option<&Bound<'py, PyAny>>; N],
) -> PyResult<Option<[Option<Bound<'py, PyAny>>; N]>> {
    let Some((first, torch)) = tensors[0].and_then(|first| Some((first, plain(first)?))) else {
        return Ok(None);
    };
    let (py, state) = (first.py(), &torch.autocast);
    let on_cuda = |tensor: &Bound<'py, PyAny>| truth(&state.is_cuda.read(tensor)?);
    let cuda = on_cuda(first)?;
    let (dtype, convert) = match torch.autocast_dtype(py, cuda)? {
        Some(dtype @ DType::F16) => (dtype, intern!(py, "half")),
        Some(dtype @ DType::BF16) => (dtype, intern!(py, "bfloat16")),
        _ => return Ok(None),
    };
    let mut all = [const { None }; N];
    for (lowered, tensor) in all.iter_mut().zip(tensors) {
        let Some(tensor) = tensor else { continue };
        if plain(tensor).is_none() {
            return Ok(None);
        }
        let own = torch.dtype_of(&torch.dtype.read(tensor)?);
        let converted = own.is_some_and(|own| CONVERTED.contains(&own));
        let stays = own == Some(dtype) || !converted || on_cuda(tensor)? != cuda;
        *lowered = Some(if stays { tensor.clone() } else { tensor.call_method0(convert)? });
    }
    Ok(Some(all))
}

/// The dtype of softmax's result, where autocast keeps that in float32 and nothing else is asked for.
pub fn float32_of<'py>(x: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let Some(torch) = plain(x) else { return Ok(None) };
    let own = torch.dtype_of(&torch.dtype.read(x)?);
    let converted = own.is_some_and(|own| CONVERTED.contains(&own));
    Ok(converted.then(|| torch.dtype(x.py(), DType::F32).clone()))
}

/// Of tensors whose class has no say.
fn plain(tensor: &Bound<'_, PyAny>) -> Option<&'static Torch> {
    match Source::known(tensor)? {
        Source::Torch(class) => {
            (!class.overrides.function && !class.overrides.dispatch).then_some(class.torch)
        }
        _ => None,
    }
}
