//! Row by row, through a buffer of the arithmetic type.

use std::cell::RefCell;

use smallvec::{SmallVec, smallvec};

use super::*;
use crate::cpu::float::{Real, TailMask, add_groups, add_to_totals, last_group, wide_groups};
use crate::cpu::isa::{Kernel, LANES, dispatch};
use crate::cpu::memory::Memory;
use crate::cpu::streaming::Fill;
use crate::cpu::widened;

/// Longest row that one thread solves: 256 KiB of float32, well within the second-level cache.
pub const SHORT: usize = 65536;

/// Elements of a piece, of which the first-level cache keeps what is read until its exponentials are there.
pub const PIECE: usize = 2048;

/// Longest row whose exponentials are kept, relative to the maximum of their piece, until the maximum of the row is
/// known, where the output cannot keep them; those of longer ones are computed again.
const KEPT: usize = 1 << 20;

/// Groups of elements whose sum is formed in the arithmetic type before it goes into a float64: 16 roundings at
/// most are added to those of the exponentials, however long the row.
pub const GROUPS: usize = 16;

/// Elements of a row whose sum is formed in the arithmetic type altogether, with as few roundings: short rows take longer to
/// convert than to add up.
const FEW: usize = 12 * LANES;

/// Rows of such a length that are read and written together: a call for each takes longer than the shortest do.
pub fn rows_together<T: Element>(from: &Source<T>, length: usize) -> usize {
    (1024 / length).max(1).next_multiple_of(from.rows_across(length))
}

pub fn solve<T: Float>(problem: &SoftmaxProblem) -> Result<()> {
    let (x, mut out) = operands::<T>(problem, |rows, along| concat(rows, &[along]));
    let (rows, length) = (problem.row_count() as usize, problem.length as usize);
    let in_place = problem.x.address == problem.out.address;
    if !in_place {
        out.stream(x.bytes());
    }
    let rows_of = Rows { x: &x, out: &out, in_place, kind: problem.kind, length };
    let nanoseconds = rows as f64 * (10.0 + 0.5 * length as f64);
    if length <= SHORT {
        parallel::for_ranges(rows, rows_together(&x, length), nanoseconds, |range| {
            dispatch(Short { rows: rows_of, range });
        });
        return Ok(());
    }
    let (op, pieces) = (problem.kind.name(), length.div_ceil(PIECE));
    for_units(op, rows, pieces, long_together(length), nanoseconds, |parts, rows, parallel| {
        long(rows_of, parts, rows, parallel);
    })
}

/// How many long rows go through both loops together: as many as stay in the threads' second-level caches from the first loop to the
/// second. None of those that go alone.
pub fn long_together(length: usize) -> usize {
    // Elements that a thread's cache keeps.
    const EACH: usize = 1 << 16;
    parallel::threads() * EACH / length
}

struct Rows<'a, T> {
    x: &'a Source<T>,
    out: &'a Target<T>,
    /// Whether they are the same memory.
    in_place: bool,
    kind: Kind,
    length: usize,
}

impl<T> Clone for Rows<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Rows<'_, T> {}

impl<'a, T: Float> Rows<'a, T> {
    /// Output to compute in.
    #[inline(always)]
    fn memory(&self, start: usize, len: usize) -> Option<&'a mut [T::Real]> {
        if self.in_place {
            return None;
        }
        // SAFETY: rows, and pieces of one, are visited by one thread at a time, which holds no other slice of them.
        unsafe { self.out.slice(start, len) }.and_then(T::as_reals)
    }

    /// Writes exponentials, times `factor`.
    #[inline(always)]
    fn store_scaled<I: Isa>(&self, isa: I, start: usize, values: &mut [T::Real], factor: T::Real) {
        if self.out.reach(start) >= values.len() {
            // SAFETY: as in `memory`.
            return unsafe { self.out.fill(isa, start, values.len(), &Lowered { values, factor }) };
        }
        scale(values, factor);
        // SAFETY: as above, and no slice is held at all.
        unsafe { widened::store(isa, self.out, start, values) };
    }

    /// Writes `values`.
    #[inline(always)]
    fn store<I: Isa>(&self, isa: I, start: usize, values: &[T::Real]) {
        // SAFETY: as in `memory`.
        unsafe { widened::store(isa, self.out, start, values) };
    }
}

