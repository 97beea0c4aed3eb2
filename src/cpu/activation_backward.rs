//! Gradients through an activation, and with them those of a bias: pieces of rows and columns, each of which
//! leaves the sums of its columns. Pieces depend on the shape alone, and with them the order of every sum. Without sums,
//! stretches of elements.

use std::hint::black_box;
use std::ops::Range;

use half::{bf16, f16};

use super::element::Element;
use super::float::Float;
use super::isa::{Isa, Kernel, dispatch};
use super::matmul::epilogue::{self, Activate, gelu_tanh_polynomial, sigmoid_and_slope};
use super::memory::zeros;
use super::method::Method;
use super::operand::{BLOCK, Source, Target};
use super::{parallel, widened};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::Strided;
use crate::ops::activation_backward::{ActivationBackwardProblem, BiasGradient, OP};
use crate::ops::matmul::Activation;
use crate::tensor::Dims;

/// Pieces that the rows are cut into, and rows that a piece has at the least.
const PIECES: usize = 64;
const ROWS: usize = 256;

/// Rows whose sums are formed in the arithmetic type before they go into float64.
const RUN: usize = 16;

/// Pieces whose sums are kept at a time: 8 MiB, however many columns there are.
const KEPT: usize = 1024;

pub fn run(problem: &ActivationBackwardProblem) -> Result<()> {
    match problem.dtype {
        DType::F16 => solve::<f16>(problem),
        DType::BF16 => solve::<bf16>(problem),
        DType::F64 => solve::<f64>(problem),
        // The only other dtype that `ops::activation_backward` lets through.
        _ => solve::<f32>(problem),
    }
}

/// What `run` does.
pub fn method() -> Method {
    Method::new("pieces of rows and columns", "activation_backward.rs")
}

fn solve<T: Float<Real: Activate>>(problem: &ActivationBackwardProblem) -> Result<()> {
    let shape: Dims = problem.rows.iter().copied().chain([problem.columns]).collect();
    // SAFETY: a problem's operands are memory that the caller keeps alive for the call, of the given shape; the
    // outputs are fresh.
    let source = |t: &Strided| unsafe { Source::<T>::new(t.address, t.dtype, &shape, &t.strides, 0) };
    // SAFETY: as above.
    let target = |t: &Strided| unsafe { Target::<T>::new(t.address, t.dtype, &shape, &t.strides) };
    let (rows, columns) = (problem.row_count() as usize, problem.columns as usize);
    let work = Work {
        grad: source(&problem.grad),
        saved: problem.saved.as_ref().map(source),
        out: problem.out.as_ref().map(target),
        up: problem.up.as_ref().map(|up| (source(&up.factor), target(&up.gradient))),
        activation: problem.activation,
        columns,
    };
    let nanoseconds = (rows * columns) as f64 * if problem.saved.is_some() { 1.0 } else { 0.3 };
    let parallel = parallel::pays(nanoseconds);
    let Some(bias) = &problem.bias else {
        // Stretches of whole rows, or of a part of one: an operand may have gaps between its rows.
        let (run, stretch) = match BLOCK / columns.max(1) {
            0 => (columns, columns.div_ceil(columns.div_ceil(BLOCK))),
            rows_at_once => (rows * columns, rows_at_once * columns.max(1)),
        };
        let parts = run.div_ceil(stretch);
        let count = if run == columns { rows * parts } else { parts };
        parallel::for_each_with(count, parallel, Scratch::default, |scratch, i| {
            let (first, part) = (i / parts * run, i % parts);
            let piece =
                Piece { rows: 0..1, columns: first + part * stretch..first + run.min((part + 1) * stretch) };
            dispatch(Visit { work: &work, piece, scratch, sums: &mut [] });
        });
        return Ok(());
    };
    let height = ROWS.max(rows.div_ceil(PIECES));
    // No rows are a piece too, whose sums are 0.
    let (down, across) = (rows.div_ceil(height).max(1), columns.div_ceil(BLOCK));
    let piece = |down: usize, across: usize| Piece {
        rows: down * height..rows.min((down + 1) * height),
        columns: across * BLOCK..columns.min((across + 1) * BLOCK),
    };
    // Of a piece's columns, and behind them those of up's gradient.
    let biases = 1 + usize::from(work.up.is_some());
    let at_once = across.min(KEPT / down);
    let mut parts = zeros(OP, at_once * down * biases * BLOCK)?;
    for first in (0..across).step_by(at_once) {
        let parts = &mut parts[..at_once.min(across - first) * down * biases * BLOCK];
        parallel::for_chunks_with(parts, biases * BLOCK, parallel, Scratch::default, |scratch, i, sums| {
            let piece = piece(i % down, first + i / down);
            let sums = &mut sums[..biases * piece.columns.len()];
            dispatch(Visit { work: &work, piece, scratch, sums });
        });
        for (i, parts) in parts.chunks_exact(down * biases * BLOCK).enumerate() {
            let of = piece(0, first + i).columns;
            for which in 0..biases {
                let parts =
                    parts.chunks_exact(biases * BLOCK).map(|part| &part[which * of.len()..][..of.len()]);
                total::<T>(bias, which * columns + of.start, parts);
            }
        }
    }
    Ok(())
}

