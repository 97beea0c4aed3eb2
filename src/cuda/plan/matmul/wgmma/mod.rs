//! How kernels/matmul_wgmma.cu is launched, with what comes before (matmul_repack.cu) and after it (matmul_reduce.cu).

pub mod bf16x6;
mod cluster;
mod cost;
mod epilogue;
pub mod few;
pub mod fit;
mod floats;
pub mod grouped;
mod launches;
pub mod listed;
mod params;
pub mod tf32;
pub mod training;
mod transposed;

pub use cluster::TileCluster;
pub use launches::Launches;
pub use params::{MAPS, WgmmaParams};

use crate::cuda::plan::limits::LINE_BYTES;
use cost::{MODEL, Size, Work};

use super::repack;
use super::{Matrix, Oriented, alignment, estimated};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::reason::{Reason, Taking, least_two};
use crate::cuda::plan::tile_order::group_m;
use crate::cuda::tensor_map::{ALIGNMENT, MAX_DIMS, STRIDE_LIMIT};
use crate::dtype::DType;
use crate::ops::matmul::MatmulProblem;
use epilogue::is_fraction;

/// BLOCK_K, BOX_BYTES, MAX_STAGES, HEADER_BYTES and STORE_BYTES of kernels/common/wgmma_tile.cuh.
const BLOCK_K: u64 = 64;
/// Multiply-adds of fp16/bf16 of one multiprocessor in a clock.
const MULTIPLY_ADDS: f64 = 2048.0;
const BOX_BYTES: u32 = 8192;
const BOX_COLUMNS: u32 = 64;
const MAX_STAGES: u32 = 16;
const HEADER_BYTES: u32 = 1024;
const STORE_BYTES: u32 = 2048;
const ROW_BYTES: u32 = 128;
const BATCH_DIMS: usize = MAX_DIMS - 2;
/// Multiply-adds for each element of the operands, from which on those are in L2 often enough.
const REUSE: f64 = 640.0;
/// k of which the ring's length makes no difference.
const SHORT_K: u64 = 256;
/// Sizes are coordinates of 32 bits, and the last tile may reach beyond.
const SIZE_LIMIT: i64 = i32::MAX as i64 - 1024;

/// A tile of the result that a block computes: WgmmaTile of wgmma_tile.cuh.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tile {
    pub name: &'static str,
    consumers: u32,
    m_steps: u32,
    pub n: u32,
    /// That fit on a multiprocessor, registers considered.
    blocks: u32,
    /// Whether there is a kernel with cluster split-K.
    has_cluster_splitk: bool,
    /// Stages of a block of k, and words of 16 bits of an element: one of fp16/bf16, two of float32 as it is (TF32), and one of
    /// each part of float32.
    planes: u32,
}

/// The same list as TILES in matmul_wgmma.cu. Of equals, the first is preferred.
#[rustfmt::skip]
pub const TILES: [Tile; 18] = [
    Tile { name: "256x128", consumers: 2, m_steps: 2, n: 128, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "128x256", consumers: 2, m_steps: 1, n: 256, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "256x192", consumers: 2, m_steps: 2, n: 192, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "192x192", consumers: 3, m_steps: 1, n: 192, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "128x224", consumers: 2, m_steps: 1, n: 224, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "128x192", consumers: 2, m_steps: 1, n: 192, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "192x128", consumers: 3, m_steps: 1, n: 128, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "128x176", consumers: 2, m_steps: 1, n: 176, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "128x160", consumers: 2, m_steps: 1, n: 160, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "128x128", consumers: 2, m_steps: 1, n: 128, blocks: 1, has_cluster_splitk: true, planes: 1 },
    Tile { name: "128x112", consumers: 2, m_steps: 1, n: 112, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "192x96",  consumers: 3, m_steps: 1, n:  96, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "128x96",  consumers: 2, m_steps: 1, n:  96, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "64x256",  consumers: 1, m_steps: 1, n: 256, blocks: 1, has_cluster_splitk: false, planes: 1 },
    Tile { name: "64x128",  consumers: 1, m_steps: 1, n: 128, blocks: 2, has_cluster_splitk: true, planes: 1 },
    Tile { name: "128x64",  consumers: 2, m_steps: 1, n:  64, blocks: 2, has_cluster_splitk: true, planes: 1 },
    Tile { name: "64x64",   consumers: 1, m_steps: 1, n:  64, blocks: 2, has_cluster_splitk: true, planes: 1 },
    Tile { name: PING_PONG, consumers: 2, m_steps: 2, n: 128, blocks: 1, has_cluster_splitk: false, planes: 1 },
];

