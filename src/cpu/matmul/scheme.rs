//! What tiles are multiplied from: elements widened to the arithmetic type, or pairs of bfloat16.

use std::marker::PhantomData;

use super::epilogue::Activate;
use crate::cpu::float::{Float, Real};
use crate::cpu::isa::Isa;
use crate::cpu::register::{Register, Tiles};

/// The registers of a number.
pub trait InRegisters: Real {
    type Register<I: Isa>: Register<Factor = Self, Sum = Self>;
}

impl InRegisters for f32 {
    type Register<I: Isa> = I::F32;
}

impl InRegisters for f64 {
    type Register<I: Isa> = I::F64;
}

/// How elements become factors, and with which instructions these are multiplied.
pub trait Scheme: 'static {
    type Memory: Float<Real: Activate>;
    type Factor: Copy + Default + Send + Sync + 'static;
    /// Neighbours along k in a factor.
    const DEPTH: usize;
    type Tiles<I: Isa>: Tiles<Factor = Self::Factor, Sum = <Self::Memory as Float>::Real>;

    /// Factors of one or, if they hold two elements, two rows: `rows` themselves if that is what they are, else a copy
    /// in `buffer`.
    fn across<'a, I: Isa>(
        isa: I,
        rows: [&'a [Self::Memory]; 2],
        buffer: &'a mut [Self::Factor],
    ) -> &'a [Self::Factor];

    /// Factors of a row along k, where the last may lack an element.
    fn along<I: Isa>(isa: I, row: &[Self::Memory], to: &mut [Self::Factor]);
}

/// Elements as they are, or widened.
pub struct Widened<T>(PhantomData<T>);

impl<T: Float<Real: Activate + InRegisters>> Scheme for Widened<T> {
    type Memory = T;
    type Factor = T::Real;
    const DEPTH: usize = 1;
    type Tiles<I: Isa> = <T::Real as InRegisters>::Register<I>;

    #[inline(always)]
    fn across<'a, I: Isa>(isa: I, [row, _]: [&'a [T]; 2], buffer: &'a mut [T::Real]) -> &'a [T::Real] {
        T::real(isa, row, buffer)
    }

    #[inline(always)]
    fn along<I: Isa>(isa: I, row: &[T], to: &mut [T::Real]) {
        T::widen(isa, row, &mut to[..row.len()]);
    }
}
