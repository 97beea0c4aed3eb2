//! Which kernel a softmax gets, and why.

mod columns;
mod legal;

use super::choose::choose;
use super::column_tile::ColumnTileParams;
use super::register_tile::RegisterTileParams;
use super::rows::{SoftmaxParams, row_shape};
use super::split_columns::SplitColumnsParams;
use super::transposed::{Fit, Short, TransposedParams};
use super::*;
use crate::cuda::device::examples;
use crate::cuda::plan::LaunchPlan;
use crate::cuda::plan::misaligned::{MisalignedParams, SharedRows};
use crate::ops::Strided;
use crate::ops::softmax::Kind;
use crate::tensor::{Device, Dims};

const BASE: usize = 0x7f00_0000_0000;

/// `rows` as (size, stride of x, stride of out), outermost first; offsets in elements.
fn problem(
    dtypes: (DType, DType),
    (length, x_stride, out_stride): (i64, i64, i64),
    rows: &[(i64, i64, i64)],
    offsets: (usize, usize),
) -> SoftmaxProblem {
    let at = |dtype: DType, offset: usize, strides: Dims| Strided {
        address: BASE + offset * dtype.size(),
        dtype,
        strides,
    };
    SoftmaxProblem {
        device: Device::Cuda(0),
        kind: Kind::Softmax,
        length,
        x_stride,
        out_stride,
        rows: rows.iter().map(|r| r.0).collect(),
        x: at(dtypes.0, offsets.0, rows.iter().map(|r| r.1).collect()),
        out: at(dtypes.1, offsets.1, rows.iter().map(|r| r.2).collect()),
    }
}

fn contiguous(dtype: DType, rows: i64, length: i64) -> SoftmaxProblem {
    problem((dtype, dtype), (length, 1, 1), &[(rows, length, length)], (0, 0))
}

fn name_forced(p: &SoftmaxProblem, device: &DeviceFacts, forced: Option<Forced>) -> String {
    let choice = super::choose(p, device, forced);
    choice.main().kernel.name.trim_start_matches("softmax_").to_string()
}

fn name(p: &SoftmaxProblem, device: &DeviceFacts) -> String {
    name_forced(p, device, None)
}

fn rows_plan(p: &SoftmaxProblem, device: &DeviceFacts) -> LaunchPlan<SoftmaxParams> {
    super::choose(p, device, None).plan(p, 0)
}

#[test]
fn variants_by_row_length() {
    let on_h200 = |dtype, length| name(&contiguous(dtype, 1000, length), &examples::h200());
    for (length, expected) in [
        (1, "column_tile8_bf16"),
        (2, "short9_bf16"),
        (8, "warp1x2_bf16"),
        (33, "short17_bf16"),
        (47, "short33_bf16"),
        (48, "warp2x1_bf16"),
        (49, "short33_bf16"),
        (65, "short33_bf16"),
        (67, "warp2x1_bf16"),
        (256, "warp2x1_bf16"),
        (512, "warp2x1_bf16"),
        (513, "warp2x1_bf16"),
        (520, "warp4x1_bf16"),
        (781, "warp4x1_bf16"),
        (1024, "warp4x1_bf16"),
        (1032, "block_bf16"),
        (4095, "block_bf16"),
        (8192, "block_bf16"),
        (8200, "cluster_bf16"),
        (16384, "cluster_bf16"),
        (16392, "cluster_bf16"),
        (32768, "cluster_bf16"),
        (65536, "cluster_bf16"),
        (50257, "cluster_bf16"),
        (114_688, "cluster_bf16"),
        (114_696, "cluster_bf16"),
        (524_288, "cluster_bf16"),
        (524_296, "online_bf16"),
        (524_296, "online_bf16"),
        (1 << 40, "online_bf16"),
    ] {
        let rows =
            if length == 1 { problem_of_single_elements() } else { contiguous(DType::BF16, 1000, length) };
        assert_eq!(name(&rows, &examples::h200()), expected, "{length}");
    }
    assert_eq!(on_h200(DType::F32, 512), "warp4x1_f32");
    assert_eq!(on_h200(DType::F32, 8192), "block_f32");
    assert_eq!(on_h200(DType::F32, 16384), "cluster_f32");
    assert_eq!(on_h200(DType::F32, 57344), "cluster_f32");
    assert_eq!(on_h200(DType::F32, 50257), "cluster_f32");
    assert_eq!(on_h200(DType::F64, 2048), "block_f64");
    assert_eq!(on_h200(DType::F64, 4096), "cluster_f64");
    // No asynchronous copies before compute capability 8.0.
    let on_t4 = |length| name(&contiguous(DType::F16, 1000, length), &examples::t4());
    assert_eq!(on_t4(32768), "block_f16");
    assert_eq!(on_t4(32776), "online_f16");
}

