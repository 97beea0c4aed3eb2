//! A column times a row, k of 1: each row of the result is that row times an element of the column. Tiles of sums, each of one
//! product, would take longer to begin and to end.

use super::scratch::Scratch;
use super::*;
use crate::cpu::isa::Isa;
use crate::cpu::operand::Target;
use crate::cpu::streaming::Fill;

/// Results that are computed before they are rounded or have their activation.
const AT_ONCE: usize = 256;

/// Parts for each thread.
const PARTS: usize = 4;

/// Results of a row, at least: a row begins in the time of as many.
const LEAST: i64 = 64;

/// Whether the product of a whole problem is one, without a gate and a residual, and with several rows that are long enough.
pub fn is_outer(problem: &MatmulProblem) -> bool {
    let &MatmulProblem { m, n, k, ref out, ref bias, .. } = problem;
    let is_plain = problem.gate.is_none() && problem.residual.is_none();
    let is_turned = is_turned(out.strides(), bias.is_some());
    let [rows, row] = if is_turned { [n, m] } else { [m, n] };
    k == 1 && is_plain && rows > 1 && row >= LEAST
}

/// Whether the columns of the result, as they lie, are the rows of what is computed: not where each has a bias of its own.
fn is_turned([row_stride, col_stride]: [i64; 2], has_bias: bool) -> bool {
    row_stride.unsigned_abs() < col_stride.unsigned_abs() && !has_bias
}

pub fn solve<T: Factor>(product: Product<'_, T::Real>, parallel: bool) {
    let is_turned = is_turned(product.out.strides(), product.bias.is_some());
    let product = if is_turned { product.transposed() } else { product };
    let Product { m, n, out, .. } = product;
    let (shape, strides) = ([m as i64, n as i64], [out.row_stride, out.col_stride]);
    // SAFETY: the output is memory of the given shape that the caller keeps alive, each element is written by one thread, and
    // `check_out` has refused what overlaps itself or an input.
    let mut target = unsafe { Target::<T>::new(out.address, T::DTYPE, &shape, &strides) };
    target.stream();
    let parts = if parallel { m.min(PARTS * parallel::threads()) } else { 1 };
    parallel::for_each(parts, parallel, |i| {
        let rows = parts::split(m, parts, i)..parts::split(m, parts, i + 1);
        scratch::with(|scratch| dispatch(Rows { product: &product, target: &target, rows, scratch }));
    });
}

/// Some rows of the result.
struct Rows<'a, T: Float> {
    product: &'a Product<'a, T::Real>,
    target: &'a Target<T>,
    rows: Range<usize>,
    scratch: &'a mut Scratch,
}

impl<T: Factor> Kernel for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Rows { product, target, rows, scratch } = self;
        let &Product { n, a, b, bias, activation, .. } = product;
        let row = scratch.b.room::<T::Real>(n);
        // SAFETY: a problem's operands are memory of the given shapes that the caller keeps alive, which nobody writes meanwhile.
        let source = unsafe { Source::<T>::new(b.address, T::DTYPE, &[n as i64], &[b.col_stride], 0) };
        widened::load(isa, &source, 0, row);
        let mut results = Vec::new();
        for i in rows {
            let by = Multiples { factor: tiny::element::<T>(a, i, 0), row, bias, activation };
            if target.reach(i * n) >= n {
                // SAFETY: as of the target; nobody else has this row.
                unsafe { target.fill(isa, i * n, n, &by) };
                continue;
            }
            results.resize(n, T::default());
            by.fill(isa, 0..n, &mut results);
            // SAFETY: as above.
            unsafe { target.store(i * n, &results) };
        }
    }
}

/// A row times a factor, with bias and activation.
struct Multiples<'a, R> {
    factor: R,
    row: &'a [R],
    bias: Option<&'a [R]>,
    activation: Activation,
}

impl<T: Factor> Fill<T> for Multiples<'_, T::Real> {
    #[inline(always)]
    fn fill<I: Isa>(&self, isa: I, range: Range<usize>, to: &mut [T]) {
        for (i, to) in to.chunks_mut(AT_ONCE).enumerate() {
            let start = range.start + i * AT_ONCE;
            if size_of::<T>() == size_of::<T::Real>() {
                if let Some(to) = T::as_reals(to) {
                    self.multiply(isa, start, to);
                }
                continue;
            }
            let mut sums = [T::Real::default(); AT_ONCE];
            let sums = &mut sums[..to.len()];
            self.multiply(isa, start, sums);
            T::narrow(isa, sums, to);
        }
    }
}

impl<R: Activate> Multiples<'_, R> {
    #[inline(always)]
    fn multiply<I: Isa>(&self, isa: I, start: usize, to: &mut [R]) {
        // Added to zero as sums of more products are, so that none is -0.
        for (to, &y) in to.iter_mut().zip(&self.row[start..]) {
            *to = self.factor.mul_add(isa, y, R::default());
        }
        epilogue::apply(isa, self.activation, self.bias.map(|bias| &bias[start..]), to);
    }
}
