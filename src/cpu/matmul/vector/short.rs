//! Rows of few elements, which lie one behind the other, times a vector: eight rows at a time are transposed, and a column of
//! them is multiplied at a time. Sums of lanes would take longer than the products.

use super::super::scheme::InRegisters;
use crate::cpu::float::{Float, Real};
use crate::cpu::isa::Isa;
use crate::cpu::register::{BLOCK, Tiles};

/// Elements of a row, at most.
pub const LONGEST: usize = 48;

/// Adds the products of rows of `vector.len()` elements to a sum each.
#[inline(always)]
pub fn sum<T: Float<Real: InRegisters>, I: Isa>(
    isa: I,
    rows: &[T],
    vector: &[T::Real],
    sums: &mut [T::Real],
) {
    let k = vector.len();
    let mut wide = [T::Real::default(); BLOCK * LONGEST];
    let mut padded = [T::Real::default(); BLOCK * (LONGEST + 1)];
    // Rows of less than a block's width are read with what follows them.
    let reach = (BLOCK - 1) * k + k.max(BLOCK);
    for (i, sums) in sums.chunks_mut(BLOCK).enumerate() {
        let rest = &rows[i * BLOCK * k..];
        let is_whole = sums.len() == BLOCK && rest.len() >= reach;
        let block = if is_whole { &rest[..reach] } else { &rest[..sums.len() * k] };
        let mut block = T::real(isa, block, &mut wide[..block.len()]);
        if !is_whole {
            padded[..block.len()].copy_from_slice(block);
            block = &padded;
        }
        let mut added = [T::Real::default(); BLOCK];
        for column in (0..k).step_by(BLOCK) {
            // The last columns are taken with those before them, if there are such.
            let first = column.min(k.saturating_sub(BLOCK));
            let mut columns = [[T::Real::default(); BLOCK]; BLOCK];
            let (from, to) = (block[first..][..(BLOCK - 1) * k + BLOCK].as_ptr(), columns.as_mut_ptr());
            // SAFETY: a proof that the CPU has the instructions is at hand; so many elements are there.
            unsafe { <T::Real as InRegisters>::Register::<I>::transpose(from, k, to.cast(), BLOCK) };
            for (column, &factor) in columns.iter().zip(&vector[first..]).skip(column - first) {
                for (sum, &x) in added.iter_mut().zip(column) {
                    *sum = x.mul_add(isa, factor, *sum);
                }
            }
        }
        for (sum, added) in sums.iter_mut().zip(added) {
            *sum = *sum + added;
        }
    }
}
