//! add: out = x + alpha * y, in blocks of contiguous elements of the result's dtype.

use std::ops::Range;

use half::{bf16, f16};

use super::element::{Bool, Element};
use super::isa::{self, CACHE_LINE, Isa, Kernel, dispatch, dispatch_streaming};
use super::method::Method;
use super::operand::{BLOCK, MATRIX, Source, Target};
use super::parallel;
use super::streaming::Fill;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::Strided;
use crate::ops::add::{AddProblem, AddendProblem};

/// A function for elements of a dtype.
macro_rules! of_elements {
    ($dtype:expr, $function:ident($($argument:expr),*)) => {
        match $dtype {
            DType::Bool => $function::<Bool>($($argument),*),
            DType::U8 => $function::<u8>($($argument),*),
            DType::I8 => $function::<i8>($($argument),*),
            DType::I16 => $function::<i16>($($argument),*),
            DType::I32 => $function::<i32>($($argument),*),
            DType::I64 => $function::<i64>($($argument),*),
            DType::F16 => $function::<f16>($($argument),*),
            DType::BF16 => $function::<bf16>($($argument),*),
            DType::F32 => $function::<f32>($($argument),*),
            DType::F64 => $function::<f64>($($argument),*),
        }
    };
}

pub fn run(problem: &AddProblem) -> Result<()> {
    of_elements!(problem.out.dtype, add(problem));
    Ok(())
}

/// What `run` does.
pub fn method(problem: &AddProblem) -> Method {
    let streams = of_elements!(problem.out.dtype, streams());
    let method = match Tiles::of(problem) {
        Some(_) => return Method::new("tiles, for operands that lie across one another", "add.rs"),
        None => Method::new("elements in the order of memory", "add.rs"),
    };
    if streams { method.with(isa::name_streaming()) } else { method }
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
    let mut target = unsafe { Target::<T>::new(out.address, out.dtype, shape, &out.strides) };
    let in_place = problem.x.address == out.address
        || matches!(&problem.y, AddendProblem::Tensor(y) if y.address == out.address);
    if !in_place {
        target.stream(x.bytes() + y.bytes());
    }
    let alpha = T::arith(problem.alpha);

    // A sum is the same the other way round, and it is y that may be one number for a while, and x that may be the output.
    let (x, y) = match y {
        Addend::Elements(y)
            if problem.alpha.as_f64() == 1.0
                && (y.repeated(0) == 0 && x.repeated(0) > 0 || y.is_output() && !x.is_output()) =>
        {
            (y, Addend::Elements(x))
        }
        y => (x, y),
    };
    // Three operands in place stream at about 100 GB/s from cache; gathering, scattering or converting
    // costs about a nanosecond an element.
    let x_reach = if x.is_output() { usize::MAX } else { x.reach(0) };
    let staged =
        [x_reach, y.reach(0), target.reach(0)].iter().filter(|&&reach| reach < BLOCK.min(len)).count();
    let nanoseconds = len as f64 * ((0.03 * size_of::<T>() as f64).max(0.1) + staged as f64);
    let (x, y, out) = (&x, &y, &target);
    if let Some(tiles) = Tiles::of(problem) {
        return parallel::for_ranges(tiles.count(), 1, nanoseconds, |range| {
            dispatch(AddTiles { x, y, alpha, out, tiles, range });
        });
    }
    if let Some(rows) = Rows::of(problem, x, y, out) {
        return parallel::for_ranges(len / rows.columns, 1, nanoseconds, |range| {
            stream::<T, _>(AddRows { x, y, alpha, out, rows, range });
        });
    }
    parallel::for_ranges(len, BLOCK, nanoseconds, |range| {
        stream::<T, _>(AddRange { x, y, alpha, out, range });
    });
}

fn stream<T: Element, K: Kernel<Output = ()>>(add: K) {
    if streams::<T>() { dispatch_streaming(add) } else { dispatch(add) }
}

/// Whether additions wait for memory alone.
fn streams<T: Element>() -> bool {
    !T::WIDENED
}

impl<T: Element> Addend<T> {
    fn bytes(&self) -> usize {
        match self {
            Addend::Elements(y) => y.bytes(),
            Addend::Scalar(_) => 0,
        }
    }

