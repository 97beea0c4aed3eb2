//! Which kernel a gradient gets, and that its launch covers all rows.

mod columns;

use super::*;
use crate::cuda::device::examples;
use crate::cuda::plan::misaligned;
use crate::tensor::{Device, Dims};

const BASE: usize = 0x7f00_0000_0000;

/// `rows` as (size, strides of grad, output and out), outermost first; offsets in elements.
fn problem(
    dtypes: (DType, DType),
    length: i64,
    steps: [i64; 3],
    rows: &[(i64, [i64; 3])],
    offsets: [usize; 3],
) -> SoftmaxBackwardProblem {
    let at = |i: usize| {
        let dtype = if i == 2 { dtypes.1 } else { dtypes.0 };
        let strides = rows.iter().map(|r| r.1[i]).collect();
        Strided { address: BASE + offsets[i] * dtype.size(), dtype, strides }
    };
    SoftmaxBackwardProblem {
        device: Device::Cuda(0),
        kind: Kind::Softmax,
        length,
        grad_stride: steps[0],
        output_stride: steps[1],
        out_stride: steps[2],
        rows: rows.iter().map(|r| r.0).collect::<Dims>(),
        grad: at(0),
        output: at(1),
        out: at(2),
    }
}

fn contiguous(dtype: DType, rows: i64, length: i64) -> SoftmaxBackwardProblem {
    problem((dtype, dtype), length, [1; 3], &[(rows, [length; 3])], [0; 3])
}

/// Along the middle one of three dimensions.
fn inner(dtype: DType, outer: i64, length: i64, columns: i64) -> SoftmaxBackwardProblem {
    let rows = [(outer, [length * columns; 3]), (columns, [1; 3])];
    problem((dtype, dtype), length, [columns; 3], &rows, [0; 3])
}

fn rows_of(
    p: &SoftmaxBackwardProblem,
    device: &DeviceFacts,
    forced: Option<Forced>,
) -> LaunchPlan<BackwardParams> {
    choose(p, device, forced).plan(p, 64)
}

fn name(p: &SoftmaxBackwardProblem, device: &DeviceFacts) -> String {
    choose(p, device, None).main().kernel.name.trim_start_matches("softmax_backward_").to_string()
}

#[test]
fn variants_by_row_length() {
    for (length, expected) in [
        (1, "register_tile1_bf16"),
        (2, "short_bf16"),
        (8, "warp1x2_bf16"),
        (256, "warp1x2_bf16"),
        (66, "short_bf16"),
        (67, "warp1x2_bf16"),
        (264, "warp2x1_bf16"),
        (512, "warp2x1_bf16"),
        (520, "warp4x1_bf16"),
        (1020, "cluster_bf16"),
        (1024, "warp4x1_bf16"),
        (1032, "cluster_bf16"),
        (8191, "cluster_bf16"),
        (8194, "cluster_bf16"),
        (131_072, "cluster_bf16"),
        (32_769, "cluster_bf16"),
        (131_073, "buffered_bf16"),
        (131_080, "cluster_bf16"),
        (163_848, "buffered_bf16"),
        (262_143, "buffered_bf16"),
        (262_144, "cluster_bf16"),
        (262_152, "buffered_bf16"),
        (524_288, "buffered_bf16"),
        (524_287, "buffered_bf16"),
        (573_440, "buffered_bf16"),
        (573_448, "long_bf16"),
        (1_000_001, "long_bf16"),
    ] {
        assert_eq!(name(&contiguous(DType::BF16, 1000, length), &examples::h200()), expected, "{length}");
    }
    assert_eq!(name(&contiguous(DType::BF16, 1000, 50_257), &examples::h200()), "buffered_bf16");
    assert_eq!(name(&contiguous(DType::BF16, 100, 50_257), &examples::h200()), "cluster_bf16");
    assert_eq!(name(&contiguous(DType::F32, 1000, 65536), &examples::h200()), "cluster_f32");
    // Without clusters, a block's registers are all there is.
    assert_eq!(name(&contiguous(DType::F32, 1000, 8192), &examples::a100()), "cluster_f32");
    assert_eq!(name(&contiguous(DType::F32, 1000, 8193), &examples::a100()), "long_f32");
}

