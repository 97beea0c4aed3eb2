//! Rows that lie side by side.

use super::{Chosen, SPLIT_FROM, SPREAD_TO, enough, idle};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::reason::Reason;
use crate::cuda::plan::softmax::rows::exchange_bytes;
use crate::cuda::plan::softmax::tile::{self, Tile};
use crate::cuda::plan::softmax::{Forced, GRANULE, STATIC_SHARED, STRIDED_THREADS, Variant, columns};
use crate::ops::softmax::SoftmaxProblem;

pub fn choose_columns(p: &SoftmaxProblem, device: &DeviceFacts, forced: Option<Forced>) -> Chosen {
    let (largest, multiprocessors) = (device.largest_cluster(), u64::from(device.multiprocessors));
    let wanted = match forced {
        Some(Forced::Column) => Some(choose_column(p, device)),
        Some(Forced::Cluster(blocks)) if blocks.is_power_of_two() && blocks <= largest => {
            tile::of_cluster(p, blocks, blocks).map(Variant::Tile)
        }
        Some(Forced::Split(slices)) => tile::of_slices(p, slices).map(Variant::Tile),
        _ => None,
    };
    if let Some(wanted) = wanted {
        let own = choose_columns(p, device, None).0;
        return (wanted, Reason::asked_for(wanted.name(), own.name()));
    }
    let blocks = |tile: &Tile| tile.count(p).saturating_mul(tile.slices);
    let of_fitting = |tile: &Tile| {
        let figures = [("blocks that hold a column", tile.slices), ("at most", largest)];
        Variant::Tile(*tile).because("column", "a column fits registers, so that it is read once", figures)
    };
    if tile::access_elements(p).is_none() {
        let because = "the result lies between boundaries of its elements";
        let column = choose_column(p, device);
        return (column, Reason::plain(column.name(), "tile", because));
    }
    let fitting = tile::of_cluster(p, 1, largest);
    if let Some(tile) = fitting.filter(|tile| !idle(blocks(tile), device)) {
        return of_fitting(&tile);
    }
    // More blocks to a column, while each has rows for its threads.
    let widened = [2, 4, 8, 16].into_iter().filter(|&blocks| blocks <= largest);
    let worth_it = |tile: &Tile| tile.slice * tile.wide() * p.x.dtype.size() as u64 >= SPREAD_TO;
    let spread: Vec<Tile> =
        widened.filter_map(|blocks| tile::of_cluster(p, blocks, blocks)).filter(worth_it).collect();
    if let Some(&tile) = spread.iter().find(|tile| !idle(blocks(tile), device)).or(spread.last()) {
        let few = fitting.map_or(0, |tile| blocks(&tile));
        let figures = [("blocks with fewer", few), ("that would be enough", enough(device))];
        let because = "fewer blocks to a column would leave multiprocessors idle";
        return Variant::Tile(tile).because("tile of fewer blocks", because, figures);
    }
    if let Some(tile) = fitting {
        return of_fitting(&tile);
    }
    let elements = p.length.unsigned_abs().saturating_mul(p.row_count().unsigned_abs());
    let bytes = elements.saturating_mul(p.x.dtype.size() as u64);
    let few = [("tiles", tile::narrowest(p)), ("that would be enough", enough(device))];
    let long = bytes >= SPLIT_FROM;
    if let Some(tile) = tile::of_slices(p, multiprocessors).filter(|_| long && idle(few[0].1, device)) {
        let because = "no cluster holds a column, and one block each would leave multiprocessors idle";
        return Variant::Tile(tile).because("column", because, few);
    }
    let column = choose_column(p, device);
    let because = |because, figures| column.because("split tile", because, figures);
    if !long {
        let figures = [("bytes in all", bytes), ("that would pay for two launches", SPLIT_FROM)];
        because("no cluster holds a column, and there is little to do", figures)
    } else if idle(few[0].1, device) {
        let figures = [("rows of a column", p.length.unsigned_abs()), ("slices at most", tile::MOST_SLICES)];
        because("no cluster holds a column, and no kernel takes slices so long", figures)
    } else {
        because("no cluster holds a column, and there are columns for all multiprocessors", few)
    }
}

/// Two passes, for columns that fit nowhere.
fn choose_column(p: &SoftmaxProblem, device: &DeviceFacts) -> Variant {
    let lanes = GRANULE / p.x.dtype.size() as u64;
    let granules = columns(p).map_or(1, |(_, columns)| columns.div_ceil(lanes));
    let length = p.length.unsigned_abs();
    let budget = u64::from(device.shared_bytes_per_block)
        .min(u64::from(device.shared_bytes_per_multiprocessor) / 2 - STATIC_SHARED)
        - exchange_bytes(p);
    let slots = budget / (STRIDED_THREADS * GRANULE);
    // As wide as the rows' shared line of 128 bytes while all of it stays in shared memory; not below a
    // sector of 32 bytes; and not wider than there are columns.
    let widest = granules.next_power_of_two().trailing_zeros().min(3);
    let rounds = |lane_bits: u32| length.div_ceil(STRIDED_THREADS >> lane_bits);
    let lane_bits = (1..=widest).rev().find(|&bits| rounds(bits) <= slots).unwrap_or(widest.min(1));
    // Short rows: more columns, so that no thread is idle. Two threads at least share a column, because
    // the exchange has room for half of the threads.
    let down = length.next_power_of_two().clamp(2, STRIDED_THREADS);
    let spare = (STRIDED_THREADS / down).trailing_zeros();
    let lane_bits = lane_bits.max(spare.min(granules.next_power_of_two().trailing_zeros()));
    Variant::Column { lane_bits, slots: slots.min(rounds(lane_bits)) }
}
