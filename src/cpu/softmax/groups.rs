//! Rows of a tile, a group of neighbouring columns at a time. Of two groups that are read as a pair the order of columns is
//! the dtype's own ([`Float::wide_pair`]), so that what belongs to columns is kept in that order throughout.

use crate::cpu::float::{Float, narrow_pair, narrow_rest, wide, wide_rest};
use crate::cpu::isa::{Isa, LANES};

/// What is done with the group at a place of a row.
pub trait Visit<R> {
    fn visit<I: Isa>(&mut self, isa: I, place: usize, x: [R; LANES]);
}

/// What becomes of it.
pub trait Result<R> {
    fn result<I: Isa>(&self, isa: I, place: usize, x: [R; LANES]) -> [R; LANES];
}

/// Calls `by` with every group; the last is filled up with zeros.
#[inline(always)]
pub fn visit<T: Float, I: Isa>(isa: I, row: &[T], by: &mut impl Visit<T::Real>) {
    let (groups, rest) = row.as_chunks();
    let (pairs, single) = groups.as_chunks();
    for (i, pair) in pairs.iter().enumerate() {
        let [low, high] = T::wide_pair(isa, pair);
        by.visit(isa, 2 * i, low);
        by.visit(isa, 2 * i + 1, high);
    }
    if let [group] = single {
        by.visit(isa, 2 * pairs.len(), wide(isa, group));
    }
    if !rest.is_empty() {
        by.visit(isa, groups.len(), wide_rest(isa, rest));
    }
}

/// Fills `to` with the results of a row of `S`, which is in the order of `T`'s pairs, if it is not of `T`s itself.
#[inline(always)]
pub fn fill<S: Float, T: Float<Real = S::Real>, I: Isa>(
    isa: I,
    row: &[S],
    by: &impl Result<S::Real>,
    to: &mut [T],
) {
    let (groups, rest) = row[..to.len()].as_chunks();
    let (pairs, single) = groups.as_chunks();
    let (to_groups, to_rest) = to.as_chunks_mut();
    let (to_pairs, to_single) = to_groups.as_chunks_mut();
    for (i, (to, pair)) in to_pairs.iter_mut().zip(pairs).enumerate() {
        let [low, high] = S::wide_pair(isa, pair);
        T::narrow_pair(isa, [by.result(isa, 2 * i, low), by.result(isa, 2 * i + 1, high)], to);
    }
    if let ([to], [group]) = (to_single, single) {
        T::narrow(isa, &by.result(isa, 2 * pairs.len(), wide(isa, group)), to);
    }
    if !rest.is_empty() {
        let results = by.result(isa, groups.len(), wide_rest(isa, rest));
        narrow_rest(isa, &results, to_rest);
    }
}

/// [`Visit`] of two rows at once.
pub trait VisitBoth<R> {
    fn visit<I: Isa>(&mut self, isa: I, place: usize, x: [R; LANES], y: [R; LANES]);
}

/// [`Result`] of two rows.
pub trait ResultOfBoth<R> {
    fn result<I: Isa>(&self, isa: I, place: usize, x: [R; LANES], y: [R; LANES]) -> [R; LANES];
}

#[inline(always)]
pub fn visit_both<T: Float, I: Isa>(isa: I, x: &[T], y: &[T], by: &mut impl VisitBoth<T::Real>) {
    let ((groups, rest), (y_groups, y_rest)) = (x.as_chunks(), y.as_chunks());
    let ((pairs, single), (y_pairs, y_single)) = (groups.as_chunks(), y_groups.as_chunks());
    for (i, (x, y)) in pairs.iter().zip(y_pairs).enumerate() {
        let (x, y) = (T::wide_pair(isa, x), T::wide_pair(isa, y));
        by.visit(isa, 2 * i, x[0], y[0]);
        by.visit(isa, 2 * i + 1, x[1], y[1]);
    }
    if let ([x], [y]) = (single, y_single) {
        by.visit(isa, 2 * pairs.len(), wide(isa, x), wide(isa, y));
    }
    if !rest.is_empty() {
        by.visit(isa, groups.len(), wide_rest(isa, rest), wide_rest(isa, y_rest));
    }
}

#[inline(always)]
pub fn fill_of_both<T: Float, O: Float<Real = T::Real>, I: Isa>(
    isa: I,
    x: &[T],
    y: &[T],
    by: &impl ResultOfBoth<T::Real>,
    to: &mut [O],
) {
    let ((groups, rest), (y_groups, y_rest)) = (x.as_chunks(), y.as_chunks());
    let ((pairs, single), (y_pairs, y_single)) = (groups.as_chunks(), y_groups.as_chunks());
    let (to_groups, to_rest) = to.as_chunks_mut();
    let (to_pairs, to_single) = to_groups.as_chunks_mut();
    for (i, (to, (x, y))) in to_pairs.iter_mut().zip(pairs.iter().zip(y_pairs)).enumerate() {
        let (x, y) = (T::wide_pair(isa, x), T::wide_pair(isa, y));
        let results = [by.result(isa, 2 * i, x[0], y[0]), by.result(isa, 2 * i + 1, x[1], y[1])];
        narrow_pair::<T, O, I>(isa, results, to);
    }
    if let ([to], ([x], [y])) = (to_single, (single, y_single)) {
        O::narrow(isa, &by.result(isa, 2 * pairs.len(), wide(isa, x), wide(isa, y)), to);
    }
    if !rest.is_empty() {
        let results = by.result(isa, groups.len(), wide_rest(isa, rest), wide_rest(isa, y_rest));
        narrow_rest(isa, &results, to_rest);
    }
}
