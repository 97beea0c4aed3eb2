//! Products of a handful of elements, of which batches have many: elements are read where they lie, and a whole range of the batch is
//! one call. Packing would take longer, and so would the ways for vectors.

use super::*;
use crate::cpu::element::Element;
use crate::cpu::isa::Isa;

/// Rows and columns, steps of k, and multiply-adds, at most.
const SIDE: usize = 4;
const DEEPEST: usize = 64;
const MULTIPLY_ADDS: usize = 64;

#[inline(always)]
pub fn is_tiny(m: usize, n: usize, k: usize) -> bool {
    m.max(n) <= SIDE && k <= DEEPEST && m * n * k <= MULTIPLY_ADDS
}

/// Some products of a batch.
pub struct Products<'a, T: Float> {
    pub problem: &'a MatmulProblem,
    /// One value a column.
    pub bias: Option<&'a [T::Real]>,
    pub range: Range<usize>,
}

impl<T: Factor> Kernel for Products<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        for index in self.range {
            multiply::<T, I>(isa, &Product::of::<T>(self.problem, [self.bias, None], index));
        }
    }
}

/// A product that is none of a batch.
pub struct Single<'a, T: Float>(pub Product<'a, T::Real>);

impl<T: Factor> Kernel for Single<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        multiply::<T, I>(isa, &self.0);
    }
}

#[inline(always)]
fn multiply<T: Factor, I: Isa>(isa: I, product: &Product<'_, T::Real>) {
    let &Product { m, n, k, a, b, out, bias, residual, activation, .. } = product;
    let mut sums = [[T::Real::default(); SIDE]; SIDE];
    for l in 0..k {
        let mut row = [T::Real::default(); SIDE];
        for (j, y) in row.iter_mut().enumerate().take(n) {
            *y = element::<T>(b, l, j);
        }
        for (i, sums) in sums.iter_mut().enumerate().take(m) {
            let x = element::<T>(a, i, l);
            for j in 0..SIDE {
                sums[j] = x.mul_add(isa, row[j], sums[j]);
            }
        }
    }
    for (i, sums) in sums.iter_mut().enumerate().take(m) {
        let sums = &mut sums[..n];
        epilogue::apply(isa, activation, bias, sums);
        if let Some(residual) = residual {
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum = *sum + element::<T>(residual, i, j);
            }
        }
        let mut results = [T::default(); SIDE];
        T::narrow(isa, sums, &mut results[..n]);
        for (j, result) in results.into_iter().enumerate().take(n) {
            let to = std::ptr::with_exposed_provenance_mut::<T>(out.at(size_of::<T>(), i, j));
            // SAFETY: the output is memory of the given shape that the caller keeps alive, each element is written by one
            // thread, and `check_out` has refused what overlaps itself or an input. No alignment is assumed.
            unsafe { to.write_unaligned(result) };
        }
    }
}

#[inline(always)]
pub fn element<T: Float>(matrix: Placed, row: usize, column: usize) -> T::Real {
    let from = std::ptr::with_exposed_provenance::<T>(matrix.at(size_of::<T>(), row, column));
    // SAFETY: a problem's operands are memory of the given shapes that the caller keeps alive, which nobody writes meanwhile, but
    // for a residual that is the output, whose element is read before it is written. No alignment is assumed.
    T::Real::from_element(unsafe { from.read_unaligned() })
}
