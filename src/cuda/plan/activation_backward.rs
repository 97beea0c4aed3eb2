//! How the kernels of kernels/activation_backward.cu are launched.

use std::mem::offset_of;

use super::index::{self, Dim, MAX_RANK};
use super::matmul::activation;
use super::reason::{Reason, Reasons};
use super::{Kernel, KernelParams, LaunchPlan};
use crate::cuda::device::DeviceFacts;
use crate::dtype::DType;
use crate::ops::Strided;
use crate::ops::activation_backward::ActivationBackwardProblem;

/// Dimensions over rows that `vector` takes, and threads of a block: INLINE_RANK and THREADS in
/// activation_backward.cu.
const INLINE_RANK: usize = 4;
const THREADS: u64 = 256;
/// Accesses side by side: four lines of memory.
const ACROSS: u64 = 32;
/// Rows of a slice that a thread sums up at the least, so that meeting in shared memory does not count.
const ROWS_PER_THREAD: u64 = 16;
const GRANULE: u64 = 16;

/// `ActivationParams` of activation_backward.cu, with all of its dimensions; a kernel takes the part that it declares.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ActivationParams {
    grad: u64,
    saved: u64,
    out: u64,
    bias: u64,
    partials: u64,
    rows: u64,
    columns: u64,
    slice: u64,
    grad_stride: i64,
    saved_stride: i64,
    out_stride: i64,
    bias_stride: i64,
    slope: f64,
    kind: u32,
    across: u32,
    tiles: u32,
    slices: u32,
    rank: u32,
    unused: u32,
    dims: [Dim<3>; MAX_RANK],
}

// The same numbers are asserted in activation_backward.cu.
const _: () = assert!(offset_of!(ActivationParams, dims) == 128);
const _: () =
    assert!(size_of::<ActivationParams>() == 128 + 48 * MAX_RANK && size_of::<ActivationParams>() < 4096);

// SAFETY: repr(C) numbers without padding, in the order and of the types of activation_backward.cu's
// ActivationParams<MAX_RANK>; size and the offset of the last field are asserted here and there.
unsafe impl KernelParams for ActivationParams {
    fn settings(&self) -> Vec<(&'static str, u64)> {
        vec![("across", self.across.into()), ("tiles", self.tiles.into()), ("slices", self.slices.into())]
    }
}

/// How columns and rows are shared out.
struct Split {
    /// Elements of an access.
    elements: u64,
    across: u64,
    tiles: u64,
    slices: u64,
    /// Rows of a slice.
    slice: u64,
}

fn split(p: &ActivationBackwardProblem, device: &DeviceFacts) -> Split {
    let (rows, columns) = (p.row_count().unsigned_abs(), p.columns.unsigned_abs());
    let elements = if vectors(p) { GRANULE / p.dtype.size() as u64 } else { 1 };
    let accesses = columns / elements;
    let tiles = accesses.div_ceil(ACROSS);
    let across = accesses.div_ceil(tiles);
    // Eight blocks of 256 threads are what a multiprocessor holds.
    let wanted = (8 * u64::from(device.multiprocessors)).div_ceil(tiles);
    let most = rows.div_ceil(ROWS_PER_THREAD * (THREADS / across)).max(1);
    let slice = rows.div_ceil(wanted.min(most)).max(1);
    Split { elements, across, tiles, slices: rows.div_ceil(slice).max(1), slice }
}

/// Whether all rows of all operands lie on 16-byte boundaries, with their elements side by side.
fn vectors(p: &ActivationBackwardProblem) -> bool {
    let lanes = (GRANULE as usize / p.dtype.size()).cast_signed() as i64;
    let fits = |t: &Strided| {
        let (step, rows) = t.strides.split_last().map_or((1, &[][..]), |(&step, rows)| (step, rows));
        step == 1 && t.address.is_multiple_of(GRANULE as usize) && rows.iter().all(|s| s % lanes == 0)
    };
    p.rows.len() <= INLINE_RANK
        && p.columns % lanes == 0
        && [Some(&p.grad), p.saved.as_ref(), p.out.as_ref()].into_iter().flatten().all(fits)
}

/// Bytes for the sums of slices, each of the arithmetic type.
pub fn workspace(p: &ActivationBackwardProblem, device: &DeviceFacts) -> u64 {
    let Split { slices, .. } = split(p, device);
    let sum = if p.dtype == DType::F64 { 8 } else { 4 };
    if p.bias.is_some() && slices > 1 { slices * p.columns.unsigned_abs() * sum } else { 0 }
}

