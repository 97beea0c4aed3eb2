//! Contiguous columns.

use super::{Chosen, SPLIT_FROM, SPREAD_TO, enough, idle};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::limits::LINE_BYTES;
use crate::cuda::plan::reason::{Metric, Reason};
use crate::cuda::plan::softmax::column_tile::{self, ColumnTile, of_width, room, widths};
use crate::cuda::plan::softmax::register_tile::{self, RegisterTile};
use crate::cuda::plan::softmax::split_columns;
use crate::cuda::plan::softmax::{Forced, Variant, contiguous_columns};
use crate::dtype::DType;
use crate::ops::softmax::SoftmaxProblem;

/// Clusters of so few blocks that two blocks keep a multiprocessor busy: they hardly wait for each other.
const FEW_BLOCKS: u64 = 4;
/// Rows of short columns, and bytes of a row that is not divided.
const SHORT_ROWS: u64 = 16;
const UNDIVIDED: u64 = 512;
/// Bytes from which two launches over the whole device are chosen where clusters leave most of it idle.
const SPLIT_TILES_FROM: u64 = 4 << 20;

/// None if the result is not aligned to its elements.
pub fn choose_columns(p: &SoftmaxProblem, device: &DeviceFacts, forced: Option<Forced>) -> Option<Chosen> {
    let multiprocessors = u64::from(device.multiprocessors);
    let largest = device.largest_cluster();
    let wanted = match forced {
        Some(Forced::Cluster(blocks)) if blocks.is_power_of_two() && blocks <= largest => {
            let mut tiles = widths(p).into_iter().map(|width| of_width(p, width, blocks, device));
            let in_registers = || register_tile::fit(p).filter(|_| blocks == 1).map(Variant::RegisterTile);
            tiles.find_map(|tile| tile.map(Variant::ColumnTile)).or_else(in_registers)
        }
        Some(Forced::Split(slices)) => {
            split_columns::fit(p, multiprocessors, Some(slices)).map(Variant::SplitColumns)
        }
        _ => None,
    };
    if let Some(wanted) = wanted {
        let own = choose_columns(p, device, None)?.0;
        return Some((wanted, Reason::asked_for(wanted.name(), own.name())));
    }
    let in_words = column_tile::word_bytes(p).is_some();
    let chosen = match short_tile(p).filter(|_| in_words) {
        Some(tile) => {
            let because = "the columns are short, and the registers of a thread hold its elements";
            let metrics = [("elements of a column", p.length.unsigned_abs()), ("at most", SHORT_ROWS)];
            return Some(Variant::RegisterTile(tile).because("column tile", because, metrics));
        }
        None if in_words => in_column_tiles(p, device),
        None => in_register_tiles(p, device),
    };
    match chosen {
        Ok(chosen) => Some(chosen),
        Err((over, because, metrics)) => {
            let split = split_columns::fit(p, multiprocessors, None).map(Variant::SplitColumns)?;
            Some(split.because(over, because, metrics))
        }
    }
}

/// Why columns are read twice, by two launches: the next best variant, the reason, and metrics.
type ReadTwice = (&'static str, &'static str, [Metric; 2]);

/// Short columns of float32, in accesses of 16 bytes: docs/measurements/softmax_register_tile.md.
fn short_tile(p: &SoftmaxProblem) -> Option<RegisterTile> {
    let row = contiguous_columns(p).saturating_mul(4);
    let length = p.length.unsigned_abs();
    let short = if row > UNDIVIDED { length <= SHORT_ROWS / 2 } else { row >= 256 && length <= SHORT_ROWS };
    let worth_it = short && p.x.dtype == DType::F32 && p.length > 1;
    worth_it.then(|| register_tile::fit(p))?
}

fn bytes(p: &SoftmaxProblem) -> u64 {
    let elements = p.length.unsigned_abs().saturating_mul(p.row_count().unsigned_abs());
    elements.saturating_mul(p.x.dtype.size() as u64)
}

