//! Blocks of tiles where there are too few of them for the device: k is split, the splits are a batch of shorter products in the
//! workspace, and kernels/matmul_reduce.cu adds them up.

use super::blocks::{self, Overrides};
use super::reduce::{self, ReduceParams, Splits};
use super::{Addends, MatmulParams, Oriented, estimated, products};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::LaunchPlan;
use crate::cuda::plan::reason::Reason;
use crate::dtype::DType;
use crate::ops::matmul::{Activation, MatmulProblem, Matrix};

const SPLITS: [i64; 11] = [2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 64];
/// k of a split at least: with less, most of it is filling the ring.
const K_PER_SPLIT: i64 = 128;
/// Splits begin where memory is read from: a sector.
const SECTOR: usize = 32;

/// How a problem will be solved, but for where its workspace memory is.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitKChoice {
    splits: i64,
    overrides: Overrides,
    clocks: f64,
    why: Reason,
}

/// The launches that solve a problem, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Launches {
    pub multiply: LaunchPlan<MatmulParams>,
    pub reduce: LaunchPlan<ReduceParams>,
}

/// None: not for this problem, or no number of splits divides k into whole sectors. Results of float16 and bfloat16 would be
/// rounded before they are added.
pub fn choose(problem: &MatmulProblem, device: &DeviceFacts, overrides: Overrides) -> Option<SplitKChoice> {
    let p = Oriented::new(problem);
    let size = problem.dtype.size();
    let fits = [p.m, p.n, p.k].iter().chain(&problem.batch).all(|&n| (1..=reduce::SIZE_LIMIT).contains(&n));
    let addresses = [p.out.address, p.bias, p.residual.as_ref().map_or(0, |x| x.address)];
    if !matches!(problem.dtype, DType::F32 | DType::F64)
        || problem.batch.len() > reduce::BATCH_DIMS
        || !fits
        || products(problem) > reduce::SIZE_LIMIT.unsigned_abs()
        || !addresses.iter().all(|address| address.is_multiple_of(size))
    {
        return None;
    }
    let divides = |splits: i64| p.k % splits == 0 && ((p.k / splits) as usize * size).is_multiple_of(SECTOR);
    let allowed = |&splits: &i64| match overrides.splits {
        Some(asked) => splits == i64::from(asked),
        None => p.k / splits >= K_PER_SPLIT,
    };
    let candidates = SPLITS.into_iter().filter(|&splits| divides(splits)).filter(allowed).map(|splits| {
        let why = Reason::asked_for("k in splits", "blocks");
        let choice = SplitKChoice { splits, overrides, clocks: 0.0, why };
        let part = choice.part(problem, &p, 0);
        let join = reduce::clocks(choice.workspace_bytes(problem), splits as u32);
        let clocks = blocks::clocks(&part, &Oriented::straight(&part), device) + join;
        SplitKChoice { clocks, ..choice }
    });
    candidates.min_by(|x, y| x.clocks.total_cmp(&y.clocks))
}

impl SplitKChoice {
    /// The choice by estimates, against blocks that would take so many clocks with all of k.
    pub fn instead(self, blocks: f64) -> SplitKChoice {
        SplitKChoice { why: estimated(("k in splits", self.clocks), ("blocks", blocks)), ..self }
    }

    /// Until the result is complete.
    pub fn clocks(&self) -> f64 {
        self.clocks
    }

    /// The products of all splits: `p` with another dimension of its batch, and sums in `workspace` for a result.
    fn part(&self, problem: &MatmulProblem, p: &Oriented, workspace: usize) -> MatmulProblem {
        let k = p.k / self.splits;
        let split = |x: &Matrix, k_stride: i64| {
            let mut split = x.clone();
            split.batch_strides.insert(0, k.saturating_mul(k_stride));
            split
        };
        let width = sum_width(p);
        let mut batch = problem.batch.clone();
        batch.insert(0, self.splits);
        let mut step = width.saturating_mul(p.m);
        let mut batch_strides = batch.clone();
        for (stride, &size) in batch_strides.iter_mut().zip(&batch).rev() {
            *stride = step;
            step = step.saturating_mul(size);
        }
        MatmulProblem {
            m: p.m,
            n: p.n,
            k,
            batch,
            a: split(&p.a, p.a.col_stride),
            b: split(&p.b, p.b.row_stride),
            out: Matrix { address: workspace, row_stride: width, col_stride: 1, batch_strides },
            bias: None,
            gate: None,
            residual: None,
            residual_is_out: false,
            wide: None,
            activation: Activation::None,
            ..problem.clone()
        }
    }

