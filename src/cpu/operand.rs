//! Strided memory, seen as one long row of elements: handed out in place where it is contiguous, copied
//! (and converted) block by block into a small buffer where it is not.
//!
//! Every kernel of add and softmax thus works on contiguous slices of one type.

use std::marker::PhantomData;
use std::ops::Range;
use std::{mem, ptr, slice};

use half::{bf16, f16};

use super::element::{Bool, Element};
use super::isa::{CACHE_LINE, Isa, Kernel, dispatch};
#[cfg(target_arch = "x86_64")]
use super::register::x86::transpose_2;
use super::register::{BLOCK as SQUARE, Tiles, prefetch};
use super::streaming::{self, Fill};
use super::{memory, parallel};
use crate::dtype::DType;
use crate::tensor::Dims;

/// Elements in a staging buffer: three of them, of 8 bytes each, fit the first-level cache.
pub const BLOCK: usize = 1024;

/// Evaluates an expression with E as the element type of a dtype.
macro_rules! with_element {
    ($dtype:expr, $element:ident => $body:expr) => {
        with_element!(@ $dtype, $element, $body, Bool Bool, U8 u8, I8 i8, I16 i16, I32 i32, I64 i64, F16 f16, BF16 bf16,
            F32 f32, F64 f64)
    };
    (@ $dtype:expr, $element:ident, $body:expr, $($name:ident $type:ty),*) => {
        match $dtype {
            $(DType::$name => {
                type $element = $type;
                $body
            })*
        }
    };
}

/// An index space in row-major order, and where each index lies.
#[derive(Clone, Debug)]
struct Walk {
    address: usize,
    /// No dimension of size 1 and no two that step as one; the last is the run of equal steps.
    shape: Dims,
    strides: Dims,
}

impl Walk {
    fn new(address: usize, shape: &[i64], strides: &[i64]) -> Walk {
        let mut walk = Walk { address, shape: Dims::new(), strides: Dims::new() };
        for (&size, &stride) in shape.iter().zip(strides).filter(|&(&size, _)| size != 1) {
            match (walk.shape.last_mut(), walk.strides.last_mut()) {
                (Some(outer), Some(step)) if *step == size * stride => {
                    *outer *= size;
                    *step = stride;
                }
                _ => {
                    walk.shape.push(size);
                    walk.strides.push(stride);
                }
            }
        }
        if walk.shape.is_empty() {
            walk.shape.push(1);
            walk.strides.push(1);
        }
        walk
    }

    /// Bytes of its elements, of `size` each; an expanded dimension counts once.
    fn bytes(&self, size: usize) -> usize {
        let steps = self.shape.iter().zip(&self.strides).filter(|&(_, &stride)| stride != 0);
        steps.map(|(&len, _)| len as usize).product::<usize>() * size
    }

    /// Splits a linear index into one per dimension; also the offset they lead to, in elements.
    fn locate(&self, start: usize) -> (Dims, i64) {
        let mut index = Dims::from_elem(0, self.shape.len());
        let (mut rest, mut offset) = (start as i64, 0);
        for (i, (&size, &stride)) in index.iter_mut().zip(self.shape.iter().zip(&self.strides)).rev() {
            *i = rest % size;
            rest /= size;
            offset += *i * stride;
        }
        (index, offset)
    }

    /// Where `start` lies.
    #[inline]
    fn offset(&self, start: usize) -> i64 {
        let (mut rest, mut offset) = (start as i64, 0);
        let inner = self.shape[1..].iter().zip(&self.strides[1..]);
        for (&size, &stride) in inner.rev() {
            offset += rest % size * stride;
            rest /= size;
        }
        offset + rest * self.strides[0]
    }

