//! Which kernel a problem gets, on every device.

use smallvec::smallvec;

use super::*;
use crate::cuda::device::examples;
use crate::cuda::plan::Launch;
use crate::cuda::plan::launch::ALIGNMENT;
use crate::ops::grouped_matmul::{Operands, output, problem};
use crate::ops::listed_matmul::ListedMatmulProblem;
use crate::ops::matmul::Activation;
use crate::tensor::{Device, Dims, TensorView, layout};

fn view(dtype: DType, shape: &[i64], address: usize) -> TensorView {
    let shape = Dims::from_slice(shape);
    let strides = layout::contiguous_strides(&shape);
    TensorView {
        address: address * ALIGNMENT,
        dtype,
        device: Device::Cuda(0),
        shape,
        strides,
        writable: true,
    }
}

fn transposed(mut t: TensorView) -> TensorView {
    let rank = t.rank();
    t.shape.swap(rank - 2, rank - 1);
    t.strides.swap(rank - 2, rank - 1);
    t
}

fn posed(a: &TensorView, b: &TensorView, groups: i64) -> GroupedMatmulProblem {
    with_gate(a, b, groups, None)
}

fn with_gate(a: &TensorView, b: &TensorView, groups: i64, gate: Option<&TensorView>) -> GroupedMatmulProblem {
    let offsets = TensorView { strides: smallvec![1], ..view(DType::I32, &[groups], 1 << 40) };
    let operands = Operands { a, b, offsets: Some(&offsets), bias: None, gate };
    let spec = output(operands).unwrap();
    let out = TensorView { address: 1 << 50, ..spec.view() };
    problem(operands, Activation::None, &spec, &out).unwrap()
}

fn kernel(problem: &GroupedMatmulProblem, device: &DeviceFacts) -> String {
    choose(problem, device, None).main().kernel.name.clone()
}

#[test]
fn tiles_suit_the_mean_group() {
    let h200 = examples::h200();
    for (groups, rows, k, n, tile) in [
        (8, 4096, 4096, 14336, "128x256"),
        (64, 8192, 2048, 1408, "128x192"),
        (128, 8192, 2048, 768, "128x128"),
        (256, 512, 7168, 2048, "64x128"),
        (2, 512, 64, 256, "64x128"),
    ] {
        let (a, b) = (view(DType::BF16, &[rows, k], 1 << 20), view(DType::BF16, &[groups, k, n], 1 << 30));
        let name = format!("grouped_matmul_wgmma_rows_{tile}_none_bf16");
        assert_eq!(kernel(&posed(&a, &b, groups), &h200), name);
    }
}

#[test]
fn what_is_cut_is_not_along_the_unit_stride() {
    let h200 = examples::h200();
    let rows = |a: TensorView| posed(&a, &view(DType::F16, &[4, 128, 256], 1 << 30), 4);
    assert!(kernel(&rows(view(DType::F16, &[1024, 128], 1 << 20)), &h200).contains("wgmma_rows"));
    let columns = transposed(view(DType::F16, &[128, 1024], 1 << 20));
    assert_eq!(kernel(&rows(columns), &h200), "grouped_matmul_mma_64x64_any_f16");
    let y = view(DType::F16, &[1024, 256], 1 << 30);
    let depth = |a: TensorView| posed(&a, &y, 4);
    assert!(
        kernel(&depth(transposed(view(DType::F16, &[1024, 128], 1 << 20))), &h200).contains("wgmma_depth")
    );
    let along = kernel(&depth(view(DType::F16, &[128, 1024], 1 << 20)), &h200);
    assert_eq!(along, "grouped_matmul_mma_64x64_any_f16");
}

#[test]
fn every_device_has_a_kernel() {
    for device in examples::all() {
        for dtype in DType::FLOATS {
            let (a, b) = (view(dtype, &[300, 64], 1 << 20), view(dtype, &[5, 64, 200], 1 << 30));
            let plan = choose(&posed(&a, &b, 5), &device, None);
            let launch = plan.main();
            assert!(launch.shared_bytes <= device.shared_bytes_per_block, "{launch}");
            assert!(launch.grid[0] > 0 && launch.kernel.name.starts_with("grouped_matmul_"), "{launch}");
        }
    }
}

