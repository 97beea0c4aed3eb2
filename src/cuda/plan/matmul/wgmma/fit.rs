//! The constants of the model in cost.rs by name, for what fits them: benchmarks/fit_matmul.py.

use super::cost::{MODEL, Model, Size, Work};
use super::{TILES, TileCluster};
use crate::cuda::device::DeviceFacts;

/// A product of float16 or bfloat16, and how it is computed.
#[derive(Clone, Debug)]
pub struct Plan {
    pub m: u64,
    pub n: u64,
    pub k: u64,
    /// Of a and of b: rows of 128 bytes are parts of two lines of the caches.
    pub off_lines: [bool; 2],
    /// b is contiguous along n.
    pub b_by_rows: bool,
    /// Index in TILES.
    pub tile: usize,
    pub splits: u64,
    /// Blocks that share operands.
    pub cluster: TileCluster,
    /// The splits are a cluster.
    pub cluster_splitk: bool,
}

impl Model {
    fn constants(&mut self) -> Vec<(&'static str, &mut f64)> {
        let rates = TILES.iter().map(|tile| tile.name).zip(&mut self.rates);
        let others = [
            ("l2_bytes", &mut self.l2_bytes),
            ("lines", &mut self.lines),
            ("odd_tiles", &mut self.odd_tiles),
            ("memory_share", &mut self.memory_share),
            ("start", &mut self.start),
            ("store", &mut self.store),
            ("tma_store", &mut self.tma_store),
            ("ping_pong_end", &mut self.ping_pong_end),
            ("smooth", &mut self.smooth),
            ("ping_pong_smooth", &mut self.ping_pong_smooth),
            ("reduce", &mut self.reduce),
            ("reduce_bytes", &mut self.reduce_bytes),
            ("cluster_reduce", &mut self.cluster_reduce),
            ("cluster_reduce_bytes", &mut self.cluster_reduce_bytes),
            ("pair", &mut self.pair),
            ("four", &mut self.four),
            ("unhidden", &mut self.unhidden),
        ];
        rates.chain(others).collect()
    }
}

pub fn constants() -> Vec<(&'static str, f64)> {
    let mut model = MODEL;
    model.constants().into_iter().map(|(name, value)| (name, *value)).collect()
}

/// What the model expects the plans to take, in clocks, with some constants replaced; the name of one that is not known.
pub fn clocks<'a>(
    plans: &[Plan],
    replaced: impl Iterator<Item = (&'a str, f64)>,
    device: &DeviceFacts,
) -> Result<Vec<f64>, &'a str> {
    let mut model = MODEL;
    for (name, value) in replaced {
        let mut own = model.constants();
        let found = own.iter_mut().find(|(known, _)| *known == name);
        **found.map(|(_, place)| place).ok_or(name)? = value;
    }
    let clocks = |plan: &Plan| {
        let &Plan { m, n, k, off_lines, b_by_rows, tile, splits, cluster, cluster_splitk } = plan;
        let size = Size { m, n, k, products: 1, gated: false, smooth: false, off_lines, b_by_rows };
        let work = Work { tile, splits: splits.max(1), cluster, cluster_splitk };
        model.clocks(&size, &work, device)
    };
    Ok(plans.iter().map(clocks).collect())
}
