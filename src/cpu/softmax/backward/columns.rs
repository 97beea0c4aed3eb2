//! Many columns at a time.

use super::*;
use crate::cpu::element::Element;
use crate::cpu::isa::{Kernel, dispatch};
use crate::cpu::softmax::columns::RUN;
use crate::cpu::softmax::tiles::Tile;

pub fn solve<T: Float, O: Narrow<T::Real>>(problem: &SoftmaxBackwardProblem, split: &Split) -> Result<()> {
    with_operands::<T, O>(problem, Split::dims, |operands| {
        split.for_tiles(
            problem.kind.backward_name(),
            |scratch: &mut Scratch<T::Real, T::Real>, tile| {
                dispatch(Whole { piece: Piece { operands, tile, range: split.piece(0) }, scratch });
            },
            |sums, tile, parallel| {
                let piece = |i| Piece { operands, tile, range: split.piece(i) };
                long(&mut sums[..split.pieces() * tile.padded()], tile.padded(), piece, parallel);
            },
        )
    })
}

/// A tile, or a piece of one.
struct Piece<'a, T, O> {
    operands: Operands<'a, T, O>,
    tile: Tile,
    range: Range<usize>,
}

impl<T: Float, O: Narrow<T::Real>> Piece<'_, T, O> {
    #[inline(always)]
    fn load<I: Isa>(&self, isa: I, scratch: &mut Scratch<T::Real, T::Real>) {
        let Operands { grad, output, .. } = self.operands;
        self.tile.load(isa, grad, self.range.clone(), &mut scratch.grad);
        self.tile.load(isa, output, self.range.clone(), &mut scratch.output);
    }

    /// Of each column.
    #[inline(always)]
    fn sums<I: Isa>(&self, isa: I, scratch: &Scratch<T::Real, T::Real>, totals: &mut [f64]) {
        let (kind, padded) = (self.operands.kind, self.tile.padded());
        totals.fill(0.0);
        let mut sums = vec![[T::Real::default(); LANES]; padded / LANES];
        let runs = scratch.grad.chunks(RUN * padded).zip(scratch.output.chunks(RUN * padded));
        for (grads, outputs) in runs {
            sums.fill([T::Real::default(); LANES]);
            for (grad, output) in grads.chunks_exact(padded).zip(outputs.chunks_exact(padded)) {
                let groups = grad.as_chunks().0.iter().zip(output.as_chunks().0);
                for (sum, (grad, output)) in sums.iter_mut().zip(groups) {
                    *sum = add_terms(isa, kind, *grad, *output, *sum);
                }
            }
            for (total, sum) in totals.iter_mut().zip(sums.as_flattened()) {
                *total += sum.to_f64();
            }
        }
    }

    #[inline(always)]
    fn write<I: Isa>(&self, isa: I, sums: &[f64], scratch: &mut Scratch<T::Real, T::Real>) {
        let Operands { kind, out, .. } = self.operands;
        let Scratch { grad, output, values: columns } = scratch;
        columns.clear();
        columns.extend(sums.iter().map(|&sum| T::Real::from_element(sum)));
        for (grad, output) in grad.chunks_exact_mut(sums.len()).zip(output.chunks_exact(sums.len())) {
            let elements = grad.iter_mut().zip(output.iter().zip(&*columns));
            // A loop each, as in `super::rows::results`.
            match kind {
                Kind::Softmax => {
                    for (grad, (&output, &sum)) in elements {
                        *grad = result(isa, Kind::Softmax, *grad, output, sum);
                    }
                }
                Kind::LogSoftmax => {
                    for (grad, (&output, &sum)) in elements {
                        *grad = result(isa, Kind::LogSoftmax, *grad, output, sum);
                    }
                }
            }
        }
        self.tile.store(isa, out, self.range.clone(), grad);
    }
}

/// A tile that is solved in a single visit.
struct Whole<'a, T: Float, O> {
    piece: Piece<'a, T, O>,
    scratch: &'a mut Scratch<T::Real, T::Real>,
}

impl<T: Float, O: Narrow<T::Real>> Kernel for Whole<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        self.piece.load(isa, self.scratch);
        let mut sums = vec![0.0; self.piece.tile.padded()];
        self.piece.sums(isa, self.scratch, &mut sums);
        self.piece.write(isa, &sums, self.scratch);
    }
}

/// A tile in pieces, each of which reports the sums of its `padded` columns.
fn long<'a, T: Float, O: Narrow<T::Real>>(
    parts: &mut [f64],
    padded: usize,
    piece: impl Fn(usize) -> Piece<'a, T, O> + Sync,
    parallel: bool,
) {
    parallel::for_chunks_with(parts, padded, parallel, Scratch::default, |scratch, i, sums| {
        dispatch(Survey { piece: piece(i), scratch, sums });
    });
    let pieces = parts.len() / padded;
    let (sums, rest) = parts.split_at_mut(padded);
    for part in rest.chunks_exact(padded) {
        for (sum, part) in sums.iter_mut().zip(part) {
            *sum += part;
        }
    }
    let sums = &*sums;
    parallel::for_each_with(pieces, parallel, Scratch::default, |scratch, i| {
        dispatch(Write { piece: piece(i), scratch, sums });
    });
}

struct Survey<'a, T: Float, O> {
    piece: Piece<'a, T, O>,
    scratch: &'a mut Scratch<T::Real, T::Real>,
    sums: &'a mut [f64],
}

impl<T: Float, O: Narrow<T::Real>> Kernel for Survey<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        self.piece.load(isa, self.scratch);
        self.piece.sums(isa, self.scratch, self.sums);
    }
}

struct Write<'a, T: Float, O> {
    piece: Piece<'a, T, O>,
    scratch: &'a mut Scratch<T::Real, T::Real>,
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
