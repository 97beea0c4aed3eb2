//! Which tiles are chosen, that what is launched covers operands and result, and what others do.

use super::*;
use crate::cuda::device::examples;
use crate::cuda::plan::matmul::tests::problem;
use crate::cuda::plan::matmul::wgmma::MAX_STAGES;
use crate::cuda::plan::matmul::{Route, route};
use crate::ops::matmul::Bias;

fn floats_of(m: i64, n: i64, k: i64) -> MatmulProblem {
    problem(DType::F32, 1, m, k, n)
}

fn launched(p: &MatmulProblem, overrides: Overrides) -> Option<Launch> {
    let device = examples::h200();
    Some(choose(p, &device, overrides)?.launch(p, &device))
}

#[test]
fn every_tile_fits_and_covers_every_shape() {
    let device = examples::h200();
    for (index, tile) in TILES.iter().enumerate() {
        for (m, n, k) in
            [(1, 8, 4), (17, 68, 64), (64, 4096, 132), (300, 4096, 132), (40, 14_336, 4096), (5, 3000, 640)]
        {
            for splits in [1, 2, 8] {
                let p = floats_of(m, n, k);
                let overrides = Overrides { tile: Some(index), splits: Some(splits), ..Overrides::default() };
                let Some(Launch { plan, .. }) = launched(&p, overrides) else {
                    assert!(k < 64 * i64::from(splits), "{} {m}x{n}x{k} {splits}", tile.name);
                    continue;
                };
                let q = &plan.params.wgmma;
                assert!(plan.shared_bytes <= device.shared_bytes_per_block, "{}", tile.name);
                assert!((2..=MAX_STAGES).contains(&q.stages), "{} stages", q.stages);
                assert!(tile.m == 128 || q.stages.is_multiple_of(2), "warpgroups take turns");
                // The cluster's sums lie where the ring was, of both warpgroups if those share rows.
                let sums = tile.n * (tile.m + 4) * 4 * (128 / tile.m);
                assert!(sums <= q.stages * tile.stage_bytes(), "{}", tile.name);
                let covered = (q.order.tiles_m * tile.m, q.order.tiles_n * tile.n);
                assert!(i64::from(covered.0) >= m.max(n) && i64::from(covered.1) >= m.min(n));
                assert_eq!((plan.cluster, plan.grid[0]), (splits, q.items * splits));
                assert_eq!(q.split_blocks * splits + q.longer_splits, (k as u32).div_ceil(64));
                assert!(q.a_tail_bytes <= q.a_stage_bytes && q.b_tail_bytes <= q.b_stage_bytes);
                assert!(u32::from(q.a_stage_bytes) <= tile.m * 256);
                assert!(u32::from(q.b_stage_bytes) <= tile.n * 256);
            }
        }
    }
}

#[test]
fn maps_cover_the_operands_as_they_lie() {
    let (m, n, k) = (40, 200, 132);
    // Weights as a linear layer has them, and their transpose.
    for along_k in [true, false] {
        let mut p = floats_of(m, n, k);
        (p.b.row_stride, p.b.col_stride) = if along_k { (1, k) } else { (n, 1) };
        let launch = launched(&p, Overrides::default()).unwrap();
        let [weights, few] = [0, 1].map(|i| launch.maps[i].unwrap());
        assert_eq!(launch.plan.params.wgmma.a_mn, u32::from(!along_k));
        // Words of 16 bits, in boxes of 128 bytes.
        let (sizes, row) = if along_k { ([2 * k, n], 4 * k) } else { ([2 * n, k], 4 * n) };
        assert_eq!([weights.sizes[0], weights.sizes[1]], sizes.map(|size| size as u64));
        assert_eq!((weights.dtype, weights.strides[0], weights.r#box[0]), (DType::BF16, row as u64, 64));
        assert_eq!([few.sizes[0], few.sizes[1]], [2 * k as u64, m as u64]);
        assert_eq!((few.strides[0], few.r#box[0], few.r#box[1]), (4 * k as u64, 64, 40));
    }
}

#[test]
fn others_do_what_the_kernel_cannot() {
    let device = examples::h200();
    let takes = |p: &MatmulProblem| choose(p, &device, Overrides::default()).is_some();
    let p = floats_of(40, 200, 132);
    assert!(takes(&p));
    let bias = Some(Bias { address: 4096, stride: 1, row_stride: 0 });
    assert!(takes(&MatmulProblem { bias, residual: Some(p.out.clone()), ..p.clone() }));
    assert!(!takes(&floats_of(65, 4000, 132)));
    assert!(!takes(&problem(DType::F32, 3, 40, 132, 200)));
    assert!(!takes(&problem(DType::F64, 1, 40, 132, 200)));
    // Rows that do not begin at 16 bytes; few rows that lie across k.
    assert!(!takes(&floats_of(40, 202, 132)));
    assert!(!takes(&floats_of(40, 200, 130)));
    let mut across = p.clone();
    (across.a.row_stride, across.a.col_stride) = (1, 40);
    assert!(!takes(&across));
    assert!(choose(&p, &examples::a100(), Overrides::default()).is_none());
}

#[test]
fn few_rows_by_large_weights_are_done_sooner() {
    let device = examples::h200();
    let taken = |m, n, k| match route(&floats_of(m, n, k), &device, None) {
        Route::Bf16x6Few(choice) => Some((choice.tile.name, choice.splits)),
        _ => None,
    };
    assert_eq!(taken(64, 4096, 4096), Some(("64x64", 2)));
    assert_eq!(taken(48, 14_336, 4096), Some(("128x64", 1)));
    assert_eq!(taken(32, 4096, 14_336), Some(("64x32", 2)));
    assert_eq!(taken(16, 4096, 4096), Some(("64x16", 2)));
    // Not measured; and too little to read.
    assert_eq!(taken(96, 4096, 4096), None);
    assert_eq!(taken(64, 128, 128), None);
}
