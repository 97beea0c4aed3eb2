//! act(a @ gate) * (a @ b): in one kernel where matmul_wgmma.cu or matmul_wgmma_few.cu can have both of a tile's products in
//! registers; else two products, of which the first leaves its results, unrounded, for the second to multiply by.

use super::{Forced, Route, of_route, route, wgmma, wgmma_or_few};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::reason::Reason;
use crate::cuda::plan::{Bases, Choice};
use crate::dtype::DType;
use crate::ops::matmul::{Activation, Bias, MatmulProblem, Matrix, Wide};
use crate::tensor::layout;

/// The launches of a gated problem at `bases`.
pub fn choose(p: &MatmulProblem, bases: &Bases, device: &DeviceFacts, forced: Option<Forced>) -> Choice {
    let asked = match forced {
        Some(Forced::Wgmma(overrides)) => overrides.tile_name(),
        _ => None,
    };
    if let Some(choice) = wgmma::training::choose(p, device, asked) {
        return choice.choice(p, device, bases);
    }
    let together = match forced {
        Some(Forced::Wgmma(overrides)) => wgmma::choose(p, device, overrides).map(Route::Wgmma),
        Some(Forced::Few(overrides)) => wgmma::few::choose(p, device, overrides).map(Route::WgmmaFew),
        None => wgmma::choose_timed(p, device, wgmma::Overrides::default())
            .map(|(choice, clocks)| wgmma_or_few(p, device, choice, clocks)),
        Some(_) => None,
    };
    match together {
        Some(route) => of_route(&route, p, bases, bases.workspace(), device),
        None => in_two(p, bases, device, forced),
    }
}

fn in_two(p: &MatmulProblem, bases: &Bases, device: &DeviceFacts, forced: Option<Forced>) -> Choice {
    let Some(gate) = p.gate.clone() else {
        return of_route(&route(p, device, forced), p, bases, bases.workspace(), device);
    };
    let between = Between::new(p.dtype, (p.m, p.n), &p.batch, bases.workspace());
    let bias = |row| {
        p.bias.as_ref().map(|bias| Bias {
            address: bias_at(bias.address, row * bias.row_stride, p.dtype),
            ..bias.clone()
        })
    };
    let first = MatmulProblem {
        b: gate,
        bias: bias(0),
        gate: None,
        residual: None,
        residual_is_out: false,
        out: between.result.clone().unwrap_or_else(|| p.out.clone()),
        wide: between.kept,
        ..p.clone()
    };
    let second = MatmulProblem {
        bias: bias(1),
        gate: None,
        activation: Activation::None,
        wide: between.taken,
        ..p.clone()
    };
    let at = bases.workspace().wrapping_add(between.bytes as usize);
    let [first, second] =
        [first, second].map(|p| of_route(&route(&p, device, forced), &p, bases, at, device));
    between.one_after_the_other(first, second)
}

/// `offset` elements behind a bias: the gate's has none before it.
pub(super) fn bias_at(address: usize, offset: i64, dtype: DType) -> usize {
    address.wrapping_add_signed((offset * dtype.size() as i64) as isize)
}

/// The gate's product, unrounded, at the beginning of the workspace, where b's finds it.
pub(super) struct Between {
    /// The first product's result, of float32 and float64.
    pub result: Option<Matrix>,
    /// Its sums, of fp16/bf16.
    pub kept: Option<Wide>,
    /// What the second product is multiplied by.
    pub taken: Option<Wide>,
    pub bytes: u64,
}

impl Between {
    /// Of a batch of products, each m by n.
    pub fn new(dtype: DType, (m, n): (i64, i64), batch: &[i64], workspace: usize) -> Between {
        let wide = |is_result| Some(Wide { address: workspace, is_result });
        let is_rounded = matches!(dtype, DType::F16 | DType::BF16);
        let strides = layout::contiguous_strides(batch);
        let dense = Matrix {
            address: workspace,
            row_stride: n,
            col_stride: 1,
            batch_strides: strides.iter().map(|step| step.saturating_mul(m.saturating_mul(n))).collect(),
        };
        let sum_bytes = if dtype == DType::F64 { 8 } else { 4 };
        let sizes = batch.iter().chain([&m, &n]);
        let bytes = sizes.fold(sum_bytes, |bytes: u64, size| bytes.saturating_mul(size.unsigned_abs()));
        Between {
            result: (!is_rounded).then_some(dense),
            kept: wide(true).filter(|_| is_rounded),
            taken: wide(false),
            bytes: bytes.checked_next_multiple_of(256).unwrap_or(u64::MAX),
        }
    }

    pub fn one_after_the_other(&self, first: Choice, second: Choice) -> Choice {
        let because = "no kernel computes both products of these operands on this device";
        let why = [Reason::plain("two products", "wgmma", because)].into_iter().chain(second.why);
        Choice {
            main: first.launches.len() + second.main,
            launches: first.launches.into_iter().chain(second.launches).collect(),
            workspace: self.bytes.saturating_add(first.workspace.max(second.workspace)),
            why: why.collect(),
            arithmetic: second.arithmetic,
            fallback: None,
        }
    }
}
