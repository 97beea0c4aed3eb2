//! What is done with groups of columns.

use super::groups::{self, Visit};
use super::*;
use crate::cpu::float::{Real, add_groups};

pub type Groups<R> = [[R; LANES]];

/// The largest of each column, NaNs aside: those come back through the sums.
pub struct Raise<'a, R>(pub &'a mut Groups<R>);

impl<R: Exp> Visit<R> for Raise<'_, R> {
    #[inline(always)]
    fn visit<I: Isa>(&mut self, isa: I, place: usize, x: [R; LANES]) {
        self.0[place] = R::larger(isa, self.0[place], x);
    }
}

/// The same, and the elements themselves.
pub struct Keep<'a, R> {
    pub maxima: &'a mut Groups<R>,
    pub values: &'a mut Groups<R>,
}

impl<R: Exp> Visit<R> for Keep<'_, R> {
    #[inline(always)]
    fn visit<I: Isa>(&mut self, isa: I, place: usize, x: [R; LANES]) {
        self.maxima[place] = R::larger(isa, self.maxima[place], x);
        self.values[place] = x;
    }
}

/// Adds up e^(x - base), lifted.
pub struct SumUp<'a, T: Float> {
    pub bases: &'a Groups<T::Real>,
    pub sums: &'a mut Groups<T::Real>,
}

impl<T: Float> Visit<T::Real> for SumUp<'_, T> {
    #[inline(always)]
    fn visit<I: Isa>(&mut self, isa: I, place: usize, x: [T::Real; LANES]) {
        let exponentials = exponentials::<T, I>(isa, x, self.bases[place]);
        self.sums[place] = add_groups(self.sums[place], exponentials);
    }
}

/// Differences from a maximum need no correction of float16 and bfloat16: they are exact, or as exact as the result that
/// they are rounded to.
#[inline(always)]
pub fn exponentials<T: Float, I: Isa>(
    isa: I,
    x: [T::Real; LANES],
    bases: [T::Real; LANES],
) -> [T::Real; LANES] {
    if is_half::<T>() { lifted::<T, I, true>(isa, x, bases) } else { lifted::<T, I, false>(isa, x, bases) }
}

/// What a group of columns is finished by.
pub struct Finish<'a, T: Float> {
    pub maxima: &'a Groups<T::Real>,
    pub bases: &'a Groups<T::Real>,
    pub finishing: &'a Groups<T::Real>,
}

/// Exponentials times a factor.
#[inline(always)]
pub fn scaled<R: Exp>(mut exponentials: [R; LANES], factors: [R; LANES]) -> [R; LANES] {
    for i in 0..LANES {
        exponentials[i] = exponentials[i] * factors[i] * R::LOWERING;
    }
    exponentials
}

/// Results from exponentials.
pub struct Scale<'a, T: Float>(pub Finish<'a, T>);

impl<T: Float> groups::Result<T::Real> for Scale<'_, T> {
    #[inline(always)]
    fn result<I: Isa>(&self, _: I, place: usize, x: [T::Real; LANES]) -> [T::Real; LANES] {
        scaled(x, self.0.finishing[place])
    }
}

/// Results of softmax from x.
pub struct Softmax<'a, T: Float>(pub Finish<'a, T>);

impl<T: Float> groups::Result<T::Real> for Softmax<'_, T> {
    #[inline(always)]
    fn result<I: Isa>(&self, isa: I, place: usize, x: [T::Real; LANES]) -> [T::Real; LANES] {
        scaled(exponentials::<T, I>(isa, x, self.0.bases[place]), self.0.finishing[place])
    }
}

/// Results of log_softmax from x.
pub struct LogSoftmax<'a, T: Float>(pub Finish<'a, T>);

impl<T: Float> groups::Result<T::Real> for LogSoftmax<'_, T> {
    #[inline(always)]
    fn result<I: Isa>(&self, _: I, place: usize, x: [T::Real; LANES]) -> [T::Real; LANES] {
        shifted(x, self.0.maxima[place], self.0.finishing[place])
    }
}

/// Results of log_softmax.
#[inline(always)]
pub fn shifted<R: Exp>(mut x: [R; LANES], maxima: [R; LANES], shifts: [R; LANES]) -> [R; LANES] {
    for i in 0..LANES {
        x[i] = (x[i] - maxima[i]) - shifts[i];
    }
    x
}

/// What exponentials are relative to. Those of -inf - 0 vanish, where -inf - -inf were NaN.
#[inline(always)]
pub fn bases_of<R: Exp>(mut maxima: [R; LANES]) -> [R; LANES] {
    for base in &mut maxima {
        *base = if *base == R::NEG_INFINITY { R::default() } else { *base };
    }
    maxima
}

/// The same of all columns. Not in place, where LLVM would store by a mask.
#[inline(always)]
pub fn bases<R: Exp>(maxima: &Groups<R>) -> Vec<[R; LANES]> {
    let mut bases = vec![[R::default(); LANES]; maxima.len()];
    for (base, &maxima) in bases.iter_mut().zip(maxima) {
        *base = bases_of(maxima);
    }
    bases
}

/// So many of a value, in memory that is used again.
#[inline(always)]
pub fn fill<V: Copy>(all: &mut Vec<V>, count: usize, value: V) {
    all.clear();
    all.resize(count, value);
}

/// Moves the sums of a few rows to the totals.
#[inline(always)]
pub fn add_up<R: Real>(totals: &mut [f64], sums: &mut Groups<R>) {
    for (total, sum) in totals.iter_mut().zip(sums.as_flattened()) {
        *total += sum.to_f64();
    }
    sums.fill([R::default(); LANES]);
}

/// Sums of what was lifted, of columns of these maxima.
#[inline(always)]
pub fn lower<R: Exp>(totals: &mut [f64], maxima: &Groups<R>) {
    for (total, &m) in totals.iter_mut().zip(maxima.as_flattened()) {
        // NaN stays.
        let vanishes = m == R::NEG_INFINITY && *total >= 0.0;
        *total = if vanishes { 0.0 } else { *total * R::LOWERING.to_f64() };
    }
}

/// What finishes the elements of a group of columns with these sums, as [`super::finishing`].
#[inline(always)]
pub fn finishing_of<R: Exp, I: Isa>(isa: I, kind: Kind, sums: &[f64; LANES]) -> [R; LANES] {
    let mut group = [R::default(); LANES];
    for (finishing, &sum) in group.iter_mut().zip(sums) {
        *finishing = super::finishing(isa, kind, sum);
    }
    group
}

/// The same of all columns.
#[inline(always)]
pub fn finishing<R: Exp, I: Isa>(isa: I, kind: Kind, sums: &[f64]) -> Vec<[R; LANES]> {
    let mut all = vec![[R::default(); LANES]; sums.len() / LANES];
    for (finishing, sums) in all.iter_mut().zip(sums.as_chunks().0) {
        *finishing = finishing_of(isa, kind, sums);
    }
    all
}
