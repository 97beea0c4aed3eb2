//! Copies of parts of a matrix, as factors in the order in which tiles read them.

use std::ops::Range;

use super::Placed;
use super::scheme::Scheme;
use crate::cpu::element::Element;
use crate::cpu::isa::Isa;
use crate::cpu::operand::{MATRIX, Source};

/// Elements of a row that are copied at a time, about, and so many rows.
const WIDE: usize = 256;
const ROWS: usize = MATRIX / WIDE;

/// Copies `depth` (of k) x `columns` of a matrix in panels of `width` columns: of each one row after another. Columns that
/// there are not are filled up with zeros.
#[inline(always)]
pub fn panels<S: Scheme, I: Isa>(
    isa: I,
    matrix: Placed,
    depth: &Range<usize>,
    columns: &Range<usize>,
    width: usize,
    to: &mut [S::Factor],
) {
    let (k, n) = (depth.len(), columns.len());
    let len = k.div_ceil(S::DEPTH) * width;
    let source = matrix.source::<S::Memory>(depth, columns);
    let mut memory = [S::Memory::default(); MATRIX];
    let mut buffer = [S::Factor::default(); WIDE];
    let zeros = [S::Memory::default(); WIDE];
    let wide = WIDE / width * width;
    for column in (0..n).step_by(wide) {
        let count = wide.min(n - column);
        for row in (0..k).step_by(ROWS) {
            let rows = ROWS.min(k - row);
            let lines = source.matrix(row * n + column, [rows, count], &mut memory);
            for i in (0..rows).step_by(S::DEPTH) {
                let next = if i + 1 < rows { lines.row(i + 1) } else { &zeros[..count] };
                let factors = S::across(isa, [lines.row(i), next], &mut buffer);
                let at = (row + i) / S::DEPTH * width;
                let panels = to[column / width * len..].chunks_mut(len);
                for (panel, factors) in panels.zip(factors.chunks(width)) {
                    let to = &mut panel[at..at + width];
                    if factors.len() == width {
                        for j in 0..width {
                            to[j] = factors[j];
                        }
                    } else {
                        to[..factors.len()].copy_from_slice(factors);
                        to[factors.len()..].fill(S::Factor::default());
                    }
                }
            }
        }
    }
}

/// Copies `rows` x `depth` (of k) of a matrix, row by row, `step` factors apart.
#[inline(always)]
pub fn rows<S: Scheme, I: Isa>(
    isa: I,
    matrix: Placed,
    rows: &Range<usize>,
    depth: &Range<usize>,
    step: usize,
    to: &mut [S::Factor],
) {
    let k = depth.len();
    let source = matrix.source::<S::Memory>(rows, depth);
    let mut memory = [S::Memory::default(); MATRIX];
    for column in (0..k).step_by(MATRIX) {
        let len = MATRIX.min(k - column);
        for (row, to) in (0..rows.len()).zip(to.chunks_mut(step)) {
            let line = source.matrix(row * k + column, [1, len], &mut memory);
            S::along(isa, line.row(0), &mut to[column / S::DEPTH..][..len.div_ceil(S::DEPTH)]);
        }
    }
}

impl Placed {
    fn source<T: Element>(self, rows: &Range<usize>, columns: &Range<usize>) -> Source<T> {
        let address = self.at(size_of::<T>(), rows.start, columns.start);
        let shape = [rows.len() as i64, columns.len() as i64];
        // SAFETY: a problem's operands are memory of the given shapes that the caller keeps alive, and none of it is
        // written: `check_out` has refused outputs that overlap an input.
        unsafe { Source::new(address, T::DTYPE, &shape, &[self.row_stride, self.col_stride], 0) }
    }
}
