//! Where a row goes that is too long for the registers of one block, and of how many blocks.

use super::holders::{cluster, grid, staged};
use super::{CLUSTER_VECTORS, SHARING_THREADS, idle};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::softmax::Variant;
use crate::cuda::plan::softmax::rows::RowShape;
use crate::dtype::DType;
use crate::ops::softmax::SoftmaxProblem;

/// Granules of the longest row that is better off in a cluster.
pub const HELD_BY_ALL_FROM: u64 = 16 * SHARING_THREADS * CLUSTER_VECTORS;
/// Granules that a block of softmax_staged.cu had, and that it may have, where that was measured.
const STAGED: [u64; 2] = [2048, 4096];
/// Blocks of 128 threads that have 8 granules each: more rows are under way at a time. H200, share of a copy: in clusters of
/// four and eight in shared memory bf16 32768 0.95 (two of 2048 granules in registers 0.94), 65536 0.95 (four of 2048 0.93); in
/// registers float32 24576 0.984 (0.979), 32768 0.98 (0.97), 65536, of sixteen, 0.93 (0.94). Rows of 12288 and 16384 float32,
/// which one block holds, are not asked for here: they would take 0.99 (0.98, 0.97).
/// Where such a block is not full bf16 57344 takes 0.85 (0.93), and halves in registers 32768 0.92.
const SMALL: u64 = 1024;
const NEARLY_SMALL: u64 = SMALL - SMALL / 16;

/// A row in the registers or the shared memory of one block that has room for others beside it, or of a cluster.
///
/// On an H200, share of a copy, staged beside cluster where every thread of that has all of its granules. bf16: 16384 0.94
/// (0.97), 32768 0.94 (0.94), 65536 0.93 (0.90), 131072 0.92 (0.86), 262144 0.90 (0.81); float32: 16384 0.94 (0.98), 32768
/// 0.94 (0.98), 65536 0.94 (0.94), 131072 0.92 (0.87), 262144 0.86 (0.56). Where they have not: 12672 bf16 0.94 (0.85).
/// Where rows have ends: 50257 bf16 0.92 (0.72), float32 0.94 (0.78). Few rows: 16 x 32000 bf16 0.76 (0.69), float32 0.76
/// (0.76). float64: 8192 0.92 (0.91), 32768 0.91 (0.79).
pub fn held_by_many(
    shape: RowShape,
    rows: u64,
    dtype: DType,
    few: bool,
    device: &DeviceFacts,
) -> Option<Variant> {
    if !device.has_clusters() {
        return None;
    }
    let (registers, half) = (spread(shape.granules, rows, dtype, device), dtype.size() == 2);
    let small = || {
        let filled = |&blocks: &u64| (NEARLY_SMALL..=SMALL).contains(&shape.whole.div_ceil(blocks));
        staged(shape, rows, [4, 8].into_iter().find(filled)?, false, device)
    };
    if let Some(small) = small().filter(|_| half && !few && !shape.widens && device.largest_cluster() >= 8) {
        return Some(small);
    }
    match registers {
        Some(Variant::Cluster { blocks, .. }) if few && half => {
            let alone = rows * blocks <= u64::from(device.multiprocessors);
            staged(shape, rows, blocks, alone, device).or(registers)
        }
        _ if few => registers,
        Some(Variant::Cluster { threads, blocks })
            if shape.granules == threads * blocks * CLUSTER_VECTORS
                && blocks <= if half { 2 } else { 8 }
                && dtype != DType::F64
                && shape.ends == 0
                && shape.aligned_stores
                && !shape.widens =>
        {
            registers
        }
        _ => in_shared_memory(shape, rows, dtype, device),
    }
}

/// A few rows for one launch of the whole device. H200, beside clusters of 16, which run on 112 of 132 multiprocessors, and
/// beside two launches: rows of 512 KB take as long or longer, bf16 16 x 262144 0.57 of a copy (0.65); of 1 MB, float32 16 x
/// 262144 0.71 (0.54), bf16 32 x 524288 0.77 (0.68), bf16 8 x 524288 0.59 (0.59).
pub fn held_by_all(p: &SoftmaxProblem, shape: RowShape, device: &DeviceFacts) -> Option<Variant> {
    let grid = grid(p, shape, u64::MAX, device).filter(|_| shape.granules > HELD_BY_ALL_FROM)?;
    let Variant::Grid { slices, .. } = grid else { return None };
    (!idle(p.row_count().unsigned_abs() * slices, device)).then_some(grid)
}

fn in_shared_memory(shape: RowShape, rows: u64, dtype: DType, device: &DeviceFacts) -> Option<Variant> {
    let fewest = |granules: u64| {
        let mut sizes = [1, 2, 4, 8, 16].into_iter().take_while(|&blocks| blocks <= device.largest_cluster());
        sizes.find(|blocks| shape.whole <= blocks * granules)
    };
    let wanted = if dtype == DType::F64 { None } else { fewest(STAGED[0]) };
    let blocks = wanted.or_else(|| fewest(STAGED[1]))?;
    staged(shape, rows, blocks, false, device)
}

/// The smallest cluster whose blocks let others share their multiprocessor and, where rows are few, leave none
/// idle; but with work for 4 loads of every lane of a warp. Where there is none, the largest that will do.
fn spread(granules: u64, rows: u64, dtype: DType, device: &DeviceFacts) -> Option<Variant> {
    let sizes = [2, 4, 8, 16].into_iter().take_while(|&blocks| blocks <= device.largest_cluster());
    let fits = |&blocks: &u64| cluster(granules, blocks).is_some();
    let worth_it = |&blocks: &u64| granules >= blocks * 128;
    let mut sizes: Vec<u64> = sizes.filter(fits).filter(worth_it).collect();
    let last = sizes.pop()?;
    let filled = |&&blocks: &&u64| {
        // 24576 fills three quarters.
        let small = SMALL * 3 / 4 * blocks..=SMALL * blocks;
        dtype == DType::F32 && blocks <= 8 && small.contains(&granules) && !idle(rows, device)
    };
    let enough = |&&blocks: &&u64| {
        granules <= blocks * SHARING_THREADS * CLUSTER_VECTORS && !idle(rows.saturating_mul(blocks), device)
    };
    let best = sizes.iter().find(filled).or_else(|| sizes.iter().find(enough));
    cluster(granules, best.copied().unwrap_or(last))
}