    #[inline]
    fn reach(&self, start: usize) -> usize {
        match self {
            Addend::Elements(y) => y.reach(start).max(y.repeated(start)),
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
        let reach = |at: usize| {
            let x = if x.is_output() { usize::MAX } else { x.reach(at) };
            x.min(y.reach(at)).min(out.reach(at)).min(end - at)
        };
        if reach(start) == end - start {
            // No buffers, which would have to be cleared first: small additions are all overhead.
            return add_block(isa, x, y, alpha, out, start..end, [&mut [], &mut [], &mut []]);
        }
        let [mut a, mut b, mut c] = [[T::default(); BLOCK]; 3];
        while start < end {
            let len = match reach(start) {
                in_place @ SHORT.. => in_place,
                _ => BLOCK.min(end - start),
            };
            add_block(isa, x, y, alpha, out, start..start + len, [&mut a, &mut b, &mut c]);
            start += len;
        }
    }
}

/// Elements in place that are worth a visit of their own.
const SHORT: usize = 256;

/// Elements of a row, at least, for rows to be added where they lie.
const NARROW: usize = 16;

/// The last two dimensions row by row, where rows are contiguous but not one behind the other (a broadcast row or column,
/// a slice).
#[derive(Clone, Copy)]
struct Rows {
    /// Of a matrix.
    rows: usize,
    columns: usize,
}

impl Rows {
    fn of<T: Element>(problem: &AddProblem, x: &Source<T>, y: &Addend<T>, out: &Target<T>) -> Option<Rows> {
        let [.., rows, columns] = *problem.shape else { return None };
        let in_rows = match y {
            Addend::Elements(y) => y.has_rows() || y.is_one_a_row(),
            Addend::Scalar(_) => true,
        };
        let (rows, columns) = (rows as usize, columns as usize);
        let in_rows = in_rows && x.has_rows() && out.has_rows();
        (columns >= NARROW && in_rows && !out.is_streamed()).then_some(Rows { rows, columns })
    }
}

/// One thread's part of these, of the rows of all matrices.
struct AddRows<'a, T: Element> {
    x: &'a Source<T>,
    y: &'a Addend<T>,
    alpha: T::Arith,
    out: &'a Target<T>,
    rows: Rows,
    range: Range<usize>,
}

impl<T: Element> Kernel for AddRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let AddRows { x, y, alpha, out, rows: Rows { rows, columns }, range: Range { mut start, end } } =
            self;
        while start < end {
            let shape = [(rows - start % rows).min(end - start), columns];
            let first = start * columns;
            let x = x.matrix(first, shape, &mut []);
            // SAFETY: rows of different threads are disjoint, and so are those of one.
            let Some(mut out) = (unsafe { out.matrix(first, shape) }) else { return };
            match y {
                Addend::Elements(y) if y.has_rows() => {
                    let y = y.matrix(first, shape, &mut []);
                    for row in 0..shape[0] {
                        T::add(isa, x.row(row), y.row(row), alpha, out.row(row));
                    }
                }
                Addend::Elements(y) => {
                    for row in 0..shape[0] {
                        let y = y.at(first + row * columns).to_arith();
                        T::add_scalar(isa, x.row(row), y, alpha, out.row(row));
                    }
                }
                Addend::Scalar(y) => {
                    for row in 0..shape[0] {
                        T::add_scalar(isa, x.row(row), *y, alpha, out.row(row));
                    }
                }
            }
            start += shape[0];
        }
    }
}

/// The last two dimensions in tiles, where an input lies across the output (a transposed matrix): its neighbours along
/// a row are on different cache lines, and those along each line in different rows.
#[derive(Clone, Copy)]
struct Tiles {
    matrices: usize,
    rows: usize,
    columns: usize,
    /// Rows of a tile, and columns.
    height: usize,
    width: usize,
}

/// Columns of a tile, and rows at most, of matrices that are not thin: as many as four cache lines hold, so that each line of
/// an input across is used whole while it is in the cache.
const TILE: usize = 64;

/// Of a matrix with fewer rows or columns a tile has as many of the others as [`MATRIX`] elements leave room for.
const THIN: usize = 8;

impl Tiles {
    fn of(problem: &AddProblem) -> Option<Tiles> {
        let across = |operand: &Strided| match *operand.strides {
            [.., outer, inner] => outer != 0 && outer.unsigned_abs() < inner.unsigned_abs(),
            _ => false,
        };
        let crossed = across(&problem.x) || matches!(&problem.y, AddendProblem::Tensor(y) if across(y));
        let [.., rows, columns] = *problem.shape else { return None };
        let (rows, columns) = (rows as usize, columns as usize);
        let matrices = problem.elements() as usize / (rows * columns).max(1);
        let (height, width) = match (rows, columns) {
            (..THIN, _) => (THIN, MATRIX / THIN),
            (_, ..THIN) => (MATRIX / THIN, THIN),
            _ => (TILE.min(4 * CACHE_LINE / problem.out.dtype.size()), TILE),
        };
        crossed.then_some(Tiles { matrices, rows, columns, height, width })
    }

