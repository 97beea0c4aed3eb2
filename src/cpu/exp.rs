//! exp and ln for float32 and float64, without branches, so that loops over them vectorise.
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

    /// The natural logarithm of a sum of exponentials of which one is 1: float32's rounded once, float64's within an ulp. NaN
    /// of NaN.
    fn ln_of_sum<I: Isa>(isa: I, sum: f64) -> Self;
}

/// m and n of a number that is m 2^n, with m from sqrt(1/2) to sqrt(2).
#[inline(always)]
fn split(number: f64) -> (f64, f64) {
    let bits = number.to_bits();
    let n = bits.wrapping_sub(std::f64::consts::FRAC_1_SQRT_2.to_bits()) >> 52;
    let m = f64::from_bits(bits.wrapping_sub(n << 52));
    // AVX2 converts no integers of 64 bits, but to the lowest bits of such a number they can be added.
    const SHIFT: f64 = (1u64 << 52) as f64;
    (m, f64::from_bits(n + SHIFT.to_bits()) - SHIFT)
}

/// To 12 digits.
#[inline(always)]
fn ln_f32<I: Isa>(isa: I, sum: f64) -> f32 {
    let (m, n) = split(sum);
    // ln m = 2 artanh(f), whose series is short: f is 0.172 at most.
    let f = (m - 1.0) / (m + 1.0);
    let square = f * f;
    let mut series = 2.0 / 13.0;
    for k in [11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        series = Real::mul_add(series, isa, square, 2.0 / k);
    }
    let ln = Real::mul_add(n, isa, std::f64::consts::LN_2, series * f);
    (if sum.is_nan() { sum } else { ln }) as f32
}

/// Within an ulp.
#[inline(always)]
fn ln_f64<I: Isa>(isa: I, sum: f64) -> f64 {
    let (m, n) = split(sum);
    // As above, with m - 1, which is exact, and half its square taken out of the series.
    let difference = m - 1.0;
    let f = difference / (difference + 2.0);
    let (square, half) = (f * f, 0.5 * difference * difference);
    let mut series = 2.0 / 21.0;
    for k in [19.0, 17.0, 15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        series = Real::mul_add(series, isa, square, 2.0 / k);
    }
    let low = Real::mul_add(n, isa, LN_2_LOW, f * Real::mul_add(series, isa, square, half));
    let ln = Real::mul_add(n, isa, LN_2_HIGH, difference - (half - low));
    if sum.is_nan() { sum } else { ln }
}

/// ln 2 in two parts, of which the first is short enough to be exact times an exponent.
const LN_2_HIGH: f64 = 0.693_147_180_369_123_8;
const LN_2_LOW: f64 = 1.908_214_929_270_587_7e-10;

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
        lowest $lowest:literal, highest $highest:literal, ln2 $high:tt + $low:tt,
        q [$first:literal $(, $rest:literal)*], $ln:ident
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

            #[inline(always)]
            fn ln_of_sum<I: Isa>(isa: I, sum: f64) -> $type {
                $ln(isa, sum)
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
    q [0.001381454, 0.008368745, 0.04166839, 0.16666521, 0.49999994],
    ln_f32
);
exp!(
    f64, u64, mantissa 52, bias 1023, lift 512, lowest -760.0, highest 720.0,
    ln2 LN_2_HIGH + LN_2_LOW,
    q [
        1.9827832865611385e-09, 2.5063505551567007e-08, 2.755929256565671e-07, 2.755733592429537e-06,
        2.4801586128610757e-05, 0.00019841269824376098, 0.001388888888913081, 0.008333333333337472,
        0.041666666666666546, 0.16666666666666666, 0.5
    ],
    ln_f64
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::isa::{Kernel, dispatch};

    struct Ln(f64);

    impl Kernel for Ln {
        type Output = (f32, f64);

        #[inline(always)]
        fn run<I: Isa>(self, isa: I) -> Self::Output {
            (f32::ln_of_sum(isa, self.0), f64::ln_of_sum(isa, self.0))
        }
    }

    #[test]
    fn logarithms_of_sums() {
        for i in 0..4000 {
            let exponent = f64::from(i % 40);
            for sum in [exponent.exp2() * (1.0 + f64::from(i) / 4000.0), 1.0 + (-exponent).exp2()] {
                let ((short, long), exact) = (dispatch(Ln(sum)), sum.ln());
                // Rounded once.
                let difference = (f64::from(short) - exact).abs();
                assert!(difference <= f64::from(f32::EPSILON) / 1.999 * exact, "{sum}");
                // An ulp, besides half of one that the other may be off.
                assert!((long - exact).abs() <= 1.5 * f64::EPSILON * exact, "{sum}: {long} {exact}");
            }
        }
        assert_eq!(dispatch(Ln(1.0)), (0.0, 0.0));
        let (short, long) = dispatch(Ln(f64::NAN));
        assert!(short.is_nan() && long.is_nan());
    }
}
