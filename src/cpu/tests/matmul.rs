//! Products against naive ones.

use super::{Random, Tensor, half_ulp, indices};
use crate::cpu::isa::{Isa, Kernel, dispatch};
use crate::cpu::matmul::epilogue::{Activate, apply};
use crate::cpu::matmul::run;
use crate::dtype::DType;
use crate::ops::matmul::{Activation, Operands, Precision, output, problem};

const ACTIVATIONS: [Activation; 6] = [
    Activation::None,
    Activation::Relu,
    Activation::LeakyRelu { negative_slope: 0.2 },
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Silu,
];

fn activate(activation: Activation, v: f64) -> f64 {
    match activation {
        Activation::None => v,
        Activation::Relu => v.max(0.0),
        Activation::LeakyRelu { negative_slope } => {
            if v > 0.0 {
                v
            } else {
                v * negative_slope
            }
        }
        Activation::Gelu => v * 0.5 * libm::erfc(-v / 2f64.sqrt()),
        Activation::GeluTanh => {
            0.5 * v * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v * v * v)).tanh())
        }
        Activation::Silu => v / (1.0 + (-v).exp()),
    }
}

fn solve(a: &Tensor, b: &Tensor, bias: Option<&Tensor>, activation: Activation, out: &mut Tensor) {
    let (a, b, bias) = (a.view(), b.view(), bias.map(Tensor::view));
    let operands = Operands { a: &a, b: &b, bias: bias.as_ref(), gate: None, residual: None };
    let spec = output(&operands).unwrap();
    run(&problem(&operands, &out.view_mut(), activation, Precision::Ieee, &spec).unwrap()).unwrap();
}

/// Checks a @ b for matrices, and for vectors seen as matrices by the caller's index functions.
fn check(a: &Tensor, b: &Tensor, bias: Option<&Tensor>, activation: Activation, out: &Tensor) {
    let k = a.shape[a.shape.len() - 1];
    let (a_matrix, b_matrix) = (a.shape.len() > 1, b.shape.len() > 1);
    // The index into an operand for one of the result: batch dimensions of size 1 are broadcast.
    let align = |tensor: &Tensor, batch: &[i64], tail: &[i64]| {
        let lead = tensor.shape.len() - tail.len();
        let batch = &batch[batch.len() - lead..];
        let of = |(&i, &n): (&i64, &i64)| if n == 1 { 0 } else { i };
        batch.iter().zip(&tensor.shape).map(of).chain(tail.iter().copied()).collect::<Vec<_>>()
    };
    // Of large products, a sample.
    let all = indices(&out.shape);
    let step = (all.len() * k as usize / 30_000) | 1;
    for index in all.into_iter().step_by(step) {
        let mut batch = index.clone();
        let j = if b_matrix { batch.pop().unwrap() } else { 0 };
        let i = if a_matrix { batch.pop().unwrap() } else { 0 };
        let (mut sum, mut magnitude) = (0.0, 0.0);
        for l in 0..k {
            let x = if a_matrix { a.float(&align(a, &batch, &[i, l])) } else { a.float(&[l]) };
            let y = if b_matrix { b.float(&align(b, &batch, &[l, j])) } else { b.float(&[l]) };
            sum += x * y;
            magnitude += (x * y).abs();
        }
        let bias = bias.map_or(0.0, |bias| bias.float(&[j]));
        let (exact, magnitude) = (activate(activation, sum + bias), magnitude + bias.abs());
        let epsilon = if out.dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        let slack = magnitude * epsilon * (1.5 + (k as f64).sqrt()) + half_ulp(exact, out.dtype) * 1.01;
        let got = out.float(&index);
        assert!(
            (got - exact).abs() <= slack || (got.is_nan() && exact.is_nan()),
            "{} {:?} @ {:?} {activation:?} {index:?}: {got} is not {exact}",
            out.dtype,
            a.shape,
            b.shape
        );
    }
}

fn size(random: &mut Random) -> i64 {
    random.pick(&[1, 1, 2, 3, 7, 16, 17, 33, 50])
}

