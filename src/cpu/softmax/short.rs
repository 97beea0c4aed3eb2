//! Columns of few elements: a group of neighbouring columns at a time, from its first elements to its results.

use super::columns::RUN;
use super::steps::{bases_of, exponentials, finishing_of, lower, scaled, shifted};
use super::tiles::NARROW;
use super::*;
use crate::cpu::float::{Real, add_groups, add_to_totals, narrow_rest, wide, wide_rest};
use crate::cpu::isa::{Kernel, dispatch};
use crate::cpu::operand::{Matrix, MatrixMut, is_in_place};

/// Elements of a column, at most.
pub const LONGEST: usize = 64;

/// The same of columns whose elements lie far apart, or of which there are few (docs/measurements/cpu_memory_bound.md); of
/// gradients far apart, see `backward::short::long`.
pub const LONG: i64 = 32;

/// Bytes from the first element of a column to its last that a first-level cache keeps, with all between them.
const NEAR: u64 = 1 << 15;

/// Fewer columns leave most lanes of a group unused: several rows in one are quicker.
const FEW: i64 = 8;

/// Columns that a thread takes at once.
const WIDTH: usize = 1024;

/// Whether columns are solved here: short ones in rows of the memory itself. `long` is the limit of those far apart, where there are
/// enough of them for tiles.
pub fn serves<const N: usize>(
    dtype: DType,
    rows: &[i64],
    length: i64,
    long: i64,
    operands: [(&Strided, i64); N],
) -> bool {
    let columns = rows.last().copied().unwrap_or(1);
    let has_rows =
        |&(t, _): &(&Strided, i64)| is_in_place(t.address, t.dtype, dtype) && t.strides.last() == Some(&1);
    let near = |&(_, step): &(&Strided, i64)| (step * length).unsigned_abs() <= NEAR / dtype.size() as u64;
    let longest = match operands.iter().all(near) {
        true if columns >= FEW => LONGEST as i64,
        false if columns >= NARROW => long,
        // Tiles take no fewer.
        _ => LONG,
    };
    columns > 1 && length <= longest && operands.iter().all(has_rows)
}

/// The index space in tiles: all elements of neighbouring columns, which are a row's neighbours.
#[derive(Clone, Copy)]
pub struct Tiles {
    outer: usize,
    length: usize,
    columns: usize,
}

impl Tiles {
    pub fn of(rows: &[i64], length: i64) -> Tiles {
        let (columns, outer) = rows.split_last().map_or((1, rows), |(&last, outer)| (last as usize, outer));
        Tiles { outer: outer.iter().product::<i64>() as usize, length: length as usize, columns }
    }

    /// Calls `work` with ranges of them.
    pub fn for_ranges(self, work: impl Fn(Range<usize>) + Sync + Send) {
        let count = self.outer * self.across();
        let nanoseconds = 20.0 * count as f64 + 0.6 * (self.outer * self.length * self.columns) as f64;
        parallel::for_ranges(count, 1, nanoseconds, work);
    }

    fn across(self) -> usize {
        self.columns.div_ceil(WIDTH)
    }

    /// Index of a tile's first element, and its rows and columns.
    pub fn get(self, tile: usize) -> (usize, [usize; 2]) {
        let (outer, column) = (tile / self.across(), tile % self.across() * WIDTH);
        (outer * self.length * self.columns + column, [self.length, WIDTH.min(self.columns - column)])
    }
}

/// What is done with neighbouring columns of a tile: `count` of them from `first` on, which are N groups or less than one.
pub trait Solve {
    fn solve<I: Isa, const N: usize>(&mut self, isa: I, first: usize, count: usize);
}

/// Calls `by` with all columns of a tile.
#[inline(always)]
pub fn for_blocks<I: Isa>(isa: I, columns: usize, by: &mut impl Solve) {
    const PAIR: usize = 2 * LANES;
    let mut first = 0;
    while columns - first >= PAIR {
        by.solve::<I, 2>(isa, first, PAIR);
        first += PAIR;
    }
    if columns - first >= LANES {
        by.solve::<I, 1>(isa, first, LANES);
        first += LANES;
    }
    if first < columns {
        by.solve::<I, 1>(isa, first, columns - first);
    }
}