/// Exponentials times `factor`, rounded.
struct Lowered<'a, R> {
    values: &'a [R],
    factor: R,
}

impl<T: Float> Fill<T> for Lowered<'_, T::Real> {
    #[inline(always)]
    fn fill<I: Isa>(&self, isa: I, range: Range<usize>, to: &mut [T]) {
        T::narrow_lowered(isa, &self.values[range], self.factor, to);
    }
}

/// Exponentials times `factor`.
#[inline(always)]
fn scale<R: Exp>(values: &mut [R], factor: R) {
    for v in values {
        *v = *v * factor * R::LOWERING;
    }
}

/// values = x - maximum - shift.
#[inline(always)]
fn shifted<R: Exp>(x: &[R], maximum: R, shift: R, values: &mut [R]) {
    for (v, &x) in values.iter_mut().zip(x) {
        *v = (x - maximum) - shift;
    }
}

/// What a thread gathers, widens and computes in.
struct Scratch<T: Float> {
    elements: Vec<T>,
    wide: Vec<T::Real>,
    values: Vec<T::Real>,
}

impl<T: Float> Scratch<T> {
    fn new() -> Scratch<T> {
        Scratch { elements: Vec::new(), wide: Vec::new(), values: Vec::new() }
    }
}

/// The largest and the smallest of `x`, NaNs aside: those come back through the sums. Of halves no smallest is needed.
#[inline(always)]
fn extremes<T: Float, I: Isa>(isa: I, x: &[T::Real]) -> (T::Real, T::Real) {
    let Some(last) = x.last_chunk::<LANES>() else {
        return x.iter().fold((T::Real::NEG_INFINITY, -T::Real::NEG_INFINITY), |(largest, smallest), &v| {
            (if v > largest { v } else { largest }, if v < smallest { v } else { smallest })
        });
    };
    // Two of each, since a register waits for the comparison before. Elements may be looked at twice.
    let mut largest =
        [[T::Real::NEG_INFINITY; LANES], T::Real::larger(isa, [T::Real::NEG_INFINITY; LANES], *last)];
    let mut smallest = [smaller([-T::Real::NEG_INFINITY; LANES], *last); 2];
    for pair in x.as_chunks::<LANES>().0.as_chunks::<2>().0 {
        for i in 0..2 {
            largest[i] = T::Real::larger(isa, largest[i], pair[i]);
            if !is_half::<T>() {
                smallest[i] = smaller(smallest[i], pair[i]);
            }
        }
    }
    // What no pair holds.
    if let Some(group) = x.as_chunks::<LANES>().0.last() {
        largest[0] = T::Real::larger(isa, largest[0], *group);
        smallest[0] = smaller(smallest[0], *group);
    }
    (
        T::Real::largest_of_lanes(isa, T::Real::larger(isa, largest[0], largest[1])),
        smallest_of_lanes(isa, smaller(smallest[0], smallest[1])),
    )
}

/// By value, as [`add_groups`].
#[inline(always)]
fn smaller<R: Exp>(mut smallest: [R; LANES], x: [R; LANES]) -> [R; LANES] {
    for i in 0..LANES {
        smallest[i] = if x[i] < smallest[i] { x[i] } else { smallest[i] };
    }
    smallest
}

/// The smallest of a group without NaNs.
#[inline(always)]
fn smallest_of_lanes<R: Exp, I: Isa>(isa: I, group: [R; LANES]) -> R {
    // No loop over references, which LLVM would keep in memory.
    let mut negative = [R::default(); LANES];
    for i in 0..LANES {
        negative[i] = -group[i];
    }
    -R::largest_of_lanes(isa, negative)
}

