//! matmul: products of matrices in tiles of registers ([`blocks`], [`parts`]) of factors ([`scheme`], [`pairs`], [`amx`])
//! that are packed where that pays ([`pack`], [`scratch`]), or all at once ([`small`]), products of a handful of elements
//! ([`tiny`]), of a column and a row ([`outer`]) and with one or a few vectors ([`vector`]), what is done to an accumulator
//! before it is rounded ([`epilogue`]), and products of groups ([`grouped`]).

#[cfg(target_arch = "x86_64")]
mod amx;
mod blocks;
pub mod epilogue;
pub mod grouped;
mod outer;
mod pack;
#[cfg(target_arch = "x86_64")]
mod pairs;
mod parts;
mod scheme;
mod scratch;
mod small;
mod tiny;
mod vector;

use std::ops::Range;

use half::{bf16, f16};

use self::blocks::{Factor, OfPairs, of_pairs};
use self::epilogue::Activate;
use self::parts::Parts;
use super::float::{Float, Real};
use super::isa::{Isa, Kernel, dispatch};
use super::memory::{has_room, zeros};
use super::method::Method;
use super::operand::Source;
use super::{parallel, widened};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::matmul::{Activation, Bias, MatmulProblem, Matrix};

pub fn run(problem: &MatmulProblem) -> Result<()> {
    match problem.dtype {
        DType::F16 => matmul::<f16>(problem),
        DType::BF16 => matmul::<bf16>(problem),
        DType::F64 => matmul::<f64>(problem),
        // The only other dtype that `ops::matmul` lets through.
        _ => matmul::<f32>(problem),
    }
}

/// What `run` does with each product.
pub fn method(problem: &MatmulProblem) -> Method {
    method_of(Shape::of(problem))
}

fn method_of(shape: Shape) -> Method {
    let Shape { dtype, size: [m, n, k], gated, .. } = shape;
    if shape.is_tiny() {
        return Method::new("elements where they lie", "matmul/tiny.rs");
    }
    if shape.outer {
        return Method::new("a column times a row", "matmul/outer.rs");
    }
    if shape.is_for_vectors() {
        return vector::method(dtype, shape.size, shape.across);
    }
    let pairs = if dtype == DType::BF16 { of_pairs() } else { None };
    let method = if pairs != Some(OfPairs::Amx) && small::is_small(m, n, k, gated) {
        Method::new("a product packed at once", "matmul/small.rs")
    } else {
        Method::new("blocks of k, columns and rows", "matmul/blocks.rs")
    };
    match pairs {
        Some(OfPairs::Amx) => method.with("AMX"),
        Some(OfPairs::Avx512Bf16) => method.with("AVX512-BF16"),
        None => method,
    }
}

/// One product of the batch: where its matrices start and how they step, in elements.
#[derive(Clone, Copy)]
struct Product<'a, R> {
    m: usize,
    n: usize,
    k: usize,
    a: Placed,
    b: Placed,
    out: Placed,
    /// One value a column.
    bias: Option<&'a [R]>,
    /// What the activation is applied to, instead of to the product with b.
    gate: Option<Gate<'a, R>>,
    residual: Option<Placed>,
    activation: Activation,
}

/// A second matrix of b's shape, and its own bias.
#[derive(Clone, Copy)]
struct Gate<'a, R> {
    b: Placed,
    bias: Option<&'a [R]>,
}

impl<'a, R> Product<'a, R> {
    /// The product at `index` of the batch, with the biases of b and of the gate.
    #[inline(always)]
    fn of<T: Float<Real = R>>(
        problem: &MatmulProblem,
        [bias, gate_bias]: [Option<&'a [R]>; 2],
        index: usize,
    ) -> Product<'a, R> {
        let place = |matrix: &Matrix| place(matrix, T::DTYPE, &problem.batch, index);
        Product {
            m: problem.m as usize,
            n: problem.n as usize,
            k: problem.k as usize,
            a: place(&problem.a),
            b: place(&problem.b),
            out: place(&problem.out),
            bias,
            gate: problem.gate.as_ref().map(|gate| Gate { b: place(gate), bias: gate_bias }),
            residual: problem.residual.as_ref().map(place),
            activation: problem.activation,
        }
    }

