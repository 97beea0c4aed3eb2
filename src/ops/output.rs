//! The rules every `out=` argument obeys, and the memory order of results that the library allocates.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::tensor::{Device, Dims, TensorView, layout};

/// What a result must be: made by the caller's framework when there is no `out`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputSpec {
    pub shape: Dims,
    /// Dense strides; row-major unless an operation keeps its inputs' order.
    pub strides: Dims,
    pub dtype: DType,
    pub device: Device,
}

impl OutputSpec {
    pub fn contiguous(shape: Dims, dtype: DType, device: Device) -> OutputSpec {
        let strides = layout::contiguous_strides(&shape);
        OutputSpec { shape, strides, dtype, device }
    }

    pub fn is_contiguous(&self) -> bool {
        self.strides == layout::contiguous_strides(&self.shape)
    }
}

/// Refuses an `out` that is not what the result would be, cannot be written, or overlaps an input in any
/// way but the allowed one. `inputs` are (name, view, may be exactly `out`).
pub fn check_out(
    op: &'static str,
    spec: &OutputSpec,
    out: &TensorView,
    inputs: &[(&'static str, &TensorView, bool)],
) -> Result<()> {
    if out.device != spec.device {
        return Err(Error::DevicesDiffer {
            op,
            argument: "out",
            got: out.device,
            other: inputs.first().map_or("the input", |i| i.0),
            expected: spec.device,
        });
    }
    if out.shape != spec.shape {
        return Err(Error::OutShape { op, got: out.shape.clone(), expected: spec.shape.clone() });
    }
    if out.dtype != spec.dtype {
        return Err(Error::OutDType { op, got: out.dtype, expected: spec.dtype });
    }
    if !out.writable {
        return Err(Error::ReadOnlyOut { op });
    }
    if layout::overlaps_itself(out) {
        return Err(Error::OutOverlapsItself { op });
    }
    for &(argument, input, may_be_out) in inputs {
        if !layout::overlaps(out, input) || (may_be_out && layout::same(out, input)) {
            continue;
        }
        let but = if may_be_out { " without being exactly it" } else { "" };
        return Err(Error::OutOverlapsInput { op, argument, but });
    }
    Ok(())
}
