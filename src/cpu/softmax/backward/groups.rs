//! Rows of a few groups.

use std::hint::black_box;

use super::*;
use crate::cpu::float::{TailMask, wide, wide_groups};
use crate::cpu::isa::LANES;

/// False, and nothing is done, if there are too many groups in a row of this length.
#[inline(always)]
pub fn solve<T: Float, O: Float<Real = T::Real>, I: Isa>(
    isa: I,
    kind: Kind,
    length: usize,
    inputs: (&[T], &[T]),
    results: &mut [O],
) -> bool {
    match length.div_ceil(LANES) {
        1 if length == LANES => rows_of_groups::<T, O, I, 1, true>(isa, kind, length, inputs, results),
        1 if !I::MASKS => rows_within_a_group::<T, O, I>(isa, kind, length, inputs, results),
        2 if length == 2 * LANES => rows_of_groups::<T, O, I, 2, true>(isa, kind, length, inputs, results),
        2 => rows_of_groups::<T, O, I, 2, false>(isa, kind, length, inputs, results),
        3 if reads_twice::<T, I>(length) => read_twice::<T, O, I, 2>(isa, kind, length, inputs, results),
        4 if reads_twice::<T, I>(length) => read_twice::<T, O, I, 3>(isa, kind, length, inputs, results),
        5 if reads_twice::<T, I>(length) => read_twice::<T, O, I, 4>(isa, kind, length, inputs, results),
        6 if reads_twice::<T, I>(length) => read_twice::<T, O, I, 5>(isa, kind, length, inputs, results),
        7 if reads_twice::<T, I>(length) => read_twice::<T, O, I, 6>(isa, kind, length, inputs, results),
        _ => return false,
    }
    true
}

/// Rows of N groups, in registers from their sum to their results. `WHOLE`: their length is a multiple of a group's.
#[inline(always)]
fn rows_of_groups<T: Float, O: Float<Real = T::Real>, I: Isa, const N: usize, const WHOLE: bool>(
    isa: I,
    kind: Kind,
    length: usize,
    (grad, output): (&[T], &[T]),
    results: &mut [O],
) {
    let tail = TailMask::new(N * LANES - length);
    let rows = grad.chunks_exact(length).zip(output.chunks_exact(length));
    for (to, (grad, output)) in results.chunks_exact_mut(length).zip(rows) {
        let grad = wide_groups::<T, I, N>(isa, grad);
        let output = wide_groups::<T, I, N>(isa, output);
        let mut sums = [T::Real::default(); LANES];
        for i in 0..N - 1 {
            sums = add_terms(isa, kind, grad[i], output[i], sums);
        }
        let last = if WHOLE { grad[N - 1] } else { tail.apply(grad[N - 1]) };
        sums = add_terms(isa, kind, last, output[N - 1], sums);
        let sums = [T::Real::sum_of_lanes(isa, sums); LANES];
        for i in 0..N {
            let to = if i + 1 < N { to[i * LANES..].first_chunk_mut::<LANES>() } else { to.last_chunk_mut() };
            if let Some(to) = to {
                O::narrow(isa, &super::results(isa, kind, grad[i], output[i], sums), to);
            }
        }
    }
}

/// Whether rows of a few groups are read a second time for their results: where registers do not hold them, and they are not
/// bfloat16 of so many groups that pairs of them are faster.
#[inline(always)]
fn reads_twice<T: Float, I: Isa>(length: usize) -> bool {
    !I::MASKS && (T::DTYPE != DType::BF16 || length < 4 * LANES)
}

/// Rows of N groups and one more, which is the end of the row.
#[inline(always)]
fn read_twice<T: Float, O: Float<Real = T::Real>, I: Isa, const N: usize>(
    isa: I,
    kind: Kind,
    length: usize,
    inputs: (&[T], &[T]),
    results: &mut [O],
) {
    // A loop each, as for results.
    match kind {
        Kind::Softmax => read_rows_twice::<T, O, I, N>(isa, Kind::Softmax, length, inputs, results),
        Kind::LogSoftmax => read_rows_twice::<T, O, I, N>(isa, Kind::LogSoftmax, length, inputs, results),
    }
}

