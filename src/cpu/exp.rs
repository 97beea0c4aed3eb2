//! exp for float32 and float64, without branches, so that loops over it vectorise.
//!
//! x = n ln 2 + r with |r| <= ln(2)/2; e^r is 1 + r + r^2 q(r), where q is a minimax polynomial whose error is below a
//! twentieth of an ulp.

use super::float::Real;
use super::isa::Isa;

pub trait Exp: Real {
    const NEG_INFINITY: Self;
    /// What takes the result of [`lifted`](Self::lifted) down again.
    const LOWERING: Self;

    /// e^x, within 2 ulp. Results below the normal range round once.
    fn exp<I: Isa>(isa: I, x: Self) -> Self;

    /// e^(x + error) for x <= 0 and a correction of less than an ulp, which is ignored where the result is 0.
    fn exp_carrying<I: Isa>(isa: I, x: Self, error: Self) -> Self;

    /// e^(x - m) / LOWERING for x <= m, so that the smallest results that count are normal numbers. NaN if x is; next to
    /// nothing, but not 0, for -inf. The rounding error of the difference is carried along: at x - m = -80 it alone would
    /// be 3.8e-6 of a float32 result. `NEAR`: that is not needed.
    fn lifted<I: Isa, const NEAR: bool>(isa: I, x: Self, m: Self) -> Self;
}

trait Reduced: Real {
    /// Adding 1.5 * 2^mantissa leaves the nearest integer in the lowest bits.
    const SHIFT: Self;

    /// r and n + SHIFT.
    fn reduced<I: Isa>(isa: I, x: Self) -> (Self, Self);
    /// e^r.
    fn polynomial<I: Isa>(isa: I, r: Self) -> Self;
    /// p 2^n, rounded once.
    fn scaled(p: Self, shifted: Self) -> Self;
}

macro_rules! exp {
    (
        $type:ident, $bits:ident, mantissa $mantissa:literal, bias $bias:literal, lift $lift:literal,
        lowest $lowest:literal, highest $highest:literal, ln2 $high:literal + $low:literal,
        q [$first:literal $(, $rest:literal)*]
    ) => {
        impl Exp for $type {
            const NEG_INFINITY: $type = $type::NEG_INFINITY;
            const LOWERING: $type = $type::from_bits(($bias - $lift) << $mantissa);

            #[inline(always)]
            fn exp<I: Isa>(isa: I, x: $type) -> $type {
                let x = if x < $lowest { $lowest } else { x };
                let x = if x > $highest { $highest } else { x };
                let (r, n) = Reduced::reduced(isa, x);
                Reduced::scaled(Reduced::polynomial(isa, r), n)
            }

            #[inline(always)]
            fn exp_carrying<I: Isa>(isa: I, x: $type, error: $type) -> $type {
                let vanishes = x < $lowest;
                let x = if vanishes { $lowest } else { x };
                let error = if vanishes { 0.0 } else { error };
                let (r, n) = Reduced::reduced(isa, x);
                Reduced::scaled(Reduced::polynomial(isa, r + error), n)
            }

            #[inline(always)]
            fn lifted<I: Isa, const NEAR: bool>(isa: I, x: $type, m: $type) -> $type {
                let difference = x - m;
                let vanishes = difference < $lowest;
                let (mut r, n) = Reduced::reduced(isa, if vanishes { $lowest } else { difference });
                if !NEAR {
                    // Knuth's TwoSum of x and -m.
                    let m_part = difference - x;
                    let error = (x - (difference - m_part)) + (-m - m_part);
                    r += if vanishes { 0.0 } else { error };
                }
                // The bits of n are the lowest.
                let power = $type::from_bits((n.to_bits() << $mantissa).wrapping_add(($bias + $lift) << $mantissa));
                Reduced::polynomial(isa, r) * power
            }
        }

        impl Reduced for $type {
            const SHIFT: $type = (3u64 << ($mantissa - 1)) as $type;

            #[inline(always)]
            fn reduced<I: Isa>(isa: I, x: $type) -> ($type, $type) {
                let shifted = Real::mul_add(x, isa, std::$type::consts::LOG2_E, Self::SHIFT);
                let n = shifted - Self::SHIFT;
                let r = Real::mul_add(n, isa, -$high, x);
                (Real::mul_add(n, isa, -$low, r), shifted)
            }

            #[inline(always)]
            fn polynomial<I: Isa>(isa: I, r: $type) -> $type {
                let q: $type = $first;
                $(let q = Real::mul_add(q, isa, r, $rest);)*
                let p = Real::mul_add(q, isa, r, 1.0);
                Real::mul_add(p, isa, r, 1.0)
            }

            #[inline(always)]
            fn scaled(p: $type, shifted: $type) -> $type {
                // Two powers, each of a normal number. Logical shifts of a positive number: AVX2 has no arithmetic
                // ones of 64 bits.
                let n = shifted.to_bits().wrapping_sub(Self::SHIFT.to_bits()).wrapping_add(4 * $bias);
                let half = n >> 1;
                let power = |n: $bits| $type::from_bits(n.wrapping_sub($bias) << $mantissa);
                p * power(half) * power(n - half)
            }
        }
    };
}

exp!(
    f32, u32, mantissa 23, bias 127, lift 64, lowest -110.0, highest 90.0,
    ln2 0.693_145_75 + 1.428_606_8e-6,
    q [0.001381454, 0.008368745, 0.04166839, 0.16666521, 0.49999994]
);
exp!(
    f64, u64, mantissa 52, bias 1023, lift 512, lowest -760.0, highest 720.0,
    ln2 0.693_147_180_369_123_8 + 1.908_214_929_270_587_7e-10,
    q [
        1.9827832865611385e-09, 2.5063505551567007e-08, 2.755929256565671e-07, 2.755733592429537e-06,
        2.4801586128610757e-05, 0.00019841269824376098, 0.001388888888913081, 0.008333333333337472,
        0.041666666666666546, 0.16666666666666666, 0.5
    ]
);