    /// Of one without a bias, a gate and a residual: the product whose result is the transposed.
    fn transposed(self) -> Product<'a, R> {
        let (a, b) = (self.b.transposed(), self.a.transposed());
        Product { m: self.n, n: self.m, a, b, out: self.out.transposed(), ..self }
    }

    /// The product of some rows and columns, of elements of `size` bytes.
    fn part(self, size: usize, rows: Range<usize>, columns: Range<usize>) -> Product<'a, R> {
        Product {
            m: rows.len(),
            n: columns.len(),
            a: Placed { address: self.a.at(size, rows.start, 0), ..self.a },
            b: Placed { address: self.b.at(size, 0, columns.start), ..self.b },
            out: Placed { address: self.out.at(size, rows.start, columns.start), ..self.out },
            bias: self.bias.map(|bias| &bias[columns.clone()]),
            residual: self
                .residual
                .map(|residual| Placed { address: residual.at(size, rows.start, columns.start), ..residual }),
            gate: self.gate.map(|Gate { b, bias }| Gate {
                b: Placed { address: b.at(size, 0, columns.start), ..b },
                bias: bias.map(|bias| &bias[columns]),
            }),
            ..self
        }
    }
}

/// A matrix in memory.
#[derive(Clone, Copy)]
struct Placed {
    address: usize,
    row_stride: i64,
    col_stride: i64,
}

impl Placed {
    /// Address of the element at (row, column).
    #[inline(always)]
    fn at(self, size: usize, row: usize, column: usize) -> usize {
        let offset = row as i64 * self.row_stride + column as i64 * self.col_stride;
        self.address.wrapping_add_signed(offset as isize * size as isize)
    }

    /// Whether rows of elements of `size` bytes share their places in a first-level cache.
    fn rows_collide(self, size: usize) -> bool {
        (self.row_stride * size as i64) % 4096 == 0
    }

    fn runs_down(self) -> bool {
        runs_down(self.strides())
    }

    fn strides(self) -> [i64; 2] {
        [self.row_stride, self.col_stride]
    }

    fn transposed(self) -> Placed {
        Placed { address: self.address, row_stride: self.col_stride, col_stride: self.row_stride }
    }
}

/// Whether neighbours in memory are those of a column, by the steps along rows and columns.
fn runs_down([row_stride, col_stride]: [i64; 2]) -> bool {
    row_stride.unsigned_abs() < col_stride.unsigned_abs()
}

/// What a way and a cost are chosen by.
#[derive(Clone, Copy)]
struct Shape {
    dtype: DType,
    /// m, n and k.
    size: [usize; 3],
    gated: bool,
    /// [`outer::is_outer`].
    outer: bool,
    /// [`vector::is_across`] of a and b or its gate.
    across: bool,
}

impl Shape {
    fn of(problem: &MatmulProblem) -> Shape {
        let size = [problem.m, problem.n, problem.k].map(|size| size as usize);
        let gate = problem.gate.as_ref().map(Matrix::strides);
        let shape = Shape::new(problem.dtype, size, problem.a.strides(), problem.b.strides(), gate);
        Shape { outer: outer::is_outer(problem), ..shape }
    }

    /// Of one of a group.
    fn new(dtype: DType, size: [usize; 3], a: [i64; 2], b: [i64; 2], gate: Option<[i64; 2]>) -> Shape {
        let [m, n, _] = size;
        let across = [Some(b), gate].into_iter().flatten().any(|b| vector::is_across(m, n, a, b));
        Shape { dtype, size, gated: gate.is_some(), outer: false, across }
    }

    fn is_for_vectors(self) -> bool {
        !self.is_tiny() && vector::is_for(self.dtype, self.size, self.across)
    }

    /// As [`tiny::is_tiny`]. Pairs of bfloat16 are multiplied by their own instructions, which round otherwise.
    fn is_tiny(self) -> bool {
        let [m, n, k] = self.size;
        let in_pairs = self.dtype == DType::BF16 && of_pairs().is_some();
        !in_pairs && !self.gated && tiny::is_tiny(m, n, k)
    }

    /// Asks for what a product takes besides its operands, about: the sums of pieces of k of products with vectors, and what
    /// each thread packs.
    fn check_room<R>(self, op: &'static str) -> Result<()> {
        let Shape { size: [m, n, k], gated, .. } = self;
        let size = size_of::<R>();
        let threads = parallel::threads();
        let bytes = if self.is_for_vectors() {
            let gates = if gated { size * m * n } else { 0 };
            let sums = size * 2 * (m * n).saturating_mul(k.div_ceil(vector::DEPTH)).min(vector::KEPT);
            gates + sums + size * threads * m.min(n) * k.min(vector::DEPTH)
        } else {
            threads.min(Parts::of(m, n, k, [1, 1], threads).count())
                * blocks::scratch_bytes(size, m, n, k, gated)
        };
        if has_room(bytes) { Ok(()) } else { Err(Error::OutOfMemory { op, bytes }) }
    }

