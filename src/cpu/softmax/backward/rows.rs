//! Row by row.

use super::*;
use crate::cpu::float::pairwise;
use crate::cpu::isa::{Kernel, LANES, dispatch};
use crate::cpu::softmax::rows::{GROUPS, PIECE, SHORT, rows_together};
use crate::cpu::widened;

pub fn solve<T: Float, O: Narrow<T::Real>>(problem: &SoftmaxBackwardProblem) -> Result<()> {
    let (rows, length) = (problem.row_count() as usize, problem.length as usize);
    let nanoseconds = rows as f64 * (30.0 + 0.5 * length as f64);
    with_operands::<T, O>(
        problem,
        |rows, along| concat(rows, &[along]),
        |operands| {
            if length <= SHORT {
                parallel::for_ranges(rows, 1, nanoseconds, |range| {
                    dispatch(Short { operands, range, length })
                });
                return Ok(());
            }
            let (op, pieces) = (problem.kind.backward_name(), length.div_ceil(PIECE));
            for_units(op, rows, pieces, nanoseconds, |sums, row, parallel| {
                long(operands, sums, row, length, parallel);
            })
        },
    )
}

/// The sum over a row or a piece of one.
#[inline(always)]
fn sum<R: Real, I: Isa>(isa: I, kind: Kind, grad: &[R], output: &[R]) -> f64 {
    let ((grad, grad_rest), (output, output_rest)) = (grad.as_chunks::<LANES>(), output.as_chunks::<LANES>());
    let mut total = [0.0f64; LANES];
    for (grad, output) in grad.chunks(GROUPS).zip(output.chunks(GROUPS)) {
        let mut sum = [R::default(); LANES];
        for (grad, output) in grad.iter().zip(output) {
            sum = add_terms(isa, kind, *grad, *output, sum);
        }
        for i in 0..LANES {
            total[i] += sum[i].to_f64();
        }
    }
    if !grad_rest.is_empty() {
        let [mut grad, mut output] = [[R::default(); LANES]; 2];
        grad[..grad_rest.len()].copy_from_slice(grad_rest);
        output[..output_rest.len()].copy_from_slice(output_rest);
        let rest = add_terms(isa, kind, grad, output, [R::default(); LANES]);
        for i in 0..grad_rest.len() {
            total[i] += rest[i].to_f64();
        }
    }
    pairwise(total)
}

/// The results of a row or a piece of one.
#[inline(always)]
fn results<R: Exp, I: Isa>(isa: I, kind: Kind, grad: &[R], output: &[R], sum: f64, values: &mut [R]) {
    let sum = R::from_element(sum);
    // A loop each: in one for both LLVM computes exp of softmax's output too, and drops it.
    match kind {
        Kind::Softmax => {
            for (v, (&grad, &output)) in values.iter_mut().zip(grad.iter().zip(output)) {
                *v = result(isa, Kind::Softmax, grad, output, sum);
            }
        }
        Kind::LogSoftmax => {
            for (v, (&grad, &output)) in values.iter_mut().zip(grad.iter().zip(output)) {
                *v = result(isa, Kind::LogSoftmax, grad, output, sum);
            }
        }
    }
}

/// Rows that are solved in a single visit.
struct Short<'a, T, O> {
    operands: Operands<'a, T, O>,
    range: Range<usize>,
    length: usize,
}

impl<T: Float, O: Narrow<T::Real>> Kernel for Short<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Short { operands, range: Range { start, end }, length } = self;
        let Scratch { mut grad, mut output, mut values } = Scratch::default();
        let together = rows_together(length);
        for first in (start..end).step_by(together) {
            let piece = Piece { operands, start: first * length, length: together.min(end - first) * length };
            let (grad, output) = piece.inputs(isa, &mut grad, &mut output);
            values.resize(piece.length, T::Real::default());
            let rows = grad.chunks_exact(length).zip(output.chunks_exact(length));
            for (values, (grad, output)) in values.chunks_exact_mut(length).zip(rows) {
                results(isa, operands.kind, grad, output, sum(isa, operands.kind, grad, output), values);
            }
            piece.store(isa, &values);
        }
    }
}

/// Rows, a row, or a piece of one.
struct Piece<'a, T, O> {
    operands: Operands<'a, T, O>,
    start: usize,
    length: usize,
}

impl<'a, T: Float, O: Narrow<T::Real>> Piece<'a, T, O> {
    #[inline(always)]
    fn inputs<'b, I: Isa>(
        &self,
        isa: I,
        grad: &'b mut Vec<T::Real>,
        output: &'b mut Vec<T::Real>,
    ) -> (&'b [T::Real], &'b [T::Real])
    where
        'a: 'b,
    {
        (
            widened::read(isa, self.operands.grad, self.start, self.length, grad),
            widened::read(isa, self.operands.output, self.start, self.length, output),
        )
    }

    #[inline(always)]
    fn store<I: Isa>(&self, isa: I, values: &[T::Real]) {
        // SAFETY: every row, and every piece of one, is visited by one thread, which holds no other slice of `out`
        // and has done with those of the inputs.
        unsafe { widened::store(isa, self.operands.out, self.start, values) };
    }
}

/// A row in pieces, each of which reports its sum.
fn long<T: Float, O: Narrow<T::Real>>(
    operands: Operands<'_, T, O>,
    sums: &mut [f64],
    row: usize,
    length: usize,
    parallel: bool,
) {
    let piece = |i: usize| {
        let start = i * PIECE;
        Piece { operands, start: row * length + start, length: PIECE.min(length - start) }
    };
    parallel::for_chunks_with(sums, 1, parallel, Scratch::default, |scratch, i, sum| {
        sum.fill(dispatch(Survey { piece: piece(i), scratch }));
    });
    let sum = sums.iter().sum();
    parallel::for_each_with(sums.len(), parallel, Scratch::default, |scratch, i| {
        dispatch(Write { piece: piece(i), scratch, sum });
    });
}

struct Survey<'a, T: Float, O> {
    piece: Piece<'a, T, O>,
    scratch: &'a mut Scratch<T::Real>,
}

impl<T: Float, O: Narrow<T::Real>> Kernel for Survey<'_, T, O> {
    type Output = f64;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> f64 {
        let (grad, output) = self.piece.inputs(isa, &mut self.scratch.grad, &mut self.scratch.output);
        sum(isa, self.piece.operands.kind, grad, output)
    }
}

struct Write<'a, T: Float, O> {
    piece: Piece<'a, T, O>,
    scratch: &'a mut Scratch<T::Real>,
    sum: f64,
}

impl<T: Float, O: Narrow<T::Real>> Kernel for Write<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Scratch { grad, output, values } = self.scratch;
        let (grad, output) = self.piece.inputs(isa, grad, output);
        values.resize(self.piece.length, T::Real::default());
        results(isa, self.piece.operands.kind, grad, output, self.sum, values);
        self.piece.store(isa, values);
    }
}