/// The tile whose consumers take every second of a block's tiles: one stores while the other multiplies.
const PING_PONG: &str = "128x128pingpong";
/// The least k of which it is tried: of less, most of the time is the results', which the copy engine writes sooner.
const PING_PONG_K: u64 = 256;

impl Tile {
    pub fn m(&self) -> u32 {
        64 * if self.is_ping_pong() { 1 } else { self.consumers } * self.m_steps
    }

    fn size(&self) -> (f64, f64) {
        (self.m().into(), self.n.into())
    }

    fn is_ping_pong(&self) -> bool {
        self.name == PING_PONG
    }

    /// Whether there is a kernel for parts of k. A block has one tile then.
    fn can_split(&self) -> bool {
        !self.is_ping_pong()
    }

    /// Whether its blocks may share a and b: equal parts of groups of eight rows, which the permutation of a box has.
    fn can_share(&self, cluster: TileCluster) -> bool {
        let whole = self.m().is_multiple_of(8 * cluster.columns) && self.n.is_multiple_of(8 * cluster.rows);
        // Of float32 pairs only: others were not measured.
        let is_known = self.planes == 1 || (self.planes == 2 && cluster == TileCluster::PAIR);
        cluster.is_alone() || (is_known && whole)
    }

    /// Rows and columns of clusters that cover `m` x `n`.
    fn clusters(&self, cluster: TileCluster, (m, n): (u64, u64)) -> (u64, u64) {
        let (rows, columns) = self.sides(cluster);
        (m.div_ceil(rows.into()), n.div_ceil(columns.into()))
    }

    /// Rows and columns of the result that a cluster computes.
    fn sides(&self, cluster: TileCluster) -> (u32, u32) {
        (self.m() * cluster.rows, self.n * cluster.columns)
    }

    /// For so many clusters in all, of `clusters_m` x `clusters_n` for a product: blocks on a multiprocessor, and rows of clusters
    /// that are visited together, unless others are asked for.
    fn arranged(
        &self,
        cluster: TileCluster,
        (clusters_m, clusters_n): (u64, u64),
        items: u64,
        device: &DeviceFacts,
        asked: Option<u32>,
    ) -> (u32, u32) {
        let blocks = items * u64::from(cluster.blocks());
        let resident = if blocks > u64::from(device.multiprocessors) { self.blocks } else { 1 };
        let concurrent = device.multiprocessors * resident / cluster.blocks();
        let (clusters_m, clusters_n) = (clusters_m as u32, clusters_n as u32);
        let grouped = || group_m(clusters_m, clusters_n, self.sides(cluster), concurrent);
        (resident, asked.map_or_else(grouped, |group| group.clamp(1, clusters_m)))
    }

