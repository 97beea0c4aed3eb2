//! The index space of rows that lie side by side, cut into tiles of neighbouring columns, and those into pieces
//! along the rows.

use super::*;
use crate::cpu::float::Narrow;
use crate::cpu::isa::LANES;
use crate::cpu::operand::MATRIX;
use crate::cpu::widened;

/// Bytes of a tile that are kept widened at a time: half of a usual second-level cache.
const PIECE: usize = 1 << 19;

/// The index space as (outer, along the row, column).
pub struct Split {
    outer: usize,
    length: usize,
    columns: usize,
    /// Columns of a tile, whole groups of lanes.
    width: usize,
    /// Elements along the row that are kept widened at a time.
    rows: usize,
}

impl Split {
    /// How to split the work, if it is the result's columns that are neighbours in memory. `bytes` are those that
    /// an element takes while it is widened.
    pub fn of(rows: &[i64], out: &Strided, out_stride: i64, length: i64, bytes: usize) -> Option<Split> {
        let (&columns, outer) = rows.split_last()?;
        let neighbours = out.strides.last() == Some(&1) && out_stride != 1;
        if !neighbours || columns < 8 || length == 1 {
            return None;
        }
        let (length, piece) = (length as usize, PIECE / bytes);
        // As wide as fits in one visit, for narrow tiles with rows a power of two apart evict themselves from the
        // cache; too long for that, four lines of float32.
        let widest = if length < 64 { 1024 } else { 256 };
        let width = match piece / length {
            0..32 => 64,
            fits => (fits / LANES * LANES).min(widest),
        };
        let outer = outer.iter().product::<i64>() as usize;
        Some(Split { outer, length, columns: columns as usize, width, rows: piece / width })
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
            }
        };
        let units = self.outer * tiles;
        if self.pieces() == 1 {
            let pays = parallel::pays(nanoseconds);
            parallel::for_each_with(units, pays, S::default, |scratch, unit| whole(scratch, tile(unit)));
            return Ok(());
        }
        let parts = self.pieces() * self.width.min(self.columns).next_multiple_of(LANES);
        for_units(op, units, parts, nanoseconds, |parts, unit, parallel| long(parts, tile(unit), parallel))
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
}

impl Tile {
    /// Columns with those that fill up the last group of lanes: computed along, but never stored.
    pub fn padded(self) -> usize {
        self.width.next_multiple_of(LANES)
    }

    pub fn width(self) -> usize {
        self.width
    }

    /// Index of the first element of a row.
    pub fn start(self, l: usize) -> usize {
        self.first + l * self.step
    }

    /// Whether the tile is all there is from one element of a column to the next.
    fn is_whole(self) -> bool {
        self.step == self.width && self.width == self.padded()
    }

    /// Widens `range` of every column, row by row.
    #[inline(always)]
    pub fn load<T: Float, I: Isa>(
        self,
        isa: I,
        from: &Source<T>,
        range: Range<usize>,
        values: &mut Vec<T::Real>,
    ) {
        let padded = self.padded();
        values.resize(range.len() * padded, T::Real::default());
        if self.is_whole() {
            return widened::load(isa, from, self.start(range.start), values);
        }
        let (rows, buffer) = if from.has_rows() { (range.len(), 0) } else { (MATRIX / self.width, MATRIX) };
        let mut buffer = vec![T::default(); buffer];
        for (l, values) in range.clone().step_by(rows).zip(values.chunks_mut(rows * padded)) {
            let rows = rows.min(range.end - l);
            let matrix = from.matrix(self.start(l), [rows, self.width], &mut buffer);
            for (row, values) in values.chunks_exact_mut(padded).enumerate() {
                T::widen(isa, matrix.row(row), &mut values[..self.width]);
            }
        }
    }

    #[inline(always)]
    pub fn store<R, T: Narrow<R>, I: Isa>(self, isa: I, to: &Target<T>, range: Range<usize>, values: &[R]) {
        if self.is_whole() {
            // SAFETY: every piece of a tile is visited by one thread, which holds no other slice.
            return unsafe { widened::store(isa, to, self.start(range.start), values) };
        }
        let rows = values.chunks_exact(self.padded());
        // SAFETY: as above.
        if let Some(mut matrix) = unsafe { to.matrix(self.start(range.start), [range.len(), self.width]) } {
            for (row, values) in rows.enumerate() {
                T::narrowed(isa, &values[..self.width], matrix.row(row));
            }
            return;
        }
        for (l, row) in range.zip(rows) {
            // SAFETY: as above.
            unsafe { widened::store(isa, to, self.start(l), &row[..self.width]) };
        }
    }
}
