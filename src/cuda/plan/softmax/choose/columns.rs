//! Rows that lie side by side.

use super::{Chosen, SPLIT_FROM, SPREAD_TO, enough, idle};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::reason::{Metric, Reason};
use crate::cuda::plan::softmax::panel::{self, Panel, of_width, widths};
use crate::cuda::plan::softmax::rows::exchange_bytes;
use crate::cuda::plan::softmax::tile::{self, Tile};
use crate::cuda::plan::softmax::{Forced, STATIC_SHARED, STRIDED_THREADS, VECTOR_BYTES, Variant, columns};
use crate::dtype::DType;
use crate::ops::softmax::SoftmaxProblem;

/// Blocks of a cluster that hardly wait for each other, so that two of them keep a multiprocessor busy.
const FEW_BLOCKS: u64 = 4;
/// Rows of short columns, and bytes of a row that is not divided.
const SHORT_ROWS: u64 = 16;
const SHORT_PIECE: u64 = 512;
/// Bytes from which two launches over the whole device are chosen where clusters leave most of it idle.
const SPLIT_PANELS_FROM: u64 = 4 << 20;

pub fn choose_columns(p: &SoftmaxProblem, device: &DeviceFacts, forced: Option<Forced>) -> Chosen {
    let largest = device.largest_cluster();
    let wanted = match forced {
        Some(Forced::Column) => Some(choose_column(p, device)),
        Some(Forced::Cluster(blocks)) if blocks.is_power_of_two() && blocks <= largest => {
            let mut panels = widths(p).into_iter().map(|width| of_width(p, width, blocks, true, device));
            let tile = || tile::of_cluster(p, blocks, blocks).map(Variant::Tile);
            panels.find_map(|panel| panel.map(Variant::Panel)).or_else(tile)
        }
        Some(Forced::Split(slices)) => {
            let tile = || tile::of_slices(p, slices).map(Variant::Tile);
            panel::of_slices(p, slices, device).map(Variant::Panel).or_else(tile)
        }
        _ => None,
    };
    if let Some(wanted) = wanted {
        let own = choose_columns(p, device, None).0;
        return (wanted, Reason::asked_for(wanted.name(), own.name()));
    }
    let in_words = panel::word_bytes(p).is_some();
    let chosen = match short_tile(p).filter(|_| in_words) {
        Some(tile) => {
            let because = "a thread holds its part of such short columns in registers";
            let metrics = [("rows of a column", p.length.unsigned_abs()), ("at most", SHORT_ROWS)];
            Ok(Variant::Tile(tile).because("panel", because, metrics))
        }
        None if in_words => in_panels(p, device),
        None => in_tiles(p, device),
    };
    chosen.unwrap_or_else(|(over, because, metrics)| {
        let column = choose_column(p, device);
        (column, Reason { chosen: column.name(), over: Some(over), because, metrics })
    })
}

/// Why columns are read twice: instead of what, and metrics.
type Twice = (&'static str, &'static str, Option<[Metric; 2]>);

/// Short columns of float32, in accesses of 16 bytes: docs/measurements/softmax_tile.md.
fn short_tile(p: &SoftmaxProblem) -> Option<Tile> {
    let row = columns(p).map_or(1, |(_, columns)| columns).saturating_mul(4);
    let length = p.length.unsigned_abs();
    let short = if row > SHORT_PIECE { length <= SHORT_ROWS / 2 } else { row >= 256 && length <= SHORT_ROWS };
    let worth_it = short && p.x.dtype == DType::F32 && p.length > 1;
    worth_it.then(|| tile::of_cluster(p, 1, 1))?
}

fn bytes(p: &SoftmaxProblem) -> u64 {
    let elements = p.length.unsigned_abs().saturating_mul(p.row_count().unsigned_abs());
    elements.saturating_mul(p.x.dtype.size() as u64)
}

/// Three blocks to a multiprocessor are better than two, and two than one; but in clusters of few blocks two are enough:
/// docs/measurements/softmax_panel.md.
fn in_panels(p: &SoftmaxProblem, device: &DeviceFacts) -> Result<Chosen, Twice> {
    let largest = device.largest_cluster();
    let sharing = |least: u64, of_few: u64| {
        let panels = widths(p).into_iter().flat_map(move |width| {
            let clusters = [1, 2, 4, 8, 16].into_iter().filter(move |&blocks| blocks <= largest);
            clusters.filter_map(move |blocks| of_width(p, width, blocks, true, device))
        });
        panels.filter(move |panel| {
            let share = if panel.slices <= FEW_BLOCKS { of_few } else { least };
            let worth_it = panel.slices == 1 || panel.slice * panel.row_bytes(p) >= SPREAD_TO;
            worth_it && panel::shares(p, panel, share, device)
        })
    };
    let busy = |panel: &Panel| !idle(panel.blocks(p), device);
    let all = bytes(p);
    if let Some(panel) = sharing(3, 2).find(busy).or_else(|| sharing(2, 2).find(busy)) {
        let metrics = [("blocks that hold a column", panel.slices), ("at most", largest)];
        let because = "shared memory holds a column, so that it is read once";
        return Ok(Variant::Panel(panel).because("column", because, metrics));
    }
    let most = sharing(2, 2).max_by_key(|panel| panel.blocks(p));
    if let Some(panel) = most.filter(|_| all < SPLIT_PANELS_FROM) {
        let metrics = [("bytes in all", all), ("that would pay for two launches", SPLIT_PANELS_FROM)];
        let because = "there is little to do, and blocks for few multiprocessors";
        return Ok(Variant::Panel(panel).because("split panel", because, metrics));
    }
    if all < SPLIT_FROM {
        let metrics = [("bytes in all", all), ("that would pay for two launches", SPLIT_FROM)];
        return Err(("split panel", "no cluster holds a column, and there is little to do", Some(metrics)));
    }
    match panel::of_slices(p, u64::from(device.multiprocessors), device) {
        Some(panel) => {
            let because = "clusters that hold a column would leave multiprocessors idle, or there are none";
            let metrics = [("slices of a column", panel.slices), ("at most", panel::MOST_SLICES)];
            Ok(Variant::Panel(panel).because("column", because, metrics))
        }
        None => {
            let metrics =
                [("rows of a column", p.length.unsigned_abs()), ("slices at most", panel::MOST_SLICES)];
            Err((
                "split panel",
                "no cluster holds a column, and no kernel takes slices so long",
                Some(metrics),
            ))
        }
    }
}