#[test]
fn any_shape_stride_dtype_and_activation() {
    let mut random = Random::new(9);
    for case in 0..400 {
        let dtype = DType::FLOATS[case % 4];
        let (m, n, k) = (size(&mut random), size(&mut random), random.pick(&[0, 1, 2, 3, 5, 16, 40, 67]));
        let batch: Vec<i64> = (0..random.below(3)).map(|_| 1 + random.below(3)).collect();
        let mut of = |batch: &[i64], tail: &[i64], expanded| {
            Tensor::strided(&mut random, dtype, &[batch, tail].concat(), expanded)
        };
        let (a, b, mut out) = match case % 7 {
            0 => (of(&[], &[k], true), of(&batch, &[k, n], true), of(&batch, &[n], false)),
            1 => (of(&batch, &[m, k], true), of(&[], &[k], true), of(&batch, &[m], false)),
            2 => (of(&batch, &[m, k], true), of(&[], &[k, n], true), of(&batch, &[m, n], false)),
            _ => (of(&batch, &[m, k], true), of(&batch, &[k, n], true), of(&batch, &[m, n], false)),
        };
        let bias = of(&[], &[if b.shape.len() > 1 { n } else { 1 }], true);
        let bias = if case % 3 == 0 { None } else { Some(&bias) };
        let activation = random.pick(&ACTIVATIONS);
        for i in 0..out.len() {
            out.write(i, f64::NAN);
        }
        solve(&a, &b, bias, activation, &mut out);
        check(&a, &b, bias, activation, &out);
    }
}

#[test]
fn large_products_over_blocks_and_threads() {
    let mut random = Random::new(10);
    let of_blocks = [(1030, 5, 520), (3, 2050, 20), (150, 170, 600)];
    let of_vectors =
        [(1, 3000, 300), (40, 1, 9000), (1, 1, 9001), (4, 70, 9000), (3, 1100, 130), (1030, 2, 520)];
    for (m, n, k) in of_blocks.into_iter().chain(of_vectors) {
        for dtype in [DType::F16, DType::F32] {
            let mut of = |m, n| Tensor::contiguous(&mut random, dtype, &[m, n]);
            let (a, b, bias) = (of(m, k), of(k, n), of(1, n));
            let (mut out, mut again) = (of(m, n), of(m, n));
            let bias =
                Tensor { shape: [n].into_iter().collect(), strides: [1].into_iter().collect(), ..bias };
            solve(&a, &b, Some(&bias), Activation::Silu, &mut out);
            check(&a, &b, Some(&bias), Activation::Silu, &out);
            solve(&a, &b, Some(&bias), Activation::Silu, &mut again);
            assert!(out.memory == again.memory, "the same bits, run after run");
        }
    }
    // Many small products, split over threads.
    let mut of = |m, n| Tensor::contiguous(&mut random, DType::F32, &[3000, m, n]);
    let (a, b, mut out) = (of(6, 9), of(9, 5), of(6, 5));
    solve(&a, &b, None, Activation::None, &mut out);
    check(&a, &b, None, Activation::None, &out);
}

#[test]
fn a_few_rows_or_columns_wherever_they_lie() {
    let mut random = Random::new(12);
    let shapes = [(2, 400, 200), (4, 400, 133), (5, 420, 203), (7, 300, 257), (13, 170, 420), (33, 70, 1060)];
    for case in 0..48 {
        let (dtype, (few, many, k)) = (DType::FLOATS[case % 4], random.pick(&shapes));
        let (m, n) = if case % 3 == 0 { (many, few) } else { (few, many) };
        let mut of = |shape: &[i64], expanded| Tensor::strided(&mut random, dtype, shape, expanded);
        let (a, b, bias, mut out) =
            (of(&[m, k], true), of(&[k, n], true), of(&[n], true), of(&[m, n], false));
        solve(&a, &b, Some(&bias), Activation::LeakyRelu { negative_slope: 0.2 }, &mut out);
        check(&a, &b, Some(&bias), Activation::LeakyRelu { negative_slope: 0.2 }, &out);
    }
}

