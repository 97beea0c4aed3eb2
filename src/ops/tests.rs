//! What calls mean, on views of memory that does not exist.

use smallvec::smallvec;

use super::add::{self, Addend, AddendProblem, ScalarOrigin};
use super::matmul::{self, Activation, Operands, Precision};
use super::softmax::{self, Kind};
use super::{Scalar, output::OutputSpec};
use crate::dtype::DType;
use crate::error::{Error, Family};
use crate::tensor::{Device, Dims, TensorView, layout};

fn tensor(address: usize, dtype: DType, shape: &[i64]) -> TensorView {
    strided(address, dtype, shape, &layout::contiguous_strides(shape))
}

fn strided(address: usize, dtype: DType, shape: &[i64], strides: &[i64]) -> TensorView {
    TensorView {
        address,
        dtype,
        device: Device::Cpu,
        shape: Dims::from_slice(shape),
        strides: Dims::from_slice(strides),
        writable: true,
    }
}

fn result_of(spec: &OutputSpec) -> TensorView {
    strided(1 << 40, spec.dtype, &spec.shape, &spec.strides)
}

fn family<T: std::fmt::Debug>(result: Result<T, Error>) -> Family {
    result.unwrap_err().family().unwrap()
}

#[test]
fn promotion_ranks_tensors_over_scalars() {
    let t = |dtype, shape: &[i64]| tensor(64, dtype, shape);
    let number = |value| Addend::Scalar { value, origin: ScalarOrigin::Number };
    let cases = [
        (t(DType::I32, &[3]), number(Scalar::Int(1)), DType::I32),
        (t(DType::I32, &[3]), number(Scalar::Float(1.0)), DType::F32),
        (t(DType::F16, &[3]), number(Scalar::Float(1.0)), DType::F16),
        (t(DType::Bool, &[3]), number(Scalar::Int(1)), DType::I64),
        (t(DType::F16, &[3]), Addend::Tensor(t(DType::F64, &[])), DType::F16),
        (t(DType::I8, &[]), Addend::Tensor(t(DType::F16, &[2])), DType::F16),
        (t(DType::I64, &[2]), Addend::Tensor(t(DType::F16, &[])), DType::F16),
        (t(DType::F16, &[]), Addend::Tensor(t(DType::F32, &[])), DType::F32),
    ];
    for (x, y, expected) in cases {
        assert_eq!(add::result_dtype(&x, &y, DType::F32), expected, "{x:?} {y:?}");
    }
}

#[test]
fn a_contiguous_addition_is_one_dimensional() {
    let x = tensor(1 << 10, DType::F32, &[2, 3, 4]);
    let y = Addend::Tensor(tensor(1 << 20, DType::F32, &[2, 3, 4]));
    let spec = add::output(&x, &y, DType::F32).unwrap();
    let problem = add::problem(&x, &y, Scalar::Int(1), &spec, &result_of(&spec)).unwrap();
    assert_eq!(problem.shape.as_slice(), &[24]);
    assert_eq!(problem.alpha, Scalar::Float(1.0));
}

#[test]
fn a_row_bias_keeps_two_dimensions() {
    let x = tensor(1 << 10, DType::F32, &[5, 3, 4]);
    let y = Addend::Tensor(tensor(1 << 20, DType::F32, &[4]));
    let spec = add::output(&x, &y, DType::F32).unwrap();
    let problem = add::problem(&x, &y, Scalar::Int(1), &spec, &result_of(&spec)).unwrap();
    assert_eq!(problem.shape.as_slice(), &[15, 4]);
    let AddendProblem::Tensor(y) = problem.y else { panic!("y is a tensor") };
    assert_eq!(y.strides.as_slice(), &[0, 1]);
}

#[test]
fn sums_keep_their_operands_memory_order() {
    let x = strided(1 << 10, DType::F32, &[2, 3, 4], &[12, 1, 3]);
    let spec = add::output(&x, &Addend::Tensor(x.clone()), DType::F32).unwrap();
    assert_eq!(spec.strides.as_slice(), &[12, 1, 3]);
    let y = tensor(1 << 20, DType::F32, &[2, 3, 4]);
    let spec = add::output(&x, &Addend::Tensor(y.clone()), DType::F32).unwrap();
    assert_eq!(spec.strides.as_slice(), &[12, 1, 3], "of different orders the first operand's");
    assert!(add::output(&y, &Addend::Tensor(x), DType::F32).unwrap().is_contiguous());
}

#[test]
fn alpha_follows_torch() {
    let spec = |dtype| OutputSpec::contiguous(smallvec![2], dtype, Device::Cpu);
    let check = |alpha, dtype| add::check_alpha(alpha, &spec(dtype));
    assert!(check(Scalar::Int(2), DType::Bool).is_ok());
    assert!(check(Scalar::Int(-1), DType::U8).is_ok());
    assert!(check(Scalar::Float(f64::INFINITY), DType::F16).is_ok());
    for (alpha, dtype) in [
        (Scalar::Bool(true), DType::F32),
        (Scalar::Float(0.5), DType::I32),
        (Scalar::Float(0.5), DType::Bool),
        (Scalar::Int(300), DType::I8),
        (Scalar::Int(256), DType::U8),
        (Scalar::Int(1 << 63), DType::I64),
        (Scalar::Float(1e300), DType::F32),
    ] {
        assert_eq!(family(check(alpha, dtype)), Family::DType, "{alpha:?} {dtype}");
    }
}

