//! What each dtype can do: convert, and add.

use half::{bf16, f16};

use super::isa::{Isa, LANES};
use crate::dtype::DType;
use crate::ops::Scalar;

/// An element as it lies in memory.
pub trait Element: Copy + Default + Send + Sync + 'static {
    const DTYPE: DType;
    /// What sums are formed in.
    type Arith: Copy + Send + Sync;

    fn to_f32(self) -> f32;
    fn to_f64(self) -> f64;
    /// Floats are never converted to integers.
    fn to_i64(self) -> i64;
    fn to_bool(self) -> bool;

    /// Converts as torch does: integers wrap, halves go through float32.
    fn from_element<E: Element>(element: E) -> Self;

    #[inline(always)]
    fn lanes_to_f32<I: Isa>(_: I, values: [Self; LANES]) -> [f32; LANES] {
        values.map(Self::to_f32)
    }
    /// As `from_element`.
    #[inline(always)]
    fn from_lanes<E: Element, I: Isa>(_: I, values: [E; LANES]) -> [Self; LANES] {
        values.map(Self::from_element)
    }

    /// A number in the arithmetic type, with the rounding of that type only.
    fn arith(scalar: Scalar) -> Self::Arith;

    /// out = x + alpha * y. The slices have one length.
    fn add<I: Isa>(isa: I, x: &[Self], y: &[Self], alpha: Self::Arith, out: &mut [Self]);
    fn add_scalar<I: Isa>(isa: I, x: &[Self], y: Self::Arith, alpha: Self::Arith, out: &mut [Self]);
}

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

#[inline(always)]
fn each<T: Copy>(x: &[T], y: &[T], out: &mut [T], f: impl Fn(T, T) -> T) {
    for (o, (&a, &b)) in out.iter_mut().zip(x.iter().zip(y)) {
        *o = f(a, b);
    }
}

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

/// float32 and float64: what sums, softmax and products are computed in.
pub trait Real: Float<Arith = Self, Real = Self> {
    fn fused(self, factor: Self, addend: Self) -> Self;
    fn separate(self, factor: Self, addend: Self) -> Self;

    /// self * factor + addend, with one rounding where that is one instruction.
    #[inline(always)]
    fn mul_add<I: Isa>(self, _: I, factor: Self, addend: Self) -> Self {
        if I::FMA { self.fused(factor, addend) } else { self.separate(factor, addend) }
    }
}

/// The floating dtypes, as groups of lanes that widen to a [`Real`] and narrow back with one rounding.
pub trait Float: Element {
    type Real: Real;

    fn widen_lanes<I: Isa>(isa: I, values: [Self; LANES]) -> [Self::Real; LANES];
    fn narrow_lanes<I: Isa>(isa: I, values: [Self::Real; LANES]) -> [Self; LANES];
}

/// Maps `f` over groups of lanes; the last group is filled up with defaults.
#[inline(always)]
pub fn map_lanes<A: Copy + Default, B: Copy>(from: &[A], to: &mut [B], f: impl Fn([A; LANES]) -> [B; LANES]) {
    let (from_groups, from_rest) = from.as_chunks::<LANES>();
    let (to_groups, to_rest) = to.as_chunks_mut::<LANES>();
    for (t, s) in to_groups.iter_mut().zip(from_groups) {
        *t = f(*s);
    }
    if !from_rest.is_empty() && from_rest.len() == to_rest.len() {
        let mut group = [A::default(); LANES];
        group[..from_rest.len()].copy_from_slice(from_rest);
        to_rest.copy_from_slice(&f(group)[..from_rest.len()]);
    }
}

/// to = from, exactly.
#[inline(always)]
pub fn widen<T: Float, I: Isa>(isa: I, from: &[T], to: &mut [T::Real]) {
    map_lanes(from, to, |group| T::widen_lanes(isa, group));
}

/// to = from, rounded to nearest.
#[inline(always)]
pub fn narrow<T: Float, I: Isa>(isa: I, from: &[T::Real], to: &mut [T]) {
    map_lanes(from, to, |group| T::narrow_lanes(isa, group));
}

macro_rules! real {
    ($type:ty, $dtype:expr, $to:ident) => {
        impl Element for $type {
            const DTYPE: DType = $dtype;
            type Arith = $type;

            #[inline(always)]
            fn to_f32(self) -> f32 {
                self as f32
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                self as i64
            }
            #[inline(always)]
            fn to_bool(self) -> bool {
                self != 0.0
            }
            #[inline(always)]
            fn from_element<E: Element>(element: E) -> $type {
                element.$to()
            }
            fn arith(scalar: Scalar) -> $type {
                match scalar {
                    Scalar::Int(i) => i as $type,
                    other => other.as_f64() as $type,
                }
            }
            #[inline(always)]
            fn add<I: Isa>(isa: I, x: &[$type], y: &[$type], alpha: $type, out: &mut [$type]) {
                each(x, y, out, |a, b| Real::mul_add(b, isa, alpha, a));
            }
            #[inline(always)]
            fn add_scalar<I: Isa>(isa: I, x: &[$type], y: $type, alpha: $type, out: &mut [$type]) {
                map(x, out, |a| Real::mul_add(y, isa, alpha, a));
            }
        }

        impl Real for $type {
            #[inline(always)]
            fn fused(self, factor: $type, addend: $type) -> $type {
                <$type>::mul_add(self, factor, addend)
            }
            #[inline(always)]
            fn separate(self, factor: $type, addend: $type) -> $type {
                self * factor + addend
            }
        }

        impl Float for $type {
            type Real = $type;

            #[inline(always)]
            fn widen_lanes<I: Isa>(_: I, values: [$type; LANES]) -> [$type; LANES] {
                values
            }
            #[inline(always)]
            fn narrow_lanes<I: Isa>(_: I, values: [$type; LANES]) -> [$type; LANES] {
                values
            }
        }
    };
}

