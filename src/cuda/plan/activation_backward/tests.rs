//! Which kernels a gradient gets, and that its launches cover all elements.

use super::*;
use crate::cuda::device::examples;
use crate::ops::Strided;
use crate::ops::activation_backward::BiasGradient;
use crate::ops::matmul::Activation;
use crate::tensor::{Device, Dims};

fn problem(dtype: DType, rows: i64, columns: i64, row_stride: i64, bias: bool) -> ActivationBackwardProblem {
    let at = |address| Strided { address, dtype, strides: Dims::from_slice(&[row_stride, 1]) };
    ActivationBackwardProblem {
        device: Device::Cuda(0),
        dtype,
        activation: Activation::Silu,
        columns,
        rows: Dims::from_slice(&[rows]),
        grad: at(1 << 20),
        saved: Some(at(1 << 30)),
        out: Some(at(1 << 40)),
        bias: bias.then_some(BiasGradient { address: 1 << 50, stride: 1 }),
        up: None,
    }
}

#[test]
fn every_element_has_a_thread_and_every_slice_its_sums() {
    for device in examples::all() {
        for dtype in DType::FLOATS {
            for (rows, columns) in
                [(0, 5), (1, 1), (1, 70001), (4096, 4096), (1 << 20, 16), (999, 1), (70, 264), (65536, 257)]
            {
                let p = problem(dtype, rows, columns, columns, true);
                let (first, second, workspace) = plan(&p, &device, 64);
                let params = first.params;
                let elements =
                    if first.kernel.name.contains("vector") { 16 / dtype.size() as u64 } else { 1 };
                let context = format!("{dtype} {rows} x {columns} on {}: {first}", device.name);
                let (across, tiles) = (u64::from(params.across), u64::from(params.tiles));
                assert!(across <= first.block[0].into() && u64::from(first.block[0]) <= THREADS, "{context}");
                assert!(tiles * across * elements >= params.columns, "{context}");
                assert!(u64::from(params.slices) * params.slice >= params.rows, "{context}");
                assert_eq!(first.grid[0], params.tiles * params.slices, "{context}");
                let kept = params.rows.saturating_sub(1) * params.columns
                    + params.last.min(rows as u64 * columns as u64);
                assert_eq!(kept, (rows * columns) as u64, "{context}");
                assert_eq!(second.is_some(), workspace > 0, "{context}");
                assert_eq!(second.is_some(), params.partials != 0, "{context}");
                let sums = u64::from(params.slices) * params.columns;
                if let Some(second) = second {
                    assert_eq!(u64::from(second.params.slices) * columns as u64, sums, "{context}");
                    assert_eq!(workspace, sums * if dtype == DType::F64 { 8 } else { 4 });
                    assert!(u64::from(second.grid[0] * second.params.across) >= columns as u64);
                } else {
                    assert_eq!(sums, columns as u64, "{context}");
                }
                assert!(plan(&problem(dtype, rows, columns, columns, false), &device, 0).1.is_none());
            }
        }
    }
}

fn name(p: &ActivationBackwardProblem) -> String {
    plan(p, &examples::h200(), 0).0.kernel.name
}

#[test]
fn vectors_where_all_rows_are_aligned() {
    assert_eq!(name(&problem(DType::F16, 50, 264, 264, true)), "activation_backward_vector_f16");
    assert_eq!(name(&problem(DType::F16, 50, 264, 272, false)), "activation_backward_vector_f16");
    assert_eq!(name(&problem(DType::F16, 50, 264, 265, false)), "activation_backward_element_f16");
    assert_eq!(name(&problem(DType::F16, 50, 260, 264, false)), "activation_backward_element_f16");
    let mut shifted = problem(DType::F16, 50, 264, 264, true);
    shifted.grad.address += 2;
    assert_eq!(name(&shifted), "activation_backward_element_f16");
    shifted.grad = Strided { strides: Dims::from_slice(&[0, 1]), ..problem(DType::F16, 1, 8, 8, false).grad };
    assert_eq!(name(&shifted), "activation_backward_vector_f16", "one row for all");
    shifted.grad.strides = Dims::from_slice(&[0, 0]);
    assert_eq!(name(&shifted), "activation_backward_element_f16");
}

#[test]
fn what_lies_in_one_piece() {
    let odd = problem(DType::F16, 50, 261, 261, false);
    assert_eq!(name(&odd), "activation_backward_flat_f16");
    assert_eq!(plan(&odd, &examples::h200(), 0).0.params.columns, 50 * 261);
    // 8 rows, or 2, make one of whole accesses, 64 or 8 one of whole lines.
    for (rows, columns, fold, last) in
        [(50, 261, 8, 2 * 261), (50, 260, 2, 520), (1025, 261, 64, 261), (130, 264, 8, 528)]
    {
        let p = problem(DType::F16, rows, columns, columns, true);
        let (first, second, _) = plan(&p, &examples::h200(), 64);
        assert_eq!(first.kernel.name, "activation_backward_vector_f16");
        let params = first.params;
        assert_eq!((params.rows, params.columns), ((rows as u64).div_ceil(fold), columns as u64 * fold));
        assert_eq!((params.last, params.dims[0].strides), (last, [columns * fold as i64; 3]));
        let sums = second.expect("columns have several sums").params;
        assert_eq!((sums.columns, u64::from(sums.slices)), (columns as u64, fold * u64::from(params.slices)));
    }
    assert_eq!(name(&problem(DType::F16, 8, 261, 261, true)), "activation_backward_element_f16");
}

#[test]
fn rows_lie_along_the_longest_dimension() {
    let mut p = problem(DType::F32, 1, 64, 64, true);
    p.rows = Dims::from_slice(&[3, 500, 2]);
    for t in [&mut p.grad, p.saved.as_mut().unwrap(), p.out.as_mut().unwrap()] {
        t.strides = Dims::from_slice(&[64, 384, 192, 1]);
    }
    let (first, second, _) = plan(&p, &examples::h200(), 64);
    let params = first.params;
    assert_eq!((params.rows, params.dims[2].strides, params.rank), (500, [384; 3], 3));
    assert_eq!(first.grid[0], 6 * params.tiles * params.slices);
    assert_eq!(second.map(|second| second.params.slices), Some(6 * params.slices));
}
