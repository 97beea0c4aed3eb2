//! The floating dtypes: what they are computed in, and how they get there and back. float32 and float64 are
//! here, the halves in [`super::half_float`].

use std::hint::black_box;
use std::ops::{Add, Mul, Neg, Sub};

use super::element::Element;
use super::exp::Exp;
use super::isa::{Isa, LANES};
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
    /// The sum of the sums of each lane.
    fn sum_of_lanes<I: Isa>(isa: I, sums: [Self; LANES]) -> Self;
    /// The largest of a group without NaNs.
    fn largest_of_lanes<I: Isa>(isa: I, group: [Self; LANES]) -> Self;
    /// The larger of each two elements: that of `a` where they are equal or one is NaN. Instructions of their own, since LLVM
    /// stores by a mask what a loop would put where `a` was.
    fn larger<I: Isa>(isa: I, a: [Self; LANES], b: [Self; LANES]) -> [Self; LANES];
    /// Itself or 0, by a mask of [`mask`](Self::mask), whatever it is.
    fn masked(self, mask: Self) -> Self;
    fn mask(kept: bool) -> Self;

    /// self * factor + addend, with one rounding where that is one instruction.
    #[inline(always)]
    fn mul_add<I: Isa>(self, _: I, factor: Self, addend: Self) -> Self {
        if I::FMA { self.fused(factor, addend) } else { self.separate(factor, addend) }
    }
}

/// x + y of a group. By value, since LLVM adds the elements one by one of groups that might overlap.
#[inline(always)]
pub fn add_groups<R: Real>(mut x: [R; LANES], y: [R; LANES]) -> [R; LANES] {
    for i in 0..LANES {
        x[i] = x[i] + y[i];
    }
    x
}

/// Adds sums to totals in float64.
#[inline(always)]
pub fn add_to_totals<R: Real>(totals: &mut [f64; LANES], sums: [R; LANES]) {
    // LLVM would sum up in registers of two elements, as many as are converted at a time.
    let sums = black_box(sums);
    for i in 0..LANES {
        totals[i] += sums[i].to_f64();
    }
}

/// The sum of a power of two of values, by halves: quick, and of few roundings.
#[inline(always)]
pub fn pairwise<R: Real, const N: usize>(mut values: [R; N]) -> R {
    let mut width = N;
    while width > 1 {
        width /= 2;
        for i in 0..width {
            values[i] = values[i] + values[i + width];
        }
    }
    values[0]
}

/// The floating dtypes: each is computed in its [`Real`] and rounded back once. Slices have one length.
pub trait Float: Element {
    type Real: Exp;

    /// to = from, exactly.
    fn widen<I: Isa>(isa: I, from: &[Self], to: &mut [Self::Real]);
    /// to = from, rounded to nearest, ties to even.
    fn narrow<I: Isa>(isa: I, from: &[Self::Real], to: &mut [Self]);
    /// to = from * factor * LOWERING, rounded likewise. NaN comes with a factor of NaN only.
    fn narrow_lowered<I: Isa>(isa: I, from: &[Self::Real], factor: Self::Real, to: &mut [Self]);
    /// `from` itself if it is of the arithmetic type already, else a copy in `buffer`.
    fn real<'a, I: Isa>(isa: I, from: &'a [Self], buffer: &'a mut [Self::Real]) -> &'a [Self::Real];
    /// Memory of elements as that of the arithmetic type, if they are of it.
    fn as_reals(to: &mut [Self]) -> Option<&mut [Self::Real]>;

    /// Whether [`Float::wide_pair`] puts the elements at even places before those at odd ones.
    const EVEN_FIRST: bool = false;

    /// Two groups in the arithmetic type, in whatever order costs least: of bfloat16 the elements at even and at odd
    /// places, which need no moves.
    #[inline(always)]
    fn wide_pair<I: Isa>(isa: I, from: &[[Self; LANES]; 2]) -> [[Self::Real; LANES]; 2] {
        [wide(isa, &from[0]), wide(isa, &from[1])]
    }
    /// The reverse, rounded as by `narrow`.
    #[inline(always)]
    fn narrow_pair<I: Isa>(isa: I, from: [[Self::Real; LANES]; 2], to: &mut [[Self; LANES]; 2]) {
        Self::narrow(isa, &from[0], &mut to[0]);
        Self::narrow(isa, &from[1], &mut to[1]);
    }
}

