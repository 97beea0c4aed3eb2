//! Matrix times matrix. float32 and float64 go to the gemm crate as they are. Halves are widened a block at a
//! time and accumulated in float32 over all of k, for gemm's own float16 kernel rounds its partial sums; so
//! is whatever gemm would handle badly.

use std::ops::Range;

use super::product::{Parts, even, gemm};
use super::*;
use crate::cpu::element::Element;
use crate::cpu::operand::Target;

/// Sizes of the blocks that are widened, at most: 8 MiB of accumulators, 2 and 4 MiB of operands.
pub const M: usize = 1024;
pub const N: usize = 2048;
/// Depends on nothing, since it decides the order in which products are summed.
pub const K: usize = 512;

/// Columns of a product in place, at most, since gemm packs some 512 rows of them at a time: 32 MiB of float64.
pub const WIDE: usize = 8192;

pub fn solve<T: Factor>(product: Product<'_, T::Real>, parallel: bool) {
    let threads = if parallel { parallel::threads() } else { 1 };
    let parts = Parts::of(product.m, product.n, product.k, threads);
    parallel::for_each(parts.count(), parallel, |i| {
        let (rows, columns) = parts.nth(product.m, product.n, i);
        T::solve_part(product.part(size_of::<T>(), rows, columns));
    });
}

/// What a product can be of.
pub trait Factor: Float<Real: Activate> {
    /// A part of a product that one thread solves.
    fn solve_part(product: Product<'_, Self::Real>) {
        in_blocks::<Self>(product);
    }
}

impl Factor for f16 {}
impl Factor for f32 {}
impl Factor for f64 {}

impl Factor for bf16 {
    fn solve_part(product: Product<'_, f32>) {
        #[cfg(target_arch = "x86_64")]
        if pairs::fits(product.k) {
            return pairs::solve(product);
        }
        in_blocks::<bf16>(product);
    }
}

fn in_blocks<T: Float<Real: Activate>>(product: Product<'_, T::Real>) {
    let Product { m, n, k, a, b, out, bias, activation } = product;
    let plain = bias.is_none() && activation == Activation::None;
    // gemm does k <= 2 by scalar loops on one thread.
    let aligned = [a, b, out].iter().all(|p| p.address.is_multiple_of(align_of::<T>()));
    let real = T::DTYPE == <T::Real as Element>::DTYPE;
    let direct = real && aligned && k > 2 && (plain || out.col_stride == 1);
    if direct && plain {
        return even(n, WIDE).for_each(|columns| gemm_in_place::<T>(product, 0..m, columns));
    }
    for rows in even(m, M) {
        for columns in even(n, N) {
            if direct {
                gemm_in_place::<T>(product, rows.clone(), columns.clone());
                finish_in_place::<T::Real>(product, rows.clone(), columns);
            } else {
                let sums = accumulate::<T>(product, rows.clone(), columns.clone());
                finish::<T>(product, rows.clone(), columns, sums);
            }
        }
    }
}

/// Multiplies into `rows` x `columns` of the output itself, which is of the arithmetic type.
fn gemm_in_place<T: Float>(product: Product<'_, T::Real>, rows: Range<usize>, columns: Range<usize>) {
    let Product { k, a, b, out, .. } = product;
    let size = size_of::<T>();
    let a = Placed { address: a.at(size, rows.start, 0), ..a };
    let b = Placed { address: b.at(size, 0, columns.start), ..b };
    let out = Placed { address: out.at(size, rows.start, columns.start), ..out };
    // SAFETY: a problem's operands are memory of the given shapes that the caller keeps alive, `solve` has
    // checked type and alignment, and `check_out` has refused outputs that overlap themselves or an input.
    unsafe { gemm::<T>((rows.len(), columns.len(), k), out, false, a, b) };
}

/// a @ b of `rows` x `columns`, row by row, in the arithmetic type.
fn accumulate<T: Float>(
    product: Product<'_, T::Real>,
    rows: Range<usize>,
    columns: Range<usize>,
) -> Vec<T::Real> {
    let Product { k, a, b, .. } = product;
    let (m, n) = (rows.len(), columns.len());
    let mut sums = vec![T::Real::default(); m * n];
    let out = Placed { address: sums.as_mut_ptr().expose_provenance(), row_stride: n as i64, col_stride: 1 };
    let (mut a_block, mut b_block) = (Vec::new(), Vec::new());
    for depth in even(k, K) {
        // Zeros make up what gemm wants at least.
        let padded = depth.len().max(4);
        let a = widened_block::<T>(a, rows.clone(), depth.clone(), [m, padded], &mut a_block);
        let b = widened_block::<T>(b, depth.clone(), columns.clone(), [padded, n], &mut b_block);
        // SAFETY: the three vectors are alive, distinct and of these sizes.
        unsafe { gemm::<T::Real>((m, n, padded), out, depth.start > 0, a, b) };
    }
    sums
}

