//! Which tiles and splits are chosen, and that what is launched fits the device and covers the result.

use super::*;
use crate::cuda::device::examples;
use crate::cuda::plan::host_cpp;
use crate::cuda::plan::matmul::tests::problem;
use crate::ops::matmul::{Activation, Bias, MatmulProblem};
use crate::tensor::Dims;

fn bf16(m: i64, n: i64, k: i64) -> MatmulProblem {
    problem(DType::BF16, 1, m, k, n)
}

fn chosen(p: &MatmulProblem, overrides: Overrides) -> (WgmmaChoice, Launches) {
    let device = examples::h200();
    let choice = choose(p, &device, overrides).unwrap();
    let launches = choice.launches(p, &device, 1 << 50);
    (choice, launches)
}

#[test]
fn a_residual_by_the_copy_engine_has_a_kernel_without_activations() {
    let name = |row_stride: i64, activation| {
        let x = bf16(4096, 4096, 4096);
        let residual = Some(Matrix { address: 5 << 40, row_stride, ..x.out.clone() });
        let (_, launches) = chosen(&MatmulProblem { residual, activation, ..x }, Overrides::default());
        assert_eq!(launches.maps[5].is_some(), launches.multiply.params.addends.residual_vector == 2);
        launches.multiply.kernel.name
    };
    assert_eq!(name(4096, Activation::None), "matmul_wgmma_128x256_plain_residual_bf16");
    assert_eq!(name(4096, Activation::Relu), "matmul_wgmma_128x256_residual_bf16");
    // Rows that begin between multiples of 16 bytes, and one row for all.
    assert_eq!(name(4097, Activation::None), "matmul_wgmma_128x256_residual_bf16");
    assert_eq!(name(0, Activation::None), "matmul_wgmma_128x256_residual_bf16");
}

/// ((m, n, k), tile, parts of k, blocks that share operands) on an H200.
type Row = ((i64, i64, i64), &'static str, u32, &'static str);

#[test]
fn choices() {
    let table: [Row; 24] = [
        ((512, 512, 512), "64x64", 1, "1x1"),
        ((1024, 1024, 1024), "64x128", 1, "1x1"),
        ((1536, 1536, 1536), "192x96", 1, "1x1"),
        ((2048, 2048, 2048), "256x128", 1, "1x1"),
        ((3072, 3072, 3072), "192x192", 1, "1x1"),
        ((4096, 4096, 4096), "128x256", 1, "1x1"),
        ((8192, 8192, 8192), "128x192", 1, "1x1"),
        ((512, 4096, 4096), "128x128", 1, "1x1"),
        ((512, 14336, 4096), "128x224", 1, "1x1"),
        ((256, 14336, 4096), "128x224", 1, "1x1"),
        ((256, 7168, 2048), "128x112", 1, "2x1"),
        ((512, 7168, 2048), "128x224", 1, "1x1"),
        ((4096, 14336, 4096), "128x256", 1, "1x1"),
        ((4096, 2112, 7168), "128x176", 1, "2x1"),
        ((32768, 768, 768), "128x128pingpong", 1, "1x1"),
        ((512, 512, 65536), "128x128", 8, "1x1"),
        ((16, 4096, 4096), "64x64", 2, "1x1"),
        ((64, 4096, 4096), "64x64", 2, "1x1"),
        ((64, 14336, 4096), "64x128", 1, "1x1"),
        ((1, 4096, 14336), "64x64", 2, "1x1"),
        // Rows that are no whole lines of the caches take twice the loads.
        ((1000, 1000, 1000), "64x128", 1, "2x1"),
        ((3000, 3000, 3000), "192x192", 1, "2x1"),
        ((4104, 4104, 4104), "128x224", 1, "2x1"),
        // Copies are.
        ((2047, 2047, 2047), "256x128", 1, "1x1"),
    ];
    let choices = table.map(|((m, n, k), ..)| {
        let (choice, _) = chosen(&bf16(m, n, k), Overrides::default());
        ((m, n, k), choice.tile.name, choice.splits, choice.cluster.to_string())
    });
    assert_eq!(choices, table.map(|(size, tile, splits, cluster)| (size, tile, splits, cluster.to_string())));
}

