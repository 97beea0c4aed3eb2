use super::*;
use crate::cuda::device::examples;
use crate::ops::Strided;
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

fn name(p: &SoftmaxProblem, device: &DeviceFacts) -> String {
    plan(p, device).kernel.name.trim_start_matches("softmax_").to_string()
}

#[test]
fn variants_by_row_length() {
    let on_h200 = |dtype, length| name(&contiguous(dtype, 1000, length), &examples::h200());
    for (length, expected) in [
        (1, "column_bf16"),
        (2, "warp1x2_bf16"),
        (256, "warp1x2_bf16"),
        (512, "warp2x1_bf16"),
        (1024, "warp4x1_bf16"),
        (1032, "block_bf16"),
        (16384, "block_bf16"),
        (16392, "pipeline_bf16"),
        (50257, "pipeline_bf16"),
        (115_200, "pipeline_bf16"),
        (115_208, "online_bf16"),
        (1 << 40, "online_bf16"),
    ] {
        let rows =
            if length == 1 { problem_of_single_elements() } else { contiguous(DType::BF16, 1000, length) };
        assert_eq!(name(&rows, &examples::h200()), expected, "{length}");
    }
    assert_eq!(on_h200(DType::F32, 512), "warp4x1_f32");
    assert_eq!(on_h200(DType::F32, 16384), "block_f32");
    assert_eq!(on_h200(DType::F32, 57600), "pipeline_f32");
    assert_eq!(on_h200(DType::F64, 4096), "block_f64");
    // No asynchronous copies before compute capability 8.0.
    let on_t4 = |length| name(&contiguous(DType::F16, 1000, length), &examples::t4());
    assert_eq!(on_t4(32768), "block_f16");
    assert_eq!(on_t4(32776), "online_f16");
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
    assert_eq!(name(&columns, &device), "column_bf16");
    let transposed_in = problem(same, (512, 64, 1), &[(64, 1, 512)], (0, 0));
    assert_eq!(name(&transposed_in, &device), "general_f32");
    let expanded = problem(same, (512, 0, 1), &[(64, 512, 512)], (0, 0));
    assert_eq!(name(&expanded, &device), "general_f32");
    let upcast = problem((F16, F32), (512, 1, 1), &[(64, 512, 512)], (0, 0));
    assert_eq!(name(&upcast, &device), "warp2x1_f16_f32");
    let downcast = problem((F32, BF16), (512, 1, 1), &[(64, 512, 512)], (0, 0));
    assert_eq!(name(&downcast, &device), "general_f32");
    let to_double = problem((F32, F64), (512, 1, 1), &[(64, 512, 512)], (0, 0));
    assert_eq!(name(&to_double, &device), "general_f64");
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
        (s.granules, s.aligned_stores)
    };
    let rows = |dtypes, length, x_step, out_step, offsets| {
        shape(&problem(dtypes, (length, 1, 1), &[(9, x_step, out_step)], offsets))
    };
    assert_eq!(rows((BF16, BF16), 256, 256, 256, (0, 0)), (32, true));
    assert_eq!(rows((BF16, BF16), 256, 257, 257, (0, 0)), (33, true), "odd rows shift together");
    assert_eq!(rows((BF16, BF16), 255, 256, 255, (0, 0)), (32, false));
    assert_eq!(rows((BF16, BF16), 256, 256, 256, (3, 3)), (33, true));
    assert_eq!(rows((BF16, BF16), 256, 256, 256, (3, 11)), (33, true));
    assert_eq!(rows((BF16, BF16), 256, 256, 256, (0, 4)), (32, false));
    assert_eq!(rows((BF16, F32), 256, 256, 256, (0, 4)), (32, true), "a granule of 32 bytes in two stores");
    assert_eq!(rows((BF16, F32), 256, 256, 256, (0, 2)), (32, false));
    assert_eq!(rows((F32, F32), 256, 258, 256, (0, 0)), (65, false));
    assert_eq!(column_access(BASE, BF16, &[100 * 1000], 100), 8);
    assert_eq!(column_access(BASE, BF16, &[512 * 8], 8), 16);
    assert_eq!(column_access(BASE + 2, BF16, &[512 * 8], 8), 2);
    assert_eq!(column_access(BASE, F64, &[], 3), 8);
}

