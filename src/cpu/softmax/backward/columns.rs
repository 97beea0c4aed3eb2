//! Many columns at a time.

use super::*;
use crate::cpu::isa::{Kernel, dispatch};
use crate::cpu::operand::Matrix;
use crate::cpu::softmax::columns::RUN;
use crate::cpu::softmax::groups::{self, ResultOfBoth, VisitBoth};
use crate::cpu::softmax::steps::{Groups, add_up, fill};
use crate::cpu::softmax::tiles::Tile;

pub fn solve<T: Float, O: Float<Real = T::Real>>(
    problem: &SoftmaxBackwardProblem,
    split: &Split,
) -> Result<()> {
    with_operands::<T, O>(problem, Split::dims, |operands| {
        split.for_tiles(
            problem.kind.backward_name(),
            |(scratch, totals, sums): &mut (Scratch<T, O>, Vec<f64>, _), tile| {
                fill(totals, tile.groups() * LANES, 0.0);
                let piece = || Piece { operands, tile, range: split.piece(0) };
                dispatch(Survey { piece: piece(), scratch, totals });
                tile.join::<T, _>(totals, |a, b| a + b);
                dispatch(Write { piece: piece(), scratch, totals, sums });
            },
            |sums, tile, parallel| {
                let piece = |i| Piece { operands, tile, range: split.piece(i) };
                long(&mut sums[..split.pieces() * tile.groups() * LANES], tile, piece, parallel);
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

/// Pairs of groups of columns whose sums are in registers together.
const BLOCK: usize = 2;

/// The sums over some rows of N pairs of groups.
#[inline(always)]
fn sums_of<T: Float, I: Isa, const N: usize>(
    isa: I,
    kind: Kind,
    rows: usize,
    grad: &Matrix<'_, T>,
    output: &Matrix<'_, T>,
    pair: usize,
) -> [[[T::Real; LANES]; 2]; N] {
    let mut sums = [[[T::Real::default(); LANES]; 2]; N];
    for row in 0..rows {
        let (grad, output) = (grad.row(row).as_chunks().0, output.row(row).as_chunks().0);
        let (grad, output) = (&grad.as_chunks().0[pair..pair + N], &output.as_chunks().0[pair..pair + N]);
        for (sum, (grad, output)) in sums.iter_mut().zip(grad.iter().zip(output)) {
            let (grad, output) = (T::wide_pair(isa, grad), T::wide_pair(isa, output));
            sum[0] = add_terms(isa, kind, grad[0], output[0], sum[0]);
            sum[1] = add_terms(isa, kind, grad[1], output[1], sum[1]);
        }
    }
    sums
}

/// Adds to sums of columns.
struct AddTerms<'a, R> {
    kind: Kind,
    sums: &'a mut [[R; LANES]],
}

impl<R: Real> VisitBoth<R> for AddTerms<'_, R> {
    #[inline(always)]
    fn visit<I: Isa>(&mut self, isa: I, place: usize, grad: [R; LANES], output: [R; LANES]) {
        self.sums[place] = add_terms(isa, self.kind, grad, output, self.sums[place]);
    }
}

/// Results, given these sums.
struct Results<'a, R> {
    kind: Kind,
    sums: &'a [[R; LANES]],
}

impl<R: Exp> ResultOfBoth<R> for Results<'_, R> {
    #[inline(always)]
    fn result<I: Isa>(&self, isa: I, place: usize, grad: [R; LANES], output: [R; LANES]) -> [R; LANES] {
        results(isa, self.kind, grad, output, self.sums[place])
    }
}

impl<T: Float, O: Float<Real = T::Real>> Piece<'_, T, O> {
    /// Rows that are read at once.
    fn rows(&self) -> usize {
        let Operands { grad, output, .. } = self.operands;
        let rows = self.range.len();
        self.tile.rows_at_once(grad, rows).min(self.tile.rows_at_once(output, rows))
    }

    /// Of each column. A kind that is known where loops are compiled is no branch in them.
    #[inline(always)]
    fn sums<I: Isa>(&self, isa: I, scratch: &mut Scratch<T, O>, totals: &mut [f64]) {
        match self.operands.kind {
            Kind::Softmax => self.sums_for(isa, Kind::Softmax, scratch, totals),
            Kind::LogSoftmax => self.sums_for(isa, Kind::LogSoftmax, scratch, totals),
        }
    }

    #[inline(always)]
    fn sums_for<I: Isa>(&self, isa: I, kind: Kind, scratch: &mut Scratch<T, O>, totals: &mut [f64]) {
        let Piece { operands: Operands { grad, output, .. }, tile, ref range } = *self;
        totals.fill(0.0);
        let pairs = tile.width() / (2 * LANES);
        let done = 2 * LANES * pairs;
        let at_once = self.rows().min(RUN);
        for (l, rows) in tile.batches(range, at_once) {
            // What is missing adds zero.
            let grad = tile.read(grad, l, rows, T::default(), &mut scratch.grad);
            let output = tile.read(output, l, rows, T::default(), &mut scratch.output);
            let mut pair = 0;
            while pair + BLOCK <= pairs {
                let mut sums = sums_of::<T, I, BLOCK>(isa, kind, rows, &grad, &output, pair);
                add_up(&mut totals[2 * LANES * pair..], sums.as_flattened_mut());
                pair += BLOCK;
            }
            while pair < pairs {
                let mut sums = sums_of::<T, I, 1>(isa, kind, rows, &grad, &output, pair);
                add_up(&mut totals[2 * LANES * pair..], sums.as_flattened_mut());
                pair += 1;
            }
            if done < tile.width() {
                let mut sums = [[T::Real::default(); LANES]; 2];
                for row in 0..rows {
                    let by = &mut AddTerms { kind, sums: &mut sums };
                    groups::visit_both(isa, &grad.row(row)[done..], &output.row(row)[done..], by);
                }
                add_up(&mut totals[done..], &mut sums);
            }
        }
    }

    #[inline(always)]
    fn write<I: Isa>(&self, isa: I, by: &Groups<T::Real>, scratch: &mut Scratch<T, O>) {
        match self.operands.kind {
            Kind::Softmax => self.write_for(isa, Kind::Softmax, by, scratch),
            Kind::LogSoftmax => self.write_for(isa, Kind::LogSoftmax, by, scratch),
        }
    }

    #[inline(always)]
    fn write_for<I: Isa>(&self, isa: I, kind: Kind, sums: &Groups<T::Real>, scratch: &mut Scratch<T, O>) {
        let Piece { operands: Operands { grad, output, out, in_place, .. }, tile, ref range } = *self;
        let by = &Results { kind, sums };
        let Scratch { grad: grads, output: outputs, results: buffer } = scratch;
        let at_once = self.rows();
        for (l, rows) in tile.batches(range, at_once) {
            let grad = tile.read(grad, l, rows, T::default(), grads);
            let output = tile.read(output, l, rows, T::default(), outputs);
            let elements = tile.elements(l);
            // SAFETY: every piece of a tile is visited by one thread, which holds no other slice of `out`; those of
            // inputs are other memory.
            let matrix = unsafe { out.matrix(tile.start(l), [rows, tile.width()]) };
            let matrix = matrix.filter(|_| !in_place && elements == tile.width());
            if let Some(mut matrix) = matrix {
                for row in 0..rows {
                    groups::fill_of_both(isa, grad.row(row), output.row(row), by, matrix.row(row));
                }
                continue;
            }
            buffer.resize(tile.width(), O::default());
            for row in 0..rows {
                groups::fill_of_both(isa, grad.row(row), output.row(row), by, &mut buffer[..]);
                // SAFETY: as above; slices of the inputs' row are not used any more.
                unsafe { out.store(tile.start(l + row), &buffer[..elements]) };
            }
        }
    }
}