/// The elements of a row's columns, in the order of [`Float::wide_pair`]; less than a group is filled up with zeros.
#[inline(always)]
pub fn read<T: Float, I: Isa, const N: usize>(isa: I, row: &[T]) -> [[T::Real; LANES]; N] {
    let mut all = [[T::Real::default(); LANES]; N];
    let (groups, rest) = row.as_chunks();
    match groups {
        [low, high] if N == 2 => [all[0], all[1]] = T::wide_pair(isa, &[*low, *high]),
        [group] => all[0] = wide(isa, group),
        _ => all[0] = wide_rest(isa, rest),
    }
    all
}

/// The reverse, rounded.
#[inline(always)]
pub fn write<T: Float, I: Isa, const N: usize>(isa: I, results: &[[T::Real; LANES]; N], row: &mut [T]) {
    let (groups, rest) = row.as_chunks_mut();
    let (pairs, single) = groups.as_chunks_mut();
    match (pairs, single) {
        ([pair], _) if N == 2 => T::narrow_pair(isa, [results[0], results[1]], pair),
        (_, [group]) => T::narrow(isa, &results[0], group),
        _ => narrow_rest(isa, &results[0], rest),
    }
}

pub fn solve<T: Float>(problem: &SoftmaxProblem) -> Result<()> {
    let (x, out) = operands::<T>(problem, Split::dims);
    let tiles = Tiles::of(&problem.rows, problem.length);
    tiles.for_ranges(|range| dispatch(Columns { kind: problem.kind, x: &x, out: &out, tiles, range }));
    Ok(())
}

struct Columns<'a, T> {
    kind: Kind,
    x: &'a Source<T>,
    out: &'a Target<T>,
    tiles: Tiles,
    range: Range<usize>,
}

impl<T: Float> Kernel for Columns<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Columns { kind, x, out, tiles, range } = self;
        let mut values = [[[T::Real::default(); LANES]; 2]; LONGEST];
        for tile in range {
            let (start, size) = tiles.get(tile);
            let x = x.matrix(start, size, &mut []);
            // SAFETY: every tile is visited by one thread, which holds no other slice of `out`; one of x is last used before
            // any of its columns are written. Both have rows, as `serves` has seen.
            let Some(out) = (unsafe { out.matrix(start, size) }) else { return };
            for_blocks(isa, size[1], &mut Tile { kind, x, out, values: &mut values[..size[0]] });
        }
    }
}

struct Tile<'a, T: Float> {
    kind: Kind,
    x: Matrix<'a, T>,
    out: MatrixMut<'a, T>,
    /// Elements of neighbouring columns, then their exponentials, row by row.
    values: &'a mut [[[T::Real; LANES]; 2]],
}

impl<T: Float> Solve for Tile<'_, T> {
    #[inline(always)]
    fn solve<I: Isa, const N: usize>(&mut self, isa: I, first: usize, count: usize) {
        let Tile { kind, x, out, values } = self;
        let mut maxima = [[T::Real::NEG_INFINITY; LANES]; N];
        for (row, value) in values.iter_mut().enumerate() {
            let x = read::<T, I, N>(isa, x.part(row, first, count));
            for i in 0..N {
                maxima[i] = T::Real::larger(isa, maxima[i], x[i]);
                value[i] = x[i];
            }
        }
        let mut finishing = maxima;
        for i in 0..N {
            finishing[i] = sum_up::<T, I>(isa, *kind, values, i, maxima[i]);
        }
        for (row, value) in values.iter().enumerate() {
            let mut results = maxima;
            for i in 0..N {
                results[i] = match kind {
                    Kind::Softmax => scaled(value[i], finishing[i]),
                    Kind::LogSoftmax => shifted(value[i], maxima[i], finishing[i]),
                };
            }
            write(isa, &results, out.part(row, first, count));
        }
    }
}

/// What finishes the `i`-th group of these, given its maxima. Softmax goes on with exponentials.
#[inline(always)]
fn sum_up<T: Float, I: Isa>(
    isa: I,
    kind: Kind,
    values: &mut [[[T::Real; LANES]; 2]],
    i: usize,
    maxima: [T::Real; LANES],
) -> [T::Real; LANES] {
    let bases = bases_of(maxima);
    let mut totals = [0.0; LANES];
    for values in values.chunks_mut(RUN) {
        let mut sums = [T::Real::default(); LANES];
        for value in values {
            let exponentials = exponentials::<T, I>(isa, value[i], bases);
            sums = add_groups(sums, exponentials);
            if kind == Kind::Softmax {
                value[i] = exponentials;
            }
        }
        add_to_totals(&mut totals, sums);
    }
    lower(&mut totals, &[maxima]);
    finishing_of(isa, kind, &totals)
}
