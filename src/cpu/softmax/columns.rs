//! Rows that lie side by side: a tile of neighbouring columns at a time, each lane working on a row of its
//! own, so that memory is read along its lines although the rows run across them.

use super::groups;
use super::steps::{
    self, Finish, Keep, LogSoftmax, Raise, Scale, Softmax, SumUp, add_up, bases, exponentials, lower,
};
use super::tiles::{Split, Tile};
use super::*;
use crate::cpu::float::{add_groups, add_to_totals};
use crate::cpu::isa::{Kernel, LANES, dispatch};

/// Elements of a column whose sum is formed in the arithmetic type before it goes into a float64.
pub const RUN: usize = 16;

pub fn solve<T: Float>(problem: &SoftmaxProblem, split: &Split) -> Result<()> {
    let (x, out) = operands::<T>(problem, Split::dims);
    let in_place = problem.x.address == problem.out.address;
    let columns = Columns { x: &x, out: &out, in_place, kind: problem.kind };
    split.for_tiles(
        problem.kind.name(),
        |scratch: &mut Scratch<T>, tile| {
            dispatch(Whole { columns, tile, length: split.piece(0).len(), scratch });
        },
        |parts, tile, parallel| long(columns, parts, tile, split, parallel),
    )
}

struct Columns<'a, T> {
    x: &'a Source<T>,
    out: &'a Target<T>,
    /// Whether they are the same memory.
    in_place: bool,
    kind: Kind,
}

impl<T> Clone for Columns<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Columns<'_, T> {}

/// What a thread gathers rows in that are strided or of another dtype, and results; and the elements of a tile, widened.
struct Scratch<T: Float> {
    rows: Vec<T>,
    results: Vec<T>,
    values: Vec<[T::Real; LANES]>,
}

impl<T: Float> Default for Scratch<T> {
    fn default() -> Self {
        Scratch { rows: Vec::new(), results: Vec::new(), values: Vec::new() }
    }
}

/// As [`larger`](crate::cpu::float::Real::larger).
#[inline(always)]
fn larger_of<R: Exp>(a: R, b: R) -> R {
    if b > a { b } else { a }
}

/// What adds nothing to a column.
fn lowest<T: Float>() -> T {
    T::from_element(f64::NEG_INFINITY)
}

/// Writes the results of some rows from x.
#[inline(always)]
fn write<T: Float, I: Isa>(
    isa: I,
    columns: Columns<'_, T>,
    tile: Tile,
    range: Range<usize>,
    by: &impl groups::Result<T::Real>,
    scratch: &mut Scratch<T>,
) {
    let Columns { x, out, in_place, .. } = columns;
    let Scratch { rows, results, .. } = scratch;
    let at_once = tile.rows_at_once(x, range.len());
    for (l, count) in tile.batches(&range, at_once) {
        let matrix = tile.read(x, l, count, T::default(), rows);
        for row in 0..count {
            write_row(isa, out, tile, l + row, in_place, matrix.row(row), by, results);
        }
    }
}

/// Writes a row of results from one of `S`; `aliased`: that may be where they go.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn write_row<S: Float, T: Float<Real = S::Real>, I: Isa>(
    isa: I,
    out: &Target<T>,
    tile: Tile,
    l: usize,
    aliased: bool,
    from: &[S],
    by: &impl groups::Result<S::Real>,
    results: &mut Vec<T>,
) {
    let (start, width, elements) = (tile.start(l), tile.width(), tile.elements(l));
    if !aliased && elements == width && out.has_rows() {
        // SAFETY: every piece of a tile is visited by one thread, which holds no other slice of `out`.
        if let Some(mut matrix) = unsafe { out.matrix(start, [1, width]) } {
            groups::fill(isa, from, by, matrix.row(0));
        }
        return;
    }
    results.resize(width, T::default());
    groups::fill(isa, from, by, &mut results[..]);
    // SAFETY: as above; slices of x's row are not used any more.
    unsafe { out.store(start, &results[..elements]) };
}

/// A tile that is solved in a single visit.
struct Whole<'a, T: Float> {
    columns: Columns<'a, T>,
    tile: Tile,
    length: usize,
    scratch: &'a mut Scratch<T>,
}

