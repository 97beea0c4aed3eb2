//! Tiles whose columns are few rows of the caller's: out^T = b^T a^T, where the rows of a are 64 at a time in any other tile.
//! Their widths fit counts of rows between those that others fit.

use super::cost::{MODEL, Model, Size};
use super::{Overrides, Tile, TileCluster, WgmmaChoice, addressed, estimated, is_fraction, lead_stride};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::matmul::Oriented;
use crate::cuda::plan::reason::{Reason, least_two};
use crate::ops::matmul::{Activation, MatmulProblem};

/// The same list as TRANSPOSED in matmul_wgmma.cu. Of equals, the first is preferred.
#[rustfmt::skip]
pub const TILES: [Tile; 4] = [
    Tile { name: "128x72",  consumers: 2, m_steps: 1, n:  72, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "128x88",  consumers: 2, m_steps: 1, n:  88, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "128x104", consumers: 2, m_steps: 1, n: 104, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "128x152", consumers: 2, m_steps: 1, n: 152, blocks: 1, has_cluster_splitk: false, planes: 1 },
];
/// As `Model::rates`, of all.
const RATE: f64 = 0.83;
/// Rows for which the model has been compared with measurements, as it has where rows are whole lines of the caches.
const MOST_ROWS: u64 = 320;
/// Clocks that a round takes longer than the model says.
const LATER: f64 = 2500.0;

impl Tile {
    /// Whether its kernel stores the transposed result.
    pub(super) fn is_transposed(&self) -> bool {
        TILES.iter().any(|tile| tile.name == self.name)
    }
}

/// Instead of a choice that takes `clocks`: if it is estimated to take less, or asked for.
pub fn choose(
    problem: &MatmulProblem,
    p: &Oriented,
    size: &Size,
    device: &DeviceFacts,
    overrides: Overrides,
    (instead_of, clocks): (&'static str, f64),
) -> Option<(WgmmaChoice, f64)> {
    let asked = overrides.transposed();
    let alone = overrides.splits.is_none_or(|splits| splits == 1)
        && overrides.cluster.is_none_or(TileCluster::is_alone);
    let is_free = overrides == Overrides::default() || (asked.is_some() && alone);
    if !is_free || !takes(problem, p) {
        return None;
    }
    let [off_a, off_b] = size.off_lines;
    let size = Size { m: size.n, n: size.m, off_lines: [off_b, off_a], b_by_rows: false, ..*size };
    let tiles = TILES.iter().filter(|tile| asked.is_none_or(|asked| asked == tile.name));
    let ((tile, own), _) = least_two(tiles.map(|tile| (tile, MODEL.clocks_transposed(&size, tile, device))))?;
    if asked.is_none() && (own >= clocks || size.off_lines != [false; 2] || size.n > MOST_ROWS) {
        return None;
    }
    let (tiles_m, tiles_n) = size.tiles(tile);
    let items = tiles_m.checked_mul(tiles_n)?.checked_mul(size.products)?;
    let mut why = vec![Reason::asked_for("wgmma", "mma")];
    if asked.is_none() {
        why.push(estimated((tile.name, own), (instead_of, clocks)));
    }
    // Blocks count items in 31 bits, a grid's step beyond the last.
    if items > u64::from(u32::MAX / 4) {
        return None;
    }
    let choice = WgmmaChoice {
        tile,
        splits: 1,
        cluster: TileCluster::ALONE,
        cluster_splitk: false,
        // All of the few rows, and then the next columns: up to 20 % sooner than eight tiles of columns at a time.
        group_m: overrides.group_m.map_or(1, |group| group.clamp(1, tiles_m as u32)),
        resident: 1,
        tma_store: false,
        gated: false,
        swapped: true,
        copies: [None; 2],
        why,
    };
    Some((choice, own))
}

/// Whether there is a kernel: of rows of a contiguous along k and results in vectors of 16 bytes, with what its epilogue does.
fn takes(problem: &MatmulProblem, p: &Oriented) -> bool {
    let simple = match problem.activation {
        Activation::None | Activation::Relu => true,
        Activation::LeakyRelu { negative_slope } => is_fraction(negative_slope as f32),
        Activation::Gelu | Activation::GeluTanh | Activation::Silu => false,
    };
    let a = addressed(&p.a, (p.m, p.a.row_stride), (p.k, p.a.col_stride));
    let b = addressed(&p.b, (p.n, p.b.col_stride), (p.k, p.b.row_stride));
    let vectors = lead_stride(&p.out, (p.n, p.out.col_stride), (p.m, p.out.row_stride)).is_some();
    let plain = problem.gate.is_none() && p.residual.is_none() && p.wide.is_none();
    // The epilogue's bias is by row of the transposed result.
    plain
        && simple
        && (p.bias == 0 || p.bias_col != 0)
        && vectors
        && p.n % 8 == 0
        && a.is_some_and(|a| !a.mn_major)
        && b.is_some()
}

impl Model {
    fn clocks_transposed(&self, size: &Size, tile: &Tile, device: &DeviceFacts) -> f64 {
        let (tiles_m, tiles_n) = size.tiles(tile);
        let tiles = tiles_m.saturating_mul(tiles_n).saturating_mul(size.products);
        let rounds = tiles.div_ceil(u64::from(device.multiprocessors)) as f64;
        let computing = rounds * self.of_tile(size, tile, RATE, (1, TileCluster::ALONE), false);
        self.done(computing, self.of_memory(size, device)) + rounds * LATER
    }
}

#[cfg(test)]
mod tests;