/// Blocks of a cluster, and threads of each.
#[test]
fn blocks_of_long_rows_share_multiprocessors() {
    let device = examples::h200();
    let clusters = |dtype, length| {
        let plan = rows_plan(&contiguous(dtype, 4096, length), &device);
        (plan.cluster, plan.block[0])
    };
    assert_eq!(clusters(DType::BF16, 16384), (1, 256));
    assert_eq!(clusters(DType::BF16, 32768), (2, 256));
    assert_eq!(clusters(DType::F16, 65521), (4, 256));
    assert_eq!(clusters(DType::BF16, 57344), (4, 224));
    assert_eq!(clusters(DType::BF16, 131_072), (8, 256));
    assert_eq!(clusters(DType::F32, 32768), (4, 256));
    assert_eq!(clusters(DType::F32, 65536), (8, 256));
    assert_eq!(clusters(DType::F32, 262_144), (16, 512));
}

#[test]
fn rows_of_whole_vectors_one_stride_apart_skip_head_and_tail() {
    let device = examples::h200();
    let whole = |p: &SoftmaxProblem| {
        let plan = rows_plan(p, &device);
        assert!(plan.kernel.name.starts_with("softmax_warp"), "{}", plan.kernel.name);
        plan.params.x_access > 0
    };
    let same = (DType::BF16, DType::BF16);
    assert!(whole(&problem(same, (64, 1, 1), &[(1000, 64, 64)], (0, 0))));
    assert!(whole(&problem(same, (64, 1, 1), &[(1000, 72, 64)], (0, 0))));
    assert!(!whole(&problem(same, (64, 1, 1), &[(10, 8000, 6400), (100, 64, 64)], (0, 0))));
    assert!(!whole(&problem(same, (520, 1, 1), &[(1000, 520, 520)], (4, 4))));
}

fn problem_of_single_elements() -> SoftmaxProblem {
    problem((DType::BF16, DType::BF16), (1, 1, 1), &[(1000, 1, 1)], (0, 0))
}

#[test]
fn variants_by_layout() {
    use DType::*;
    let device = examples::h200();
    let same = (BF16, BF16);
    let columns = problem(same, (4096, 64, 64), &[(64, 262_144, 262_144), (64, 1, 1)], (0, 0));
    assert_eq!(name(&columns, &device), "column_tile8_bf16");
    let transposed_in = problem(same, (512, 64, 1), &[(64, 1, 512)], (0, 0));
    assert_eq!(name(&transposed_in, &device), "transposed_in_bf16");
    let transposed_out = problem(same, (512, 1, 64), &[(64, 512, 1)], (0, 0));
    assert_eq!(name(&transposed_out, &device), "transposed_out_bf16");
    // A batch of images, to channels last and back.
    let channels = |dtype| problem(dtype, (21, 1000, 1), &[(16, 21_000, 21_000), (1000, 1, 21)], (0, 0));
    assert_eq!(name(&channels((F16, F32)), &device), "transposed_short_in2_f16_f32");
    assert_eq!(name(&channels((F32, F16)), &device), "general_f32");
    let long = problem(same, (1 << 20, 64, 1), &[(64, 1, 1 << 20)], (0, 0));
    assert_eq!(name(&long, &device), "transposed_in_combine_bf16");
    // Of the largest cluster two blocks share a multiprocessor, or none do.
    let of_length = |n| problem((F32, F32), (n, 1, 8192), &[(8192, n, 1)], (0, 0));
    assert_eq!(name(&of_length(12_288), &device), "transposed_out_f32");
    assert_eq!(name(&of_length(16_384), &device), "transposed_out_combine_f32");
    let few = problem(same, (512, 7, 1), &[(7, 1, 512)], (0, 0));
    assert_eq!(name(&few, &device), "general_f32");
    let between = Strided { address: BASE + 1, ..transposed_in.out.clone() };
    assert_eq!(name(&SoftmaxProblem { out: between, ..transposed_in }, &device), "general_f32");
    let expanded = problem(same, (512, 0, 1), &[(64, 512, 512)], (0, 0));
    assert_eq!(name(&expanded, &device), "general_f32");
    let upcast = problem((F16, F32), (512, 1, 1), &[(64, 512, 512)], (0, 0));
    assert_eq!(name(&upcast, &device), "warp2x1_f16_f32");
    let downcast = problem((F32, BF16), (512, 1, 1), &[(64, 512, 512)], (0, 0));
    assert_eq!(name(&downcast, &device), "general_f32");
    let to_double = problem((F32, F64), (512, 1, 1), &[(64, 512, 512)], (0, 0));
    assert_eq!(name(&to_double, &device), "general_f64");
    let skewed = problem(same, (512, 1, 1), &[(64, 515, 512)], (1, 0));
    assert_eq!(name(&skewed, &device), "misaligned16_bf16");
    let shifted = problem((F32, F32), (512, 1, 1), &[(64, 512, 512)], (0, 1));
    assert_eq!(name(&shifted, &device), "misaligned16_f32");
    let reversed = problem(same, (512, 1, 1), &[(64, -512, 512)], (63 * 512, 0));
    assert_eq!(name(&reversed, &device), "warp2x1_bf16");
    let deep: Vec<_> = (0..5).rev().map(|d| (2, 3i64.pow(d) * 600, 3i64.pow(d) * 600)).collect();
    assert_eq!(name(&problem(same, (512, 1, 1), &deep, (0, 0)), &device), "general_f32");
    assert_eq!(name(&problem(same, (512, 1, 1), &deep[1..], (0, 0)), &device), "warp2x1_bf16");
}

