//! Matrix times matrix. float32 and float64 go to the gemm crate as they are. Halves are widened a block at a
//! time and accumulated in float32 over all of k, for gemm's own float16 kernel rounds its partial sums; so
//! is whatever gemm would handle badly.

use std::ops::Range;

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

pub fn solve<T: Float<Real: Activate>>(product: Product<'_, T::Real>, parallel: bool) {
    let Product { m, n, k, a, b, out, bias, activation } = product;
    let plain = bias.is_none() && activation == Activation::None;
    // gemm does k <= 2 by scalar loops on one thread.
    let aligned = [a, b, out].iter().all(|p| p.address.is_multiple_of(align_of::<T>()));
    let real = T::DTYPE == <T::Real as Element>::DTYPE;
    let direct = real && aligned && k > 2 && (plain || out.col_stride == 1);
    if direct && plain {
        return even(n, WIDE).for_each(|columns| gemm_in_place::<T>(product, 0..m, columns, parallel));
    }
    for rows in even(m, M) {
        for columns in even(n, N) {
            if direct {
                gemm_in_place::<T>(product, rows.clone(), columns.clone(), parallel);
                finish_in_place::<T::Real>(product, rows.clone(), columns, parallel);
            } else {
                let sums = accumulate::<T>(product, rows.clone(), columns.clone(), parallel);
                finish::<T>(product, rows.clone(), columns, sums, parallel);
            }
        }
    }
}

/// 0..len in as few ranges of at most `most` as possible, all about as long.
fn even(len: usize, most: usize) -> impl DoubleEndedIterator<Item = Range<usize>> {
    let parts = len.div_ceil(most);
    // An expanded k times its number of parts is more than 64 bits hold.
    let start = move |i: usize| (len as u128 * i as u128 / parts as u128) as usize;
    (0..parts).map(move |i| start(i)..start(i + 1))
}

impl Placed {
    /// Address of the element at (row, column).
    fn at(self, size: usize, row: usize, column: usize) -> usize {
        let offset = row as i64 * self.row_stride + column as i64 * self.col_stride;
        self.address.wrapping_add_signed(offset as isize * size as isize)
    }
}

/// out = a @ b + (`add` ? out : 0), for matrices in memory whose elements are all R.
///
/// # Safety
/// `a` is m x k, `b` k x n and `out` m x n elements, aligned and alive; nothing else uses `out`, and its
/// elements are distinct.
unsafe fn gemm<R: Element>(
    (m, n, k): (usize, usize, usize),
    out: Placed,
    add: bool,
    a: Placed,
    b: Placed,
    parallel: bool,
) {
    let one = R::from_element(1.0);
    parallel::within(parallel, |threads| {
        let parallelism = if threads { gemm::Parallelism::Rayon(0) } else { gemm::Parallelism::None };
        // SAFETY: the caller's promise. gemm computes addresses by these strides alone, whatever their
        // signs, and does not read `out` unless told to add to it.
        unsafe {
            gemm::gemm(
                m,
                n,
                k,
                std::ptr::with_exposed_provenance_mut::<R>(out.address),
                out.col_stride as isize,
                out.row_stride as isize,
                add,
                std::ptr::with_exposed_provenance::<R>(a.address),
                a.col_stride as isize,
                a.row_stride as isize,
                std::ptr::with_exposed_provenance::<R>(b.address),
                b.col_stride as isize,
                b.row_stride as isize,
                one,
                one,
                false,
                false,
                false,
                parallelism,
            );
        }
    });
}

/// Multiplies into `rows` x `columns` of the output itself, which is of the arithmetic type.
fn gemm_in_place<T: Float>(
    product: Product<'_, T::Real>,
    rows: Range<usize>,
    columns: Range<usize>,
    parallel: bool,
) {
    let Product { k, a, b, out, .. } = product;
    let size = size_of::<T>();
    let a = Placed { address: a.at(size, rows.start, 0), ..a };
    let b = Placed { address: b.at(size, 0, columns.start), ..b };
    let out = Placed { address: out.at(size, rows.start, columns.start), ..out };
    // SAFETY: a problem's operands are memory of the given shapes that the caller keeps alive, `solve` has
    // checked type and alignment, and `check_out` has refused outputs that overlap themselves or an input.
    unsafe { gemm::<T>((rows.len(), columns.len(), k), out, false, a, b, parallel) };
}

