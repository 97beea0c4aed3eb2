//! Rows that lie side by side: a tile of neighbouring columns at a time, each lane working on a row of its
//! own, so that memory is read along its lines although the rows run across them.

use super::*;
use crate::cpu::isa::{Kernel, dispatch};
use crate::cpu::widened;

/// Elements of a tile that are kept widened at a time: 128 KiB of float32, within the second-level cache.
const PIECE: usize = 32768;

/// Elements of a column whose sum is formed in the arithmetic type before it goes into a float64.
const RUN: usize = 16;

/// The index space as (outer, along the row, column).
pub struct Split {
    outer: usize,
    columns: usize,
    /// Columns of a tile, a multiple of the lanes.
    width: usize,
}

/// How to split the work, if it is the result's columns that are neighbours in memory.
pub fn split(problem: &SoftmaxProblem) -> Option<Split> {
    let (&columns, outer) = problem.rows.split_last()?;
    let neighbours = problem.out.strides.last() == Some(&1) && problem.out_stride != 1;
    if !neighbours || columns < 8 || problem.length == 1 {
        return None;
    }
    let length = problem.length as usize;
    let width = match PIECE / length {
        // Too long for one visit: four cache lines of float32 a row.
        0..LANES => 64,
        fits => (fits / LANES * LANES).min(if length < 64 { 1024 } else { 64 }),
    };
    Some(Split { outer: outer.iter().product::<i64>() as usize, columns: columns as usize, width })
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
    let rows = PIECE / width;
    let pieces = length.div_ceil(rows);
    let nanoseconds = 0.6 * (length * outer * columns) as f64;
    for_units(outer * tiles, pieces, nanoseconds, |unit, parallel| {
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
            dispatch(Whole { tile, length });
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

type Groups<R> = Vec<[R; LANES]>;

impl<T: Float> Tile<'_, T> {
    fn groups(&self) -> usize {
        self.width.div_ceil(LANES)
    }

    /// Widens `range` of every column, one group of lanes after the other, row by row. Lanes beyond the
    /// tile's width hold zeros.
    #[inline(always)]
    fn load<I: Isa>(&self, isa: I, range: Range<usize>) -> Groups<T::Real> {
        let groups = self.groups();
        let mut values = vec![[T::Real::default(); LANES]; range.len() * groups];
        for (l, row) in range.zip(values.chunks_exact_mut(groups)) {
            let start = self.first + l * self.step;
            widened::load(isa, self.x, start, &mut row.as_flattened_mut()[..self.width]);
        }
        values
    }

    #[inline(always)]
    fn store<I: Isa>(&self, isa: I, range: Range<usize>, values: &[[T::Real; LANES]]) {
        for (l, row) in range.zip(values.chunks_exact(self.groups())) {
            let start = self.first + l * self.step;
            // SAFETY: every piece of a tile is visited by one thread, which holds no other slice.
            unsafe { widened::store(isa, self.out, start, &row.as_flattened()[..self.width]) };
        }
    }
}

#[inline(always)]
fn maxima<R: Exp>(values: &[[R; LANES]], groups: usize) -> Groups<R> {
    let mut maxima = vec![[R::NEG_INFINITY; LANES]; groups];
    for row in values.chunks_exact(groups) {
        for (m, &v) in maxima.iter_mut().zip(row) {
            *m = larger(*m, v);
        }
    }
    maxima
}

/// The sums of e^(x - base), each kept in place of its x if KEEP.
#[inline(always)]
fn exponentials<R: Exp, I: Isa, const KEEP: bool>(
    isa: I,
    values: &mut [[R; LANES]],
    bases: &[[R; LANES]],
) -> Groups<f64> {
    let groups = bases.len();
    let mut totals = vec![[0.0; LANES]; groups];
    for rows in values.chunks_mut(RUN * groups) {
        for (g, (total, base)) in totals.iter_mut().zip(bases).enumerate() {
            let mut sum = [R::default(); LANES];
            for group in rows.iter_mut().skip(g).step_by(groups) {
                let e: [R; LANES] = std::array::from_fn(|i| R::exp_difference(isa, group[i], base[i]));
                for (s, e) in sum.iter_mut().zip(e) {
                    *s = *s + e;
                }
                if KEEP {
                    *group = e;
                }
            }
            for (t, s) in total.iter_mut().zip(sum) {
                *t += s.to_f64();
            }
        }
    }
    totals
}

fn finishings<R: Exp>(kind: Kind, sums: &[[f64; LANES]]) -> Groups<R> {
    sums.iter().map(|group| group.map(|sum| finishing(kind, sum))).collect()
}

/// Replaces every value by `f(value, base, finishing)`, the latter two of its column.
#[inline(always)]
fn finish<R: Exp>(
    values: &mut [[R; LANES]],
    bases: &[[R; LANES]],
    finishing: &[[R; LANES]],
    f: impl Fn(R, R, R) -> R,
) {
    for row in values.chunks_exact_mut(bases.len()) {
        for (v, (b, s)) in row.iter_mut().zip(bases.iter().zip(finishing)) {
            *v = std::array::from_fn(|i| f(v[i], b[i], s[i]));
        }
    }
}

/// A tile that is solved in a single visit.
struct Whole<'a, T> {
    tile: Tile<'a, T>,
    length: usize,
}

impl<T: Float> Kernel for Whole<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Whole { tile, length } = self;
        let mut values = tile.load(isa, 0..length);
        let bases: Groups<_> = maxima(&values, tile.groups()).into_iter().map(|m| m.map(base)).collect();
        match tile.kind {
            Kind::Softmax => {
                let sums = exponentials::<_, _, true>(isa, &mut values, &bases);
                finish(&mut values, &bases, &finishings(tile.kind, &sums), |e, _, factor| e * factor);
            }
            Kind::LogSoftmax => {
                let sums = exponentials::<_, _, false>(isa, &mut values, &bases);
                finish(&mut values, &bases, &finishings(tile.kind, &sums), |x, m, shift| (x - m) - shift);
            }
        }
        tile.store(isa, 0..length, &values);
    }
}