    /// Kernels of this tile.
    fn file(&self) -> &'static str {
        match self.planes {
            1 => "matmul_wgmma",
            2 => "matmul_wgmma_tf32",
            _ => "matmul_bf16x6",
        }
    }

    fn boxes(&self) -> u32 {
        self.n.div_ceil(BOX_COLUMNS)
    }

    /// Whether there is a kernel of a gated product: half of the columns are whole boxes.
    fn has_gate(&self) -> bool {
        self.planes == 1 && self.n.is_multiple_of(2 * BOX_COLUMNS) && !self.is_ping_pong()
    }

    /// Whether there is one that adds a residual: large tiles that have it come by TMA, and small ones.
    fn has_residual(&self) -> bool {
        let names = ["128x256", "128x192", "128x128", "64x128", "64x64"];
        self.planes > 1 || names.contains(&self.name)
    }

    /// Whether a thread has so few results that their residual is in registers before they are there: HELD of
    /// kernels/common/wgmma_epilogue.cuh.
    fn holds_residual(&self) -> bool {
        self.planes == 1 && self.has_residual() && !self.can_tma_store()
    }

    /// Whether the kernel can put all of a result together in shared memory, for the copy engine to take.
    fn can_tma_store(&self) -> bool {
        let whole_boxes = self.n.is_multiple_of(BOX_COLUMNS);
        self.planes == 1 && self.consumers == 2 && self.m_steps == 1 && self.n >= 192 && whole_boxes
    }

    /// Whether it pays, where each element of the operands is in so many multiply-adds, and k is so long: with few of them operands
    /// come from memory, not from L2, and three stages beside the result are not enough for a long k
    /// (docs/measurements/matmul_wgmma.md).
    fn pays_to_tma_store(&self, reuse: f64, k: u64, gated: bool, device: &DeviceFacts) -> bool {
        let short_ring = self.stages(self.blocks, true, gated, device) <= 3;
        self.can_tma_store() && !(short_ring && reuse < REUSE && k > SHORT_K)
    }

    /// Shared memory besides the stages.
    fn fixed_bytes(&self, tma_store: bool, gated: bool) -> u32 {
        let result = match tma_store {
            true => self.m() * (self.boxes() >> u32::from(gated)) * ROW_BYTES,
            false => 4 * self.consumers * STORE_BYTES,
        };
        HEADER_BYTES + result
    }

    fn stage_bytes(&self) -> u32 {
        self.m() * ROW_BYTES + self.boxes() * BOX_BYTES
    }

    /// As many as `blocks` of them on a multiprocessor have room for.
    fn stages(&self, blocks: u32, tma_store: bool, gated: bool, device: &DeviceFacts) -> u32 {
        stages(blocks, self.fixed_bytes(tma_store, gated), self.stage_bytes(), device)
    }
}

/// Stages of so many bytes, beside others, that as many blocks on a multiprocessor have room for.
fn stages(blocks: u32, fixed_bytes: u32, stage_bytes: u32, device: &DeviceFacts) -> u32 {
    let share = (device.shared_bytes_per_multiprocessor / blocks).saturating_sub(1024);
    let room = share.min(device.shared_bytes_per_block).saturating_sub(fixed_bytes);
    (room / stage_bytes).min(MAX_STAGES)
}

/// k splits that are tried, besides as many as there is room for.
const SPLITS: [u64; 9] = [1, 2, 3, 4, 6, 8, 12, 16, 24];

/// What a developer may take out of the plan's hands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Overrides {
    /// Index in `forced_tiles()`.
    pub tile: Option<usize>,
    pub splits: Option<u32>,
    /// Blocks that share operands; k splits are then no cluster.
    pub cluster: Option<TileCluster>,
    pub group_m: Option<u32>,
}

impl Overrides {
    /// The tile's name.
    pub fn tile_name(&self) -> Option<&'static str> {
        self.tile.and_then(|tile| TILES.get(tile)).map(|tile| tile.name)
    }

    /// The tile's name, if it is one of those whose columns are few rows.
    fn transposed(&self) -> Option<&'static str> {
        let tile = self.tile?.checked_sub(TILES.len())?;
        transposed::TILES.get(tile).map(|tile| tile.name)
    }
}

/// The names of the tiles that can be asked for: those of TILES, and then others, which some problems only have.
pub fn forced_tiles() -> Vec<&'static str> {
    TILES.iter().chain(&transposed::TILES).map(|tile| tile.name).collect()
}

/// An operand that the copy engine can address.
#[derive(Clone, Debug, PartialEq)]
struct Addressed {
    matrix: Matrix,
    /// The unit stride is along m or n; `lead` is along the other dimension.
    mn_major: bool,
    lead: u64,
}

impl Addressed {
    /// Rows of 128 bytes are parts of two lines of the caches.
    fn is_off_lines(&self) -> bool {
        [self.lead, self.matrix.address as u64].iter().any(|at| !at.is_multiple_of(LINE_BYTES))
    }
}