#[test]
fn a_column_times_a_row_wherever_they_lie() {
    let mut random = Random::new(13);
    for case in 0..96 {
        let (dtype, activation) = (DType::FLOATS[case % 4], random.pick(&ACTIVATIONS));
        let (m, n) = random.pick(&[(2, 64), (3, 1000), (70, 65), (65, 300), (300, 2)]);
        let mut of = |shape: &[i64], expanded| Tensor::strided(&mut random, dtype, shape, expanded);
        let (a, b, bias, mut out) =
            (of(&[m, 1], true), of(&[1, n], true), of(&[n], true), of(&[m, n], false));
        let bias = if case % 3 == 0 { None } else { Some(&bias) };
        solve(&a, &b, bias, activation, &mut out);
        check(&a, &b, bias, activation, &out);
    }
}

#[test]
fn nan_and_infinity_pass_through() {
    let mut random = Random::new(11);
    for dtype in DType::FLOATS {
        for (m, n, k) in [(4, 6, 9), (1, 20, 9), (20, 1, 9), (5, 5, 1), (5, 70, 1)] {
            let mut of = |m, n| Tensor::contiguous(&mut random, dtype, &[m, n]);
            let (mut a, mut b, mut out) = (of(m, k), of(k, n), of(m, n));
            a.write(k - 1, f64::INFINITY);
            b.write(0, 0.0);
            b.write((k - 1) * n, 0.0);
            for activation in ACTIVATIONS {
                solve(&a, &b, None, activation, &mut out);
                // Row 0 holds an infinity, which column 0 multiplies by zero.
                assert!(out.float(&[0, 0]).is_nan(), "{dtype} {m} {n} {k} {activation:?}");
                if m > 1 {
                    assert!((0..n).all(|j| out.float(&[m - 1, j]).is_finite()));
                }
            }
        }
    }
}

struct ApplyTo<'a, R>(Activation, &'a mut [R]);

impl<R: Activate> Kernel for ApplyTo<'_, R> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        apply(isa, self.0, None, self.1);
    }
}

#[test]
fn activations_are_accurate_in_their_tails() {
    let points: Vec<f64> = (-4000..4000).map(|i| f64::from(i) * 0.0101 + 1e-3).collect();
    for activation in ACTIVATIONS {
        let mut single: Vec<f32> = points.iter().map(|&x| x as f32).collect();
        let mut double = points.clone();
        dispatch(ApplyTo(activation, &mut single));
        dispatch(ApplyTo(activation, &mut double));
        for (i, &x) in points.iter().enumerate() {
            let exact = |x: f64| match activation {
                // 1 + tanh cancels, and e to the power of -y overflows.
                Activation::GeluTanh => {
                    let y = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                    if y < 0.0 { x * y.exp() / (1.0 + y.exp()) } else { x / (1.0 + (-y).exp()) }
                }
                other => activate(other, x),
            };
            let (expected, got) = (exact(f64::from(x as f32)), f64::from(single[i]));
            // The argument of tanh is itself rounded, and e to the power of it multiplies that.
            let factor = if activation == Activation::GeluTanh { 1.0 + x.abs().powi(3) } else { 1.0 };
            let slack = expected.abs() * 6e-7 * factor.min(100.0)
                // x times an exponential that may be below the normal range.
                + (2.0 + x.abs()) * half_ulp(0.0, DType::F32);
            assert!((got - expected).abs() <= slack, "{activation:?}({x}): {got} is not {expected}");
            // The rounding of erfc's argument counts 2 x^2 times, and erfc may be below the normal range
            // before x multiplies it.
            let factor = if activation == Activation::Gelu { 1.0 + x * x } else { factor };
            let slack = exact(x).abs() * 2e-15 * factor + 50.0 * f64::from_bits(1);
            assert!((double[i] - exact(x)).abs() <= slack, "{activation:?}({x})");
        }
        let mut special = [f32::NAN, f32::INFINITY, -0.0, 100.0, -100.0];
        dispatch(ApplyTo(activation, &mut special));
        assert!(
            special[0].is_nan() && special[1] == f32::INFINITY && special[2] == 0.0 && special[3] == 100.0
        );
        assert!(special[4].is_finite());
    }
}
