//! Sums against naive ones.

use super::{Random, Tensor, half_ulp, indices, rounded};
use crate::cpu::add::run;
use crate::dtype::{Category, DType};
use crate::ops::Scalar;
use crate::ops::add::{Addend, ScalarOrigin, output, problem};

fn alpha(random: &mut Random, result: DType) -> Scalar {
    match result.category() {
        Category::Bool => Scalar::Bool(random.below(3) > 0),
        Category::Integer => Scalar::Int(random.pick(&[1, 1, 2, 3, -7])),
        Category::Float => Scalar::Float(random.pick(&[1.0, 1.0, -1.0, 0.37])),
    }
}

/// Checks one element given the operands as they are in memory.
fn check(out: &Tensor, index: &[i64], x: (f64, i64), y: (f64, i64), alpha: Scalar, scalar: bool) {
    let dtype = out.dtype;
    if dtype.is_float() {
        let x = rounded(x.0, dtype);
        let y = if scalar { y.0 } else { rounded(y.0, dtype) };
        let exact = x + alpha.as_f64() * y;
        let product = if dtype == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        let slack = (x.abs() + (alpha.as_f64() * y).abs()) * product + half_ulp(exact, dtype) * 1.001;
        let got = out.float(index);
        if got == rounded(exact, dtype) || (got.is_nan() && exact.is_nan()) {
            return;
        }
        assert!((got - exact).abs() <= slack, "{dtype} {index:?}: {got} is not {exact}");
    } else if dtype == DType::Bool {
        let expected = x.1 != 0 || (alpha.as_i64() != 0 && y.1 != 0);
        assert_eq!(out.integer(index), i64::from(expected));
    } else {
        let sum = x.1.wrapping_add(alpha.as_i64().wrapping_mul(y.1));
        let bits = 64 - 8 * dtype.size() as u32;
        let kept = if dtype == DType::U8 { sum & 255 } else { sum << bits >> bits };
        assert_eq!(out.integer(index), kept, "{dtype} {index:?}");
    }
}

fn shape(random: &mut Random) -> Vec<i64> {
    match random.below(4) {
        0 => vec![1 + random.below(3000)],
        1 => vec![1 + random.below(40), 1 + random.below(70)],
        2 => (0..4).map(|_| 1 + random.below(6)).collect(),
        _ => (0..random.below(8)).map(|_| 1 + random.below(3)).collect(),
    }
}

#[test]
fn every_pair_of_dtypes() {
    let mut random = Random::new(1);
    for x_dtype in DType::ALL {
        for y_dtype in DType::ALL {
            for _ in 0..4 {
                let shape = shape(&mut random);
                let x = Tensor::strided(&mut random, x_dtype, &shape, true);
                let y = Tensor::strided(&mut random, y_dtype, &shape, true);
                let addend = Addend::Tensor(y.view());
                let spec = output(&x.view(), &addend, DType::F32).unwrap();
                let mut out = Tensor::strided(&mut random, spec.dtype, &shape, false);
                let alpha = alpha(&mut random, spec.dtype);
                run(&problem(&x.view(), &addend, alpha, &spec, &out.view_mut()).unwrap()).unwrap();
                for i in indices(&shape) {
                    let (a, b) = ((x.float(&i), x.integer(&i)), (y.float(&i), y.integer(&i)));
                    check(&out, &i, a, b, alpha, false);
                }
            }
        }
    }
}

#[test]
fn scalars_are_not_rounded_first() {
    let mut random = Random::new(2);
    for dtype in DType::ALL {
        for value in [Scalar::Bool(true), Scalar::Int(-300), Scalar::Int(7), Scalar::Float(0.1234567)] {
            let shape = shape(&mut random);
            let x = Tensor::strided(&mut random, dtype, &shape, true);
            let addend = Addend::Scalar { value, origin: ScalarOrigin::Number };
            let spec = output(&x.view(), &addend, DType::F32).unwrap();
            let mut out = Tensor::strided(&mut random, spec.dtype, &shape, false);
            let alpha = alpha(&mut random, spec.dtype);
            run(&problem(&x.view(), &addend, alpha, &spec, &out.view_mut()).unwrap()).unwrap();
            for i in indices(&shape) {
                check(&out, &i, (x.float(&i), x.integer(&i)), (value.as_f64(), value.as_i64()), alpha, true);
            }
        }
    }
}

