//! Reading a source as float32 or float64, and writing a target from it, whatever lies in memory.

use std::ops::Range;

use super::float::Float;
use super::isa::Isa;
use super::operand::{BLOCK, Source, Target};
use super::streaming::Fill;

/// Fills `to` with the elements from `start` on.
#[inline(always)]
pub fn load<T: Float, I: Isa>(isa: I, source: &Source<T>, start: usize, to: &mut [T::Real]) {
    if let Some(slice) = source.slice(start, to.len()) {
        return T::widen(isa, slice, to);
    }
    let mut block = [T::default(); BLOCK];
    for (i, values) in to.chunks_mut(BLOCK).enumerate() {
        let block = &mut block[..values.len()];
        source.load(start + i * BLOCK, block);
        T::widen(isa, block, values);
    }
}

/// The elements from `start` on: the memory itself where that will do, else a copy in one of the buffers.
#[inline(always)]
pub fn read<'a, T: Float, I: Isa>(
    isa: I,
    source: &'a Source<T>,
    start: usize,
    len: usize,
    (elements, buffer): (&'a mut Vec<T>, &'a mut Vec<T::Real>),
) -> &'a [T::Real] {
    if size_of::<T>() != size_of::<T::Real>() {
        buffer.resize(len, T::Real::default());
    }
    T::real(isa, source.read(start, len, elements), buffer)
}

/// Writes `from`, rounded, to the elements from `start` on.
///
/// # Safety
/// No slice of these elements is alive, and no other thread uses them.
#[inline(always)]
pub unsafe fn store<T: Float, I: Isa>(isa: I, target: &Target<T>, start: usize, from: &[T::Real]) {
    if target.reach(start) >= from.len() {
        // SAFETY: the caller's promise.
        return unsafe { target.fill(isa, start, from.len(), &Rounded(from)) };
    }
    let mut block = [T::default(); BLOCK];
    for (i, values) in from.chunks(BLOCK).enumerate() {
        let block = &mut block[..values.len()];
        T::narrow(isa, values, block);
        // SAFETY: the caller's promise; the target gave no slice.
        unsafe { target.store(start + i * BLOCK, block) };
    }
}

/// Numbers, rounded.
struct Rounded<'a, R>(&'a [R]);

impl<T: Float> Fill<T> for Rounded<'_, T::Real> {
    #[inline(always)]
    fn fill<I: Isa>(&self, isa: I, range: Range<usize>, to: &mut [T]) {
        T::narrow(isa, &self.0[range], to);
    }
}