    pub fn workspace_bytes(&self, problem: &MatmulProblem) -> u64 {
        let p = Oriented::new(problem);
        let sums = [sum_width(&p), p.m, self.splits].map(i64::unsigned_abs);
        let each = problem.dtype.size() as u64;
        sums.into_iter().chain([products(problem)]).fold(each, u64::saturating_mul)
    }

    /// `workspace` is the address of `workspace_bytes` bytes.
    pub fn launches(&self, problem: &MatmulProblem, device: &DeviceFacts, workspace: usize) -> Launches {
        let p = Oriented::new(problem);
        let part = self.part(problem, &p, workspace);
        let mut multiply = blocks::planned(&part, &Oriented::straight(&part), self.overrides, device);
        multiply.why.insert(0, self.why);
        multiply.settings.push(("splits", self.splits.unsigned_abs()));
        let splits = Splits {
            partials: workspace,
            count: self.splits as u32,
            m: p.m as u32,
            n: p.n as u32,
            height: p.m as u32,
            width: sum_width(&p) as u32,
            products: products(problem) as u32,
            out: p.out.address,
            out_row: p.out.row_stride,
            out_col: p.out.col_stride,
            out_vector: p.rows_allow_vectors(problem.dtype),
            bias: p.bias,
            bias_row: p.bias_row,
            bias_col: p.bias_col,
            bias_up: 0,
            addends: Addends::along_rows(&p, problem.dtype),
            gate_width: 0,
        };
        Launches { multiply, reduce: reduce::plan(problem, &splits) }
    }
}

/// Sums of a row in the workspace: whole fours.
fn sum_width(p: &Oriented) -> i64 {
    p.n.unsigned_abs().next_multiple_of(4) as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cuda::device::examples;
    use crate::cuda::plan::matmul::tests::problem;
    use crate::cuda::plan::matmul::{Forced, Route, route};

    fn splits(p: &MatmulProblem, device: &DeviceFacts, forced: Option<Forced>) -> Option<i64> {
        match route(p, device, forced) {
            Route::SplitK(choice) => Some(choice.splits),
            _ => None,
        }
    }

    #[test]
    fn few_tiles_of_a_long_k_are_split_into_whole_sectors() {
        let device = examples::h200();
        let split = |dtype, (m, n, k)| splits(&problem(dtype, 1, m, k, n), &device, None);
        assert_eq!(split(DType::F64, (256, 256, 4096)), Some(8));
        assert_eq!(split(DType::F64, (250, 250, 3000)), Some(6));
        for whole in
            [(256, 256, 4095), (4096, 4096, 4096), (1024, 1024, 1024), (256, 256, 64), (0, 256, 4096)]
        {
            assert_eq!(split(DType::F64, whole), None, "{whole:?}");
        }
        assert_eq!(split(DType::BF16, (256, 256, 4096)), None);
        let floats = problem(DType::F32, 1, 256, 8192, 256);
        assert!(splits(&floats, &examples::a100(), None).is_some());
    }

    #[test]
    fn so_many_splits_as_are_asked_for_if_they_divide_k() {
        let asked = |k, count| {
            let forced = Forced::Blocks(Overrides { splits: Some(count), tile: None });
            splits(&problem(DType::F64, 1, 64, k, 64), &examples::h200(), Some(forced))
        };
        assert_eq!(asked(64, 4), Some(4));
        assert_eq!(asked(64, 1), None);
        assert_eq!(asked(64, 3), None);
        assert_eq!(asked(72, 8), None);
    }

    #[test]
    fn a_batch_of_splits_covers_k_and_meets_in_the_workspace() {
        let device = examples::h200();
        let mut p = problem(DType::F64, 3, 250, 4096, 130);
        (p.out.row_stride, p.out.col_stride) = (1, 250);
        let Route::SplitK(choice) = route(&p, &device, None) else { panic!("k is whole") };
        let sums = 3 * 130 * 252;
        assert_eq!(choice.workspace_bytes(&p), choice.splits as u64 * sums * 8);
        let MatmulParams { m, n, k, out, out_row, batch_rank, batch, bias, .. } =
            choice.launches(&p, &device, 1 << 50).multiply.params;
        assert_eq!((m, n, out, out_row, bias), (130, 250, 1 << 50, 252, 0));
        assert_eq!((batch_rank, batch[0].size * k as u64, batch[1].size), (2, 4096, 3));
        assert_eq!((batch[0].strides[2], batch[1].strides[2]), (sums as i64, 130 * 252));
    }
}
