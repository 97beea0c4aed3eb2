//! The floating dtypes: what they are computed in, and how they get there and back.

use std::ops::{Add, Mul, Neg, Sub};

use half::{bf16, f16};

use super::element::Element;
use super::exp::Exp;
use super::isa::{Isa, LANES};
use super::lanes::{each, map, map_lanes, zip_lanes};
use crate::dtype::DType;
use crate::ops::Scalar;

/// float32 and float64: what sums, softmax and products are computed in.
pub trait Real:
    Float<Arith = Self, Real = Self>
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Neg<Output = Self>
{
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
    type Real: Exp;

    fn widen_lanes<I: Isa>(isa: I, values: [Self; LANES]) -> [Self::Real; LANES];
    fn narrow_lanes<I: Isa>(isa: I, values: [Self::Real; LANES]) -> [Self; LANES];
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