/// The launches, in their order; `partials` is the address of as much memory as `workspace` says.
pub fn plan(
    p: &ActivationBackwardProblem,
    device: &DeviceFacts,
    partials: usize,
) -> (LaunchPlan<ActivationParams>, Option<LaunchPlan<ActivationParams>>) {
    let Split { elements, across, tiles, slices, slice } = split(p, device);
    let outer = p.rows.len();
    let none = Strided { address: 0, dtype: p.dtype, strides: p.grad.strides.clone() };
    let (saved, out) = (p.saved.as_ref().unwrap_or(&none), p.out.as_ref().unwrap_or(&none));
    let over_rows = [&p.grad, saved, out].map(|t| &t.strides[..outer]);
    let along = |t: &Strided| t.strides.last().copied().unwrap_or(0);
    let (dims, rank) = index::dims(&p.rows, over_rows);
    let (kind, slope) = activation(p.activation);
    let params = ActivationParams {
        grad: p.grad.address as u64,
        saved: saved.address as u64,
        out: out.address as u64,
        bias: p.bias.as_ref().map_or(0, |b| b.address as u64),
        partials: partials as u64,
        rows: p.row_count().unsigned_abs(),
        columns: p.columns.unsigned_abs(),
        slice,
        grad_stride: along(&p.grad),
        saved_stride: along(saved),
        out_stride: along(out),
        bias_stride: p.bias.as_ref().map_or(0, |b| b.stride),
        slope,
        kind,
        across: across as u32,
        tiles: tiles as u32,
        slices: slices as u32,
        rank,
        unused: 0,
        dims,
    };
    let launch = |variant, blocks: u64| LaunchPlan {
        kernel: Kernel {
            file: "activation_backward",
            name: format!("activation_backward_{variant}_{}", p.dtype.suffix()),
        },
        grid: [blocks as u32, 1, 1],
        block: [THREADS as u32, 1, 1],
        shared_bytes: 0,
        params,
        why: Reasons::new(),
    };
    let (variant, why) = match elements {
        1 => {
            let because = "not all rows lie on 16-byte boundaries, with their elements side by side";
            ("element", Reason::plain("element", "vector", because))
        }
        _ => {
            let figures = [("elements of an access", elements), ("otherwise", 1)];
            ("vector", Reason::new("vector", "element", "all rows lie on 16-byte boundaries", figures))
        }
    };
    let first = LaunchPlan { why: [why].into(), ..launch(variant, tiles * slices) };
    let sums = p.bias.is_some() && slices > 1;
    (first, sums.then(|| launch("sums", params.columns.div_ceil(THREADS))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::device::examples;
    use crate::ops::activation_backward::BiasGradient;
    use crate::ops::matmul::Activation;
    use crate::tensor::{Device, Dims};

    fn problem(
        dtype: DType,
        rows: i64,
        columns: i64,
        row_stride: i64,
        bias: bool,
    ) -> ActivationBackwardProblem {
        let at = |address| Strided { address, dtype, strides: Dims::from_slice(&[row_stride, 1]) };
        ActivationBackwardProblem {
            device: Device::Cuda(0),
            dtype,
            activation: Activation::Silu,
            columns,
            rows: Dims::from_slice(&[rows]),
            grad: at(1 << 20),
            saved: Some(at(1 << 30)),
            out: Some(at(1 << 40)),
            bias: bias.then_some(BiasGradient { address: 1 << 50, stride: 1 }),
        }
    }

    #[test]
    fn every_element_has_a_thread_and_every_slice_its_sums() {
        for device in examples::all() {
            for dtype in DType::FLOATS {
                for (rows, columns) in
                    [(0, 5), (1, 1), (1, 70001), (4096, 4096), (1 << 20, 16), (999, 1), (70, 264)]
                {
                    let p = problem(dtype, rows, columns, columns, true);
                    let (first, second) = plan(&p, &device, 64);
                    let params = first.params;
                    let elements =
                        if first.kernel.name.contains("vector") { 16 / dtype.size() as u64 } else { 1 };
                    let wide = u64::from(params.across) * elements;
                    let context = format!("{dtype} {rows} x {columns} on {}: {first}", device.name);
                    assert!(u64::from(params.across) <= THREADS, "{context}");
                    assert!(u64::from(params.tiles) * wide >= columns as u64, "{context}");
                    assert!(u64::from(params.slices) * params.slice >= rows as u64, "{context}");
                    assert_eq!(first.grid[0], params.tiles * params.slices, "{context}");
                    assert_eq!(second.is_some(), params.slices > 1, "{context}");
                    assert_eq!(workspace(&p, &device) > 0, second.is_some(), "{context}");
                    assert!(plan(&problem(dtype, rows, columns, columns, false), &device, 0).1.is_none());
                }
            }
        }
    }

    #[test]
    fn vectors_where_all_rows_are_aligned() {
        let name = |p: &ActivationBackwardProblem| plan(p, &examples::h200(), 0).0.kernel.name;
        assert_eq!(name(&problem(DType::F16, 50, 264, 264, false)), "activation_backward_vector_f16");
        assert_eq!(name(&problem(DType::F16, 50, 264, 265, false)), "activation_backward_element_f16");
        assert_eq!(name(&problem(DType::F16, 50, 260, 264, false)), "activation_backward_element_f16");
        let mut shifted = problem(DType::F16, 50, 264, 264, false);
        shifted.grad.address += 2;
        assert_eq!(name(&shifted), "activation_backward_element_f16");
        shifted.grad =
            Strided { strides: Dims::from_slice(&[0, 1]), ..problem(DType::F16, 1, 8, 8, false).grad };
        assert_eq!(name(&shifted), "activation_backward_vector_f16", "one row for all");
        shifted.grad.strides = Dims::from_slice(&[0, 0]);
        assert_eq!(name(&shifted), "activation_backward_element_f16");
    }
}
