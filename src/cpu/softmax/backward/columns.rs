//! Many columns at a time.

use super::*;
use crate::cpu::float::{wide, wide_rest};
use crate::cpu::isa::{Kernel, dispatch};
use crate::cpu::operand::{MATRIX, Matrix};
use crate::cpu::softmax::columns::RUN;
use crate::cpu::softmax::tiles::Tile;

pub fn solve<T: Float, O: Narrow<T::Real>>(problem: &SoftmaxBackwardProblem, split: &Split) -> Result<()> {
    with_operands::<T, O>(problem, Split::dims, |operands| {
        split.for_tiles(
            problem.kind.backward_name(),
            |scratch: &mut Scratch<T, O>, tile| {
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

/// Groups of columns whose sums are in registers together.
const BLOCK: usize = 4;

impl<T: Float, O: Narrow<T::Real>> Piece<'_, T, O> {
    /// Elements along the columns that are read together.
    fn rows(&self) -> usize {
        let Operands { grad, output, .. } = self.operands;
        if grad.has_rows() && output.has_rows() { self.range.len() } else { MATRIX / self.tile.width() }
    }

    /// These, as rows.
    #[inline(always)]
    fn inputs<'b>(
        &'b self,
        l: usize,
        grad: &'b mut Vec<T>,
        output: &'b mut Vec<T>,
    ) -> (usize, Matrix<'b, T>, Matrix<'b, T>) {
        let (start, shape) = (self.tile.start(l), [self.rows().min(self.range.end - l), self.tile.width()]);
        grad.resize(MATRIX, T::default());
        output.resize(MATRIX, T::default());
        let Operands { grad: grads, output: outputs, .. } = self.operands;
        (shape[0], grads.matrix(start, shape, grad), outputs.matrix(start, shape, output))
    }

    /// Of each column.
    #[inline(always)]
    fn sums<I: Isa>(&self, isa: I, scratch: &mut Scratch<T, O>, totals: &mut [f64]) {
        let (kind, width) = (self.operands.kind, self.tile.width());
        totals.fill(0.0);
        for l in self.range.clone().step_by(self.rows()) {
            let (rows, grad, output) = self.inputs(l, &mut scratch.grad, &mut scratch.output);
            let (whole, rest) = (width / LANES, width % LANES);
            for first in (0..rows).step_by(RUN) {
                let rows = first..rows.min(first + RUN);
                let mut group = 0;
                while group + BLOCK <= whole {
                    add_to(totals, group, &sums_of::<T, I, BLOCK>(isa, kind, &rows, &grad, &output, group));
                    group += BLOCK;
                }
                while group < whole {
                    add_to(totals, group, &sums_of::<T, I, 1>(isa, kind, &rows, &grad, &output, group));
                    group += 1;
                }
                if rest > 0 {
                    let mut sums = [T::Real::default(); LANES];
                    for row in rows {
                        let (grad, output) =
                            (&grad.row(row)[whole * LANES..], &output.row(row)[whole * LANES..]);
                        sums = add_terms(isa, kind, wide_rest(isa, grad), wide_rest(isa, output), sums);
                    }
                    add_to(totals, whole, &[sums]);
                }
            }
        }
    }

    #[inline(always)]
    fn write<I: Isa>(&self, isa: I, sums: &[f64], scratch: &mut Scratch<T, O>) {
        let Operands { kind, out, in_place, .. } = self.operands;
        let width = self.tile.width();
        let sums: Vec<_> = sums.iter().map(|&sum| T::Real::from_element(sum)).collect();
        let Scratch { grad: grads, output: outputs, results: buffer } = scratch;
        buffer.resize(width, O::default());
        for l in self.range.clone().step_by(self.rows()) {
            let (rows, grad, output) = self.inputs(l, grads, outputs);
            // SAFETY: every piece of a tile is visited by one thread, which holds no other slice of `out`; those of
            // inputs are other memory.
            let matrix = unsafe { out.matrix(self.tile.start(l), [rows, width]) }.filter(|_| !in_place);
            if let Some(mut matrix) = matrix {
                for row in 0..rows {
                    fill(isa, kind, grad.row(row), output.row(row), &sums, matrix.row(row));
                }
            } else {
                for row in 0..rows {
                    fill(isa, kind, grad.row(row), output.row(row), &sums, buffer);
                    // SAFETY: as above; slices of the inputs' row are not used any more.
                    unsafe { out.store(self.tile.start(l + row), buffer) };
                }
            }
        }
    }
}

/// The sums over some rows of N groups of columns.
#[inline(always)]
fn sums_of<T: Float, I: Isa, const N: usize>(
    isa: I,
    kind: Kind,
    rows: &Range<usize>,
    grad: &Matrix<'_, T>,
    output: &Matrix<'_, T>,
    group: usize,
) -> [[T::Real; LANES]; N] {
    let mut sums = [[T::Real::default(); LANES]; N];
    for row in rows.clone() {
        let (grad, output) = (grad.row(row).as_chunks().0, output.row(row).as_chunks().0);
        let (grad, output) = (&grad[group..group + N], &output[group..group + N]);
        for (sum, (grad, output)) in sums.iter_mut().zip(grad.iter().zip(output)) {
            *sum = add_terms(isa, kind, wide(isa, grad), wide(isa, output), *sum);
        }
    }
    sums
}

#[inline(always)]
fn add_to<R: Real>(totals: &mut [f64], group: usize, sums: &[[R; LANES]]) {
    for (total, sum) in totals[group * LANES..].iter_mut().zip(sums.as_flattened()) {
        *total += sum.to_f64();
    }
}

/// Writes a row of results, rounded.
#[inline(always)]
fn fill<T: Float, O: Narrow<T::Real>, I: Isa>(
    isa: I,
    kind: Kind,
    grad: &[T],
    output: &[T],
    sums: &[T::Real],
    to: &mut [O],
) {
    let ((grad, grad_rest), (output, output_rest)) = (grad.as_chunks::<LANES>(), output.as_chunks::<LANES>());
    let ((to, to_rest), sums) = (to.as_chunks_mut::<LANES>(), sums.as_chunks::<LANES>().0);
    for ((to, sums), (grad, output)) in to.iter_mut().zip(sums).zip(grad.iter().zip(output)) {
        O::narrowed(isa, &results(isa, kind, wide(isa, grad), wide(isa, output), *sums), to);
    }
    if let Some(sums) = sums.last().filter(|_| !to_rest.is_empty()) {
        let rest = results(isa, kind, wide_rest(isa, grad_rest), wide_rest(isa, output_rest), *sums);
        O::narrowed(isa, &rest[..to_rest.len()], to_rest);
    }
}

/// A tile that is solved in a single visit.
struct Whole<'a, T, O> {
    piece: Piece<'a, T, O>,
    scratch: &'a mut Scratch<T, O>,
}

impl<T: Float, O: Narrow<T::Real>> Kernel for Whole<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
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

struct Survey<'a, T, O> {
    piece: Piece<'a, T, O>,
    scratch: &'a mut Scratch<T, O>,
    sums: &'a mut [f64],
}

impl<T: Float, O: Narrow<T::Real>> Kernel for Survey<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        self.piece.sums(isa, self.scratch, self.sums);
    }
}

struct Write<'a, T, O> {
    piece: Piece<'a, T, O>,
    scratch: &'a mut Scratch<T, O>,
    sums: &'a [f64],
}

impl<T: Float, O: Narrow<T::Real>> Kernel for Write<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        self.piece.write(isa, self.sums, self.scratch);
    }
}