/// Whether elements are float16 or bfloat16.
#[inline(always)]
pub const fn is_half<T>() -> bool {
    size_of::<T>() == 2
}

/// Elements in the arithmetic type.
#[inline(always)]
pub fn wide<T: Float, I: Isa, const N: usize>(isa: I, from: &[T; N]) -> [T::Real; N] {
    let mut wide = [T::Real::default(); N];
    T::widen(isa, from, &mut wide);
    wide
}

/// Elements as whole groups, of which the last begins early, and how many of that are those of the one before. None of
/// less than a group.
#[inline(always)]
pub fn last_group<T>(from: &[T]) -> Option<(&[T; LANES], usize)> {
    Some((from.last_chunk()?, (LANES - from.len() % LANES) % LANES))
}

/// A row of N groups in the arithmetic type, where `last_group` has the last.
#[inline(always)]
pub fn wide_groups<T: Float, I: Isa, const N: usize>(isa: I, row: &[T]) -> [[T::Real; LANES]; N] {
    let mut groups = [[T::Real::default(); LANES]; N];
    for i in 0..N {
        let group = if i + 1 < N { row[i * LANES..].first_chunk() } else { row.last_chunk() };
        if let Some(group) = group {
            groups[i] = wide(isa, group);
        }
    }
    groups
}

/// Makes zeros of the first elements of groups. Made once for many: the comparisons take longer than what they are for.
#[derive(Clone, Copy, Debug)]
pub struct TailMask<R>([R; LANES]);

impl<R: Real> TailMask<R> {
    #[inline(always)]
    pub fn new(first: usize) -> TailMask<R> {
        let mut masks = [R::default(); LANES];
        for (i, mask) in masks.iter_mut().enumerate() {
            *mask = R::mask(i >= first);
        }
        TailMask(masks)
    }

    #[inline(always)]
    pub fn apply(self, mut group: [R; LANES]) -> [R; LANES] {
        for (v, mask) in group.iter_mut().zip(self.0) {
            *v = v.masked(mask);
        }
        group
    }
}

/// Less than a group of elements in the arithmetic type, filled up with zeros.
#[inline(always)]
pub fn wide_rest<T: Float, I: Isa>(isa: I, from: &[T]) -> [T::Real; LANES] {
    wide(isa, &isa.load_rest(from))
}

/// Rounds the first elements of a group.
#[inline(always)]
pub fn narrow_rest<T: Float, I: Isa>(isa: I, from: &[T::Real; LANES], to: &mut [T]) {
    let mut group = [T::default(); LANES];
    T::narrow(isa, from, &mut group);
    isa.store_rest(group, to);
}

/// Rounds two groups, in the order in which `T` was widened, to a dtype with the same arithmetic type.
#[inline(always)]
pub fn narrow_pair<T: Float, O: Float<Real = T::Real>, I: Isa>(
    isa: I,
    from: [[T::Real; LANES]; 2],
    to: &mut [[O; LANES]; 2],
) {
    if T::DTYPE == O::DTYPE {
        return O::narrow_pair(isa, from, to);
    }
    O::narrow(isa, &from[0], &mut to[0]);
    O::narrow(isa, &from[1], &mut to[1]);
}

/// By groups: an instruction or a few of each, or a call where the CPU has none.
#[inline(always)]
fn two_bytes_to_f32<E: Element, I: Isa>(isa: I, from: &[E], to: &mut [f32]) {
    E::to_f32s(isa, from, to);
}

