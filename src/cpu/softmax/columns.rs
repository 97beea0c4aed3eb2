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
        maxima: &[T::Real],
        finishing: &[T::Real],
    ) {
        for row in values.chunks_exact_mut(maxima.len()) {
            match self.kind {
                Kind::Softmax => {
                    for (v, &factor) in row.iter_mut().zip(finishing) {
                        *v = *v * factor * T::Real::LOWERING;
                    }
                }
                Kind::LogSoftmax => {
                    for (v, (&m, &shift)) in row.iter_mut().zip(maxima.iter().zip(finishing)) {
                        *v = (*v - m) - shift;
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

/// Replaces every x by e^(x - m), lifted, and sums up by columns what that is.
#[inline(always)]
fn exponentials<T: Float, I: Isa>(isa: I, values: &mut [T::Real], maxima: &[T::Real]) -> Vec<f64> {
    let padded = maxima.len();
    // Those of -inf - 0 vanish, where -inf - -inf were NaN.
    let bases = all(maxima, |m| if m == T::Real::NEG_INFINITY { T::Real::default() } else { m });
    let (bases, _) = bases.as_chunks::<LANES>();
    let mut totals = vec![0.0; padded];
    let mut sums = vec![[T::Real::default(); LANES]; bases.len()];
    for rows in values.chunks_mut(RUN * padded) {
        sums.fill([T::Real::default(); LANES]);
        for row in rows.chunks_exact_mut(padded) {
            let (row, _) = row.as_chunks_mut::<LANES>();
            for (group, (base, sum)) in row.iter_mut().zip(bases.iter().zip(&mut sums)) {
                let exponentials = if is_half::<T>() {
                    lifted::<T, I, true>(isa, *group, *base)
                } else {
                    lifted::<T, I, false>(isa, *group, *base)
                };
                *group = exponentials;
                *sum = add_groups(*sum, exponentials);
            }
        }
        for (total, sum) in totals.iter_mut().zip(sums.as_flattened()) {
            *total += sum.to_f64();
        }
    }
    for (total, &m) in totals.iter_mut().zip(maxima) {
        // NaN stays.
        let vanishes = m == T::Real::NEG_INFINITY && *total >= 0.0;
        *total = if vanishes { 0.0 } else { *total * T::Real::LOWERING.to_f64() };
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
        let maxima = maxima(values, tile.padded());
        let sums = exponentials::<T, I>(isa, values, &maxima);
        if columns.kind == Kind::LogSoftmax {
            tile.load(isa, columns.x, 0..length, values);
        }
        let finishing = all(&sums, |sum| finishing(columns.kind, sum));
        columns.finish(isa, tile, 0..length, values, &maxima, &finishing);
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
    let (maxima, sums) = combined(parts, padded);
    let finishing = all(&sums, |sum| finishing(columns.kind, sum));
    parallel::for_each_with(split.pieces(), parallel, Vec::new, |values, i| {
        let (maxima, finishing) = (&maxima[..], &finishing[..]);
        dispatch(Write { columns, tile, range: split.piece(i), values, maxima, finishing });
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
        let sums = exponentials::<T, I>(isa, self.values, &maxima);
        for (part, own) in self.part.iter_mut().zip(maxima.into_iter().zip(sums)) {
            *part = own;
        }
    }
}

/// Maxima and sums of the columns, given those of their pieces.
fn combined<R: Exp>(parts: &[(R, f64)], padded: usize) -> (Vec<R>, Vec<f64>) {
    let mut maxima = vec![R::NEG_INFINITY; padded];
    for part in parts.chunks_exact(padded) {
        for (m, &(own, _)) in maxima.iter_mut().zip(part) {
            *m = if own > *m { own } else { *m };
        }
    }
    let mut totals = vec![0.0; padded];
    for part in parts.chunks_exact(padded) {
        for (total, (&(own, sum), &m)) in totals.iter_mut().zip(part.iter().zip(&maxima)) {
            *total += rescaled(sum, own, m);
        }
    }
    (maxima, totals)
}

struct Write<'a, T: Float> {
    columns: Columns<'a, T>,
    tile: Tile,
    range: Range<usize>,
    values: &'a mut Vec<T::Real>,
    maxima: &'a [T::Real],
    finishing: &'a [T::Real],
}

impl<T: Float> Kernel for Write<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Write { columns, tile, range, values, maxima, finishing } = self;
        tile.load(isa, columns.x, range.clone(), values);
        if columns.kind == Kind::Softmax {
            exponentials::<T, I>(isa, values, maxima);
        }
        columns.finish(isa, tile, range, values, maxima, finishing);
    }
}