/// Writes the sums of some columns, from `first` on, given those of their pieces.
fn total<'a, T: Float<Real: Activate>>(
    bias: &BiasGradient,
    first: usize,
    parts: impl Iterator<Item = &'a [f64]>,
) {
    let (mut totals, mut count) = ([0.0; BLOCK], 0);
    for part in parts {
        count = part.len();
        for (total, part) in totals.iter_mut().zip(part) {
            *total += part;
        }
    }
    let values = totals.map(T::from_element);
    // SAFETY: the output is fresh and nobody else uses it.
    let target =
        unsafe { Target::<T>::new(bias.address, T::DTYPE, &[(first + count) as i64], &[bias.stride]) };
    // SAFETY: as above.
    unsafe { target.store(first, &values[..count]) };
}

struct Work<T> {
    grad: Source<T>,
    saved: Option<Source<T>>,
    out: Option<Target<T>>,
    /// The other factor, and its gradient.
    up: Option<(Source<T>, Target<T>)>,
    activation: Activation,
    columns: usize,
}

/// Where no sums are wanted, all elements are columns of one row.
struct Piece {
    rows: Range<usize>,
    columns: Range<usize>,
}

/// What a thread widens and computes in.
#[derive(Default)]
struct Scratch<T: Float> {
    grad_elements: Vec<T>,
    saved_elements: Vec<T>,
    saved: Vec<T::Real>,
    up: Vec<T::Real>,
    results: Vec<T::Real>,
    sums: Vec<T::Real>,
}

struct Visit<'a, T: Float> {
    work: &'a Work<T>,
    piece: Piece,
    scratch: &'a mut Scratch<T>,
    /// Of the piece's columns, and of up's gradient; or empty where they are not wanted.
    sums: &'a mut [f64],
}

impl<T: Float<Real: Activate>> Kernel for Visit<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Visit { work, piece: Piece { rows, columns }, scratch, sums: totals } = self;
        let width = columns.len();
        // Of short rows, several at a time: they follow one another.
        let at_once = if width == work.columns { (BLOCK / width).clamp(1, RUN) } else { 1 };
        totals.fill(0.0);
        for run in rows.clone().step_by(RUN) {
            scratch.sums.clear();
            scratch.sums.resize(totals.len(), T::Real::default());
            let end = rows.end.min(run + RUN);
            for row in (run..end).step_by(at_once) {
                let start = row * work.columns + columns.start;
                work.visit(isa, start, width, at_once.min(end - row), scratch);
            }
            for (total, sum) in totals.iter_mut().zip(&scratch.sums) {
                *total += sum.to_f64();
            }
        }
    }
}

