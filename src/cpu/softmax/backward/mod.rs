//! The gradients of softmax and log_softmax: by rows, by columns and by short ones, as their forward; each piece is visited
//! once for the row's sum and once more for its results.

mod columns;
mod groups;
mod rows;
mod short;

use super::*;
use crate::cpu::float::{Real, add_groups};
use crate::cpu::isa::LANES;
use crate::ops::softmax_backward::SoftmaxBackwardProblem;

pub fn run(problem: &SoftmaxBackwardProblem) -> Result<()> {
    match dtypes(problem) {
        [DType::F16, DType::F16] => solve::<f16, f16>(problem),
        [DType::BF16, DType::BF16] => solve::<bf16, bf16>(problem),
        [DType::F64, _] => solve::<f64, f64>(problem),
        [_, DType::F16] => solve::<f32, f16>(problem),
        [_, DType::BF16] => solve::<f32, bf16>(problem),
        _ => solve::<f32, f32>(problem),
    }
}

/// What `run` does.
pub fn method(problem: &SoftmaxBackwardProblem) -> Method {
    choose(problem, |way| way.method("backward/"))
}

/// What there are loops for: inputs of other dtypes than the first are converted while they are read, results of others than
/// the second when they are stored.
fn dtypes(problem: &SoftmaxBackwardProblem) -> [DType; 2] {
    use DType::{BF16, F16, F32, F64};
    match (problem.grad.dtype, problem.out.dtype) {
        (F64, _) | (_, F64) => [F64; 2],
        (half @ (F16 | BF16), out) if half == out => [half; 2],
        (_, half @ (F16 | BF16)) => [F32, half],
        _ => [F32; 2],
    }
}

fn choose<R>(problem: &SoftmaxBackwardProblem, with: impl FnOnce(Way<'_, SoftmaxBackwardProblem>) -> R) -> R {
    let SoftmaxBackwardProblem { rows, out, out_stride, length, .. } = problem;
    let operands =
        [(&problem.grad, problem.grad_stride), (&problem.output, problem.output_stride), (out, *out_stride)];
    let [dtype, results] = dtypes(problem);
    if dtype == results && super::short::serves(dtype, rows, *length, short::long(), operands) {
        return with(Way::Short);
    }
    let kept = 2 * dtype.size();
    let in_one = folded::rows_in_one(rows, *length, operands);
    if in_one > 1 {
        let folded = SoftmaxBackwardProblem {
            length: (length - 1) / in_one + 1,
            grad_stride: problem.grad_stride * in_one,
            output_stride: problem.output_stride * in_one,
            out_stride: out_stride * in_one,
            rows: folded::widened(rows, in_one),
            ..problem.clone()
        };
        let SoftmaxBackwardProblem { rows, out, out_stride: step, length: long_rows, .. } = &folded;
        if let Some(split) = Split::of(rows, out, *step, *long_rows, kept, 8 * LANES) {
            return with(Way::Folded(&folded, split.of_period(*out_stride as usize, *length as usize)));
        }
    }
    match Split::of(rows, out, *out_stride, *length, kept, 8 * LANES) {
        Some(split) => with(Way::Columns(problem, split)),
        None => with(Way::Rows),
    }
}

fn solve<T: Float, O: Float<Real = T::Real>>(problem: &SoftmaxBackwardProblem) -> Result<()> {
    choose(problem, |way| match way {
        Way::Short => short::solve::<T>(problem),
        Way::Columns(problem, split) | Way::Folded(problem, split) => columns::solve::<T, O>(problem, &split),
        Way::Rows => rows::solve::<T, O>(problem),
    })
}

/// `grad`, `output` and `out` over an index space of `dims`' making.
fn with_operands<T: Float, O: Float<Real = T::Real>>(
    problem: &SoftmaxBackwardProblem,
    dims: impl Fn(&[i64], i64) -> Dims,
    solve: impl FnOnce(Operands<'_, T, O>) -> Result<()>,
) -> Result<()> {
    let SoftmaxBackwardProblem { rows, length, grad, output, out, .. } = problem;
    let shape = dims(rows, *length);
    // SAFETY: a problem's operands are memory that the caller keeps alive for the call, of the given shape, but for what
    // the last of several rows in one may lack, which is never asked for; `check_out` has refused outputs that overlap
    // themselves, or an input without being exactly it. A slice of an input is last used before any of its piece is
    // written, hence no `written`.
    let source = |t: &Strided, stride| unsafe {
        Source::new(t.address, t.dtype, &shape, &dims(&t.strides, stride), 0)
    };
    let in_place = [grad, output].iter().any(|input| input.address == out.address);
    let (grad, output) = (source(grad, problem.grad_stride), source(output, problem.output_stride));
    // SAFETY: as above.
    let mut out =
        unsafe { Target::new(out.address, out.dtype, &shape, &dims(&out.strides, problem.out_stride)) };
    if !in_place {
        out.stream(grad.bytes() + output.bytes());
    }
    solve(Operands { kind: problem.kind, grad: &grad, output: &output, out: &out, in_place })
}

struct Operands<'a, T, O> {
    kind: Kind,
    grad: &'a Source<T>,
    output: &'a Source<T>,
    out: &'a Target<O>,
    /// Whether the output is an input.
    in_place: bool,
}

impl<T, O> Clone for Operands<'_, T, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, O> Copy for Operands<'_, T, O> {}

/// What a thread gathers inputs in that are strided or of another dtype, and results.
#[derive(Default)]
struct Scratch<T, O> {
    grad: Vec<T>,
    output: Vec<T>,
    results: Vec<O>,
}

/// `sums` with what a group of elements adds to the sums of their rows. By value, as [`add_groups`].
#[inline(always)]
fn add_terms<R: Real, I: Isa>(
    isa: I,
    kind: Kind,
    grad: [R; LANES],
    output: [R; LANES],
    mut sums: [R; LANES],
) -> [R; LANES] {
    match kind {
        Kind::Softmax => {
            for i in 0..LANES {
                sums[i] = output[i].mul_add(isa, grad[i], sums[i]);
            }
            sums
        }
        Kind::LogSoftmax => add_groups(sums, grad),
    }
}

/// The results of a group of elements, given the sums of their rows.
#[inline(always)]
fn results<R: Exp, I: Isa>(
    isa: I,
    kind: Kind,
    mut grad: [R; LANES],
    output: [R; LANES],
    sums: [R; LANES],
) -> [R; LANES] {
    // A loop each: in one for both LLVM computes exp of softmax's output too, and drops it.
    match kind {
        Kind::Softmax => {
            for i in 0..LANES {
                grad[i] = output[i] * (grad[i] - sums[i]);
            }
        }
        Kind::LogSoftmax => {
            for i in 0..LANES {
                grad[i] = grad[i] - R::exp(isa, output[i]) * sums[i];
            }
        }
    }
    grad
}