/// How a problem will be solved, but for where its workspace memory is.
#[derive(Clone, Debug, PartialEq)]
pub struct WgmmaChoice {
    tile: &'static Tile,
    splits: u32,
    /// Blocks that share operands.
    cluster: TileCluster,
    /// The k splits are a cluster.
    cluster_splitk: bool,
    /// Rows of tiles, or of clusters of them.
    group_m: u32,
    /// Blocks on a multiprocessor.
    resident: u32,
    /// The epilogue stores by TMA while the next tile is multiplied.
    tma_store: bool,
    /// Half of the tiles' columns are the gate's.
    gated: bool,
    /// The product is the transposed of the one that `Oriented::new` has.
    swapped: bool,
    /// Of a and b, where they cannot be addressed as they are.
    copies: [Option<repack::Dense>; 2],
    why: Vec<Reason>,
}

/// How an operand will be read.
struct Read {
    /// If one is needed.
    copy: Option<repack::Dense>,
    /// Rows of 128 bytes are parts of two lines of the caches.
    off_lines: bool,
    mn_major: bool,
}

impl Read {
    fn new(x: &Matrix, mn: (i64, i64), k: (i64, i64), batch: &[i64]) -> Read {
        if let Some(addressed) = addressed(x, mn, k) {
            return Read { copy: None, off_lines: addressed.is_off_lines(), mn_major: addressed.mn_major };
        }
        let copy = repack::Dense::new(x, mn, k, batch, 1);
        let off_lines = !copy.row_bytes().is_multiple_of(LINE_BYTES);
        Read { copy: Some(copy), off_lines, mn_major: !copy.k_major }
    }
}

/// What of a problem the time depends on, and copies of operands that cannot be addressed as they are. None: not for this
/// problem on this device.
fn sized(
    problem: &MatmulProblem,
    p: &Oriented,
    device: &DeviceFacts,
) -> Option<(Size, [Option<repack::Dense>; 2])> {
    let fits = [p.m, p.n, p.k].iter().all(|&size| (1..=SIZE_LIMIT).contains(&size));
    let of = |x: &Option<Matrix>| x.as_ref().map_or(0, |x| x.address);
    let addresses = [p.a.address, p.b.address, p.out.address, p.bias, of(&problem.gate), of(&p.residual)];
    let elements_lie_whole = addresses.iter().all(|address| address.is_multiple_of(2));
    let gated = problem.gate.is_some();
    let halves = matches!(problem.dtype, DType::F16 | DType::BF16);
    // Code for 9.0a runs on nothing else.
    if device.compute_capability != (9, 0) || !halves || !fits || !elements_lie_whole || p.wide.is_some() {
        return None;
    }
    if gated && (p.n > SIZE_LIMIT / 2 || !gate_is_alike(problem, p)) {
        return None;
    }
    if problem.batch.len() > BATCH_DIMS || problem.batch.iter().any(|&n| n > SIZE_LIMIT) {
        return None;
    }
    let a = Read::new(&p.a, (p.m, p.a.row_stride), (p.k, p.a.col_stride), &problem.batch);
    let b = Read::new(&p.b, (p.n, p.b.col_stride), (p.k, p.b.row_stride), &problem.batch);
    let copies = [a.copy, b.copy];
    // Of an expanded operand, a copy may be larger than any memory.
    if copies.iter().flatten().any(|copy| copy.bytes() > device.memory_bytes) {
        return None;
    }
    let [m, n, k] = [p.m, p.n, p.k].map(i64::unsigned_abs);
    let products = problem.batch_count().unsigned_abs();
    let columns = if gated { 2 * n } else { n };
    let off_lines = [a.off_lines, b.off_lines];
    let smooth = problem.activation.is_smooth() && !gated;
    Some((Size { m, n: columns, k, products, gated, smooth, off_lines, b_by_rows: b.mn_major }, copies))
}

