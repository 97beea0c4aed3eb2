//! Copies of parts of a matrix, as factors in the order in which tiles read them.

use std::ops::Range;
use std::ptr;

use super::Placed;
use super::scheme::Scheme;
use super::scratch::Staging;
use crate::cpu::element::Element;
use crate::cpu::isa::Isa;
use crate::cpu::operand::{MATRIX, Source};
use crate::cpu::register::{BLOCK, Tiles, prefetch};

/// Elements of a row that are copied at a time, about, and so many rows.
const WIDE: usize = 256;
const ROWS: usize = MATRIX / WIDE;
/// Rows that are copied at a time, of elements that are factors.
const COPIED: usize = 16;

/// Copies `depth` (of k) x `columns` of a matrix in panels of `width` columns: of each one row after another. Columns that
/// there are not are filled up with zeros.
#[inline(always)]
pub fn panels<S: Scheme, I: Isa>(
    isa: I,
    matrix: Placed,
    depth: &Range<usize>,
    columns: &Range<usize>,
    width: usize,
    staging: &mut Staging,
    to: &mut [S::Factor],
) {
    let len = depth.len().div_ceil(S::DEPTH) * width;
    let rest = columns.len() % width;
    if rest != 0 {
        to[(columns.len() - rest) / width * len..][..len].fill(S::Factor::default());
    }
    if size_of::<S::Memory>() == size_of::<S::Factor>() && matrix.col_stride == 1 {
        copied(matrix, depth, columns, width, to);
    } else if matrix.row_stride == 1 && matrix.col_stride != 1 {
        transposed::<S, I>(isa, matrix, depth, columns, width, staging, to);
    } else {
        straight::<S, I>(isa, matrix, depth, columns, width, staging, to);
    }
}

/// Row by row, of elements that are factors and follow one another.
#[inline(always)]
fn copied<F: Copy>(matrix: Placed, depth: &Range<usize>, columns: &Range<usize>, width: usize, to: &mut [F]) {
    let (k, len) = (depth.len(), depth.len() * width);
    let step = matrix.row_stride as isize;
    for row in (0..k).step_by(COPIED) {
        let rows = COPIED.min(k - row);
        for first in (0..columns.len()).step_by(width) {
            let from = matrix.at(size_of::<F>(), depth.start + row, columns.start + first);
            let from = ptr::with_exposed_provenance::<F>(from);
            // By pointer: with slices LLVM looks up their lengths for each row.
            let to = to[first / width * len + row * width..][..rows * width].as_mut_ptr();
            let count = width.min(columns.len() - first);
            // SAFETY: rows of the matrix, which nobody writes, and of the panel.
            unsafe {
                // A length that is known makes moves of this.
                if count == width {
                    copy_rows(from, step, to, width, [rows, width]);
                } else {
                    copy_rows(from, step, to, width, [rows, count]);
                }
            }
        }
    }
}

/// # Safety
/// So many rows of `count` factors, `step` apart, can be read, and written at `to`, `width` apart; no alignment is assumed.
#[inline(always)]
unsafe fn copy_rows<F>(from: *const F, step: isize, to: *mut F, width: usize, [rows, count]: [usize; 2]) {
    for i in 0..rows {
        let (from, to) = (from.wrapping_offset(i as isize * step), to.wrapping_add(i * width));
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), to.cast(), count * size_of::<F>()) };
    }
}

