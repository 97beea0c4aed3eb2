//! What two calls' tensors are compared by.

use dlpark::ffi::{DLDataType, DLDevice, DLTensor};
use pyo3::prelude::*;
use smallvec::SmallVec;

use crate::dtype::DType;
use crate::interop::source::Source;
use crate::interop::torch::TorchClass;
use crate::interop::{Argument, Role, descriptor};
use crate::ops::output::OutputSpec;
use crate::tensor::{Dims, layout};

/// What is seen of an address beside what plans see of it: whether elements are aligned, and pairs of them.
const ALIGNMENT: usize = 16;

/// A tensor's descriptor, but for its address.
#[derive(Debug)]
pub struct Layout {
    dtype: DLDataType,
    device: DLDevice,
    /// Shape, then strides.
    dims: SmallVec<[i64; 8]>,
    alignment: usize,
    /// From its address to behind its last byte; torch knows no negative strides.
    pub reach: usize,
}

/// A tensor as torch describes it; what that points to lasts as long as the tensor.
pub struct Described {
    pub class: &'static TorchClass,
    pub raw: DLTensor,
}

impl Described {
    pub fn address(&self) -> usize {
        descriptor::address(&self.raw)
    }
}

impl Layout {
    /// Whether a tensor is described like this, wherever it is.
    pub fn is_of(&self, raw: &DLTensor) -> bool {
        let rank = raw.ndim.max(0).unsigned_abs() as usize;
        let dims = |from: *const i64| match rank {
            0 => &[][..],
            // SAFETY: torch describes as many sizes and strides as there are dimensions, and the tensor is alive.
            _ => unsafe { std::slice::from_raw_parts(from, rank) },
        };
        let address = descriptor::address(raw);
        raw.dtype == self.dtype
            && raw.device == self.device
            && self.dims.len() == 2 * rank
            && (rank == 0 || !raw.strides.is_null())
            && self.dims[..rank] == *dims(raw.shape)
            && self.dims[rank..] == *dims(raw.strides)
            && address % ALIGNMENT == self.alignment
            // Some tensors have sizes, and no memory.
            && (address != 0 || self.reach == 0)
    }

    /// Of a tensor, what makes another like it, and where it begins; None of what has more to it than its memory, or no memory.
    pub fn of(op: &'static str, tensor: &Bound<'_, PyAny>) -> Option<(Layout, OutputSpec, usize)> {
        let argument = Argument { op, name: "x", accepted: &DType::ALL };
        let mut raw = DLTensor::default();
        torch_class(tensor)?.raw(argument, Role::Input, tensor, &mut raw)?;
        let mut view = descriptor::blank();
        // SAFETY: torch filled `raw` for a tensor that is alive.
        unsafe { descriptor::read(argument, &raw, &mut view) }.ok()?;
        let (low, high) = match view.is_empty() {
            true => (view.address as i128, view.address as i128),
            false => layout::byte_range(&view),
        };
        let described = view.rank() == 0 || !raw.strides.is_null();
        if !described || low != view.address as i128 {
            return None;
        }
        let mut dims: SmallVec<[i64; 8]> = SmallVec::new();
        for from in [raw.shape, raw.strides].into_iter().filter(|_| view.rank() > 0) {
            // SAFETY: as above, and not null.
            dims.extend_from_slice(unsafe { std::slice::from_raw_parts(from, view.rank()) });
        }
        // Strides as torch has them: those of the view say nothing of dimensions of size 1.
        let strides = Dims::from_slice(&dims[view.rank()..]);
        let spec = OutputSpec { shape: view.shape, strides, dtype: view.dtype, device: view.device };
        let DLTensor { dtype, device, .. } = raw;
        let reach = usize::try_from(high - low).ok()?;
        let layout = Layout { dtype, device, dims, alignment: view.address % ALIGNMENT, reach };
        Some((layout, spec, view.address))
    }
}

/// What is known of a torch tensor's class, if it was seen before.
pub fn torch_class(tensor: &Bound<'_, PyAny>) -> Option<&'static TorchClass> {
    match Source::known(tensor)? {
        Source::Torch(class) => Some(class),
        _ => None,
    }
}
