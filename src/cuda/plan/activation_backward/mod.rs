//! How the kernels of kernels/activation_backward.cu are launched.

mod layout;
#[cfg(test)]
mod tests;

use std::mem::offset_of;

use layout::{Layout, Slices, THREADS, contiguous, operands};

use super::index::{self, Dim, MAX_RANK};
use super::matmul::activation;
use super::reason::Reason;
use super::{Bases, Choice, Kernel, KernelParams, LaunchPlan};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::limits::VECTOR_BYTES;
use crate::dtype::DType;
use crate::ops::activation_backward::ActivationBackwardProblem;

/// Of `flat`, and what a thread of it takes: FLAT_THREADS and FLAT_VECTORS in activation_backward.cu.
const FLAT_THREADS: u64 = 128;
const FLAT_VECTORS: u64 = 2;
/// Slices beyond which more of a block's threads share a column.
const SUMMED_BY_FEW: u64 = 64;

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
    last: u64,
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
    up: u64,
    up_out: u64,
    dims: [Dim<3>; MAX_RANK],
}

// The same numbers are asserted in activation_backward.cu.
const _: () = assert!(offset_of!(ActivationParams, dims) == 152);
const _: () =
    assert!(size_of::<ActivationParams>() == 152 + 48 * MAX_RANK && size_of::<ActivationParams>() < 4096);

// SAFETY: repr(C) numbers without padding, in the order and of the types of activation_backward.cu's
// ActivationParams<MAX_RANK>; size and the offset of the last field are asserted here and there.
unsafe impl KernelParams for ActivationParams {
    const ADDRESSES: &'static [usize] = &[
        offset_of!(ActivationParams, grad),
        offset_of!(ActivationParams, saved),
        offset_of!(ActivationParams, out),
        offset_of!(ActivationParams, bias),
        offset_of!(ActivationParams, partials),
        offset_of!(ActivationParams, up),
        offset_of!(ActivationParams, up_out),
    ];
}

type Plan = LaunchPlan<ActivationParams>;

pub fn choose(problem: &ActivationBackwardProblem, device: &DeviceFacts) -> Choice {
    let (p, bases) = Bases::of(problem);
    let (first, second, workspace) = plan(&p, device, bases.workspace());
    let second = second.map(|second| second.launch(&bases));
    Choice::of(&first, &bases).before(second).with_workspace(workspace)
}

/// The launches, in their order, and the bytes of memory that they need at `partials` for the sums of slices.
fn plan(p: &ActivationBackwardProblem, device: &DeviceFacts, partials: usize) -> (Plan, Option<Plan>, u64) {
    if p.up.is_some() && p.bias.is_none() {
        return (gated(p), None, 0);
    }
    if p.bias.is_none() && p.saved.is_some() && contiguous(p) {
        return (flat(p), None, 0);
    }
    let layout = Layout::of(p);
    let Slices { across, threads, tiles, outer, slice, slices } = layout.slices(device);
    let several = p.bias.is_some() && outer * slices * layout.fold > 1;
    // Each of the arithmetic type; of a gated product, also of up.
    let sum = if p.dtype == DType::F64 { 8 } else { 4 };
    let biases = if p.up.is_some() { 2 } else { 1 };
    let workspace = if several { outer * slices * layout.columns * biases * sum } else { 0 };
    let along = operands(p).map(|t| t.and_then(|t| t.strides.last().copied()).unwrap_or(0));
    let [grad, saved, out] = &layout.strides;
    let (dims, rank) = index::dims(&layout.rows, [grad, saved, out]);
    let params = ActivationParams {
        bias: p.bias.as_ref().map_or(0, |b| b.address as u64),
        bias_stride: p.bias.as_ref().map_or(0, |b| b.stride),
        partials: if several { partials as u64 } else { 0 },
        rows: layout.rows.last().map_or(1, |rows| rows.unsigned_abs()),
        columns: layout.columns,
        last: layout.last,
        slice,
        grad_stride: along[0],
        saved_stride: along[1],
        out_stride: along[2],
        across: across as u32,
        tiles: tiles as u32,
        slices: slices as u32,
        rank,
        dims,
        ..params(p)
    };
    let (variant, why) = match layout.elements {
        1 => {
            let because = "not all rows are contiguous and begin on 16-byte boundaries";
            ("element", Reason::plain("element", "vector", because))
        }
        _ if layout.fold > 1 => {
            let metrics = [("rows that are taken as one", layout.fold), ("otherwise", 1)];
            ("vector", Reason::new("vector", "element", "all operands are contiguous", metrics))
        }
        lanes => {
            let metrics = [("elements of an access", lanes), ("otherwise", 1)];
            ("vector", Reason::new("vector", "element", "all rows lie on 16-byte boundaries", metrics))
        }
    };
    let variant = if p.up.is_some() { format!("gated_{variant}") } else { variant.into() };
    let first = launch(p, &variant, tiles * outer * slices, threads, params, Some(why));
    if !several {
        return (first, None, workspace);
    }
    // A row of the partials has the sums of `fold` rows, one after the other.
    let (columns, slices) = (p.columns.unsigned_abs(), outer * slices * layout.fold);
    let across = if slices > SUMMED_BY_FEW { 8 } else { 32 };
    let params = ActivationParams { columns, slices: slices as u32, across: across as u32, ..params };
    let blocks = (columns * biases).div_ceil(across);
    (first, Some(launch(p, "sums", blocks, THREADS, params, None)), workspace)
}

