//! Products of a few rows and columns: all of a and b is packed at once, row by row. The preparations
//! for blocks ([`super::blocks`]) would take several times as long as the arithmetic, which is the same.

use super::blocks::{Block, Progress, Sum};
use super::scheme::Scheme;
use super::scratch::Scratch;
use super::*;
use crate::cpu::isa::Isa;
use crate::cpu::register::{Operands, Tiles};

/// Rows, columns and steps of k, at most.
const SIDE: usize = 64;

/// Elements of a matrix, at most: of more, blocks take no longer.
const ELEMENTS: usize = 512;

/// Whether a product is one for [`Block::solve_small`], if rows of a need not be read along k, in whole registers.
#[inline(always)]
pub fn is_small(m: usize, n: usize, k: usize, gated: bool) -> bool {
    m.max(n).max(k) <= SIDE && m * k <= ELEMENTS && k * n <= ELEMENTS && m * n <= ELEMENTS && !gated
}

impl<S: Scheme, I: Isa> Block<'_, S, I> {
    #[inline(always)]
    pub fn solve_small(&self, scratch: &mut Scratch) {
        let Product { m, n, k, a, b, out, .. } = self.product;
        let (height, width) = (S::Tiles::<I>::HEIGHT, S::Tiles::<I>::WIDTH);
        let progress = Progress { first: true, last: true, sums: out, gates: out };
        let deep = k.div_ceil(S::DEPTH);
        let mut line = [S::Memory::default(); SIDE];
        let rows = scratch.a.room::<S::Factor>(m.next_multiple_of(height) * deep);
        for (i, to) in rows.chunks_exact_mut(deep.max(1)).take(m).enumerate() {
            read(a, i, &mut line[..k]);
            S::along(self.isa, &line[..k], to);
        }
        let panel = deep * width;
        let columns = scratch.b.room::<S::Factor>(n.div_ceil(width) * panel);
        let (mut next, mut factors) = ([S::Memory::default(); SIDE], [S::Factor::default(); SIDE]);
        for row in 0..deep {
            read(b, row * S::DEPTH, &mut line[..n]);
            match row * S::DEPTH + 1 {
                second if S::DEPTH > 1 && second < k => read(b, second, &mut next[..n]),
                _ => next[..n].fill(S::Memory::default()),
            }
            let mut from = S::across(self.isa, [&line[..n], &next[..n]], &mut factors);
            for to in columns.chunks_exact_mut(panel) {
                let (here, rest) = from.split_at(from.len().min(width));
                let to = &mut to[row * width..][..width];
                to[..here.len()].copy_from_slice(here);
                to[here.len()..].fill(S::Factor::default());
                from = rest;
            }
        }
        let tile = scratch.tile.room::<Sum<S>>(height * width);
        let size = size_of::<S::Factor>() as isize;
        for top in (0..m).step_by(height) {
            for column in (0..n).step_by(width) {
                let b = columns[column * deep..].as_ptr();
                let operands = Operands {
                    a: rows[top * deep..].as_ptr(),
                    a_steps: [deep as isize * size, size],
                    b,
                    b_step: width as isize * size,
                    copy: b.cast_mut(),
                    copy_step: 0,
                    k: deep,
                    columns: width.min(n - column),
                    to: tile.as_mut_ptr(),
                    to_step: (width * size_of::<Sum<S>>()) as isize,
                    earlier: std::ptr::null(),
                    earlier_step: 0,
                    awaited: tile.as_ptr(),
                    awaited_step: (width * size_of::<Sum<S>>()) as isize,
                    later: b,
                };
                // SAFETY: a proof that the CPU has the instructions is at hand. There are `height` rows of a, of which
                // the last may hold anything, and `deep` rows of b; nothing is kept, so that b is not written.
                unsafe { S::Tiles::<I>::tile::<false>(operands) };
                let (rows, columns) = (top..m.min(top + height), column..n.min(column + width));
                self.finish(progress, &mut tile[..rows.len() * width], rows, columns);
            }
        }
    }
}

/// The first elements of a row.
#[inline(always)]
fn read<T: Float>(matrix: Placed, row: usize, to: &mut [T]) {
    let from = std::ptr::with_exposed_provenance::<T>(matrix.at(size_of::<T>(), row, 0));
    // SAFETY: a problem's operands are memory of the given shapes that the caller keeps alive, and none of it is
    // written: `check_out` has refused outputs that overlap an input. No alignment is assumed.
    unsafe {
        if matrix.col_stride == 1 {
            std::ptr::copy_nonoverlapping(from.cast::<u8>(), to.as_mut_ptr().cast(), size_of_val(to));
            return;
        }
        for (j, to) in to.iter_mut().enumerate() {
            *to = from.wrapping_offset(j as isize * matrix.col_stride as isize).read_unaligned();
        }
    }
}