/// Row by row.
#[inline(always)]
fn straight<S: Scheme, I: Isa>(
    isa: I,
    matrix: Placed,
    depth: &Range<usize>,
    columns: &Range<usize>,
    width: usize,
    staging: &mut Staging,
    to: &mut [S::Factor],
) {
    let (k, n) = (depth.len(), columns.len());
    let len = k.div_ceil(S::DEPTH) * width;
    let source = matrix.source::<S::Memory>(depth, columns);
    let memory = staging.elements.room(MATRIX);
    let buffer = staging.factors.room::<S::Factor>(MATRIX);
    let zeros = [S::Memory::default(); WIDE];
    let wide = WIDE / width * width;
    for column in (0..n).step_by(wide) {
        let count = wide.min(n - column);
        for row in (0..k).step_by(ROWS) {
            let rows = ROWS.min(k - row);
            if matrix.col_stride == 1 {
                for i in row + rows..row + 2 * rows {
                    let next = matrix.at(size_of::<S::Memory>(), depth.start + i, columns.start + column);
                    for at in (0..count * size_of::<S::Memory>()).step_by(64) {
                        prefetch(ptr::without_provenance::<u8>(next.wrapping_add(at)));
                    }
                }
            }
            let lines = source.matrix(row * n + column, [rows, count], memory);
            let mut factors: [&[S::Factor]; ROWS] = [&[]; ROWS];
            let mut buffers = buffer.chunks_exact_mut(WIDE);
            for (i, factors) in (0..rows).step_by(S::DEPTH).zip(&mut factors) {
                let next = if i + 1 < rows { lines.row(i + 1) } else { &zeros[..count] };
                if let Some(buffer) = buffers.next() {
                    *factors = S::across(isa, [lines.row(i), next], buffer);
                }
            }
            let deep = rows.div_ceil(S::DEPTH);
            for first in (0..count).step_by(width) {
                let panel =
                    &mut to[(column + first) / width * len + row / S::DEPTH * width..][..deep * width];
                // By index: iterators might not be inlined, see `cpu::isa`.
                for i in 0..deep {
                    let (to, from) = (&mut panel[i * width..][..width], &factors[i][first..]);
                    if from.len() < width {
                        to[..from.len()].copy_from_slice(from);
                        continue;
                    }
                    // SAFETY: both are of this length, and distinct. The length is known, so that these are moves.
                    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), width) };
                }
            }
        }
    }
}