#[test]
fn every_tile_fits_and_covers_every_shape() {
    let device = examples::h200();
    for (tile, shape) in TILES.iter().enumerate() {
        for (m, n, k) in
            [(1, 1, 1), (17, 65, 63), (129, 257, 65), (1000, 3000, 640), (70_000, 8, 8), (8, 70_000, 9000)]
        {
            let k_blocks = (k as u64).div_ceil(BLOCK_K) as u32;
            let clusters = TileCluster::ALL.into_iter().filter(|&cluster| shape.can_share(cluster));
            let asked = clusters.flat_map(|cluster| [1, 3].map(|splits| (Some(splits), Some(cluster))));
            let asked = asked.chain([(None, None), (Some(4), None)]);
            for (splits, cluster) in asked.filter(|(splits, _)| *splits <= Some(1) || shape.can_split()) {
                let p = bf16(m, n, k);
                let overrides = Overrides { tile: Some(tile), splits, cluster, group_m: None };
                let (choice, launches) = chosen(&p, overrides);
                let (plan, what) = (&launches.multiply, format!("{} {m}x{n}x{k} {overrides:?}", shape.name));
                let (q, order) = (&plan.params, &plan.params.order);
                assert!(plan.shared_bytes <= device.shared_bytes_per_block, "{what}");
                let resident = (plan.shared_bytes + 1024) * choice.resident;
                assert!(resident <= device.shared_bytes_per_multiprocessor, "{what}");
                assert!((2..=MAX_STAGES).contains(&q.stages), "{what}: {} stages", q.stages);
                let own = TileCluster::unpacked(q.cluster);
                assert_eq!(cluster.unwrap_or(own), own, "{what}");
                let [rows, columns] =
                    [(order.tiles_m, own.rows, shape.m()), (order.tiles_n, own.columns, shape.n)]
                        .map(|(clusters, blocks, size)| u64::from(clusters * blocks) * u64::from(size));
                assert!(rows >= m as u64 && columns >= n as u64, "{what}");
                let [.., rows_beyond, columns_beyond] = q.cluster.to_le_bytes().map(u64::from);
                let beyond = |covered: u64, size: i64, tile: u32| (covered - size as u64) / u64::from(tile);
                assert_eq!(rows_beyond, beyond(rows, m, shape.m()), "{what}");
                assert_eq!(columns_beyond, beyond(columns, n, shape.n), "{what}");
                assert!((1..=order.tiles_m).contains(&order.group_m), "{what}");
                // A part without a block of k would never be written.
                assert!((1..=k_blocks).contains(&q.splits) && q.split_blocks > 0, "{what}");
                assert_eq!(q.split_blocks * q.splits + q.longer_splits, k_blocks, "{what}");
                assert_eq!(splits.map(|s| s.min(k_blocks)).unwrap_or(q.splits), q.splits, "{what}");
                assert!((1..=q.items * plan.cluster).contains(&plan.grid[0]), "{what}");
                assert_eq!(plan.grid[0] % plan.cluster, 0, "{what}");
                let may_be_cluster = cluster.is_none()
                    && shape.has_cluster_splitk
                    && own.is_alone()
                    && [2, 4, 8].contains(&q.splits);
                assert!(
                    q.cluster_splitk() == may_be_cluster || splits.is_none() && !q.cluster_splitk(),
                    "{what}"
                );
                let sums = choice.tile.m() * (choice.tile.n + 8) * 4;
                assert!(!q.cluster_splitk() || sums <= q.stages * choice.tile.stage_bytes(), "{what}");
                assert_eq!(launches.reduce.is_some(), q.splits > 1 && !q.cluster_splitk(), "{what}");
            }
        }
    }
}

