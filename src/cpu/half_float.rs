//! float16 and bfloat16: computed in float32, rounded once.

use std::mem::transmute;

use half::{bf16, f16};

use super::element::Element;
use super::exp::Exp;
use super::float::{Float, Real};
use super::isa::{Isa, LANES};
use crate::dtype::DType;
use crate::ops::Scalar;

impl Float for bf16 {
    type Real = f32;

    #[inline(always)]
    fn widen<I: Isa>(_: I, from: &[bf16], to: &mut [f32]) {
        for (t, &f) in to.iter_mut().zip(from) {
            *t = widen_bf16(f);
        }
    }
    #[inline(always)]
    fn narrow<I: Isa>(isa: I, from: &[f32], to: &mut [bf16]) {
        let ((groups, rest), (to_groups, to_rest)) = (from.as_chunks(), to.as_chunks_mut());
        for (t, f) in to_groups.iter_mut().zip(groups) {
            *t = isa.narrow_bf16(*f);
        }
        for (t, &f) in to_rest.iter_mut().zip(rest) {
            *t = narrow_bf16(f);
        }
    }
    #[inline(always)]
    fn narrow_lowered<I: Isa>(_: I, from: &[f32], factor: f32, to: &mut [bf16]) {
        if factor.is_nan() {
            return to.fill(bf16::NAN);
        }
        for (t, &f) in to.iter_mut().zip(from) {
            *t = narrow_number(f * factor * f32::LOWERING);
        }
    }
    #[inline(always)]
    fn real<'a, I: Isa>(isa: I, from: &'a [bf16], buffer: &'a mut [f32]) -> &'a [f32] {
        Self::widen(isa, from, &mut buffer[..from.len()]);
        &buffer[..from.len()]
    }
    #[inline(always)]
    fn as_reals(_: &mut [bf16]) -> Option<&mut [f32]> {
        None
    }
    const EVEN_FIRST: bool = true;

    #[inline(always)]
    fn wide_pair<I: Isa>(_: I, from: &[[bf16; LANES]; 2]) -> [[f32; LANES]; 2] {
        // SAFETY: two arrays of one size, of which any bits are valid.
        let both: [u32; LANES] = unsafe { transmute(*from) };
        let mut wide = [[0.0; LANES]; 2];
        for i in 0..LANES {
            wide[0][i] = f32::from_bits(both[i] << 16);
        }
        for i in 0..LANES {
            wide[1][i] = f32::from_bits(both[i] & 0xffff_0000);
        }
        wide
    }
    #[inline(always)]
    fn narrow_pair<I: Isa>(_: I, from: [[f32; LANES]; 2], to: &mut [[bf16; LANES]; 2]) {
        let mut both = [0; LANES];
        for i in 0..LANES {
            both[i] = (rounded(from[0][i]) >> 16) | (rounded(from[1][i]) & 0xffff_0000);
        }
        // SAFETY: as above.
        *to = unsafe { transmute::<[u32; LANES], [[bf16; LANES]; 2]>(both) };
    }
}

#[inline(always)]
fn widen_bf16(value: bf16) -> f32 {
    f32::from_bits(u32::from(value.to_bits()) << 16)
}

/// Rounded to nearest, ties to even. NaN stays NaN.
#[inline(always)]
pub fn narrow_bf16(value: f32) -> bf16 {
    bf16::from_bits((rounded(value) >> 16) as u16)
}

/// The bits of a bfloat16 above 16 others. A choice of 32 bits each, since LLVM would take the upper halves of both apart.
#[inline(always)]
fn rounded(value: f32) -> u32 {
    let bits = value.to_bits();
    // The rounding of a NaN could carry into infinity: keep it, quiet.
    if value.is_nan() { bits | 0x0040_0000 } else { rounded_number(bits) }
}

/// Adding just under half of the last place that stays, or exactly half if that place is odd, carries into it when the
/// nearest is above.
#[inline(always)]
fn rounded_number(bits: u32) -> u32 {
    bits.wrapping_add(0x7fff + ((bits >> 16) & 1))
}