impl<T: Float> Kernel for Whole<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Whole { columns, tile, length, scratch } = self;
        let groups = tile.groups();
        scratch.values.resize(length * groups, [T::Real::default(); LANES]);
        let mut maxima = vec![[T::Real::NEG_INFINITY; LANES]; groups];
        let at_once = tile.rows_at_once(columns.x, length);
        for (l, count) in tile.batches(&(0..length), at_once) {
            let matrix = tile.read(columns.x, l, count, lowest(), &mut scratch.rows);
            for (row, values) in scratch.values[l * groups..].chunks_exact_mut(groups).take(count).enumerate()
            {
                groups::visit(isa, matrix.row(row), &mut Keep { maxima: &mut maxima, values });
            }
        }
        tile.join::<T, _>(maxima.as_flattened_mut(), larger_of);
        let bases = bases(&maxima);
        let mut totals = vec![0.0; groups * LANES];
        for rows in scratch.values.chunks_mut(RUN * groups) {
            // Group by group, whose sums stay in registers.
            for (place, (base, totals)) in bases.iter().zip(totals.as_chunks_mut().0).enumerate() {
                let mut sums = [T::Real::default(); LANES];
                for row in rows.chunks_exact_mut(groups) {
                    let exponentials = exponentials::<T, I>(isa, row[place], *base);
                    row[place] = exponentials;
                    sums = add_groups(sums, exponentials);
                }
                add_to_totals(totals, sums);
            }
        }
        tile.join::<T, _>(&mut totals, |a, b| a + b);
        lower(&mut totals, &maxima);
        let finishing = steps::finishing::<T::Real, I>(isa, columns.kind, &totals);
        let finish = Finish::<T> { maxima: &maxima, bases: &bases, finishing: &finishing };
        if columns.kind == Kind::LogSoftmax {
            return write(isa, columns, tile, 0..length, &LogSoftmax(finish), scratch);
        }
        let Scratch { results, values, .. } = scratch;
        let by = Scale(finish);
        for (l, row) in values.chunks_exact(groups).enumerate() {
            write_row(isa, columns.out, tile, l, false, row.as_flattened(), &by, results);
        }
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
    let padded = tile.groups() * LANES;
    let parts = &mut parts[..split.pieces() * padded];
    parallel::for_chunks_with(parts, padded, parallel, Scratch::default, |scratch, i, part| {
        dispatch(Survey { columns, tile, range: split.piece(i), scratch, part });
    });
    let (maxima, finishing) = dispatch(Combine { kind: columns.kind, parts, padded });
    let bases = bases(&maxima);
    parallel::for_each_with(split.pieces(), parallel, Scratch::default, |scratch, i| {
        let finish = Finish { maxima: &maxima, bases: &bases, finishing: &finishing };
        dispatch(Write { columns, tile, range: split.piece(i), scratch, finish });
    });
}

/// The maxima of a piece and its sums relative to those.
struct Survey<'a, T: Float> {
    columns: Columns<'a, T>,
    tile: Tile,
    range: Range<usize>,
    scratch: &'a mut Scratch<T>,
    part: &'a mut [(T::Real, f64)],
}

impl<T: Float> Kernel for Survey<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Survey { columns: Columns { x, .. }, tile, range, scratch: Scratch { rows, .. }, part } = self;
        let groups = tile.groups();
        let mut maxima = vec![[T::Real::NEG_INFINITY; LANES]; groups];
        let at_once = tile.rows_at_once(x, range.len());
        for (l, count) in tile.batches(&range, at_once) {
            let matrix = tile.read(x, l, count, lowest(), rows);
            for row in 0..count {
                groups::visit(isa, matrix.row(row), &mut Raise(&mut maxima));
            }
        }
        tile.join::<T, _>(maxima.as_flattened_mut(), larger_of);
        let bases = bases(&maxima);
        let mut totals = vec![0.0; groups * LANES];
        let mut sums = vec![[T::Real::default(); LANES]; groups];
        let at_once = at_once.min(RUN);
        for (l, count) in tile.batches(&range, at_once) {
            let matrix = tile.read(x, l, count, lowest(), rows);
            for row in 0..count {
                groups::visit(isa, matrix.row(row), &mut SumUp::<T> { bases: &bases, sums: &mut sums });
            }
            add_up(&mut totals, &mut sums);
        }
        tile.join::<T, _>(&mut totals, |a, b| a + b);
        lower(&mut totals, &maxima);
        for (part, own) in part.iter_mut().zip(maxima.as_flattened().iter().copied().zip(totals)) {
            *part = own;
        }
    }
}

/// Maxima of the columns and what finishes them, given maxima and sums of their pieces.
struct Combine<'a, R> {
    kind: Kind,
    parts: &'a [(R, f64)],
    padded: usize,
}

impl<R: Exp> Kernel for Combine<'_, R> {
    type Output = (Vec<[R; LANES]>, Vec<[R; LANES]>);

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Self::Output {
        let Combine { kind, parts, padded } = self;
        let mut maxima = vec![[R::NEG_INFINITY; LANES]; padded / LANES];
        for part in parts.chunks_exact(padded) {
            for (m, &(own, _)) in maxima.as_flattened_mut().iter_mut().zip(part) {
                *m = if own > *m { own } else { *m };
            }
        }
        let mut totals = vec![0.0; padded];
        for part in parts.chunks_exact(padded) {
            for (total, (&(own, sum), &m)) in totals.iter_mut().zip(part.iter().zip(maxima.as_flattened())) {
                let difference = if own == m { 0.0 } else { own.to_f64() - m.to_f64() };
                *total += sum * <f64 as Exp>::exp(isa, difference);
            }
        }
        (maxima, steps::finishing(isa, kind, &totals))
    }
}

struct Write<'a, T: Float> {
    columns: Columns<'a, T>,
    tile: Tile,
    range: Range<usize>,
    scratch: &'a mut Scratch<T>,
    finish: Finish<'a, T>,
}

impl<T: Float> Kernel for Write<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Write { columns, tile, range, scratch, finish } = self;
        match columns.kind {
            Kind::Softmax => write(isa, columns, tile, range, &Softmax(finish), scratch),
            Kind::LogSoftmax => write(isa, columns, tile, range, &LogSoftmax(finish), scratch),
        }
    }
}
