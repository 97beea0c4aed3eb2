//! act(a @ gate) * (a @ b): in one kernel where matmul_wgmma.cu can have both of a tile's products in registers; else two
//! products, of which the first leaves its results, unrounded, for the second to multiply by.

use super::{Forced, Route, of_route, products, route, wgmma};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::reason::Reason;
use crate::cuda::plan::{Bases, Choice};
use crate::dtype::DType;
use crate::ops::matmul::{Activation, Bias, MatmulProblem, Matrix, Wide};
use crate::tensor::layout;

/// The launches of a gated problem at `bases`.
pub fn choose(p: &MatmulProblem, bases: &Bases, device: &DeviceFacts, forced: Option<Forced>) -> Choice {
    let together = match forced {
        Some(Forced::Wgmma(overrides)) => wgmma::choose(p, device, overrides),
        None => wgmma::choose(p, device, wgmma::Overrides::default()).map(wgmma::WgmmaChoice::unasked),
        Some(_) => None,
    };
    match together {
        Some(choice) => of_route(&Route::Wgmma(choice), p, bases, bases.workspace(), device),
        None => in_two(p, bases, device, forced),
    }
}

fn in_two(p: &MatmulProblem, bases: &Bases, device: &DeviceFacts, forced: Option<Forced>) -> Choice {
    let Some(gate) = p.gate.clone() else {
        return of_route(&route(p, device, forced), p, bases, bases.workspace(), device);
    };
    let workspace = bases.workspace();
    let wide_bytes = wide_bytes([p.m.unsigned_abs(), p.n.unsigned_abs(), products(p)], p.dtype);
    let bias = |row: i64| {
        p.bias.as_ref().map(|bias| {
            let bytes = row * bias.row_stride * p.dtype.size() as i64;
            Bias { address: bias.address.wrapping_add_signed(bytes as isize), ..bias.clone() }
        })
    };
    let wide = |is_result| Some(Wide { address: workspace, is_result });
    let halves = matches!(p.dtype, DType::F16 | DType::BF16);
    let dense = Matrix {
        address: workspace,
        row_stride: p.n,
        col_stride: 1,
        batch_strides: layout::contiguous_strides(&p.batch).iter().map(|step| step * p.m * p.n).collect(),
    };
    let first = MatmulProblem {
        b: gate,
        bias: bias(0),
        gate: None,
        residual: None,
        residual_is_out: false,
        out: if halves { p.out.clone() } else { dense },
        wide: wide(true).filter(|_| halves),
        ..p.clone()
    };
    let second = MatmulProblem {
        bias: bias(1),
        gate: None,
        activation: Activation::None,
        wide: wide(false),
        ..p.clone()
    };
    let at = workspace.wrapping_add(wide_bytes as usize);
    let [first, second] =
        [first, second].map(|p| of_route(&route(&p, device, forced), &p, bases, at, device));
    one_after_the_other(first, second, wide_bytes)
}

/// Of the unrounded results of products, each of m by n.
pub(super) fn wide_bytes([m, n, products]: [u64; 3], dtype: DType) -> u64 {
    let sum_bytes = if dtype == DType::F64 { 8 } else { 4 };
    let bytes = [n, products, sum_bytes].into_iter().fold(m, u64::saturating_mul);
    bytes.checked_next_multiple_of(256).unwrap_or(u64::MAX)
}

/// The gate's product and b's, which meet in so many bytes at the beginning of the workspace.
pub(super) fn one_after_the_other(first: Choice, second: Choice, wide_bytes: u64) -> Choice {
    let because = "no kernel computes both products of these operands on this device";
    let why = [Reason::plain("two products", "wgmma", because)].into_iter().chain(second.why);
    Choice {
        main: first.launches.len() + second.main,
        launches: first.launches.into_iter().chain(second.launches).collect(),
        workspace: wide_bytes.saturating_add(first.workspace.max(second.workspace)),
        why: why.collect(),
        arithmetic: second.arithmetic,
        fallback: None,
    }
}
