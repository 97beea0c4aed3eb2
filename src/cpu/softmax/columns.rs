//! Rows that lie side by side: a tile of neighbouring columns at a time, each lane working on a row of its
//! own, so that memory is read along its lines although the rows run across them.

use super::*;
use crate::cpu::isa::{Kernel, LANES, dispatch};
use crate::cpu::widened;

/// Bytes of a tile that are kept widened at a time: half of a usual second-level cache.
const PIECE: usize = 1 << 19;

/// Elements of a column whose sum is formed in the arithmetic type before it goes into a float64.
const RUN: usize = 16;

/// The index space as (outer, along the row, column).
pub struct Split {
    outer: usize,
    columns: usize,
    /// Columns of a tile, whole groups of lanes.
    width: usize,
}

/// How to split the work, if it is the result's columns that are neighbours in memory.
pub fn split(problem: &SoftmaxProblem) -> Option<Split> {
    let (&columns, outer) = problem.rows.split_last()?;
    let neighbours = problem.out.strides.last() == Some(&1) && problem.out_stride != 1;
    if !neighbours || columns < 8 || problem.length == 1 {
        return None;
    }
    // As wide as fits in one visit, for narrow tiles with rows a power of two apart evict themselves from the
    // cache; too long for that, four lines of float32.
    let widest = if problem.length < 64 { 1024 } else { 256 };
    let width = match piece(problem.out.dtype) / problem.length as usize {
        0..32 => 64,
        fits => (fits / LANES * LANES).min(widest),
    };
    Some(Split { outer: outer.iter().product::<i64>() as usize, columns: columns as usize, width })
}

/// Elements of a tile that are kept widened at a time.
fn piece(dtype: DType) -> usize {
    PIECE / if dtype == DType::F64 { 8 } else { 4 }
}

pub fn solve<T: Float>(problem: &SoftmaxProblem, split: &Split) {
    let &Split { outer, columns, width } = split;
    let insert = |dims: &[i64], along| match dims.split_last() {
        Some((&last, outer)) => concat(outer, &[along, last]),
        None => concat(&[], &[along]),
    };
    let shape = insert(&problem.rows, problem.length);
    let x_strides = insert(&problem.x.strides, problem.x_stride);
    let out_strides = insert(&problem.out.strides, problem.out_stride);
    let (x, out) = operands::<T>(problem, &shape, &x_strides, &out_strides);
    let length = problem.length as usize;
    let tiles = columns.div_ceil(width);
    let rows = piece(T::DTYPE) / width;
    let pieces = length.div_ceil(rows);
    let nanoseconds = 0.6 * (length * outer * columns) as f64;
    for_units(outer * tiles, pieces, nanoseconds, Vec::new, |values, unit, parallel| {
        let column = unit % tiles * width;
        let tile = Tile {
            x: &x,
            out: &out,
            kind: problem.kind,
            first: unit / tiles * length * columns + column,
            step: columns,
            width: width.min(columns - column),
        };
        if pieces == 1 {
            dispatch(Whole { tile, length, values });
        } else {
            long(tile, length, rows, parallel);
        }
    });
}

struct Tile<'a, T> {
    x: &'a Source<T>,
    out: &'a Target<T>,
    kind: Kind,
    /// Index of the tile's first element.
    first: usize,
    /// From one element of a column to the next.
    step: usize,
    width: usize,
}

impl<T> Clone for Tile<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Tile<'_, T> {}

