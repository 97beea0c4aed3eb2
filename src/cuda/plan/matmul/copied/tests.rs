//! When operands are copied first, and that the product then reads the copies.

use super::*;
use crate::cuda::device::examples;
use crate::cuda::plan::matmul::tests::problem;
use crate::cuda::plan::matmul::{Forced, Route, route};

fn copied(p: &MatmulProblem, device: &DeviceFacts) -> bool {
    matches!(route(p, device, None), Route::Copied(_))
}

#[test]
fn large_products_of_odd_sizes_are_copied() {
    // On Hopper the copies go to matmul_wgmma.cu.
    let device = examples::a100();
    for (m, n, k) in [(4095, 4097, 4099), (4096, 4096, 4097), (4096, 4097, 4096)] {
        assert!(copied(&problem(DType::BF16, 1, m, k, n), &device), "{m} {n} {k}");
    }
    for (dtype, n) in [(DType::F16, 63), (DType::F16, 255), (DType::F16, 4096), (DType::F32, 4095)] {
        assert!(!copied(&problem(dtype, 1, n, n, n), &device), "{n}");
    }
    let p = problem(DType::F16, 1, 2047, 2047, 2047);
    assert!(copied(&p, &examples::a100()) && !copied(&p, &examples::h200()) && !copied(&p, &examples::t4()));
    assert!(matches!(route(&p, &examples::h200(), None), Route::Wgmma(_)));
}

#[test]
fn the_product_reads_the_copies() {
    let device = examples::h200();
    let p = problem(DType::F16, 3, 513, 257, 1023);
    let choice = choose(&p, &device).unwrap();
    let launches = choice.launches(&p, &device, 1 << 50);
    let q = &launches.multiply.params;
    assert!(launches.multiply.kernel.name.contains("_kn_"), "{}", launches.multiply);
    assert_eq!((q.m, q.n, q.k), (513, 1023, 257));
    assert_eq!((q.a, q.a_row, q.a_col), (1 << 50, 320, 1));
    let second = (3u64 * 513 * 320 * 2).next_multiple_of(256);
    assert_eq!((q.b, q.b_row, q.b_col), ((1 << 50) + second as usize, 1024, 1));
    assert_eq!(choice.workspace_bytes(), second + (3u64 * 257 * 1024 * 2).next_multiple_of(256));
    assert_eq!((q.batch[0].strides[0], q.batch[0].strides[1]), (513 * 320, 257 * 1024));
    assert_eq!((q.out, q.out_row), (p.out.address, 1023));
}

#[test]
fn what_can_be_read_where_it_lies_is_not_copied() {
    let device = examples::h200();
    let mut p = problem(DType::BF16, 1, 1024, 1024, 1024);
    assert_eq!(choose(&p, &device), None);
    assert_eq!(route(&p, &device, Some(Forced::Copied)), Route::Blocks(Default::default()));
    p.b.address += 2;
    let choice = choose(&p, &device).unwrap();
    let q = choice.launches(&p, &device, 1 << 50).multiply.params;
    assert_eq!((q.a, q.b), (p.a.address, 1 << 50));
    assert_eq!(choice.workspace_bytes(), 1024 * 1024 * 2);
    // An expanded operand whose copy fits nowhere.
    let mut vast = problem(DType::F16, 1, 1 << 30, 1 << 30, 8);
    (vast.a.row_stride, vast.a.col_stride) = (0, 0);
    assert_eq!(choose(&vast, &device), None);
}
