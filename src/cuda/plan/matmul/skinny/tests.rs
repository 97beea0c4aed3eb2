//! When few rows get kernels of their own, in how many splits, and that what is launched fits the device and covers all.

use super::*;
use crate::cuda::device::examples;
use crate::cuda::plan::matmul::tests::problem;
use crate::cuda::plan::matmul::{Forced, Route, route};
use crate::ops::matmul::Bias;
use crate::tensor::Dims;

/// A linear layer: m tokens times the transpose of n x k weights.
fn layer(dtype: DType, m: i64, n: i64, k: i64) -> MatmulProblem {
    let mut p = problem(dtype, 1, m, k, n);
    (p.b.row_stride, p.b.col_stride) = (1, k);
    p
}

fn launched(p: &MatmulProblem, device: &DeviceFacts, overrides: Overrides) -> (SkinnyChoice, Launches) {
    let choice = choose(p, device, overrides).unwrap();
    let workspace = if choice.workspace_bytes(p) > 0 { 1 << 50 } else { 0 };
    let launches = choice.launches(p, device, workspace);
    (choice, launches)
}

/// (dtype, (m, n, k), kernel's tile and layout or "" for a block a tile, splits)
type Row = (DType, (i64, i64, i64), &'static str, u32);

fn check(device: &DeviceFacts, table: &[Row]) {
    for &(dtype, (m, n, k), kernel, splits) in table {
        let p = layer(dtype, m, n, k);
        let chosen = match route(&p, device, None) {
            Route::Skinny(choice) => (format!("{}{}", choice.tile.name, choice.layout), choice.splits),
            _ => (String::new(), 1),
        };
        assert_eq!(chosen, (kernel.to_string(), splits), "{}: {dtype:?} {m} {n} {k}", device.name);
    }
}

#[test]
fn choices_where_others_cannot() {
    let device = examples::h200();
    for ((m, n, k), kernel, splits) in [
        ((8, 4096, 4096), "8x8_k", 4),
        ((8, 4096, 14_336), "8x8_k", 14),
        ((16, 4096, 4096), "128x32_k", 8),
        // Neither one block on a multiprocessor, nor a few in a last round.
        ((64, 4096, 4096), "128x64_k", 8),
        ((64, 4096, 14_336), "128x64_k", 24),
        ((64, 14_336, 4096), "128x64_k", 6),
        ((64, 3072, 768), "128x64_k", 8),
    ] {
        let (choice, _) = launched(&layer(DType::F32, m, n, k), &device, Overrides::default());
        let name = format!("{}{}", choice.tile.name, choice.layout);
        assert_eq!((name.as_str(), choice.splits), (kernel, splits), "{m} {n} {k}");
    }
}

#[test]
fn choices() {
    use DType::{BF16, F16, F32, F64};
    check(
        &examples::h200(),
        &[
            // matmul_wgmma reads them sooner.
            (BF16, (1, 4096, 4096), "", 1),
            (F16, (16, 4096, 14336), "", 1),
            (BF16, (16, 4096, 4097), "", 1),
            (BF16, (16, 64, 65536), "", 1),
            (F32, (1, 4096, 4096), "8x4_k", 1),
            // So does matmul_bf16x6_few.
            (F32, (8, 4096, 4096), "", 1),
            (F32, (64, 4096, 4096), "", 1),
            (F64, (1, 4096, 4096), "64x8", 8),
            (BF16, (65, 4096, 4096), "", 1),
            (BF16, (64, 64, 64), "", 1),
        ],
    );
    let across = choose(&problem(F32, 1, 16, 4096, 4096), &examples::h200(), Overrides::default()).unwrap();
    assert_eq!((across.tile.name, across.splits), ("128x32", 8));
    check(&examples::a100(), &[(BF16, (1, 4096, 4096), "", 1)]);
    check(&examples::l4(), &[(F16, (1, 4096, 4096), "", 1), (F16, (1, 64, 65536), "64x16_k", 128)]);
    let decoded = [(F16, (1, 4096, 4096), "128x8", 16), (F32, (1, 4096, 4096), "8x4_k", 1)];
    check(&examples::t4(), &decoded);
    check(&examples::t4(), &[(F32, (1, 64, 65536), "8x4_k", 16)]);
    // Whole tiles of 64x64 would multiply 64 rows of float64, of which such a device does few.
    check(&examples::l4(), &[(F64, (1, 4096, 4096), "64x8", 8)]);
}

#[test]
fn every_launch_fits_and_covers() {
    let shapes = [(1, 1, 1), (3, 17, 9), (15, 129, 257), (16, 4097, 4099), (12, 70_000, 8), (7, 65, 70_000)];
    let forced = [None, Some(1), Some(2), Some(5), Some(8), Some(1000)];
    for (device, dtype) in
        examples::all().iter().flat_map(|device| DType::FLOATS.map(|dtype| (device, dtype)))
    {
        for ((few, many, k), splits) in shapes.iter().flat_map(|&shape| forced.map(|splits| (shape, splits)))
        {
            for p in [layer(dtype, few, many, k), problem(dtype, 3, many, k, few)] {
                let (choice, launches) = launched(&p, device, Overrides { splits, cluster: None });
                let (plan, q) = (&launches.multiply, &launches.multiply.params);
                let what = format!("{}: {plan} {choice:?}", device.name);
                assert_eq!(q.product.m.max(q.product.n), q.product.m, "{what}");
                assert!(plan.shared_bytes <= device.shared_bytes_per_block, "{what}");
                assert_eq!(u64::from(plan.grid[0]), q.product.blocks * u64::from(q.splits), "{what}");
                // Every split has something to do, and together they have everything.
                assert!(
                    i64::from(q.splits) * q.k_per_split >= k && i64::from(q.splits - 1) * q.k_per_split < k,
                    "{what}"
                );
                assert!(q.k_per_split % i64::from(choice.tile.k) == 0, "{what}");
                let cluster = plan.cluster;
                assert!(cluster == 1 || device.compute_capability >= (9, 0) && cluster == 2, "{what}");
                assert!(plan.grid[0].is_multiple_of(cluster), "{what}");
                assert_eq!(launches.reduce.is_some(), q.splits > 1 && cluster == 1, "{what}");
                assert_eq!(choice.workspace_bytes(&p) > 0, launches.reduce.is_some(), "{what}");
                let sums = u64::from(q.width) * u64::from(q.height) * u64::from(q.splits) * products(&p);
                let each = if dtype == DType::F64 { 8 } else { 4 };
                assert!(launches.reduce.is_none() || choice.workspace_bytes(&p) == sums * each, "{what}");
            }
        }
    }
}

#[test]
fn the_weights_are_the_tall_operand_and_results_keep_their_places() {
    let mut p = layer(DType::F16, 8, 512, 256);
    p.bias = Some(Bias { address: 4 << 40, stride: 1, row_stride: 0 });
    let q = launched(&p, &examples::h200(), Overrides::default()).1.multiply.params;
    assert_eq!((q.product.a, q.product.a_row, q.product.a_col), (p.b.address, 256, 1));
    assert_eq!((q.product.m, q.product.n, q.product.out_row, q.product.out_col), (512, 8, 1, 512));
    assert_eq!((q.product.bias_row, q.product.bias_col, q.by_rows, q.product.out_vector), (1, 0, 1, 1));
    assert_eq!((q.width, q.height, q.b_vectors), (512, 8, 1));
    let mut p = problem(DType::F16, 1, 510, 256, 7);
    p.bias = Some(Bias { address: 4 << 40, stride: 1, row_stride: 0 });
    let overrides = Overrides { splits: Some(2), cluster: Some(false) };
    let (_, launches) = launched(&p, &examples::h200(), overrides);
    let q = &launches.multiply.params;
    assert_eq!((q.product.a, q.product.bias_row, q.product.bias_col), (p.a.address, 0, 1));
    assert_eq!((q.width, q.height, q.by_rows, q.b_vectors, q.product.out_vector), (8, 510, 0, 0, 0));
}

#[test]
fn layouts() {
    let name =
        |p: &MatmulProblem| launched(p, &examples::h200(), Overrides::default()).1.multiply.kernel.name;
    let mut p = problem(DType::F16, 1, 4, 256, 512);
    assert_eq!(name(&p), "matmul_skinny_64x16_m_f16");
    p.b.row_stride = 513;
    assert_eq!(name(&p), "matmul_skinny_64x16_anym_f16");
    let mut p = layer(DType::BF16, 9, 512, 256);
    assert_eq!(name(&p), "matmul_skinny_64x16_k_bf16");
    p.b.address += 2;
    assert_eq!(name(&p), "matmul_skinny_64x16_anyk_bf16");
    let mut p = problem(DType::F32, 1, 4, 2048, 512);
    assert_eq!(name(&p), "matmul_skinny_stream_32x4_m_f32");
    // Shared memory has room for 1024 of k of the few rows.
    let forced = Overrides { splits: Some(1), cluster: None };
    assert_eq!(launched(&p, &examples::h200(), forced).1.multiply.params.k_per_split, 1024);
    p.b.row_stride = 513;
    assert_eq!(name(&p), "matmul_skinny_simt_128x8_f32");
}

#[test]
fn other_problems_are_left_to_other_kernels() {
    let device = examples::h200();
    let none = |p: &MatmulProblem| choose(p, &device, Overrides::default()).is_none();
    assert!(none(&layer(DType::F16, 17, 17, 512)));
    assert!(none(&layer(DType::F32, 65, 65, 512)));
    assert!(none(&layer(DType::F16, 4, 512, 0)));
    assert!(none(&layer(DType::F16, 4, 1 << 31, 8)));
    let mut split = layer(DType::F32, 4, 512, 8);
    split.a.address += 2;
    assert!(none(&split));
    let mut deep = layer(DType::F16, 4, 512, 512);
    deep.batch = Dims::from_elem(2, 4);
    for matrix in [&mut deep.a, &mut deep.b, &mut deep.out] {
        matrix.batch_strides = Dims::from_elem(1 << 20, 4);
    }
    assert!(none(&deep));
    let forced = Some(Forced::Skinny(Overrides::default()));
    let overrides = Default::default();
    assert_eq!(route(&layer(DType::F16, 65, 65, 512), &device, forced), Route::Blocks(overrides));
    assert_eq!(
        route(&layer(DType::F16, 1, 4096, 4096), &device, Some(Forced::Blocks(overrides))),
        Route::Blocks(overrides)
    );
}