/// [`narrow_bf16`] of what is no NaN, or one with few bits.
#[inline(always)]
fn narrow_number(value: f32) -> bf16 {
    bf16::from_bits((rounded_number(value.to_bits()) >> 16) as u16)
}

impl Float for f16 {
    type Real = f32;

    #[inline(always)]
    fn widen<I: Isa>(isa: I, from: &[f16], to: &mut [f32]) {
        let ((groups, rest), (to_groups, to_rest)) = (from.as_chunks(), to.as_chunks_mut());
        for (t, f) in to_groups.iter_mut().zip(groups) {
            *t = isa.widen_f16(*f);
        }
        if !rest.is_empty() {
            isa.store_rest(isa.widen_f16(isa.load_rest(rest)), to_rest);
        }
    }
    #[inline(always)]
    fn narrow<I: Isa>(isa: I, from: &[f32], to: &mut [f16]) {
        let ((groups, rest), (to_groups, to_rest)) = (from.as_chunks(), to.as_chunks_mut());
        for (t, f) in to_groups.iter_mut().zip(groups) {
            *t = isa.narrow_f16(*f);
        }
        if !rest.is_empty() {
            isa.store_rest(isa.narrow_f16(isa.load_rest(rest)), to_rest);
        }
    }
    #[inline(always)]
    fn narrow_lowered<I: Isa>(isa: I, from: &[f32], factor: f32, to: &mut [f16]) {
        let ((groups, rest), (to_groups, to_rest)) = (from.as_chunks(), to.as_chunks_mut());
        for (t, f) in to_groups.iter_mut().zip(groups) {
            *t = isa.narrow_f16(lowered(*f, factor));
        }
        if !rest.is_empty() {
            isa.store_rest(isa.narrow_f16(lowered(isa.load_rest(rest), factor)), to_rest);
        }
    }
    #[inline(always)]
    fn real<'a, I: Isa>(isa: I, from: &'a [f16], buffer: &'a mut [f32]) -> &'a [f32] {
        Self::widen(isa, from, &mut buffer[..from.len()]);
        &buffer[..from.len()]
    }
    #[inline(always)]
    fn as_reals(_: &mut [f16]) -> Option<&mut [f32]> {
        None
    }
}

#[inline(always)]
fn lowered(mut group: [f32; LANES], factor: f32) -> [f32; LANES] {
    for v in &mut group {
        *v = *v * factor * f32::LOWERING;
    }
    group
}

/// What both halves do alike; the additions differ in how they vectorise.
macro_rules! half_float {
    ($type:ty, $dtype:expr, $add:item, $add_scalar:item) => {
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
            fn to_f32s<I: Isa>(isa: I, from: &[$type], to: &mut [f32]) {
                Self::widen(isa, from, to);
            }
            #[inline(always)]
            fn convert<E: Element, I: Isa>(isa: I, from: &[E], to: &mut [$type]) {
                let mut buffer = [0.0; 256];
                for (from, to) in from.chunks(256).zip(to.chunks_mut(256)) {
                    let buffer = &mut buffer[..from.len()];
                    E::to_f32s(isa, from, buffer);
                    Self::narrow(isa, buffer, to);
                }
            }
            #[inline(always)]
            fn to_arith(self) -> f32 {
                <$type>::to_f32(self)
            }
            fn arith(scalar: Scalar) -> f32 {
                let number = f32::arith(scalar);
                // Whatever its other bits are.
                if number.is_nan() { f32::NAN } else { number }
            }
            #[inline(always)]
            $add
            #[inline(always)]
            $add_scalar
        }
    };
}

half_float!(
    bf16,
    DType::BF16,
    // NaNs of sums are those of their operands, whose rounding carries nothing: half of their bits are 0.
    fn add<I: Isa>(isa: I, x: &[bf16], y: &[bf16], alpha: f32, out: &mut [bf16]) {
        for (o, (&a, &b)) in out.iter_mut().zip(x.iter().zip(y)) {
            *o = narrow_number(Real::mul_add(widen_bf16(b), isa, alpha, widen_bf16(a)));
        }
    },
    fn add_scalar<I: Isa>(isa: I, x: &[bf16], y: f32, alpha: f32, out: &mut [bf16]) {
        for (o, &a) in out.iter_mut().zip(x) {
            *o = narrow_number(Real::mul_add(y, isa, alpha, widen_bf16(a)));
        }
    }
);

