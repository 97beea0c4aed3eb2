//! Contiguous columns.

use super::*;
use crate::cuda::plan::softmax_backward::params::BackwardTileParams;

#[test]
fn columns_are_covered_by_legal_launches() {
    for device in examples::all() {
        for dtype in DType::FLOATS {
            for (outer, length, columns) in [
                (1, 8192, 8192),
                (64, 4096, 64),
                (256, 64, 4096),
                (2048, 512, 8),
                (128, 1000, 100),
                (1, 65536, 16),
                (7, 3, 33),
                (2, 2, 1 << 20),
                (1, 1 << 22, 9),
                (1, 65536, 1024),
                (31, 100_000, 196),
                (5, 8192, 2047),
            ] {
                for kind in [Kind::Softmax, Kind::LogSoftmax] {
                    let p = SoftmaxBackwardProblem { kind, ..inner(dtype, outer, length, columns) };
                    for forced in [None, Some(Forced::Block), Some(Forced::Split(9))] {
                        legal_tiles(&p, &device, forced);
                    }
                }
            }
        }
    }
}

fn legal_tiles(p: &SoftmaxBackwardProblem, device: &DeviceFacts, forced: Option<Forced>) {
    let choice = choose(p, device, forced);
    let plan: LaunchPlan<BackwardTileParams> = choice.plan(p, 64);
    let context = format!("{p:?} on {}: {plan}", device.name);
    let LaunchPlan { kernel, grid, block, shared_bytes, cluster, params, .. } = plan;
    let slices = u64::from(params.slices);
    assert!(block[0] % 32 == 0 && (32..=256).contains(&block[0]), "{context}");
    assert!(cluster <= if device.compute_capability >= (9, 0) { 8 } else { 1 }, "{context}");
    assert!(cluster.is_power_of_two() && grid[0] % cluster == 0 && grid[0] > 0, "{context}");
    assert!(shared_bytes <= 48 << 10, "{context}: {shared_bytes}");
    let (size, columns) = (p.grad.dtype.size() as u64, p.rows.last().unwrap().unsigned_abs());
    let sum = size.max(4);
    let elements: u64 = kernel.name.split_once("tile").unwrap().1[..1].parse().unwrap();
    let (across, down) = (u64::from(params.across), u64::from(block[0] / params.across));
    let tiles_of_row = params.tiles / (p.row_count().unsigned_abs() / columns);
    let wide = across * elements;
    assert!(tiles_of_row * wide >= columns, "{context}");
    assert!((tiles_of_row - 1) * wide < columns, "{context}: an empty tile");
    assert!(columns.is_multiple_of(elements), "{context}");
    let batch_rows = match elements * size {
        16 | 4 => 8,
        8 => 4,
        _ => 16,
    };
    assert!(slices * u64::from(params.batches) * batch_rows * down >= p.length.unsigned_abs(), "{context}");
    let shared = u64::from(cluster) * wide * 8
        + (down * (wide | 1) + (u64::from(params.merge_threads) + 1) * wide) * sum;
    assert_eq!(u64::from(shared_bytes), shared, "{context}");
    let split = choice.launches.len() > 1;
    assert_eq!(split, params.partials != 0, "{context}");
    assert_eq!(split, kernel.name.contains("combine"), "{context}");
    assert!(!split || (slices <= 1024 && cluster == 1), "{context}");
    let needed = if split { params.tiles * slices * wide * sum } else { 0 };
    assert_eq!(choice.workspace, needed, "{context}");
    if forced.is_some() {
        assert_eq!(split, matches!(forced, Some(Forced::Split(_))), "{context}");
    }
}

#[test]
fn few_columns_are_shared_by_all_multiprocessors() {
    let device = examples::h200();
    let of = |outer, length, columns| {
        let choice = choose(&inner(DType::BF16, outer, length, columns), &device, None);
        let first = (choice.main > 0).then(|| choice.launches[0].kernel.name.clone());
        (first, choice.main().grid[0])
    };
    let partial = Some("softmax_backward_register_tile8_partial_bf16".to_string());
    assert_eq!(of(1, 65536, 16), (partial, 128), "as many as whole warps make of 132");
    assert_eq!(of(1, 8192, 8192).0, None, "enough columns");
    assert_eq!(of(1, 4096, 16).0, None, "too little for two launches");
    assert_eq!(of(64, 4096, 64).0, None, "clusters fill the device");
}

#[test]
fn a_column_is_read_once_where_clusters_hold_it() {
    let batches = |p: SoftmaxBackwardProblem, device: &DeviceFacts| {
        choose(&p, device, None).plan::<BackwardTileParams>(&p, 0).params.batches
    };
    for (outer, length, columns) in [(1, 8192, 8192), (64, 4096, 64), (128, 1000, 100), (2048, 512, 8)] {
        assert_eq!(batches(inner(DType::BF16, outer, length, columns), &examples::h200()), 1, "{length}");
    }
    assert!(batches(inner(DType::BF16, 1, 8192, 8192), &examples::a100()) > 1);
}

#[test]
fn columns_that_no_cluster_holds_are_read_in_whole_lines() {
    let device = examples::h200();
    let tile = |kind, outer, length, columns| {
        let p = SoftmaxBackwardProblem { kind, ..inner(DType::BF16, outer, length, columns) };
        let choice = choose(&p, &device, None);
        let LaunchPlan { params, why, .. } = choice.plan::<BackwardTileParams>(&p, 0);
        assert_eq!(why.len(), choice.launches.len(), "two launches have a reason of their own");
        (choice.main > 0).then(|| (params.across * VECTOR_BYTES as u32, choice.main().grid[0]))
    };
    assert_eq!(tile(Kind::Softmax, 1, 65536, 1024), Some((256, 256)), "of 264 that the device holds at once");
    assert_eq!(tile(Kind::Softmax, 1, 8192, 8192), None, "clusters hold tiles of a sector");
    assert_eq!(tile(Kind::LogSoftmax, 1, 8192, 8192), Some((256, 256)), "sums need grad alone");
    assert_eq!(tile(Kind::LogSoftmax, 1, 8192, 500), None, "8 MB");
    assert_eq!(tile(Kind::LogSoftmax, 1, 4096, 8192), None, "clusters hold tiles of 64 bytes");
    assert_eq!(tile(Kind::LogSoftmax, 200, 8192, 128), Some((256, 1000)), "nearly four waves");
}
