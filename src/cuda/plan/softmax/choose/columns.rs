//! Contiguous columns.

use super::{Chosen, SPLIT_FROM, SPREAD_TO, enough, idle};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::limits::{LINE_BYTES, MOST_SLICES};
use crate::cuda::plan::reason::{Metric, Reason};
use crate::cuda::plan::softmax::column_tile::{self, ColumnTile, of_width, widths};
use crate::cuda::plan::softmax::register_tile::{self, RegisterTile};
use crate::cuda::plan::softmax::rows::exchange_bytes;
use crate::cuda::plan::softmax::{Forced, STATIC_SHARED, STRIDED_THREADS, VECTOR_BYTES, Variant, columns};
use crate::dtype::DType;
use crate::ops::softmax::SoftmaxProblem;

/// Clusters of so few blocks that two blocks keep a multiprocessor busy: they hardly wait for each other.
const FEW_BLOCKS: u64 = 4;
/// Rows of short columns, and bytes of a row that is not divided.
const SHORT_ROWS: u64 = 16;
const UNDIVIDED: u64 = 512;
/// Bytes from which two launches over the whole device are chosen where clusters leave most of it idle.
const SPLIT_TILES_FROM: u64 = 4 << 20;

pub fn choose_columns(p: &SoftmaxProblem, device: &DeviceFacts, forced: Option<Forced>) -> Chosen {
    let largest = device.largest_cluster();
    let wanted = match forced {
        Some(Forced::Column) => Some(choose_column(p, device)),
        Some(Forced::Cluster(blocks)) if blocks.is_power_of_two() && blocks <= largest => {
            let mut tiles = widths(p).into_iter().map(|width| of_width(p, width, blocks, true, device));
            let in_registers = || register_tile::of_cluster(p, blocks, blocks).map(Variant::RegisterTile);
            tiles.find_map(|tile| tile.map(Variant::ColumnTile)).or_else(in_registers)
        }
        Some(Forced::Split(slices)) => {
            let in_registers = || register_tile::of_slices(p, slices).map(Variant::RegisterTile);
            column_tile::of_slices(p, slices, device).map(Variant::ColumnTile).or_else(in_registers)
        }
        _ => None,
    };
    if let Some(wanted) = wanted {
        let own = choose_columns(p, device, None).0;
        return (wanted, Reason::asked_for(wanted.name(), own.name()));
    }
    let in_words = column_tile::word_bytes(p).is_some();
    let chosen = match short_tile(p).filter(|_| in_words) {
        Some(tile) => {
            let because = "the columns are short, and the registers of a thread hold its elements";
            let metrics = [("elements of a column", p.length.unsigned_abs()), ("at most", SHORT_ROWS)];
            Ok(Variant::RegisterTile(tile).because("column tile", because, metrics))
        }
        None if in_words => in_column_tiles(p, device),
        None => in_register_tiles(p, device),
    };
    chosen.unwrap_or_else(|(over, because, metrics)| {
        let column = choose_column(p, device);
        (column, Reason { chosen: column.name(), over: Some(over), because, metrics })
    })
}

/// Why columns are read twice: the next best variant, the reason, and metrics.
type ReadTwice = (&'static str, &'static str, Option<[Metric; 2]>);

/// Short columns of float32, in accesses of 16 bytes: docs/measurements/softmax_register_tile.md.
fn short_tile(p: &SoftmaxProblem) -> Option<RegisterTile> {
    let row = columns(p).map_or(1, |(_, columns)| columns).saturating_mul(4);
    let length = p.length.unsigned_abs();
    let short = if row > UNDIVIDED { length <= SHORT_ROWS / 2 } else { row >= 256 && length <= SHORT_ROWS };
    let worth_it = short && p.x.dtype == DType::F32 && p.length > 1;
    worth_it.then(|| register_tile::of_cluster(p, 1, 1))?
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
            clusters.filter_map(move |blocks| of_width(p, width, blocks, true, device))
        });
        tiles.filter(move |tile| {
            let blocks = if tile.slices <= FEW_BLOCKS { of_few } else { least };
            let worth_it = tile.slices == 1 || tile.slice * tile.row_bytes(p) >= SPREAD_TO;
            worth_it && column_tile::shares(p, tile, blocks, device)
        })
    };
    let busy = |tile: &ColumnTile| !idle(tile.blocks(p), device);
    let all = bytes(p);
    let on_sectors = column_tile::rows_begin_on_sectors(p);
    let wide = |tile: &ColumnTile| busy(tile) && (on_sectors || tile.row_bytes(p) >= LINE_BYTES);
    let found = sharing(3, 2).find(wide).or_else(|| sharing(2, 2).find(wide));
    if let Some(tile) = found.or_else(|| sharing(3, 2).find(busy)).or_else(|| sharing(2, 2).find(busy)) {
        let metrics = [("blocks that hold a column", tile.slices), ("at most", largest)];
        let because = "shared memory holds a column, so that it is read once";
        return Ok(Variant::ColumnTile(tile).because("column", because, metrics));
    }
    let most = sharing(2, 2).max_by_key(|tile| tile.blocks(p));
    if let Some(tile) = most.filter(|_| all < SPLIT_TILES_FROM) {
        let metrics = [("bytes in all", all), ("that would pay for two launches", SPLIT_TILES_FROM)];
        let because = "there are few bytes, and blocks for few multiprocessors";
        return Ok(Variant::ColumnTile(tile).because("split column tile", because, metrics));
    }
    if all < SPLIT_FROM {
        let metrics = [("bytes in all", all), ("that would pay for two launches", SPLIT_FROM)];
        return Err((
            "split column tile",
            "no cluster holds a column, and there are few bytes",
            Some(metrics),
        ));
    }
    match column_tile::of_slices(p, u64::from(device.multiprocessors), device) {
        Some(tile) => {
            let because = "clusters that hold a column would leave multiprocessors idle, or there are none";
            let metrics = [("slices of a column", tile.slices), ("at most", MOST_SLICES)];
            Ok(Variant::ColumnTile(tile).because("column", because, metrics))
        }
        None => {
            let metrics =
                [("elements of a column", p.length.unsigned_abs()), ("slices at most", MOST_SLICES)];
            Err((
                "split column tile",
                "no cluster holds a column, and slices would be too long for shared memory",
                Some(metrics),
            ))
        }
    }
}

