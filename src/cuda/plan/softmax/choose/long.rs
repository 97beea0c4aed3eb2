//! Rows that are too long for the registers of one block: their variants, and how many blocks share a row.

use super::candidates::{cluster, grid, smem};
use super::{CLUSTER_VECTORS, SHARING_THREADS, idle};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::softmax::Variant;
use crate::cuda::plan::softmax::rows::RowShape;
use crate::dtype::DType;
use crate::ops::softmax::SoftmaxProblem;

/// Vectors of the longest row that is faster in a cluster than in a grid.
pub const GRID_FROM: u64 = 16 * SHARING_THREADS * CLUSTER_VECTORS;
/// Vectors of a block of softmax_smem.cu: the measured optimum, and the most.
const SMEM: [u64; 2] = [2048, 4096];
/// Vectors of a block of 128 threads that have 8 each: more rows are in flight at a time. Such blocks must be full, and
/// are faster for halves in shared memory and for float32 in registers: docs/measurements/softmax_smem.md.
const SMALL: u64 = 1024;
const NEARLY_SMALL: u64 = SMALL - SMALL / 16;

/// A row in the registers or the shared memory of a cluster, or of one block that shares its multiprocessor.
///
/// Registers are better where every thread has all of its vectors, up to clusters of 2 for halves and of 8 for float32:
/// docs/measurements/softmax_smem.md.
pub fn in_cluster(
    shape: RowShape,
    rows: u64,
    dtype: DType,
    few: bool,
    device: &DeviceFacts,
) -> Option<Variant> {
    if !device.has_clusters() {
        return None;
    }
    let (registers, half) = (spread(shape.vectors, rows, dtype, device), dtype.size() == 2);
    let small = || {
        let filled = |&blocks: &u64| (NEARLY_SMALL..=SMALL).contains(&shape.whole.div_ceil(blocks));
        smem(shape, rows, [4, 8].into_iter().find(filled)?, false, device)
    };
    if let Some(small) = small().filter(|_| half && !few && !shape.widens && device.largest_cluster() >= 8) {
        return Some(small);
    }
    match registers {
        Some(Variant::Cluster { blocks, .. }) if few && half => {
            let alone = rows * blocks <= u64::from(device.multiprocessors);
            smem(shape, rows, blocks, alone, device).or(registers)
        }
        _ if few => registers,
        Some(Variant::Cluster { threads, blocks })
            if shape.vectors == threads * blocks * CLUSTER_VECTORS
                && blocks <= if half { 2 } else { 8 }
                && dtype != DType::F64
                && shape.head_and_tail == 0
                && shape.aligned_stores
                && !shape.widens =>
        {
            registers
        }
        _ => in_shared_memory(shape, rows, dtype, device),
    }
}

/// A few rows in one cooperative launch. Rows of 512 KB or less are faster in clusters:
/// docs/measurements/softmax_grid.md.
pub fn in_grid(p: &SoftmaxProblem, shape: RowShape, device: &DeviceFacts) -> Option<Variant> {
    let grid = grid(p, shape, u64::MAX, device).filter(|_| shape.vectors > GRID_FROM)?;
    let Variant::Grid { slices, .. } = grid else { return None };
    (!idle(p.row_count().unsigned_abs() * slices, device)).then_some(grid)
}

fn in_shared_memory(shape: RowShape, rows: u64, dtype: DType, device: &DeviceFacts) -> Option<Variant> {
    let fewest = |vectors: u64| {
        let mut sizes = [1, 2, 4, 8, 16].into_iter().take_while(|&blocks| blocks <= device.largest_cluster());
        sizes.find(|blocks| shape.whole <= blocks * vectors)
    };
    let wanted = if dtype == DType::F64 { None } else { fewest(SMEM[0]) };
    let blocks = wanted.or_else(|| fewest(SMEM[1]))?;
    smem(shape, rows, blocks, false, device)
}

/// The smallest cluster whose blocks share multiprocessors with other blocks and, where rows are few, leave none idle,
/// with 4 loads or more for every lane of a warp. Where there is none, the largest that fits.
fn spread(vectors: u64, rows: u64, dtype: DType, device: &DeviceFacts) -> Option<Variant> {
    let sizes = [2, 4, 8, 16].into_iter().take_while(|&blocks| blocks <= device.largest_cluster());
    let fits = |&blocks: &u64| cluster(vectors, blocks).is_some();
    let worth_it = |&blocks: &u64| vectors >= blocks * 128;
    let mut sizes: Vec<u64> = sizes.filter(fits).filter(worth_it).collect();
    let last = sizes.pop()?;
    let filled = |&&blocks: &&u64| {
        // 24576 fills three quarters.
        let small = SMALL * 3 / 4 * blocks..=SMALL * blocks;
        dtype == DType::F32 && blocks <= 8 && small.contains(&vectors) && !idle(rows, device)
    };
    let enough = |&&blocks: &&u64| {
        vectors <= blocks * SHARING_THREADS * CLUSTER_VECTORS && !idle(rows.saturating_mul(blocks), device)
    };
    let best = sizes.iter().find(filled).or_else(|| sizes.iter().find(enough));
    cluster(vectors, best.copied().unwrap_or(last))
}