/// Fills `values` with e^(x - m), lifted, and sums up what that is.
#[inline(always)]
fn exponentials<T: Float, I: Isa, const NEAR: bool>(
    isa: I,
    x: &[T::Real],
    m: T::Real,
    values: &mut [T::Real],
) -> f64 {
    if m == T::Real::NEG_INFINITY {
        values.fill(T::Real::default());
        // NaN if there is one, which is not less than any.
        return if x.iter().all(|&v| v <= m) { 0.0 } else { f64::NAN };
    }
    let mut total = [0.0f64; LANES];
    let mut sum = [T::Real::default(); LANES];
    let groups = x.as_chunks().0.chunks(GROUPS).zip(values.as_chunks_mut().0.chunks_mut(GROUPS));
    for (i, (x, values)) in groups.enumerate() {
        if i > 0 {
            add_to_totals(&mut total, sum);
        }
        sum = [T::Real::default(); LANES];
        for (x, v) in x.iter().zip(values) {
            // Not read back from memory, which LLVM would do in pieces.
            let group = lifted::<T, I, NEAR>(isa, *x, [m; LANES]);
            *v = group;
            sum = add_groups(sum, group);
        }
    }
    if let (Some((x, again)), Some(v)) = (last_group(x), values.last_chunk_mut()) {
        if again > 0 {
            let group = lifted::<T, I, NEAR>(isa, *x, [m; LANES]);
            *v = group;
            sum = add_groups(sum, TailMask::new(again).apply(group));
        }
    } else {
        let group = lifted::<T, I, NEAR>(isa, isa.load_rest(x), [m; LANES]);
        isa.store_rest(group, values);
        for i in 0..LANES {
            sum[i] = group[i].masked(T::Real::mask(i < x.len()));
        }
    }
    let total = if x.len() <= FEW {
        T::Real::sum_of_lanes(isa, sum).to_f64()
    } else {
        add_to_totals(&mut total, sum);
        isa.sum_f64(total)
    };
    total * T::Real::LOWERING.to_f64()
}

/// The rounding error of a difference as small is at most half a millionth of its exponential.
const NEAR: f64 = 16.0;

/// The sum of exponentials relative to the largest, given that and the smallest, which fill `values`.
#[inline(always)]
fn sum_up<T: Float, I: Isa>(
    isa: I,
    x: &[T::Real],
    (m, smallest): (T::Real, T::Real),
    values: &mut [T::Real],
) -> f64 {
    let near = T::DTYPE == DType::F32 && m - smallest <= T::Real::from_element(NEAR);
    if is_half::<T>() || near {
        exponentials::<T, I, true>(isa, x, m, values)
    } else {
        exponentials::<T, I, false>(isa, x, m, values)
    }
}

/// The maximum of a piece, and the sum of its exponentials relative to that, which fill `values`.
#[inline(always)]
fn survey<T: Float, I: Isa>(isa: I, x: &[T::Real], values: &mut [T::Real]) -> (T::Real, f64) {
    let found = extremes::<T, I>(isa, x);
    (found.0, sum_up::<T, I>(isa, x, found, values))
}

/// What is found of rows that are solved together.
struct Together<R> {
    /// The largest and the smallest.
    extremes: SmallVec<[(R, R); 4]>,
    sums: SmallVec<[f64; 4]>,
    finishing: SmallVec<[R; 4]>,
}

impl<R: Exp> Together<R> {
    fn new(rows: usize) -> Together<R> {
        let zero = R::default();
        Together {
            extremes: smallvec![(zero, zero); rows],
            sums: smallvec![0.0; rows],
            finishing: smallvec![zero; rows],
        }
    }
}

/// Several rows of a piece at most, step by step: what one of them waits for does not hold up the others.
#[inline(always)]
fn solve_together<T: Float, I: Isa>(
    isa: I,
    kind: Kind,
    length: usize,
    x: &[T::Real],
    values: &mut [T::Real],
    found: &mut Together<T::Real>,
) {
    let Together { extremes, sums, .. } = found;
    for (x, found) in x.chunks_exact(length).zip(&mut *extremes) {
        *found = self::extremes::<T, I>(isa, x);
    }
    let rows = x.chunks_exact(length).zip(values.chunks_exact_mut(length));
    for ((x, values), (&found, sum)) in rows.zip(extremes.iter().zip(&mut *sums)) {
        *sum = sum_up::<T, I>(isa, x, found, values);
    }
    finish_together(isa, kind, length, x, values, found);
}