impl<T: Float<Real: Activate>> Work<T> {
    /// Elements from `start` on: whole rows, or `width` of one.
    #[inline(always)]
    fn visit<I: Isa>(&self, isa: I, start: usize, width: usize, rows: usize, scratch: &mut Scratch<T>) {
        let len = width * rows;
        let Scratch { grad_elements, saved_elements, saved, up, results, sums } = scratch;
        let wanted = width.min(sums.len());
        let is_real = size_of::<T>() == size_of::<T::Real>();
        let (sums, up_sums) = sums.split_at_mut(wanted);
        let mut unused = Vec::new();
        // Gradients of the arithmetic type are used where they lie; others are replaced by the results, in the same buffer.
        results.resize(len, T::Real::default());
        let given: &[T::Real] = if is_real {
            widened::read(isa, &self.grad, start, len, (grad_elements, &mut unused))
        } else {
            widened::load(isa, &self.grad, start, results);
            &[]
        };
        let (Some(source), Some(out)) = (&self.saved, &self.out) else {
            return add_rows(sums, if is_real { given } else { results });
        };
        let saved = widened::read(isa, source, start, len, (saved_elements, saved));
        if let Some((_, gradient)) = &self.up {
            up.clear();
            up.extend_from_slice(saved);
            epilogue::apply(isa, self.activation, None, up);
            for (up, &grad) in up.iter_mut().zip(if is_real { given } else { &*results }) {
                *up = *up * grad;
            }
            // SAFETY: every piece is visited by one thread, which holds no slice of the output.
            unsafe { widened::store(isa, gradient, start, up) };
            add_rows(up_sums, up);
        }
        let mut is_stored = false;
        let results = if is_real {
            // SAFETY: as above; this is the only slice.
            let place = unsafe { out.slice(start, len) }.and_then(T::as_reals);
            is_stored = place.is_some();
            let place = place.unwrap_or(results);
            let each = place.iter_mut().zip(given).zip(saved).map(|((result, &g), &v)| (result, g, v));
            derive(isa, self.activation, each);
            place
        } else {
            let each = results.iter_mut().zip(saved).map(|(result, &v)| {
                let g = *result;
                (result, g, v)
            });
            derive(isa, self.activation, each);
            results
        };
        if let Some((factor, _)) = &self.up {
            widened::load(isa, factor, start, up);
            for (result, &up) in results.iter_mut().zip(&*up) {
                *result = *result * up;
            }
        }
        if !is_stored {
            // SAFETY: as above; no slice was given, or none was asked for.
            unsafe { widened::store(isa, out, start, results) };
        }
        add_rows(sums, results);
    }
}

/// To the sums of columns, unless there are none.
#[inline(always)]
fn add_rows<R: Activate>(sums: &mut [R], rows: &[R]) {
    if sums.is_empty() {
        return;
    }
    for row in rows.chunks_exact(sums.len()) {
        for (sum, &v) in sums.iter_mut().zip(row) {
            *sum = *sum + v;
        }
    }
}

/// Of each result, gradient and argument: the result is the gradient times the activation's derivative at the argument. Of NaN,
/// relu passes the gradient on, as in torch.
#[inline(always)]
fn derive<'a, R: Activate, I: Isa>(
    isa: I,
    activation: Activation,
    each: impl Iterator<Item = (&'a mut R, R, R)>,
) {
    let zero = R::default();
    // Of a selection between what memory holds already and another value LLVM makes a store by a mask, for which AMD's AVX2
    // takes ten times as long: every selection here is multiplied before it is stored.
    let one = black_box(R::from_element(1.0));
    // Loops in full, for closures might not be inlined: see `cpu::isa`.
    match activation {
        Activation::None => {
            for (result, g, _) in each {
                *result = g;
            }
        }
        Activation::Relu => {
            for (result, g, v) in each {
                *result = (if v <= zero { zero } else { g }) * one;
            }
        }
        Activation::LeakyRelu { negative_slope } => {
            let slope = R::from_element(negative_slope);
            for (result, g, v) in each {
                *result = g * (if v > zero { one } else { slope });
            }
        }
        Activation::Gelu => {
            for (result, g, v) in each {
                *result = g * R::gelu_derivative(isa, v);
            }
        }
        Activation::GeluTanh => {
            let [scale, cubic] = gelu_tanh_polynomial();
            let three = R::from_element(3.0);
            for (result, g, v) in each {
                let square = v * v;
                let (share, slope) = sigmoid_and_slope(isa, v * square.mul_add(isa, cubic, scale));
                let inner = square.mul_add(isa, three * cubic, scale);
                *result = g * (share + v * slope * inner);
            }
        }
        Activation::Silu => {
            for (result, g, v) in each {
                let (share, slope) = sigmoid_and_slope(isa, v);
                *result = g * (share + v * slope);
            }
        }
    }
}
