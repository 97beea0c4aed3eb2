//! Contiguous columns in two launches: tiles along a row, slices down the columns. The first launch leaves a partial of
//! every slice of every column, and each block of the second reads those of all slices of its tile.

use super::limits::{LINE_BYTES, MOST_SLICES, SECTOR_BYTES};

/// THREADS in softmax_split_columns.cu, TILE_THREADS in softmax_backward_strided.cu; and blocks that share a
/// multiprocessor: what most of their kernels are compiled for.
pub const THREADS: u64 = 256;
const SHARING: u64 = 2;
/// The most threads that merge the partials of one column.
pub const MERGE_THREADS: u64 = 16;
/// Widths of a tile, in bytes of its rows; and the widest where an access is one element of 4 or 8 bytes.
const WIDTHS: [u64; 4] = [2 * LINE_BYTES, LINE_BYTES, 2 * SECTOR_BYTES, SECTOR_BYTES];
const OF_ELEMENTS: u64 = 4 * LINE_BYTES;
/// Partials that a block of the second launch reads at most, where x has fewer bytes than LARGE, and else.
const PARTIALS: [u64; 2] = [2112, 8448];
const LARGE: u64 = 24 << 20;
/// Rows of up to so many bytes and accesses are divided into pairs of sectors alone. Those of an undivided tile are packed,
/// which is worth more partials.
const WHOLE: u64 = 1024;
const WHOLE_ACCESSES: u64 = 96;
const WHOLE_PARTIALS: u64 = 4;

/// The columns of a problem, as accesses.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// Sets of columns.
    pub outer: u64,
    /// Rows.
    pub length: u64,
    /// Accesses of a row, and the bytes and elements of one.
    pub accesses: u64,
    pub access_bytes: u64,
    pub elements: u64,
    /// Rows that a thread loads at once.
    pub batch_rows: u64,
}

/// Tiles of `across` accesses; `down` threads to each, and `batches` of their rows to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slices {
    pub across: u64,
    pub down: u64,
    pub batches: u64,
    /// Of a column.
    pub slices: u64,
    /// Along a row.
    pub tiles: u64,
}

impl Columns {
    /// The widest tiles that leave few partials to a block, in slices that keep all multiprocessors busy.
    pub fn slices(self, multiprocessors: u64) -> Slices {
        let row = self.accesses * self.access_bytes;
        let bytes = self.outer.saturating_mul(self.length).saturating_mul(row);
        let large = bytes >= LARGE;
        // A second block on a multiprocessor pays if all its threads have rows.
        let batch = THREADS * self.batch_rows * self.access_bytes;
        let shared = bytes >= SHARING * multiprocessors * batch;
        let resident = multiprocessors * if shared { SHARING } else { 1 };
        let most = PARTIALS[usize::from(large)];
        let of_width = |across: u64, most: u64| {
            let tiles = self.accesses.div_ceil(across);
            let slices = self.fill(tiles, resident);
            (tiles, slices.min((most / (across * self.elements)).max(1)), slices)
        };
        if row <= WHOLE && self.accesses <= WHOLE_ACCESSES && !row.is_multiple_of(2 * SECTOR_BYTES) {
            let (tiles, slices, _) = of_width(self.accesses, most * WHOLE_PARTIALS);
            return self.divided(tiles, slices);
        }
        let across = |width: u64| (width / self.access_bytes).clamp(1, self.accesses);
        let widest = (self.elements == 1 && self.access_bytes >= 4).then_some(OF_ELEMENTS);
        let widths = widest.into_iter().chain(WIDTHS);
        let fitting = widths.map(|width| of_width(across(width), most)).find(|(_, fit, all)| fit == all);
        let (tiles, slices, _) = fitting.unwrap_or_else(|| of_width(across(SECTOR_BYTES), most));
        self.divided(tiles, slices)
    }

    /// In about `slices` slices, and tiles of the best width for them.
    pub fn in_slices(self, slices: u64) -> Slices {
        let across = (WIDTHS[0] / self.access_bytes).clamp(1, self.accesses);
        self.divided(self.accesses.div_ceil(across), slices)
    }

    /// Slices of a column that fill waves of `resident` blocks: as few waves as leave no more than a tenth idle.
    fn fill(self, tiles: u64, resident: u64) -> u64 {
        let columns = tiles.saturating_mul(self.outer);
        let of_waves = |waves: u64| (waves * resident / columns).max(1);
        let tenths = |slices: &u64| {
            let blocks = columns.saturating_mul(*slices);
            (blocks.saturating_mul(20) / (blocks.div_ceil(resident) * resident)).div_ceil(2)
        };
        // The last of the largest is that of the fewest waves.
        (1..=4).rev().map(of_waves).max_by_key(tenths).unwrap_or(1)
    }

    fn divided(self, tiles: u64, slices: u64) -> Slices {
        let across = self.accesses.div_ceil(tiles);
        let slice = self.length.div_ceil(slices.clamp(1, MOST_SLICES));
        let down = (THREADS / across).min(slice.div_ceil(self.batch_rows));
        let batches = slice.div_ceil(self.batch_rows * down);
        let down = slice.div_ceil(self.batch_rows * batches);
        // Threads fill warps, and the additional ones have rows too.
        let down = (across * down).next_multiple_of(32) / across;
        let slices = self.length.div_ceil(self.batch_rows * down * batches);
        Slices { across, down, batches, slices, tiles }
    }
}

impl Slices {
    pub fn threads(&self) -> u64 {
        (self.across * self.down).next_multiple_of(32)
    }
}