half_float!(
    f16,
    DType::F16,
    fn add<I: Isa>(isa: I, x: &[f16], y: &[f16], alpha: f32, out: &mut [f16]) {
        let ((x_groups, x_rest), (y_groups, y_rest)) = (x.as_chunks(), y.as_chunks());
        let (out_groups, out_rest) = out.as_chunks_mut();
        for (o, (a, b)) in out_groups.iter_mut().zip(x_groups.iter().zip(y_groups)) {
            *o = add_group(isa, *a, *b, alpha);
        }
        if !out_rest.is_empty() {
            let sums = add_group(isa, isa.load_rest(x_rest), isa.load_rest(y_rest), alpha);
            isa.store_rest(sums, out_rest);
        }
    },
    fn add_scalar<I: Isa>(isa: I, x: &[f16], y: f32, alpha: f32, out: &mut [f16]) {
        let ((x_groups, x_rest), (out_groups, out_rest)) = (x.as_chunks(), out.as_chunks_mut());
        for (o, a) in out_groups.iter_mut().zip(x_groups) {
            *o = add_scalar_group(isa, *a, y, alpha);
        }
        if !out_rest.is_empty() {
            isa.store_rest(add_scalar_group(isa, isa.load_rest(x_rest), y, alpha), out_rest);
        }
    }
);

#[inline(always)]
fn add_group<I: Isa>(isa: I, x: [f16; LANES], y: [f16; LANES], alpha: f32) -> [f16; LANES] {
    let (mut sum, y) = (isa.widen_f16(x), isa.widen_f16(y));
    for i in 0..LANES {
        sum[i] = Real::mul_add(y[i], isa, alpha, sum[i]);
    }
    isa.narrow_f16(sum)
}

#[inline(always)]
fn add_scalar_group<I: Isa>(isa: I, x: [f16; LANES], y: f32, alpha: f32) -> [f16; LANES] {
    let mut sum = isa.widen_f16(x);
    for s in &mut sum {
        *s = Real::mul_add(y, isa, alpha, *s);
    }
    isa.narrow_f16(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::{Kernel, dispatch};

    /// What is left of numbers that are narrowed and widened in pairs, and one by one.
    struct BothWays([[f32; LANES]; 2]);

    impl Kernel for BothWays {
        type Output = [[f32; 2 * LANES]; 2];

        #[inline(always)]
        fn run<I: Isa>(self, isa: I) -> Self::Output {
            let mut pair = [[bf16::ZERO; LANES]; 2];
            bf16::narrow_pair(isa, self.0, &mut pair);
            let mut each = [[0.0; 2 * LANES]; 2];
            each[0].copy_from_slice(bf16::wide_pair(isa, &pair).as_flattened());
            let mut narrow = [bf16::ZERO; 2 * LANES];
            bf16::narrow(isa, self.0.as_flattened(), &mut narrow);
            bf16::widen(isa, &narrow, &mut each[1]);
            each
        }
    }

    #[test]
    fn pairs_are_rounded_as_numbers_are() {
        let mut bits = 1u32;
        for round in 0..20_000 {
            let mut values = [[0.0; LANES]; 2];
            for value in values.as_flattened_mut() {
                bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Ties, infinities and NaNs of few bits, and of many.
                *value = f32::from_bits(match round % 4 {
                    0 => bits & 0xffff_8000,
                    1 => bits | 0x7f80_0000,
                    2 => bits & 0x8000_7fff | 0x7f80_0000,
                    _ => bits,
                });
            }
            let [pairs, each] = dispatch(BothWays(values)).map(|values| values.map(f32::to_bits));
            assert_eq!(pairs, each, "{values:?}");
            let nan = |value: f32| value.is_nan();
            let as_before = values.as_flattened().iter().zip(each.map(f32::from_bits));
            assert!(as_before.into_iter().all(|(&value, got)| nan(value) == nan(got)));
        }
    }
}
