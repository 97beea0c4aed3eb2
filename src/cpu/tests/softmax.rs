//! softmax, log_softmax and their gradients against naive ones.

use super::{Random, Tensor, half_ulp, indices, rounded};
use crate::cpu::exp::Exp;
use crate::cpu::isa::{Isa, Kernel, LANES, dispatch};
use crate::cpu::softmax::run;
use crate::dtype::DType;
use crate::ops::softmax::{Kind, output, problem};

struct ExpOf<R>(R);

impl<R: Exp> Kernel for ExpOf<R> {
    type Output = R;

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> R {
        R::exp(isa, self.0)
    }
}

struct LargerOf<R>([R; 2]);

impl<R: Exp> Kernel for LargerOf<R> {
    type Output = [R; LANES];

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> [R; LANES] {
        let [a, b] = self.0;
        R::larger(isa, [a; LANES], [b; LANES])
    }
}

#[test]
fn the_first_is_the_larger_of_equals_and_of_nans() {
    let numbers = [f64::NAN, f64::NEG_INFINITY, -1.0, -0.0, 0.0, 2.0, f64::INFINITY];
    for (a, b) in numbers.iter().flat_map(|&a| numbers.map(|b| (a, b))) {
        let expected = if b > a { b } else { a };
        let (double, single) = (dispatch(LargerOf([a, b])), dispatch(LargerOf([a as f32, b as f32])));
        assert_eq!(double.map(f64::to_bits), [expected.to_bits(); LANES], "{a}, {b}");
        assert_eq!(single.map(f32::to_bits), [(expected as f32).to_bits(); LANES], "{a}, {b}");
    }
}

#[test]
fn exp_is_within_two_ulp() {
    let mut worst: (f64, f32) = (0.0, 0.0);
    for bits in (0..=u32::MAX).step_by(9973) {
        let x = f32::from_bits(bits);
        let (got, exact) = (dispatch(ExpOf(x)), f64::from(x).exp());
        if exact.is_nan() || exact > f64::from(f32::MAX) {
            assert!(got.is_nan() == exact.is_nan() && got.is_infinite() != exact.is_nan(), "{x}: {got}");
            continue;
        }
        let error = (f64::from(got) - exact).abs() / (2.0 * half_ulp(exact.max(1e-300), DType::F32));
        worst = if error > worst.0 { (error, x) } else { worst };
    }
    assert!(worst.0 < 1.5, "{worst:?} ulp");
    for i in -76000..72000 {
        let x = f64::from(i) * 0.01 + 1e-7;
        let (got, exact) = (dispatch(ExpOf(x)), x.exp());
        let same = got == exact || (got - exact).abs() / (2.0 * half_ulp(exact, DType::F64)) < 2.0;
        assert!(same, "{x}: {got} is not {exact}");
    }
    assert_eq!(dispatch(ExpOf(f32::NEG_INFINITY)), 0.0);
    assert_eq!(dispatch(ExpOf(f64::NEG_INFINITY)), 0.0);
    assert_eq!(dispatch(ExpOf(0.0f32)), 1.0);
}

/// softmax or log_softmax of a row, in float64.
fn reference(kind: Kind, row: &[f64]) -> Vec<f64> {
    let m = row.iter().copied().fold(f64::NEG_INFINITY, |a, b| if a.is_nan() || a > b { a } else { b });
    let sum: f64 = row.iter().map(|x| (x - m).exp()).sum();
    let of = |x: &f64| match kind {
        Kind::Softmax => (x - m).exp() / sum,
        Kind::LogSoftmax => x - m - sum.ln(),
    };
    row.iter().map(of).collect()
}

fn check(kind: Kind, x: &Tensor, out: &Tensor, dim: usize) {
    let mut outer = x.shape.to_vec();
    outer[dim] = 1;
    for mut index in indices(&outer) {
        let mut row = Vec::new();
        for l in 0..x.shape[dim] {
            index[dim] = l;
            row.push(rounded(x.float(&index), out.dtype));
        }
        for (l, expected) in reference(kind, &row).into_iter().enumerate() {
            index[dim] = l as i64;
            let got = out.float(&index);
            // float32 results are held to 1e-6, the smallest of them to their own spacing.
            let relative = if out.dtype == DType::F64 { 4e-15 } else { 1e-6 };
            let slack = expected.abs() * relative + half_ulp(expected, out.dtype) * 1.01;
            let absolute = if kind == Kind::LogSoftmax { relative / 4.0 } else { 0.0 };
            let close = (got - expected).abs() <= slack + absolute;
            assert!(
                close || (got.is_nan() && expected.is_nan()) || got == expected,
                "{kind:?} {} {:?} dim {dim} {index:?}: {got} is not {expected}",
                out.dtype,
                x.shape
            );
        }
    }
}

