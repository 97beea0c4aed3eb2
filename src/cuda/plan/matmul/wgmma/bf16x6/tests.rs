//! Which tiles and splits are chosen, that what is launched covers operands and result, and when others are better.

use super::super::{BLOCK_K, MAX_STAGES, TileCluster};
use super::*;
use crate::cuda::device::examples;
use crate::cuda::plan::matmul::tests::problem;
use crate::cuda::plan::matmul::{Route, route};

fn floats(m: i64, n: i64, k: i64) -> MatmulProblem {
    problem(DType::F32, 1, m, k, n)
}

fn launched(p: &MatmulProblem, overrides: Overrides) -> (Bf16x6Choice, Launches) {
    let device = examples::h200();
    let choice = choose(p, &device, overrides).unwrap();
    let launches = choice.launches(p, &device, 1 << 50);
    (choice, launches)
}

#[test]
fn choices() {
    let table = [
        ((256, 256, 256), "64x64", 4),
        ((512, 512, 512), "64x64", 2),
        ((1024, 1024, 1024), "128x64", 1),
        ((2048, 2048, 2048), "128x128", 1),
        ((4096, 4096, 4096), "128x128", 1),
        ((8192, 8192, 8192), "128x128", 1),
        ((4097, 4097, 4097), "128x128", 1),
        ((1023, 1025, 1027), "128x128", 3),
        ((512, 512, 8192), "128x64", 4),
    ];
    let choices = table.map(|((m, n, k), ..)| {
        let (choice, _) = launched(&floats(m, n, k), Overrides::default());
        ((m, n, k), choice.product.tile.name, choice.product.splits)
    });
    assert_eq!(choices, table);
}

#[test]
fn every_tile_fits_and_covers_every_shape() {
    let device = examples::h200();
    for (tile, shape) in TILES.iter().enumerate() {
        for (m, n, k) in [(1, 1, 1), (17, 65, 63), (129, 257, 65), (1000, 3000, 640), (70_000, 8, 8)] {
            for (splits, cluster) in
                [(None, None), (Some(1), None), (Some(2), None), (Some(3), Some(TileCluster::ALONE))]
            {
                let overrides = Overrides { tile: Some(tile), splits, cluster, group_m: None };
                let (choice, launches) = launched(&floats(m, n, k), overrides);
                let (plan, what) = (&launches.multiply, format!("{} {m}x{n}x{k} {overrides:?}", shape.name));
                let q = &plan.params.wgmma;
                assert!(plan.shared_bytes <= device.shared_bytes_per_block, "{what}");
                let resident = (plan.shared_bytes + 1024) * choice.product.resident;
                assert!(resident <= device.shared_bytes_per_multiprocessor, "{what}");
                // A block of k, and the next one on its way.
                assert!((PARTS + 1..=MAX_STAGES).contains(&q.stages), "{what}: {} stages", q.stages);
                assert!(u64::from(q.order.tiles_m) * u64::from(shape.m()) >= m as u64, "{what}");
                assert!(u64::from(q.order.tiles_n) * u64::from(shape.n) >= n as u64, "{what}");
                let k_blocks = (k as u64).div_ceil(BLOCK_K) as u32;
                assert_eq!(q.split_blocks * q.splits + q.longer_splits, k_blocks, "{what}");
                assert_eq!(
                    (q.cluster, q.tma_store, q.stages_at),
                    (0x0101, 0, 1024 + shape.m() * 128),
                    "{what}"
                );
                assert_eq!(launches.reduce.is_some(), q.splits > 1 && !q.cluster_splitk(), "{what}");
                let sums = shape.m() * (shape.n + 8) * 4;
                assert!(!q.cluster_splitk() || sums <= q.stages * shape.stage_bytes(), "{what}");
            }
        }
    }
}

#[test]
fn the_parts_lie_behind_each_other_and_maps_cover_them() {
    for (a_mn, b_mn) in [(false, false), (false, true), (true, false), (true, true)] {
        let (m, n, k) = (200i64, 136i64, 100i64);
        let mut p = floats(m, n, k);
        (p.a.row_stride, p.a.col_stride) = if a_mn { (1, m) } else { (k, 1) };
        (p.b.row_stride, p.b.col_stride) = if b_mn { (n, 1) } else { (1, k) };
        let (choice, launches) = launched(&p, Overrides::default());
        let split = &launches.split.params;
        assert_eq!(split.k_major, u32::from(!a_mn) | u32::from(!b_mn) << 1);
        let params = &launches.multiply.params;
        assert_eq!((params.wgmma.a_mn, params.wgmma.b_mn), (a_mn.into(), b_mn.into()));
        // k is padded to 128, in three planes.
        let bytes: u64 =
            [m, n].map(|mn| mn as u64 * 128 * 2 * 3).map(|bytes| bytes.next_multiple_of(256)).iter().sum();
        let partials = launches.reduce.as_ref().map_or(0, |_| choice.extremes_at(&p) - bytes);
        assert_eq!(choice.extremes_at(&p), bytes + partials);
        assert_eq!(choice.workspace_bytes(&p), bytes + partials + u64::from(launches.split.grid[0]) * 4);
        for (i, (mn, mn_major)) in [(m, a_mn), (n, b_mn)].into_iter().enumerate() {
            let map = launches.maps[i].unwrap();
            let sizes = if mn_major { [mn as u64, 384] } else { [384, mn as u64] };
            assert_eq!((map.dtype, [map.sizes[0], map.sizes[1]]), (DType::BF16, sizes));
            let row = if mn_major { (mn as u64).next_multiple_of(8) } else { 384 };
            assert_eq!(map.strides[0], row * 2);
        }
    }
}

#[test]
fn others_do_what_they_do_sooner() {
    let device = examples::h200();
    let taken = |p: &MatmulProblem| match route(p, &device, None) {
        Route::Bf16x6(choice) => {
            assert!(choice.clocks() > 0.0);
            "bf16x6"
        }
        Route::Skinny(_) => "skinny",
        Route::Bf16x6Few(_) => "few",
        Route::Tf32(_) => "tf32",
        Route::Blocks(_) => "blocks",
        Route::SplitK(_) => "k in splits",
        _ => "other",
    };
    assert_eq!(taken(&floats(4096, 4096, 4096)), "bf16x6");
    assert_eq!(taken(&floats(512, 512, 512)), "bf16x6");
    assert_eq!(taken(&floats(4097, 4097, 4097)), "bf16x6");
    assert_eq!(taken(&floats(32, 32, 32)), "blocks");
    assert_eq!(taken(&floats(8, 4096, 4096)), "few");
    assert_eq!(taken(&MatmulProblem { precision: Precision::Tf32, ..floats(512, 512, 512) }), "tf32");
    assert_eq!(taken(&problem(DType::F64, 1, 512, 512, 512)), "blocks");
    // The parts would take too much memory: an eighth of the device's is the most.
    assert_eq!(taken(&floats(65_536, 65_536, 65_536)), "blocks");
}

#[test]
fn every_vector_has_a_block_that_splits_it() {
    let device = examples::h200();
    for vectors in [[1, 1], [255, 256], [1 << 20, 8], [1 << 34, 1 << 34]] {
        let [a, b] = blocks_to_split(vectors, &device);
        assert!(a >= 1 && b >= 1 && u64::from(a + b) <= u64::from(device.multiprocessors) * SPLIT_BLOCKS + 2);
    }
}