/// The tile that is estimated to be done first, and the next, each with the k splits that suit it.
fn fastest(
    problem: &MatmulProblem,
    size: &Size,
    device: &DeviceFacts,
    overrides: Overrides,
) -> Option<(Taking<Work>, Option<Taking<Work>>)> {
    let gated = problem.gate.is_some();
    let candidates = (0..TILES.len())
        .filter(|&tile| match overrides.tile {
            Some(only) => only == tile,
            None => size.k >= PING_PONG_K || !TILES[tile].is_ping_pong(),
        })
        .filter(|&tile| !gated || TILES[tile].has_gate());
    let residual = problem.residual.is_some() && !gated;
    // Each tile with the number of k splits that suits it.
    let timed = candidates.filter_map(|tile| {
        let forced = overrides.splits.map(|splits| u64::from(splits).clamp(1, size.k_blocks()));
        let most = forced.unwrap_or_else(|| cost::most_splits(size, &TILES[tile], device));
        let least = forced.unwrap_or(1);
        let counts = SPLITS.into_iter().filter(|splits| (least..most).contains(splits)).chain([most]);
        let clusters = TileCluster::ALL.into_iter().filter(|&cluster| match overrides.cluster {
            _ if gated => cluster.is_alone(),
            Some(asked) => cluster == asked && TILES[tile].can_share(cluster),
            None => TILES[tile].can_share(cluster),
        });
        // The sums of splits are finished elsewhere.
        let counts = counts.filter(|&splits| match splits {
            1 => !residual || TILES[tile].has_residual(),
            _ => TILES[tile].can_split(),
        });
        let is_cluster = |work: &Work| {
            let wanted = overrides.splits.is_some() || cost::pays_in_cluster(size, work, device);
            wanted && overrides.cluster.is_none() && cost::can_be_cluster(work)
        };
        // Splits that are asked for are a cluster rather than four tiles.
        let may_share = |work: &Work| {
            let apart = Work { cluster: TileCluster::ALONE, ..*work };
            overrides.cluster.is_some()
                || (cost::may_share(size, work, device)
                    && (work.cluster.blocks() <= 2 || overrides.splits.is_none() || !is_cluster(&apart)))
        };
        let works = counts.flat_map(|splits| {
            clusters.clone().map(move |cluster| Work { tile, splits, cluster, cluster_splitk: false })
        });
        let works = works.filter(may_share).map(|work| Work { cluster_splitk: is_cluster(&work), ..work });
        let times = works.map(|work| (work, MODEL.clocks(size, &work, device)));
        times.min_by(|x, y| x.1.total_cmp(&y.1))
    });
    least_two(timed)
}

/// None: not for this problem on this device.
pub fn choose(problem: &MatmulProblem, device: &DeviceFacts, overrides: Overrides) -> Option<WgmmaChoice> {
    Some(choose_timed(problem, device, overrides)?.0)
}

