//! Gradients through an activation, and with them those of a bias: pieces of rows and columns, each of which
//! leaves the sums of its columns. Pieces depend on the shape alone, and with them the order of every sum.

use std::ops::Range;

use half::{bf16, f16};

use super::element::Element;
use super::float::Float;
use super::isa::{Isa, Kernel, dispatch};
use super::matmul::epilogue::{Activate, gelu_tanh_polynomial, sigmoid_and_slope};
use super::operand::{BLOCK, Source, Target};
use super::{parallel, widened};
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::Strided;
use crate::ops::activation_backward::{ActivationBackwardProblem, BiasGradient};
use crate::ops::matmul::Activation;
use crate::tensor::Dims;

/// Pieces that the rows are cut into, and rows that a piece has at the least.
const PIECES: usize = 64;
const ROWS: usize = 256;

/// Rows whose sums are formed in the arithmetic type before they go into float64.
const RUN: usize = 16;

pub fn run(problem: &ActivationBackwardProblem) -> Result<()> {
    match problem.dtype {
        DType::F16 => solve::<f16>(problem),
        DType::BF16 => solve::<bf16>(problem),
        DType::F64 => solve::<f64>(problem),
        // The only other dtype that `ops::activation_backward` lets through.
        _ => solve::<f32>(problem),
    }
    Ok(())
}

fn solve<T: Float<Real: Activate>>(problem: &ActivationBackwardProblem) {
    let shape: Dims = problem.rows.iter().copied().chain([problem.columns]).collect();
    // SAFETY: a problem's operands are memory that the caller keeps alive for the call, of the given shape; the
    // outputs are fresh.
    let source = |t: &Strided| unsafe { Source::<T>::new(t.address, t.dtype, &shape, &t.strides, 0) };
    // SAFETY: as above.
    let target = |t: &Strided| unsafe { Target::<T>::new(t.address, &shape, &t.strides) };
    let (rows, columns) = (problem.row_count() as usize, problem.columns as usize);
    let work = Work {
        grad: source(&problem.grad),
        saved: problem.saved.as_ref().map(source),
        out: problem.out.as_ref().map(target),
        activation: problem.activation,
        columns,
        sums: problem.bias.is_some(),
    };
    let height = ROWS.max(rows.div_ceil(PIECES));
    let (down, across) = (rows.div_ceil(height), columns.div_ceil(BLOCK));
    let nanoseconds = (rows * columns) as f64 * if problem.saved.is_some() { 1.0 } else { 0.3 };
    let parts =
        parallel::map_with(down * across, parallel::pays(nanoseconds), Scratch::default, |scratch, i| {
            let (row, column) = (i / across * height, i % across * BLOCK);
            let piece =
                Piece { rows: row..rows.min(row + height), columns: column..columns.min(column + BLOCK) };
            dispatch(Visit { work: &work, piece, scratch })
        });
    if let Some(bias) = &problem.bias {
        total::<T>(bias, columns, &parts);
    }
}

/// Writes the sums of all pieces, given in the order of their rows, then columns.
fn total<T: Float<Real: Activate>>(bias: &BiasGradient, columns: usize, parts: &[Vec<f64>]) {
    let mut totals = vec![0.0; columns];
    for row in parts.chunks(columns.div_ceil(BLOCK)) {
        for (total, part) in totals.iter_mut().zip(row.iter().flatten()) {
            *total += part;
        }
    }
    let values: Vec<T> = totals.into_iter().map(T::from_element).collect();
    // SAFETY: the output is fresh and nobody else uses it.
    unsafe { Target::<T>::new(bias.address, &[columns as i64], &[bias.stride]).store(0, &values) };
}

struct Work<T> {
    grad: Source<T>,
    saved: Option<Source<T>>,
    out: Option<Target<T>>,
    activation: Activation,
    columns: usize,
    sums: bool,
}

struct Piece {
    rows: Range<usize>,
    columns: Range<usize>,
}

