//! softmax and log_softmax: whole rows at a time where a row's elements are neighbours ([`rows`]), many
//! columns at a time where it is the rows themselves that are ([`columns`]; [`short`] where these have few elements).
//!
//! Rows and columns are solved in pieces whose size depends on the problem alone: one piece is solved in a single visit; of
//! several, each first reports its largest element and its sum of exponentials, and is visited again once
//! these are known for the row. The order of every sum is thus independent of the number of threads.

mod backward;
mod columns;
mod folded;
mod groups;
mod rows;
mod short;
mod steps;
mod tiles;

pub use backward::{method as backward_method, run as backward};

use std::ops::Range;

use half::{bf16, f16};

use super::element::Element;
use super::exp::Exp;
use super::float::{Float, is_half};
use super::isa::{Isa, LANES, has_whole_groups};
use super::memory::zeros;
use super::method::Method;
use super::operand::{Source, Target};
use super::parallel;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::Strided;
use crate::ops::softmax::{Kind, SoftmaxProblem};
use crate::tensor::Dims;
use tiles::Split;

pub fn run(problem: &SoftmaxProblem) -> Result<()> {
    match problem.out.dtype {
        DType::F16 => softmax::<f16>(problem),
        DType::BF16 => softmax::<bf16>(problem),
        DType::F64 => softmax::<f64>(problem),
        // The only other dtype that `ops::softmax` lets through.
        _ => softmax::<f32>(problem),
    }
}

/// What `run` does.
pub fn method(problem: &SoftmaxProblem) -> Method {
    choose(problem, |way| way.method(""))
}

/// How a problem is solved.
enum Way<'a, P> {
    Short,
    Columns(&'a P, Split),
    /// Of a problem whose rows are several of these.
    Folded(&'a P, Split),
    Rows,
}

impl<P> Way<'_, P> {
    /// By files of this folder, or of one in it.
    fn method(&self, folder: &str) -> Method {
        let (loops, file) = match self {
            Way::Short => ("columns of few elements", "short"),
            Way::Columns(..) => ("columns", "columns"),
            Way::Folded(..) => ("columns, several rows in one", "columns"),
            Way::Rows => ("rows", "rows"),
        };
        Method::new(loops, &format!("softmax/{folder}{file}.rs"))
    }
}

