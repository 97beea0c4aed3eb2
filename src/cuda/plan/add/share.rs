//! How an addition is shared among blocks and threads.

use super::CHUNK;
use super::space::{Space, Variant};
use crate::cuda::device::DeviceFacts;

/// Threads per block: the kernels' launch bound, and the least worth launching.
pub const MAX_THREADS: u64 = 256;
pub const MIN_THREADS: u64 = 64;
/// Columns of a tile, and bytes of its rows in the operand that is transposed: TransposedTile in
/// kernels/common/transposed_tile.cuh.
const TILE_COLUMNS: u64 = 64;
const TILE_BYTES: u64 = 128;

/// The fields are those of `AddParams`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share {
    pub blocks: u64,
    pub threads: u64,
    pub items: u64,
    pub chunks: u64,
    pub groups: u64,
    pub row_step: u64,
    pub chunk_step: u64,
    pub span: u64,
    pub group_step: u32,
}

impl Share {
    /// Blocks of whole tiles.
    pub fn tiles(blocks: u64, threads: u64, items: u64, chunks: u64, groups: u64) -> Share {
        Share { blocks, threads, items, chunks, groups, row_step: 0, chunk_step: 0, span: 0, group_step: 0 }
    }

    /// Of the variants of add_strided.cu.
    pub fn chunks(space: &Space, variant: Variant, device: &DeviceFacts) -> Share {
        let last = space.last();
        let (rows, columns) = (space.shape[last - 1] as u64, space.shape[last] as u64);
        let outer: u64 = space.shape[..last - 1].iter().map(|&n| n as u64).product();
        let (each, width) = (variant.chunks(), variant.width(space));
        if rows * outer == 1 {
            let past = if width > 1 { space.past() } else { 0 };
            let items = (columns + past).div_ceil(width);
            let threads = block_size(items.div_ceil(each), MAX_THREADS, device);
            let span = threads * each;
            let tiles = Share::tiles(items.div_ceil(span), threads, items, items, 1);
            return Share { chunk_step: threads, span, group_step: 1, ..tiles };
        }
        let aligned = width == 1 || space.rows_aligned();
        let chunks = (columns + if aligned { 0 } else { width - 1 }).div_ceil(width);
        let mut groups = rows.div_ceil(each);
        // Rows that a thread's chunks lie in are far apart, so that where rows are short neighbouring threads are in
        // neighbouring rows, and a multiple of 16 bytes of the result; side by side only for single elements of an
        // operand in which rows are neighbours.
        let neighbours = width == 1 && space.inputs().any(|(_, strides)| strides[last - 1] == 1);
        if !aligned {
            groups = groups.next_multiple_of(width).min(rows);
        }
        let (group_step, row_step) = if neighbours { (each as u32, 1) } else { (1, groups) };
        let items = chunks * groups * outer;
        let threads = block_size(items, MAX_THREADS, device);
        let tiles = Share::tiles(items.div_ceil(threads), threads, items, chunks, groups);
        Share { row_step, span: threads, group_step, ..tiles }
    }

    /// Of add_transposed.cu.
    pub fn transposed(space: &Space) -> Share {
        let last = space.last();
        let tile_rows = TILE_BYTES / CHUNK * space.lanes();
        let chunks = (space.shape[last] as u64).div_ceil(TILE_COLUMNS);
        let groups = (space.shape[last - 1] as u64).div_ceil(tile_rows);
        let items = space.shape[..last - 1].iter().map(|&n| n as u64).product::<u64>() * chunks * groups;
        Share::tiles(items, MAX_THREADS, items, chunks, groups)
    }
}

/// Threads of a block: fewer for few items, so that every multiprocessor gets some.
pub fn block_size(items: u64, most: u64, device: &DeviceFacts) -> u64 {
    let mut threads = most;
    while threads > MIN_THREADS && items.div_ceil(threads) < 2 * u64::from(device.multiprocessors) {
        threads /= 2;
    }
    threads
}