/// What a thread widens and computes in.
#[derive(Default)]
struct Scratch<R> {
    grad: Vec<R>,
    saved: Vec<R>,
    sums: Vec<R>,
}

struct Visit<'a, T: Float> {
    work: &'a Work<T>,
    piece: Piece,
    scratch: &'a mut Scratch<T::Real>,
}

impl<T: Float<Real: Activate>> Kernel for Visit<'_, T> {
    /// The sums of the piece's columns, if they are wanted.
    type Output = Vec<f64>;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> Vec<f64> {
        let Visit { work, piece: Piece { rows, columns }, scratch } = self;
        let width = columns.len();
        // Of short rows, several at a time: they follow one another.
        let at_once = if width == work.columns { (BLOCK / width).clamp(1, RUN) } else { 1 };
        let mut totals = vec![0.0; if work.sums { width } else { 0 }];
        for run in rows.clone().step_by(RUN) {
            scratch.sums.clear();
            scratch.sums.resize(totals.len(), T::Real::default());
            let end = rows.end.min(run + RUN);
            for row in (run..end).step_by(at_once) {
                let start = row * work.columns + columns.start;
                work.visit(isa, start, width * at_once.min(end - row), scratch);
            }
            for (total, sum) in totals.iter_mut().zip(&scratch.sums) {
                *total += sum.to_f64();
            }
        }
        totals
    }
}

impl<T: Float<Real: Activate>> Work<T> {
    /// Elements from `start` on: whole rows, or a part of one.
    #[inline(always)]
    fn visit<I: Isa>(&self, isa: I, start: usize, len: usize, scratch: &mut Scratch<T::Real>) {
        let Scratch { grad, saved, sums } = scratch;
        grad.resize(len, T::Real::default());
        widened::load(isa, &self.grad, start, grad);
        if let Some(source) = &self.saved {
            let saved = widened::read(isa, source, start, len, saved);
            derive(isa, self.activation, saved, grad);
        }
        if let Some(out) = &self.out {
            // SAFETY: every piece is visited by one thread, which holds no other slice of the output.
            unsafe { widened::store(isa, out, start, grad) };
        }
        if sums.is_empty() {
            return;
        }
        for row in grad.chunks_exact(sums.len()) {
            for (sum, &v) in sums.iter_mut().zip(row) {
                *sum = *sum + v;
            }
        }
    }
}

/// Multiplies gradients by the activation's derivative. Of NaN, relu passes the gradient on, as in torch.
#[inline(always)]
fn derive<R: Activate, I: Isa>(isa: I, activation: Activation, saved: &[R], grad: &mut [R]) {
    let zero = R::default();
    // Loops in full, for closures might not be inlined: see `cpu::isa`.
    match activation {
        Activation::None => {}
        Activation::Relu => {
            for (g, &v) in grad.iter_mut().zip(saved) {
                *g = if v <= zero { zero } else { *g };
            }
        }
        Activation::LeakyRelu { negative_slope } => {
            let slope = R::from_element(negative_slope);
            for (g, &v) in grad.iter_mut().zip(saved) {
                *g = if v > zero { *g } else { *g * slope };
            }
        }
        Activation::Gelu => {
            for (g, &v) in grad.iter_mut().zip(saved) {
                *g = *g * R::gelu_derivative(isa, v);
            }
        }
        Activation::GeluTanh => {
            let [scale, cubic] = gelu_tanh_polynomial();
            let three = R::from_element(3.0);
            for (g, &v) in grad.iter_mut().zip(saved) {
                let square = v * v;
                let (share, slope) = sigmoid_and_slope(isa, v * square.mul_add(isa, cubic, scale));
                let inner = square.mul_add(isa, three * cubic, scale);
                *g = *g * (share + v * slope * inner);
            }
        }
        Activation::Silu => {
            for (g, &v) in grad.iter_mut().zip(saved) {
                let (share, slope) = sigmoid_and_slope(isa, v);
                *g = *g * (share + v * slope);
            }
        }
    }
}