#[test]
fn other_layouts_and_dtypes() {
    let device = examples::h200();
    let mixed = |grad, out| problem((grad, out), 100, [1; 3], &[(50, [100; 3])], [0; 3]);
    assert_eq!(name(&mixed(DType::F32, DType::BF16), &device), "misaligned8_f32_bf16");
    assert_eq!(name(&mixed(DType::F32, DType::F64), &device), "general_f64");
    assert_eq!(name(&mixed(DType::F16, DType::F32), &device), "general_f32");
    assert_eq!(name(&mixed(DType::F64, DType::F16), &device), "general_f64");
    let stepping = problem((DType::F32, DType::F32), 100, [2, 1, 1], &[(50, [200, 100, 100])], [0; 3]);
    assert_eq!(name(&stepping, &device), "general_f32");
    let expanded = problem((DType::F32, DType::F32), 100, [0, 1, 1], &[(50, [0, 100, 100])], [0; 3]);
    assert_eq!(name(&expanded, &device), "general_f32");
    for (columns, expected) in [
        (64, "register_tile8_f16"),
        (100, "register_tile4_f16"),
        (34, "register_tile2_f16"),
        (33, "register_tile1_f16"),
    ] {
        assert_eq!(name(&inner(DType::F16, 3, 70, columns), &device), expected, "{columns}");
    }
    let mut unnatural = contiguous(DType::F32, 50, 100);
    unnatural.output.address += 1;
    assert_eq!(name(&unnatural, &device), "general_f32");
}

#[test]
fn accesses_are_vectors_only_where_all_rows_allow_it() {
    let device = examples::h200();
    let access = |offsets, strides| {
        let p = problem((DType::F16, DType::F16), 800, [1; 3], &[(50, strides)], offsets);
        // Misaligned rows have no use for these.
        let params = rows_of(&p, &device, Some(Forced::Block)).params;
        (params.output_access, params.out_access)
    };
    assert_eq!(access([0; 3], [800; 3]), (1, 1));
    assert_eq!(access([3; 3], [801; 3]), (1, 1), "equally misaligned");
    assert_eq!(access([0, 1, 0], [800; 3]), (0, 1));
    assert_eq!(access([0, 0, 2], [800; 3]), (1, 0));
    assert_eq!(access([0; 3], [801, 800, 801]), (0, 1));
    assert_eq!(access([0; 3], [0, 800, 800]), (1, 1), "one gradient for all rows");
}

#[test]
fn rows_of_different_alignments_go_to_shared_memory() {
    let device = examples::h200();
    let to_aligned = |dtype, rows, length: i64, device: &DeviceFacts| {
        let strides = [length + 3, length + 3, length];
        name(&problem((dtype, dtype), length, [1; 3], &[(rows, strides)], [1, 1, 0]), device)
    };
    for (length, expected) in [(40, "misaligned16_bf16"), (1023, "misaligned32_bf16"), (1024, "smem_bf16")] {
        assert_eq!(to_aligned(DType::BF16, 1000, length, &device), expected, "{length}");
    }
    assert_eq!(to_aligned(DType::F64, 1000, 8192, &device), "smem_f64");
    assert_eq!(to_aligned(DType::BF16, 1000, 8192, &examples::a100()), "misaligned32_bf16");
    assert_eq!(to_aligned(DType::BF16, 4, 8192, &device), "cluster_bf16", "few rows");
    assert_eq!(to_aligned(DType::F32, 1000, 1 << 20, &device), "long_f32", "no cluster holds one");
}

#[test]
fn what_a_developer_forces() {
    let device = examples::h200();
    let forced = |length, forced| {
        let plan = rows_of(&contiguous(DType::F32, 50, length), &device, Some(forced));
        (plan.kernel.name.trim_start_matches("softmax_backward_").to_string(), plan.cluster)
    };
    assert_eq!(forced(100, Forced::Cluster(4)), ("cluster_f32".into(), 4));
    assert_eq!(forced(20000, Forced::Cluster(2)), ("buffered_f32".into(), 2));
    assert_eq!(
        forced(20000, Forced::Cluster(1)),
        ("cluster_f32".into(), 8),
        "the plan chooses: one block is too few"
    );
    assert_eq!(forced(20000, Forced::Cluster(3)), ("cluster_f32".into(), 8));
    assert_eq!(forced(20000, Forced::Online), ("long_f32".into(), 8));
}

#[test]
fn rows_in_shared_memory_fit() {
    for device in examples::all() {
        for pair in [(DType::F16, DType::F16), (DType::F32, DType::BF16)] {
            for length in [1, 7, 1024, 8191, 50257, 131_073] {
                let p = problem(pair, length, [1; 3], &[(50, [length + 1; 3])], [1, 2, 3]);
                for blocks in [1, 2, 8] {
                    let plan = rows_of(&p, &device, Some(Forced::Smem(blocks)));
                    if !plan.kernel.name.contains("smem") {
                        continue;
                    }
                    let (params, blocks) = (&plan.params, u64::from(plan.cluster));
                    let per_access = VECTOR_BYTES / pair.1.size() as u64;
                    assert!(params.slice_size * blocks >= length as u64 / per_access, "{plan}");
                    assert!(
                        (params.slice_size * per_access).is_multiple_of(VECTOR_BYTES / pair.0.size() as u64)
                    );
                    let vectors = params.slice_size * per_access * pair.0.size() as u64 / VECTOR_BYTES + 1;
                    assert_eq!(u64::from(plan.shared_bytes), 2 * VECTOR_BYTES * vectors, "{plan}");
                    assert!(plan.shared_bytes + 2048 <= device.shared_bytes_per_block, "{plan}");
                    assert_eq!(u64::from(plan.grid[0]), 50 * blocks, "{plan}");
                    assert!(
                        plan.block[0].is_multiple_of(32) && (32..=512).contains(&plan.block[0]),
                        "{plan}"
                    );
                }
            }
        }
    }
}