/// Three blocks to a multiprocessor are faster than two, and two than one; but two are enough in clusters of few
/// blocks. Where rows begin within sectors, each row of a tile is parts of one more, and wide tiles are faster than many
/// blocks: docs/measurements/softmax_column_tile.md.
fn in_column_tiles(p: &SoftmaxProblem, device: &DeviceFacts) -> Result<Chosen, ReadTwice> {
    let largest = device.largest_cluster();
    let sharing = |least: u64, of_few: u64| {
        let tiles = widths(p).into_iter().flat_map(move |width| {
            let clusters = [1, 2, 4, 8, 16].into_iter().filter(move |&blocks| blocks <= largest);
            clusters.filter_map(move |blocks| of_width(p, width, blocks, device))
        });
        tiles.filter(move |tile| {
            let blocks = if tile.slices <= FEW_BLOCKS { of_few } else { least };
            let worth_it = tile.slices == 1 || tile.slice * tile.row_bytes(p) >= SPREAD_TO;
            worth_it && column_tile::shares(p, tile, blocks, device)
        })
    };
    let on_sectors = column_tile::rows_begin_on_sectors(p);
    let row = contiguous_columns(p) * p.x.dtype.size() as u64;
    let wide = |tile: &ColumnTile| {
        !idle(tile.blocks(p), device) && (on_sectors || tile.row_bytes(p) >= LINE_BYTES.min(row))
    };
    if let Some(tile) = sharing(3, 2).find(wide).or_else(|| sharing(2, 2).find(wide)) {
        let metrics = [("blocks that hold a column", tile.slices), ("at most", largest)];
        let because = "shared memory holds a column, so that it is read once";
        return Ok(Variant::ColumnTile(tile).because("split columns", because, metrics));
    }
    let all = bytes(p);
    let Some(tile) = sharing(2, 2).max_by_key(|tile| tile.blocks(p)) else {
        let narrowest = widths(p).last().copied().unwrap_or(0).saturating_mul(p.length.unsigned_abs());
        let metrics =
            [("bytes of the narrowest tile", narrowest), ("that would fit", largest * room(device))];
        let because = match largest {
            1 => "shared memory has no room for two tiles of columns",
            _ => "shared memory has no room for two clusters with a tile of columns each",
        };
        return Err(("column tile", because, metrics));
    };
    let blocks = tile.blocks(p);
    if all < SPLIT_TILES_FROM {
        let metrics = [("bytes in all", all), ("that would pay for two launches", SPLIT_TILES_FROM)];
        let because = "one launch is faster for so few bytes";
        Ok(Variant::ColumnTile(tile).because("split columns", because, metrics))
    } else if idle(blocks, device) {
        let metrics = [("blocks", blocks), ("that would be enough", enough(device))];
        Err(("column tile", "clusters that hold a column would leave multiprocessors idle", metrics))
    } else {
        let metrics =
            [("bytes of a tile's row", tile.row_bytes(p)), ("that would be enough", LINE_BYTES.min(row))];
        Err(("column tile", "the rows of tiles would be short, and begin within sectors", metrics))
    }
}

/// Columns that accesses of 4 bytes do not fit, and float64.
fn in_register_tiles(p: &SoftmaxProblem, device: &DeviceFacts) -> Result<Chosen, ReadTwice> {
    let all = bytes(p);
    let longest = register_tile::longest(p);
    let Some(tile) = register_tile::fit(p) else {
        let metrics =
            [("elements of a column", p.length.unsigned_abs()), ("that the threads of a tile hold", longest)];
        return Err(("register tile", "the registers of a block do not hold a tile of columns", metrics));
    };
    let blocks = tile.count(p);
    if idle(blocks, device) && all >= SPLIT_FROM {
        let metrics = [("blocks", blocks), ("that would be enough", enough(device))];
        return Err(("register tile", "blocks that hold a column would leave multiprocessors idle", metrics));
    }
    let metrics = [("elements of a column", p.length.unsigned_abs()), ("at most", longest)];
    let because = "the registers of a block hold a column, so that it is read once";
    Ok(Variant::RegisterTile(tile).because("split columns", because, metrics))
}