#[test]
fn alignment() {
    use DType::*;
    let shape = |p: &SoftmaxProblem| {
        let s = row_shape(p).unwrap();
        (s.vectors, s.aligned_stores)
    };
    let rows = |dtypes, length, x_step, out_step, offsets| {
        shape(&problem(dtypes, (length, 1, 1), &[(9, x_step, out_step)], offsets))
    };
    assert_eq!(rows((BF16, BF16), 256, 256, 256, (0, 0)), (32, true));
    assert_eq!(
        rows((BF16, BF16), 256, 257, 257, (0, 0)),
        (33, true),
        "odd rows of both are misaligned alike"
    );
    assert_eq!(rows((BF16, BF16), 255, 256, 255, (0, 0)), (32, false));
    assert_eq!(rows((BF16, BF16), 256, 256, 256, (3, 3)), (33, true));
    assert_eq!(rows((BF16, BF16), 256, 256, 256, (3, 11)), (33, true));
    assert_eq!(rows((BF16, BF16), 256, 256, 256, (0, 4)), (32, false));
    assert_eq!(rows((BF16, F32), 256, 256, 256, (0, 4)), (32, true), "a vector of 32 bytes in two stores");
    assert_eq!(rows((BF16, F32), 256, 256, 256, (0, 2)), (32, false));
    assert_eq!(rows((F32, F32), 256, 258, 256, (0, 0)), (65, false));
    assert_eq!(column_access(BASE, BF16, &[100 * 1000], 100), 8);
    assert_eq!(column_access(BASE, BF16, &[512 * 8], 8), 16);
    assert_eq!(column_access(BASE + 2, BF16, &[512 * 8], 8), 2);
    assert_eq!(column_access(BASE, F64, &[], 3), 8);
}

#[test]
fn tiles_of_misaligned_rows_end_at_vector_boundaries() {
    let by = |p: &SoftmaxProblem, device: &DeviceFacts, forced| match choose(p, device, forced).0 {
        Variant::Misaligned(misaligned) => misaligned,
        other => panic!("{other:?}"),
    };
    let of = |p: &SoftmaxProblem, device: &DeviceFacts| by(p, device, None);
    let forced = |p: &SoftmaxProblem| by(p, &examples::h200(), Some(Forced::Misaligned(2)));
    let h200 = examples::h200();
    // Neither x nor the result begins at a 16-byte boundary: else the rows would be `short`.
    let odd = |rows| problem((DType::BF16, DType::BF16), (33, 1, 1), &[(rows, 33, 33)], (1, 1));
    let tiny = of(&odd(1 << 19), &h200);
    assert_eq!((tiny.lanes, tiny.tile_rows(), tiny.stages, tiny.blocks_per_multiprocessor), (2, 128, 2, 4));
    assert_eq!(tiny.shared[0], SharedRows { packed: true, pitch: 33 * 16 + 1, vectors: 33 * 16 + 1 });
    let middle = forced(&contiguous(DType::BF16, 32768, 781));
    assert_eq!((middle.lanes, middle.tile_rows(), middle.stages, middle.threads), (32, 8, 2, 256));
    assert_eq!(middle.shared[0].vectors, 781);
    let long = forced(&contiguous(DType::BF16, 32768, 4095));
    assert_eq!(
        (long.lanes, long.tile_rows(), long.threads, long.blocks_per_multiprocessor),
        (128, 1, 128, 6)
    );
    // Rows with gaps: each is a range of its own, of an odd number of vectors.
    let apart = of(&problem((DType::F32, DType::F32), (30, 1, 1), &[(1 << 20, 33, 30)], (1, 0)), &h200);
    assert_eq!(apart.shared[0], SharedRows { packed: false, pitch: 9, vectors: 9 * 128 });
    assert_eq!(apart.shared[1], SharedRows { packed: true, pitch: 960, vectors: 960 });
    // Few rows: more and smaller tiles.
    assert_eq!(of(&odd(4096), &h200).tile_rows(), 32);
    // Without asynchronous copies a second stage has no use.
    assert_eq!(of(&odd(1 << 19), &examples::t4()).stages, 1);
}

