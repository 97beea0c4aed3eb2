//! Which tiles are chosen, what is copied first, and that maps cover it.

use super::super::{BLOCK_K, MAX_STAGES, TileCluster};
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
            for (splits, cluster) in
                [(None, None), (Some(1), Some(TileCluster::PAIR)), (Some(3), Some(TileCluster::ALONE))]
            {
                let overrides = Overrides { tile: Some(tile), splits, cluster, group_m: None };
                let (choice, launches) = launched(&floats(m, n, k), overrides);
                let (plan, what) = (&launches.multiply, format!("{} {m}x{n}x{k} {overrides:?}", shape.name));
                let q = &plan.params;
                assert!(plan.shared_bytes <= device.shared_bytes_per_block, "{what}");
                let resident = (plan.shared_bytes + 1024) * choice.product.resident;
                assert!(resident <= device.shared_bytes_per_multiprocessor, "{what}");
                assert!((2..=MAX_STAGES).contains(&q.stages), "{what}: {} stages", q.stages);
                let rows =
                    u64::from(q.order.tiles_m) * u64::from(shape.m() * TileCluster::unpacked(q.cluster).rows);
                assert_eq!(
                    (q.m, q.n),
                    if choice.product.swapped { (n as u32, m as u32) } else { (m as u32, n as u32) }
                );
                assert!(rows >= u64::from(q.m), "{what}");
                assert!(u64::from(q.order.tiles_n * shape.n) >= u64::from(q.n), "{what}");
                let k_blocks = (k as u64).div_ceil(BLOCK_K) as u32;
                assert_eq!(q.split_blocks * q.splits + q.longer_splits, k_blocks, "{what}");
                assert_eq!((q.b_mn, q.tma_store, q.stages_at), (0, 0, 1024 + shape.m() * 128), "{what}");
                assert_eq!(launches.reduce.is_some(), q.splits > 1, "{what}");
                assert_eq!(plan.grid[0] % TileCluster::unpacked(q.cluster).rows, 0, "{what}");
            }
        }
    }
}

/// A problem whose operands lie along k or across it, and rows of a `lead` apart in the first case.
fn laid(m: i64, n: i64, k: i64, lead: i64, [a_across, b_across]: [bool; 2]) -> MatmulProblem {
    let mut p = floats(m, n, k);
    (p.a.row_stride, p.a.col_stride) = if a_across { (1, m) } else { (lead, 1) };
    (p.b.row_stride, p.b.col_stride) = if b_across { (n, 1) } else { (1, k) };
    p
}

#[test]
fn one_operand_across_k_is_the_rows_and_needs_no_copy() {
    let (m, n, k) = (200i64, 136i64, 100i64);
    for across in [[false, false], [false, true], [true, false]] {
        let p = laid(m, n, k, k, across);
        let (choice, launches) = launched(&p, Overrides::default());
        let [a_across, b_across] = across;
        assert_eq!((choice.product.swapped, choice.product.copies), (b_across, [None; 2]), "{across:?}");
        assert!(launches.repack.is_none());
        let q = &launches.multiply.params;
        assert_eq!((q.a_mn, q.b_mn), (u32::from(a_across || b_across), 0), "{across:?}");
        assert_eq!((q.down_columns, q.store_elements), (u32::from(b_across), 0), "{across:?}");
        let (rows, cols) = if b_across { (n, m) } else { (m, n) };
        assert_eq!((q.m, q.n), (rows as u32, cols as u32));
        let [rows_map, cols_map] = [0, 1].map(|i| launches.maps[i].unwrap());
        assert_eq!((rows_map.dtype, cols_map.dtype), (DType::F32, DType::F32));
        assert_eq!(([cols_map.sizes[0], cols_map.sizes[1]], cols_map.r#box[0]), ([100, cols as u64], 32));
        if a_across || b_across {
            assert_eq!([rows_map.sizes[0], rows_map.sizes[1]], [rows as u64, 100]);
            assert_eq!((rows_map.strides[0], rows_map.r#box), (rows as u64 * 4, [32, 32, 1, 1, 1]));
        }
    }
}

#[test]
fn of_two_operands_across_k_the_smaller_is_copied_as_is_one_off_vectors() {
    let k = 100i64;
    for (m, n, lead, across, swapped, copied) in [
        (200, 136, k, [true, true], false, [false, true]),
        (136, 200, k, [true, true], true, [false, true]),
        (200, 136, k + 2, [false, false], false, [true, false]),
        (200, 136, k + 2, [false, true], true, [false, true]),
        (201, 136, k, [true, false], false, [true, false]),
    ] {
        let p = laid(m, n, k, lead, across);
        let (choice, launches) = launched(&p, Overrides::default());
        let what = format!("{m} {n} {lead} {across:?}");
        assert_eq!(choice.product.swapped, swapped, "{what}");
        assert_eq!(choice.product.copies.map(|copy| copy.is_some()), copied, "{what}");
        let repack = launches.repack.as_ref().unwrap();
        let of_b = copied[1] != swapped;
        let is_across = across[usize::from(of_b)];
        assert_eq!(repack.kernel.name, "matmul_repack_i32", "{what}");
        assert_eq!(repack.params.transposed().count_ones(), u32::from(is_across), "{what}");
        for (i, copied) in copied.into_iter().enumerate() {
            let map = launches.maps[i].unwrap();
            assert_eq!(map.address >= 1 << 50, copied, "{what}");
            // k of a copy is padded to 128.
            let size = if copied { 128 } else { 100 };
            let along = copied || (launches.multiply.params.a_mn == 0 || i == 1);
            assert_eq!(map.sizes[usize::from(!along)], size, "{what} {i}");
        }
        let rows = if of_b { n } else { m } as u64;
        let rows = if is_across { rows.next_multiple_of(32) } else { rows };
        let partials = launches.reduce.as_ref().map_or(0, |_| choice.product.partial_bytes(&p));
        let whole = [rows * 128 * 4, partials].map(|bytes| bytes.next_multiple_of(256)).iter().sum::<u64>();
        assert_eq!(choice.workspace_bytes(&p), whole, "{what}");
    }
}

#[test]
fn others_do_what_they_do_sooner() {
    let device = examples::h200();
    assert!(matches!(route(&floats(4096, 4096, 4096), &device, None), Route::Tf32(_)));
    assert!(matches!(route(&floats(4095, 4095, 4095), &device, None), Route::Tf32(_)));
    assert!(matches!(route(&floats(1, 4096, 4096), &device, None), Route::Tf32(_)));
    let row = laid(1, 1024, 1024, 1024, [false, false]);
    assert!(matches!(route(&row, &device, None), Route::Skinny(_)));
    let ieee = MatmulProblem { precision: Precision::Ieee, ..floats(4096, 4096, 4096) };
    assert!(choose(&ieee, &device, Overrides::default()).is_none());
    assert!(choose(&floats(512, 512, 512), &examples::a100(), Overrides::default()).is_none());
    let no_k = floats(512, 512, 0);
    assert!(choose(&no_k, &device, Overrides::default()).is_none());
}
