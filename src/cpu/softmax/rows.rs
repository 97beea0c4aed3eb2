//! Row by row, through a buffer of the arithmetic type.

use super::*;
use crate::cpu::isa::{Kernel, dispatch};
use crate::cpu::widened;

/// Elements of a row that are kept widened at a time: 64 KiB of float32, well within the second-level
/// cache. A longer row is visited in pieces of this size.
const PIECE: usize = 16384;

/// Groups of lanes whose sum is formed in the arithmetic type before it goes into a float64: 16 roundings at
/// most are added to those of the exponentials, however long the row.
const GROUPS: usize = 16;

pub fn solve<T: Float>(problem: &SoftmaxProblem) {
    let shape = concat(&problem.rows, &[problem.length]);
    let x_strides = concat(&problem.x.strides, &[problem.x_stride]);
    let out_strides = concat(&problem.out.strides, &[problem.out_stride]);
    let (x, out) = operands::<T>(problem, &shape, &x_strides, &out_strides);
    let (rows, length) = (problem.row_count() as usize, problem.length as usize);
    let rows_of = Rows { x: &x, out: &out, kind: problem.kind, length };
    let nanoseconds = rows as f64 * (30.0 + 0.5 * length as f64);
    if length <= PIECE {
        parallel::for_ranges(rows, 1, nanoseconds, |range| dispatch(Short { rows: rows_of, range }));
    } else {
        for_units(rows, 2, nanoseconds, |row, parallel| long(rows_of, row, parallel));
    }
}

struct Rows<'a, T> {
    x: &'a Source<T>,
    out: &'a Target<T>,
    kind: Kind,
    length: usize,
}

impl<T> Clone for Rows<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Rows<'_, T> {}

impl<T: Float> Rows<'_, T> {
    /// Widens the elements from `start` on; the last group is filled up with -inf, which adds nothing.
    #[inline(always)]
    fn load<I: Isa>(&self, isa: I, start: usize, len: usize, to: &mut Vec<[T::Real; LANES]>) {
        to.resize(len.div_ceil(LANES), [T::Real::NEG_INFINITY; LANES]);
        let (values, padding) = to.as_flattened_mut().split_at_mut(len);
        padding.fill(T::Real::NEG_INFINITY);
        widened::load(isa, self.x, start, values);
    }

    #[inline(always)]
    fn store<I: Isa>(&self, isa: I, start: usize, from: &[T::Real]) {
        // SAFETY: every row, and every piece of one, is visited by one thread, which holds no other slice.
        unsafe { widened::store(isa, self.out, start, from) };
    }
}

#[inline(always)]
fn maximum<R: Exp>(values: &[[R; LANES]]) -> R {
    // Four accumulators, to hide the latency of the comparison.
    let (fours, rest) = values.as_chunks::<4>();
    let mut maxima = [[R::NEG_INFINITY; LANES]; 4];
    for four in fours {
        for (m, &v) in maxima.iter_mut().zip(four) {
            *m = larger(*m, v);
        }
    }
    let [mut a, b, c, d] = maxima;
    for &other in [b, c, d].iter().chain(rest) {
        a = larger(a, other);
    }
    a.into_iter().fold(R::NEG_INFINITY, |a, b| if b > a { b } else { a })
}

/// The sum of e^(x - maximum), each kept in place of its x if `keep`.
#[inline(always)]
fn exponentials<R: Exp, I: Isa, const KEEP: bool>(isa: I, values: &mut [[R; LANES]], maximum: R) -> f64 {
    let base = base(maximum);
    let mut total = [0.0f64; LANES];
    for groups in values.chunks_mut(GROUPS) {
        let mut sum = [R::default(); LANES];
        for group in groups {
            let e = group.map(|x| R::exp_difference(isa, x, base));
            for (s, e) in sum.iter_mut().zip(e) {
                *s = *s + e;
            }
            if KEEP {
                *group = e;
            }
        }
        for (t, s) in total.iter_mut().zip(sum) {
            *t += s.to_f64();
        }
    }
    total.iter().sum()
}

/// Rows that are solved in a single visit.
struct Short<'a, T> {
    rows: Rows<'a, T>,
    range: std::ops::Range<usize>,
}

impl<T: Float> Kernel for Short<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let rows = self.rows;
        let length = rows.length;
        let mut values = Vec::new();
        for row in self.range {
            rows.load(isa, row * length, length, &mut values);
            let m = maximum(&values);
            let sum = match rows.kind {
                Kind::Softmax => exponentials::<_, _, true>(isa, &mut values, m),
                Kind::LogSoftmax => exponentials::<_, _, false>(isa, &mut values, m),
            };
            let finishing = finishing(rows.kind, sum);
            match rows.kind {
                Kind::Softmax => scale(&mut values, finishing),
                Kind::LogSoftmax => subtract(&mut values, base(m), finishing),
            }
            rows.store(isa, row * length, &values.as_flattened()[..length]);
        }
    }
}

#[inline(always)]
fn scale<R: Exp>(values: &mut [[R; LANES]], factor: R) {
    for v in values.as_flattened_mut() {
        *v = *v * factor;
    }
}

#[inline(always)]
fn subtract<R: Exp>(values: &mut [[R; LANES]], maximum: R, shift: R) {
    for v in values.as_flattened_mut() {
        *v = (*v - maximum) - shift;
    }
}

/// A row in pieces.
fn long<T: Float>(rows: Rows<'_, T>, row: usize, parallel: bool) {
    let pieces = rows.length.div_ceil(PIECE);
    let piece = |i: usize| (row * rows.length + i * PIECE, PIECE.min(rows.length - i * PIECE));
    let parts = parallel::map(pieces, parallel, |i| {
        let (start, len) = piece(i);
        dispatch(Survey { rows, start, len })
    });
    let (m, sum) = dispatch(Combine(&parts));
    let finishing = finishing(rows.kind, sum);
    parallel::for_each(pieces, parallel, |i| {
        let (start, len) = piece(i);
        dispatch(Write { rows, start, len, maximum: m, finishing });
    });
}

/// The maximum of a piece and its sum of exponentials relative to that.
struct Survey<'a, T> {
    rows: Rows<'a, T>,
    start: usize,
    len: usize,
}

impl<T: Float> Kernel for Survey<'_, T> {
    type Output = (T::Real, f64);

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> (T::Real, f64) {
        let mut values = Vec::new();
        self.rows.load(isa, self.start, self.len, &mut values);
        let m = maximum(&values);
        (m, exponentials::<_, _, false>(isa, &mut values, m))
    }
}

struct Combine<'a, R>(&'a [(R, f64)]);

impl<R: Exp> Kernel for Combine<'_, R> {
    type Output = (R, f64);

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> (R, f64) {
        let m = self.0.iter().fold(R::NEG_INFINITY, |m, part| if part.0 > m { part.0 } else { m });
        (m, self.0.iter().map(|&(own, sum)| rescaled(isa, sum, own, m)).sum())
    }
}

struct Write<'a, T: Float> {
    rows: Rows<'a, T>,
    start: usize,
    len: usize,
    maximum: T::Real,
    finishing: T::Real,
}

impl<T: Float> Kernel for Write<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let base = base(self.maximum);
        let mut values = Vec::new();
        self.rows.load(isa, self.start, self.len, &mut values);
        match self.rows.kind {
            Kind::Softmax => {
                for group in &mut values {
                    *group = group.map(|x| T::Real::exp_difference(isa, x, base) * self.finishing);
                }
            }
            Kind::LogSoftmax => subtract(&mut values, base, self.finishing),
        }
        self.rows.store(isa, self.start, &values.as_flattened()[..self.len]);
    }
}
