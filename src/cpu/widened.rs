//! Reading a source as float32 or float64, and writing a target from it, whatever lies in memory.

use super::float::Float;
use super::isa::Isa;
use super::operand::{BLOCK, Source, Target};

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

/// Writes `from`, rounded, to the elements from `start` on.
///
/// # Safety
/// No slice of these elements is alive, and no other thread uses them.
#[inline(always)]
pub unsafe fn store<T: Float, I: Isa>(isa: I, target: &Target<T>, start: usize, from: &[T::Real]) {
    // SAFETY: the caller's promise.
    if let Some(slice) = unsafe { target.slice(start, from.len()) } {
        return T::narrow(isa, from, slice);
    }
    let mut block = [T::default(); BLOCK];
    for (i, values) in from.chunks(BLOCK).enumerate() {
        let block = &mut block[..values.len()];
        T::narrow(isa, values, block);
        // SAFETY: the caller's promise; the target gave no slice.
        unsafe { target.store(start + i * BLOCK, block) };
    }
}