fn solve(kind: Kind, x: &Tensor, dim: usize, out: &mut Tensor) {
    let spec = output(kind, &x.view(), Some(out.dtype)).unwrap();
    run(&problem(kind, &x.view(), dim as i64, &spec, &out.view_mut()).unwrap()).unwrap();
}

const KINDS: [Kind; 2] = [Kind::Softmax, Kind::LogSoftmax];

#[test]
fn any_shape_dim_and_pair_of_dtypes() {
    let mut random = Random::new(5);
    for x_dtype in DType::FLOATS {
        for out_dtype in DType::FLOATS {
            for _ in 0..30 {
                let mut shape: Vec<i64> = (0..1 + random.below(4)).map(|_| 1 + random.below(9)).collect();
                let d = random.below(shape.len() as i64) as usize;
                shape[d] = 1 + random.below(100);
                let x = Tensor::strided(&mut random, x_dtype, &shape, true);
                let mut out = Tensor::strided(&mut random, out_dtype, &shape, false);
                let (kind, dim) = (random.pick(&KINDS), random.below(shape.len() as i64) as usize);
                solve(kind, &x, dim, &mut out);
                check(kind, &x, &out, dim);
            }
        }
    }
}

#[test]
fn long_rows_and_columns_in_pieces() {
    let mut random = Random::new(6);
    for (shape, dim) in
        [([2, 70000], 1), ([70000, 1], 0), ([6000, 70], 0), ([600, 1100], 0), ([5000, 16], 0), ([3, 1000], 1)]
    {
        for dtype in [DType::F32, DType::BF16] {
            let x = Tensor::contiguous(&mut random, dtype, &shape);
            for kind in KINDS {
                let mut out = Tensor::contiguous(&mut random, dtype, &shape);
                solve(kind, &x, dim, &mut out);
                check(kind, &x, &out, dim);
            }
        }
    }
}

#[test]
fn rows_that_lie_across_the_memory() {
    let mut random = Random::new(9);
    for (rows, length) in [(1, 30), (7, 9), (16, 8), (19, 21), (33, 100), (40, 1030), (3, 9000)] {
        for dtype in DType::FLOATS {
            // The reference adds up naively.
            if dtype == DType::F64 && length > 2000 {
                continue;
            }
            let mut x = Tensor::contiguous(&mut random, dtype, &[2, rows, length]);
            x.strides = [rows * length, 1, rows].into_iter().collect();
            for kind in KINDS {
                let mut out = Tensor::contiguous(&mut random, dtype, &[2, rows, length]);
                solve(kind, &x, 2, &mut out);
                check(kind, &x, &out, 2);
            }
        }
    }
}

#[test]
fn masks_infinities_nan_and_small_probabilities() {
    let mut random = Random::new(7);
    let finfo_min = f64::from(f32::MIN);
    let rows = [
        [f64::NEG_INFINITY, f64::NEG_INFINITY],
        [f64::INFINITY, 1.0],
        [f64::NAN, 0.0],
        [f64::NEG_INFINITY, f64::NAN],
        [f64::NEG_INFINITY, 3.0],
        [finfo_min, 2.5],
        [finfo_min, finfo_min],
        [0.3, -80.1],
        [-1000.25, -1099.7],
        [1e30, 1.0],
    ];
    // Solved in one visit, and in pieces, by columns and by rows.
    for (length, width) in [(2, 8), (67, 8), (4200, 8), (67000, 1)] {
        for row in rows {
            let mut x = Tensor::contiguous(&mut random, DType::F32, &[length, width]);
            for (i, position) in (0..length * width).enumerate() {
                x.write(position, row[usize::from(i as i64 >= width * (length / 2))]);
            }
            // Across the rows of the memory, and along those of its transpose.
            let mut transposed = Tensor::contiguous(&mut random, DType::F32, &[length, width]);
            transposed.strides = [1, length].into_iter().collect();
            for kind in KINDS {
                let mut out = Tensor::contiguous(&mut random, DType::F32, &[length, width]);
                solve(kind, &x, 0, &mut out);
                check(kind, &x, &out, 0);
                solve(kind, &x, 0, &mut transposed);
                check(kind, &x, &transposed, 0);
            }
        }
    }
}

#[test]
fn into_its_own_input() {
    let mut random = Random::new(8);
    for (shape, dim) in [([30, 50], 1), ([30, 50], 0), ([1, 70000], 1), ([70000, 1], 0), ([5000, 40], 0)] {
        for (kind, dtype) in [(KINDS[0], DType::F32), (KINDS[1], DType::F32), (KINDS[1], DType::BF16)] {
            let mut x = Tensor::contiguous(&mut random, dtype, &shape);
            let mut out = Tensor::contiguous(&mut random, dtype, &shape);
            solve(kind, &x, dim, &mut out);
            let (view, spec) = (x.view_mut(), output(kind, &x.view(), None).unwrap());
            run(&problem(kind, &view, dim as i64, &spec, &view).unwrap()).unwrap();
            assert!(x.memory == out.memory);
        }
    }
}