    /// Where `start` lies and how many elements from there on follow one another without a gap.
    #[inline]
    fn contiguous_from(&self, start: usize) -> (i64, usize) {
        match (self.shape.as_slice(), self.strides.as_slice()) {
            (&[size], &[1]) => (start as i64, size as usize - start),
            (&[_, inner], &[outer, 1]) => {
                let (row, column) = (start as i64 / inner, start as i64 % inner);
                (row * outer + column, (inner - column) as usize)
            }
            (&[.., inner], &[.., 1]) => {
                let (index, offset) = self.locate(start);
                (offset, (inner - index.last().copied().unwrap_or(0)) as usize)
            }
            _ => (0, 0),
        }
    }

    /// Calls `f` with the offset, step and length of each run within `len` elements from `start` on.
    fn for_runs(&self, start: usize, len: usize, mut f: impl FnMut(isize, isize, usize)) {
        let (Some(&inner), Some(&step)) = (self.shape.last(), self.strides.last()) else { return };
        let (mut index, mut offset) = self.locate(start);
        let mut within = index.pop().unwrap_or(0);
        let mut left = len;
        loop {
            let run = left.min((inner - within) as usize);
            f(offset as isize, step as isize, run);
            left -= run;
            if left == 0 {
                return;
            }
            offset -= within * step;
            within = 0;
            for (i, (&size, &stride)) in index.iter_mut().zip(self.shape.iter().zip(&self.strides)).rev() {
                *i += 1;
                offset += stride;
                if *i < size {
                    break;
                }
                offset -= size * stride;
                *i = 0;
            }
        }
    }

    /// How many elements from `start` on are one and the same.
    #[inline]
    fn repeated_from(&self, start: usize) -> usize {
        match (self.shape.as_slice(), self.strides.as_slice()) {
            (&[.., inner], &[.., 0]) => (inner - start as i64 % inner) as usize,
            _ => 0,
        }
    }

    fn pointer<T>(&self) -> *mut T {
        ptr::with_exposed_provenance_mut(self.address)
    }

    /// Copies elements from `start` on into `to`, without converting them.
    ///
    /// # Safety
    /// The walk is over elements of type T that may be read, and `to` is not among them.
    unsafe fn gather<T: Copy>(&self, start: usize, to: &mut [T]) {
        let base = self.pointer::<T>();
        if let (&[.., rows, length], &[.., 1, step]) = (&self.shape[..], &self.strides[..])
            && start.is_multiple_of(length as usize)
            && to.len().is_multiple_of(length as usize)
        {
            let (rows, length) = (rows as usize, length as usize);
            let (mut row, mut to) = (start / length, to);
            while !to.is_empty() {
                let count = (rows - row % rows).min(to.len() / length);
                let (these, rest) = to.split_at_mut(count * length);
                let from = base.wrapping_offset(self.offset(row * length) as isize).cast_const();
                // SAFETY: the caller's promise, for so many rows that are neighbours.
                dispatch(unsafe { Across::new(from, step as isize, length, these) });
                (row, to) = (row + count, rest);
            }
            return;
        }
        let mut done = 0;
        self.for_runs(start, to.len(), |offset, step, run| {
            let from = base.wrapping_offset(offset).cast_const();
            let to = &mut to[done..done + run];
            done += run;
            // SAFETY: runs stay within the walk, which the caller vouches for. The memory may be less
            // aligned than T asks for, so nothing here relies on alignment.
            unsafe {
                match step {
                    1 => ptr::copy_nonoverlapping(from.cast::<u8>(), to.as_mut_ptr().cast(), size_of_val(to)),
                    0 => to.fill(from.read_unaligned()),
                    2 => dispatch(EverySecond { from, to }),
                    _ => {
                        for (i, t) in to.iter_mut().enumerate() {
                            *t = from.wrapping_offset(i as isize * step).read_unaligned();
                        }
                    }
                }
            }
        });
    }