/// Elements of a row that the threads of a plan reach.
fn reach(plan: &LaunchPlan<SoftmaxParams>, variant: Variant, lanes: u64) -> u64 {
    let threads = u64::from(plan.block[0]);
    match variant {
        Variant::Warp { vectors, lane_bits, .. } => (vectors << lane_bits) * lanes,
        Variant::Block { .. } => threads * lanes * if plan.params.x_tag == DType::F32.tag() { 8 } else { 4 },
        Variant::Pipeline { slots, .. } => threads * slots * lanes,
        _ => u64::MAX,
    }
}

#[test]
fn every_plan_is_legal_and_covers_its_rows() {
    let pairs = [
        (DType::F16, DType::F16),
        (DType::F32, DType::F32),
        (DType::F64, DType::F64),
        (DType::BF16, DType::F32),
        (DType::F64, DType::F16),
    ];
    for device in examples::all() {
        for dtypes in pairs {
            for length in (1..70).chain([255, 1000, 1023, 4095, 8192, 50257, 100_000, 1 << 20, 1 << 33]) {
                for rows in [1, 7, 1000, 1 << 22, 1 << 34] {
                    for (pad, offset) in [(0, 0), (1, 3)] {
                        let row = (rows, length + pad, length + pad);
                        legal(&problem(dtypes, (length, 1, 1), &[row], (offset, 0)), &device);
                    }
                    for columns in [2, 8, 100, 4096] {
                        let outer = (rows, length * columns, length * columns);
                        let step = (length, columns, columns);
                        legal(&problem(dtypes, step, &[outer, (columns, 1, 1)], (0, 1)), &device);
                    }
                }
            }
        }
    }
}

fn legal(p: &SoftmaxProblem, device: &DeviceFacts) {
    let variant = choose(p, device);
    let plan = plan_variant(p, device, variant);
    let lanes = GRANULE / p.x.dtype.size() as u64;
    let ([blocks, y, z], [threads, ..]) = (plan.grid, plan.block);
    assert!(blocks >= 1 && u64::from(blocks) <= MAX_BLOCKS && (y, z) == (1, 1), "{plan}");
    assert!((32..=1024).contains(&threads) && threads % 32 == 0, "{plan}");
    let shared = u64::from(plan.shared_bytes) + STATIC_SHARED;
    assert!(shared <= u64::from(device.shared_bytes_per_block), "{plan}");
    assert!(plan.params.out_access <= 16);
    if let Some(shape) = row_shape(p) {
        let needed = if matches!(variant, Variant::Column { .. }) { 0 } else { shape.granules * lanes };
        assert!(reach(&plan, variant, lanes) >= needed, "{plan}");
    }
    match variant {
        Variant::Warp { rows, lane_bits, .. } => {
            assert!(plan.params.tiles * (WARP_THREADS >> lane_bits) * rows >= plan.params.rows);
        }
        Variant::Pipeline { stages, blocks_per_multiprocessor, .. } => {
            assert!((1..=4).contains(&stages));
            let per_multiprocessor = shared * blocks_per_multiprocessor;
            assert!(per_multiprocessor <= u64::from(device.shared_bytes_per_multiprocessor), "{plan}");
            let resident = u64::from(threads) * blocks_per_multiprocessor;
            assert!(resident <= u64::from(device.threads_per_multiprocessor));
        }
        Variant::Column { lane_bits, .. } => {
            let wide = plan.params.columns.div_ceil(lanes << lane_bits) * (lanes << lane_bits);
            assert!(wide >= plan.params.columns && (2u64 << lane_bits) <= STRIDED_THREADS);
            assert_eq!(plan.params.rows * plan.params.columns, p.row_count().unsigned_abs());
        }
        _ => {}
    }
}

#[test]
fn a_persistent_grid_fills_the_device_once() {
    let p = plan(&contiguous(DType::BF16, 1 << 20, 32768), &examples::h200());
    assert_eq!((p.grid[0], p.block[0]), (132 * 3, 512));
    assert_eq!((p.params.stages, p.params.slots, p.shared_bytes), (1, 8, 65536));
    let few = plan(&contiguous(DType::BF16, 5, 32768), &examples::h200());
    assert_eq!(few.grid[0], 5);
}
