//! Row by row.

use smallvec::SmallVec;

use super::*;
use crate::cpu::float::{
    Real, TailMask, add_to_totals, last_group, narrow_pair, narrow_rest, wide, wide_rest,
};
use crate::cpu::isa::{CACHE_LINE, Kernel, LANES, dispatch, one_step};
use crate::cpu::register::prefetch;
use crate::cpu::softmax::rows::{GROUPS, PIECE, SHORT, long_together};
use crate::cpu::streaming::{self, Fill};

pub fn solve<T: Float, O: Float<Real = T::Real>>(problem: &SoftmaxBackwardProblem) -> Result<()> {
    let (rows, length) = (problem.row_count() as usize, problem.length as usize);
    let nanoseconds = rows as f64 * (30.0 + 0.5 * length as f64);
    with_operands::<T, O>(
        problem,
        |rows, along| concat(rows, &[along]),
        |operands| {
            if length <= SHORT {
                parallel::for_ranges(rows, 1, nanoseconds, |range| {
                    dispatch(Short { operands, range, length })
                });
                return Ok(());
            }
            let (op, pieces) = (problem.kind.backward_name(), length.div_ceil(PIECE));
            for_units(op, rows, pieces, long_together(length), nanoseconds, |sums, rows, parallel| {
                long(operands, sums, rows, length, parallel);
            })
        },
    )
}

/// Groups whose sum is formed in the arithmetic type, in four registers, before it goes into a float64.
const SUMMED: usize = 2 * GROUPS;

/// The sum over a row or a piece of one.
#[inline(always)]
fn sum<T: Float, I: Isa>(isa: I, kind: Kind, grad: &[T], output: &[T]) -> f64 {
    match kind {
        Kind::Softmax => sum_by(isa, Kind::Softmax, grad, output),
        Kind::LogSoftmax => sum_by(isa, Kind::LogSoftmax, grad, output),
    }
}

#[inline(always)]
fn sum_by<T: Float, I: Isa>(isa: I, kind: Kind, grad: &[T], output: &[T]) -> f64 {
    let mut total = [0.0f64; LANES];
    let (grads, outputs) =
        (grad.as_chunks().0.as_chunks::<SUMMED>(), output.as_chunks().0.as_chunks::<SUMMED>());
    for (grads, outputs) in grads.0.iter().zip(outputs.0) {
        add_to_totals(&mut total, sums(isa, kind, grads, outputs));
    }
    let rest = sums(isa, kind, grads.1, outputs.1);
    let rest = match (last_group(grad), last_group(output)) {
        (Some((grad, again)), Some((output, _))) if again > 0 => {
            add_terms(isa, kind, TailMask::new(again).apply(wide(isa, grad)), wide(isa, output), rest)
        }
        (None, None) => add_terms(isa, kind, wide_rest(isa, grad), wide_rest(isa, output), rest),
        _ => rest,
    };
    if grads.0.is_empty() {
        // Of at most nine terms a lane: as few roundings as of a long row, whose conversions take longer than the additions.
        return T::Real::sum_of_lanes(isa, rest).to_f64();
    }
    add_to_totals(&mut total, rest);
    isa.sum_f64(total)
}

/// The sums of groups of elements, by lane.
#[inline(always)]
fn sums<T: Float, I: Isa>(
    isa: I,
    kind: Kind,
    grads: &[[T; LANES]],
    outputs: &[[T; LANES]],
) -> [T::Real; LANES] {
    // Four, since each waits for its last addition.
    let [mut a, mut b, mut c, mut d] = [[T::Real::default(); LANES]; 4];
    let (fours, rest) = (grads.as_chunks::<4>(), outputs.as_chunks::<4>());
    for (grads, outputs) in fours.0.iter().zip(rest.0) {
        let ([grads, more_grads], [outputs, more_outputs]) = (grads.as_chunks().0, outputs.as_chunks().0)
        else {
            continue;
        };
        one_step();
        let (grad, output) = (T::wide_pair(isa, grads), T::wide_pair(isa, outputs));
        a = add_terms(isa, kind, grad[0], output[0], a);
        b = add_terms(isa, kind, grad[1], output[1], b);
        let (grad, output) = (T::wide_pair(isa, more_grads), T::wide_pair(isa, more_outputs));
        c = add_terms(isa, kind, grad[0], output[0], c);
        d = add_terms(isa, kind, grad[1], output[1], d);
    }
    for (grad, output) in fours.1.iter().zip(rest.1) {
        a = add_terms(isa, kind, wide(isa, grad), wide(isa, output), a);
    }
    add_groups(add_groups(a, b), add_groups(c, d))
}

