//! Rows that are contiguous in x or in the result, and across rows in the other: which tile (tiles: ../transposed.rs).

use super::{Chosen, SPLIT_FROM, SPREAD_TO, idle};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::limits::MOST_SLICES;
use crate::cuda::plan::reason::Reason;
use crate::cuda::plan::softmax::transposed::{Short, Side, Transposed, of_slices};
use crate::cuda::plan::softmax::{Forced, Variant};
use crate::ops::softmax::SoftmaxProblem;

/// The most blocks of a cluster: clusters of sixteen leave too many multiprocessors idle.
const MOST_BLOCKS: u64 = 8;

/// None if no tile is possible.
pub fn choose_transposed(
    p: &SoftmaxProblem,
    side: Side,
    device: &DeviceFacts,
    forced: Option<Forced>,
) -> Option<Chosen> {
    let largest = device.largest_cluster().min(MOST_BLOCKS);
    let wanted = match forced {
        Some(Forced::Cluster(blocks)) if super::possible(blocks, device) => {
            Transposed::new(p, side, blocks, true, device)
        }
        Some(Forced::Split(slices)) => {
            let count = of_slices(p, side, 1, device).map_or(1, |one| one.count(p));
            of_slices(p, side, slices.saturating_mul(count), device)
        }
        _ => None,
    };
    if let Some(wanted) = wanted.map(Variant::Transposed) {
        let own = choose_transposed(p, side, device, None).map_or("general", |(own, _)| own.name());
        return Some((wanted, Reason::asked_for(wanted.name(), own)));
    }
    if let Some(short) = Short::new(p, side) {
        let because = "the rows are short, and packed in x or in the result, and a thread holds one";
        let metrics =
            [("elements of a row", p.length.unsigned_abs()), ("rows of a block", short.rows_of_block())];
        return Some(Variant::TransposedShort(short).because("transposed", because, metrics));
    }
    let sharing = |blocks: u64| {
        let clusters = [1, 2, 4, 8].into_iter().filter(move |&blocks| blocks <= largest);
        let tiles = clusters.filter_map(move |slices| Transposed::new(p, side, slices, true, device));
        tiles.filter(move |tile| {
            let worth_it = tile.slices == 1 || tile.tile_bytes(p) >= SPREAD_TO;
            worth_it && tile.shares(p, blocks, device)
        })
    };
    let busy = |tile: &Transposed| !idle(tile.blocks(p), device);
    let elements = p.length.unsigned_abs().saturating_mul(p.row_count().unsigned_abs());
    let bytes = elements.saturating_mul(p.x.dtype.size() as u64);
    // The smallest cluster of whose blocks three share a multiprocessor; else two. A cluster of blocks that share none would
    // load, exchange and store in turns, and loses to two launches; a block without a cluster has not been compared.
    let shared = || [3, 2].into_iter().find_map(|blocks| sharing(blocks).find(busy));
    let single_read = shared().or_else(|| sharing(1).find(|tile| tile.slices == 1 && busy(tile)));
    let least = || sharing(1).max_by_key(|tile| tile.blocks(p)).filter(|_| bytes < SPLIT_FROM);
    if let Some(tile) = single_read.or_else(least) {
        let metrics = [("blocks that hold a row", tile.slices), ("at most", largest)];
        let because = "x and result are transposed to each other, and a row fits in shared memory";
        return Some(Variant::Transposed(tile).because("general", because, metrics));
    }
    let tile = of_slices(p, side, 2 * u64::from(device.multiprocessors), device)?;
    let because = "no cluster holds a row, or its blocks share no multiprocessor, or there are too few";
    let metrics = [("slices of a row", tile.slices), ("at most", MOST_SLICES)];
    Some(Variant::Transposed(tile).because("general", because, metrics))
}