/// The results of these rows, from their sums, and softmax's from their exponentials.
#[inline(always)]
fn finish_together<R: Exp, I: Isa>(
    isa: I,
    kind: Kind,
    length: usize,
    x: &[R],
    values: &mut [R],
    Together { extremes, sums, finishing }: &mut Together<R>,
) {
    for (finishing, &sum) in finishing.iter_mut().zip(&*sums) {
        *finishing = super::finishing(isa, kind, sum);
    }
    let rows = x.chunks_exact(length).zip(values.chunks_exact_mut(length));
    for ((x, values), (&(m, _), &mut finishing)) in rows.zip(extremes.iter().zip(finishing)) {
        match kind {
            Kind::Softmax => {
                // In one: no sum is so large that the factor would not be a normal number.
                let factor = finishing * R::LOWERING;
                for v in values {
                    *v = *v * factor;
                }
            }
            Kind::LogSoftmax => shifted(x, m, finishing, values),
        }
    }
}

/// Rows of N groups, in registers from their maximum to their sum, and softmax's to their results: one or two, which leave
/// little to wait for.
#[inline(always)]
fn rows_of_groups<T: Float, I: Isa, const N: usize>(
    isa: I,
    kind: Kind,
    length: usize,
    x: &[T::Real],
    values: &mut [T::Real],
    found: &mut Together<T::Real>,
) {
    let tail = TailMask::new(N * LANES - length);
    let rows = x.chunks_exact(length).zip(values.chunks_exact_mut(length));
    for ((row, values), (extremes, total)) in rows.zip(found.extremes.iter_mut().zip(&mut found.sums)) {
        let x = wide_groups::<T::Real, I, N>(isa, row);
        let mut largest = [T::Real::NEG_INFINITY; LANES];
        let mut smallest = [-T::Real::NEG_INFINITY; LANES];
        for group in &x {
            largest = T::Real::larger(isa, largest, *group);
            if T::DTYPE == DType::F32 {
                smallest = smaller(smallest, *group);
            }
        }
        let m = T::Real::largest_of_lanes(isa, largest);
        if m == T::Real::NEG_INFINITY {
            (*extremes, *total) = ((m, m), 0.0);
            values.fill(T::Real::from_element(f64::NAN));
            continue;
        }
        let mut near = is_half::<T>();
        if T::DTYPE == DType::F32 {
            near = m - smallest_of_lanes(isa, smallest) <= T::Real::from_element(NEAR);
        }
        let mut exponentials = x;
        for i in 0..N {
            exponentials[i] = if near {
                lifted::<T, I, true>(isa, x[i], [m; LANES])
            } else {
                lifted::<T, I, false>(isa, x[i], [m; LANES])
            };
        }
        let mut sum = tail.apply(exponentials[N - 1]);
        for group in &exponentials[..N - 1] {
            sum = add_groups(sum, *group);
        }
        let sum = T::Real::sum_of_lanes(isa, sum).to_f64() * T::Real::LOWERING.to_f64();
        if kind == Kind::LogSoftmax {
            (*extremes, *total) = ((m, m), sum);
            continue;
        }
        scale(exponentials.as_flattened_mut(), T::Real::from_element(reciprocal(sum)));
        for i in 0..N {
            let to = if i + 1 < N {
                values[i * LANES..].first_chunk_mut::<LANES>()
            } else {
                values.last_chunk_mut()
            };
            if let Some(to) = to {
                *to = exponentials[i];
            }
        }
    }
    if kind == Kind::LogSoftmax {
        finish_together(isa, kind, length, x, values, found);
    }
}

/// Maximum and sum of a row, given those of its pieces.
#[inline(always)]
fn combined<R: Exp>(parts: &[(R, f64)]) -> (R, f64) {
    let (mut m, mut total) = (R::NEG_INFINITY, 0.0);
    for &(own, _) in parts {
        m = if own > m { own } else { m };
    }
    for &(own, sum) in parts {
        total += rescaled(sum, own, m);
    }
    (m, total)
}

/// What turns exponentials relative to the maximum of their piece into results.
#[inline(always)]
fn factor<R: Exp>(own: R, (m, sum): (R, f64)) -> R {
    R::from_element(rescaled(reciprocal(sum), own, m))
}

/// Rows that one thread solves.
struct Short<'a, T> {
    rows: Rows<'a, T>,
    range: Range<usize>,
}