/// Writes the results of a row or a piece of one, rounded.
#[inline(always)]
fn fill<T: Float, O: Float<Real = T::Real>, I: Isa>(
    isa: I,
    kind: Kind,
    inputs: (&[T], &[T]),
    sum: f64,
    to: &mut [O],
) {
    // A constant kind leaves no branch in the loops.
    match kind {
        Kind::Softmax => fill_by(isa, Kind::Softmax, inputs, sum, to),
        Kind::LogSoftmax => fill_by(isa, Kind::LogSoftmax, inputs, sum, to),
    }
}

#[inline(always)]
fn fill_by<T: Float, O: Float<Real = T::Real>, I: Isa>(
    isa: I,
    kind: Kind,
    (grad, output): (&[T], &[T]),
    sum: f64,
    to: &mut [O],
) {
    let sums = [T::Real::from_element(sum); LANES];
    let (pairs, rest) = grad.as_chunks().0.as_chunks::<2>();
    let (outputs, outputs_rest) = output.as_chunks().0.as_chunks::<2>();
    let (tos, to_rest) = to.as_chunks_mut::<LANES>().0.as_chunks_mut::<2>();
    for (to, (grad, output)) in tos.iter_mut().zip(pairs.iter().zip(outputs)) {
        one_step();
        let (grad, output) = (T::wide_pair(isa, grad), T::wide_pair(isa, output));
        let low = results(isa, kind, grad[0], output[0], sums);
        let high = results(isa, kind, grad[1], output[1], sums);
        narrow_pair::<T, O, I>(isa, [low, high], to);
    }
    for (to, (grad, output)) in to_rest.iter_mut().zip(rest.iter().zip(outputs_rest)) {
        O::narrow(isa, &results(isa, kind, wide(isa, grad), wide(isa, output), sums), to);
    }
    if let (Some((grad, again)), Some((output, _))) = (last_group(grad), last_group(output)) {
        if let Some(to) = to.last_chunk_mut::<LANES>().filter(|_| again > 0) {
            O::narrow(isa, &results(isa, kind, wide(isa, grad), wide(isa, output), sums), to);
        }
    } else {
        let rest = results(isa, kind, wide_rest(isa, grad), wide_rest(isa, output), sums);
        narrow_rest(isa, &rest, to);
    }
}

/// The same, to be streamed.
struct Results<'a, T> {
    kind: Kind,
    grad: &'a [T],
    output: &'a [T],
    sum: f64,
    /// Whether the row behind this one, which is read next, is asked for meanwhile.
    asks: bool,
}

impl<T: Float, O: Float<Real = T::Real>> Fill<O> for Results<'_, T> {
    #[inline(always)]
    fn fill<I: Isa>(&self, isa: I, range: Range<usize>, to: &mut [O]) {
        if self.asks {
            for i in range.clone().step_by(CACHE_LINE / size_of::<T>()) {
                prefetch(self.grad.as_ptr().wrapping_add(self.grad.len() + i));
                prefetch(self.output.as_ptr().wrapping_add(self.output.len() + i));
            }
        }
        fill(isa, self.kind, (&self.grad[range.clone()], &self.output[range]), self.sum, to);
    }
}

/// Shortest rows that are streamed: shorter ones share many of their lines.
const SHORTEST_STREAMED: usize = 8 * LANES;

/// Least bytes of a row for the next one to be asked for while it is streamed: behind shorter ones the processor reaches the next
/// row's loads by itself.
const LEAST_ASKED_FOR: usize = 2048;

/// Elements of rows that are visited together: what is not strided needs no buffer.
const VISITED: usize = 4096;

/// Rows that are solved in a single visit.
struct Short<'a, T, O> {
    operands: Operands<'a, T, O>,
    range: Range<usize>,
    length: usize,
}

impl<T: Float, O: Float<Real = T::Real>> Kernel for Short<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Short { operands, range: Range { start, end }, length } = self;
        let mut scratch = Scratch::default();
        let Operands { grad, output, .. } = operands;
        let across = grad.rows_across(length).max(output.rows_across(length));
        let together = (VISITED / length).max(1).next_multiple_of(across);
        for first in (start..end).step_by(together) {
            let piece = Piece { operands, start: first * length, length: together.min(end - first) * length };
            let Visit { grad, output, results, buffered, streamed } = piece.visit(&mut scratch);
            let (kind, inputs) = (operands.kind, (grad, output));
            let rows = grad.chunks_exact(length).zip(output.chunks_exact(length));
            if groups::solve(isa, kind, length, inputs, results) {
                // Done.
            } else if streamed && length >= SHORTEST_STREAMED {
                let asks = length * size_of::<T>() >= LEAST_ASKED_FOR;
                for (results, (grad, output)) in results.chunks_exact_mut(length).zip(rows) {
                    let sum = sum(isa, kind, grad, output);
                    streaming::fill(isa, results, &Results { kind, grad, output, sum, asks });
                }
            } else {
                for (results, (grad, output)) in results.chunks_exact_mut(length).zip(rows) {
                    let sum = sum(isa, kind, grad, output);
                    fill(isa, kind, (grad, output), sum, results);
                }
            }
            if buffered {
                piece.store(results);
            }
        }
    }
}

