//! Contiguous columns.

use super::*;
use crate::cuda::plan::column_slices::Slices;

#[test]
fn columns_are_read_once_wherever_they_fit() {
    let h200 = examples::h200();
    let of = |dtypes, (outer, length, inner): (i64, i64, i64), device: &DeviceFacts| {
        let rows = [(outer, length * inner, length * inner), (inner, 1, 1)];
        choose(&problem(dtypes, (length, inner, inner), &rows, (0, 0)), device, None).0
    };
    let column_tile = |word, wide, threads, slice, slices| {
        Variant::ColumnTile(ColumnTile { word, wide, threads, slice, slices })
    };
    let split = |elements, (across, down), batches, slices, tiles| {
        let slices = Slices { across, down, batches, slices, tiles };
        Variant::SplitColumns(SplitColumns { elements, slices })
    };
    let register_tile =
        |elements, across, threads| Variant::RegisterTile(RegisterTile { elements, across, threads });
    let (half, single) = ((DType::BF16, DType::BF16), (DType::F32, DType::F32));
    assert_eq!(of(half, (1, 8192, 8192), &h200), column_tile(8, 32, 256, 1024, 8));
    assert_eq!(of(single, (1, 8192, 8192), &h200), column_tile(8, 32, 256, 512, 16));
    // Rows that begin within sectors, by lines.
    assert_eq!(of(half, (1, 8192, 8200), &h200), column_tile(8, 64, 256, 512, 16));
    assert_eq!(of(single, (1, 8192, 8200), &h200), column_tile(8, 32, 256, 512, 16));
    assert_eq!(of(half, (64, 4096, 64), &h200), column_tile(8, 64, 256, 512, 8));
    assert_eq!(of(single, (64, 4096, 64), &h200), column_tile(8, 32, 256, 512, 8));
    assert_eq!(of(half, (256, 64, 4096), &h200), column_tile(8, 128, 64, 64, 1));
    assert_eq!(of(half, (2048, 512, 8), &h200), column_tile(8, 8, 32, 512, 1));
    assert_eq!(of(half, (128, 1000, 100), &h200), column_tile(8, 100, 256, 500, 2));
    assert_eq!(of(single, (128, 1000, 100), &h200), column_tile(8, 100, 256, 250, 4));
    // Short: packed tiles; registers.
    assert_eq!(of(half, (65536, 16, 64), &h200), column_tile(8, 64, 32, 16, 1));
    assert_eq!(of(single, (65536, 16, 64), &h200), register_tile(4, 16, 32));
    assert_eq!(of(single, (2048, 8, 4096), &h200), register_tile(4, 256, 256));
    assert_eq!(of(single, (1024, 16, 4096), &h200), column_tile(8, 256, 128, 16, 1));
    // Words of 4 bytes, and none that fit.
    assert_eq!(of(half, (300, 500, 34), &h200), column_tile(4, 34, 160, 500, 1));
    assert_eq!(of(half, (300, 50, 33), &h200), register_tile(1, 33, 160));
    let double = (DType::F64, DType::F64);
    assert_eq!(of(double, (8, 32, 8192), &h200), register_tile(2, 32, 256));
    assert_eq!(of(half, (1024, 100, 49), &h200), register_tile(1, 49, 352));
    // Too long for the registers of a block, or too few blocks.
    assert_eq!(of(double, (1, 1000, 8192), &h200), split(2, (16, 16), 16, 1, 256));
    assert_eq!(of(half, (1, 20000, 33), &h200), split(1, (33, 5), 2, 125, 1));
    // One column tile: two launches, with slices for all multiprocessors; if it is small, one cluster.
    assert_eq!(of(half, (1, 65536, 16), &h200), split(8, (2, 64), 1, 128, 1));
    assert_eq!(of(half, (1, 4096, 16), &h200), column_tile(8, 16, 32, 256, 16));
    // Too long for a cluster, or for a block where there are none.
    assert_eq!(of(half, (1, 100_000, 8192), &h200), split(8, (16, 16), 196, 4, 64));
    assert_eq!(of(half, (1, 8192, 8192), &examples::a100()), split(8, (16, 16), 7, 10, 64));
    assert_eq!(of(half, (256, 64, 4096), &examples::t4()), column_tile(8, 128, 64, 64, 1));
    // Twice as many results per access: 32 bytes in two stores.
    assert_eq!(of((DType::BF16, DType::F32), (256, 64, 4096), &h200), column_tile(8, 128, 64, 64, 1));
}