impl<T: Float> Kernel for Short<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Short { rows, range: Range { start, end } } = self;
        let Scratch { mut elements, mut wide, mut values } = Scratch::<T>::new();
        let (length, together) = (rows.length, rows_together(rows.x, rows.length));
        let mut parts = [(T::Real::default(), 0.0); SHORT / PIECE];
        let mut found = Together::new(together.min(end - start));
        for first in (start..end).step_by(together) {
            let (start, len) = (first * length, together.min(end - first) * length);
            let x = widened::read(isa, rows.x, start, len, (&mut elements, &mut wide));
            let memory = rows.memory(start, len);
            let buffered = memory.is_none();
            let values = memory.unwrap_or_else(|| {
                values.resize(len, T::Real::default());
                &mut values
            });
            if together > 1 && length <= PIECE {
                let kind = rows.kind;
                match length.div_ceil(LANES) {
                    // The logarithm's rows leave more to wait for.
                    1 if length == LANES && kind == Kind::Softmax => {
                        rows_of_groups::<T, I, 1>(isa, kind, length, x, values, &mut found);
                    }
                    2 if length < 2 * LANES => {
                        rows_of_groups::<T, I, 2>(isa, kind, length, x, values, &mut found);
                    }
                    _ => solve_together::<T, I>(isa, kind, length, x, values, &mut found),
                }
                if buffered {
                    rows.store(isa, start, values);
                }
                continue;
            }
            let scaled_while_stored = buffered && together == 1 && rows.kind == Kind::Softmax;
            for (x, values) in x.chunks_exact(length).zip(values.chunks_exact_mut(length)) {
                let row = survey_row::<T, I>(isa, x, values, &mut parts);
                let pieces = values.chunks_mut(PIECE).zip(&parts);
                if rows.kind == Kind::LogSoftmax {
                    shifted(x, row.0, finishing(isa, rows.kind, row.1), values);
                } else if scaled_while_stored {
                    for (i, (values, &(own, _))) in pieces.enumerate() {
                        rows.store_scaled(isa, start + i * PIECE, values, factor(own, row));
                    }
                } else {
                    for (values, &(own, _)) in pieces {
                        scale(values, factor(own, row));
                    }
                }
            }
            if buffered && !scaled_while_stored {
                rows.store(isa, start, values);
            }
        }
    }
}

/// What the pieces of a row report that one thread solves.
type Parts<R> = [(R, f64); SHORT / PIECE];

/// Maximum and sum of a row, and the same of its pieces, to whose maxima the exponentials are relative that fill `values`.
#[inline(always)]
fn survey_row<T: Float, I: Isa>(
    isa: I,
    x: &[T::Real],
    values: &mut [T::Real],
    parts: &mut Parts<T::Real>,
) -> (T::Real, f64) {
    let pieces = x.chunks(PIECE).zip(values.chunks_mut(PIECE));
    for (part, (x, values)) in parts.iter_mut().zip(pieces) {
        *part = survey::<T, I>(isa, x, values);
    }
    if x.len() <= PIECE { parts[0] } else { combined(&parts[..x.len().div_ceil(PIECE)]) }
}

thread_local! {
    /// Exponentials that the output cannot keep: at most `KEPT`, or those of rows that go together.
    static EXPONENTIALS: RefCell<Memory> = RefCell::default();
}

/// Rows in pieces, each of which reports its maximum and its sum.
fn long<T: Float>(rows: Rows<'_, T>, parts: &mut [(T::Real, f64)], these: Range<usize>, parallel: bool) {
    // Of all pieces or of none: a row's elements are contiguous in the output, or none of them are.
    let in_output = rows.memory(these.start * rows.length, PIECE).is_some();
    if rows.kind == Kind::LogSoftmax || in_output || rows.length > KEPT {
        return long_by(rows, parts, these, parallel, None);
    }
    EXPONENTIALS.with_borrow_mut(|memory| {
        // Rows before these are written, so that a lack of memory is no error any more.
        let kept = memory.try_room(parts.len() * PIECE);
        long_by(rows, parts, these, parallel, kept);
    });
}

