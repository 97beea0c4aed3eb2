//! What every dtype can do: convert, and add. The floating dtypes are in [`super::float`].

use super::isa::Isa;
use crate::dtype::DType;
use crate::ops::Scalar;

/// An element as it lies in memory.
pub trait Element: Copy + Default + Send + Sync + 'static {
    const DTYPE: DType;
    /// What sums are formed in.
    type Arith: Copy + Send + Sync;
    /// Whether elements are converted to be added.
    const WIDENED: bool = size_of::<Self>() != size_of::<Self::Arith>();

    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    /// Floats are never converted to integers.
    fn to_i64(self) -> i64;
    fn to_bool(self) -> bool;

    /// Converts as torch does: integers wrap, halves go through float32.
    fn from_element<E: Element>(element: E) -> Self;

    #[inline(always)]
    fn to_f32s<I: Isa>(_: I, from: &[Self], to: &mut [f32]) {
        for (t, &f) in to.iter_mut().zip(from) {
            *t = f.to_f32();
        }
    }
    /// As `from_element`.
    #[inline(always)]
    fn convert<E: Element, I: Isa>(_: I, from: &[E], to: &mut [Self]) {
        for (t, &f) in to.iter_mut().zip(from) {
            *t = Self::from_element(f);
        }
    }

    /// A number in the arithmetic type, with the rounding of that type only.
    fn arith(scalar: Scalar) -> Self::Arith;
    fn to_arith(self) -> Self::Arith;

    /// out = x + alpha * y. The slices have one length.
    fn add<I: Isa>(isa: I, x: &[Self], y: &[Self], alpha: Self::Arith, out: &mut [Self]);
    fn add_scalar<I: Isa>(isa: I, x: &[Self], y: Self::Arith, alpha: Self::Arith, out: &mut [Self]);

    /// The same where `out` is x.
    #[inline(always)]
    fn add_to<I: Isa>(isa: I, out: &mut [Self], y: &[Self], alpha: Self::Arith) {
        let mut x = [Self::default(); FEW];
        for (out, y) in out.chunks_mut(FEW).zip(y.chunks(FEW)) {
            x[..out.len()].copy_from_slice(out);
            Self::add(isa, &x[..out.len()], y, alpha, out);
        }
    }
    #[inline(always)]
    fn add_scalar_to<I: Isa>(isa: I, out: &mut [Self], y: Self::Arith, alpha: Self::Arith) {
        let mut x = [Self::default(); FEW];
        for out in out.chunks_mut(FEW) {
            x[..out.len()].copy_from_slice(out);
            Self::add_scalar(isa, &x[..out.len()], y, alpha, out);
        }
    }
}

/// Elements of an output that are copied before they are overwritten.
const FEW: usize = 128;

/// torch.bool: a byte of which only zero is false.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Bool(u8);

impl From<bool> for Bool {
    #[inline(always)]
    fn from(value: bool) -> Bool {
        Bool(u8::from(value))
    }
}

impl Element for Bool {
    const DTYPE: DType = DType::Bool;
    type Arith = bool;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from(u8::from(self.to_bool()))
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(u8::from(self.to_bool()))
    }
    #[inline(always)]
    fn to_i64(self) -> i64 {
        i64::from(self.to_bool())
    }
    #[inline(always)]
    fn to_bool(self) -> bool {
        self.0 != 0
    }
    #[inline(always)]
    fn from_element<E: Element>(element: E) -> Bool {
        Bool::from(element.to_bool())
    }
    #[inline(always)]
    fn to_arith(self) -> bool {
        self.to_bool()
    }
    fn arith(scalar: Scalar) -> bool {
        match scalar {
            Scalar::Bool(b) => b,
            Scalar::Int(i) => i != 0,
            Scalar::Float(f) => f != 0.0,
        }
    }
    #[inline(always)]
    fn add<I: Isa>(_: I, x: &[Bool], y: &[Bool], alpha: bool, out: &mut [Bool]) {
        each(x, y, out, |a, b| Bool::from(a.to_bool() | (alpha & b.to_bool())));
    }
    #[inline(always)]
    fn add_scalar<I: Isa>(_: I, x: &[Bool], y: bool, alpha: bool, out: &mut [Bool]) {
        map(x, out, |a| Bool::from(a.to_bool() | (alpha & y)));
    }
}

/// out = f(x, y), element by element.
#[inline(always)]
fn each<T: Copy>(x: &[T], y: &[T], out: &mut [T], f: impl Fn(T, T) -> T) {
    for (o, (&a, &b)) in out.iter_mut().zip(x.iter().zip(y)) {
        *o = f(a, b);
    }
}

/// out = f(x), element by element.
#[inline(always)]
fn map<T: Copy>(x: &[T], out: &mut [T], f: impl Fn(T) -> T) {
    for (o, &a) in out.iter_mut().zip(x) {
        *o = f(a);
    }
}

macro_rules! integer {
    ($type:ty, $dtype:expr) => {
        impl Element for $type {
            const DTYPE: DType = $dtype;
            type Arith = $type;

            #[inline(always)]
            fn to_f32(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                self as f64
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                i64::from(self)
            }
            #[inline(always)]
            fn to_bool(self) -> bool {
                self != 0
            }
            #[inline(always)]
            fn from_element<E: Element>(element: E) -> $type {
                element.to_i64() as $type
            }
            #[inline(always)]
            fn to_arith(self) -> $type {
                self
            }
            fn arith(scalar: Scalar) -> $type {
                scalar.as_i64() as $type
            }
            #[inline(always)]
            fn add<I: Isa>(_: I, x: &[$type], y: &[$type], alpha: $type, out: &mut [$type]) {
                // A multiplication of 64-bit integers is several instructions before AVX-512.
                if alpha == 1 {
                    each(x, y, out, |a, b| a.wrapping_add(b));
                } else {
                    each(x, y, out, |a, b| a.wrapping_add(alpha.wrapping_mul(b)));
                }
            }
            #[inline(always)]
            fn add_scalar<I: Isa>(_: I, x: &[$type], y: $type, alpha: $type, out: &mut [$type]) {
                let addend = alpha.wrapping_mul(y);
                map(x, out, |a| a.wrapping_add(addend));
            }
        }
    };
}

integer!(u8, DType::U8);
integer!(i8, DType::I8);
integer!(i16, DType::I16);
integer!(i32, DType::I32);
integer!(i64, DType::I64);
