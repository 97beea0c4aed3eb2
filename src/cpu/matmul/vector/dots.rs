//! Rows of the matrix that follow k, and vectors: a few of each meet in registers, and lanes of sums are added up in the end.
//! Rows are read where they lie, so that the matrix is read once and nothing of it is packed.

use std::ops::Range;
use std::ptr;

use super::super::blocks::Sum;
use super::super::scheme::Scheme;
use super::super::scratch::Scratch;
use super::super::{Placed, pack};
use super::Problem;
use crate::cpu::float::Real;
use crate::cpu::isa::{Isa, LANES};
use crate::cpu::register::{Dots, Load, MOST_ROWS, MOST_VECTORS, Register, Tiles, add_dots, rows_at_once};

/// Bytes of a row's factors that meet one vector after another: the rows' stay in the first-level cache meanwhile.
const STRETCH: usize = 4096;

/// Vectors whose elements are neighbours in memory, at least, for them to be transposed.
const TRANSPOSED: usize = 4;

/// Registers that are added to a sum one after another, at most.
const CHAIN: usize = 256;

/// Whether vectors are packed by blocks that are transposed.
pub fn transposes(count: usize, vectors: Placed) -> bool {
    count >= TRANSPOSED && vectors.runs_down()
}

/// Adds the products over some of k of the rows from the `first`-th on to the sums of one vector after another.
#[inline(always)]
pub fn sum<S: Scheme, L: Load<S::Tiles<I>>, I: Isa>(
    isa: I,
    problem: &Problem<'_, S::Memory>,
    depth: &Range<usize>,
    first: usize,
    sums: &mut [Sum<S>],
    scratch: &mut Scratch,
) where
    S::Tiles<I>: Register,
{
    let &Problem { placed: [matrix, vectors], k, count, .. } = problem;
    let size = size_of::<S::Memory>();
    let lanes = S::Tiles::<I>::LEN;
    let in_register = lanes * S::DEPTH;
    let registers = depth.len().div_ceil(in_register);
    // Vectors of factors are read where they lie, too.
    let are_factors = size * S::DEPTH == size_of::<S::Factor>() && depth.len().is_multiple_of(S::DEPTH);
    let (first_factor, vector_step) = if are_factors && vectors.col_stride == 1 {
        let first: *const S::Factor = ptr::with_exposed_provenance(vectors.at(size, 0, depth.start));
        (first, vectors.row_stride as isize * size as isize)
    } else {
        let step = registers * lanes;
        let packed = scratch.b.room::<S::Factor>(count * step);
        let staging = &mut scratch.staging;
        if transposes(count, vectors) {
            pack::transposed_rows::<S, I>(isa, vectors, &(0..count), depth, step, staging, packed);
        } else {
            pack::rows::<S, I>(isa, vectors, &(0..count), depth, step, staging, packed);
        }
        (packed.as_ptr(), (step * size_of::<S::Factor>()) as isize)
    };
    // Of one size, about, and of more than two if there are several.
    let groups = count.div_ceil(MOST_VECTORS);
    let at_once = rows_at_once::<S::Tiles<I>>(count / groups);
    let stretch = STRETCH / (lanes * size_of::<S::Factor>());
    let in_place = matrix.col_stride == 1;
    let copies = scratch.a.room::<S::Memory>(if in_place { 0 } else { at_once * stretch * in_register });
    let parts = scratch.tile.room::<Sum<S>>(at_once * count * lanes);
    let width = sums.len() / count;
    for top in (0..width).step_by(at_once) {
        let here = at_once.min(width - top);
        for chain in (0..registers).step_by(CHAIN) {
            let end = registers.min(chain + CHAIN);
            for at in (chain..end).step_by(stretch) {
                let range = at * in_register..depth.len().min((at + stretch).min(end) * in_register);
                // Where there are too few rows, the last is taken again.
                let mut pointers = [ptr::null::<L::Element>(); MOST_ROWS];
                for i in 0..at_once {
                    let row = first + top + i.min(here - 1);
                    let element = depth.start + range.start;
                    pointers[i] = if in_place {
                        ptr::with_exposed_provenance(matrix.at(size, row, element))
                    } else {
                        let copy = &mut copies[i * stretch * in_register..][..range.len()];
                        problem.matrix.load(row * k + element, copy);
                        copy.as_ptr().cast()
                    };
                }
                for group in 0..groups {
                    let v = group * count / groups;
                    let operands = Dots {
                        rows: pointers,
                        row_bytes: in_register * size,
                        vectors: first_factor
                            .wrapping_byte_offset(v as isize * vector_step)
                            .wrapping_add(at * lanes),
                        vector_step,
                        len: range.len() / in_register,
                        rest: range.len() % in_register * size,
                        rest_of_factors: (range.len() % in_register).div_ceil(S::DEPTH)
                            * size_of::<S::Factor>(),
                        sums: parts[v * lanes..].as_mut_ptr(),
                        sums_step: count * lanes,
                        has_earlier: at > chain,
                    };
                    let vectors = (group + 1) * count / groups - v;
                    // SAFETY: a proof that the CPU has the instructions is at hand; there are so many elements of each row and
                    // factors of each vector, and a register of sums for each of their products.
                    unsafe { add_dots::<S::Tiles<I>, L>(&operands, vectors) };
                }
            }
            for (i, parts) in parts.chunks_exact(count * lanes).take(here).enumerate() {
                for (v, parts) in parts.chunks_exact(lanes).enumerate() {
                    let mut group = [Sum::<S>::default(); LANES];
                    group[..lanes].copy_from_slice(parts);
                    let sum = &mut sums[v * width + top + i];
                    *sum = *sum + Real::sum_of_lanes(isa, group);
                }
            }
        }
    }
}