/// Columns that accesses of 4 bytes do not fit, and float64.
fn in_register_tiles(p: &SoftmaxProblem, device: &DeviceFacts) -> Result<Chosen, ReadTwice> {
    let (largest, multiprocessors) = (device.largest_cluster(), u64::from(device.multiprocessors));
    let blocks = |tile: &RegisterTile| tile.count(p).saturating_mul(tile.slices);
    let of_fitting = |tile: &RegisterTile| {
        let metrics = [("blocks that hold a column", tile.slices), ("at most", largest)];
        Variant::RegisterTile(*tile).because(
            "column",
            "a column fits registers, so that it is read once",
            metrics,
        )
    };
    if register_tile::access_elements(p).is_none() {
        let because = "the result is not aligned to its elements";
        return Err(("register tile", because, None));
    }
    let fitting = register_tile::of_cluster(p, 1, largest);
    if let Some(tile) = fitting.filter(|tile| !idle(blocks(tile), device)) {
        return Ok(of_fitting(&tile));
    }
    // More blocks to a column, as long as each has rows for its threads.
    let widened = [2, 4, 8, 16].into_iter().filter(|&blocks| blocks <= largest);
    let worth_it = |tile: &RegisterTile| tile.slice * tile.wide() * p.x.dtype.size() as u64 >= SPREAD_TO;
    let spread: Vec<RegisterTile> =
        widened.filter_map(|blocks| register_tile::of_cluster(p, blocks, blocks)).filter(worth_it).collect();
    if let Some(&tile) = spread.iter().find(|tile| !idle(blocks(tile), device)).or(spread.last()) {
        let few = fitting.map_or(0, |tile| blocks(&tile));
        let metrics = [("blocks with fewer", few), ("that would be enough", enough(device))];
        let because = "fewer blocks to a column would leave multiprocessors idle";
        return Ok(Variant::RegisterTile(tile).because("register tile of fewer blocks", because, metrics));
    }
    if let Some(tile) = fitting {
        return Ok(of_fitting(&tile));
    }
    let few = [("tiles", register_tile::narrowest(p)), ("that would be enough", enough(device))];
    let long = bytes(p) >= SPLIT_FROM;
    if let Some(tile) =
        register_tile::of_slices(p, multiprocessors).filter(|_| long && idle(few[0].1, device))
    {
        let because = "no cluster holds a column, and one block each would leave multiprocessors idle";
        return Ok(Variant::RegisterTile(tile).because("column", because, few));
    }
    let twice = |because, metrics| Err(("split register tile", because, Some(metrics)));
    if !long {
        let metrics = [("bytes in all", bytes(p)), ("that would pay for two launches", SPLIT_FROM)];
        twice("no cluster holds a column, and there are few bytes", metrics)
    } else if idle(few[0].1, device) {
        let metrics = [("elements of a column", p.length.unsigned_abs()), ("slices at most", MOST_SLICES)];
        twice("no cluster holds a column, and slices would be too long for registers", metrics)
    } else {
        twice("no cluster holds a column, and there are columns for all multiprocessors", few)
    }
}

/// Two passes, for columns that fit neither registers nor shared memory.
fn choose_column(p: &SoftmaxProblem, device: &DeviceFacts) -> Variant {
    let lanes = VECTOR_BYTES / p.x.dtype.size() as u64;
    let vectors = columns(p).map_or(1, |(_, columns)| columns.div_ceil(lanes));
    let length = p.length.unsigned_abs();
    let budget = u64::from(device.shared_bytes_per_block)
        .min(u64::from(device.shared_bytes_per_multiprocessor) / 2 - STATIC_SHARED)
        - exchange_bytes(p);
    let vectors_per_thread = budget / (STRIDED_THREADS * VECTOR_BYTES);
    // A line of 128 bytes wide if shared memory holds all of it; at least a sector of 32 bytes; at most all columns.
    let widest = vectors.next_power_of_two().trailing_zeros().min(3);
    let rounds = |lane_bits: u32| length.div_ceil(STRIDED_THREADS >> lane_bits);
    let lane_bits =
        (1..=widest).rev().find(|&bits| rounds(bits) <= vectors_per_thread).unwrap_or(widest.min(1));
    // Short rows: more columns, so that no thread is idle. Two threads at least share a column, because
    // the exchange has room for half of the threads.
    let down = length.next_power_of_two().clamp(2, STRIDED_THREADS);
    let spare = (STRIDED_THREADS / down).trailing_zeros();
    let lane_bits = lane_bits.max(spare.min(vectors.next_power_of_two().trailing_zeros()));
    Variant::Column { lane_bits, vectors_per_thread: vectors_per_thread.min(rounds(lane_bits)) }
}