/// Bytes of every box, as the copy engine counts them, against what the kernel is told to wait for.
#[test]
fn stages_wait_for_what_arrives() {
    for (tile, shape) in TILES.iter().enumerate() {
        for (m, n, k) in [(1, 1, 1), (5, 3000, 64), (3000, 72, 100), (512, 512, 512)] {
            let clusters = TileCluster::ALL.into_iter().filter(|&cluster| shape.can_share(cluster));
            for (a_mn, b_mn, cluster) in clusters
                .flat_map(|cluster| (0..4).map(move |bits: u32| (bits & 1 == 1, bits & 2 == 2, cluster)))
            {
                let asked = Overrides { tile: Some(tile), cluster: Some(cluster), ..Overrides::default() };
                let mut p = bf16(m, n, k);
                let lead = |size: i64| (size as u64).next_multiple_of(8) as i64;
                (p.a.row_stride, p.a.col_stride) = if a_mn { (1, lead(m)) } else { (lead(k), 1) };
                (p.b.row_stride, p.b.col_stride) = if b_mn { (lead(n), 1) } else { (1, lead(k)) };
                let (_, launches) = chosen(&p, asked);
                let q = &launches.multiply.params;
                let boxes = |i: usize, mn_major: u32, boxes: u32| {
                    let r#box = launches.maps[i].unwrap().r#box;
                    let tail = launches.maps[2].filter(|_| i == 1 && mn_major == 1).map(|tail| tail.r#box);
                    let whole = boxes - u32::from(tail.is_some());
                    let tail_bytes = tail.map_or(0, |tail| tail[0] * tail[1] * 2);
                    r#box[0] * r#box[1] * 2 * if mn_major == 1 { whole } else { 1 } + tail_bytes
                };
                // Boxes of their own, of those that can be counted out, or parts of each.
                let parts = |mn_major: u32, rows: u32, sharing: u32| {
                    if mn_major == 1 && rows.is_multiple_of(64 * sharing) { 1 } else { sharing }
                };
                let arriving = boxes(0, q.a_mn, shape.m() / 64) * parts(q.a_mn, shape.m(), cluster.columns)
                    + boxes(1, q.b_mn, shape.boxes()) * parts(q.b_mn, shape.n, cluster.rows);
                assert_eq!(
                    u32::from(q.a_stage_bytes) + u32::from(q.b_stage_bytes),
                    arriving,
                    "{} {m}x{n}x{k} {a_mn} {b_mn} {cluster}",
                    shape.name
                );
                assert!(arriving <= shape.stage_bytes());
                // The permutation of a box repeats every eight rows.
                assert_eq!([0, 1].map(|i| launches.maps[i].unwrap().r#box[1] % 8), [0; 2]);
            }
        }
    }
}

/// Rows outside of the matrix take the copy engine longer than those within.
#[test]
fn the_last_tiles_load_what_there_is() {
    let tile = TILES.iter().position(|tile| tile.name == "128x128");
    let tails = |p: &MatmulProblem, cluster| {
        let (_, launches) = chosen(p, Overrides { tile, splits: Some(1), cluster, group_m: None });
        let q = &launches.multiply.params;
        let boxes = [6, 2].map(|i: usize| launches.maps[i].map(|map| (map.r#box[0], map.r#box[1])));
        (boxes, [q.a_tail_bytes, q.b_tail_bytes].map(|bytes| u32::from(bytes) / ROW_BYTES))
    };
    let (alone, pair) = (Some(TileCluster::ALONE), Some(TileCluster::PAIR));
    let mut p = bf16(200, 300, 64);
    (p.b.row_stride, p.b.col_stride) = (1, 64);
    assert_eq!(tails(&p, alone), ([Some((64, 72)), Some((64, 48))], [72, 48]));
    // Half of b's rows for each of two blocks below each other, and 16 for both at least.
    p.n = 259;
    assert_eq!(tails(&p, alone), ([Some((64, 72)), Some((64, 8))], [72, 8]));
    assert_eq!(tails(&p, pair), ([Some((64, 72)), Some((64, 8))], [72, 16]));
    // A tile of the last cluster lies beyond the result.
    p.m = 300;
    assert_eq!(tails(&p, pair), ([Some((64, 48)), Some((64, 8))], [48, 16]));
    // A quarter of a's rows for each block; half of a's and half of b's.
    let four = |rows, columns| Some(TileCluster { rows, columns });
    assert_eq!(tails(&p, four(1, 4)), ([Some((64, 16)), Some((64, 8))], [64, 8]));
    assert_eq!(tails(&p, four(2, 2)), ([Some((64, 24)), Some((64, 8))], [48, 16]));
    // Whole tiles, and one tile, have no other map.
    (p.m, p.n) = (256, 100);
    assert_eq!(tails(&p, alone), ([None, None], [128, 104]));
    // By rows, whole boxes of 64 columns.
    let mut p = bf16(200, 300, 64);
    (p.a.row_stride, p.a.col_stride) = (1, 200);
    (p.b.row_stride, p.b.col_stride) = (304, 1);
    assert_eq!(tails(&p, alone), ([None, None], [128, 64]));
    p.m = 190;
    assert_eq!(tails(&p, alone), ([None, None], [64, 64]));
    // A gate has no second map for its last tile.
    let mut p = bf16(200, 300, 64);
    (p.b.row_stride, p.b.col_stride) = (1, 64);
    p.gate = Some(p.b.clone());
    assert_eq!(tails(&p, alone), ([Some((64, 72)), None], [72, 128]));
}

#[test]
fn parts_meet_where_there_are_few_rows_or_columns() {
    let cluster_splitk = |m, n, k| {
        let (choice, launches) = chosen(&bf16(m, n, k), Overrides::default());
        let plan = &launches.multiply;
        assert_eq!(choice.workspace_bytes(&bf16(m, n, k)) == 0, launches.reduce.is_none());
        assert_eq!(plan.cluster, if plan.params.cluster_splitk() { plan.params.splits } else { 1 });
        (plan.params.cluster_splitk(), plan.params.splits)
    };
    assert_eq!(cluster_splitk(1, 4096, 14336), (true, 2));
    assert_eq!(cluster_splitk(4096, 16, 14336), (true, 2));
    assert_eq!(cluster_splitk(16, 2048, 8192), (true, 4));
    assert_eq!(cluster_splitk(16, 32000, 4096), (false, 1));
    assert_eq!(cluster_splitk(512, 512, 65536), (false, 8));
}

#[test]
fn what_one_row_or_column_of_tiles_reads_is_read_once() {
    let read_once = |m, n| {
        let (_, launches) = chosen(&bf16(m, n, 4096), Overrides::default());
        [0, 1].map(|i| launches.maps[i].unwrap().read_once)
    };
    assert_eq!(read_once(16, 4096), [false, true]);
    assert_eq!(read_once(4096, 16), [true, false]);
    assert_eq!(read_once(16, 16), [true, true]);
    assert_eq!(read_once(2048, 2048), [false, false]);
    // Other products read a broadcast operand again.
    let mut shared = problem(DType::BF16, 8, 16, 4096, 4096);
    shared.b.batch_strides[0] = 0;
    let (_, launches) = chosen(&shared, Overrides::default());
    assert!(!launches.maps[1].unwrap().read_once);
}

#[test]
fn what_cannot_be_addressed_is_copied_first() {
    let copied = |p: &MatmulProblem| {
        let (choice, launches) = chosen(p, Overrides::default());
        assert_eq!(launches.repack.is_some(), choice.copies != [None, None]);
        for spec in launches.maps[..2].iter() {
            let spec = spec.unwrap();
            assert_eq!(spec.address % ALIGNMENT, 0);
            assert!(
                spec.strides[..spec.rank - 1].iter().all(|s| s % 16 == 0 && (1..STRIDE_LIMIT).contains(s)),
                "{spec:?}"
            );
        }
        choice.copies.map(|copy| copy.is_some())
    };
    assert_eq!(copied(&bf16(512, 512, 256)), [false, false]);
    // Only strides and bases matter to the copy engine, not sizes.
    let mut padded = bf16(513, 511, 255);
    (padded.a.row_stride, padded.b.row_stride) = (256, 512);
    assert_eq!(copied(&padded), [false, false]);
    assert_eq!(copied(&bf16(513, 511, 255)), [true, true]);
    let mut based = bf16(512, 512, 256);
    based.a.address += 2;
    assert_eq!(copied(&based), [true, false]);
    let mut reversed = bf16(512, 512, 256);
    reversed.b.col_stride = -1;
    assert_eq!(copied(&reversed), [false, true]);
    let mut expanded = bf16(512, 512, 256);
    expanded.a.row_stride = 0;
    assert_eq!(copied(&expanded), [true, false]);
    let mut batch = problem(DType::F16, 3, 512, 256, 512);
    batch.b.batch_strides[0] += 2;
    assert_eq!(copied(&batch), [false, true]);
}

#[test]
fn a_copy_holds_a_broadcast_operand_once() {
    let mut p = problem(DType::BF16, 6, 33, 17, 20);
    p.b.batch_strides[0] = 0;
    let (choice, launches) = chosen(&p, Overrides::default());
    // Rows of 17 elements take 24, those of 20 take 24 as well.
    let (a, b) = (6 * 33 * 24 * 2, 17 * 24 * 2);
    assert_eq!(
        choice.workspace_bytes(&p),
        (a as u64).next_multiple_of(256) + (b as u64).next_multiple_of(256)
    );
    let [a, b] = [launches.maps[0].unwrap(), launches.maps[1].unwrap()];
    assert_eq!((a.sizes[..3].to_vec(), a.strides[..2].to_vec()), (vec![17, 33, 6], vec![48, 33 * 48]));
    assert_eq!((b.sizes[..3].to_vec(), b.strides[..2].to_vec()), (vec![20, 17, 1], vec![48, 16]));
}

#[test]
fn results_whose_rows_are_no_whole_aligned_vectors_are_stored_by_elements() {
    let stored = |p: &MatmulProblem| chosen(p, Overrides::default()).1.multiply.params.store_elements;
    let mut p = bf16(512, 512, 256);
    assert_eq!(stored(&p), 0);
    p.out.row_stride = 513;
    assert_eq!(stored(&p), 1);
    p.out.row_stride = 520;
    assert_eq!(stored(&p), 0);
    p.out.col_stride = 2;
    p.out.row_stride = 1040;
    assert_eq!(stored(&p), 1);
}

#[test]
fn a_result_by_columns_has_its_bias_by_rows() {
    let mut p = bf16(512, 1024, 256);
    (p.out.row_stride, p.out.col_stride) = (1, 512);
    p.bias = Some(Bias { address: 4 << 40, stride: 3, row_stride: 0 });
    let (_, launches) = chosen(&p, Overrides::default());
    let q = &launches.multiply.params;
    assert_eq!((q.m, q.n, q.bias_by_row, q.bias_stride, q.store_elements), (1024, 512, 1, 3, 0));
    assert_eq!((q.a_mn, q.b_mn), (1, 0));
}

#[test]
fn a_kernel_for_each_epilogue() {
    let epilogue = |p: &MatmulProblem, splits, cluster| {
        let (_, launches) = chosen(p, Overrides { splits, cluster, ..Overrides::default() });
        let rest = launches.multiply.kernel.name.splitn(4, '_').nth(3).unwrap();
        rest.rsplit_once('_').unwrap().0.to_string()
    };
    let with = |activation, biased: bool| {
        let bias = biased.then_some(Bias { address: 4 << 40, stride: 1, row_stride: 0 });
        MatmulProblem { activation, bias, ..bf16(512, 512, 512) }
    };
    let leaky = |negative_slope| Activation::LeakyRelu { negative_slope };
    let table = [
        (with(Activation::None, false), "none"),
        (with(Activation::None, true), "bias_relu"),
        (with(Activation::Relu, false), "bias_relu"),
        (with(leaky(0.01), true), "bias_relu"),
        (with(leaky(-1.0), false), "bias_relu"),
        // Not the larger one of a number and a fraction of it.
        (with(leaky(1.5), false), "general"),
        (with(leaky(0.0), false), "general"),
        (with(leaky(f64::NAN), false), "general"),
        (with(Activation::Silu, false), "general"),
        (bf16(512, 509, 512), "general"),
    ];
    for (problem, expected) in table {
        assert_eq!(epilogue(&problem, Some(1), None), expected, "{problem}");
        assert_eq!(epilogue(&problem, Some(2), Some(TileCluster::ALONE)), "partial", "{problem}");
        assert_eq!(epilogue(&problem, Some(3), None), "partial", "{problem}");
        assert_eq!(epilogue(&problem, Some(2), None), "splitk", "{problem}");
    }
}

#[test]
fn other_devices_dtypes_and_batches_are_left_to_other_kernels() {
    let p = bf16(512, 512, 512);
    for device in examples::all() {
        let expected = device.compute_capability == (9, 0);
        assert_eq!(choose(&p, &device, Overrides::default()).is_some(), expected, "{}", device.name);
    }
    let none = |p: &MatmulProblem| choose(p, &examples::h200(), Overrides::default()).is_none();
    assert!(none(&problem(DType::F32, 1, 512, 512, 512)));
    assert!(none(&bf16(512, 512, 0)));
    assert!(none(&bf16(1 << 31, 8, 8)));
    let mut deep = p.clone();
    deep.batch = Dims::from_elem(2, 4);
    for matrix in [&mut deep.a, &mut deep.b, &mut deep.out] {
        matrix.batch_strides = Dims::from_elem(1 << 20, 4);
    }
    assert!(none(&deep));
    let mut vast = bf16(1 << 30, 8, 1 << 30);
    (vast.a.row_stride, vast.a.col_stride) = (0, 0);
    assert!(none(&vast));
    let mut odd = p;
    odd.a.address += 1;
    assert!(none(&odd));
}

#[test]
fn results_leave_by_the_copy_engine_where_blocks_have_several_tiles() {
    let tma_store = |p: &MatmulProblem, tile: &str, splits| {
        let tile = TILES.iter().position(|t| t.name == tile);
        let (_, launches) = chosen(p, Overrides { tile, splits, ..Overrides::default() });
        let q = &launches.multiply.params;
        assert_eq!(launches.maps[3].is_some(), q.tma_store == 1);
        (q.tma_store == 1, q.stages)
    };
    assert_eq!(tma_store(&bf16(8192, 8192, 512), "128x256", None), (true, 3));
    assert_eq!(tma_store(&bf16(8192, 8192, 512), "128x192", None), (true, 4));
    assert_eq!(tma_store(&bf16(2048, 2048, 2048), "128x256", None), (false, 4));
    // Of many products, operands come from memory.
    assert_eq!(tma_store(&problem(DType::BF16, 16, 1024, 1024, 1024), "128x256", None), (false, 4));
    assert_eq!(tma_store(&problem(DType::BF16, 64, 1024, 256, 1024), "128x256", None), (true, 3));
    assert_eq!(tma_store(&problem(DType::BF16, 16, 1024, 1024, 1024), "128x192", None), (true, 4));
    assert_eq!(tma_store(&problem(DType::BF16, 8, 2048, 2048, 2048), "128x256", None), (true, 3));
    assert!(!tma_store(&bf16(8192, 8191, 512), "128x256", None).0);
    assert!(!tma_store(&bf16(8192, 8192, 512), "256x128", None).0);
    assert!(!tma_store(&bf16(8192, 8192, 512), "128x256", Some(2)).0);
}

#[test]
fn ping_pong_is_for_short_k_and_long_activations() {
    let tile = |batch, m, n, k, activation| {
        let p = MatmulProblem { activation, ..problem(DType::BF16, batch, m, k, n) };
        chosen(&p, Overrides::default()).0.tile.name
    };
    assert_eq!(tile(1, 4096, 4096, 1024, Activation::Gelu), PING_PONG);
    assert_eq!(tile(1, 4096, 3072, 768, Activation::Silu), PING_PONG);
    assert_eq!(tile(32, 1024, 1024, 512, Activation::None), PING_PONG);
    assert_ne!(tile(1, 4096, 4096, 4096, Activation::None), PING_PONG);
    assert_ne!(tile(8, 2048, 2048, 2048, Activation::None), PING_PONG);
    assert_ne!(tile(48, 2048, 2048, 128, Activation::None), PING_PONG);
    // A block with one tile has nothing to hide.
    assert_ne!(tile(1, 1024, 1024, 1024, Activation::Gelu), PING_PONG);
    // It has no kernel for parts of k, a residual or a gate.
    let tile = TILES.iter().position(|tile| tile.name == PING_PONG);
    let split = Overrides { tile, splits: Some(2), ..Overrides::default() };
    assert_eq!(choose(&bf16(512, 512, 4096), &examples::h200(), split), None);
    let mut p = MatmulProblem { activation: Activation::Gelu, ..problem(DType::BF16, 1, 4096, 1024, 4096) };
    p.residual = Some(p.out.clone());
    assert_ne!(chosen(&p, Overrides::default()).0.tile.name, PING_PONG);
    let mut p = MatmulProblem { activation: Activation::Gelu, ..problem(DType::BF16, 1, 4096, 1024, 4096) };
    p.gate = Some(p.b.clone());
    assert_ne!(chosen(&p, Overrides::default()).0.tile.name, PING_PONG);
}

/// The kernel's own arithmetic of shared memory, compiled as plain C++.
#[test]
fn the_kernels_shared_memory_is_this_large() {
    let shapes: String = TILES
        .iter()
        .map(|t| format!("show<{}, {}, {}, {}>();\n", t.consumers, t.m_steps, t.n, t.is_ping_pong()))
        .collect();
    let program = format!(
        "#include \"wgmma_tile.cuh\"\n#include <cstdio>\n\
         template <int C, int M, int N, bool P> void show() {{\n\
         using S = WgmmaTile<C, M, N, P>;\n\
         std::printf(\"%d %d %d %d %d %d\\n\", S::BM, S::BUFFERS, S::CAN_TMA_STORE ? S::RESULT : 0, HEADER_BYTES, S::A_BYTES + S::B_BYTES, S::TAIL);\n}}\n\
         int main() {{\n{shapes}}}\n"
    );
    let Some(theirs) = host_cpp::run(&program) else { return };
    let ours: Vec<String> = TILES
        .iter()
        .map(|t| {
            let tail = t.n - 64 * (t.boxes() - 1);
            let buffers = t.fixed_bytes(false, false) - HEADER_BYTES;
            let result = if t.can_tma_store() { t.fixed_bytes(true, false) - HEADER_BYTES } else { 0 };
            format!("{} {buffers} {result} {HEADER_BYTES} {} {tail}", t.m(), t.stage_bytes())
        })
        .collect();
    assert_eq!(theirs.lines().collect::<Vec<_>>(), ours);
}

#[test]
fn a_list_of_one_product_takes_as_long_as_alone() {
    let device = examples::h200();
    for (m, n, k) in [(64, 4096, 4096), (8192, 8192, 512), (100, 100, 20_000)] {
        let p = bf16(m, n, k);
        let (size, _) = sized(&p, &Oriented::new(&p), &device).unwrap();
        for tile in 0..TILES.len() {
            let work = Work { tile, splits: 1, cluster: TileCluster::ALONE, cluster_splitk: false };
            let by_tma = cost::tma_store(&size, &work, &device);
            let alone = MODEL.clocks(&size, &work, &device);
            assert_eq!(MODEL.clocks_together(&[size], tile, by_tma, &device), alone);
            // Half a round each.
            let both = MODEL.clocks_together(&[size; 2], tile, by_tma, &device);
            assert!(both >= alone && both <= 2.0 * alone);
        }
    }
}
