//! What is chosen for which problem on which GPU.

use super::*;
use crate::cuda::device::examples;
use crate::cuda::plan::{LaunchPlan, host_cpp};
use crate::dtype::DType;
use crate::ops::Problem;
use crate::ops::matmul::{Bias, Precision};
use crate::tensor::{Device, Dims};

/// Row-major operands, none of which exists.
pub(super) fn problem(dtype: DType, batch: i64, m: i64, k: i64, n: i64) -> MatmulProblem {
    let matrix = |address, rows: i64, cols: i64| Matrix {
        address,
        row_stride: cols,
        col_stride: 1,
        batch_strides: if batch > 1 { Dims::from_slice(&[rows * cols]) } else { Dims::new() },
    };
    MatmulProblem {
        device: Device::Cuda(0),
        dtype,
        m,
        n,
        k,
        batch: if batch > 1 { Dims::from_slice(&[batch]) } else { Dims::new() },
        a: matrix(1 << 40, m, k),
        b: matrix(2 << 40, k, n),
        out: matrix(3 << 40, m, n),
        bias: None,
        gate: None,
        residual: None,
        residual_is_out: false,
        wide: None,
        kept: None,
        activation: Activation::None,
        precision: Precision::Ieee,
    }
}

fn plan(problem: &MatmulProblem, device: &DeviceFacts) -> LaunchPlan<MatmulParams> {
    super::plan(problem, blocks::Overrides::default(), device)
}