impl<T: Float> Tile<'_, T> {
    /// Columns with those that fill up the last group of lanes: computed along, but never stored.
    fn padded(&self) -> usize {
        self.width.next_multiple_of(LANES)
    }

    /// Whether the tile is all there is from one element of a column to the next.
    fn is_whole(&self) -> bool {
        self.step == self.width && self.width == self.padded()
    }

    /// Widens `range` of every column, row by row.
    #[inline(always)]
    fn load<I: Isa>(&self, isa: I, range: Range<usize>, values: &mut Vec<T::Real>) {
        let padded = self.padded();
        values.resize(range.len() * padded, T::Real::default());
        if self.is_whole() {
            return widened::load(isa, self.x, self.first + range.start * self.step, values);
        }
        for (l, row) in range.zip(values.chunks_exact_mut(padded)) {
            widened::load(isa, self.x, self.first + l * self.step, &mut row[..self.width]);
        }
    }

    #[inline(always)]
    fn store<I: Isa>(&self, isa: I, range: Range<usize>, values: &[T::Real]) {
        if self.is_whole() {
            // SAFETY: every piece of a tile is visited by one thread, which holds no other slice.
            return unsafe { widened::store(isa, self.out, self.first + range.start * self.step, values) };
        }
        for (l, row) in range.zip(values.chunks_exact(self.padded())) {
            // SAFETY: as above.
            unsafe { widened::store(isa, self.out, self.first + l * self.step, &row[..self.width]) };
        }
    }

    /// Turns exponentials, or for log_softmax once more x, into the results.
    #[inline(always)]
    fn finish<I: Isa>(
        &self,
        isa: I,
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
        self.store(isa, range, values);
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
                for i in 0..LANES {
                    group[i] = R::exp_difference(isa, group[i], base[i]);
                    sum[i] = sum[i] + group[i];
                }
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
    tile: Tile<'a, T>,
    length: usize,
    values: &'a mut Vec<T::Real>,
}

impl<T: Float> Kernel for Whole<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Whole { tile, length, values } = self;
        tile.load(isa, 0..length, values);
        let bases = all(&maxima(values, tile.padded()), base);
        let sums = exponentials(isa, values, &bases);
        if tile.kind == Kind::LogSoftmax {
            tile.load(isa, 0..length, values);
        }
        tile.finish(isa, 0..length, values, &bases, &all(&sums, |sum| finishing(tile.kind, sum)));
    }
}

/// A tile in pieces of `rows` elements of each column.
fn long<T: Float>(tile: Tile<'_, T>, length: usize, rows: usize, parallel: bool) {
    let pieces = length.div_ceil(rows);
    let range = |i: usize| i * rows..length.min((i + 1) * rows);
    let parts = parallel::map_with(pieces, parallel, Vec::new, |values, i| {
        dispatch(Survey { tile, range: range(i), values })
    });
    let (bases, sums) = dispatch(Combine { parts: &parts, padded: tile.padded() });
    let finishing = all(&sums, |sum| finishing(tile.kind, sum));
    parallel::map_with(pieces, parallel, Vec::new, |values, i| {
        dispatch(Write { tile, range: range(i), values, bases: &bases, finishing: &finishing });
    });
}

/// The maxima of a piece and its sums relative to those.
struct Survey<'a, T: Float> {
    tile: Tile<'a, T>,
    range: Range<usize>,
    values: &'a mut Vec<T::Real>,
}

impl<T: Float> Kernel for Survey<'_, T> {
    type Output = (Vec<T::Real>, Vec<f64>);

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Self::Output {
        self.tile.load(isa, self.range, self.values);
        let maxima = maxima(self.values, self.tile.padded());
        let sums = exponentials(isa, self.values, &all(&maxima, base));
        (maxima, sums)
    }
}

/// Bases and sums of the columns, given those of their pieces.
struct Combine<'a, R> {
    parts: &'a [(Vec<R>, Vec<f64>)],
    padded: usize,
}

impl<R: Exp> Kernel for Combine<'_, R> {
    type Output = (Vec<R>, Vec<f64>);

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Self::Output {
        let mut row = vec![R::NEG_INFINITY; self.padded];
        for (own, _) in self.parts {
            for (m, &o) in row.iter_mut().zip(own) {
                *m = if o > *m { o } else { *m };
            }
        }
        let mut totals = vec![0.0; self.padded];
        for (own, sums) in self.parts {
            for (total, (&sum, (&own, &row))) in totals.iter_mut().zip(sums.iter().zip(own.iter().zip(&row)))
            {
                *total += rescaled(isa, sum, own, row);
            }
        }
        (all(&row, base), totals)
    }
}

struct Write<'a, T: Float> {
    tile: Tile<'a, T>,
    range: Range<usize>,
    values: &'a mut Vec<T::Real>,
    bases: &'a [T::Real],
    finishing: &'a [T::Real],
}

impl<T: Float> Kernel for Write<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Write { tile, range, values, bases, finishing } = self;
        tile.load(isa, range.clone(), values);
        if tile.kind == Kind::Softmax {
            exponentials(isa, values, bases);
        }
        tile.finish(isa, range, values, bases, finishing);
    }
}
