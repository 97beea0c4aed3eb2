//! Row by row.

use super::*;
use crate::cpu::float::{add_to_totals, pairwise};
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
        add_to_totals(&mut total, sum);
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

/// The results of a row or a piece of one, rounded.
#[inline(always)]
fn results<R: Exp, O: Narrow<R>, I: Isa>(
    isa: I,
    kind: Kind,
    grad: &[R],
    output: &[R],
    sum: f64,
    to: &mut [O],
) {
    let sum = R::from_element(sum);
    let ((grad, grad_rest), (output, output_rest)) = (grad.as_chunks::<LANES>(), output.as_chunks::<LANES>());
    let (to, to_rest) = to.as_chunks_mut::<LANES>();
    for (to, (grad, output)) in to.iter_mut().zip(grad.iter().zip(output)) {
        O::narrowed(isa, &results_of_group(isa, kind, *grad, *output, sum), to);
    }
    let mut rest = [R::default(); LANES];
    for (v, (&grad, &output)) in rest.iter_mut().zip(grad_rest.iter().zip(output_rest)) {
        *v = result(isa, kind, grad, output, sum);
    }
    O::narrowed(isa, &rest[..grad_rest.len()], to_rest);
}

#[inline(always)]
fn results_of_group<R: Exp, I: Isa>(
    isa: I,
    kind: Kind,
    mut grad: [R; LANES],
    output: [R; LANES],
    sum: R,
) -> [R; LANES] {
    // A loop each: in one for both LLVM computes exp of softmax's output too, and drops it.
    match kind {
        Kind::Softmax => {
            for i in 0..LANES {
                grad[i] = result(isa, Kind::Softmax, grad[i], output[i], sum);
            }
        }
        Kind::LogSoftmax => {
            for i in 0..LANES {
                grad[i] = result(isa, Kind::LogSoftmax, grad[i], output[i], sum);
            }
        }
    }
    grad
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
            let (kind, rows) = (operands.kind, grad.chunks_exact(length).zip(output.chunks_exact(length)));
            piece.write(&mut values, |values| {
                for (values, (grad, output)) in values.chunks_exact_mut(length).zip(rows) {
                    results(isa, kind, grad, output, sum(isa, kind, grad, output), values);
                }
            });
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

    /// Has the results filled in: in place, or in `buffer` where the output is strided or an input.
    #[inline(always)]
    fn write(&self, buffer: &mut Vec<O>, fill: impl FnOnce(&mut [O])) {
        let Operands { out, in_place, .. } = self.operands;
        // SAFETY: every row, and every piece of one, is visited by one thread, which holds no other slice of `out`; those
        // of inputs are other memory.
        match unsafe { out.slice(self.start, self.length) }.filter(|_| !in_place) {
            Some(slice) => fill(slice),
            None => {
                buffer.resize(self.length, O::default());
                fill(buffer);
                // SAFETY: as above; slices of the inputs are not used any more.
                unsafe { out.store(self.start, buffer) };
            }
        }
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
    scratch: &'a mut Scratch<T::Real, O>,
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
    scratch: &'a mut Scratch<T::Real, O>,
    sum: f64,
}

impl<T: Float, O: Narrow<T::Real>> Kernel for Write<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Scratch { grad, output, values } = self.scratch;
        let (grad, output) = self.piece.inputs(isa, grad, output);
        self.piece.write(values, |values| {
            results(isa, self.piece.operands.kind, grad, output, self.sum, values);
        });
    }
}
