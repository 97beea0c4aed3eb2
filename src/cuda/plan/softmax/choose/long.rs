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
/// A row in the registers or the shared memory of a cluster, or of one block that shares its multiprocessor.
///
/// Registers are better, unless stores are not what loads are: docs/measurements/softmax_cluster.md.
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
    let alike = shape.aligned_stores && !shape.widens;
    let registers =
        if few { spread(shape.vectors, rows, device) } else { filled(shape.vectors, rows, device) };
    match registers {
        Some(Variant::Cluster { blocks, .. }) if few && !alike && dtype.size() == 2 => {
            let alone = rows * blocks <= u64::from(device.multiprocessors);
            smem(shape, rows, blocks, alone, device).or(registers)
        }
        _ if few || (alike && registers.is_some()) => registers,
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

/// The smallest cluster whose blocks share multiprocessors with other blocks; else the largest, if it fits.
fn filled(vectors: u64, rows: u64, device: &DeviceFacts) -> Option<Variant> {
    let largest = device.largest_cluster();
    let mut sizes = [1, 2, 4, 8, 16].into_iter().take_while(|&blocks| blocks <= largest);
    let shares = |&blocks: &u64| vectors <= blocks * SHARING_THREADS * CLUSTER_VECTORS;
    cluster(vectors, rows, sizes.find(shares).unwrap_or(largest))
}

/// For few rows: the same, but none that leaves multiprocessors idle, with 4 loads or more for every lane of a warp. Where
/// there is none, the largest that fits.
fn spread(vectors: u64, rows: u64, device: &DeviceFacts) -> Option<Variant> {
    let sizes = [2, 4, 8, 16].into_iter().take_while(|&blocks| blocks <= device.largest_cluster());
    let fits = |&blocks: &u64| cluster(vectors, rows, blocks).is_some();
    let worth_it = |&blocks: &u64| vectors >= blocks * 128;
    let mut sizes: Vec<u64> = sizes.filter(fits).filter(worth_it).collect();
    let last = sizes.pop()?;
    let enough = |&&blocks: &&u64| {
        vectors <= blocks * SHARING_THREADS * CLUSTER_VECTORS && !idle(rows.saturating_mul(blocks), device)
    };
    cluster(vectors, rows, sizes.iter().find(enough).copied().unwrap_or(last))
}