/// With memory for the exponentials of each piece, or none.
fn long_by<T: Float>(
    rows: Rows<'_, T>,
    parts: &mut [(T::Real, f64)],
    these: Range<usize>,
    parallel: bool,
    mut kept: Option<&mut [T::Real]>,
) {
    let (length, pieces) = (rows.length, rows.length.div_ceil(PIECE));
    let piece = |i: usize| {
        let (row, first) = (these.start + i / pieces, i % pieces * PIECE);
        (row * length + first, PIECE.min(length - first))
    };
    let survey = |scratch: &mut Scratch<T>, i: usize, kept: Option<&mut [T::Real]>| {
        let (start, len) = piece(i);
        let output = || if rows.kind == Kind::Softmax { rows.memory(start, len) } else { None };
        let kept = kept.map(|kept| &mut kept[..len]).or_else(output);
        dispatch(Survey { rows, start, len, scratch, kept })
    };
    match &mut kept {
        Some(kept) => {
            let items = kept.chunks_exact_mut(PIECE).zip(&mut *parts).enumerate();
            parallel::for_items(items, parallel, Scratch::new, |scratch, (i, (kept, part))| {
                *part = survey(scratch, i, Some(kept));
            });
        }
        None => parallel::for_chunks_with(parts, 1, parallel, Scratch::new, |scratch, i, part| {
            part.fill(survey(scratch, i, None));
        }),
    }
    let parts = &*parts;
    let totals: SmallVec<[_; 8]> = parts.chunks_exact(pieces).map(combined).collect();
    let factor = |i: usize| factor(parts[i].0, totals[i / pieces]);
    if let Some(kept) = kept {
        let items = kept.chunks_exact_mut(PIECE).enumerate();
        return parallel::for_items(
            items,
            parallel,
            || (),
            |(), (i, kept)| {
                let (start, len) = piece(i);
                dispatch(Rescale { rows, start: Some(start), kept: &mut kept[..len], factor: factor(i) });
            },
        );
    }
    parallel::for_each_with(parts.len(), parallel, Scratch::new, |scratch, i| {
        let ((start, len), row) = (piece(i), totals[i / pieces]);
        let output = if rows.kind == Kind::Softmax { rows.memory(start, len) } else { None };
        match output {
            Some(kept) => dispatch(Rescale { rows, start: None, kept, factor: factor(i) }),
            None => dispatch(Write { rows, start, len, scratch, row }),
        }
    });
}

/// The maximum of a piece and its sum of exponentials relative to that, which go to `kept` if there is one.
struct Survey<'a, T: Float> {
    rows: Rows<'a, T>,
    start: usize,
    len: usize,
    scratch: &'a mut Scratch<T>,
    kept: Option<&'a mut [T::Real]>,
}

impl<T: Float> Kernel for Survey<'_, T> {
    type Output = (T::Real, f64);

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> (T::Real, f64) {
        let Survey { rows, start, len, scratch: Scratch { elements, wide, values }, kept } = self;
        let x = widened::read(isa, rows.x, start, len, (elements, wide));
        let values = kept.unwrap_or_else(|| {
            values.resize(len, T::Real::default());
            values
        });
        survey::<T, I>(isa, x, values)
    }
}

/// The results of a piece from its exponentials.
struct Rescale<'a, T: Float> {
    rows: Rows<'a, T>,
    /// Where they go, unless they are in the output already.
    start: Option<usize>,
    kept: &'a mut [T::Real],
    factor: T::Real,
}

impl<T: Float> Kernel for Rescale<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Rescale { rows, start, kept, factor } = self;
        match start {
            Some(start) => rows.store_scaled(isa, start, kept, factor),
            None => scale(kept, factor),
        }
    }
}

/// The results of a piece, from x once more.
struct Write<'a, T: Float> {
    rows: Rows<'a, T>,
    start: usize,
    len: usize,
    scratch: &'a mut Scratch<T>,
    row: (T::Real, f64),
}

impl<T: Float> Kernel for Write<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Write { rows, start, len, scratch: Scratch { elements, wide, values }, row: (maximum, sum) } =
            self;
        let finishing = finishing(isa, rows.kind, sum);
        let x = widened::read(isa, rows.x, start, len, (elements, wide));
        values.resize(len, T::Real::default());
        match rows.kind {
            Kind::Softmax => {
                exponentials::<T, I, false>(isa, x, maximum, values);
                rows.store_scaled(isa, start, values, finishing);
            }
            Kind::LogSoftmax => {
                shifted(x, maximum, finishing, values);
                rows.store(isa, start, values);
            }
        }
    }
}
