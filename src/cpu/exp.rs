//! exp for float32 and float64, without branches, so that loops over it vectorise.
//!
//! x = n ln 2 + r with |r| <= ln(2)/2; e^r is a Taylor polynomial whose remainder is below a tenth of an ulp,
//! and 2^n is applied in two halves, so that results below the normal range round only once.

use super::float::Real;
use super::isa::{Isa, LANES};

pub trait Exp: Real {
    const NEG_INFINITY: Self;
    /// An integer that is ordered as the numbers are, for LLVM vectorises no maximum of floats.
    type Key: Copy + Ord;

    fn key(self) -> Self::Key;
    fn from_key(key: Self::Key) -> Self;

    /// e^x, within 2 ulp.
    fn exp<I: Isa>(isa: I, x: Self) -> Self;

    /// e^(x - m) for x <= m. The rounding error of the subtraction is carried along: at x - m = -80 it
    /// alone would be 3.8e-6 of a float32 result. NaN if x is NaN or m infinite, but 0 for x = -inf < m.
    fn exp_difference<I: Isa>(isa: I, x: Self, m: Self) -> Self;

    /// The same of a group.
    fn exp_differences<I: Isa>(isa: I, x: &[Self; LANES], m: &[Self; LANES]) -> [Self; LANES];

    /// e^(x + error) for x <= 0 and a correction of less than an ulp, which is ignored where the result is 0.
    fn exp_carrying<I: Isa>(isa: I, x: Self, error: Self) -> Self;
}

macro_rules! exp {
    (
        $type:ident, $bits:ident, $key:ident, mantissa $mantissa:literal, bias $bias:literal,
        lowest $lowest:literal, highest $highest:literal, ln2 $high:literal + $low:literal,
        factorials [$first:literal $(, $rest:literal)*], groups $scale_group:ident
    ) => {
        impl Exp for $type {
            const NEG_INFINITY: $type = $type::NEG_INFINITY;
            type Key = $key;

            #[inline(always)]
            fn key(self) -> $key {
                // Of two negative numbers the one with the larger magnitude is the smaller.
                let bits = self.to_bits() as $key;
                bits ^ ((bits >> ($key::BITS - 1)) & $key::MAX)
            }

            #[inline(always)]
            fn from_key(key: $key) -> $type {
                $type::from_bits((key ^ ((key >> ($key::BITS - 1)) & $key::MAX)) as $bits)
            }

            #[inline(always)]
            fn exp<I: Isa>(isa: I, x: $type) -> $type {
                let x = if x < $lowest { $lowest } else { x };
                let x = if x > $highest { $highest } else { x };
                let (p, n) = Reduced::reduced(isa, x, 0.0);
                Reduced::scale(p, n)
            }

            #[inline(always)]
            fn exp_difference<I: Isa>(isa: I, x: $type, m: $type) -> $type {
                let (p, n) = Reduced::reduced_difference(isa, x, m);
                Reduced::scale(p, n)
            }

            #[inline(always)]
            fn exp_differences<I: Isa>(isa: I, x: &[$type; LANES], m: &[$type; LANES]) -> [$type; LANES] {
                let [mut p, mut n] = [[0.0; LANES]; 2];
                for i in 0..LANES {
                    (p[i], n[i]) = Reduced::reduced_difference(isa, x[i], m[i]);
                }
                isa.$scale_group(p, n)
            }

            #[inline(always)]
            fn exp_carrying<I: Isa>(isa: I, x: $type, error: $type) -> $type {
                let (p, n) = Reduced::reduced_carrying(isa, x, error);
                Reduced::scale(p, n)
            }
        }

        impl Reduced for $type {
            const SHIFT: $type = (3u64 << ($mantissa - 1)) as $type;

            #[inline(always)]
            fn reduced<I: Isa>(isa: I, x: $type, error: $type) -> ($type, $type) {
                let n = Real::mul_add(x, isa, std::$type::consts::LOG2_E, Self::SHIFT) - Self::SHIFT;
                let r = Real::mul_add(n, isa, -$high, x);
                let r = Real::mul_add(n, isa, -$low, r) + error;
                let p: $type = 1.0 / $first;
                $(let p = Real::mul_add(p, isa, r, 1.0 / $rest);)*
                (p, n)
            }

            #[inline(always)]
            fn reduced_difference<I: Isa>(isa: I, x: $type, m: $type) -> ($type, $type) {
                let difference = x - m;
                // Knuth's TwoSum of x and -m.
                let m_part = difference - x;
                let error = (x - (difference - m_part)) + (-m - m_part);
                Reduced::reduced_carrying(isa, difference, error)
            }

            #[inline(always)]
            fn reduced_carrying<I: Isa>(isa: I, x: $type, error: $type) -> ($type, $type) {
                let vanishes = x < $lowest;
                let x = if vanishes { $lowest } else { x };
                let error = if vanishes { 0.0 } else { error };
                Reduced::reduced(isa, x, error)
            }

            #[inline(always)]
            fn scale(p: $type, n: $type) -> $type {
                // Logical shifts of a positive number: AVX2 has no arithmetic ones of 64 bits.
                let n = (n + Self::SHIFT).to_bits().wrapping_sub(Self::SHIFT.to_bits()).wrapping_add(4 * $bias);
                let half = n >> 1;
                let power = |n: $bits| $type::from_bits(n.wrapping_sub($bias) << $mantissa);
                p * power(half) * power(n - half)
            }
        }
    };
}

/// e^x as p 2^n.
pub trait Reduced: Real {
    /// Adding 1.5 * 2^mantissa leaves the nearest integer in the lowest bits.
    const SHIFT: Self;

    /// Of e^(x + error) for x within the range that the caller has clamped it to, or NaN.
    fn reduced<I: Isa>(isa: I, x: Self, error: Self) -> (Self, Self);
    /// Of [`Exp::exp_difference`].
    fn reduced_difference<I: Isa>(isa: I, x: Self, m: Self) -> (Self, Self);
    /// Of [`Exp::exp_carrying`].
    fn reduced_carrying<I: Isa>(isa: I, x: Self, error: Self) -> (Self, Self);
    /// p 2^n for an integer n that `reduced` returned, rounded once.
    fn scale(p: Self, n: Self) -> Self;
}

exp!(
    f32, u32, i32, mantissa 23, bias 127, lowest -110.0, highest 90.0,
    ln2 0.693_145_75 + 1.428_606_8e-6,
    factorials [5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0], groups scale_f32
);
exp!(
    f64, u64, i64, mantissa 52, bias 1023, lowest -760.0, highest 720.0,
    ln2 0.693_147_180_369_123_8 + 1.908_214_929_270_587_7e-10,
    factorials [
        6227020800.0, 479001600.0, 39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0,
        2.0, 1.0, 1.0
    ], groups scale_f64
);
