//! Many columns at a time.

use super::*;
use crate::cpu::element::Element;
use crate::cpu::isa::{Kernel, dispatch};
use crate::cpu::softmax::columns::RUN;
use crate::cpu::softmax::tiles::Tile;

pub fn solve<T: Float, O: Narrow<T::Real>>(problem: &SoftmaxBackwardProblem, split: &Split) {
    with_operands::<T, O>(problem, Split::dims, |operands| {
        split.for_tiles(|scratch: &mut Scratch<T::Real>, tile, parallel| {
            let piece = |i| Piece { operands, tile, range: split.piece(i) };
            match split.pieces() {
                1 => dispatch(Whole { piece: piece(0), scratch }),
                pieces => long(pieces, piece, parallel),
            }
        });
    });
}

/// A tile, or a piece of one.
struct Piece<'a, T, O> {
    operands: Operands<'a, T, O>,
    tile: Tile,
    range: Range<usize>,
}

impl<T: Float, O: Narrow<T::Real>> Piece<'_, T, O> {
    #[inline(always)]
    fn load<I: Isa>(&self, isa: I, scratch: &mut Scratch<T::Real>) {
        let Operands { grad, output, .. } = self.operands;
        self.tile.load(isa, grad, self.range.clone(), &mut scratch.grad);
        self.tile.load(isa, output, self.range.clone(), &mut scratch.output);
    }

    /// Of each column.
    #[inline(always)]
    fn sums(&self, scratch: &Scratch<T::Real>) -> Vec<f64> {
        let (kind, padded) = (self.operands.kind, self.tile.padded());
        let mut totals = vec![0.0; padded];
        let mut sums = vec![T::Real::default(); padded];
        let runs = scratch.grad.chunks(RUN * padded).zip(scratch.output.chunks(RUN * padded));
        for (grads, outputs) in runs {
            sums.fill(T::Real::default());
            for (grad, output) in grads.chunks_exact(padded).zip(outputs.chunks_exact(padded)) {
                for (sum, (&grad, &output)) in sums.iter_mut().zip(grad.iter().zip(output)) {
                    *sum = *sum + term(kind, grad, output);
                }
            }
            for (total, sum) in totals.iter_mut().zip(&sums) {
                *total += sum.to_f64();
            }
        }
        totals
    }

    #[inline(always)]
    fn write<I: Isa>(&self, isa: I, sums: &[f64], scratch: &mut Scratch<T::Real>) {
        let Operands { kind, out, .. } = self.operands;
        let Scratch { grad, output, values: columns } = scratch;
        columns.clear();
        columns.extend(sums.iter().map(|&sum| T::Real::from_element(sum)));
        for (grad, output) in grad.chunks_exact_mut(sums.len()).zip(output.chunks_exact(sums.len())) {
            for (grad, (&output, &sum)) in grad.iter_mut().zip(output.iter().zip(&*columns)) {
                *grad = result(isa, kind, *grad, output, sum);
            }
        }
        self.tile.store(isa, out, self.range.clone(), grad);
    }
}

/// A tile that is solved in a single visit.
struct Whole<'a, T: Float, O> {
    piece: Piece<'a, T, O>,
    scratch: &'a mut Scratch<T::Real>,
}

impl<T: Float, O: Narrow<T::Real>> Kernel for Whole<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        self.piece.load(isa, self.scratch);
        let sums = self.piece.sums(self.scratch);
        self.piece.write(isa, &sums, self.scratch);
    }
}

/// A tile in pieces.
fn long<'a, T: Float, O: Narrow<T::Real>>(
    pieces: usize,
    piece: impl Fn(usize) -> Piece<'a, T, O> + Sync,
    parallel: bool,
) {
    let parts = parallel::map_with(pieces, parallel, Scratch::default, |scratch, i| {
        dispatch(Survey { piece: piece(i), scratch })
    });
    let sums = parts
        .into_iter()
        .reduce(|mut sums, part| {
            for (sum, part) in sums.iter_mut().zip(part) {
                *sum += part;
            }
            sums
        })
        .unwrap_or_default();
    parallel::map_with(pieces, parallel, Scratch::default, |scratch, i| {
        dispatch(Write { piece: piece(i), scratch, sums: &sums });
    });
}

struct Survey<'a, T: Float, O> {
    piece: Piece<'a, T, O>,
    scratch: &'a mut Scratch<T::Real>,
}

impl<T: Float, O: Narrow<T::Real>> Kernel for Survey<'_, T, O> {
    type Output = Vec<f64>;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Vec<f64> {
        self.piece.load(isa, self.scratch);
        self.piece.sums(self.scratch)
    }
}

struct Write<'a, T: Float, O> {
    piece: Piece<'a, T, O>,
    scratch: &'a mut Scratch<T::Real>,
    sums: &'a [f64],
}

impl<T: Float, O: Narrow<T::Real>> Kernel for Write<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        self.piece.load(isa, self.scratch);
        self.piece.write(isa, self.sums, self.scratch);
    }
}