    /// Operations of a product, and about how many nanoseconds one thread takes: one does some 100 operations of a matrix
    /// product, 20 of a column and a row and 10 of one with a vector, which are bound by memory, as many more of one with a few
    /// vectors, and makes a call, but for tiny ones.
    fn cost(self) -> (f64, f64) {
        let [m, n, k] = self.size;
        let operations = if self.gated { 4.0 } else { 2.0 } * m as f64 * n as f64 * k as f64;
        let rate = match self.is_for_vectors() {
            true => (10.0 * m.min(n) as f64).min(100.0),
            false if self.outer => 20.0,
            false => 100.0,
        };
        let call = if self.is_tiny() { 20.0 } else { 50.0 };
        (operations, call + operations / rate)
    }
}

/// Products of fewer operations than this (about 0.1 ms on one thread) are never split over threads when
/// there are several of them.
const SMALL: f64 = 2e7;

fn matmul<T: Factor>(problem: &MatmulProblem) -> Result<()> {
    let n = problem.n as usize;
    let load = |bias: &Bias, row: usize| {
        let rows = Placed { address: bias.address, row_stride: bias.row_stride, col_stride: 0 };
        // SAFETY: the bias is memory that the caller keeps alive for the call, and `check_out` has refused an `out` that
        // overlaps it.
        unsafe { load_bias::<T>("matmul", rows.at(size_of::<T>(), row, 0), (n, bias.stride)) }
    };
    let shape = Shape::of(problem);
    let bias_row = |row| problem.bias.as_ref().map(|bias| load(bias, row)).transpose();
    let bias: Option<Vec<T::Real>> = bias_row(usize::from(shape.gated))?;
    let gate_bias = if shape.gated { bias_row(0)? } else { None };
    let solve = |index: usize, parallel: bool| {
        let product = Product::of::<T>(problem, [bias.as_deref(), gate_bias.as_deref()], index);
        multiply::<T>(product, shape, parallel);
    };
    let products = problem.batch_count() as usize;
    let (operations, nanoseconds) = shape.cost();
    if parallel::is_long(nanoseconds * products as f64) {
        shape.check_room::<T::Real>("matmul")?;
    }
    let solve_range = |range: Range<usize>| {
        if shape.is_tiny() {
            dispatch(tiny::Products::<T> { problem, bias: bias.as_deref(), range });
        } else {
            range.for_each(|index| solve(index, false));
        }
    };
    if products == 1 {
        solve(0, parallel::pays(nanoseconds));
    } else if !parallel::pays(nanoseconds * products as f64) {
        solve_range(0..products);
    } else if operations < SMALL || products >= 4 * parallel::threads() {
        parallel::for_ranges(products, 1, nanoseconds * products as f64, solve_range);
    } else {
        (0..products).for_each(|index| solve(index, parallel::pays(nanoseconds)));
    }
    Ok(())
}

fn multiply<T: Factor>(product: Product<'_, T::Real>, shape: Shape, parallel: bool) {
    if shape.is_tiny() {
        dispatch(tiny::Single::<T>(product));
    } else if shape.outer {
        outer::solve::<T>(product, parallel);
    } else if shape.is_for_vectors() {
        vector::solve::<T>(product, parallel);
    } else {
        blocks::solve::<T>(product, parallel);
    }
}

/// Values of a bias, `step` elements apart.
///
/// # Safety
/// They are memory of this dtype, which nobody writes meanwhile.
unsafe fn load_bias<T: Float>(
    op: &'static str,
    address: usize,
    (count, step): (usize, i64),
) -> Result<Vec<T::Real>> {
    // SAFETY: the caller's promise.
    let source = unsafe { Source::<T>::new(address, T::DTYPE, &[count as i64], &[step], 0) };
    let mut values = zeros(op, count)?;
    dispatch(Load { source: &source, to: &mut values });
    Ok(values)
}

/// The matrix at `index` of the batch.
fn place(matrix: &Matrix, dtype: DType, batch: &[i64], index: usize) -> Placed {
    let (mut rest, mut offset) = (index as i64, 0);
    match matrix.batch_strides[..] {
        // Without divisions, which take longer than a tiny product.
        [stride] => offset = rest * stride,
        _ => {
            for (&size, &stride) in batch.iter().zip(&matrix.batch_strides).rev() {
                offset += rest % size * stride;
                rest /= size;
            }
        }
    }
    let bytes = offset * dtype.size() as i64;
    Placed {
        address: matrix.address.wrapping_add_signed(bytes as isize),
        row_stride: matrix.row_stride,
        col_stride: matrix.col_stride,
    }
}

/// Reads a whole source.
struct Load<'a, T: Float> {
    source: &'a Source<T>,
    to: &'a mut [T::Real],
}

impl<T: Float> Kernel for Load<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        widened::load(isa, self.source, 0, self.to);
    }
}