#[test]
fn few_rows_use_the_whole_device() {
    let h200 = examples::h200();
    let of =
        |rows, length, device: &DeviceFacts| choose(&contiguous(DType::BF16, rows, length), device, None).0;
    assert_eq!(of(4, 131_072, &h200), Variant::Cluster { threads: 128, blocks: 16 });
    assert_eq!(of(16, 32000, &h200), Variant::Cluster { threads: 64, blocks: 8 });
    assert_eq!(of(64, 128_256, &h200), Variant::Cluster { threads: 256, blocks: 8 });
    assert_eq!(
        of(1, 1 << 20, &h200),
        Variant::Grid { threads: 256, slices: 132, register_batches: 1, shared_vectors: 0 }
    );
    assert_eq!(
        of(1, 1 << 24, &h200),
        Variant::Grid { threads: 512, slices: 132, register_batches: 3, shared_vectors: 20 }
    );
    assert_eq!(
        of(8, 1 << 21, &h200),
        Variant::Grid { threads: 512, slices: 16, register_batches: 3, shared_vectors: 20 }
    );
    assert_eq!(
        of(1, 1 << 30, &h200),
        Variant::Grid { threads: 512, slices: 132, register_batches: 3, shared_vectors: 28 }
    );
    // Longer than 32 bits count, and rows for which too many multiprocessors would be left over.
    assert!(matches!(of(1, (1 << 30) + 8, &h200), Variant::Split { .. }));
    assert_eq!(
        of(66, 1 << 21, &h200),
        Variant::Grid { threads: 512, slices: 2, register_batches: 3, shared_vectors: 28 }
    );
    assert!(matches!(of(67, 1 << 21, &h200), Variant::Split { .. }));
    // The longest row for a cluster, and the next.
    assert_eq!(of(4, 1 << 18, &h200), Variant::Cluster { threads: 256, blocks: 16 });
    assert!(matches!(of(4, (1 << 18) + 8, &h200), Variant::Grid { .. }));
    // The result is aligned differently, or has another dtype; the launch was refused.
    let shifted = problem((DType::BF16, DType::BF16), (1 << 20, 1, 1), &[(1, 1 << 20, 1 << 20)], (0, 1));
    assert!(matches!(choose(&shifted, &h200, None).0, Variant::Split { .. }));
    let widened = problem((DType::BF16, DType::F32), (1 << 20, 1, 1), &[(1, 1 << 20, 1 << 20)], (0, 0));
    assert!(matches!(choose(&widened, &h200, None).0, Variant::Split { .. }));
    let split = Variant::Split { threads: 128, slices: 256, batches: 1 };
    // Two blocks to a multiprocessor, all in one wave.
    assert_eq!(of(45, 1 << 20, &h200), Variant::Split { threads: 384, slices: 5, batches: 18 });
    assert_eq!(of(1, 1 << 20, &h200.without_cooperation()), split);
    assert_eq!(of(1000, 1 << 20, &h200), Variant::Online { threads: 512, vectors_per_thread: 14 });
    // Without clusters, and where there are clusters of 8 at most.
    let a100 = examples::a100();
    assert_eq!(of(1, 1 << 20, &a100), Variant::Split { threads: 128, slices: 128, batches: 2 });
    assert_eq!(of(16, 32000, &a100), of(1000, 32000, &a100));
    assert_eq!(of(4, 131_072, &examples::rtx5090()), Variant::Cluster { threads: 256, blocks: 8 });
    // A part of an H200.
    let part = DeviceFacts { multiprocessors: 16, ..h200 };
    assert_eq!(
        of(1, 1 << 20, &part),
        Variant::Grid { threads: 512, slices: 16, register_batches: 3, shared_vectors: 4 }
    );
    assert_eq!(of(1, 131_072, &part), Variant::Cluster { threads: 256, blocks: 8 });
}

