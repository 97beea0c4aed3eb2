//! Rows that lie side by side: a tile of neighbouring columns at a time, each lane working on a row of its
//! own, so that memory is read along its lines although the rows run across them.

use super::tiles::{Split, Tile};
use super::*;
use crate::cpu::float::add_groups;
use crate::cpu::isa::{Kernel, LANES, dispatch};

/// Elements of a column whose sum is formed in the arithmetic type before it goes into a float64.
pub const RUN: usize = 16;

pub fn solve<T: Float>(problem: &SoftmaxProblem, split: &Split) -> Result<()> {
    let shape = Split::dims(&problem.rows, problem.length);
    let x_strides = Split::dims(&problem.x.strides, problem.x_stride);
    let out_strides = Split::dims(&problem.out.strides, problem.out_stride);
    let (x, out) = operands::<T>(problem, &shape, &x_strides, &out_strides);
    let columns = Columns { x: &x, out: &out, kind: problem.kind };
    split.for_tiles(
        problem.kind.name(),
        |values: &mut Vec<T::Real>, tile| {
            dispatch(Whole { columns, tile, length: split.piece(0).len(), values });
        },
        |parts, tile, parallel| long(columns, parts, tile, split, parallel),
    )
}

struct Columns<'a, T> {
    x: &'a Source<T>,
    out: &'a Target<T>,
    kind: Kind,
}

impl<T> Clone for Columns<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Columns<'_, T> {}

impl<T: Float> Columns<'_, T> {
    /// Turns exponentials, or for log_softmax once more x, into the results.
    #[inline(always)]
    fn finish<I: Isa>(
        &self,
        isa: I,
        tile: Tile,
        range: Range<usize>,
        values: &mut [T::Real],
        bases: &[T::Real],
        finishing: &[T::Real],
    ) {
        for row in values.chunks_exact_mut(bases.len()) {
            match self.kind {
                Kind::Softmax => {
                    for (v, &factor) in row.iter_mut().zip(finishing) {
                        *v = *v * factor;
                    }
                }
                Kind::LogSoftmax => {
                    for (v, (&base, &shift)) in row.iter_mut().zip(bases.iter().zip(finishing)) {
                        *v = (*v - base) - shift;
                    }
                }
            }
        }
        tile.store(isa, self.out, range, values);
    }
}

/// The largest of each column, NaNs aside: those come back through the sums.
#[inline(always)]
fn maxima<R: Exp>(values: &[R], padded: usize) -> Vec<R> {
    let mut maxima = vec![R::NEG_INFINITY; padded];
    for row in values.chunks_exact(padded) {
        for (m, &v) in maxima.iter_mut().zip(row) {
            *m = if v > *m { v } else { *m };
        }
    }
    maxima
}

/// Replaces every x by e^(x - base) and sums them up by columns.
#[inline(always)]
fn exponentials<R: Exp, I: Isa>(isa: I, values: &mut [R], bases: &[R]) -> Vec<f64> {
    let padded = bases.len();
    let (bases, _) = bases.as_chunks::<LANES>();
    let mut totals = vec![0.0; padded];
    let mut sums = vec![[R::default(); LANES]; bases.len()];
    for rows in values.chunks_mut(RUN * padded) {
        sums.fill([R::default(); LANES]);
        for row in rows.chunks_exact_mut(padded) {
            let (groups, _) = row.as_chunks_mut::<LANES>();
            for (group, (base, sum)) in groups.iter_mut().zip(bases.iter().zip(&mut sums)) {
                let v = R::exp_differences(isa, group, base);
                *group = v;
                *sum = add_groups(*sum, v);
            }
        }
        for (total, sum) in totals.iter_mut().zip(sums.as_flattened()) {
            *total += sum.to_f64();
        }
    }
    totals
}

fn all<A: Copy, B>(values: &[A], f: impl Fn(A) -> B) -> Vec<B> {
    values.iter().map(|&v| f(v)).collect()
}

/// A tile that is solved in a single visit.
struct Whole<'a, T: Float> {
    columns: Columns<'a, T>,
    tile: Tile,
    length: usize,
    values: &'a mut Vec<T::Real>,
}

impl<T: Float> Kernel for Whole<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Whole { columns, tile, length, values } = self;
        tile.load(isa, columns.x, 0..length, values);
        let bases = all(&maxima(values, tile.padded()), base);
        let sums = exponentials(isa, values, &bases);
        if columns.kind == Kind::LogSoftmax {
            tile.load(isa, columns.x, 0..length, values);
        }
        columns.finish(isa, tile, 0..length, values, &bases, &all(&sums, |sum| finishing(columns.kind, sum)));
    }
}

/// A tile in pieces, each of which reports maximum and sum of every column.
fn long<T: Float>(
    columns: Columns<'_, T>,
    parts: &mut [(T::Real, f64)],
    tile: Tile,
    split: &Split,
    parallel: bool,
) {
    let padded = tile.padded();
    let parts = &mut parts[..split.pieces() * padded];
    parallel::for_chunks_with(parts, padded, parallel, Vec::new, |values, i, part| {
        dispatch(Survey { columns, tile, range: split.piece(i), values, part });
    });
    let (bases, sums) = dispatch(Combine { parts, padded });
    let finishing = all(&sums, |sum| finishing(columns.kind, sum));
    parallel::for_each_with(split.pieces(), parallel, Vec::new, |values, i| {
        let (bases, finishing) = (&bases[..], &finishing[..]);
        dispatch(Write { columns, tile, range: split.piece(i), values, bases, finishing });
    });
}

/// The maxima of a piece and its sums relative to those.
struct Survey<'a, T: Float> {
    columns: Columns<'a, T>,
    tile: Tile,
    range: Range<usize>,
    values: &'a mut Vec<T::Real>,
    part: &'a mut [(T::Real, f64)],
}

impl<T: Float> Kernel for Survey<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        self.tile.load(isa, self.columns.x, self.range, self.values);
        let maxima = maxima(self.values, self.tile.padded());
        let sums = exponentials(isa, self.values, &all(&maxima, base));
        for (part, own) in self.part.iter_mut().zip(maxima.into_iter().zip(sums)) {
            *part = own;
        }
    }
}

/// Bases and sums of the columns, given those of their pieces.
struct Combine<'a, R> {
    parts: &'a [(R, f64)],
    padded: usize,
}

impl<R: Exp> Kernel for Combine<'_, R> {
    type Output = (Vec<R>, Vec<f64>);

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Self::Output {
        let mut row = vec![R::NEG_INFINITY; self.padded];
        for part in self.parts.chunks_exact(self.padded) {
            for (m, &(own, _)) in row.iter_mut().zip(part) {
                *m = if own > *m { own } else { *m };
            }
        }
        let mut totals = vec![0.0; self.padded];
        for part in self.parts.chunks_exact(self.padded) {
            for (total, (&(own, sum), &row)) in totals.iter_mut().zip(part.iter().zip(&row)) {
                *total += rescaled(isa, sum, own, row);
            }
        }
        (all(&row, base), totals)
    }
}

struct Write<'a, T: Float> {
    columns: Columns<'a, T>,
    tile: Tile,
    range: Range<usize>,
    values: &'a mut Vec<T::Real>,
    bases: &'a [T::Real],
    finishing: &'a [T::Real],
}

impl<T: Float> Kernel for Write<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Write { columns, tile, range, values, bases, finishing } = self;
        tile.load(isa, columns.x, range.clone(), values);
        if columns.kind == Kind::Softmax {
            exponentials(isa, values, bases);
        }
        columns.finish(isa, tile, range, values, bases, finishing);
    }
}
