//! Which tiles are chosen, what is copied first, and that maps cover it.

use super::super::{BLOCK_K, MAX_STAGES};
use super::*;
use crate::cuda::device::examples;
use crate::cuda::plan::matmul::tests::problem;
use crate::cuda::plan::matmul::{Route, route};

fn floats(m: i64, n: i64, k: i64) -> MatmulProblem {
    MatmulProblem { precision: Precision::Tf32, ..problem(DType::F32, 1, m, k, n) }
}

fn launched(p: &MatmulProblem, overrides: Overrides) -> (Tf32Choice, Launches) {
    let device = examples::h200();
    let choice = choose(p, &device, overrides).unwrap();
    let launches = choice.launches(p, &device, 1 << 50);
    (choice, launches)
}

#[test]
fn every_tile_fits_and_covers_every_shape() {
    let device = examples::h200();
    for (tile, shape) in TILES.iter().enumerate() {
        for (m, n, k) in [(1, 1, 1), (17, 65, 63), (129, 257, 65), (1000, 3000, 640), (70_000, 8, 8)] {
            for (splits, cluster) in [(None, None), (Some(1), Some(true)), (Some(3), Some(false))] {
                let overrides = Overrides { tile: Some(tile), splits, cluster, group_m: None };
                let (choice, launches) = launched(&floats(m, n, k), overrides);
                let (plan, what) = (&launches.multiply, format!("{} {m}x{n}x{k} {overrides:?}", shape.name));
                let q = &plan.params;
                assert!(plan.shared_bytes <= device.shared_bytes_per_block, "{what}");
                let resident = (plan.shared_bytes + 1024) * choice.product.resident;
                assert!(resident <= device.shared_bytes_per_multiprocessor, "{what}");
                assert!((2..=MAX_STAGES).contains(&q.stages), "{what}: {} stages", q.stages);
                let rows = u64::from(q.order.tiles_m) * u64::from(shape.m() * q.pair);
                assert!(rows >= m as u64, "{what}");
                assert!(u64::from(q.order.tiles_n) * u64::from(shape.n) >= n as u64, "{what}");
                let k_blocks = (k as u64).div_ceil(BLOCK_K) as u32;
                assert_eq!(q.split_blocks * q.splits + q.longer_splits, k_blocks, "{what}");
                assert_eq!((q.a_mn, q.b_mn, q.tma_store, q.stages_at), (0, 0, 0, 1024), "{what}");
                assert_eq!(launches.reduce.is_some(), q.splits > 1, "{what}");
                assert_eq!(plan.grid[0] % q.pair, 0, "{what}");
            }
        }
    }
}

#[test]
fn operands_are_k_major_words_and_others_are_copied() {
    let (m, n, k) = (200i64, 136i64, 100i64);
    for (a_mn, b_mn, lead, copied) in [
        (false, false, k, [false, false]),
        (false, true, k, [false, true]),
        (true, false, k, [true, false]),
        (true, true, k, [true, true]),
        (false, false, k + 2, [true, false]),
    ] {
        let mut p = floats(m, n, k);
        (p.a.row_stride, p.a.col_stride) = if a_mn { (1, m) } else { (lead, 1) };
        (p.b.row_stride, p.b.col_stride) = if b_mn { (n, 1) } else { (1, k) };
        let (choice, launches) = launched(&p, Overrides::default());
        assert_eq!(choice.product.copies.map(|copy| copy.is_some()), copied);
        assert_eq!(launches.repack.is_some(), copied.contains(&true));
        for (i, (mn, copied)) in [m, n].into_iter().zip(copied).enumerate() {
            let map = launches.maps[i].unwrap();
            // k of a copy is padded to 128.
            let k = if copied { 128 } else { 100 };
            assert_eq!((map.dtype, [map.sizes[0], map.sizes[1]]), (DType::F32, [k, mn as u64]));
            assert_eq!((map.strides[0], map.r#box[0]), (k * 4, 32));
            assert_eq!(map.address >= 1 << 50, copied);
        }
        let bytes =
            |mn: i64, across: bool| (mn as u64).next_multiple_of(if across { 32 } else { 1 }) * 128 * 4;
        let a_bytes = if copied[0] { bytes(m, a_mn) } else { 0 };
        let b_bytes = if copied[1] { bytes(n, b_mn) } else { 0 };
        let partials = launches.reduce.as_ref().map_or(0, |_| choice.product.partial_bytes(&p));
        let whole = [a_bytes, b_bytes, partials].map(|bytes| bytes.next_multiple_of(256)).iter().sum::<u64>();
        assert_eq!(choice.workspace_bytes(&p), whole);
        if let Some(repack) = launches.repack {
            assert_eq!(repack.kernel.name, "matmul_repack_i32");
            assert_eq!(repack.params.transposed().count_ones(), u32::from(a_mn) + u32::from(b_mn));
        }
    }
}

#[test]
fn others_do_what_they_do_sooner() {
    let device = examples::h200();
    assert!(matches!(route(&floats(4096, 4096, 4096), &device, None), Route::Tf32(_)));
    assert!(matches!(route(&floats(4095, 4095, 4095), &device, None), Route::Tf32(_)));
    assert!(matches!(route(&floats(1, 4096, 4096), &device, None), Route::Few(_)));
    let ieee = MatmulProblem { precision: Precision::Ieee, ..floats(4096, 4096, 4096) };
    assert!(choose(&ieee, &device, Overrides::default()).is_none());
    assert!(choose(&floats(512, 512, 512), &examples::a100(), Overrides::default()).is_none());
    let no_k = floats(512, 512, 0);
    assert!(choose(&no_k, &device, Overrides::default()).is_none());
}