/// (dtype, (batch, m, k, n), kernel)
type Choice = (DType, (i64, i64, i64, i64), &'static str);

fn check(device: &DeviceFacts, choices: &[Choice]) {
    for &(dtype, (batch, m, k, n), kernel) in choices {
        let plan = plan(&problem(dtype, batch, m, k, n), device);
        let shape = format!("{}: {batch} x {m} x {k} x {n}", device.name);
        assert_eq!(plan.kernel.name, kernel, "{shape}");
        let p = &plan.params;
        assert!(plan.shared_bytes <= device.shared_bytes_per_block, "{shape}");
        assert_eq!(
            p.blocks,
            u64::from(p.order.tiles_m) * u64::from(p.order.tiles_n) * batch as u64,
            "{shape}"
        );
        let launched = u64::from(plan.grid[0]) * u64::from(plan.grid[1]);
        assert!(launched >= p.blocks && launched < p.blocks + u64::from(plan.grid[1]), "{shape}");
        assert!((1..=p.order.tiles_m).contains(&p.order.group_m), "{shape}");
    }
}

#[test]
fn choices() {
    use DType::{BF16, F16, F32, F64};
    check(
        &examples::h200(),
        &[
            (BF16, (1, 8192, 8192, 8192), "matmul_mma_128x256_kn_bf16"),
            (F16, (1, 4096, 4096, 4096), "matmul_mma_128x256_kn_f16"),
            (BF16, (1, 2048, 2048, 2048), "matmul_mma_128x256_kn_bf16"),
            (BF16, (1, 3072, 3072, 3072), "matmul_mma_192x192_kn_bf16"),
            (BF16, (1, 1536, 1536, 1536), "matmul_mma_96x192_kn_bf16"),
            (BF16, (1, 2304, 2304, 2304), "matmul_mma_128x192_kn_bf16"),
            (BF16, (1, 1024, 1024, 1024), "matmul_mma_64x64_kn_bf16"),
            (BF16, (1, 256, 256, 256), "matmul_mma_32x64_kn_bf16"),
            (BF16, (1, 16, 4096, 4096), "matmul_mma_32x64_kn_bf16"),
            (BF16, (1, 128, 4096, 4096), "matmul_mma_64x64_kn_bf16"),
            (BF16, (1, 4096, 4096, 1), "matmul_mma_32x64_kk_bf16"),
            (BF16, (64, 128, 64, 128), "matmul_mma_64x64_kn_bf16"),
            (BF16, (1, 4095, 4095, 4095), "matmul_mma_128x128_any_bf16"),
            (BF16, (1, 63, 63, 63), "matmul_mma_64x64_any_bf16"),
            (F32, (1, 4096, 4096, 4096), "matmul_simt_128x128_f32"),
            (F32, (1, 512, 512, 512), "matmul_simt_64x64_f32"),
            (F64, (1, 4096, 4096, 4096), "matmul_dmma_128x64_kn_f64"),
            (F64, (1, 1024, 1024, 1024), "matmul_dmma_64x64_kn_f64"),
            (F64, (1, 256, 256, 256), "matmul_dmma_64x32_kn_f64"),
            (F64, (1, 4095, 4095, 4095), "matmul_dmma_64x64_anykn_f64"),
        ],
    );
    check(
        &examples::a100(),
        &[
            (BF16, (1, 8192, 8192, 8192), "matmul_mma_128x256_kn_bf16"),
            (BF16, (1, 2048, 2048, 2048), "matmul_mma_128x192_kn_bf16"),
            (F64, (1, 4096, 4096, 4096), "matmul_dmma_128x64_kn_f64"),
        ],
    );
    // 99 KB of shared memory a block leave out the larger tiles.
    for device in [examples::l4(), examples::rtx5090()] {
        check(
            &device,
            &[
                (F16, (1, 8192, 8192, 8192), "matmul_mma_128x128_kn_f16"),
                (F16, (1, 256, 256, 256), "matmul_mma_32x64_kn_f16"),
                (F32, (1, 8192, 8192, 8192), "matmul_simt_128x128_f32"),
                (F64, (1, 8192, 8192, 8192), "matmul_simt_64x64_f64"),
            ],
        );
    }
    // Of tiles of 128 x 128, four would be left after three rounds of 340 blocks.
    check(&examples::rtx5090(), &[(F16, (1, 4096, 4096, 4096), "matmul_mma_64x64_kn_f16")]);
    check(
        &examples::t4(),
        &[
            (F16, (1, 4096, 4096, 4096), "matmul_simt_128x128_f16"),
            (BF16, (1, 16, 4096, 4096), "matmul_simt_64x64_bf16"),
        ],
    );
}

#[test]
fn a_tile_that_is_asked_for_is_taken_where_it_can_be() {
    let p = problem(DType::F16, 1, 512, 512, 512);
    for device in examples::all() {
        for tile in ["128x64", "64x64", "64x32"] {
            let p = problem(DType::F64, 1, 512, 512, 512);
            let asked = super::plan(&p, blocks::Overrides { tile: Some(tile), splits: None }, &device);
            let there = asked.kernel.name.contains(&format!("dmma_{tile}_"));
            let cores = [(8, 0), (9, 0)].contains(&device.compute_capability);
            assert_eq!(there, cores, "{tile} on {}", device.name);
        }
        for tile in blocks::TILE_NAMES.into_iter().filter(|tile| !["128x64", "64x32"].contains(tile)) {
            let asked = super::plan(&p, blocks::Overrides { tile: Some(tile), splits: None }, &device);
            let there = asked.kernel.name.contains(&format!("mma_{tile}_"));
            // 99 KB are too little for the large tiles' rings; tensor cores before 8.0 are not used at all.
            let room =
                device.shared_bytes_per_block >= 160 << 10 || ["128x128", "64x64", "32x64"].contains(&tile);
            assert_eq!(there, device.compute_capability >= (8, 0) && room, "{tile} on {}", device.name);
        }
    }
}

#[test]
fn layouts() {
    let base = problem(DType::F16, 1, 512, 256, 512);
    let layout = |p: &MatmulProblem| {
        let name = plan(p, &examples::h200()).kernel.name;
        name.split('_').nth(3).map(str::to_string).unwrap()
    };
    assert_eq!(layout(&base), "kn");
    let mut columns = base.clone();
    (columns.a.row_stride, columns.a.col_stride) = (1, 512);
    (columns.b.row_stride, columns.b.col_stride) = (1, 256);
    assert_eq!(layout(&columns), "mk");
    // Rows that do not all start on 16 bytes are read element by element; other strides do not matter.
    let at = 1 << 40;
    for (lead, address, expected) in [
        (264, at, "kn"),
        (260, at, "any"),
        (257, at, "any"),
        (256, at + 8, "any"),
        (256, at + 16, "kn"),
        (-256, at, "kn"),
        (0, at, "kn"),
    ] {
        let mut odd = base.clone();
        (odd.a.row_stride, odd.a.address) = (lead, address);
        assert_eq!(layout(&odd), expected, "{lead} {address:x}");
    }
    let mut reversed = base.clone();
    reversed.a.col_stride = -1;
    assert_eq!(layout(&reversed), "any");
    // A part of a vector at the end of every row.
    let mut misaligned = base.clone();
    misaligned.k = 255;
    assert_eq!(layout(&misaligned), "any");
    // float32 meets the tensor cores only where the caller permits and the layout allows.
    let mut floats = problem(DType::F32, 1, 1024, 1024, 1024);
    let kernel = |p: &MatmulProblem, device| plan(p, &device).kernel.name;
    assert_eq!(kernel(&floats, examples::a100()), "matmul_simt_64x64_f32");
    floats.precision = Precision::Tf32;
    assert_eq!(kernel(&floats, examples::a100()), "matmul_tf32_64x64_kn_f32");
    assert_eq!(kernel(&floats, examples::t4()), "matmul_simt_128x128_f32");
    floats.b.row_stride = 1025;
    assert_eq!(kernel(&floats, examples::a100()), "matmul_simt_64x64_f32");
    // Sums of parts of k would be where the residual is, so there is one part, as long as a part can be.
    let mut added = problem(DType::F64, 1, 512, 1024, 512);
    (added.residual, added.residual_is_out) = (Some(added.out.clone()), true);
    assert_eq!(kernel(&added, examples::h200()), "matmul_dmma_64x32_kn_f64");
    assert_eq!(plan(&added, &examples::h200()).params.part_k, i32::MAX as u32);
    added.k = 1 << 31;
    assert_eq!(kernel(&added, examples::h200()), "matmul_simt_64x64_f64");
    // Doubles that are copied alone go along the smaller stride.
    let mut doubles = problem(DType::F64, 1, 256, 256, 256);
    assert_eq!(layout(&doubles), "kn");
    doubles.b.row_stride = 257;
    assert_eq!(layout(&doubles), "anykn");
    (doubles.a.row_stride, doubles.a.col_stride) = (2, 513);
    (doubles.b.row_stride, doubles.b.col_stride) = (1, 256);
    assert_eq!(layout(&doubles), "anymk");
    // A dimension of size 1 has no stride worth looking at.
    let mut row = problem(DType::F16, 1, 1, 256, 512);
    row.a.row_stride = 3;
    assert_eq!(layout(&row), "kn");
    let mut batch = problem(DType::F16, 3, 512, 256, 512);
    batch.b.batch_strides[0] += 2;
    assert_eq!(layout(&batch), "any");
}

#[test]
fn a_result_by_columns_is_computed_transposed() {
    let mut p = problem(DType::BF16, 1, 512, 256, 1024);
    (p.out.row_stride, p.out.col_stride) = (1, 512);
    p.bias = Some(Bias { address: 4 << 40, stride: 1, row_stride: 0 });
    let transposed = plan(&p, &examples::h200());
    let q = &transposed.params;
    assert_eq!((q.m, q.n, q.k), (1024, 512, 256));
    assert_eq!((q.a, q.a_row, q.a_col), (p.b.address, 1, 1024));
    assert_eq!((q.b, q.b_row, q.b_col), (p.a.address, 1, 256));
    assert_eq!((q.out_row, q.out_col, q.out_vector), (512, 1, 1));
    assert_eq!((q.bias_row, q.bias_col), (1, 0));
    assert!(transposed.kernel.name.contains("_mk_"), "{transposed}");
    p.out.row_stride = 1025;
    p.out.col_stride = 1;
    let straight = plan(&p, &examples::h200());
    assert_eq!((straight.params.m, straight.params.bias_col, straight.params.out_vector), (512, 1, 0));
}

#[test]
fn extremes() {
    let mut many = problem(DType::F16, 1 << 33, 1, 1, 1);
    many.k = 0;
    let all = plan(&many, &examples::h200());
    assert_eq!(all.params.blocks, 1 << 33);
    assert_eq!(all.grid, [1_717_986_919, 5, 1]);
    let long = plan(&problem(DType::F16, 1, 1 << 36, 8, 1), &examples::h200());
    assert_eq!(
        u64::from(long.params.order.tiles_m) * u64::from(long.params.order.tiles_n),
        long.params.blocks
    );
    // More batch dimensions than most kernels take.
    for (dtype, precision, kernel) in [
        (DType::F64, Precision::Ieee, "matmul_simt_64x64_f64"),
        (DType::F32, Precision::Tf32, "matmul_simt_128x128_f32"),
        (DType::BF16, Precision::Ieee, "matmul_mma_128x128_any_bf16"),
    ] {
        let mut deep = problem(dtype, 1, 8, 8, 8);
        deep.precision = precision;
        deep.batch = Dims::from_elem(2, 40);
        for matrix in [&mut deep.a, &mut deep.b, &mut deep.out] {
            matrix.batch_strides = Dims::from_elem(64, 40);
        }
        let plan = plan(&deep, &examples::h200());
        assert_eq!((plan.params.batch_rank, plan.params.blocks), (40, 1 << 40));
        assert_eq!(plan.kernel.name, kernel);
    }
}

/// Everything about kernels/common/shared_tile.cuh that can be enumerated, for every shape in use.
#[test]
fn shared_memory_has_room_for_all_and_no_bank_conflicts() {
    host_cpp::run(
        r#"
#include <cstdio>
#include <cstdlib>
#include <set>
#include "shared_tile.cuh"

void check(bool good, const char* what) {
    if (!good) std::puts(what), std::exit(1);
}
// Eight 16-byte accesses are served at once if they lie in eight different groups of four banks.
bool together(const int (&offsets)[8]) {
    std::set<int> groups;
    for (int offset : offsets) groups.insert(offset / 16 % 8);
    return groups.size() == 8;
}
// A warp's part of the tile is WARP wide.
template <int MN, int BK, int WARP, int SIZE, Major MAJOR> void tile() {
    using S = SharedTile<MN, BK, SIZE, MAJOR>;
    std::set<int> elements;
    for (int mn = 0; mn < MN; ++mn)
        for (int k = 0; k < BK; ++k) elements.insert(S::element(mn, k));
    check(int(elements.size()) == MN * BK && *elements.begin() == 0 && *elements.rbegin() == S::BYTES - SIZE,
          "elements overlap or leave the tile");
    const int columns = S::VECTORS & -S::VECTORS;  // that neighbouring threads copy, before they go on with the next row
    for (int column = 0; column < S::VECTORS; column += columns)
        for (int first = 0; first < S::ROWS * columns; first += 8) {
            int written[8];
            for (int t = 0; t < 8; ++t)
                written[t] = S::offset((first + t) / columns, column + (first + t) % columns);
            check(together(written), "copies have bank conflicts");
        }
    const int steps = S::steps(WARP / 16), cycle = S::cycle(steps);
    for (int matrix = 0; matrix < 4; ++matrix)
        for (Side side : {Side::A, Side::B})
            for (int first = 0; first < MN; first += WARP)
                for (int i = 0; i < WARP / 16; ++i)
                    for (int j = 0; j < BK / (2 * S::EACH); ++j) {
                        const int mn_half = side == Side::A ? matrix % 2 : matrix / 2;
                        const int k_half = side == Side::A ? matrix / 2 : matrix % 2;
                        const int mn = first + 16 * i + 8 * mn_half, k = S::EACH * (2 * j + k_half);
                        int read[8];
                        std::set<int> banks;
                        for (int row = 0; row < 8; ++row) {
                            const int base = first + 16 * steps * (i / steps % cycle);
                            const int start = S::fragment(side, base, matrix * 8 + row);
                            read[row] = S::step(start, i % steps, j) + i / steps / cycle * S::CYCLE_BYTES;
                            const int want = MAJOR == Major::K ? S::element(mn + row, k) : S::element(mn, k + row);
                            check(read[row] == want || !S::TRANSPOSABLE, "a lane points elsewhere");
                        }
                        check(together(read) || !S::TRANSPOSABLE, "ldmatrix has bank conflicts");
                        for (int lane = 0; lane < 32 && !S::TRANSPOSABLE; ++lane) {
                            const int at = S::half(S::step(S::fragment(side, first, lane), i, j), mn_half, k_half);
                            check(at == S::element(mn + lane / 4, k + lane % 4), "a lane reads elsewhere");
                            banks.insert(at / 4 % 32);
                        }
                        check(banks.size() == 32 || S::TRANSPOSABLE, "lanes have bank conflicts");
                    }
}
template <int MN, int BK, int WARP> void both() {
    tile<MN, BK, WARP, 2, Major::K>();
    tile<MN, BK, WARP, 2, Major::MN>();
    tile<MN, BK / 2, WARP, 4, Major::K>();
    tile<MN, BK / 2, WARP, 4, Major::MN>();
}
// Of doubles: what a lane reads for a fragment of 16 by 8, two vectors along the unit stride.
template <int MN, Major MAJOR> void doubles() {
    using S = DoubleTile<MN, 16, MAJOR>;
    std::set<int> elements;
    for (int mn = 0; mn < MN; ++mn)
        for (int k = 0; k < 16; ++k) elements.insert(S::element(mn, k));
    check(int(elements.size()) == MN * 16 && *elements.begin() == 0 && *elements.rbegin() == S::BYTES - 8,
          "doubles overlap or leave the tile");
    for (int first = 0; first < S::ROWS * S::VECTORS; first += 8) {
        int written[8];
        for (int t = 0; t < 8; ++t) written[t] = S::offset((first + t) / S::VECTORS, (first + t) % S::VECTORS);
        check(together(written), "copies of doubles have bank conflicts");
    }
    for (int i = 0; i < MN / 16; ++i)
        for (int j = 0; j < 2; ++j)
            for (int second = 0; second < 2; ++second)
                for (int lanes = 0; lanes < 32; lanes += 8) {
                    int read[8];
                    for (int lane = lanes; lane < lanes + 8; ++lane) {
                        const int mn = i * 16 + lane / 4 * 2, k = j * 8 + lane % 4 * 2;
                        const int at = S::step(S::fragment(i / 2 * 32, lane), i % 2, j) + second * S::ROW_BYTES;
                        read[lane % 8] = at;
                        check(MAJOR == Major::K ? at == S::element(mn + second, k) && at + 8 == S::element(mn + second, k + 1)
                                                : at == S::element(mn, k + second) && at + 8 == S::element(mn + 1, k + second),
                              "a lane reads other doubles");
                    }
                    check(together(read), "reads of doubles have bank conflicts");
                }
}
int main() {
    doubles<128, Major::K>(), doubles<128, Major::MN>(), doubles<64, Major::K>(), doubles<64, Major::MN>();
    doubles<32, Major::K>(), doubles<32, Major::MN>();
    both<128, 64, 64>(), both<256, 64, 64>(), both<128, 32, 64>(), both<128, 32, 32>();
    both<64, 64, 32>(), both<64, 64, 16>(), both<32, 64, 32>(), both<64, 32, 32>(), both<64, 32, 16>();
    tile<64, 128, 16, 2, Major::K>(), tile<64, 128, 16, 2, Major::MN>(), tile<16, 128, 16, 2, Major::K>();
    tile<16, 64, 16, 2, Major::K>();
    tile<192, 64, 48, 2, Major::K>(), tile<192, 64, 48, 2, Major::MN>();
    tile<192, 64, 96, 2, Major::K>(), tile<192, 64, 96, 2, Major::MN>();
    tile<96, 64, 48, 2, Major::K>(), tile<96, 64, 48, 2, Major::MN>();
}
"#,
    );
}

/// Launches without addresses, placed, are those that would be planned there: by every route.
#[test]
fn launches_are_placed_where_they_would_be_planned() {
    const WORKSPACE: usize = 5 << 40;
    let shapes = [
        (1, 64, 96, 80),
        (1, 4096, 4096, 4096),
        (3, 130, 70, 264),
        (1, 8, 4096, 4096),
        (2, 255, 255, 255),
        (1, 4095, 4095, 4095),
        (2, 250, 4096, 130),
    ];
    let mut routes = [0; 9];
    let ieee = DType::FLOATS.map(|dtype| (dtype, Precision::Ieee));
    let dtypes = || ieee.into_iter().chain([(DType::F32, Precision::Tf32)]);
    for (device, (dtype, precision)) in
        examples::all().iter().flat_map(|d| dtypes().map(move |dtype| (d, dtype)))
    {
        for ((shape, transposed), off) in
            shapes.iter().flat_map(|s| [(s, false), (s, true)]).zip([0, 2, 16].into_iter().cycle())
        {
            let &(batch, m, k, n) = shape;
            let mut p = MatmulProblem { precision, ..problem(dtype, batch, m, k, n) };
            p.a.address += off * dtype.size();
            p.bias = Some(Bias { address: (4 << 40) + dtype.size(), stride: 1, row_stride: 0 });
            if transposed {
                (p.out.row_stride, p.out.col_stride) = (1, m);
            }
            let mut addresses = p.addresses();
            addresses.push(WORKSPACE);
            let choice = choose(&p, device, None);
            let of = |i: usize| &choice.launches[i];
            match route(&p, device, None) {
                Route::Blocks(overrides) => {
                    routes[0] += 1;
                    assert_eq!(choice.plan(&p, WORKSPACE), super::plan(&p, overrides, device));
                }
                Route::Skinny(skinny) => {
                    routes[1] += 1;
                    let planned = skinny.launches(&p, device, WORKSPACE);
                    assert_eq!(choice.plan(&p, WORKSPACE), planned.multiply);
                    assert_eq!(choice.launches.len(), 1 + usize::from(planned.reduce.is_some()));
                    planned.reduce.iter().for_each(|plan| assert_eq!(of(1).typed(&addresses), *plan));
                }
                Route::Copied(copied) => {
                    routes[2] += 1;
                    let planned = copied.launches(&p, device, WORKSPACE);
                    assert_eq!(of(0).typed(&addresses), planned.repack);
                    assert_eq!(choice.plan(&p, WORKSPACE), planned.multiply);
                }
                Route::SplitK(split) => {
                    routes[7] += 1;
                    let planned = split.launches(&p, device, WORKSPACE);
                    assert_eq!(choice.plan(&p, WORKSPACE), planned.multiply);
                    assert_eq!(of(1).typed(&addresses), planned.reduce);
                }
                Route::Bf16x6(bf16x6) => {
                    routes[4] += 1;
                    let planned = bf16x6.launches(&p, device, WORKSPACE);
                    assert_eq!(of(0).typed(&addresses), planned.split);
                    assert_eq!(choice.plan(&p, WORKSPACE), planned.multiply);
                    assert_eq!(choice.main().maps.len(), 2);
                    let last = choice.launches.len() - 1;
                    planned.reduce.iter().for_each(|plan| assert_eq!(of(last).typed(&addresses), *plan));
                }
                Route::Bf16x6Few(few) => {
                    routes[6] += 1;
                    assert_eq!(choice.plan(&p, WORKSPACE), few.launch(&p, device).plan);
                }
                Route::WgmmaFew(few) => {
                    routes[8] += 1;
                    assert_eq!(choice.plan(&p, WORKSPACE), few.launch(&p, device).plan);
                    assert_eq!(choice.main().maps.len(), 4);
                }
                route @ (Route::Wgmma(_) | Route::Tf32(_)) => {
                    let planned = match route {
                        Route::Wgmma(choice) => {
                            routes[3] += 1;
                            choice.launches(&p, device, WORKSPACE)
                        }
                        Route::Tf32(choice) => {
                            routes[5] += 1;
                            choice.launches(&p, device, WORKSPACE)
                        }
                        _ => unreachable!(),
                    };
                    planned.repack.iter().for_each(|plan| assert_eq!(of(0).typed(&addresses), *plan));
                    assert_eq!(choice.plan(&p, WORKSPACE), planned.multiply);
                    let last = choice.launches.len() - 1;
                    planned.reduce.iter().for_each(|plan| assert_eq!(of(last).typed(&addresses), *plan));
                    let placed = choice.main().maps.iter();
                    let placed = placed.map(|map| map.spec.at(map.relocation.address(&addresses) as usize));
                    assert_eq!(
                        placed.collect::<Vec<_>>(),
                        planned.maps.into_iter().flatten().collect::<Vec<_>>()
                    );
                }
            }
        }
    }
    assert!(routes.iter().all(|&count| count > 0), "{routes:?}");
}

#[test]
fn a_gate_is_in_one_kernel_where_it_can_be_read_as_b_is() {
    let kernels = |p: &MatmulProblem, device: &DeviceFacts| {
        let choice = choose(p, device, None);
        let names: Vec<_> = choice.launches.iter().map(|launch| launch.kernel.name.clone()).collect();
        (names, choice.workspace)
    };
    let gated = |dtype| {
        let p = problem(dtype, 1, 4096, 256, 1024);
        MatmulProblem { gate: Some(Matrix { address: 5 << 40, ..p.b.clone() }), ..p }
    };
    let (names, workspace) = kernels(&gated(DType::BF16), &examples::h200());
    assert!(names.len() == 1 && names[0].contains("_gated_") && workspace == 0, "{names:?}");
    let mut other = gated(DType::BF16);
    other.gate = Some(Matrix { address: 5 << 40, row_stride: 1, col_stride: 256, ..other.b.clone() });
    for (p, device) in [
        (other, examples::h200()),
        (gated(DType::F16), examples::a100()),
        (gated(DType::F64), examples::h200()),
    ] {
        let sum_bytes = if p.dtype == DType::F64 { 8 } else { 4 };
        let (names, workspace) = kernels(&p, &device);
        assert!(names.len() >= 2 && workspace >= 4096 * 1024 * sum_bytes, "{names:?} {workspace}");
    }
}

#[test]
fn no_sums_are_left_where_the_residual_still_is() {
    let mut p = problem(DType::F32, 1, 4096, 4096, 4096);
    assert!(plan(&p, &examples::a100()).kernel.name.contains("128x128"));
    p.residual = Some(p.out.clone());
    p.residual_is_out = true;
    assert!(plan(&p, &examples::a100()).kernel.name.contains("64x64"));
}
