//! The index space of rows that lie side by side, cut into tiles of neighbouring columns, and those into pieces
//! along the rows.

use super::*;
use crate::cpu::operand::{MATRIX, Matrix};

/// Bytes of a tile that a piece has, so that a second visit finds it in a usual second-level cache.
const PIECE: usize = 1 << 19;

/// Fewer columns are gathered as rows.
pub const NARROW: i64 = 2 * LANES as i64;

/// Columns of a tile in pieces: a row of it is a page or a few, read from the first byte to the last.
const WIDE: usize = 1024;

/// The index space as (outer, along the row, column).
pub struct Split {
    outer: usize,
    length: usize,
    columns: usize,
    /// Columns of a tile, whole groups of lanes.
    width: usize,
    /// Elements along the row that are kept widened at a time.
    rows: usize,
    /// Columns of which there are several rows in one of the tile's, which is then the only one.
    period: Option<usize>,
    /// Elements of the last row along which columns run, if they are fewer than those of the others.
    partial: Option<usize>,
}

impl Split {
    /// How to split the work, if it is the result's columns that are neighbours in memory. `bytes` are what a thread has to
    /// keep of an element from the first visit to the second; a tile of a single piece has `narrowest` columns at least,
    /// where there are as many.
    pub fn of(
        rows: &[i64],
        out: &Strided,
        out_stride: i64,
        length: i64,
        bytes: usize,
        narrowest: usize,
    ) -> Option<Split> {
        let (&columns, outer) = rows.split_last()?;
        let neighbours = out.strides.last() == Some(&1) && out_stride != 1;
        if !neighbours || columns < NARROW || length == 1 {
            return None;
        }
        let (length, piece) = (length as usize, PIECE / bytes);
        let widest = if length < 64 { WIDE } else { 256 };
        let width = match piece / length {
            fits if fits < narrowest => WIDE,
            fits => (fits / LANES * LANES).min(widest),
        };
        let outer = outer.iter().product::<i64>() as usize;
        let columns = columns as usize;
        Some(Split { outer, length, columns, width, rows: piece / width, period: None, partial: None })
    }

    /// Where several rows of `columns` are taken for one: `length` of them in all.
    pub fn of_period(self, columns: usize, length: usize) -> Split {
        let partial = length * columns % self.columns;
        Split { period: Some(columns), partial: (partial > 0).then_some(partial), ..self }
    }

    /// An operand's dimensions with the one along the row put before the columns.
    pub fn dims(rows: &[i64], along: i64) -> Dims {
        match rows.split_last() {
            Some((&last, outer)) => concat(outer, &[along, last]),
            None => concat(&[], &[along]),
        }
    }

    /// Elements along the row that the `i`-th piece has.
    pub fn piece(&self, i: usize) -> Range<usize> {
        i * self.rows..self.length.min((i + 1) * self.rows)
    }

    pub fn pieces(&self) -> usize {
        self.length.div_ceil(self.rows)
    }

    /// Calls `whole` with every tile and a scratch of its thread's; or, if tiles are in pieces, `long` with every
    /// tile, memory for what each piece reports of each column, and whether it may use threads of its own.
    pub fn for_tiles<S: Default, P: Copy + Default + Send>(
        &self,
        op: &'static str,
        whole: impl Fn(&mut S, Tile) + Sync + Send,
        long: impl Fn(&mut [P], Tile, bool) + Sync + Send,
    ) -> Result<()> {
        let nanoseconds = 0.6 * (self.outer * self.length * self.columns) as f64;
        let tiles = self.columns.div_ceil(self.width);
        let tile = |unit: usize| {
            let column = unit % tiles * self.width;
            Tile {
                first: unit / tiles * self.length * self.columns + column,
                step: self.columns,
                width: self.width.min(self.columns - column),
                period: self.period,
                partial: self.partial.map(|elements| (self.length - 1, elements)),
            }
        };
        let units = self.outer * tiles;
        if self.pieces() == 1 {
            let pays = parallel::pays(nanoseconds);
            parallel::for_each_with(units, pays, S::default, |scratch, unit| whole(scratch, tile(unit)));
            return Ok(());
        }
        let parts = self.pieces() * self.width.min(self.columns).next_multiple_of(LANES);
        for_units(op, units, parts, 1, nanoseconds, |parts, units, parallel| {
            units.for_each(|unit| long(parts, tile(unit), parallel));
        })
    }
}

/// Neighbouring columns.
#[derive(Clone, Copy)]
pub struct Tile {
    /// Index of its first element.
    first: usize,
    /// From one element of a column to the next.
    step: usize,
    width: usize,
    period: Option<usize>,
    /// A row that has fewer elements, and how many.
    partial: Option<(usize, usize)>,
}

impl Tile {
    pub fn width(self) -> usize {
        self.width
    }

    /// Elements of a row that there are.
    #[inline(always)]
    pub fn elements(self, l: usize) -> usize {
        self.partial.filter(|&(row, _)| row == l).map_or(self.width, |(_, elements)| elements)
    }

    /// Rows to read at once, the first and how many: at most `at_once`, and one alone that has fewer elements.
    #[inline(always)]
    pub fn batches(
        self,
        range: &Range<usize>,
        at_once: usize,
    ) -> impl Iterator<Item = (usize, usize)> + use<> {
        let alone = self.partial.map(|(row, _)| row).filter(|row| range.contains(row));
        let end = alone.unwrap_or(range.end);
        let batches = (range.start..end).step_by(at_once).map(move |l| (l, at_once.min(end - l)));
        batches.chain(alone.map(|row| (row, 1)))
    }

    /// Index of the first element of a row.
    pub fn start(self, l: usize) -> usize {
        self.first + l * self.step
    }

    /// Groups of columns. What fills up the last is computed along, but never stored.
    pub fn groups(self) -> usize {
        self.width.div_ceil(LANES)
    }

    /// Joins what columns that are the same have.
    #[inline(always)]
    pub fn join<T: Float, R: Copy + Default>(self, values: &mut [R], with: impl Fn(R, R) -> R) {
        if let Some(period) = self.period {
            folded::join::<T, R>(&mut values[..self.width], period, with);
        }
    }

    /// Rows of an operand that are read at once, of so many.
    pub fn rows_at_once<T: Element>(self, from: &Source<T>, rows: usize) -> usize {
        if from.has_rows() { rows } else { MATRIX / self.width }
    }

    /// So many of these, of one of [`batches`](Self::batches); what a row lacks is `missing`.
    #[inline(always)]
    pub fn read<'a, T: Element>(
        self,
        from: &'a Source<T>,
        first: usize,
        rows: usize,
        missing: T,
        buffer: &'a mut Vec<T>,
    ) -> Matrix<'a, T> {
        let (start, elements) = (self.start(first), self.elements(first));
        if elements < self.width {
            return from.padded_row(start, elements, self.width, missing, buffer);
        }
        if !from.has_rows() {
            buffer.resize(MATRIX, T::default());
        }
        from.matrix(start, [rows, self.width], buffer)
    }
}