    /// Copies `from` to the elements from `start` on.
    ///
    /// # Safety
    /// They are of type T, may be written, and are not those of `from`.
    unsafe fn scatter<T: Copy>(&self, start: usize, from: &[T]) {
        let base = self.pointer::<T>();
        let mut done = 0;
        self.for_runs(start, from.len(), |offset, step, run| {
            let to = base.wrapping_offset(offset);
            let from = &from[done..done + run];
            done += run;
            // SAFETY: the caller's promise. No alignment is assumed.
            unsafe {
                if step == 1 {
                    ptr::copy_nonoverlapping(from.as_ptr().cast::<u8>(), to.cast(), mem::size_of_val(from));
                } else {
                    for (i, &f) in from.iter().enumerate() {
                        to.wrapping_offset(i as isize * step).write_unaligned(f);
                    }
                }
            }
        });
    }
}

/// Reads every second element from `from` on, as many as `to` has, all of which may be read.
struct EverySecond<'a, T> {
    from: *const T,
    to: &'a mut [T],
}

impl<T: Copy> Kernel for EverySecond<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, _: I) {
        for (i, t) in self.to.iter_mut().enumerate() {
            // SAFETY: the maker's promise; no alignment is assumed.
            *t = unsafe { self.from.add(2 * i).read_unaligned() };
        }
    }
}

/// Elements of a row that are copied before the next row's: few rows use a part of their cache lines, which is to be there still.
const FEW: usize = 256;

/// Copies rows that lie across the memory: the next element of a row is `step` further, the next row's is a neighbour.
struct Across<'a, T> {
    from: *const T,
    step: isize,
    /// Of a row.
    length: usize,
    to: &'a mut [T],
}

impl<'a, T: Copy> Across<'a, T> {
    /// # Safety
    /// All elements of as many rows as `to` is for may be read; `to` is not among them.
    unsafe fn new(from: *const T, step: isize, length: usize, to: &'a mut [T]) -> Across<'a, T> {
        Across { from, step, length, to }
    }

    /// Copies elements of some rows.
    #[inline(always)]
    fn copy(&mut self, rows: Range<usize>, elements: Range<usize>) {
        if elements.len() < rows.len() {
            for i in elements {
                let from = self.from.wrapping_offset(i as isize * self.step);
                let to = self.to[i..].iter_mut().step_by(self.length);
                for (row, to) in rows.clone().zip(to.skip(rows.start)) {
                    // SAFETY: the promise of `new`; no alignment is assumed.
                    *to = unsafe { from.wrapping_add(row).read_unaligned() };
                }
            }
            return;
        }
        for row in rows {
            let from = self.from.wrapping_add(row);
            let to = &mut self.to[row * self.length..][elements.clone()];
            for (i, to) in elements.clone().zip(to) {
                // SAFETY: the promise of `new`; no alignment is assumed.
                *to = unsafe { from.wrapping_offset(i as isize * self.step).read_unaligned() };
            }
        }
    }

    /// Asks for the cache lines of a square.
    #[inline(always)]
    fn ask(&self, row: usize, i: usize) {
        for i in i..i + SQUARE {
            prefetch(self.from.wrapping_offset(i as isize * self.step).wrapping_add(row));
        }
    }

    /// Copies a square.
    #[inline(always)]
    fn transpose<I: Isa>(&mut self, row: usize, i: usize) {
        let from = self.from.wrapping_offset(i as isize * self.step).wrapping_add(row);
        let to = &mut self.to[row * self.length + i..][..(SQUARE - 1) * self.length + SQUARE];
        let (step, to_step) = (self.step as usize, self.length);
        // SAFETY: there is an `I`, so that the CPU has its instructions; all that is read is promised by `new`, and what is
        // written is within `to`.
        unsafe {
            match size_of::<T>() {
                4 => I::F32::transpose(from.cast(), step, to.as_mut_ptr().cast(), to_step),
                8 => I::F64::transpose(from.cast(), step, to.as_mut_ptr().cast(), to_step),
                #[cfg(target_arch = "x86_64")]
                2 => transpose_2(from.cast(), step, to.as_mut_ptr().cast(), to_step),
                _ => self.copy(row..row + SQUARE, i..i + SQUARE),
            }
        }
    }
}

impl<T: Copy> Kernel for Across<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(mut self, _: I) {
        let (rows, length) = (self.to.len() / self.length, self.length);
        if self.step <= 0 || rows < SQUARE || length < SQUARE {
            for i in (0..length).step_by(FEW) {
                self.copy(0..rows, i..length.min(i + FEW));
            }
            return;
        }
        // Cache lines of the memory are used whole while they are there: they may all be in one set.
        let line = (CACHE_LINE / size_of::<T>()).max(SQUARE);
        // Lines that the CPU does not foresee are asked for while the squares before theirs are copied.
        let far = self.step.unsigned_abs() * size_of::<T>() > 4 * CACHE_LINE;
        for first in (0..rows).step_by(line) {
            let end = rows.min(first + line);
            for i in (0..length).step_by(SQUARE) {
                if far && i + SQUARE < length {
                    self.ask(first, i + SQUARE);
                } else if far && end < rows {
                    self.ask(end, 0);
                }
                // The last squares go back to where there are whole ones, and copy some elements again.
                for row in (first..end).step_by(SQUARE) {
                    self.transpose::<I>(row.min(rows - SQUARE), i.min(length - SQUARE));
                }
            }
        }
    }
}