/// What accesses of 4 bytes do not fit, and float64.
fn in_tiles(p: &SoftmaxProblem, device: &DeviceFacts) -> Result<Chosen, Twice> {
    let (largest, multiprocessors) = (device.largest_cluster(), u64::from(device.multiprocessors));
    let blocks = |tile: &Tile| tile.count(p).saturating_mul(tile.slices);
    let of_fitting = |tile: &Tile| {
        let metrics = [("blocks that hold a column", tile.slices), ("at most", largest)];
        Variant::Tile(*tile).because("column", "a column fits registers, so that it is read once", metrics)
    };
    if tile::access_elements(p).is_none() {
        let because = "the result lies between boundaries of its elements";
        return Err(("tile", because, None));
    }
    let fitting = tile::of_cluster(p, 1, largest);
    if let Some(tile) = fitting.filter(|tile| !idle(blocks(tile), device)) {
        return Ok(of_fitting(&tile));
    }
    // More blocks to a column, while each has rows for its threads.
    let widened = [2, 4, 8, 16].into_iter().filter(|&blocks| blocks <= largest);
    let worth_it = |tile: &Tile| tile.slice * tile.wide() * p.x.dtype.size() as u64 >= SPREAD_TO;
    let spread: Vec<Tile> =
        widened.filter_map(|blocks| tile::of_cluster(p, blocks, blocks)).filter(worth_it).collect();
    if let Some(&tile) = spread.iter().find(|tile| !idle(blocks(tile), device)).or(spread.last()) {
        let few = fitting.map_or(0, |tile| blocks(&tile));
        let metrics = [("blocks with fewer", few), ("that would be enough", enough(device))];
        let because = "fewer blocks to a column would leave multiprocessors idle";
        return Ok(Variant::Tile(tile).because("tile of fewer blocks", because, metrics));
    }
    if let Some(tile) = fitting {
        return Ok(of_fitting(&tile));
    }
    let few = [("tiles", tile::narrowest(p)), ("that would be enough", enough(device))];
    let long = bytes(p) >= SPLIT_FROM;
    if let Some(tile) = tile::of_slices(p, multiprocessors).filter(|_| long && idle(few[0].1, device)) {
        let because = "no cluster holds a column, and one block each would leave multiprocessors idle";
        return Ok(Variant::Tile(tile).because("column", because, few));
    }
    let twice = |because, metrics| Err(("split tile", because, Some(metrics)));
    if !long {
        let metrics = [("bytes in all", bytes(p)), ("that would pay for two launches", SPLIT_FROM)];
        twice("no cluster holds a column, and there is little to do", metrics)
    } else if idle(few[0].1, device) {
        let metrics = [("rows of a column", p.length.unsigned_abs()), ("slices at most", tile::MOST_SLICES)];
        twice("no cluster holds a column, and no kernel takes slices so long", metrics)
    } else {
        twice("no cluster holds a column, and there are columns for all multiprocessors", few)
    }
}

/// Two passes, for columns that fit nowhere.
fn choose_column(p: &SoftmaxProblem, device: &DeviceFacts) -> Variant {
    let lanes = VECTOR_BYTES / p.x.dtype.size() as u64;
    let vectors = columns(p).map_or(1, |(_, columns)| columns.div_ceil(lanes));
    let length = p.length.unsigned_abs();
    let budget = u64::from(device.shared_bytes_per_block)
        .min(u64::from(device.shared_bytes_per_multiprocessor) / 2 - STATIC_SHARED)
        - exchange_bytes(p);
    let slots = budget / (STRIDED_THREADS * VECTOR_BYTES);
    // As wide as the rows' shared line of 128 bytes while all of it stays in shared memory; not below a
    // sector of 32 bytes; and not wider than there are columns.
    let widest = vectors.next_power_of_two().trailing_zeros().min(3);
    let rounds = |lane_bits: u32| length.div_ceil(STRIDED_THREADS >> lane_bits);
    let lane_bits = (1..=widest).rev().find(|&bits| rounds(bits) <= slots).unwrap_or(widest.min(1));
    // Short rows: more columns, so that no thread is idle. Two threads at least share a column, because
    // the exchange has room for half of the threads.
    let down = length.next_power_of_two().clamp(2, STRIDED_THREADS);
    let spare = (STRIDED_THREADS / down).trailing_zeros();
    let lane_bits = lane_bits.max(spare.min(vectors.next_power_of_two().trailing_zeros()));
    Variant::Column { lane_bits, slots: slots.min(rounds(lane_bits)) }
}