/// Widens `rows` x `columns` of a matrix into `to`, in the order in which they lie in memory, with zeros up
/// to the size `padded`.
fn widened_block<T: Float>(
    matrix: Placed,
    rows: Range<usize>,
    columns: Range<usize>,
    padded: [usize; 2],
    to: &mut Vec<T::Real>,
) -> Placed {
    if matrix.row_stride.unsigned_abs() < matrix.col_stride.unsigned_abs() {
        let [height, width] = padded;
        let transposed = widened_block::<T>(matrix.transposed(), columns, rows, [width, height], to);
        return transposed.transposed();
    }
    let [height, width] = padded;
    to.clear();
    to.resize(height * width, T::Real::default());
    let shape = [rows.len() as i64, columns.len() as i64];
    let address = matrix.at(size_of::<T>(), rows.start, columns.start);
    // SAFETY: a problem's operands are memory of the given shapes that the caller keeps alive, and none of it
    // is written: `check_out` has refused outputs that overlap an input.
    let source =
        unsafe { Source::<T>::new(address, T::DTYPE, &shape, &[matrix.row_stride, matrix.col_stride], 0) };
    let (height, len) = (rows.len(), columns.len());
    dispatch(LoadRows { source: &source, height, len, width, to });
    Placed { address: to.as_ptr().expose_provenance(), row_stride: width as i64, col_stride: 1 }
}

/// Widens `height` rows of `len` elements into rows of `width`.
struct LoadRows<'a, T: Float> {
    source: &'a Source<T>,
    height: usize,
    len: usize,
    width: usize,
    to: &'a mut [T::Real],
}

impl<T: Float> Kernel for LoadRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let LoadRows { source, height, len, width, to } = self;
        for (row, to) in (0..height).zip(to.chunks_exact_mut(width)) {
            widened::load(isa, source, row * len, &mut to[..len]);
        }
    }
}

/// `rows` x `columns` of the output.
fn target<T: Element>(out: Placed, rows: &Range<usize>, columns: &Range<usize>) -> Target<T> {
    let shape = [rows.len() as i64, columns.len() as i64];
    let address = out.at(size_of::<T>(), rows.start, columns.start);
    // SAFETY: a problem's output is memory of the given shape that the caller keeps alive, and `check_out`
    // has refused outputs that overlap themselves or an input.
    unsafe { Target::new(address, &shape, &[out.row_stride, out.col_stride]) }
}

/// Bias and activation on sums that are already in the output.
fn finish_in_place<R: Float + Activate>(product: Product<'_, R>, rows: Range<usize>, columns: Range<usize>) {
    let target = target::<R>(product.out, &rows, &columns);
    let width = columns.len();
    let bias = product.bias.map(|bias| &bias[columns]);
    for row in 0..rows.len() {
        // SAFETY: each row is visited by one thread, which holds no slice of it.
        if let Some(row) = unsafe { target.slice(row * width, width) } {
            dispatch(Apply { activation: product.activation, bias, row });
        }
    }
}

struct Apply<'a, R> {
    activation: Activation,
    bias: Option<&'a [R]>,
    row: &'a mut [R],
}

impl<R: Activate> Kernel for Apply<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        epilogue::apply(isa, self.activation, self.bias, self.row);
    }
}

/// Bias, activation and rounding of sums on their way to the output.
fn finish<T: Float<Real: Activate>>(
    product: Product<'_, T::Real>,
    rows: Range<usize>,
    columns: Range<usize>,
    mut sums: Vec<T::Real>,
) {
    let target = target::<T>(product.out, &rows, &columns);
    let width = columns.len();
    let bias = product.bias.map(|bias| &bias[columns]);
    dispatch(Finish { activation: product.activation, bias, sums: &mut sums, width, target: &target });
}

struct Finish<'a, T: Float> {
    activation: Activation,
    bias: Option<&'a [T::Real]>,
    sums: &'a mut [T::Real],
    width: usize,
    target: &'a Target<T>,
}

impl<T: Float<Real: Activate>> Kernel for Finish<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Finish { activation, bias, sums, width, target } = self;
        for (i, sums) in sums.chunks_exact_mut(width).enumerate() {
            epilogue::apply(isa, activation, bias, sums);
            // SAFETY: each row of the output is visited by one thread, which holds no slice of it.
            unsafe { widened::store(isa, target, i * width, sums) };
        }
    }
}
