//! A few results that are neighbours in memory, or a single one, of a long k. Rows of the matrix are no longer than a group of lanes:
//! many of them are taken for one row, and each element of a vector is repeated for as many.

use std::ops::Range;

use super::super::scratch::Scratch;
use super::Problem;
use crate::cpu::float::{Float, Real};
use crate::cpu::isa::{Isa, LANES};
use crate::cpu::widened;

/// Of k, at least: of less, adding up the lanes takes longer than the products.
const LEAST: usize = 64;
/// Of k that is summed in one go: of several results so little that what is repeated stays in the first-level cache.
const STRETCH: usize = 256;
const LONG_STRETCH: usize = 4096;
/// Groups of running sums of lanes, at least.
const GROUPS: usize = 8;

/// Whether so many results of each vector, neighbours if they are several, are ones of this file. As many as a group has lanes are
/// sooner done by [`super::across`] for several vectors, and here for one.
pub fn is_narrow(vectors: usize, len: usize, k: usize, across: bool) -> bool {
    let most = if vectors == 1 { LANES } else { LANES - 1 };
    len <= most && k >= LEAST && (across || len == 1)
}

/// Adds the products over some of k to the sums of one vector after another.
#[inline(always)]
pub fn sum<T: Float, I: Isa>(
    isa: I,
    problem: &Problem<'_, T>,
    depth: &Range<usize>,
    sums: &mut [T::Real],
    scratch: &mut Scratch,
) {
    let &Problem { ref matrix, ref vectors, len, k, .. } = problem;
    let (mut elements, mut wide) = (Vec::new(), Vec::new());
    let (mut elements_of_vector, mut wide_vector) = (Vec::new(), Vec::new());
    let stretch = if len == 1 { LONG_STRETCH } else { STRETCH };
    let repeated = scratch.b.room::<T::Real>(STRETCH.min(depth.len()) * len + LANES);
    for start in depth.clone().step_by(stretch) {
        let deep = stretch.min(depth.end - start);
        let rows = widened::read(isa, matrix, start * len, deep * len, (&mut elements, &mut wide));
        for (v, sums) in sums.chunks_exact_mut(len).enumerate() {
            let buffers = (&mut elements_of_vector, &mut wide_vector);
            let factors = widened::read(isa, vectors, v * k + start, deep, buffers);
            if len == 1 {
                add_products(isa, rows, factors, sums);
            } else {
                repeat(factors, len, repeated);
                add_products(isa, rows, &repeated[..rows.len()], sums);
            }
        }
    }
}

/// Each factor `len` times.
#[inline(always)]
fn repeat<R: Real>(factors: &[R], len: usize, to: &mut [R]) {
    match len {
        2 => repeat_each::<R, 2>(factors, to),
        3 => repeat_each::<R, 3>(factors, to),
        4 => repeat_each::<R, 4>(factors, to),
        5 => repeat_each::<R, 5>(factors, to),
        6 => repeat_each::<R, 6>(factors, to),
        7 => repeat_each::<R, 7>(factors, to),
        8 => repeat_each::<R, 8>(factors, to),
        // More often, until the next comes.
        _ => {
            for (i, &factor) in factors.iter().enumerate() {
                to[i * len..][..LANES].fill(factor);
            }
        }
    }
}

#[inline(always)]
fn repeat_each<R: Real, const N: usize>(factors: &[R], to: &mut [R]) {
    for (to, &factor) in to.as_chunks_mut::<N>().0.iter_mut().zip(factors) {
        *to = [factor; N];
    }
}

/// Adds the products of elements to the sums of their columns. Of so many running sums as are a multiple of the columns, each is
/// always of the same; as LLVM does not know their number, it makes a loop of vectors, which it does not of a single group.
#[inline(always)]
fn add_products<R: Real, I: Isa>(isa: I, rows: &[R], factors: &[R], sums: &mut [R]) {
    let len = sums.len();
    let lanes = len * LANES;
    let mut running = [R::default(); LANES * LANES];
    let running = &mut running[..lanes * (GROUPS / len).max(1)];
    for (rows, factors) in rows.chunks(running.len()).zip(factors.chunks(running.len())) {
        for ((sum, &x), &factor) in running.iter_mut().zip(rows).zip(factors) {
            *sum = x.mul_add(isa, factor, *sum);
        }
    }
    let (first, others) = running.split_at_mut(lanes);
    for other in others.chunks_exact(lanes) {
        for (sum, &part) in first.iter_mut().zip(other) {
            *sum = *sum + part;
        }
    }
    for part in first.chunks_exact(len) {
        for (sum, &part) in sums.iter_mut().zip(part) {
            *sum = *sum + part;
        }
    }
}