fn last_two(strides: &[i64]) -> [i64; 2] {
    match *strides {
        [.., row, column] => [row, column],
        [column] => [0, column],
        [] => [0, 0],
    }
}

/// Whether elements in memory of a dtype can be used where they lie as those of another: aligned, and of the same.
#[inline]
pub fn is_in_place(address: usize, dtype: DType, used: DType) -> bool {
    dtype == used && address.is_multiple_of(used.size())
}

/// An input, read as elements of type T whatever its own dtype is.
#[derive(Clone, Debug)]
pub struct Source<T> {
    walk: Walk,
    dtype: DType,
    /// Whether slices of the memory itself may be handed out.
    in_place: bool,
    /// Whether the elements are those that the target writes, one for one.
    is_output: bool,
    /// Whether the memory may be read as slices of its own dtype: aligned, and not at the address that is written.
    is_sliceable: bool,
    /// Of the last two dimensions.
    strides: [i64; 2],
    element: PhantomData<T>,
}

impl<T: Element> Source<T> {
    /// # Safety
    /// Every index of `shape` is an element of `dtype` that may be read while the source is in use. It is
    /// written only through a [`Target`], which either does not overlap it or steps through the same
    /// elements in the same order; `written` is the address of that target.
    pub unsafe fn new(
        address: usize,
        dtype: DType,
        shape: &[i64],
        strides: &[i64],
        written: usize,
    ) -> Source<T> {
        let usable = is_in_place(address, dtype, T::DTYPE);
        Source {
            walk: Walk::new(address, shape, strides),
            dtype,
            in_place: usable && address != written,
            is_output: usable && address == written,
            is_sliceable: is_in_place(address, dtype, dtype) && address != written,
            strides: last_two(strides),
            element: PhantomData,
        }
    }

    /// Bytes of its elements; an expanded dimension counts once.
    pub fn bytes(&self) -> usize {
        self.walk.bytes(self.dtype.size())
    }

    /// Whether the elements are those that the target writes, of its dtype and aligned.
    pub fn is_output(&self) -> bool {
        self.is_output
    }

    /// How many elements from `start` on [`slice`](Self::slice) can give.
    #[inline]
    pub fn reach(&self, start: usize) -> usize {
        if self.in_place { self.walk.contiguous_from(start).1 } else { 0 }
    }

    /// How many elements from `start` on are one and the same in memory.
    #[inline]
    pub fn repeated(&self, start: usize) -> usize {
        self.walk.repeated_from(start)
    }

    /// Whether rows of the last dimension are one element each, repeated, that needs no conversion.
    pub fn is_one_a_row(&self) -> bool {
        self.in_place && self.strides[1] == 0
    }