/// Columns whose factors follow one another, in blocks that are transposed.
#[inline(always)]
fn transposed<S: Scheme, I: Isa>(
    isa: I,
    matrix: Placed,
    depth: &Range<usize>,
    columns: &Range<usize>,
    width: usize,
    staging: &mut Staging,
    to: &mut [S::Factor],
) {
    let (k, n) = (depth.len(), columns.len());
    let len = k.div_ceil(S::DEPTH) * width;
    let source = matrix.transposed().source::<S::Memory>(columns, depth);
    let memory = staging.elements.room(MATRIX);
    let block = staging.factors.room::<[S::Factor; 2 * BLOCK]>(BLOCK);
    // Elements that are factors are transposed where they lie.
    let are_factors = size_of::<S::Memory>() == size_of::<S::Factor>();
    let step = 2 * BLOCK * S::DEPTH;
    for panel in (0..n).step_by(width) {
        let wide = width.min(n - panel);
        for row in (0..k).step_by(step) {
            let lines = source.matrix(panel * k + row, [wide, step.min(k - row)], memory);
            let deep = step.min(k - row).div_ceil(S::DEPTH);
            // The next columns lie in other pages, where the processor does not look ahead. To ask for memory that is not there
            // takes long.
            for i in 0..width.min(n - panel - wide) {
                let next =
                    matrix.at(size_of::<S::Memory>(), depth.start + row, columns.start + panel + width + i);
                prefetch(ptr::without_provenance::<u8>(next));
            }
            let to = &mut to[panel / width * len + row / S::DEPTH * width..];
            for first in (0..wide).step_by(BLOCK) {
                // The last columns are done with those before them, if there are such.
                let first = first.min(wide.saturating_sub(BLOCK));
                let count = BLOCK.min(wide - first);
                let is_whole = count == BLOCK && deep == 2 * BLOCK;
                let (from, from_step) = if is_whole && are_factors && lines.step() >= 0 {
                    (lines.row(first).as_ptr().cast(), lines.step() as usize)
                } else {
                    for (i, factors) in block[..count].iter_mut().enumerate() {
                        S::along(isa, lines.row(first + i), &mut factors[..deep]);
                    }
                    (block.as_ptr().cast::<S::Factor>(), 2 * BLOCK)
                };
                let to = &mut to[first..];
                if is_whole {
                    let to = to[..(2 * BLOCK - 1) * width + BLOCK].as_mut_ptr();
                    // SAFETY: the CPU has the register's instructions, since there is an `isa`; both ends are within the lines
                    // or the block, and the panel.
                    unsafe {
                        S::Tiles::<I>::transpose(from, from_step, to, width);
                        let (from, to) = (from.wrapping_add(BLOCK), to.wrapping_add(BLOCK * width));
                        S::Tiles::<I>::transpose(from, from_step, to, width);
                    }
                    continue;
                }
                for i in 0..count {
                    for (to, &factor) in to[i..].iter_mut().step_by(width).zip(&block[i][..deep]) {
                        *to = factor;
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
    staging: &mut Staging,
    to: &mut [S::Factor],
) {
    let k = depth.len();
    let source = matrix.source::<S::Memory>(rows, depth);
    let memory = staging.elements.room(MATRIX);
    for column in (0..k).step_by(MATRIX) {
        let len = MATRIX.min(k - column);
        for (row, to) in (0..rows.len()).zip(to.chunks_mut(step)) {
            // The next row lies in another page, where the processor does not look ahead.
            if matrix.col_stride == 1 {
                let next = matrix.at(size_of::<S::Memory>(), rows.start + row + 1, depth.start + column);
                for at in (0..len * size_of::<S::Memory>()).step_by(64) {
                    prefetch(ptr::without_provenance::<u8>(next.wrapping_add(at)));
                }
            }
            let line = source.matrix(row * k + column, [1, len], memory);
            S::along(isa, line.row(0), &mut to[column / S::DEPTH..][..len.div_ceil(S::DEPTH)]);
        }
    }
}

/// [`rows`] of a matrix whose columns are contiguous: a few columns at a time are transposed.
#[inline(always)]
pub fn transposed_rows<S: Scheme, I: Isa>(
    isa: I,
    matrix: Placed,
    rows: &Range<usize>,
    depth: &Range<usize>,
    step: usize,
    staging: &mut Staging,
    to: &mut [S::Factor],
) {
    let (k, m) = (depth.len(), rows.len());
    let source = matrix.transposed().source::<S::Memory>(depth, rows);
    let memory = staging.elements.room(MATRIX);
    let block = staging.factors.room::<[S::Factor; WIDE]>(BLOCK);
    let zeros = [S::Memory::default(); WIDE];
    let are_factors = size_of::<S::Memory>() == size_of::<S::Factor>();
    for column in (0..k).step_by(BLOCK * S::DEPTH) {
        let columns = (BLOCK * S::DEPTH).min(k - column);
        let deep = columns.div_ceil(S::DEPTH);
        for row in (0..m).step_by(WIDE) {
            let count = WIDE.min(m - row);
            let lines = source.matrix(column * m + row, [columns, count], memory);
            for (i, factors) in (0..columns).step_by(S::DEPTH).zip(&mut *block) {
                if are_factors {
                    S::along(isa, lines.row(i), factors);
                    continue;
                }
                let next = if i + 1 < columns { lines.row(i + 1) } else { &zeros[..count] };
                S::across(isa, [lines.row(i), next], factors);
            }
            let to = &mut to[row * step + column / S::DEPTH..];
            for i in (0..count).step_by(BLOCK) {
                if deep == BLOCK && i + BLOCK <= count {
                    let to = &mut to[i * step..][..(BLOCK - 1) * step + BLOCK];
                    // SAFETY: the CPU has the instructions, since there is an `isa`; both ends are within the block and `to`.
                    unsafe { S::Tiles::<I>::transpose(block[0][i..].as_ptr(), WIDE, to.as_mut_ptr(), step) };
                    continue;
                }
                for (i, to) in (i..count.min(i + BLOCK)).zip(to[i * step..].chunks_mut(step)) {
                    for (to, factors) in to.iter_mut().zip(&block[..deep]) {
                        *to = factors[i];
                    }
                }
            }
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
