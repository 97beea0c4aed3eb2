//! A column times a row, k of 1: each row of the result is that row times an element of the column. Tiles of sums, each of one
//! product, would take longer to begin and to end.

use super::scratch::Scratch;
use super::*;
use crate::cpu::isa::Isa;
use crate::cpu::operand::Target;
use crate::cpu::streaming::Fill;

/// Results that are computed before they are rounded or have their activation.
const AT_ONCE: usize = 256;

/// Columns that are done for all rows, whose elements stay in the first-level cache; parts of the rows for each thread.
const STRETCH: usize = 4096;
const PARTS: usize = 4;

/// Results of a row, at least: a row begins in the time of as many.
const LEAST: i64 = 64;

/// Whether the product of a whole problem is one: without a gate, a residual and a bias for each row of what is computed, and with
/// several rows that are long enough.
pub fn is_outer(problem: &MatmulProblem) -> bool {
    let &MatmulProblem { m, n, k, ref out, ref bias, .. } = problem;
    let is_turned = runs_down(out.strides());
    let is_plain = problem.gate.is_none() && problem.residual.is_none() && !(is_turned && bias.is_some());
    let [rows, row] = if is_turned { [n, m] } else { [m, n] };
    k == 1 && is_plain && rows > 1 && row >= LEAST
}

pub fn solve<T: Factor>(product: Product<'_, T::Real>, parallel: bool) {
    let product = if product.out.runs_down() { product.transposed() } else { product };
    let Product { m, n, out, .. } = product;
    let (shape, strides) = ([m as i64, n as i64], [out.row_stride, out.col_stride]);
    // SAFETY: the output is memory of the given shape that the caller keeps alive, each element is written by one thread, and
    // `check_out` has refused what overlaps itself or an input.
    let mut target = unsafe { Target::<T>::new(out.address, T::DTYPE, &shape, &strides) };
    target.stream(0);
    let parts = if parallel { m.min(PARTS * parallel::threads()) } else { 1 };
    let stretches = n.div_ceil(STRETCH);
    parallel::for_each(parts * stretches, parallel, |i| {
        let (part, stretch) = (i / stretches, i % stretches);
        let rows = parts::split(m, parts, part)..parts::split(m, parts, part + 1);
        let columns = stretch * STRETCH..n.min((stretch + 1) * STRETCH);
        let (product, target) = (&product, &target);
        scratch::with(|scratch| dispatch(Rows { product, target, rows, columns, scratch }));
    });
}

/// Some rows and columns of the result.
struct Rows<'a, T: Float> {
    product: &'a Product<'a, T::Real>,
    target: &'a Target<T>,
    rows: Range<usize>,
    columns: Range<usize>,
    scratch: &'a mut Scratch,
}

impl<T: Factor> Kernel for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Rows { product, target, rows, columns, scratch: Scratch { b: row, staging, .. } } = self;
        let &Product { n, a, b, bias, activation, .. } = product;
        let (row, len) = (row.room::<T::Real>(columns.len()), columns.len());
        let first = b.at(size_of::<T>(), 0, columns.start);
        // SAFETY: a problem's operands are memory of the given shapes that the caller keeps alive, which nobody writes meanwhile.
        let source = unsafe { Source::<T>::new(first, T::DTYPE, &[len as i64], &[b.col_stride], 0) };
        widened::load(isa, &source, 0, row);
        let bias = bias.map(|bias| &bias[columns.clone()]);
        for i in rows {
            let by = Multiples { factor: tiny::element::<T>(a, i, 0), row, bias, activation };
            let start = i * n + columns.start;
            if target.reach(start) >= len {
                // SAFETY: as of the target; nobody else has this part of the row.
                unsafe { target.fill(isa, start, len, &by) };
                continue;
            }
            let results = staging.elements.room::<T>(len);
            by.fill(isa, 0..len, results);
            // SAFETY: as above.
            unsafe { target.store(start, results) };
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
            if let Some(to) = T::as_reals(to) {
                self.multiply(isa, start, to);
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