    /// The element at `start`.
    pub fn at(&self, start: usize) -> T {
        if self.in_place {
            let element = self.walk.pointer::<T>().wrapping_offset(self.walk.offset(start) as isize);
            // SAFETY: `new` vouches for the memory, which is aligned and of type T.
            return unsafe { element.read() };
        }
        let mut element = [T::default()];
        self.load(start, &mut element);
        element[0]
    }

    /// The memory itself, or nothing if it does not reach that far.
    #[inline]
    pub fn slice(&self, start: usize, len: usize) -> Option<&[T]> {
        let (offset, reach) = self.walk.contiguous_from(start);
        if !self.in_place || len > reach {
            return None;
        }
        let first = self.walk.pointer::<T>().wrapping_offset(offset as isize);
        // SAFETY: `new` vouches for the memory, which is aligned, of type T, not written while `in_place`,
        // and contiguous for `reach` elements.
        Some(unsafe { slice::from_raw_parts(first, len) })
    }

    /// The elements from `start` on: the memory itself where possible, else a copy in `buffer`.
    #[inline]
    pub fn block<'a>(&'a self, start: usize, len: usize, buffer: &'a mut [T]) -> &'a [T] {
        match self.slice(start, len) {
            Some(slice) => slice,
            None => {
                self.load(start, &mut buffer[..len]);
                &buffer[..len]
            }
        }
    }

    /// The same with a buffer that grows.
    #[inline(always)]
    pub fn read<'a>(&'a self, start: usize, len: usize, buffer: &'a mut Vec<T>) -> &'a [T] {
        match self.slice(start, len) {
            Some(slice) => slice,
            None => {
                buffer.resize(len, T::default());
                self.load(start, buffer);
                buffer
            }
        }
    }

    /// Copies the elements from `start` on, converted to T.
    #[inline(never)]
    pub fn load(&self, start: usize, to: &mut [T]) {
        with_element!(self.dtype, E => self.load_from::<E>(start, to));
    }

    fn load_from<E: Element>(&self, start: usize, to: &mut [T]) {
        if E::DTYPE == T::DTYPE {
            // SAFETY: `new` vouches for the memory; its elements are T; `to` is the caller's own buffer.
            return unsafe { self.walk.gather(start, to) };
        }
        let (offset, reach) = self.walk.contiguous_from(start);
        if self.is_sliceable && reach >= to.len() {
            let first = self.walk.pointer::<E>().wrapping_offset(offset as isize);
            // SAFETY: `new` vouches for the memory, which is aligned, of type E and contiguous for `reach` elements; nobody
            // writes it while the slice is alive.
            let from = unsafe { slice::from_raw_parts(first.cast_const(), to.len()) };
            return dispatch(Convert { from, to });
        }
        let mut raw = [E::default(); BLOCK];
        for (i, to) in to.chunks_mut(BLOCK).enumerate() {
            let raw = &mut raw[..to.len()];
            // SAFETY: `new` vouches for the memory; its elements are E; `raw` is a local.
            unsafe { self.walk.gather(start + i * BLOCK, raw) };
            dispatch(Convert { from: raw, to });
        }
    }

    /// Rows of this length that are to be read together: as many as have elements on a cache line, where they lie across
    /// the memory.
    pub fn rows_across(&self, length: usize) -> usize {
        match self.strides {
            [1, step] if step != 1 => (CACHE_LINE / size_of::<T>()).min((1 << 16) / length).max(1),
            _ => 1,
        }
    }

    /// Whether [`matrix`](Self::matrix) is the memory itself, of any size, and needs no buffer.
    pub fn has_rows(&self) -> bool {
        self.in_place && self.strides[1] == 1
    }

