//! add: out = x + alpha * y, in blocks of contiguous elements of the result's dtype.

use std::ops::Range;

use half::{bf16, f16};

use super::element::{Bool, Element};
use super::isa::{Isa, Kernel, dispatch};
use super::operand::{BLOCK, Source, Target};
use super::parallel;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::Strided;
use crate::ops::add::{AddProblem, AddendProblem};

pub fn run(problem: &AddProblem) -> Result<()> {
    match problem.out.dtype {
        DType::Bool => add::<Bool>(problem),
        DType::U8 => add::<u8>(problem),
        DType::I8 => add::<i8>(problem),
        DType::I16 => add::<i16>(problem),
        DType::I32 => add::<i32>(problem),
        DType::I64 => add::<i64>(problem),
        DType::F16 => add::<f16>(problem),
        DType::BF16 => add::<bf16>(problem),
        DType::F32 => add::<f32>(problem),
        DType::F64 => add::<f64>(problem),
    }
    Ok(())
}

enum Addend<T: Element> {
    Elements(Source<T>),
    Scalar(T::Arith),
}

fn add<T: Element>(problem: &AddProblem) {
    let AddProblem { shape, out, .. } = problem;
    let len = problem.elements() as usize;
    let source = |s: &Strided| {
        // SAFETY: a problem's operands are memory that the caller keeps alive for the call, and
        // `ops::output::check_out` has let an input overlap `out` only by being exactly it.
        unsafe { Source::<T>::new(s.address, s.dtype, shape, &s.strides, out.address) }
    };
    let x = source(&problem.x);
    let y = match &problem.y {
        AddendProblem::Tensor(y) => Addend::Elements(source(y)),
        AddendProblem::Scalar(value) => Addend::Scalar(T::arith(*value)),
    };
    // SAFETY: `check_out` has refused outputs that overlap themselves or an input.
    let target = unsafe { Target::<T>::new(out.address, shape, &out.strides) };
    let alpha = T::arith(problem.alpha);

    // Three operands in place stream at about 100 GB/s from cache; gathering, scattering or converting
    // costs about a nanosecond an element.
    let staged =
        [x.reach(0), y.reach(0), target.reach(0)].iter().filter(|&&reach| reach < BLOCK.min(len)).count();
    let nanoseconds = len as f64 * (0.03 * size_of::<T>() as f64 + staged as f64);
    let (x, y, out) = (&x, &y, &target);
    match crossed_row(problem) {
        Some(row) => parallel::for_ranges(len / row, STRIP_ROWS, nanoseconds, |rows| {
            dispatch(AddStrips { x, y, alpha, out, row, rows });
        }),
        None => parallel::for_ranges(len, BLOCK, nanoseconds, |range| {
            dispatch(AddRange { x, y, alpha, out, range });
        }),
    }
}

/// The length of an output row, if an input lies across it (a transposed matrix): its neighbours along the row
/// are on different cache lines, and those along each line in different rows.
fn crossed_row(problem: &AddProblem) -> Option<usize> {
    let across = |operand: &Strided| match *operand.strides {
        [.., outer, inner] => outer != 0 && outer.unsigned_abs() < inner.unsigned_abs(),
        _ => false,
    };
    let crossed = across(&problem.x) || matches!(&problem.y, AddendProblem::Tensor(y) if across(y));
    problem.shape.last().filter(|_| crossed).map(|&row| row as usize)
}

impl<T: Element> Addend<T> {
    #[inline]
    fn reach(&self, start: usize) -> usize {
        match self {
            Addend::Elements(y) => y.reach(start),
            Addend::Scalar(_) => usize::MAX,
        }
    }
}

/// One thread's part.
struct AddRange<'a, T: Element> {
    x: &'a Source<T>,
    y: &'a Addend<T>,
    alpha: T::Arith,
    out: &'a Target<T>,
    range: Range<usize>,
}

impl<T: Element> Kernel for AddRange<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let AddRange { x, y, alpha, out, range: Range { mut start, end } } = self;
        let reach = |at: usize| x.reach(at).min(y.reach(at)).min(out.reach(at)).min(end - at);
        if reach(start) == end - start {
            // No buffers, which would have to be cleared first: small additions are all overhead.
            return add_block(isa, x, y, alpha, out, start..end, [&mut [], &mut [], &mut []]);
        }
        let [mut a, mut b, mut c] = [[T::default(); BLOCK]; 3];
        while start < end {
            let in_place = reach(start);
            let len = if in_place >= BLOCK { in_place } else { BLOCK.min(end - start) };
            add_block(isa, x, y, alpha, out, start..start + len, [&mut a, &mut b, &mut c]);
            start += len;
        }
    }
}

/// Elements of a strip along the row, and rows that share it: 64 cache lines, each used 16 times while it is in
/// the cache. 2048 x 2048 float32 plus a transposed matrix: 2.7 ns an element instead of the 6 of going row by row.
const STRIP: usize = 64;
const STRIP_ROWS: usize = 16;

/// One thread's part where an input lies across the output.
struct AddStrips<'a, T: Element> {
    x: &'a Source<T>,
    y: &'a Addend<T>,
    alpha: T::Arith,
    out: &'a Target<T>,
    row: usize,
    rows: Range<usize>,
}

impl<T: Element> Kernel for AddStrips<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let AddStrips { x, y, alpha, out, row, rows } = self;
        let [mut a, mut b, mut c] = [[T::default(); STRIP]; 3];
        for first in rows.clone().step_by(STRIP_ROWS) {
            for column in (0..row).step_by(STRIP) {
                for r in first..rows.end.min(first + STRIP_ROWS) {
                    let range = r * row + column..r * row + row.min(column + STRIP);
                    add_block(isa, x, y, alpha, out, range, [&mut a, &mut b, &mut c]);
                }
            }
        }
    }
}

/// Adds one range; the buffers serve those operands that do not lie in place.
#[inline(always)]
fn add_block<T: Element, I: Isa>(
    isa: I,
    x: &Source<T>,
    y: &Addend<T>,
    alpha: T::Arith,
    out: &Target<T>,
    range: Range<usize>,
    [x_buffer, y_buffer, out_buffer]: [&mut [T]; 3],
) {
    let (start, len) = (range.start, range.len());
    // SAFETY: ranges of different threads are disjoint, and so are the blocks of one thread.
    let slice = unsafe { out.slice(start, len) };
    let stored = slice.is_some();
    let sums = slice.unwrap_or_else(|| &mut out_buffer[..len]);
    let x = x.block(start, len, x_buffer);
    match y {
        Addend::Elements(y) => T::add(isa, x, y.block(start, len, y_buffer), alpha, sums),
        Addend::Scalar(y) => T::add_scalar(isa, x, *y, alpha, sums),
    }
    if !stored {
        // SAFETY: as above; `sums` is the buffer, the target gave no slice.
        unsafe { out.store(start, sums) };
    }
}