    /// Tiles from the first row of a matrix to its last.
    fn down(self) -> usize {
        self.rows.div_ceil(self.height)
    }

    /// The same of all matrices.
    fn count(self) -> usize {
        self.matrices * self.down()
    }

    /// First row of the `i`-th of these, of the rows of all matrices, and how many it has.
    fn nth(self, i: usize) -> (usize, usize) {
        let first = i % self.down() * self.height;
        (i / self.down() * self.rows + first, self.height.min(self.rows - first))
    }
}

/// One thread's part of these.
struct AddTiles<'a, T: Element> {
    x: &'a Source<T>,
    y: &'a Addend<T>,
    alpha: T::Arith,
    out: &'a Target<T>,
    tiles: Tiles,
    range: Range<usize>,
}

impl<T: Element> Kernel for AddTiles<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let AddTiles { x, y, alpha, out, tiles, range } = self;
        let [mut x_buffer, mut y_buffer] = [[T::default(); MATRIX]; 2];
        let mut sums = [T::default(); MATRIX / THIN];
        for (first, rows) in range.map(|i| tiles.nth(i)) {
            for column in (0..tiles.columns).step_by(tiles.width) {
                let columns = tiles.width.min(tiles.columns - column);
                let start = first * tiles.columns + column;
                let x = x.matrix(start, [rows, columns], &mut x_buffer);
                let y = match y {
                    Addend::Elements(y) => Ok(y.matrix(start, [rows, columns], &mut y_buffer)),
                    Addend::Scalar(y) => Err(*y),
                };
                if columns < THIN && columns == tiles.columns {
                    let y = match &y {
                        Ok(y) => y.whole().map(Ok),
                        Err(y) => Some(Err(*y)),
                    };
                    // SAFETY: tiles of different threads are disjoint.
                    let sums = unsafe { out.slice(start, rows * columns) };
                    if let (Some(x), Some(y), Some(sums)) = (x.whole(), y, sums) {
                        Sums { x, y, alpha }.fill(isa, 0..sums.len(), sums);
                        continue;
                    }
                }
                for row in 0..rows {
                    let start = start + row * tiles.columns;
                    // SAFETY: as above, and so are the rows of one.
                    let slice = unsafe { out.slice(start, columns) };
                    let stored = slice.is_some();
                    let sums = match slice {
                        Some(slice) => slice,
                        None => &mut sums[..columns],
                    };
                    let y = match &y {
                        Ok(y) => Ok(y.row(row)),
                        Err(y) => Err(*y),
                    };
                    Sums { x: x.row(row), y, alpha }.fill(isa, 0..columns, sums);
                    if !stored {
                        // SAFETY: as above; `sums` is the buffer.
                        unsafe { out.store(start, sums) };
                    }
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
    let y = match y {
        Addend::Elements(y) if y.repeated(start) >= len => Err(y.at(start).to_arith()),
        Addend::Elements(y) => Ok(y.block(start, len, y_buffer)),
        Addend::Scalar(y) => Err(*y),
    };
    // SAFETY: ranges of different threads are disjoint, and so are the blocks of one thread. y is other memory, or a copy.
    if let Some(to) = unsafe { out.slice(start, len) }.filter(|_| x.is_output()) {
        match y {
            Ok(y) => T::add_to(isa, to, y, alpha),
            Err(y) => T::add_scalar_to(isa, to, y, alpha),
        }
        return;
    }
    let x = x.block(start, len, x_buffer);
    let sums = Sums { x, y, alpha };
    if out.reach(start) >= len {
        // SAFETY: ranges of different threads are disjoint, and so are the blocks of one thread.
        return unsafe { out.fill(isa, start, len, &sums) };
    }
    sums.fill(isa, 0..len, &mut out_buffer[..len]);
    // SAFETY: as above, and there is no slice.
    unsafe { out.store(start, &out_buffer[..len]) };
}

/// x + alpha * y, where y may be one number.
struct Sums<'a, T: Element> {
    x: &'a [T],
    y: std::result::Result<&'a [T], T::Arith>,
    alpha: T::Arith,
}

impl<T: Element> Fill<T> for Sums<'_, T> {
    #[inline(always)]
    fn fill<I: Isa>(&self, isa: I, range: Range<usize>, to: &mut [T]) {
        let x = &self.x[range.clone()];
        match self.y {
            Ok(y) => T::add(isa, x, &y[range], self.alpha, to),
            Err(y) => T::add_scalar(isa, x, y, self.alpha, to),
        }
    }
}