/// The same, and the clocks until the result is complete.
pub fn choose_timed(
    problem: &MatmulProblem,
    device: &DeviceFacts,
    overrides: Overrides,
) -> Option<(WgmmaChoice, f64)> {
    let p = Oriented::new(problem);
    let (size, copies) = sized(problem, &p, device)?;
    let gated = problem.gate.is_some();
    let upright = match overrides.transposed() {
        Some(_) => Overrides { tile: None, ..overrides },
        None => overrides,
    };
    let ((work, clocks), next) = fastest(problem, &size, device, upright)?;
    let tile = &TILES[work.tile];
    if let Some(choice) = transposed::choose(problem, &p, &size, device, overrides, (tile.name, clocks)) {
        return Some(choice);
    }
    let mut why = vec![Reason::asked_for("wgmma", "mma")];
    why.extend(next.map(|(next, other)| estimated((tile.name, clocks), (TILES[next.tile].name, other))));
    if work.splits > 1 && overrides.splits.is_none() {
        let whole = MODEL.clocks(&size, &Work { splits: 1, cluster_splitk: false, ..work }, device);
        why.push(estimated(("k splits", clocks), ("no k splits", whole)));
    }
    if !work.cluster.is_alone() && overrides.cluster.is_none() {
        let alone = MODEL.clocks(&size, &Work { cluster: TileCluster::ALONE, ..work }, device);
        why.push(estimated(("clusters of blocks", clocks), ("blocks alone", alone)));
    }
    if work.cluster_splitk && overrides.splits.is_none() {
        let apart = MODEL.clocks(&size, &Work { cluster_splitk: false, ..work }, device);
        why.push(estimated(("cluster split-K", clocks), ("split-K through memory", apart)));
    }

    let (clusters_m, clusters_n) = size.clusters(tile, work.cluster);
    let items = clusters_m.checked_mul(clusters_n)?.checked_mul(size.products)?.checked_mul(work.splits)?;
    // Blocks count items in 31 bits, a grid's step beyond the last.
    if items > u64::from(u32::MAX / 4) {
        return None;
    }
    let cluster = work.cluster;
    let (resident, group_m) =
        tile.arranged(cluster, (clusters_m, clusters_n), items, device, overrides.group_m);
    let rows_of_vectors = lead_stride(&p.out, (p.n, p.out.col_stride), (p.m, p.out.row_stride)).is_some();
    // Then the residual can come by TMA, too.
    let adds = tile.can_tma_store() && work.splits == 1 && residual_lead(&p).is_some();
    let tma_store = rows_of_vectors && (adds || cost::tma_store(&size, &work, device));
    let choice = WgmmaChoice {
        tile,
        splits: work.splits as u32,
        cluster,
        cluster_splitk: work.cluster_splitk,
        group_m,
        resident,
        tma_store,
        gated,
        swapped: false,
        copies,
        why,
    };
    Some((choice, clocks))
}

/// Whether a gated product's other matrix can be read where and as b is, and the result's rows are the caller's.
fn gate_is_alike(problem: &MatmulProblem, p: &Oriented) -> bool {
    let Some(gate) = &problem.gate else { return true };
    let of = |x: &Matrix| addressed(x, (p.n, x.col_stride), (p.k, x.row_stride)).map(|x| x.mn_major);
    let is_broadcast = |x: &Matrix| x.batch_strides.iter().map(|&stride| stride == 0).collect::<Vec<_>>();
    !p.transposed && of(gate).is_some() && of(gate) == of(&p.b) && is_broadcast(gate) == is_broadcast(&p.b)
}

/// The operand as the copy engine can address it, if it can.
fn addressed(x: &Matrix, (mn, mn_stride): (i64, i64), (k, k_stride): (i64, i64)) -> Option<Addressed> {
    let lead_of = |unit: (i64, i64), lead: (i64, i64)| lead_stride(x, unit, lead);
    let k_major = lead_of((k, k_stride), (mn, mn_stride)).map(|lead| (false, lead));
    let (mn_major, lead) =
        k_major.or_else(|| lead_of((mn, mn_stride), (k, k_stride)).map(|lead| (true, lead)))?;
    Some(Addressed { matrix: x.clone(), mn_major, lead })
}

/// The same of float32, as words of 16 bits: only where k is what lies side by side.
fn addressed_words(x: &Matrix, (mn, mn_stride): (i64, i64), (k, k_stride): (i64, i64)) -> Option<Addressed> {
    let unit_stride = if k == 1 { 1 } else { k_stride };
    let (lead, unit) = ((mn, mn_stride.checked_mul(2)?), (k.checked_mul(2)?, unit_stride));
    addressed(&of_words(x)?, lead, unit).filter(|x| !x.mn_major)
}

/// The same of an operand whose rows may also lie across k.
fn addressed_words_of_rows(
    x: &Matrix,
    (mn, mn_stride): (i64, i64),
    (k, k_stride): (i64, i64),
) -> Option<Addressed> {
    let across = || {
        let unit_stride = if mn == 1 { 1 } else { mn_stride };
        let (unit, lead) = ((mn.checked_mul(2)?, unit_stride), (k, k_stride.checked_mul(2)?));
        addressed(&of_words(x)?, unit, lead).filter(|x| x.mn_major)
    };
    addressed_words(x, (mn, mn_stride), (k, k_stride)).or_else(across)
}

