//! Row by row, through a buffer of the arithmetic type.

use super::*;
use crate::cpu::float::pairwise;
use crate::cpu::isa::{Kernel, LANES, dispatch};
use crate::cpu::widened;

/// Longest row that is solved in a single visit: 256 KiB of float32, well within the second-level cache.
pub const SHORT: usize = 65536;

/// Elements that a longer row is visited in at a time.
pub const PIECE: usize = 16384;

/// Groups of elements whose sum is formed in the arithmetic type before it goes into a float64: 16 roundings at
/// most are added to those of the exponentials, however long the row.
pub const GROUPS: usize = 16;

pub fn solve<T: Float>(problem: &SoftmaxProblem) -> Result<()> {
    let shape = concat(&problem.rows, &[problem.length]);
    let x_strides = concat(&problem.x.strides, &[problem.x_stride]);
    let out_strides = concat(&problem.out.strides, &[problem.out_stride]);
    let (x, out) = operands::<T>(problem, &shape, &x_strides, &out_strides);
    let (rows, length) = (problem.row_count() as usize, problem.length as usize);
    let rows_of = Rows { x: &x, out: &out, kind: problem.kind, length };
    let nanoseconds = rows as f64 * (30.0 + 0.5 * length as f64);
    if length <= SHORT {
        parallel::for_ranges(rows, 1, nanoseconds, |range| dispatch(Short { rows: rows_of, range }));
        return Ok(());
    }
    for_units(problem.kind.name(), rows, length.div_ceil(PIECE), nanoseconds, |parts, row, parallel| {
        long(rows_of, parts, row, parallel);
    })
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
    /// Writes `values`, times `factor`.
    #[inline(always)]
    fn store_scaled<I: Isa>(&self, isa: I, start: usize, values: &mut [T::Real], factor: T::Real) {
        // SAFETY: every row, and every piece of one, is visited by one thread, which holds no other slice.
        match unsafe { self.out.slice(start, values.len()) } {
            Some(slice) => T::narrow_scaled(isa, values, factor, slice),
            None => {
                for v in &mut *values {
                    *v = *v * factor;
                }
                // SAFETY: as above, and no slice is held at all.
                unsafe { widened::store(isa, self.out, start, values) };
            }
        }
    }

    /// Writes `values`.
    #[inline(always)]
    fn store<I: Isa>(&self, isa: I, start: usize, values: &[T::Real]) {
        // SAFETY: as in `store_scaled`.
        unsafe { widened::store(isa, self.out, start, values) };
    }
}

/// values = x - maximum - shift.
#[inline(always)]
fn shifted<R: Exp>(x: &[R], maximum: R, shift: R, values: &mut [R]) {
    for (v, &x) in values.iter_mut().zip(x) {
        *v = (x - maximum) - shift;
    }
}

/// What a thread widens and computes in.
struct Scratch<R> {
    wide: Vec<R>,
    values: Vec<R>,
}

impl<R> Scratch<R> {
    fn new() -> Scratch<R> {
        Scratch { wide: Vec::new(), values: Vec::new() }
    }
}

/// The largest of `x`. Some NaNs count as large and some as small, but none is lost: they come back through
/// the sums.
#[inline(always)]
fn maximum<R: Exp>(x: &[R]) -> R {
    let mut largest = R::NEG_INFINITY.key();
    for v in x {
        largest = largest.max(v.key());
    }
    R::from_key(largest)
}

/// Fills `values` with e^(x - base) and sums them up.
#[inline(always)]
fn exponentials<R: Exp, I: Isa>(isa: I, x: &[R], base: R, values: &mut [R]) -> f64 {
    let ((x, x_rest), (values, values_rest)) = (x.as_chunks(), values.as_chunks_mut());
    let mut total = [0.0f64; LANES];
    for (x, values) in x.chunks(GROUPS).zip(values.chunks_mut(GROUPS)) {
        let mut sum = [R::default(); LANES];
        for (x, v) in x.iter().zip(values) {
            exponentials_of_group(isa, x, base, v, &mut sum);
        }
        for i in 0..LANES {
            total[i] += sum[i].to_f64();
        }
    }
    if !x_rest.is_empty() {
        let mut x = [R::NEG_INFINITY; LANES];
        x[..x_rest.len()].copy_from_slice(x_rest);
        let (mut v, mut sum) = ([R::default(); LANES], [R::default(); LANES]);
        exponentials_of_group(isa, &x, base, &mut v, &mut sum);
        values_rest.copy_from_slice(&v[..x_rest.len()]);
        for i in 0..LANES {
            total[i] += sum[i].to_f64();
        }
    }
    pairwise(total)
}