#[test]
fn rows_are_covered_by_legal_launches() {
    for device in examples::all() {
        let clusters = device.compute_capability >= (9, 0);
        for dtype in DType::FLOATS {
            for length in [2, 7, 33, 256, 1000, 1025, 4096, 12672, 50257, 131_072, 262_144, 300_001, 1 << 24]
            {
                for rows in [1, 4, 64, 1000, 1 << 20] {
                    let p = contiguous(dtype, rows, length);
                    if let Some(Variant::Misaligned(misaligned)) = choose::choose(&p, &device, None).0 {
                        let plan = choose(&p, &device, None).plan(&p, 64);
                        misaligned::tests::legal(&misaligned_rows(&p), &device, misaligned, &plan);
                    }
                    let plan = rows_of(&p, &device, Some(Forced::Block));
                    let LaunchPlan { grid, block, params, cluster, .. } = plan;
                    let context = format!("{dtype} {rows} x {length} on {}: {}", device.name, plan);
                    assert!(
                        block[0] % 32 == 0 && (32..=BLOCK_THREADS as u32).contains(&block[0]),
                        "{context}"
                    );
                    assert!(cluster.is_power_of_two() && grid[0] % cluster == 0 && grid[0] > 0, "{context}");
                    let most = if device.multiprocessors < 100 { 8 } else { 16 };
                    assert!(cluster == 1 || (clusters && cluster <= most), "{context}");
                    let workspace = choose(&p, &device, Some(Forced::Block)).workspace;
                    assert!(workspace == 0 || cluster == 1, "{context}");
                    let vectors = (length as u64 * dtype.size() as u64).div_ceil(VECTOR_BYTES);
                    let own = u64::from(block[0]) * u64::from(params.slices);
                    let covered = match &*plan.kernel.name {
                        n if n.contains("cluster") => own * BLOCK_VECTORS,
                        n if n.contains("buffered") => {
                            let buffered =
                                own / u64::from(cluster) * (params.slice_size - 1) * BUFFERED_VECTORS;
                            assert_eq!(
                                u64::from(plan.shared_bytes),
                                2 * VECTOR_BYTES * buffered,
                                "{context}"
                            );
                            let two = 2 * (plan.shared_bytes + 2048);
                            assert!(two <= device.shared_bytes_per_multiprocessor, "{context}");
                            own * BUFFERED_VECTORS * params.slice_size
                        }
                        n if n.contains("long") || n.contains("combine") => {
                            own * LONG_VECTORS * params.slice_size
                        }
                        n => {
                            let (vectors, at_once) =
                                n.split_once("warp").unwrap().1[..3].split_once('x').unwrap();
                            let groups = WARP_THREADS >> params.lane_bits;
                            let at_once: u64 = at_once.parse().unwrap();
                            assert!(params.tiles * groups * at_once >= rows as u64, "{context}");
                            vectors.parse::<u64>().unwrap() << params.lane_bits
                        }
                    };
                    assert!(covered >= vectors, "{context}");
                }
            }
        }
    }
}

#[test]
fn few_rows_are_shared_by_many_blocks() {
    let device = examples::h200();
    let plan_of = |rows, length| rows_of(&contiguous(DType::BF16, rows, length), &device, None);
    for (rows, length, blocks) in
        [(4, 131_072, 16), (16, 32000, 8), (4, 25000, 8), (1, 16384, 4), (1, 8192, 1)]
    {
        let plan = plan_of(rows, length);
        assert_eq!((plan.cluster, plan.grid[0]), (blocks, blocks * rows as u32), "{rows} x {length}");
    }
    for (rows, length) in [(1, 1 << 24), (8, 1 << 21)] {
        let p = contiguous(DType::BF16, rows, length);
        let choice = choose(&p, &device, None);
        let names: Vec<&str> = choice.launches.iter().map(|launch| &*launch.kernel.name).collect();
        assert_eq!(names, ["softmax_backward_partial_bf16", "softmax_backward_combine_bf16"]);
        let plan = choice.main();
        assert!(plan.grid[0] >= 132 && plan.cluster == 1, "{plan}");
        assert_eq!(choice.workspace, 8 * u64::from(plan.grid[0]));
    }
    assert_eq!(&*plan_of(4, 262_144).kernel.name, "softmax_backward_cluster_bf16");
    assert_eq!(plan_of(4, 262_144).cluster, 16);
    // Of many rows only those that fill the threads of small blocks.
    for (length, blocks) in [(16384, 1), (25000, 2), (32768, 8), (65536, 8), (131_072, 16)] {
        assert_eq!(plan_of(1000, length).cluster, blocks, "{length}");
    }
}