#[test]
fn softmax_separates_rows_from_the_dimension() {
    let x = tensor(1 << 10, DType::F16, &[2, 3, 4]);
    let spec = softmax::output(Kind::Softmax, &x, Some(DType::F32)).unwrap();
    let p = softmax::problem(Kind::Softmax, &x, -2, &spec, &result_of(&spec)).unwrap();
    assert_eq!((p.length, p.x_stride, p.out_stride), (3, 4, 4));
    assert_eq!(p.rows.as_slice(), &[2, 4]);
    let p = softmax::problem(Kind::Softmax, &x, -1, &spec, &result_of(&spec)).unwrap();
    assert_eq!((p.length, p.row_count()), (4, 6));
    let scalar = tensor(1 << 10, DType::F16, &[]);
    let spec = softmax::output(Kind::Softmax, &scalar, None).unwrap();
    let p = softmax::problem(Kind::Softmax, &scalar, 0, &spec, &result_of(&spec)).unwrap();
    assert_eq!((p.length, p.row_count()), (1, 1));
    assert_eq!(family(softmax::checked_dim("softmax", 1, 0)), Family::Dim);
    assert_eq!(family(softmax::checked_dim("softmax", -4, 3)), Family::Dim);
}

fn matmul_problem(a: &TensorView, b: &TensorView) -> matmul::MatmulProblem {
    let operands = Operands { a, b, bias: None, gate: None, residual: None };
    let spec = matmul::output(&operands).unwrap();
    matmul::problem(&operands, &result_of(&spec), Activation::None, Precision::Ieee, &spec).unwrap()
}

#[test]
fn matmul_shapes_are_torchs() {
    let shape = |a: &[i64], b: &[i64]| {
        let (a, b) = (tensor(64, DType::F32, a), tensor(64, DType::F32, b));
        let operands = Operands { a: &a, b: &b, bias: None, gate: None, residual: None };
        matmul::output(&operands).map(|s| s.shape.to_vec())
    };
    assert_eq!(shape(&[3], &[3]).unwrap(), Vec::<i64>::new());
    assert_eq!(shape(&[2, 3], &[3]).unwrap(), [2]);
    assert_eq!(shape(&[3], &[3, 4]).unwrap(), [4]);
    assert_eq!(shape(&[5, 1, 2, 3], &[7, 3, 4]).unwrap(), [5, 7, 2, 4]);
    assert_eq!(shape(&[3], &[5, 3, 4]).unwrap(), [5, 4]);
    assert_eq!(shape(&[5, 2, 3], &[3]).unwrap(), [5, 2]);
    assert_eq!(family(shape(&[2, 3], &[4, 5])), Family::Shape);
    assert_eq!(family(shape(&[2, 2, 3], &[3, 3, 4])), Family::Shape);
    assert_eq!(family(shape(&[], &[3])), Family::Shape);
}

#[test]
fn a_batch_against_one_weight_is_one_product() {
    let a = tensor(1 << 10, DType::F32, &[5, 7, 3]);
    let b = tensor(1 << 20, DType::F32, &[3, 4]);
    let p = matmul_problem(&a, &b);
    assert_eq!((p.m, p.n, p.k, p.batch.len()), (35, 4, 3, 0));
    assert_eq!((p.a.row_stride, p.out.row_stride), (3, 4));
    // A transposed batch cannot be folded.
    let p = matmul_problem(&strided(1 << 10, DType::F32, &[5, 7, 3], &[3, 15, 1]), &b);
    assert_eq!((p.m, p.batch.as_slice()), (7, &[5i64][..]));
    // One row per batch entry can, whatever the step.
    let p = matmul_problem(&strided(1 << 10, DType::F32, &[5, 1, 3], &[100, 9, 1]), &b);
    assert_eq!((p.m, p.a.row_stride, p.out.row_stride, p.batch.len()), (5, 100, 4, 0));
}

#[test]
fn vectors_take_part_as_rows_and_columns() {
    let a = strided(1 << 10, DType::F32, &[3], &[2]);
    let b = tensor(1 << 20, DType::F32, &[5, 3, 4]);
    let p = matmul_problem(&a, &b);
    assert_eq!((p.m, p.n, p.k, p.batch.as_slice()), (1, 4, 3, &[5i64][..]));
    assert_eq!((p.a.col_stride, p.a.batch_strides.as_slice()), (2, &[0i64][..]));
    assert_eq!((p.out.col_stride, p.out.batch_strides.as_slice()), (1, &[4i64][..]));
    let p = matmul_problem(&tensor(1 << 10, DType::F32, &[5, 2, 3]), &a);
    assert_eq!((p.m, p.n, p.b.row_stride, p.out.row_stride), (10, 1, 2, 1));
}

#[test]
fn out_is_checked_before_anything_is_read() {
    let x = tensor(1 << 10, DType::F32, &[4, 4]);
    let spec = softmax::output(Kind::Softmax, &x, None).unwrap();
    let attempt = |out: &TensorView| softmax::problem(Kind::Softmax, &x, 0, &spec, out).map(|_| ());
    assert!(attempt(&x).is_ok(), "in place");
    assert_eq!(family(attempt(&tensor((1 << 10) + 16, DType::F32, &[4, 4]))), Family::Layout);
    assert_eq!(family(attempt(&tensor(1 << 20, DType::F32, &[4, 5]))), Family::Shape);
    assert_eq!(family(attempt(&tensor(1 << 20, DType::F16, &[4, 4]))), Family::DType);
    assert_eq!(family(attempt(&strided(1 << 20, DType::F32, &[4, 4], &[0, 1]))), Family::Layout);
    let mut elsewhere = tensor(1 << 20, DType::F32, &[4, 4]);
    elsewhere.writable = false;
    assert_eq!(family(attempt(&elsewhere)), Family::Layout);
    elsewhere.device = Device::Cuda(0);
    assert_eq!(family(attempt(&elsewhere)), Family::Device);
}