/// A tile in pieces, each of which reports the sums of its columns.
fn long<'a, T: Float, O: Float<Real = T::Real>>(
    parts: &mut [f64],
    tile: Tile,
    piece: impl Fn(usize) -> Piece<'a, T, O> + Sync,
    parallel: bool,
) {
    let padded = tile.groups() * LANES;
    parallel::for_chunks_with(parts, padded, parallel, Scratch::default, |scratch, i, totals| {
        dispatch(Survey { piece: piece(i), scratch, totals });
    });
    let pieces = parts.len() / padded;
    let (totals, rest) = parts.split_at_mut(padded);
    for part in rest.chunks_exact(padded) {
        for (total, part) in totals.iter_mut().zip(part) {
            *total += part;
        }
    }
    tile.join::<T, _>(totals, |a, b| a + b);
    let totals = &*totals;
    parallel::for_each_with(pieces, parallel, <(Scratch<T, O>, _)>::default, |(scratch, sums), i| {
        dispatch(Write { piece: piece(i), scratch, totals, sums });
    });
}

struct Survey<'a, T, O> {
    piece: Piece<'a, T, O>,
    scratch: &'a mut Scratch<T, O>,
    totals: &'a mut [f64],
}

impl<T: Float, O: Float<Real = T::Real>> Kernel for Survey<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        self.piece.sums(isa, self.scratch, self.totals);
    }
}

struct Write<'a, T: Float, O> {
    piece: Piece<'a, T, O>,
    scratch: &'a mut Scratch<T, O>,
    totals: &'a [f64],
    /// These in the arithmetic type.
    sums: &'a mut Vec<[T::Real; LANES]>,
}

impl<T: Float, O: Float<Real = T::Real>> Kernel for Write<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Write { piece, scratch, totals, sums } = self;
        fill(sums, totals.len() / LANES, [T::Real::default(); LANES]);
        for (sum, &total) in sums.as_flattened_mut().iter_mut().zip(totals) {
            *sum = T::Real::from_element(total);
        }
        piece.write(isa, sums, scratch);
    }
}