#[inline(always)]
fn two_bytes_to_f64<E: Element, I: Isa>(isa: I, from: &[E], to: &mut [f64]) {
    let mut buffer = [0.0; 256];
    for (from, to) in from.chunks(256).zip(to.chunks_mut(256)) {
        let buffer = &mut buffer[..from.len()];
        E::to_f32s(isa, from, buffer);
        for (t, &f) in to.iter_mut().zip(&*buffer) {
            *t = f64::from(f);
        }
    }
}

macro_rules! real {
    ($type:ty, $dtype:expr, $to:ident, $sum:ident, $largest:ident, $larger:ident, $of_two_bytes:ident) => {
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
            #[inline(always)]
            fn convert<E: Element, I: Isa>(isa: I, from: &[E], to: &mut [$type]) {
                if matches!(E::DTYPE, DType::F16 | DType::BF16) {
                    return $of_two_bytes(isa, from, to);
                }
                for (t, &f) in to.iter_mut().zip(from) {
                    *t = f.$to();
                }
            }
            #[inline(always)]
            fn to_arith(self) -> $type {
                self
            }
            fn arith(scalar: Scalar) -> $type {
                match scalar {
                    Scalar::Int(i) => i as $type,
                    other => other.as_f64() as $type,
                }
            }
            #[inline(always)]
            fn add<I: Isa>(isa: I, x: &[$type], y: &[$type], alpha: $type, out: &mut [$type]) {
                for (o, (&a, &b)) in out.iter_mut().zip(x.iter().zip(y)) {
                    *o = Real::mul_add(b, isa, alpha, a);
                }
            }
            #[inline(always)]
            fn add_scalar<I: Isa>(isa: I, x: &[$type], y: $type, alpha: $type, out: &mut [$type]) {
                for (o, &a) in out.iter_mut().zip(x) {
                    *o = Real::mul_add(y, isa, alpha, a);
                }
            }
            #[inline(always)]
            fn add_to<I: Isa>(isa: I, out: &mut [$type], y: &[$type], alpha: $type) {
                for (o, &b) in out.iter_mut().zip(y) {
                    *o = Real::mul_add(b, isa, alpha, *o);
                }
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
            #[inline(always)]
            fn sum_of_lanes<I: Isa>(isa: I, sums: [$type; LANES]) -> $type {
                isa.$sum(sums)
            }
            #[inline(always)]
            fn largest_of_lanes<I: Isa>(isa: I, group: [$type; LANES]) -> $type {
                isa.$largest(group)
            }
            #[inline(always)]
            fn larger<I: Isa>(isa: I, a: [$type; LANES], b: [$type; LANES]) -> [$type; LANES] {
                isa.$larger(a, b)
            }
            #[inline(always)]
            fn masked(self, mask: $type) -> $type {
                <$type>::from_bits(self.to_bits() & mask.to_bits())
            }
            #[inline(always)]
            fn mask(kept: bool) -> $type {
                <$type>::from_bits(if kept { !0 } else { 0 })
            }
        }

        impl Float for $type {
            type Real = $type;

            #[inline(always)]
            fn widen<I: Isa>(_: I, from: &[$type], to: &mut [$type]) {
                to.copy_from_slice(from);
            }
            #[inline(always)]
            fn narrow<I: Isa>(_: I, from: &[$type], to: &mut [$type]) {
                to.copy_from_slice(from);
            }
            #[inline(always)]
            fn narrow_lowered<I: Isa>(_: I, from: &[$type], factor: $type, to: &mut [$type]) {
                for (t, &f) in to.iter_mut().zip(from) {
                    *t = f * factor * Self::LOWERING;
                }
            }
            #[inline(always)]
            fn real<'a, I: Isa>(_: I, from: &'a [$type], _: &'a mut [$type]) -> &'a [$type] {
                from
            }
            #[inline(always)]
            fn as_reals(to: &mut [$type]) -> Option<&mut [$type]> {
                Some(to)
            }
        }
    };
}

real!(f32, DType::F32, to_f32, sum_f32, largest_f32, larger_f32, two_bytes_to_f32);
real!(f64, DType::F64, to_f64, sum_f64, largest_f64, larger_f64, two_bytes_to_f64);
