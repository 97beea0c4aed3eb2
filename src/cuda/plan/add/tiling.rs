//! How an addition is shared among blocks and threads.

use super::VECTOR_BYTES;
use super::layout::{Layout, Variant};
use crate::cuda::device::DeviceFacts;

/// Threads per block: the kernels' launch bound, and the least worth launching.
pub const MAX_THREADS: u64 = 256;
pub const MIN_THREADS: u64 = 64;
/// Threads of a multiprocessor without which a thread of `strided` has half as many elements as it can have.
const BUSY_THREADS: u64 = 1024;
/// Columns of a tile, and bytes of its rows in the operand that is transposed: TransposedTile in
/// kernels/common/transposed_tile.cuh.
const TILE_COLUMNS: u64 = 64;
const TILE_BYTES: u64 = 128;

/// The fields are those of `AddParams`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tiling {
    pub blocks: u64,
    pub threads: u64,
    pub items: u64,
    pub vectors: u64,
    pub groups: u64,
    pub row_step: u64,
    pub vector_step: u64,
    pub span: u64,
    pub group_step: u32,
}

impl Tiling {
    /// Blocks of whole tiles.
    pub fn tiles(blocks: u64, threads: u64, items: u64, vectors: u64, groups: u64) -> Tiling {
        Tiling {
            blocks,
            threads,
            items,
            vectors,
            groups,
            row_step: 0,
            vector_step: 0,
            span: 0,
            group_step: 0,
        }
    }

    /// Of the variants of add_strided.cu.
    pub fn vectors(layout: &Layout, variant: Variant, device: &DeviceFacts) -> Tiling {
        let last = layout.last();
        let (rows, columns) = (layout.shape[last - 1] as u64, layout.shape[last] as u64);
        let outer: u64 = layout.shape[..last - 1].iter().map(|&n| n as u64).product();
        let (most, width) = (variant.vectors_per_thread(), variant.width(layout));
        // Rows that a thread's vectors lie in are far apart, so that where rows are short neighbouring threads are in
        // neighbouring rows, and a multiple of 16 bytes of the result; contiguous only for single elements of an
        // operand in which rows are neighbours.
        let neighbours = width == 1 && layout.inputs().any(|(_, strides)| strides[last - 1] == 1);
        let busy = u64::from(device.multiprocessors) * BUSY_THREADS;
        let few = variant == Variant::Strided && rows * columns * outer < busy * most;
        let each = if few && !neighbours { most / 2 } else { most };
        if rows * outer == 1 && each == most {
            let past = if width > 1 { layout.past() } else { 0 };
            let items = (columns + past).div_ceil(width);
            let threads = block_size(items.div_ceil(each), MAX_THREADS, device);
            let span = threads * each;
            let tiles = Tiling::tiles(items.div_ceil(span), threads, items, items, 1);
            return Tiling { vector_step: threads, span, group_step: 1, ..tiles };
        }
        // Of a kernel that has more of them a thread, those beyond the last row or column are none.
        if width == 1 && rows < each && !neighbours {
            let vectors = columns.div_ceil(each);
            let items = vectors * rows * outer;
            let threads = block_size(items, MAX_THREADS, device);
            let tiles = Tiling::tiles(items.div_ceil(threads), threads, items, vectors, rows);
            return Tiling { vector_step: vectors, span: threads, group_step: 1, ..tiles };
        }
        let aligned = width == 1 || layout.rows_aligned();
        let vectors = (columns + if aligned { 0 } else { width - 1 }).div_ceil(width);
        let mut groups = rows.div_ceil(each);
        if !aligned {
            groups = groups.next_multiple_of(width).min(rows);
        }
        let (group_step, row_step) = if neighbours { (each as u32, 1) } else { (1, groups) };
        let items = vectors * groups * outer;
        let threads = block_size(items, MAX_THREADS, device);
        let tiles = Tiling::tiles(items.div_ceil(threads), threads, items, vectors, groups);
        Tiling { row_step, span: threads, group_step, ..tiles }
    }

    /// Of add_transposed.cu.
    pub fn transposed(layout: &Layout) -> Tiling {
        let last = layout.last();
        let tile_rows = TILE_BYTES / VECTOR_BYTES * layout.lanes();
        let vectors = (layout.shape[last] as u64).div_ceil(TILE_COLUMNS);
        let groups = (layout.shape[last - 1] as u64).div_ceil(tile_rows);
        let items = layout.shape[..last - 1].iter().map(|&n| n as u64).product::<u64>() * vectors * groups;
        Tiling::tiles(items, MAX_THREADS, items, vectors, groups)
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