#[inline(always)]
fn exponentials_of_group<R: Exp, I: Isa>(
    isa: I,
    x: &[R; LANES],
    base: R,
    values: &mut [R; LANES],
    sum: &mut [R; LANES],
) {
    for i in 0..LANES {
        values[i] = R::exp_difference(isa, x[i], base);
        sum[i] = sum[i] + values[i];
    }
}

/// Rows that are solved in a single visit.
struct Short<'a, T> {
    rows: Rows<'a, T>,
    range: Range<usize>,
}

impl<T: Float> Kernel for Short<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Short { rows, range } = self;
        let len = rows.length;
        let Scratch { mut wide, mut values } = Scratch::new();
        values.resize(len, T::Real::default());
        for row in range {
            let x = widened::read(isa, rows.x, row * len, len, &mut wide);
            let base = base(maximum(x));
            let sum = exponentials(isa, x, base, &mut values);
            let finishing = finishing(rows.kind, sum);
            match rows.kind {
                Kind::Softmax => rows.store_scaled(isa, row * len, &mut values, finishing),
                Kind::LogSoftmax => {
                    shifted(x, base, finishing, &mut values);
                    rows.store(isa, row * len, &values);
                }
            }
        }
    }
}

/// A row in pieces, each of which reports its maximum and its sum.
fn long<T: Float>(rows: Rows<'_, T>, parts: &mut [(T::Real, f64)], row: usize, parallel: bool) {
    let piece = |i: usize| (row * rows.length + i * PIECE, PIECE.min(rows.length - i * PIECE));
    parallel::for_chunks_with(parts, 1, parallel, Scratch::new, |scratch, i, part| {
        let (start, len) = piece(i);
        part.fill(dispatch(Survey { rows, start, len, scratch }));
    });
    let (base, sum) = dispatch(Combine(parts));
    let finishing = finishing(rows.kind, sum);
    parallel::for_each_with(parts.len(), parallel, Scratch::new, |scratch, i| {
        let (start, len) = piece(i);
        dispatch(Write { rows, start, len, scratch, base, finishing });
    });
}

/// The maximum of a piece and its sum of exponentials relative to that.
struct Survey<'a, T: Float> {
    rows: Rows<'a, T>,
    start: usize,
    len: usize,
    scratch: &'a mut Scratch<T::Real>,
}

impl<T: Float> Kernel for Survey<'_, T> {
    type Output = (T::Real, f64);

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> (T::Real, f64) {
        let Survey { rows, start, len, scratch: Scratch { wide, values } } = self;
        let x = widened::read(isa, rows.x, start, len, wide);
        values.resize(len, T::Real::default());
        let m = maximum(x);
        (m, exponentials(isa, x, base(m), values))
    }
}

/// Base and sum of a row, given those of its pieces.
struct Combine<'a, R>(&'a [(R, f64)]);

impl<R: Exp> Kernel for Combine<'_, R> {
    type Output = (R, f64);

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> (R, f64) {
        let (mut m, mut total) = (R::NEG_INFINITY, 0.0);
        for &(own, _) in self.0 {
            m = if own > m { own } else { m };
        }
        for &(own, sum) in self.0 {
            total += rescaled(isa, sum, own, m);
        }
        (base(m), total)
    }
}

struct Write<'a, T: Float> {
    rows: Rows<'a, T>,
    start: usize,
    len: usize,
    scratch: &'a mut Scratch<T::Real>,
    base: T::Real,
    finishing: T::Real,
}

impl<T: Float> Kernel for Write<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Write { rows, start, len, scratch: Scratch { wide, values }, base, finishing } = self;
        let x = widened::read(isa, rows.x, start, len, wide);
        values.resize(len, T::Real::default());
        match rows.kind {
            Kind::Softmax => {
                exponentials(isa, x, base, values);
                rows.store_scaled(isa, start, values, finishing);
            }
            Kind::LogSoftmax => {
                shifted(x, base, finishing, values);
                rows.store(isa, start, values);
            }
        }
    }
}
