//! Every plan, forced or not, can be launched on its device and covers its problem.

use super::super::choose::{CLUSTER_THREADS, CLUSTER_VECTORS, SPLIT_VECTORS};
use super::super::rows::row_shape;
use super::*;
use crate::cuda::plan::variants::SOFTMAX;
use crate::cuda::plan::{KernelParams, Launch, misaligned};
use crate::ops::work::Workload;

/// Elements of a row that the threads of a plan cover.
fn reach(plan: &LaunchPlan<SoftmaxParams>, variant: Variant, lanes: u64) -> u64 {
    let threads = u64::from(plan.block[0]);
    match variant {
        Variant::Warp { vectors, lane_bits, .. } => (vectors << lane_bits) * lanes,
        Variant::Smem { blocks, vectors_per_thread, .. } => blocks * threads * vectors_per_thread * lanes,
        Variant::Short { words } => words * 4 * lanes / VECTOR_BYTES,
        Variant::Block { .. } => threads * lanes * if plan.params.x_tag == DType::F32.tag() { 8 } else { 4 },
        Variant::Pipeline { vectors_per_thread, .. } => threads * vectors_per_thread * lanes,
        Variant::Cluster { blocks, .. } => blocks * threads * CLUSTER_VECTORS * lanes,
        Variant::Split { slices, batches, .. } => slices * batches * threads * SPLIT_VECTORS * lanes,
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
    for device in examples::one_of_each() {
        for dtypes in pairs {
            for length in (1..10).chain([15, 16, 17, 33, 64, 65, 255, 1023, 8192, 50257, 1 << 20, 1 << 33]) {
                for rows in [1, 7, 1000, 1 << 22, 1 << 34] {
                    for (pad, offset) in [(0, 0), (1, 3)] {
                        let row = (rows, length + pad, length + pad);
                        legal(&problem(dtypes, (length, 1, 1), &[row], (offset, 0)), &device, None);
                    }
                    for columns in [2, 8, 100, 4096] {
                        let outer = (rows, length * columns, length * columns);
                        for (offset, pad) in [(0, 0), (1, 0), (0, 8), (8, 1)] {
                            let (down, along) = (columns + pad, length + pad);
                            let into = [outer, (columns, 1, along)];
                            legal(&problem(dtypes, (length, down, 1), &into, (offset, 0)), &device, None);
                            let out_of = [(columns, along, 1), outer];
                            legal(&problem(dtypes, (length, 1, down), &out_of, (0, offset)), &device, None);
                        }
                        let step = (length, columns, columns);
                        legal(&problem(dtypes, step, &[outer, (columns, 1, 1)], (0, 1)), &device, None);
                        legal(&problem(dtypes, step, &[outer, (columns, 1, 1)], (0, 0)), &device, None);
                    }
                }
            }
        }
    }
}

#[test]
fn every_forced_plan_is_legal_too() {
    // Parameters that variants can have, and some that none can.
    let beyond = [0, 3, 5, 7, 500, u64::from(u32::MAX)];
    let forced = SOFTMAX.iter().flat_map(|variant| {
        let counts = !variant.parameter.is_empty();
        let beyond = beyond.into_iter().filter(move |_| counts);
        variant.values.iter().copied().chain(beyond).map(variant.make)
    });
    for forced in forced {
        for device in examples::one_of_each() {
            for dtypes in [(DType::F16, DType::F32), (DType::F32, DType::F32), (DType::F64, DType::F64)] {
                for length in [1, 5, 33, 255, 1000, 8192, 50257, 1 << 20, 1 << 33] {
                    let row = (9, length + 1, length + 1);
                    legal(&problem(dtypes, (length, 1, 1), &[row], (3, 3)), &device, Some(forced));
                    for columns in [2, 7, 100, 4096] {
                        let outer = (5, length * columns, length * columns);
                        let step = (length, columns, columns);
                        let p = problem(dtypes, step, &[outer, (columns, 1, 1)], (0, 0));
                        legal(&p, &device, Some(forced));
                        for (steps, row) in [
                            ((length, columns, 1), (columns, 1, length)),
                            ((length, 1, columns), (columns, length, 1)),
                        ] {
                            legal(&problem(dtypes, steps, &[outer, row], (0, 0)), &device, Some(forced));
                        }
                    }
                }
            }
        }
    }
}

fn legal(p: &SoftmaxProblem, device: &DeviceFacts, forced: Option<Forced>) {
    let (variant, _) = choose(p, device, forced);
    let choice = super::super::choose(p, device, forced);
    let alone = matches!(variant, Variant::Grid { .. });
    assert_eq!(choice.launches.len() > 1 || alone, choice.workspace > 0);
    assert_eq!(choice.fallback.is_some(), alone);
    assert!(choice.fallback.as_ref().is_none_or(|other| other.workspace <= choice.workspace));
    for launch in &choice.launches {
        legal_launch(launch, device);
    }
    match variant {
        Variant::Misaligned(misaligned) => {
            let plan: LaunchPlan<MisalignedParams<2>> = choice.plan(p, PARTIALS);
            let log = p.kind == Kind::LogSoftmax;
            same(p, &plan, || misaligned_rows(p).plan(device, misaligned, plan.kernel.clone(), log, None));
            misaligned::tests::legal(&misaligned_rows(p), device, misaligned, &plan);
        }
        Variant::ColumnTile(tile) => {
            let plan = choice.plan(p, PARTIALS);
            same(p, &plan, || column_tile::plan(p, tile));
            legal_column_tile(p, tile, &plan);
        }
        Variant::RegisterTile(tile) => {
            let plan = choice.plan(p, PARTIALS);
            same(p, &plan, || register_tile::plan(p, tile));
            legal_register_tile(p, tile, &plan);
        }
        Variant::SplitColumns(split) => {
            let plan = choice.plan(p, PARTIALS);
            same(p, &plan, || split_columns::plan(p, split, PARTIALS).1);
            legal_split_columns(p, split, &plan);
        }
        Variant::Transposed(transposed) => {
            let plan = choice.plan(p, PARTIALS);
            same(p, &plan, || transposed::plan(p, transposed, PARTIALS).1);
            legal_transposed(p, transposed, &plan);
        }
        Variant::TransposedShort(short) => {
            let plan = choice.plan(p, PARTIALS);
            same(p, &plan, || transposed::plan_short(p, short));
            legal_transposed_short(p, short, &plan);
        }
        _ => {
            let plan = choice.plan(p, PARTIALS);
            same(p, &plan, || rows::plan(p, device, variant, PARTIALS).1);
            legal_rows(p, device, variant, &plan);
        }
    }
}

const PARTIALS: usize = 5 << 40;

/// A launch without addresses, placed, is the one that would be planned there; of operands that a process can address.
fn same<P: KernelParams + PartialEq>(
    p: &SoftmaxProblem,
    placed: &LaunchPlan<P>,
    planned: impl FnOnce() -> LaunchPlan<P>,
) {
    if p.work().bytes() < 1 << 47 {
        let planned = LaunchPlan { why: placed.why.clone(), ..planned() };
        assert!(*placed == planned, "{placed} of {p}");
    }
}

fn legal_launch(plan: &Launch, device: &DeviceFacts) {
    let ([blocks, y, z], [threads, ..]) = (plan.grid, plan.block);
    assert!(blocks >= 1 && u64::from(blocks) <= MAX_BLOCKS && (y, z) == (1, 1), "{plan}");
    assert!((32..=1024).contains(&threads) && threads % 32 == 0, "{plan}");
    let shared = u64::from(plan.shared_bytes) + STATIC_SHARED;
    assert!(shared <= u64::from(device.shared_bytes_per_block), "{plan}");
    let cluster = plan.cluster.max(1);
    assert!(blocks % cluster == 0 && cluster.is_power_of_two() && cluster <= 16, "{plan}");
    assert!(cluster == 1 || device.compute_capability >= (9, 0), "{plan}");
    assert!(cluster <= 8 || device.multiprocessors >= 100, "{plan}");
}

fn legal_column_tile(p: &SoftmaxProblem, tile: ColumnTile, plan: &LaunchPlan<ColumnTileParams>) {
    let ColumnTile { word, wide, threads, slice, slices } = tile;
    let (inner, columns) = columns(p).unwrap();
    let (size, out_size) = (p.x.dtype.size() as u64, p.out.dtype.size() as u64);
    let (words, access, row_copies) = (plan.params.words, plan.params.access, plan.params.row_copies);
    let (words, access, row_copies) = (u64::from(words), u64::from(access), u64::from(row_copies));
    assert_eq!(words * word, wide * size, "{tile:?}");
    assert!((columns * size).is_multiple_of(word) && wide <= columns, "{tile:?}");
    assert!(words.max(row_copies) <= threads && threads <= 256 && slice * slices >= p.length.unsigned_abs());
    // Offsets of every copy, and of every store of a word's results.
    let first = |stride: i64, rows: u64| stride.unsigned_abs() * rows;
    let mut of_x: Vec<u64> = p.x.strides[..inner].iter().map(|&s| first(s, 1)).collect();
    let mut of_out: Vec<u64> = p.out.strides[..inner].iter().map(|&s| first(s, 1)).collect();
    of_out.extend([word / size, columns]);
    if p.length > 1 {
        of_x.push(first(p.x_stride, if row_copies == 0 { slice } else { 1 }));
        of_out.push(first(p.out_stride, 1));
    }
    if row_copies == 0 {
        assert!(wide == columns && (p.x_stride == columns.cast_signed() || p.length == 1), "{tile:?}");
    } else {
        assert_eq!(row_copies * access, wide * size);
        of_x.extend([wide, columns]);
    }
    let aligned = |address: usize, offsets: &[u64], size: u64, to: u64| {
        (address as u64).is_multiple_of(to) && offsets.iter().all(|o| (o * size).is_multiple_of(to))
    };
    assert!([4, 8, 16].contains(&access) && aligned(p.x.address, &of_x, size, access), "{tile:?} {access}");
    let stored = (word / size * out_size).min(VECTOR_BYTES);
    assert!(aligned(p.out.address, &of_out, out_size, stored), "{tile:?}");
    assert_eq!(plan.cluster, slices as u32);
    let all = p.row_count().unsigned_abs() / columns * columns.div_ceil(wide);
    assert_eq!(u64::from(plan.grid[0]), all * slices);
    assert!(plan.kernel.name.contains(&format!("column_tile{word}_")));
}

fn legal_register_tile(p: &SoftmaxProblem, tile: RegisterTile, plan: &LaunchPlan<RegisterTileParams>) {
    let RegisterTile { elements, across, threads } = tile;
    let columns = columns(p).unwrap().1;
    assert!(columns.is_multiple_of(elements) && across * elements <= columns, "{tile:?}");
    assert!(across <= threads && threads <= 512, "{tile:?}");
    let k = match (p.x.dtype, elements) {
        (DType::F64, 2) => 4,
        (DType::F64 | DType::F32, _) => 8,
        _ => 16,
    };
    assert!(threads / across * k >= p.length.unsigned_abs(), "{tile:?}");
    let all = p.row_count().unsigned_abs() / columns * columns.div_ceil(across * elements);
    assert_eq!((plan.cluster, plan.params.tiles), (1, all));
    assert!(plan.kernel.name.contains(&format!("register_tile{elements}_")));
}

fn legal_split_columns(p: &SoftmaxProblem, split: SplitColumns, plan: &LaunchPlan<SplitColumnsParams>) {
    let SplitColumns { elements, slices: of } = split;
    let (inner, columns) = columns(p).unwrap();
    let (size, out_size) = (p.x.dtype.size() as u64, p.out.dtype.size() as u64);
    assert!(columns.is_multiple_of(elements) && of.across * elements <= columns, "{split:?}");
    assert!(of.across * of.tiles * elements >= columns, "{split:?}");
    assert!(of.across * of.down <= of.threads() && of.threads() <= 256 && of.slices <= 1024, "{split:?}");
    let k = match (p.x.dtype, elements) {
        (DType::F64, 2) => 4,
        (DType::F64, _) | (_, 4 | 8) => 8,
        _ => 16,
    };
    let slice = of.batches * k * (u64::from(plan.block[0]) / of.across);
    let length = p.length.unsigned_abs();
    assert!(slice * of.slices >= length && slice * (of.slices - 1) < length, "{split:?}");
    let sets = p.row_count().unsigned_abs() / columns;
    assert_eq!((plan.cluster, u64::from(plan.grid[0])), (1, sets * of.tiles * of.slices));
    // Offsets of every access of x, and of the result in stores of up to 16 bytes.
    for (t, step, access) in
        [(&p.x, p.x_stride, elements * size), (&p.out, p.out_stride, (elements * out_size).min(VECTOR_BYTES))]
    {
        let step = if p.length > 1 { step } else { 0 };
        let offsets = t.strides[..inner].iter().chain([&step]).map(|s| s.unsigned_abs());
        let bytes = offsets.chain([elements]).map(|s| s * t.dtype.size() as u64);
        assert!(bytes.chain([t.address as u64]).all(|at| at.is_multiple_of(access)), "{split:?}");
    }
    assert!(plan.kernel.name.contains(&format!("split_columns{elements}_combine")), "{plan}");
}

fn legal_transposed(p: &SoftmaxProblem, transposed: Transposed, plan: &LaunchPlan<TransposedParams>) {
    let Transposed { side, across, groups, slice, slices, cluster } = transposed;
    let (this, other) = if side.of_x { (&p.x, &p.out) } else { (&p.out, &p.x) };
    let rows = p.rows[side.dim].unsigned_abs();
    assert_eq!((this.strides[side.dim], if side.of_x { p.out_stride } else { p.x_stride }), (1, 1));
    assert!(
        matches!(across, 1 | 2 | 4 | 8 | 16 | 32)
            && groups.is_power_of_two()
            && plan.block[0].is_power_of_two()
    );
    assert!(slice * slices >= p.length.unsigned_abs() && slices <= 1024, "{transposed:?}");
    assert_eq!(plan.cluster, if cluster { slices as u32 } else { 0 });
    let tile_rows = transposed.tile_rows(p);
    assert_eq!(
        u64::from(plan.grid[0]),
        p.row_count().unsigned_abs() / rows * rows.div_ceil(tile_rows) * slices
    );
    let tile = transposed.tile_bytes(p);
    assert!(
        tile >= tile_rows * slice * p.x.dtype.size() as u64 && tile < u64::from(plan.shared_bytes),
        "{transposed:?}"
    );
    if !cluster {
        let partials = u64::from(plan.block[0] / 32) * tile_rows * partial_bytes(p);
        assert!(partials <= u64::from(plan.shared_bytes), "{transposed:?}");
    }
    // Offsets of every access of 16 bytes.
    let (whole, other_whole) = match side.of_x {
        true => (plan.params.x_fit, plan.params.out_fit),
        false => (plan.params.out_fit, plan.params.x_fit),
    };
    let along = if side.of_x { p.x_stride } else { p.out_stride };
    let aligned = |t: &Strided, steps: &[i64]| {
        let bytes = steps.iter().map(|s| s.unsigned_abs() * t.dtype.size() as u64);
        bytes.chain([t.address as u64]).all(|at| at.is_multiple_of(VECTOR_BYTES))
    };
    // The strides of dimensions of one index do not matter.
    let stepping = |t: &Strided, but: Option<usize>| -> Vec<i64> {
        (0..p.rows.len()).filter(|&d| Some(d) != but && p.rows[d] > 1).map(|d| t.strides[d]).collect()
    };
    let outer = stepping(this, Some(side.dim));
    let tiles = tile_rows.cast_signed();
    assert!(whole == 0 || aligned(this, &[&outer[..], &[along, tiles]].concat()), "{transposed:?}");
    let step = if slices > 1 { slice.cast_signed() } else { 0 };
    assert!(whole != Fit::Packed as u32);
    if other_whole == Fit::Packed as u32 {
        assert_eq!((other.strides[side.dim], slices), (p.length, 1), "{transposed:?}");
        let tile = tile_rows.cast_signed() * p.length;
        assert!(aligned(other, &[&stepping(other, Some(side.dim))[..], &[tile]].concat()), "{transposed:?}");
        return;
    }
    assert!(
        other_whole == 0 || aligned(other, &[&stepping(other, None)[..], &[step]].concat()),
        "{transposed:?}"
    );
}

fn legal_transposed_short(p: &SoftmaxProblem, short: Short, plan: &LaunchPlan<TransposedParams>) {
    let Short { side, each } = short;
    let (this, other) = if side.of_x { (&p.x, &p.out) } else { (&p.out, &p.x) };
    let (rows, size) = (p.rows[side.dim].unsigned_abs(), this.dtype.size() as u64);
    let threads = u64::from(plan.block[0]);
    assert!(plan.cluster <= 1 && threads <= 128 && short.rows_of_block() == each * threads);
    assert_eq!((other.strides[side.dim], this.strides[side.dim]), (p.length, 1));
    let bytes = each * threads * p.length.unsigned_abs() * other.dtype.size() as u64;
    // And the offset of the packed rows from a 16-byte boundary.
    assert!(
        u64::from(plan.shared_bytes) == bytes + VECTOR_BYTES && bytes.is_multiple_of(VECTOR_BYTES),
        "{short:?}"
    );
    assert_eq!(u64::from(plan.grid[0]), p.row_count().unsigned_abs() / rows * rows.div_ceil(each * threads));
    let along = if side.of_x { p.x_stride } else { p.out_stride };
    let starts = |t: &Strided| -> Vec<u64> {
        let outer = (0..p.rows.len()).filter(|&d| d != side.dim && p.rows[d] > 1);
        outer.map(|d| t.strides[d].unsigned_abs() * t.dtype.size() as u64).collect()
    };
    let step = along.unsigned_abs() * size;
    let mut of_this = starts(this).into_iter().chain([step, rows * size, this.address as u64]);
    let paired = p.x.dtype.size() == 2 && of_this.all(|at| at.is_multiple_of(2 * size));
    assert_eq!(each, if paired { 2 } else { 1 }, "{short:?}");
}

fn legal_rows(p: &SoftmaxProblem, device: &DeviceFacts, variant: Variant, plan: &LaunchPlan<SoftmaxParams>) {
    let threads = plan.block[0];
    let lanes = VECTOR_BYTES / p.x.dtype.size() as u64;
    assert!(plan.params.out_access <= 16);
    if let Some(shape) = row_shape(p) {
        let needed = match variant {
            Variant::Short { .. } => p.length.unsigned_abs(),
            Variant::Warp { .. } | Variant::Block { .. } | Variant::Smem { .. } => shape.whole * lanes,
            _ => shape.vectors * lanes,
        };
        assert!(reach(plan, variant, lanes) >= needed, "{plan}");
    }
    match variant {
        Variant::Warp { rows, lane_bits, .. } => {
            assert!(1 << lane_bits >= row_shape(p).unwrap().head_and_tail, "{plan}");
            assert!(plan.params.tiles * (WARP_THREADS >> lane_bits) * rows >= plan.params.rows);
        }
        Variant::Pipeline { stages, blocks_per_multiprocessor, .. } => {
            assert!((1..=4).contains(&stages));
            let per_multiprocessor =
                (u64::from(plan.shared_bytes) + STATIC_SHARED) * blocks_per_multiprocessor;
            assert!(per_multiprocessor <= u64::from(device.shared_bytes_per_multiprocessor), "{plan}");
            let resident = u64::from(threads) * blocks_per_multiprocessor;
            assert!(resident <= u64::from(device.threads_per_multiprocessor));
        }
        Variant::Cluster { threads, blocks } => {
            assert!(threads <= CLUSTER_THREADS && threads / 32 * blocks <= 256, "{plan}");
            assert_eq!(u64::from(plan.cluster), blocks);
        }
        Variant::Smem { threads, blocks, vectors_per_thread } => {
            assert!(threads <= 512 && threads / 32 * blocks <= 256 && vectors_per_thread % 2 == 0, "{plan}");
            assert!(threads >= row_shape(p).unwrap().head_and_tail, "{plan}");
        }
        Variant::Short { .. } => {
            let bytes = misaligned::SHORT_THREADS * p.length.unsigned_abs() * p.x.dtype.size() as u64;
            assert!(u64::from(plan.shared_bytes) == bytes && bytes.is_multiple_of(VECTOR_BYTES), "{plan}");
        }
        Variant::Split { slices, .. } => assert!(slices <= 1024 && slices == u64::from(plan.params.slices)),
        Variant::Grid { threads, slices, register_batches, shared_vectors } => {
            assert!(plan.cooperative && device.cooperative, "{plan}");
            // One block to a multiprocessor: its shared memory and its registers, 128 a thread, fit.
            assert!(plan.grid[0] <= device.multiprocessors && threads <= 512, "{plan}");
            assert_eq!(u64::from(plan.grid[0]), slices * p.row_count().unsigned_abs());
            // A thread for each slice's message, and for each element of head and tail.
            let shape = row_shape(p).unwrap();
            assert!(slices <= threads && shape.head_and_tail <= threads && shape.aligned_stores, "{plan}");
            assert!(shared_vectors % 4 == 0 && (register_batches > 1 || shared_vectors == 0), "{plan}");
            assert!(register_batches > 1 || slices * threads * 4 >= shape.whole, "{plan}");
        }
        _ => {}
    }
}