real!(f32, DType::F32, to_f32);
real!(f64, DType::F64, to_f64);

macro_rules! half_float {
    ($type:ty, $dtype:expr) => {
        impl Element for $type {
            const DTYPE: DType = $dtype;
            type Arith = f32;

            #[inline(always)]
            fn to_f32(self) -> f32 {
                <$type>::to_f32(self)
            }
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(<$type>::to_f32(self))
            }
            #[inline(always)]
            fn to_i64(self) -> i64 {
                <$type>::to_f32(self) as i64
            }
            #[inline(always)]
            fn to_bool(self) -> bool {
                <$type>::to_f32(self) != 0.0
            }
            #[inline(always)]
            fn from_element<E: Element>(element: E) -> $type {
                <$type>::from_f32(element.to_f32())
            }
            #[inline(always)]
            fn lanes_to_f32<I: Isa>(isa: I, values: [$type; LANES]) -> [f32; LANES] {
                Self::widen_lanes(isa, values)
            }
            #[inline(always)]
            fn from_lanes<E: Element, I: Isa>(isa: I, values: [E; LANES]) -> [$type; LANES] {
                Self::narrow_lanes(isa, E::lanes_to_f32(isa, values))
            }
            fn arith(scalar: Scalar) -> f32 {
                f32::arith(scalar)
            }
            #[inline(always)]
            fn add<I: Isa>(isa: I, x: &[$type], y: &[$type], alpha: f32, out: &mut [$type]) {
                let group = |a: [$type; LANES], b: [$type; LANES]| {
                    let (a, b) = (Self::widen_lanes(isa, a), Self::widen_lanes(isa, b));
                    let sum = std::array::from_fn(|i| Real::mul_add(b[i], isa, alpha, a[i]));
                    Self::narrow_lanes(isa, sum)
                };
                zip_lanes(x, y, out, group);
            }
            #[inline(always)]
            fn add_scalar<I: Isa>(isa: I, x: &[$type], y: f32, alpha: f32, out: &mut [$type]) {
                map_lanes(x, out, |group| {
                    let sum = Self::widen_lanes(isa, group).map(|a| Real::mul_add(y, isa, alpha, a));
                    Self::narrow_lanes(isa, sum)
                });
            }
        }
    };
}

half_float!(f16, DType::F16);
half_float!(bf16, DType::BF16);

/// As [`map_lanes`], for two inputs.
#[inline(always)]
fn zip_lanes<T: Copy + Default>(
    x: &[T],
    y: &[T],
    out: &mut [T],
    f: impl Fn([T; LANES], [T; LANES]) -> [T; LANES],
) {
    let ((x_groups, x_rest), (y_groups, y_rest)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    let (out_groups, out_rest) = out.as_chunks_mut::<LANES>();
    for (o, (a, b)) in out_groups.iter_mut().zip(x_groups.iter().zip(y_groups)) {
        *o = f(*a, *b);
    }
    let rest = out_rest.len();
    if rest != 0 && x_rest.len() == rest && y_rest.len() == rest {
        let (mut a, mut b) = ([T::default(); LANES], [T::default(); LANES]);
        a[..rest].copy_from_slice(x_rest);
        b[..rest].copy_from_slice(y_rest);
        out_rest.copy_from_slice(&f(a, b)[..rest]);
    }
}

impl Float for f16 {
    type Real = f32;

    #[inline(always)]
    fn widen_lanes<I: Isa>(isa: I, values: [f16; LANES]) -> [f32; LANES] {
        isa.widen_f16(values.map(f16::to_bits))
    }
    #[inline(always)]
    fn narrow_lanes<I: Isa>(isa: I, values: [f32; LANES]) -> [f16; LANES] {
        isa.narrow_f16(values).map(f16::from_bits)
    }
}

impl Float for bf16 {
    type Real = f32;

    #[inline(always)]
    fn widen_lanes<I: Isa>(_: I, values: [bf16; LANES]) -> [f32; LANES] {
        values.map(|v| f32::from_bits(u32::from(v.to_bits()) << 16))
    }
    #[inline(always)]
    fn narrow_lanes<I: Isa>(_: I, values: [f32; LANES]) -> [bf16; LANES] {
        values.map(|v| {
            let bits = v.to_bits();
            // Adding just under half of the last place that stays, or exactly half if that place is odd,
            // carries into it when the nearest is above. A NaN could carry into infinity: keep it quiet.
            let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1));
            let kept = if v.is_nan() { bits | 0x0040_0000 } else { rounded };
            bf16::from_bits((kept >> 16) as u16)
        })
    }
}
