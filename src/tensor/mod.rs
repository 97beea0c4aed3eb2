//! A borrowed description of somebody else's tensor.

pub mod layout;

use std::fmt;

use smallvec::SmallVec;

use crate::dtype::DType;

/// Sizes or strides, outermost dimension first. Six dimensions fit without an allocation.
pub type Dims = SmallVec<[i64; 6]>;

/// Where a tensor's memory lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Device {
    Cpu,
    /// CUDA device by ordinal.
    Cuda(i32),
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Cuda(i) => write!(f, "cuda:{i}"),
        }
    }
}

/// Shape, strides, dtype and first element of a tensor that the caller keeps alive.
///
/// `address` is an integer so that everything which only reasons about layout (meaning, plans, tests)
/// is safe code; the few places that touch the memory turn it back into a pointer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorView {
    /// Address of the element at index (0, 0, ...); byte offsets are already applied. 0 only if empty.
    pub address: usize,
    pub dtype: DType,
    pub device: Device,
    pub shape: Dims,
    /// In elements; 0 for expanded dimensions, negative for numpy's reversed views.
    pub strides: Dims,
    pub writable: bool,
}

impl TensorView {
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// Number of elements.
    pub fn len(&self) -> i64 {
        layout::len(&self.shape)
    }

    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }
}

/// `(2, 3)`, as Python prints a shape.
pub fn display_dims(dims: &[i64]) -> String {
    match dims {
        [one] => format!("({one},)"),
        _ => format!("({})", dims.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")),
    }
}