/// With the strides of its batch in words.
fn of_words(x: &Matrix) -> Option<Matrix> {
    let batch_strides = x.batch_strides.iter().map(|&stride| stride.checked_mul(2)).collect::<Option<_>>()?;
    Some(Matrix { batch_strides, ..x.clone() })
}

/// Bytes from one row to the next, for rows along a dimension of unit stride, if all of it suits the copy engine.
fn lead_stride(x: &Matrix, (unit, unit_stride): (i64, i64), (lead, lead_stride): (i64, i64)) -> Option<u64> {
    // The stride of a dimension of size 1 is never taken.
    let lead_stride = if lead > 1 { lead_stride } else { (unit as u64).next_multiple_of(8) as i64 };
    let steps = || x.batch_strides.iter().chain([&lead_stride]);
    let in_range = lead_stride > 0 && steps().all(|&step| step >= 0 && (step as u64) < STRIDE_LIMIT / 2);
    let aligned = alignment(x, lead_stride, DType::F16) as usize == ALIGNMENT;
    ((unit == 1 || unit_stride == 1) && in_range && aligned).then(|| lead_stride as u64 * 2)
}

/// Bytes from one row of the residual to the next, if the copy engine can address it.
fn residual_lead(p: &Oriented) -> Option<u64> {
    p.residual.as_ref().and_then(|x| lead_stride(x, (p.n, x.col_stride), (p.m, x.row_stride)))
}

impl WgmmaChoice {
    /// Bytes of the copies of a and b and of the partial sums, each from a multiple of 256 on.
    fn workspace(&self, problem: &MatmulProblem) -> [u64; 3] {
        let copied = self.copies.map(|copy| copy.map_or(0, |copy| copy.bytes()));
        [copied[0], copied[1], self.partial_bytes(problem)].map(|bytes| bytes.next_multiple_of(256))
    }

    /// The problem as the tile has it.
    fn oriented(&self, problem: &MatmulProblem) -> Oriented {
        if self.swapped { Oriented::swapped(problem) } else { Oriented::new(problem) }
    }

    /// Of the tiles: with a gate, also the gate's.
    fn columns(&self, p: &Oriented) -> u64 {
        p.n.unsigned_abs() << u32::from(self.gated)
    }

    /// Rows and columns of tiles.
    fn tiles(&self, p: &Oriented) -> (u32, u32) {
        let (m, n) = (p.m.unsigned_abs(), self.columns(p));
        (m.div_ceil(self.tile.m().into()) as u32, n.div_ceil(self.tile.n.into()) as u32)
    }

    /// The same of clusters.
    fn clusters(&self, p: &Oriented) -> (u32, u32) {
        let (tiles_m, tiles_n) = self.tiles(p);
        (tiles_m.div_ceil(self.cluster.rows), tiles_n.div_ceil(self.cluster.columns))
    }

    pub fn copies_operands(&self) -> bool {
        self.copies.iter().any(Option::is_some)
    }

    /// The plan's own choice, and not a developer's.
    pub fn unasked(mut self) -> WgmmaChoice {
        let because = "compute capability 9.0 has wgmma";
        self.why[0] = Reason::plain("wgmma", "mma", because);
        self
    }

    /// The same, taking so many clocks, where another would take others.
    pub fn instead(mut self, clocks: f64, other: (&'static str, f64)) -> WgmmaChoice {
        self.why[0] = estimated(("wgmma", clocks), other);
        self
    }

    pub fn workspace_bytes(&self, problem: &MatmulProblem) -> u64 {
        self.workspace(problem).iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    fn partial_bytes(&self, problem: &MatmulProblem) -> u64 {
        if self.splits == 1 || self.cluster_splitk {
            return 0;
        }
        let (p, tile) = (self.oriented(problem), self.tile);
        let (rows, columns) = tile.sides(self.cluster);
        let height = p.m.unsigned_abs().next_multiple_of(rows.into());
        let width = self.columns(&p).next_multiple_of(columns.into());
        [width, problem.batch_count().unsigned_abs(), u64::from(self.splits), 4]
            .iter()
            .fold(height, |bytes, factor| bytes.saturating_mul(*factor))
    }
}

#[cfg(test)]
mod tests;