#[test]
fn a_gate_is_one_launch_where_it_lies_as_b_does() {
    let h200 = examples::h200();
    let (a, b) = (view(DType::BF16, &[4096, 128], 1 << 20), view(DType::BF16, &[8, 128, 1024], 1 << 30));
    let gate = view(DType::BF16, &[8, 128, 1024], 1 << 35);
    let launches = |a: &TensorView, b: &TensorView, gate: &TensorView, device: &DeviceFacts| {
        let choice = choose(&with_gate(a, b, 8, Some(gate)), device, None);
        choice.launches.iter().map(|launch| launch.kernel.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(launches(&a, &b, &gate, &h200), ["grouped_matmul_wgmma_rows_128x256_gated_bf16"]);
    let (x, [y, z]) =
        (transposed(a.clone()), [1 << 30, 1 << 35].map(|at| view(DType::BF16, &[4096, 1024], at)));
    assert_eq!(launches(&x, &y, &z, &h200), ["grouped_matmul_wgmma_depth_128x256_gated_bf16"]);
    let other = transposed(view(DType::BF16, &[8, 1024, 128], 1 << 35));
    assert_eq!(launches(&a, &b, &other, &h200).len(), 2);
    let one_for_all = TensorView { strides: smallvec![0, 1024, 1], ..gate.clone() };
    assert_eq!(launches(&a, &b, &one_for_all, &h200).len(), 2);
    for device in examples::all() {
        for dtype in DType::FLOATS {
            let [a, b, gate] = [&a, &b, &gate].map(|x| TensorView { dtype, ..x.clone() });
            let choice = choose(&with_gate(&a, &b, 8, Some(&gate)), &device, None);
            let wide = if dtype == DType::F64 { 8 } else { 4 } * 4096 * 1024;
            let workspace = if choice.launches.len() == 2 { wide } else { 0 };
            assert_eq!(choice.workspace, workspace, "{device:?} {dtype}");
        }
    }
}

#[test]
fn there_are_never_more_tiles_than_blocks() {
    let (a, b) = (view(DType::F32, &[100, 8], 1 << 20), view(DType::F32, &[7, 8, 65], 1 << 30));
    // 100 rows in 7 groups and a rest: at most 1 whole tile, and 7 or 8 partial ones, of two columns.
    assert_eq!(most_tiles(&posed(&a, &b, 7), (64, 64)), (1 + 8) * 2);
}

fn products(sizes: &[(i64, i64, i64)]) -> Vec<MatmulProblem> {
    let one =
        |&(m, n, k): &(i64, i64, i64)| crate::cuda::plan::matmul::tests::problem(DType::BF16, 1, m, k, n);
    sizes.iter().map(one).collect()
}

/// The kernels of a list of products of m x k by k x n, by file, with how many products each has.
fn listed(
    sizes: &[(i64, i64, i64)],
    device: &DeviceFacts,
    forced: Option<Forced>,
) -> Vec<(&'static str, u64)> {
    launched(products(sizes), device, forced)
}

fn launched(
    products: Vec<MatmulProblem>,
    device: &DeviceFacts,
    forced: Option<Forced>,
) -> Vec<(&'static str, u64)> {
    let problem = ListedMatmulProblem { products };
    let count = |launch: &Launch| launch.settings.iter().find(|setting| setting.0 == "products").map(|s| s.1);
    let choice = listed::choose(&problem, device, forced);
    choice.launches.iter().map(|launch| (launch.kernel.file, count(launch).unwrap_or(1))).collect()
}

#[test]
fn products_of_a_list_share_launches_where_that_is_sooner() {
    let (h200, list) = (examples::h200(), "grouped_matmul_wgmma_list");
    let experts = [(256, 4096, 4096); 8];
    assert_eq!(listed(&experts, &h200, None), [(list, 8)]);
    assert_eq!(listed(&[(512, 512, 512); 40], &h200, None), [(list, 16), (list, 16), (list, 8)]);
    // Each alone fills the device.
    assert_eq!(listed(&[(8192, 8192, 8192); 2], &h200, None), [("matmul_wgmma", 1); 2]);
    assert_eq!(listed(&experts[..1], &h200, None), [("matmul_wgmma", 1)]);
    // With small ones, and one whose rows begin between multiples of 16 bytes.
    let mixed = [(64, 64, 64), (512, 512, 512), (512, 512, 511), (512, 512, 512), (64, 64, 64)];
    assert_eq!(listed(&mixed, &h200, None)[0], (list, 4));
    let many_small = [&mixed[1..2], &[(64, 64, 64); 20], &mixed[3..4]].concat();
    assert_eq!(listed(&many_small, &h200, None), [("matmul_mma", 20), (list, 2)]);
    assert_eq!(listed(&[(256, 256, 256); 4], &h200, None), [(list, 4)]);
    assert_eq!(listed(&[(128, 128, 128); 4], &h200, None), [("matmul_mma", 4)]);
    for device in examples::all().iter().filter(|device| device.compute_capability != (9, 0)) {
        assert_eq!(listed(&experts, device, None).len(), 8);
    }
}

#[test]
fn products_with_gates_share_launches_where_those_lie_as_b_does() {
    let (h200, list) = (examples::h200(), "grouped_matmul_wgmma_list");
    let gated = |sizes: &[(i64, i64, i64)]| {
        let gate = |x: &MatmulProblem| Some(Matrix { address: x.b.address + (1 << 40), ..x.b.clone() });
        let all = products(sizes).into_iter();
        all.map(|x| MatmulProblem { gate: gate(&x), ..x }).collect::<Vec<_>>()
    };
    let experts = [(256, 4096, 4096); 8];
    assert_eq!(launched(gated(&experts), &h200, None), [(list, 8)]);
    assert_eq!(launched(gated(&[(128, 128, 128); 20]), &h200, None), [(list, 16), (list, 4)]);
    let mut some = gated(&experts);
    let gate = some[3].gate.as_mut().unwrap();
    (gate.row_stride, gate.col_stride) = (1, 4096);
    let left = [("matmul_mma", 1), ("matmul_mma", 1), ("matmul_wgmma", 1)];
    assert_eq!(launched(some, &h200, None), [&[(list, 6)], &left[..]].concat());
    for device in examples::all().iter().filter(|device| device.compute_capability != (9, 0)) {
        assert_eq!(launched(gated(&experts), device, None).len(), 16);
    }
}

#[test]
fn a_tile_of_lists_can_be_asked_for() {
    let h200 = examples::h200();
    let asked = |name: &str| {
        let tile = wgmma::TILES.iter().position(|tile| tile.name == name);
        Some(Forced::Wgmma(wgmma::Overrides { tile, ..wgmma::Overrides::default() }))
    };
    let small = [(64, 64, 64); 3];
    for name in ["128x256", "128x128", "64x128"] {
        assert_eq!(listed(&small, &h200, asked(name)), [("grouped_matmul_wgmma_list", 3)]);
    }
    assert_eq!(listed(&small, &h200, asked("64x64")), [("matmul_wgmma", 1); 3]);
    assert_eq!(listed(&small, &h200, asked("")), [("matmul_wgmma", 1); 3]);
}
