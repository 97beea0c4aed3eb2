//! Rows that lie turned to their results.

use super::{Chosen, SPLIT_FROM, SPREAD_TO, idle};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::reason::Reason;
use crate::cuda::plan::softmax::turned::{MOST_SLICES, Short, Side, Turned, of_slices};
use crate::cuda::plan::softmax::{Forced, Variant};
use crate::ops::softmax::SoftmaxProblem;

/// Blocks of a cluster: sixteen at once find places on too few multiprocessors.
const MOST_BLOCKS: u64 = 8;

/// None if no tile is possible.
pub fn choose_turned(
    p: &SoftmaxProblem,
    side: Side,
    device: &DeviceFacts,
    forced: Option<Forced>,
) -> Option<Chosen> {
    let largest = device.largest_cluster().min(MOST_BLOCKS);
    let wanted = match forced {
        Some(Forced::Cluster(blocks)) if super::possible(blocks, device) => {
            Turned::new(p, side, blocks, true, device)
        }
        Some(Forced::Split(slices)) => {
            let count = of_slices(p, side, 1, device).map_or(1, |one| one.count(p));
            of_slices(p, side, slices.saturating_mul(count), device)
        }
        _ => None,
    };
    if let Some(wanted) = wanted.map(Variant::Turned) {
        let own = choose_turned(p, side, device, None).map_or("general", |(own, _)| own.name());
        return Some((wanted, Reason::asked_for(wanted.name(), own)));
    }
    if let Some(short) = Short::new(p, side) {
        let because =
            "rows of few elements lie one behind the other in x or in the result, and a thread has one";
        let figures = [("elements of a row", p.length.unsigned_abs()), ("rows of a block", short.wide())];
        return Some(Variant::TurnedShort(short).because("turned", because, figures));
    }
    let sharing = |blocks: u64| {
        let clusters = [1, 2, 4, 8].into_iter().filter(move |&blocks| blocks <= largest);
        let tiles = clusters.filter_map(move |slices| Turned::new(p, side, slices, true, device));
        tiles.filter(move |tile| {
            let worth_it = tile.slices == 1 || tile.tile_bytes(p) >= SPREAD_TO;
            worth_it && tile.shares(p, blocks, device)
        })
    };
    let busy = |tile: &Turned| !idle(tile.blocks(p), device);
    let elements = p.length.unsigned_abs().saturating_mul(p.row_count().unsigned_abs());
    let bytes = elements.saturating_mul(p.x.dtype.size() as u64);
    let held = [3, 2, 1].into_iter().find_map(|blocks| sharing(blocks).find(busy));
    let least = || sharing(1).max_by_key(|tile| tile.blocks(p)).filter(|_| bytes < SPLIT_FROM);
    if let Some(tile) = held.or_else(least) {
        let figures = [("blocks that hold a row", tile.slices), ("at most", largest)];
        let because = "rows and results lie turned to each other, and shared memory holds a row";
        return Some(Variant::Turned(tile).because("general", because, figures));
    }
    let tile = of_slices(p, side, 2 * u64::from(device.multiprocessors), device)?;
    let because = "clusters that hold a row would leave multiprocessors idle, or there are none";
    let figures = [("slices of a row", tile.slices), ("at most", MOST_SLICES)];
    Some(Variant::Turned(tile).because("general", because, figures))
}
