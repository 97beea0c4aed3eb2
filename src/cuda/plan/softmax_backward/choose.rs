//! Which variant the rows of a gradient get, and why. None of them has been measured.

use super::{
    BLOCK_THREADS, BLOCK_VECTORS, GRANULE, INLINE_RANK, LONG_VECTORS, RowShape, Variant, general,
    largest_cluster, pair_suffix, ragged_rows, row_shape, tile,
};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::ragged;
use crate::cuda::plan::reason::{Figure, Reason};
use crate::cuda::plan::softmax::Forced;
use crate::ops::softmax_backward::SoftmaxBackwardProblem;

/// What the registers of one warp hold of a row.
const WARP_BYTES: u64 = 32 * 4 * GRANULE;

impl Variant {
    /// The part of its kernels' names that tells it from the others.
    fn name(self) -> &'static str {
        match self {
            Variant::Warp { .. } => "warp",
            Variant::Cluster { .. } => "cluster",
            Variant::Long { .. } => "long",
            Variant::Split { .. } => "split",
            Variant::Ragged(_) => ragged::NAME,
            Variant::General { .. } => "general",
        }
    }

    fn because(
        self,
        over: &'static str,
        because: &'static str,
        figures: [Figure; 2],
    ) -> (Option<Variant>, Reason) {
        (Some(self), Reason::new(self.name(), over, because, figures))
    }
}

/// No variant for what is best done in tiles of columns.
pub fn choose(
    p: &SoftmaxBackwardProblem,
    device: &DeviceFacts,
    forced: Option<Forced>,
) -> (Option<Variant>, Reason) {
    let plain = |because| {
        let general = general(p);
        (Some(general), Reason::plain(general.name(), "those that load 16 bytes at once", because))
    };
    if [&p.grad, &p.output, &p.out].iter().any(|t| !t.address.is_multiple_of(t.dtype.size())) {
        return plain("an operand lies between boundaries of its elements");
    }
    let tile = |because| (None, Reason::plain("tile", "general", because));
    let columns = tile::columns(p).is_some();
    match row_shape(p) {
        // Rows of one element are best read as columns, in whole granules.
        _ if columns && p.length == 1 => tile("rows of one element lie side by side"),
        Some(_) if pair_suffix(p).is_none() => plain("they do not know this change of dtype"),
        Some(_) if p.rows.len() > INLINE_RANK => plain("there are more dimensions than they have room for"),
        Some(shape) => {
            let (row, why) = choose_row(p, device, shape);
            let instead = row.map_or("", Variant::name);
            match forced {
                None => in_tiles(p, device).map(|ragged| (Some(ragged), ragged_rows(p).why(instead))),
                Some(Forced::Ragged(stages)) => ragged_rows(p)
                    .choose(device, Some(stages))
                    .map(|ragged| (Some(Variant::Ragged(ragged)), Reason::asked_for(ragged::NAME, instead))),
                Some(_) => None,
            }
            .unwrap_or((row, why))
        }
        None if columns => tile("rows lie side by side"),
        None => plain("neither a row's elements nor rows lie side by side"),
    }
}

/// Not where rows are so few and long that the blocks of a cluster should share them.
fn in_tiles(p: &SoftmaxBackwardProblem, device: &DeviceFacts) -> Option<Variant> {
    let rows = ragged_rows(p);
    let few = p.row_count().unsigned_abs().saturating_mul(2) <= u64::from(device.multiprocessors);
    let long = p.length.unsigned_abs() * p.grad.dtype.size() as u64 > WARP_BYTES;
    let ragged = if !rows.pays() || (few && long) { None } else { rows.choose(device, None) };
    ragged.map(Variant::Ragged)
}

fn choose_row(
    p: &SoftmaxBackwardProblem,
    device: &DeviceFacts,
    shape: RowShape,
) -> (Option<Variant>, Reason) {
    let granules = shape.granules;
    let rows = p.row_count().unsigned_abs();
    let largest = largest_cluster(device);
    let held = BLOCK_THREADS * BLOCK_VECTORS;
    let bytes = |most: u64| [("bytes of a row of grad", granules * GRANULE), ("at most", most * GRANULE)];
    let warp = |vectors, rows, lane_bits| {
        let warp = Variant::Warp { vectors, rows, lane_bits };
        warp.because("cluster", "the registers of a warp hold a row", bytes(128))
    };
    match granules {
        0..=32 => warp(1, 2, granules.next_power_of_two().trailing_zeros()),
        33..=64 => warp(2, 1, 5),
        65..=128 => warp(4, 1, 5),
        _ if granules <= held * largest => {
            // As few blocks as hold the row, but as many as it takes for every multiprocessor to have one, and then
            // fewer granules to each thread.
            let idle = u64::from(device.multiprocessors) / rows;
            let spread = 1 << idle.min(granules.div_ceil(64)).max(1).ilog2();
            let cluster = granules.div_ceil(held).next_power_of_two().max(spread).min(largest);
            let vectors = if idle > 1 { 1 } else { BLOCK_VECTORS };
            let threads = granules.div_ceil(cluster * vectors).next_multiple_of(32).clamp(64, BLOCK_THREADS);
            let cluster = Variant::Cluster { threads, cluster };
            cluster.because("long", "the registers of a cluster hold a row", bytes(held * largest))
        }
        _ => {
            let held = BLOCK_THREADS * LONG_VECTORS;
            let multiprocessors = u64::from(device.multiprocessors);
            let blocks = [("blocks", rows * largest), ("multiprocessors", multiprocessors)];
            if rows * largest <= multiprocessors && granules > held * largest {
                // Two slices for every multiprocessor, if there is that much to do.
                let slices = granules.div_ceil(held).min((2 * multiprocessors).div_ceil(rows));
                let chunks = granules.div_ceil(slices * held);
                let slices = granules.div_ceil(chunks * held);
                let split = Variant::Split { threads: BLOCK_THREADS, slices, chunks };
                return split.because("long", "one cluster a row would leave multiprocessors idle", blocks);
            }
            let threads = granules.div_ceil(largest * LONG_VECTORS).next_multiple_of(32).min(BLOCK_THREADS);
            let chunks = granules.div_ceil(largest * LONG_VECTORS * threads);
            let long = Variant::Long { threads, cluster: largest, chunks };
            match granules > held * largest {
                true => long.because("split", "there are rows for all multiprocessors", blocks),
                false => long.because("split", "a cluster reads a row in one go", bytes(held * largest)),
            }
        }
    }
}
