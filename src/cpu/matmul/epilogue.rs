//! What happens to an accumulator before it is rounded: bias, then activation.

use crate::cpu::exp::Exp;
use crate::cpu::float::Real;
use crate::cpu::isa::Isa;
use crate::ops::matmul::Activation;

/// Applies bias and activation to a row of accumulators.
#[inline(always)]
pub fn apply<R: Activate, I: Isa>(isa: I, activation: Activation, bias: Option<&[R]>, row: &mut [R]) {
    if let Some(bias) = bias {
        for (v, &b) in row.iter_mut().zip(bias) {
            *v = *v + b;
        }
    }
    let zero = R::default();
    // Loops in full, for closures might not be inlined: see `cpu::isa`. What might leave an element as it is has some
    // arithmetic on it, or LLVM would store only those that change, at 20 cycles an instruction on AMD.
    match activation {
        Activation::None => {}
        Activation::Relu => {
            for v in row {
                // Written so that a NaN is kept.
                *v = (if *v < zero { zero } else { *v }) + zero;
            }
        }
        Activation::LeakyRelu { negative_slope } => {
            let (one, slope) = (R::from_element(1.0), R::from_element(negative_slope));
            for v in row {
                *v = *v * if *v > zero { one } else { slope };
            }
        }
        Activation::Gelu => {
            for v in row {
                *v = R::gelu(isa, *v);
            }
        }
        Activation::GeluTanh => {
            let [scale, cubic] = gelu_tanh_polynomial();
            for v in row {
                *v = *v * sigmoid(isa, *v * (*v * *v).mul_add(isa, cubic, scale));
            }
        }
        Activation::Silu => {
            for v in row {
                *v = *v * sigmoid(isa, *v);
            }
        }
    }
}

/// gelu_tanh(v) is v sigmoid(scale v + cubic v^3), since 0.5 (1 + tanh y) is sigmoid(2 y).
#[inline(always)]
pub fn gelu_tanh_polynomial<R: Activate>() -> [R; 2] {
    let scale = R::from_element(2.0 * (2.0 / std::f64::consts::PI).sqrt());
    [scale, scale * R::from_element(0.044715)]
}

#[inline(always)]
fn sigmoid<R: Activate, I: Isa>(isa: I, v: R) -> R {
    sigmoid_and_slope(isa, v).0
}

/// 1 / (1 + e^-v) and its derivative, by way of e^-|v|, which cannot overflow and keeps the smallest results
/// exact.
#[inline(always)]
pub fn sigmoid_and_slope<R: Activate, I: Isa>(isa: I, v: R) -> (R, R) {
    let zero = R::default();
    let one = R::from_element(1.0);
    let e = R::exp(isa, if v > zero { -v } else { v });
    let sum = one + e;
    ((if v > zero { one } else { e }) / sum, e / (sum * sum))
}

pub trait Activate: Exp + std::ops::Div<Output = Self> {
    /// v times the normal distribution's probability of at most v.
    fn gelu<I: Isa>(isa: I, v: Self) -> Self;
    fn gelu_derivative<I: Isa>(isa: I, v: Self) -> Self;
}

impl Activate for f32 {
    #[inline(always)]
    fn gelu<I: Isa>(isa: I, v: f32) -> f32 {
        let [e, share] = tail(isa, v.abs());
        // In this order e alone may be below the normal range.
        if v < 0.0 { e * (share * v) } else { v * (1.0 - e * share) }
    }

    #[inline(always)]
    fn gelu_derivative<I: Isa>(isa: I, v: f32) -> f32 {
        const DENSITY: f32 = 0.398_942_3;
        let [e, share] = tail(isa, v.abs());
        let slope = v * DENSITY;
        if v < 0.0 { e * (share + slope) } else { 1.0 + e * (slope - share) }
    }
}

/// The normal distribution's tail beyond u >= 0, as e^(-u^2 / 2) and what that is to be multiplied by: t P(t)
/// with t = 1 / (1 + 0.3 u), where P is a least-squares fit of degree 9 over u in [0, 15], within 4e-9 of the
/// tail's own size. Unlike 1 + erf(v / sqrt 2) it does not cancel for negative v, and it vectorises.
#[inline(always)]
fn tail<I: Isa>(isa: I, u: f32) -> [f32; 2] {
    const P: [f32; 10] = [
        -0.020833317,
        0.11356315,
        -0.23083034,
        0.19521828,
        -0.08222338,
        0.09762378,
        0.07789724,
        0.11033725,
        0.11956007,
        0.11968726,
    ];
    // Beyond 15 the tail is 0 in float32; infinities would make NaNs of their squares' errors.
    let u = if u > 15.0 { 15.0 } else { u };
    let t = 1.0 / (1.0 + 0.3 * u);
    let mut p = 0.0;
    for c in P {
        p = Real::mul_add(p, isa, t, c);
    }
    let square = u * u;
    // What rounding took from the square, by Dekker's splitting.
    let high = f32::from_bits(u.to_bits() & 0xffff_f000);
    let low = u - high;
    let lost = ((high * high - square) + 2.0 * high * low) + low * low;
    [f32::exp_carrying(isa, -0.5 * square, -0.5 * lost), t * p]
}

impl Activate for f64 {
    #[inline(always)]
    fn gelu<I: Isa>(_: I, v: f64) -> f64 {
        v * (0.5 * libm::erfc(-v * std::f64::consts::FRAC_1_SQRT_2))
    }

    #[inline(always)]
    fn gelu_derivative<I: Isa>(isa: I, v: f64) -> f64 {
        let density = <f64 as Exp>::exp(isa, -0.5 * v * v) / (2.0 * std::f64::consts::PI).sqrt();
        0.5 * libm::erfc(-v * std::f64::consts::FRAC_1_SQRT_2) + v * density
    }
}
