//! Row by row.

use super::*;
use crate::cpu::element::Element;
use crate::cpu::float::pairwise;
use crate::cpu::isa::{Kernel, LANES, dispatch};
use crate::cpu::softmax::rows::{GROUPS, PIECE, SHORT};
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
fn sum<R: Real>(kind: Kind, grad: &[R], output: &[R]) -> f64 {
    let ((grad, grad_rest), (output, output_rest)) = (grad.as_chunks::<LANES>(), output.as_chunks::<LANES>());
    let mut total = [0.0f64; LANES];
    for (grad, output) in grad.chunks(GROUPS).zip(output.chunks(GROUPS)) {
        let mut sum = [R::default(); LANES];
        for (grad, output) in grad.iter().zip(output) {
            for i in 0..LANES {
                sum[i] = sum[i] + term(kind, grad[i], output[i]);
            }
        }
        for i in 0..LANES {
            total[i] += sum[i].to_f64();
        }
    }
    for (total, (&grad, &output)) in total.iter_mut().zip(grad_rest.iter().zip(output_rest)) {
        *total += term(kind, grad, output).to_f64();
    }
    pairwise(total)
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
        let Short { operands, range, length } = self;
        let Scratch { mut grad, mut output, mut values } = Scratch::default();
        for row in range {
            let piece = Piece { operands, start: row * length, length };
            let (grad, output) = piece.inputs(isa, &mut grad, &mut output);
            let sum = sum(operands.kind, grad, output);
            piece.write(isa, grad, output, sum, &mut values);
        }
    }
}

/// A row or a piece of one.
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
    fn write<I: Isa>(
        &self,
        isa: I,
        grad: &[T::Real],
        output: &[T::Real],
        sum: f64,
        values: &mut Vec<T::Real>,
    ) {
        let Operands { kind, out, .. } = self.operands;
        values.resize(self.length, T::Real::default());
        let sum = T::Real::from_element(sum);
        for (v, (&grad, &output)) in values.iter_mut().zip(grad.iter().zip(output)) {
            *v = result(isa, kind, grad, output, sum);
        }
        // SAFETY: every row, and every piece of one, is visited by one thread, which holds no other slice of `out`
        // and has done with those of the inputs.
        unsafe { widened::store(isa, out, self.start, values) };
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
        sum(self.piece.operands.kind, grad, output)
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
        self.piece.write(isa, grad, output, self.sum, values);
    }
}
