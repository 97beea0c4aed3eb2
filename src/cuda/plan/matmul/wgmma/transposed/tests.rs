//! Which counts of rows have such tiles, and that their launches cover the result.

use super::super::{choose as choose_any, forced_tiles};
use super::*;
use crate::cuda::device::examples;
use crate::cuda::plan::matmul::tests::problem;
use crate::dtype::DType;
use crate::ops::matmul::Bias;

/// Of a linear layer: rows of both operands are along k.
fn linear(m: i64, n: i64, k: i64) -> MatmulProblem {
    let mut p = problem(DType::BF16, 1, m, k, n);
    (p.b.row_stride, p.b.col_stride) = (1, k);
    p
}

fn tile_of(p: &MatmulProblem, overrides: Overrides) -> &'static str {
    choose_any(p, &examples::h200(), overrides).unwrap().tile.name
}

fn asked(name: &str) -> Overrides {
    Overrides { tile: forced_tiles().iter().position(|tile| *tile == name), ..Overrides::default() }
}

#[test]
fn rows_between_whole_tiles_have_tiles_of_their_own() {
    let choices = [
        ((144, 7168, 2048), "128x72"),
        ((176, 7168, 2048), "128x88"),
        ((200, 8192, 8192), "128x104"),
        ((300, 7168, 2048), "128x152"),
        // Others are done sooner, or as soon.
        ((72, 4096, 4096), "64x64"),
        ((128, 7168, 2048), "64x128"),
        ((256, 7168, 2048), "128x112"),
    ];
    for ((m, n, k), tile) in choices {
        assert_eq!(tile_of(&linear(m, n, k), Overrides::default()), tile, "{m}x{n}x{k}");
    }
}

#[test]
fn what_the_kernel_cannot_do_is_done_by_others() {
    let transposed = |p: &MatmulProblem| tile_of(p, asked("128x104")) == "128x104";
    let bias = |stride| Bias { address: 4096, stride, row_stride: 0 };
    let p = linear(200, 264, 136);
    assert!(transposed(&p));
    assert!(transposed(&MatmulProblem { bias: Some(bias(1)), activation: Activation::Relu, ..p.clone() }));
    assert!(!transposed(&MatmulProblem { bias: Some(bias(0)), ..p.clone() }));
    let slope = |negative_slope| Activation::LeakyRelu { negative_slope };
    assert!(transposed(&MatmulProblem { activation: slope(0.01), ..p.clone() }));
    assert!(!transposed(&MatmulProblem { activation: slope(2.0), ..p.clone() }));
    assert!(!transposed(&MatmulProblem { activation: Activation::Gelu, ..p.clone() }));
    assert!(!transposed(&MatmulProblem { residual: Some(p.out.clone()), ..p.clone() }));
    assert!(!transposed(&MatmulProblem { gate: Some(p.b.clone()), ..p.clone() }));
    // Odd sizes, odd results, rows that are not along k.
    assert!(!transposed(&linear(200, 260, 136)));
    let mut odd = p.clone();
    odd.out.address += 2;
    assert!(!transposed(&odd));
    let mut along_m = p.clone();
    (along_m.a.row_stride, along_m.a.col_stride) = (1, 200);
    assert!(!transposed(&along_m));
    // A result down columns is that of the transposed problem, where a bias is by column.
    let mut down = linear(264, 200, 136);
    (down.out.row_stride, down.out.col_stride) = (1, 264);
    assert!(transposed(&down));
    assert!(!transposed(&MatmulProblem { bias: Some(bias(1)), ..down }));
    // Pairs and splits have other tiles.
    for overrides in [
        Overrides { splits: Some(2), ..asked("128x104") },
        Overrides { cluster: Some(TileCluster::PAIR), ..asked("128x104") },
    ] {
        assert_ne!(tile_of(&p, overrides), "128x104");
    }
}

#[test]
fn launches_cover_the_result() {
    let device = examples::h200();
    for tile in &TILES {
        for (m, n, k) in [(1, 8, 8), (73, 128, 64), (200, 264, 136), (320, 20_000, 104)] {
            let p = linear(m, n, k);
            let choice = choose_any(&p, &device, asked(tile.name)).unwrap();
            let launches = choice.launches(&p, &device, 0);
            let (q, plan) = (&launches.multiply.params, &launches.multiply);
            assert_eq!((i64::from(q.m), i64::from(q.n)), (n, m));
            assert_eq!((q.out_row, q.out_col), (1, n));
            let covered = (q.order.tiles_m * tile.m(), q.order.tiles_n * tile.n);
            assert!(i64::from(covered.0) >= n && i64::from(covered.1) >= m, "{} {m}x{n}x{k}", tile.name);
            assert_eq!(q.items, q.order.tiles_m * q.order.tiles_n);
            assert!((2..=16).contains(&q.stages) && plan.shared_bytes <= device.shared_bytes_per_block);
            assert!(plan.kernel.name.ends_with("_transpose_bf16"), "{}", plan.kernel.name);
        }
    }
}