/// Rows, a row, or a piece of one.
struct Piece<'a, T, O> {
    operands: Operands<'a, T, O>,
    start: usize,
    length: usize,
}

/// The inputs of a piece, and where its results go: to the output itself, or to a buffer where that is strided or an
/// input.
struct Visit<'a, T, O> {
    grad: &'a [T],
    output: &'a [T],
    results: &'a mut [O],
    buffered: bool,
    /// Whether to the output past the caches.
    streamed: bool,
}

impl<'a, T: Float, O: Float<Real = T::Real>> Piece<'a, T, O> {
    #[inline(always)]
    fn inputs<'b>(&self, grad: &'b mut Vec<T>, output: &'b mut Vec<T>) -> (&'b [T], &'b [T])
    where
        'a: 'b,
    {
        let Operands { grad: grads, output: outputs, .. } = self.operands;
        (grads.read(self.start, self.length, grad), outputs.read(self.start, self.length, output))
    }

    #[inline(always)]
    fn visit<'b>(&self, scratch: &'b mut Scratch<T, O>) -> Visit<'b, T, O>
    where
        'a: 'b,
    {
        let Operands { out, in_place, .. } = self.operands;
        let Scratch { grad, output, results } = scratch;
        let (grad, output) = self.inputs(grad, output);
        // SAFETY: every row, and every piece of one, is visited by one thread, which holds no other slice of `out`; those
        // of inputs are other memory.
        match unsafe { out.slice(self.start, self.length) }.filter(|_| !in_place) {
            Some(results) => Visit { grad, output, results, buffered: false, streamed: out.is_streamed() },
            None => {
                results.resize(self.length, O::default());
                Visit { grad, output, results, buffered: true, streamed: false }
            }
        }
    }

    #[inline(always)]
    fn store(&self, results: &[O]) {
        // SAFETY: as above, and slices of the inputs are not used any more.
        unsafe { self.operands.out.store(self.start, results) };
    }
}

/// Rows in pieces, each of which reports its sum.
fn long<T: Float, O: Float<Real = T::Real>>(
    operands: Operands<'_, T, O>,
    sums: &mut [f64],
    rows: Range<usize>,
    length: usize,
    parallel: bool,
) {
    let pieces = length.div_ceil(PIECE);
    let piece = |i: usize| {
        let (row, first) = (rows.start + i / pieces, i % pieces * PIECE);
        Piece { operands, start: row * length + first, length: PIECE.min(length - first) }
    };
    parallel::for_chunks_with(sums, 1, parallel, Scratch::default, |scratch, i, sum| {
        sum.fill(dispatch(Survey { piece: piece(i), scratch }));
    });
    let totals: SmallVec<[f64; 8]> = sums.chunks_exact(pieces).map(|sums| sums.iter().sum()).collect();
    parallel::for_each_with(sums.len(), parallel, Scratch::default, |scratch, i| {
        dispatch(Write { piece: piece(i), scratch, sum: totals[i / pieces] });
    });
}

struct Survey<'a, T, O> {
    piece: Piece<'a, T, O>,
    scratch: &'a mut Scratch<T, O>,
}

impl<T: Float, O: Float<Real = T::Real>> Kernel for Survey<'_, T, O> {
    type Output = f64;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> f64 {
        let (grad, output) = self.piece.inputs(&mut self.scratch.grad, &mut self.scratch.output);
        sum(isa, self.piece.operands.kind, grad, output)
    }
}

struct Write<'a, T, O> {
    piece: Piece<'a, T, O>,
    scratch: &'a mut Scratch<T, O>,
    sum: f64,
}

impl<T: Float, O: Float<Real = T::Real>> Kernel for Write<'_, T, O> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Write { piece, scratch, sum } = self;
        let Visit { grad, output, results, buffered, streamed } = piece.visit(scratch);
        let kind = piece.operands.kind;
        if streamed {
            streaming::fill(isa, results, &Results { kind, grad, output, sum, asks: false });
        } else {
            fill(isa, kind, (grad, output), sum, results);
        }
        if buffered {
            piece.store(results);
        }
    }
}