#[inline(always)]
fn read_rows_twice<T: Float, O: Float<Real = T::Real>, I: Isa, const N: usize>(
    isa: I,
    kind: Kind,
    length: usize,
    (grad, output): (&[T], &[T]),
    results: &mut [O],
) {
    let tail = TailMask::new((N + 1) * LANES - length);
    let rows = grad.chunks_exact(length).zip(output.chunks_exact(length));
    for (to, inputs) in results.chunks_exact_mut(length).zip(rows) {
        let (Some((grads, last_grad)), Some((outputs, last_output))) =
            (groups_and_last::<T, N>(inputs.0), groups_and_last::<T, N>(inputs.1))
        else {
            continue;
        };
        let mut sums = [[T::Real::default(); LANES]; 2];
        for i in 0..N {
            sums[i % 2] = add_terms(isa, kind, wide(isa, &grads[i]), wide(isa, &outputs[i]), sums[i % 2]);
        }
        let last = tail.apply(wide(isa, last_grad));
        sums[N % 2] = add_terms(isa, kind, last, wide(isa, last_output), sums[N % 2]);
        let sums = [T::Real::sum_of_lanes(isa, add_groups(sums[0], sums[1])); LANES];
        // LLVM would keep what it has read, on the stack.
        let (grads, outputs) = black_box((grads, outputs));
        if let Some(tos) = to.as_chunks_mut::<LANES>().0.first_chunk_mut::<N>() {
            for i in 0..N {
                let (grad, output) = (wide(isa, &grads[i]), wide(isa, &outputs[i]));
                O::narrow(isa, &super::results(isa, kind, grad, output, sums), &mut tos[i]);
            }
        }
        if let Some(to) = to.last_chunk_mut::<LANES>() {
            let (grad, output) = (wide(isa, last_grad), wide(isa, last_output));
            O::narrow(isa, &super::results(isa, kind, grad, output, sums), to);
        }
    }
}

/// The first N groups of a row, and its last.
#[inline(always)]
fn groups_and_last<T, const N: usize>(row: &[T]) -> Option<(&[[T; LANES]; N], &[T; LANES])> {
    Some((row.as_chunks().0.first_chunk()?, row.last_chunk()?))
}

/// Rows shorter than a group, from the last on: each is the end of a group that begins in the rows before, whose results are
/// written after it.
#[inline(always)]
fn rows_within_a_group<T: Float, O: Float<Real = T::Real>, I: Isa>(
    isa: I,
    kind: Kind,
    length: usize,
    (grad, output): (&[T], &[T]),
    results: &mut [O],
) {
    let own = TailMask::new(LANES - length);
    for end in (1..=grad.len() / length).rev().map(|row| row * length) {
        if end < LANES {
            let (mut grads, mut outputs, mut to) =
                ([T::default(); LANES], [T::default(); LANES], [O::default(); LANES]);
            grads[LANES - length..].copy_from_slice(&grad[end - length..end]);
            outputs[LANES - length..].copy_from_slice(&output[end - length..end]);
            end_of_a_group(isa, kind, own, (&grads, &outputs), &mut to);
            results[end - length..end].copy_from_slice(&to[LANES - length..]);
        } else if let (Some(grad), Some(output), Some(to)) =
            (grad[..end].last_chunk(), output[..end].last_chunk(), results[..end].last_chunk_mut())
        {
            end_of_a_group(isa, kind, own, (grad, output), to);
        }
    }
}

/// Of a row of which `own` leaves the elements.
#[inline(always)]
fn end_of_a_group<T: Float, O: Float<Real = T::Real>, I: Isa>(
    isa: I,
    kind: Kind,
    own: TailMask<T::Real>,
    (grad, output): (&[T; LANES], &[T; LANES]),
    to: &mut [O; LANES],
) {
    let (grad, output) = (wide(isa, grad), wide(isa, output));
    // Both: an infinity of another row times 0 is no number.
    let zeros = [T::Real::default(); LANES];
    let terms = add_terms(isa, kind, own.apply(grad), own.apply(output), zeros);
    let sums = [T::Real::sum_of_lanes(isa, terms); LANES];
    O::narrow(isa, &results(isa, kind, grad, output, sums), to);
}
