//! Which rows have such tiles, that what is launched covers operands and result, and what others do.

use super::*;
use crate::cuda::device::examples;
use crate::cuda::plan::matmul::tests::problem;
use crate::cuda::plan::matmul::wgmma::MAX_STAGES;
use crate::cuda::plan::matmul::{Route, route};
use crate::ops::matmul::{Bias, Matrix};

/// Of a linear layer: rows of both operands are along k.
fn linear(m: i64, n: i64, k: i64) -> MatmulProblem {
    let mut p = problem(DType::BF16, 1, m, k, n);
    (p.b.row_stride, p.b.col_stride) = (1, k);
    p
}

fn asked(tile: usize) -> Overrides {
    Overrides { tile: Some(tile), ..Overrides::default() }
}

#[test]
fn every_tile_fits_and_covers_every_shape() {
    let device = examples::h200();
    for (index, tile) in TILES.iter().enumerate() {
        for (m, n, k) in [(1, 8, 8), (17, 72, 64), (64, 4096, 136), (300, 4096, 136), (40, 14_336, 4096)] {
            let p = linear(m, n, k);
            let Launch { plan, maps } = choose(&p, &device, asked(index)).unwrap().launch(&p, &device);
            let q = &plan.params;
            let resident = if plan.grid[0] > device.multiprocessors && tile.n < 64 { 2 } else { 1 };
            let share = device.shared_bytes_per_multiprocessor / resident - 1024;
            assert!(plan.shared_bytes <= share.min(device.shared_bytes_per_block), "{}", tile.name);
            // Two warpgroups take turns, and hand a stage back when the next is under way.
            assert!(q.stages.is_multiple_of(2) && (LEAST_STAGES..=MAX_STAGES).contains(&q.stages));
            let blocks = [n.max(m) as u32, n.min(m) as u32];
            let [rows, columns] = [blocks[0].div_ceil(ROWS), blocks[1].div_ceil(tile.n)];
            assert_eq!((plan.grid[0], q.tiles_n), (rows * columns, columns));
            assert_eq!(u64::from(q.k_blocks), (k as u64).div_ceil(128));
            // Of the last tiles no more comes than there is, in groups of eight rows.
            let last = |size: u32, tile: u32| (size - (size - 1) / tile * tile).next_multiple_of(8);
            assert_eq!(u32::from(q.a_tail_bytes), 256 * last(blocks[0], ROWS));
            assert_eq!(u32::from(q.b_tail_bytes), 256 * last(blocks[1], tile.n));
            assert!(u32::from(q.a_bytes) <= 256 * ROWS && u32::from(q.b_bytes) <= 256 * tile.n);
            let [a, a_tail, b, b_tail] = [0, 1, 2, 3].map(|map: usize| maps[map].unwrap().r#box[1]);
            assert_eq!([a, a_tail].map(|rows| rows * 256), [q.a_bytes, q.a_tail_bytes].map(u32::from));
            assert_eq!([b, b_tail].map(|rows| rows * 256), [q.b_bytes, q.b_tail_bytes].map(u32::from));
        }
    }
}

#[test]
fn maps_cover_the_operands_as_they_lie() {
    let (m, n, k) = (40, 200, 136);
    // Weights as a linear layer has them, and their transpose.
    for along_k in [true, false] {
        let mut p = linear(m, n, k);
        (p.b.row_stride, p.b.col_stride) = if along_k { (1, k) } else { (n, 1) };
        let device = examples::h200();
        let launch = choose(&p, &device, Overrides::default()).unwrap().launch(&p, &device);
        let [weights, few] = [0, 2].map(|map: usize| launch.maps[map].unwrap());
        assert_eq!(launch.plan.params.a_mn, u32::from(!along_k));
        let sizes = if along_k { [k, n] } else { [n, k] };
        assert_eq!([weights.sizes[0], weights.sizes[1]], sizes.map(|size| size as u64));
        assert_eq!((weights.strides[0], weights.r#box[0]), (2 * sizes[0] as u64, 64));
        assert_eq!(([few.sizes[0], few.sizes[1]], few.strides[0]), ([k as u64, m as u64], 2 * k as u64));
    }
}

#[test]
fn others_do_what_the_kernel_cannot() {
    let device = examples::h200();
    let takes = |p: &MatmulProblem| choose(p, &device, Overrides::default()).is_some();
    let p = linear(40, 200, 136);
    assert!(takes(&p));
    let bias = |stride| Some(Bias { address: 4096, stride, row_stride: 0 });
    assert!(takes(&MatmulProblem { bias: bias(1), residual: Some(p.out.clone()), ..p.clone() }));
    assert!(takes(&MatmulProblem { bias: bias(0), activation: Activation::Gelu, ..p.clone() }));
    assert!(takes(&MatmulProblem { gate: Some(p.b.clone()), ..p.clone() }));
    // Rows of the gate that lie otherwise than those of the weights, or that nothing can address.
    for (row_stride, col_stride) in [(200, 1), (1, 132)] {
        let gate = Matrix { row_stride, col_stride, ..p.b.clone() };
        assert!(!takes(&MatmulProblem { gate: Some(gate), ..p.clone() }));
    }
    assert!(!takes(&linear(65, 4000, 136)));
    assert!(!takes(&problem(DType::BF16, 3, 40, 136, 200)));
    assert!(!takes(&problem(DType::F32, 1, 40, 136, 200)));
    // Few columns, whose bias is by column of the tile.
    let columns = problem(DType::BF16, 1, 200, 136, 40);
    let mut columns = MatmulProblem { b: linear(200, 40, 136).b, ..columns };
    assert!(takes(&columns));
    assert!(!takes(&MatmulProblem { gate: Some(columns.b.clone()), ..columns.clone() }));
    columns.bias = bias(1);
    assert!(!takes(&columns));
    // Of a square result, whichever way there is: a bias by row of tiles, or few rows that are columns along k.
    let square = linear(40, 40, 136);
    let a_mn = |p: &MatmulProblem| {
        let Launch { plan, maps } = choose(p, &device, Overrides::default()).unwrap().launch(p, &device);
        assert!(maps[..4].iter().all(Option::is_some));
        plan.params.a_mn
    };
    assert_eq!(a_mn(&MatmulProblem { bias: bias(1), ..square.clone() }), 0);
    let mut across = square.clone();
    (across.a.row_stride, across.a.col_stride) = (1, 40);
    assert_eq!(a_mn(&across), 1);
    assert!(!takes(&MatmulProblem { bias: bias(1), ..across }));
    // Rows that do not begin at 16 bytes; few rows that lie across k.
    assert!(!takes(&linear(40, 200, 132)));
    let mut across = p.clone();
    (across.a.row_stride, across.a.col_stride) = (1, 40);
    assert!(!takes(&across));
    assert!(choose(&p, &examples::a100(), Overrides::default()).is_none());
    let small = DeviceFacts { shared_bytes_per_block: 60 << 10, ..examples::h200() };
    assert!(choose(&p, &small, Overrides::default()).is_none());
    for overrides in [
        Overrides { splits: Some(2), ..asked(0) },
        Overrides { cluster: Some(TileCluster::PAIR), ..asked(0) },
    ] {
        assert!(choose(&p, &device, overrides).is_none());
    }
}

#[test]
fn a_gate_has_stages_maps_and_a_bias_of_its_own() {
    let (device, p) = (examples::h200(), linear(16, 200, 136));
    let gate = Matrix { address: 1 << 20, ..p.b.clone() };
    let bias = Some(Bias { address: 4096, stride: 1, row_stride: 208 });
    let gated = MatmulProblem { gate: Some(gate), bias, activation: Activation::Silu, ..p.clone() };
    let launch = |p: &MatmulProblem| choose(p, &device, asked(1)).unwrap().launch(p, &device);
    let (plain, gated) = (launch(&p), launch(&gated));
    assert_eq!(gated.plan.kernel.name, "matmul_wgmma_few_64x16_gated_bf16");
    assert_eq!((plain.plan.params.k_blocks, gated.plan.params.k_blocks), (2, 4));
    assert_eq!((gated.plan.params.bias, gated.plan.params.bias_up), (4096, 208));
    assert_eq!(gated.maps[..4], plain.maps[..4]);
    for (gate, weights) in gated.maps[4..].iter().zip(&gated.maps) {
        assert_eq!(gate.unwrap(), TensorMapSpec { address: 1 << 20, ..weights.unwrap() });
    }
    assert!(plain.maps[4..].iter().all(Option::is_none));
}

#[test]
fn few_rows_with_a_gate_are_done_where_they_are_done_sooner() {
    let device = examples::h200();
    let kernel = |m, n, k| {
        let p = linear(m, n, k);
        let gated = MatmulProblem { gate: Some(p.b.clone()), ..p };
        let mut choice = crate::cuda::plan::matmul::choose(&gated, &device, None);
        choice.launches.swap_remove(choice.main).kernel.name
    };
    assert_eq!(kernel(16, 3072, 1024), "matmul_wgmma_few_64x8_gated_bf16");
    assert_eq!(kernel(1, 14_336, 4096), "matmul_wgmma_few_64x8_gated_bf16");
    assert!(kernel(64, 14_336, 4096).starts_with("matmul_wgmma_64x"));
}

#[test]
fn those_asked_for_by_name_are_the_first_of_float32() {
    let others = crate::cuda::plan::matmul::wgmma::bf16x6::few::TILES;
    assert!(TILES.iter().zip(&others).all(|(own, other)| own.name == other.name));
}

#[test]
fn few_rows_are_done_sooner_where_blocks_for_all_weights_run_at_once() {
    let device = examples::h200();
    let taken = |m, n, k| match route(&linear(m, n, k), &device, None) {
        Route::WgmmaFew(choice) => Some(choice.tile.name),
        _ => None,
    };
    assert_eq!(taken(64, 4096, 4096), Some("64x32"));
    assert_eq!(taken(64, 2048, 2048), Some("64x16"));
    assert_eq!(taken(16, 4096, 14_336), Some("64x8"));
    assert_eq!(taken(1, 1024, 1024), Some("64x8"));
    assert_eq!(taken(1, 14_336, 4096), Some("64x8"));
    // Others: many rounds of blocks, a long k for few blocks, and rows that were not measured.
    assert_eq!(taken(64, 14_336, 4096), None);
    assert_eq!(taken(16, 1024, 8192), None);
    assert_eq!(taken(72, 4096, 4096), None);
    // Rows off the lines of caches, which take more loads.
    assert_eq!(taken(64, 4104, 4104), None);
}