    /// So many rows and columns of the last two dimensions, from the element at `start` on: the memory itself if rows
    /// are contiguous there, else a copy in `buffer`, which is for [`MATRIX`] elements.
    #[inline]
    pub fn matrix<'a>(
        &'a self,
        start: usize,
        [rows, columns]: [usize; 2],
        buffer: &'a mut [T],
    ) -> Matrix<'a, T> {
        let offset = self.walk.offset(start);
        let row_stride = self.strides[0] as isize;
        let (first, step) = if self.has_rows() {
            (self.walk.pointer::<T>().wrapping_offset(offset as isize).cast_const(), row_stride)
        } else {
            let buffer = &mut buffer[..rows * columns];
            self.load_matrix(offset as isize, columns, buffer);
            (buffer.as_ptr(), columns as isize)
        };
        Matrix { first, step, rows, columns, memory: PhantomData }
    }

    /// A row of so many elements, followed by others of this value, as a copy in `buffer`.
    pub fn padded_row<'a>(
        &'a self,
        start: usize,
        elements: usize,
        columns: usize,
        value: T,
        buffer: &'a mut Vec<T>,
    ) -> Matrix<'a, T> {
        buffer.resize(MATRIX, T::default());
        if self.has_rows() {
            let row = self.matrix(start, [1, elements], &mut []);
            buffer[..elements].copy_from_slice(row.row(0));
        } else {
            self.matrix(start, [1, elements], buffer);
        }
        let row = &mut buffer[..columns];
        row[elements..].fill(value);
        Matrix { first: row.as_ptr(), step: 0, rows: 1, columns, memory: PhantomData }
    }

    #[inline(never)]
    fn load_matrix(&self, offset: isize, columns: usize, to: &mut [T]) {
        with_element!(self.dtype, E => self.load_matrix_from::<E>(offset, columns, to));
    }

    fn load_matrix_from<E: Element>(&self, offset: isize, columns: usize, to: &mut [T]) {
        let first = self.walk.pointer::<E>().wrapping_offset(offset).cast_const();
        if E::DTYPE == T::DTYPE {
            // SAFETY: `new` vouches for the memory; its elements are T; `to` is the caller's own buffer.
            return unsafe { gather_matrix(first.cast::<T>(), self.strides, columns, to) };
        }
        let mut raw = [E::default(); MATRIX];
        let raw = &mut raw[..to.len()];
        // SAFETY: `new` vouches for the memory; its elements are E; `raw` is a local.
        unsafe { gather_matrix(first, self.strides, columns, raw) };
        dispatch(Convert { from: raw, to });
    }
}

/// Elements of a matrix, at most: with those of another dtype that it is read in, it fits a second-level cache.
pub const MATRIX: usize = 4096;

/// Copies a matrix row by row, but reads along its columns unless rows are contiguous.
///
/// # Safety
/// All its elements, of which `first` is the first, may be read; `to` is not among them.
unsafe fn gather_matrix<T: Copy>(first: *const T, strides: [i64; 2], columns: usize, to: &mut [T]) {
    let [row_stride, column_stride] = strides.map(|stride| stride as isize);
    if column_stride == 1 {
        for (row, to) in to.chunks_exact_mut(columns).enumerate() {
            let from = first.wrapping_offset(row as isize * row_stride).cast::<u8>();
            // SAFETY: the caller's promise. No alignment is assumed.
            unsafe { ptr::copy_nonoverlapping(from, to.as_mut_ptr().cast(), size_of_val(to)) };
        }
        return;
    }
    if row_stride == 1 {
        // SAFETY: the caller's promise.
        return dispatch(unsafe { Across::new(first, column_stride, columns, to) });
    }
    for column in 0..columns {
        let mut from = first.wrapping_offset(column as isize * column_stride);
        for to in to[column..].iter_mut().step_by(columns) {
            // SAFETY: the caller's promise; no alignment is assumed.
            *to = unsafe { from.read_unaligned() };
            from = from.wrapping_offset(row_stride);
        }
    }
}

/// Contiguous rows of an output, evenly apart.
#[derive(Debug)]
pub struct MatrixMut<'a, T> {
    first: *mut T,
    step: isize,
    rows: usize,
    columns: usize,
    memory: PhantomData<&'a mut [T]>,
}