#[test]
fn matrices_across_the_memory() {
    let mut random = Random::new(5);
    for dtype in DType::ALL {
        for [rows, columns] in [[30, 2], [9, 7], [7, 9], [8, 16], [21, 19], [130, 70], [33, 600]] {
            let x = Tensor::contiguous(&mut random, dtype, &[2, rows, columns]);
            let mut y = Tensor::contiguous(&mut random, dtype, &[2, rows, columns]);
            y.strides = [rows * columns, 1, rows].into_iter().collect();
            let addend = Addend::Tensor(y.view());
            let spec = output(&x.view(), &addend, DType::F32).unwrap();
            let mut out = Tensor::contiguous(&mut random, dtype, &[2, rows, columns]);
            let alpha = alpha(&mut random, dtype);
            run(&problem(&x.view(), &addend, alpha, &spec, &out.view_mut()).unwrap()).unwrap();
            for i in indices(&[2, rows, columns]) {
                let (a, b) = ((x.float(&i), x.integer(&i)), (y.float(&i), y.integer(&i)));
                check(&out, &i, a, b, alpha, false);
            }
        }
    }
}

#[test]
fn into_its_own_input_and_over_threads() {
    let mut random = Random::new(3);
    for dtype in [DType::F32, DType::F16, DType::I16] {
        // Long enough that the work is split.
        let shape = [800, 2111];
        let mut x = Tensor::contiguous(&mut random, dtype, &shape);
        let y = Tensor::contiguous(&mut random, dtype, &[2111]);
        let addend = Addend::Tensor(y.view());
        let spec = output(&x.view(), &addend, DType::F32).unwrap();
        let mut fresh = Tensor::contiguous(&mut random, dtype, &shape);
        run(&problem(&x.view(), &addend, Scalar::Int(2), &spec, &fresh.view_mut()).unwrap()).unwrap();
        for i in [[0, 0], [0, 2110], [599, 1024], [799, 2110], [700, 3]] {
            let (a, b) = ((x.float(&i), x.integer(&i)), (y.float(&i[1..]), y.integer(&i[1..])));
            check(&fresh, &i, a, b, Scalar::Int(2), false);
        }
        let view = x.view_mut();
        run(&problem(&view, &addend, Scalar::Int(2), &spec, &view).unwrap()).unwrap();
        assert!(x.memory == fresh.memory);
    }
}

#[test]
fn halves_round_to_even_and_keep_nan() {
    for dtype in [DType::F16, DType::BF16] {
        let mut random = Random::new(4);
        let values =
            [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 65504.0, 6e-8, 1e-40, -0.0, 2049.0, 1.0, 0.0];
        let mut x = Tensor::contiguous(&mut random, dtype, &[37]);
        for i in 0..37 {
            x.write(i, values[i as usize % values.len()]);
        }
        let mut out = Tensor::contiguous(&mut random, dtype, &[37]);
        for y in [0.0, 16.0, 0.00390625, 0.00048828125, 1e-8, f64::NAN, f64::NEG_INFINITY] {
            let addend = Addend::Scalar { value: Scalar::Float(y), origin: ScalarOrigin::Number };
            let spec = output(&x.view(), &addend, DType::F32).unwrap();
            run(&problem(&x.view(), &addend, Scalar::Int(1), &spec, &out.view_mut()).unwrap()).unwrap();
            for i in 0..37 {
                let expected = rounded(f64::from(x.float(&[i]) as f32 + y as f32), dtype);
                let got = out.float(&[i]);
                assert!(got == expected || (got.is_nan() && expected.is_nan()), "{got} is not {expected}");
            }
        }
    }
}
