//! The rules every `out=` argument obeys, and the memory order of results that the library allocates.

use std::cmp::Ordering;

use smallvec::SmallVec;

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

    /// A tensor like this, at no address yet.
    pub fn view(&self) -> TensorView {
        let OutputSpec { shape, strides, dtype, device } = self.clone();
        TensorView { address: 0, dtype, device, shape, strides, writable: true }
    }

    pub fn is_contiguous(&self) -> bool {
        layout::is_row_major(&self.shape, &self.strides)
    }
}

/// Dense strides for an elementwise result of `shape`, by the rule of torch's TensorIterator: the dimensions in
/// the order of the first operand's strides, and where those are equal or broadcast, of the next one's. So the sum
/// of two channels_last tensors is channels_last, and what is traced with torch's own shapes is what is returned.
/// (But dimensions of size 1 take no part: torch sorts them by what their strides happen to say, and sometimes
/// others beside them.)
pub fn common_order(shape: &[i64], operands: &[&TensorView]) -> Dims {
    let row_major = layout::contiguous_strides(shape);
    if operands.iter().all(|t| t.strides == row_major && t.shape.as_slice() == shape) {
        return row_major;
    }
    let read: SmallVec<[Dims; 2]> =
        operands.iter().map(|t| layout::broadcast_strides(&t.shape, &t.strides, shape)).collect();
    // Not an order in the strict sense: it can leave two dimensions undecided that a third one separates.
    let compare = |a: usize, b: usize| {
        for strides in &read {
            let (step_a, step_b) = (strides[a].unsigned_abs(), strides[b].unsigned_abs());
            let unequal = match step_a.cmp(&step_b) {
                _ if step_a == 0 || step_b == 0 => Ordering::Equal,
                Ordering::Equal if shape[a] > shape[b] => Ordering::Greater,
                ordering => ordering,
            };
            if unequal != Ordering::Equal {
                return unequal;
            }
        }
        Ordering::Equal
    };
    // The fastest dimension first. An insertion sort like torch's, which decides what `compare` leaves open.
    let mut order: SmallVec<[usize; 6]> = (0..shape.len()).rev().filter(|&d| shape[d] != 1).collect();
    for next in 1..order.len() {
        let mut at = next;
        for before in (0..next).rev() {
            match compare(order[before], order[at]) {
                Ordering::Greater => {
                    order.swap(before, at);
                    at = before;
                }
                Ordering::Less => break,
                Ordering::Equal => {}
            }
        }
    }
    if order.is_sorted_by(|a, b| a > b) {
        return row_major;
    }
    let mut strides = row_major;
    let mut step = 1;
    for &d in &order {
        strides[d] = step;
        step *= shape[d];
    }
    strides
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
        let but = if may_be_out { " but is not the same view" } else { "" };
        return Err(Error::OutOverlapsInput { op, argument, but });
    }
    Ok(())
}