impl<T> MatrixMut<'_, T> {
    #[inline(always)]
    pub fn row(&mut self, row: usize) -> &mut [T] {
        self.part(row, 0, self.columns)
    }

    /// So many elements of a row.
    #[inline(always)]
    pub fn part(&mut self, row: usize, first: usize, count: usize) -> &mut [T] {
        assert!(row < self.rows && first <= self.columns && count <= self.columns - first);
        let start = self.first.wrapping_offset(row as isize * self.step).wrapping_add(first);
        // SAFETY: `Target::matrix` has found so many rows, which nobody else uses while this is alive.
        unsafe { slice::from_raw_parts_mut(start, count) }
    }
}

/// Contiguous rows, evenly apart.
#[derive(Debug)]
pub struct Matrix<'a, T> {
    first: *const T,
    step: isize,
    rows: usize,
    columns: usize,
    memory: PhantomData<&'a [T]>,
}

impl<'a, T> Matrix<'a, T> {
    /// Elements from a row to the next.
    #[inline(always)]
    pub fn step(&self) -> isize {
        self.step
    }

    /// All of it, if rows follow one another.
    #[inline(always)]
    pub fn whole(&self) -> Option<&'a [T]> {
        let len = self.rows * self.columns;
        // SAFETY: as of `part`, of rows without a gap.
        (self.step == self.columns as isize).then(|| unsafe { slice::from_raw_parts(self.first, len) })
    }

    #[inline(always)]
    pub fn row(&self, row: usize) -> &'a [T] {
        self.part(row, 0, self.columns)
    }

    /// So many elements of a row.
    #[inline(always)]
    pub fn part(&self, row: usize, first: usize, count: usize) -> &'a [T] {
        assert!(row < self.rows && first <= self.columns && count <= self.columns - first);
        let start = self.first.wrapping_offset(row as isize * self.step).wrapping_add(first);
        // SAFETY: `Source::matrix` has made so many rows, of memory that outlives 'a.
        unsafe { slice::from_raw_parts(start, count) }
    }
}

struct Convert<'a, E, T> {
    from: &'a [E],
    to: &'a mut [T],
}

impl<E: Element, T: Element> Kernel for Convert<'_, E, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        T::convert(isa, self.from, self.to);
    }
}

/// Contiguous bytes that are worth streaming: several lines.
const SHORTEST_STREAM: usize = 512;

/// The output, written from elements of type T whatever its own dtype is.
#[derive(Clone, Debug)]
pub struct Target<T> {
    walk: Walk,
    dtype: DType,
    /// Whether slices of the memory itself may be handed out.
    in_place: bool,
    /// Whether [`fill`](Self::fill) writes past the caches.
    streamed: bool,
    /// Of the last two dimensions.
    strides: [i64; 2],
    element: PhantomData<T>,
}

impl<T: Element> Target<T> {
    /// # Safety
    /// Every index of `shape` is an element of `dtype` of its own, which may be written and is read or
    /// written by nobody else while the target is in use, but through a [`Source`] told of it.
    pub unsafe fn new(address: usize, dtype: DType, shape: &[i64], strides: &[i64]) -> Target<T> {
        let in_place = is_in_place(address, dtype, T::DTYPE);
        let walk = Walk::new(address, shape, strides);
        if let ([len], [1]) = (&walk.shape[..], &walk.strides[..]) {
            memory::ask_for_huge_pages(address, *len as usize * dtype.size());
        }
        Target { walk, dtype, in_place, streamed: false, strides: last_two(strides), element: PhantomData }
    }

    /// From here on [`fill`](Self::fill) writes past the caches where that pays, if so many bytes are read for it. Not for
    /// memory that is an input too: its lines are in the caches already.
    pub fn stream(&mut self, read: usize) {
        let run = match (self.walk.shape.last(), self.walk.strides.last()) {
            (Some(&len), Some(1)) => len as usize * size_of::<T>(),
            _ => 0,
        };
        let written = self.walk.bytes(size_of::<T>());
        self.streamed =
            self.in_place && run >= SHORTEST_STREAM && streaming::pays(written, read, parallel::threads);
    }