fn choose<R>(problem: &SoftmaxProblem, with: impl FnOnce(Way<'_, SoftmaxProblem>) -> R) -> R {
    let SoftmaxProblem { rows, x, x_stride, out, out_stride, length, .. } = problem;
    let operands = [(x, *x_stride), (out, *out_stride)];
    if short::serves(out.dtype, rows, *length, short::LONG, operands) {
        return with(Way::Short);
    }
    let kept = arithmetic_size(out.dtype);
    let in_one = folded::rows_in_one(rows, *length, operands);
    if in_one > 1 {
        let folded = SoftmaxProblem {
            length: (length - 1) / in_one + 1,
            x_stride: x_stride * in_one,
            out_stride: out_stride * in_one,
            rows: folded::widened(rows, in_one),
            ..problem.clone()
        };
        let SoftmaxProblem { rows, out, out_stride: step, length: long_rows, .. } = &folded;
        if let Some(split) = Split::of(rows, out, *step, *long_rows, kept, 8 * LANES) {
            return with(Way::Folded(&folded, split.of_period(*out_stride as usize, *length as usize)));
        }
    }
    // Pieces take exponentials a second time, which pays where registers are wide, or where each row of a narrow tile is a
    // page for a line or two.
    let row_bytes = rows.last().map_or(0, |&columns| columns as usize) * out.dtype.size();
    let narrowest = if row_bytes < 2048 && !has_whole_groups() { 2 * LANES } else { 8 * LANES };
    match Split::of(rows, out, *out_stride, *length, kept, narrowest) {
        Some(split) => with(Way::Columns(problem, split)),
        None => with(Way::Rows),
    }
}

/// Bytes of the type that elements are computed in.
fn arithmetic_size(dtype: DType) -> usize {
    if dtype == DType::F64 { size_of::<f64>() } else { size_of::<f32>() }
}

fn softmax<T: Float>(problem: &SoftmaxProblem) -> Result<()> {
    choose(problem, |way| match way {
        Way::Short => short::solve::<T>(problem),
        Way::Columns(problem, split) | Way::Folded(problem, split) => columns::solve::<T>(problem, &split),
        Way::Rows => rows::solve::<T>(problem),
    })
}

/// `x` and `out` over an index space of `dims`' making.
fn operands<T: Float>(
    problem: &SoftmaxProblem,
    dims: impl Fn(&[i64], i64) -> Dims,
) -> (Source<T>, Target<T>) {
    let SoftmaxProblem { x, out, .. } = problem;
    let shape = dims(&problem.rows, problem.length);
    let x_strides = dims(&x.strides, problem.x_stride);
    let out_strides = dims(&out.strides, problem.out_stride);
    // SAFETY: a problem's operands are memory that the caller keeps alive for the call, of the given shape, but for what
    // the last of several rows in one may lack, which is never asked for; `check_out` has refused outputs that overlap
    // themselves, or x without being exactly it. A slice of x is last used before any of its row is written, hence no
    // `written`.
    unsafe {
        (
            Source::new(x.address, x.dtype, &shape, &x_strides, 0),
            Target::new(out.address, out.dtype, &shape, &out_strides),
        )
    }
}

/// Calls `solve(parts, units, parallel)` for units of work that can themselves be solved by several threads: with each unit alone, on
/// one thread, where there are enough for all threads, else with groups of `together` units, group after group, all threads in each.
/// Of each of the units `parts` has as many as its pieces report; where there is no memory for them, nothing has been written.
fn for_units<P: Copy + Default + Send>(
    op: &'static str,
    units: usize,
    parts: usize,
    together: usize,
    nanoseconds: f64,
    solve: impl Fn(&mut [P], Range<usize>, bool) + Sync + Send,
) -> Result<()> {
    let pays = parallel::pays(nanoseconds);
    if pays && units >= 2 * parallel::threads() {
        let mut all = zeros(op, units * parts)?;
        parallel::for_chunks(&mut all, parts, true, |unit, parts| solve(parts, unit..unit + 1, false));
        return Ok(());
    }
    let together = if pays { together.clamp(1, units.max(1)) } else { 1 };
    let mut all = zeros(op, together * parts)?;
    for first in (0..units).step_by(together) {
        let units = first..units.min(first + together);
        solve(&mut all[..units.len() * parts], units, pays);
    }
    Ok(())
}

/// What finishes the elements of a row with this sum of exponentials: the factor of each exponential, or
/// what is subtracted from x - maximum.
#[inline(always)]
fn finishing<R: Exp, I: Isa>(isa: I, kind: Kind, sum: f64) -> R {
    match kind {
        Kind::Softmax => R::from_element(reciprocal(sum)),
        Kind::LogSoftmax => R::ln_of_sum(isa, sum),
    }
}

/// The exponentials of a group, relative to its maxima.
#[inline(always)]
fn lifted<T: Float, I: Isa, const NEAR: bool>(
    isa: I,
    mut x: [T::Real; LANES],
    maxima: [T::Real; LANES],
) -> [T::Real; LANES] {
    for i in 0..LANES {
        x[i] = T::Real::lifted::<I, NEAR>(isa, x[i], maxima[i]);
    }
    x
}

/// NaN for a row of nothing but -inf.
#[inline(always)]
fn reciprocal(sum: f64) -> f64 {
    if sum == 0.0 { f64::NAN } else { 1.0 / sum }
}

/// The sum of a piece whose maximum is `own`, relative to the row's maximum.
#[inline(always)]
fn rescaled<R: Exp>(sum: f64, own: R, row: R) -> f64 {
    if own == row { sum } else { sum * (own.to_f64() - row.to_f64()).exp() }
}

fn concat(dims: &[i64], rest: &[i64]) -> Dims {
    dims.iter().chain(rest).copied().collect()
}