#[test]
fn what_a_developer_forces() {
    let h200 = examples::h200();
    let forced = |p: &SoftmaxProblem, forced| name_forced(p, &h200, Some(forced));
    let row = contiguous(DType::BF16, 1000, 256);
    assert_eq!(forced(&row, Forced::Warp(1)), "warp1x2_bf16");
    assert_eq!(forced(&row, Forced::Warp(2)), "warp2x1_bf16");
    assert_eq!(
        forced(&row, Forced::Warp(3)),
        "warp2x1_bf16",
        "the plan chooses where a variant does not exist"
    );
    assert_eq!(forced(&row, Forced::Cluster(1)), "cluster_bf16");
    assert_eq!(forced(&row, Forced::Pipeline(2)), "pipeline_bf16");
    assert_eq!(forced(&row, Forced::Misaligned(2)), "misaligned16_bf16");
    assert_eq!(forced(&row, Forced::Online), "online_bf16");
    assert_eq!(forced(&row, Forced::Split(5)), "combine_bf16");
    assert_eq!(forced(&row, Forced::Grid(5)), "warp2x1_bf16", "more rows than multiprocessors");
    assert_eq!(forced(&contiguous(DType::BF16, 9, 50257), Forced::Grid(5)), "grid1_bf16");
    assert_eq!(forced(&contiguous(DType::F64, 9, 50257), Forced::Grid(5)), "grid2_f64");
    let long = contiguous(DType::BF16, 1000, 50257);
    assert_eq!(forced(&long, Forced::Warp(4)), "cluster_bf16");
    assert_eq!(forced(&long, Forced::Short), "cluster_bf16");
    assert_eq!(forced(&row, Forced::Smem(2)), "smem_bf16");
    assert_eq!(forced(&long, Forced::Misaligned(2)), "cluster_bf16", "more than registers hold");
    assert_eq!(forced(&long, Forced::Smem(4)), "smem_bf16");
    assert_eq!(forced(&long, Forced::Cluster(3)), "cluster_bf16");
    assert_eq!(forced(&contiguous(DType::F32, 1000, 24), Forced::Short), "short33_f32");
    for stages in 1..=5 {
        let p = contiguous(DType::BF16, 1 << 20, 8192);
        let Variant::Pipeline { stages: got, blocks_per_multiprocessor, .. } =
            choose(&p, &h200, Some(Forced::Pipeline(stages))).0
        else {
            panic!()
        };
        assert_eq!(got, stages.min(4));
        assert!(blocks_per_multiprocessor >= 1);
    }
    let columns =
        problem((DType::BF16, DType::BF16), (640, 64, 64), &[(64, 40960, 40960), (64, 1, 1)], (0, 0));
    assert_eq!(forced(&columns, Forced::Cluster(4)), "column_tile8_bf16");
    assert_eq!(forced(&columns, Forced::Split(7)), "split_columns8_combine_bf16");
    assert_eq!(
        super::choose(&columns, &h200, Some(Forced::Split(7))).launches[0].kernel.name,
        "softmax_split_columns8_partial_bf16"
    );
}

#[test]
fn the_workspace_has_room_for_every_partial() {
    let h200 = examples::h200();
    let long = contiguous(DType::F64, 2, 1 << 23);
    assert_eq!(super::choose(&long, &h200.without_cooperation(), None).workspace, 2 * 131 * 16);
    assert_eq!(super::choose(&long, &h200, None).workspace, 2 * (66 * 32 + 16));
    let one = contiguous(DType::BF16, 1, 1 << 20);
    assert_eq!(super::choose(&one, &h200, None).workspace, 132 * 16 + 16);
    // Enough for the two launches of the fallback.
    assert_eq!(super::choose(&one, &h200, Some(Forced::Grid(1))).workspace, 256 * 8);
    assert_eq!(super::choose(&contiguous(DType::BF16, 4, 131_072), &h200, None).workspace, 0);
    let columns = problem((DType::BF16, DType::BF16), (65536, 16, 16), &[(16, 1, 1)], (0, 0));
    assert_eq!(super::choose(&columns, &h200, None).workspace, 128 * 16 * 8);
}

#[test]
fn a_persistent_grid_fills_the_device_once() {
    let p = rows_plan(&contiguous(DType::BF16, 1 << 20, 32768), &examples::a100());
    assert_eq!((p.grid[0], p.block[0]), (108 * 2, 512));
    assert_eq!((p.params.stages, p.params.per_thread, p.shared_bytes), (1, 8, 65536));
    let few = rows_plan(&contiguous(DType::BF16, 100, 32768), &examples::a100());
    assert_eq!(few.grid[0], 100);
}