    pub fn is_streamed(&self) -> bool {
        self.streamed
    }

    /// Whether [`matrix`](Self::matrix) has any rows.
    pub fn has_rows(&self) -> bool {
        self.in_place && self.strides[1] == 1
    }

    /// So many rows and columns of the last two dimensions, from the element at `start` on, if rows are contiguous there.
    ///
    /// # Safety
    /// They are elements of the same rows, and no slice of them is alive.
    #[allow(clippy::mut_from_ref)] // As below.
    pub unsafe fn matrix(&self, start: usize, [rows, columns]: [usize; 2]) -> Option<MatrixMut<'_, T>> {
        let row_stride = self.strides[0];
        let offset = self.walk.offset(start);
        let first = self.walk.pointer::<T>().wrapping_offset(offset as isize);
        let matrix = MatrixMut { first, step: row_stride as isize, rows, columns, memory: PhantomData };
        self.has_rows().then_some(matrix)
    }

    /// How many elements from `start` on [`slice`](Self::slice) can give.
    #[inline]
    pub fn reach(&self, start: usize) -> usize {
        if self.in_place { self.walk.contiguous_from(start).1 } else { 0 }
    }

    /// The memory itself, or nothing if it does not reach that far.
    ///
    /// # Safety
    /// No other slice of these elements, from this target or another, is alive.
    #[inline]
    #[allow(clippy::mut_from_ref)] // Threads share a target and write disjoint parts of it.
    pub unsafe fn slice(&self, start: usize, len: usize) -> Option<&mut [T]> {
        let (offset, reach) = self.walk.contiguous_from(start);
        if !self.in_place || len > reach {
            return None;
        }
        let first = self.walk.pointer::<T>().wrapping_offset(offset as isize);
        // SAFETY: `new` vouches for the memory, which is aligned and contiguous for `reach` elements; the
        // caller for there being no other reference. Any bits are a valid T.
        Some(unsafe { slice::from_raw_parts_mut(first, len) })
    }

    /// Fills as many elements from `start` on as [`reach`](Self::reach) allows.
    ///
    /// # Safety
    /// As of [`slice`](Self::slice); `len` is not beyond reach.
    #[inline(always)]
    pub unsafe fn fill<I: Isa>(&self, isa: I, start: usize, len: usize, by: &impl Fill<T>) {
        let first = self.walk.pointer::<T>().wrapping_offset(self.walk.contiguous_from(start).0 as isize);
        // SAFETY: `new` vouches for the memory, the caller for its length and for there being no other reference.
        let to = unsafe { slice::from_raw_parts_mut(first, len) };
        if self.streamed { streaming::fill(isa, to, by) } else { by.fill(isa, 0..len, to) }
    }

    /// Writes `from`, converted to the output's dtype, to the elements from `start` on.
    ///
    /// # Safety
    /// No slice of these elements is alive, and no other thread uses them.
    #[inline(never)]
    pub unsafe fn store(&self, start: usize, from: &[T]) {
        // SAFETY: the caller's promise.
        with_element!(self.dtype, E => unsafe { self.store_as::<E>(start, from) });
    }

    /// # Safety
    /// As of [`store`](Self::store); elements are of type E.
    unsafe fn store_as<E: Element>(&self, start: usize, from: &[T]) {
        if E::DTYPE == T::DTYPE {
            // SAFETY: `new` vouches for the memory, whose elements are T, and the caller for nobody else using it.
            return unsafe { self.walk.scatter(start, from) };
        }
        let mut converted = [E::default(); BLOCK];
        for (i, from) in from.chunks(BLOCK).enumerate() {
            let converted = &mut converted[..from.len()];
            dispatch(Convert { from, to: &mut *converted });
            // SAFETY: as above, of elements that are E.
            unsafe { self.walk.scatter(start + i * BLOCK, converted) };
        }
    }
}