/// A tile in pieces of `rows` elements of each column.
fn long<T: Float>(tile: Tile<'_, T>, length: usize, rows: usize, parallel: bool) {
    let pieces = length.div_ceil(rows);
    let range = |i: usize| i * rows..length.min((i + 1) * rows);
    let parts = parallel::map(pieces, parallel, |i| dispatch(Survey { tile, range: range(i) }));
    let (bases, sums) = dispatch(Combine { parts: &parts, groups: tile.groups() });
    let finishing = finishings(tile.kind, &sums);
    parallel::for_each(pieces, parallel, |i| {
        dispatch(Write { tile, range: range(i), bases: &bases, finishing: &finishing });
    });
}

/// The maxima of a piece and its sums relative to those.
struct Survey<'a, T> {
    tile: Tile<'a, T>,
    range: Range<usize>,
}

impl<T: Float> Kernel for Survey<'_, T> {
    type Output = (Groups<T::Real>, Groups<f64>);

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Self::Output {
        let mut values = self.tile.load(isa, self.range);
        let maxima = maxima(&values, self.tile.groups());
        let bases: Groups<_> = maxima.iter().map(|m| m.map(base)).collect();
        let sums = exponentials::<_, _, false>(isa, &mut values, &bases);
        (maxima, sums)
    }
}

struct Combine<'a, R> {
    parts: &'a [(Groups<R>, Groups<f64>)],
    groups: usize,
}

impl<R: Exp> Kernel for Combine<'_, R> {
    type Output = (Groups<R>, Groups<f64>);

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Self::Output {
        let mut row = vec![[R::NEG_INFINITY; LANES]; self.groups];
        for (own, _) in self.parts {
            for (m, &o) in row.iter_mut().zip(own) {
                *m = larger(*m, o);
            }
        }
        let mut totals = vec![[0.0; LANES]; self.groups];
        for (own, sums) in self.parts {
            for (total, (sum, (own, row))) in totals.iter_mut().zip(sums.iter().zip(own.iter().zip(&row))) {
                for (i, t) in total.iter_mut().enumerate() {
                    *t += rescaled(isa, sum[i], own[i], row[i]);
                }
            }
        }
        (row.into_iter().map(|m| m.map(base)).collect(), totals)
    }
}

struct Write<'a, T: Float> {
    tile: Tile<'a, T>,
    range: Range<usize>,
    bases: &'a [[T::Real; LANES]],
    finishing: &'a [[T::Real; LANES]],
}

impl<T: Float> Kernel for Write<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Write { tile, range, bases, finishing } = self;
        let mut values = tile.load(isa, range.clone());
        match tile.kind {
            Kind::Softmax => finish(&mut values, bases, finishing, |x, m, factor| {
                T::Real::exp_difference(isa, x, m) * factor
            }),
            Kind::LogSoftmax => finish(&mut values, bases, finishing, |x, m, shift| (x - m) - shift),
        }
        tile.store(isa, range, &values);
    }
}