/// a @ b of `rows` x `columns`, row by row, in the arithmetic type.
fn accumulate<T: Float>(
    product: Product<'_, T::Real>,
    rows: Range<usize>,
    columns: Range<usize>,
    parallel: bool,
) -> Vec<T::Real> {
    let Product { k, a, b, .. } = product;
    let (m, n) = (rows.len(), columns.len());
    let mut sums = vec![T::Real::default(); m * n];
    let out = Placed { address: sums.as_mut_ptr().expose_provenance(), row_stride: n as i64, col_stride: 1 };
    let (mut a_block, mut b_block) = (Vec::new(), Vec::new());
    for depth in even(k, K) {
        // Zeros make up what gemm wants at least.
        let padded = depth.len().max(4);
        let a = widened_block::<T>(a, rows.clone(), depth.clone(), [m, padded], &mut a_block, parallel);
        let b = widened_block::<T>(b, depth.clone(), columns.clone(), [padded, n], &mut b_block, parallel);
        // SAFETY: the three vectors are alive, distinct and of these sizes.
        unsafe { gemm::<T::Real>((m, n, padded), out, depth.start > 0, a, b, parallel) };
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
    parallel: bool,
) -> Placed {
    if matrix.row_stride.unsigned_abs() < matrix.col_stride.unsigned_abs() {
        let [height, width] = padded;
        let transposed =
            widened_block::<T>(matrix.transposed(), columns, rows, [width, height], to, parallel);
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
    parallel::for_rows(to, width, parallel, |first, to| {
        dispatch(LoadRows { source: &source, first, height, len, width, to });
    });
    Placed { address: to.as_ptr().expose_provenance(), row_stride: width as i64, col_stride: 1 }
}

/// Widens rows from `first` on into rows of `width` elements, for as long as the source has any.
struct LoadRows<'a, T: Float> {
    source: &'a Source<T>,
    first: usize,
    height: usize,
    len: usize,
    width: usize,
    to: &'a mut [T::Real],
}

impl<T: Float> Kernel for LoadRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let LoadRows { source, first, height, len, width, to } = self;
        for (row, to) in (first..height).zip(to.chunks_exact_mut(width)) {
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
fn finish_in_place<R: Float + Activate>(
    product: Product<'_, R>,
    rows: Range<usize>,
    columns: Range<usize>,
    parallel: bool,
) {
    let target = target::<R>(product.out, &rows, &columns);
    let width = columns.len();
    let bias = product.bias.map(|bias| &bias[columns]);
    parallel::for_each(rows.len(), parallel, |row| {
        // SAFETY: each row is visited by one thread.
        if let Some(row) = unsafe { target.slice(row * width, width) } {
            dispatch(Apply { activation: product.activation, bias, row });
        }
    });
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
    parallel: bool,
) {
    let target = target::<T>(product.out, &rows, &columns);
    let width = columns.len();
    let bias = product.bias.map(|bias| &bias[columns]);
    parallel::for_rows(&mut sums, width, parallel, |first, sums| {
        dispatch(Finish { activation: product.activation, bias, sums, width, target: &target, first });
    });
}

struct Finish<'a, T: Float> {
    activation: Activation,
    bias: Option<&'a [T::Real]>,
    sums: &'a mut [T::Real],
    width: usize,
    target: &'a Target<T>,
    first: usize,
}

impl<T: Float<Real: Activate>> Kernel for Finish<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Finish { activation, bias, sums, width, target, first } = self;
        for (i, sums) in sums.chunks_exact_mut(width).enumerate() {
            epilogue::apply(isa, activation, bias, sums);
            // SAFETY: each row of the output is visited by one thread, which holds no slice of it.
            unsafe { widened::store(isa, target, (first + i) * width, sums) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_all_and_are_about_as_long_whatever_the_length() {
        let parts: Vec<_> = even(1300, K).collect();
        assert_eq!(parts, [0..433, 433..866, 866..1300]);
        let mut parts = even((1 << 46) + 1, K);
        assert_eq!(parts.next(), Some(0..511));
        assert_eq!(parts.next_back().map(|last| last.end), Some((1 << 46) + 1));
    }
}