/// Of a contiguous problem without sums.
fn flat(p: &ActivationBackwardProblem) -> Plan {
    let columns = p.columns.unsigned_abs() * p.row_count().unsigned_abs();
    let vectors = columns / (VECTOR_BYTES / p.dtype.size() as u64);
    let params = ActivationParams {
        rows: 1,
        columns,
        last: columns,
        tiles: 1,
        slices: 1,
        across: FLAT_THREADS as u32,
        ..params(p)
    };
    let why = Reason::plain("flat", "vector", "all operands are contiguous, and no sums are wanted");
    launch(p, "flat", vectors.div_ceil(FLAT_THREADS * FLAT_VECTORS).max(1), FLAT_THREADS, params, Some(why))
}

/// Both gradients of `activation(saved) * up`, without sums: a thread's vectors as in `flat`, if all tensors begin with one.
fn gated(p: &ActivationBackwardProblem) -> Plan {
    let columns = p.columns.unsigned_abs() * p.row_count().unsigned_abs();
    let lanes = VECTOR_BYTES / p.dtype.size() as u64;
    let up = p.up.iter().flat_map(|up| [&up.factor, &up.gradient]);
    let all = operands(p).into_iter().flatten().chain(up);
    let vectors = all.map(|t| t.address).all(|address| address.is_multiple_of(VECTOR_BYTES as usize));
    let params = ActivationParams {
        rows: 1,
        columns,
        last: if vectors { columns / lanes } else { 0 },
        tiles: 1,
        slices: 1,
        across: FLAT_THREADS as u32,
        ..params(p)
    };
    let why = Reason::plain("gated", None, "no other kernel has both gradients of a gate's product");
    let blocks = columns.div_ceil(lanes * FLAT_THREADS * FLAT_VECTORS);
    launch(p, "gated", blocks.max(1), FLAT_THREADS, params, Some(why))
}

/// What does not depend on how the work is shared.
fn params(p: &ActivationBackwardProblem) -> ActivationParams {
    let [grad, saved, out] = operands(p).map(|t| t.map_or(0, |t| t.address as u64));
    let (kind, slope) = activation(p.activation);
    let (dims, rank) = index::dims(&[], [&[], &[], &[]]);
    let up = p.up.as_ref();
    ActivationParams {
        grad,
        saved,
        out,
        bias: 0,
        partials: 0,
        rows: 0,
        columns: 0,
        last: 0,
        slice: 0,
        grad_stride: 1,
        saved_stride: 1,
        out_stride: 1,
        bias_stride: 0,
        slope,
        kind,
        across: 0,
        tiles: 0,
        slices: 0,
        rank,
        unused: 0,
        up: up.map_or(0, |up| up.factor.address as u64),
        up_out: up.map_or(0, |up| up.gradient.address as u64),
        dims,
    }
}

fn launch(
    p: &ActivationBackwardProblem,
    variant: &str,
    blocks: u64,
    threads: u64,
    params: ActivationParams,
    why: Option<Reason>,
) -> Plan {
    let name = format!("activation_backward_{variant}_{}", p.dtype.suffix());
    let kernel = Kernel { file: "activation_backward", name };
    // More blocks than a grid has are an error of the launch.
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    let [across, tiles, slices] = [params.across, params.tiles, params.slices].map(u64::from);
    LaunchPlan {
        settings: vec![("across", across), ("tiles", tiles), ("slices", slices)],
        why: why.into_iter().collect(),
        ..LaunchPlan::new(kernel, blocks, threads as u32, 0, params)
    }
}
