//! How kernels/grouped_matmul_wgmma.cu is launched: as matmul_wgmma.cu, of all groups together, but for its grid and for what
//! tells the groups.

use super::epilogue::EpilogueKind;
use super::{SIZE_LIMIT, Tile, TileCluster, WgmmaChoice, addressed, gate_is_alike, lead_stride};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::matmul::Oriented;
use crate::cuda::plan::matmul::grouped::{self, GroupedWgmmaParams, Groups};
use crate::cuda::plan::reason::Reason;
use crate::cuda::plan::tile_order::{MOST_TILES, group_m};
use crate::cuda::plan::{Bases, Choice, Kernel, LaunchPlan};
use crate::dtype::DType;
use crate::ops::grouped_matmul::{Cut, GroupedMatmulProblem};

/// The same list as in grouped_matmul_wgmma.cu, the largest first: whether groups may be of k, and whether they may have a
/// gate, or both.
#[rustfmt::skip]
const TILES: [(Tile, bool, bool); 4] = [
    (Tile { name: "128x256", consumers: 2, m_steps: 1, n: 256, blocks: 1, has_cluster_splitk: false, planes: 1 }, true,  true),
    (Tile { name: "128x192", consumers: 2, m_steps: 1, n: 192, blocks: 1, has_cluster_splitk: false, planes: 1 }, false, false),
    (Tile { name: "128x128", consumers: 2, m_steps: 1, n: 128, blocks: 1, has_cluster_splitk: false, planes: 1 }, true,  false),
    (Tile { name: "64x128",  consumers: 1, m_steps: 1, n: 128, blocks: 2, has_cluster_splitk: false, planes: 1 }, false, true),
];
/// Rows of the mean group from which each is the best, without a gate: docs/measurements/grouped_matmul_wgmma.md.
const ROWS: [u64; TILES.len()] = [200, 96, 32, 0];

/// How a problem will be solved.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupedChoice {
    product: WgmmaChoice,
}

/// None: not for this problem on this device.
pub fn choose(
    problem: &GroupedMatmulProblem,
    device: &DeviceFacts,
    asked: Option<&str>,
) -> Option<GroupedChoice> {
    let whole = grouped::whole(problem);
    let p = Oriented::straight(&whole);
    let fits = [p.m, p.n, p.k, problem.groups].iter().all(|&size| (1..=SIZE_LIMIT).contains(&size));
    let gate = whole.gate.as_ref().map_or(0, |gate| gate.address);
    let addresses = [p.a.address, p.b.address, p.out.address, p.bias, gate];
    let elements_lie_whole = addresses.iter().all(|address| address.is_multiple_of(2));
    let is_16_bits = matches!(problem.dtype, DType::F16 | DType::BF16);
    // Code for 9.0a runs on nothing else.
    if device.compute_capability != (9, 0) || !is_16_bits || !fits || !elements_lie_whole {
        return None;
    }
    let gated = problem.gate.is_some();
    if problem.cut == Cut::Nothing || p.wide.is_some() {
        return None;
    }
    if gated && (p.n > SIZE_LIMIT / 2 || !gate_is_alike(&whole, &p)) {
        return None;
    }
    let a = addressed(&p.a, (p.m, p.a.row_stride), (p.k, p.a.col_stride))?;
    let b = addressed(&p.b, (p.n, p.b.col_stride), (p.k, p.b.row_stride))?;
    // A group may begin anywhere, a box along the unit stride only at a multiple of 16 bytes.
    let fits_the_cut = match problem.cut {
        Cut::Rows => !a.mn_major,
        _ => a.mn_major && b.mn_major,
    };
    if !fits_the_cut {
        return None;
    }
    // What `product` counts, too: all of m for each group.
    let countable = |tile: &Tile| {
        let sides = result_of(tile, gated);
        let along = [(p.m, sides.0), (p.n, sides.1)];
        let along = along.map(|(size, side)| size.unsigned_abs().div_ceil(side.into()));
        let tiles = along.iter().fold(problem.groups.unsigned_abs(), |n, &tiles| n.saturating_mul(tiles));
        tiles < MOST_TILES && grouped::is_countable(problem, sides)
    };
    let fits = |i: &usize| {
        let (tile, has_depth, has_gate) = &TILES[*i];
        (problem.cut == Cut::Rows || *has_depth) && (!gated || *has_gate) && countable(tile)
    };
    let asked = (0..TILES.len()).filter(fits).find(|&i| Some(TILES[i].0.name) == asked);
    let (best, why) = match asked {
        Some(i) => (i, Reason::asked_for("wgmma", "mma")),
        None => preferred(problem, (0..TILES.len()).filter(fits), device)?,
    };
    let tile = &TILES[best].0;
    let why = vec![Reason::plain("wgmma", "mma", "compute capability 9.0 has wgmma"), why];
    let rows = match problem.cut {
        Cut::Rows => (problem.m / problem.groups).max(1),
        _ => problem.m,
    };
    let tiles_m = (rows.unsigned_abs().div_ceil(tile.m().into())) as u32;
    let tiles_n = problem.n.unsigned_abs().div_ceil(result_of(tile, gated).1.into()) as u32;
    let concurrent = device.multiprocessors * tile.blocks;
    let rows_of_vectors = lead_stride(&p.out, (p.n, p.out.col_stride), (p.m, p.out.row_stride)).is_some();
    let product = WgmmaChoice {
        tile,
        splits: 1,
        cluster: TileCluster::ALONE,
        gated,
        swapped: false,
        cluster_splitk: false,
        group_m: group_m(tiles_m.max(1), tiles_n, (tile.m(), tile.n), concurrent),
        resident: tile.blocks,
        // Where groups have few rows the threads would gain 1 to 5 %, but lose 9 % if one has many.
        tma_store: rows_of_vectors && tile.can_tma_store(),
        copies: [None; 2],
        why,
    };
    Some(GroupedChoice { product })
}

/// Rows and columns of the result that a tile has: with a gate, half of its columns are the gate's.
fn result_of(tile: &Tile, gated: bool) -> (u32, u32) {
    (tile.m(), tile.n >> u32::from(gated))
}

/// The tile by the mean group's rows; a smaller one where so few tiles would leave multiprocessors idle.
fn preferred(
    problem: &GroupedMatmulProblem,
    tiles: impl Iterator<Item = usize>,
    device: &DeviceFacts,
) -> Option<(usize, Reason)> {
    let [m, n, groups] = [problem.m, problem.n, problem.groups].map(i64::unsigned_abs);
    let rows = if problem.cut == Cut::Rows { m.div_ceil(groups) } else { m };
    let gated = problem.gate.is_some();
    let mut best = None;
    for i in tiles {
        let (tile, least) = (&TILES[i].0, if gated { 0 } else { ROWS[i] });
        let sides = result_of(tile, gated);
        let count = groups * rows.div_ceil(sides.0.into()) * n.div_ceil(sides.1.into());
        let metrics = [("rows of the mean group", rows), ("tiles", count)];
        best = Some((i, Reason::new(tile.name, None, "it suits the mean group", metrics)));
        if rows >= least && count >= u64::from(device.multiprocessors) {
            break;
        }
    }
    best
}

impl GroupedChoice {
    fn plan(
        &self,
        problem: &GroupedMatmulProblem,
        device: &DeviceFacts,
    ) -> (LaunchPlan<GroupedWgmmaParams>, super::Launches) {
        let whole = grouped::whole(problem);
        let p = Oriented::straight(&whole);
        let (launches, _) = self.product.product(&whole, &p, device, 0);
        let (tile, mut params) = (self.product.tile, launches.multiply.params);
        // Groups are a dimension of the maps even where there is one.
        params.flat = 0;
        let tiles = [params.order.tiles_m, params.order.tiles_n, self.product.group_m];
        let groups = Groups::new(problem, tiles);
        let whole_vectors = params.store_elements == 0 && params.n.is_multiple_of(8);
        let kind = match (EpilogueKind::of(problem.activation, &params, whole_vectors, tile), problem.cut) {
            (EpilogueKind::BiasRelu, Cut::Depth) => EpilogueKind::General,
            (kind, _) => kind,
        };
        let form = if problem.cut == Cut::Depth { "depth" } else { "rows" };
        let name =
            format!("grouped_matmul_wgmma_{form}_{}_{}_{}", tile.name, kind.name(), problem.dtype.suffix());
        let sides = result_of(tile, self.product.gated);
        let most = grouped::most_tiles(problem, sides);
        let blocks = most.min(u64::from(device.multiprocessors * self.product.resident)) as u32;
        let LaunchPlan { block, shared_bytes, why, .. } = launches.multiply.clone();
        let own = [("stages", params.stages), ("tma_store", params.tma_store)];
        let own = own.map(|(name, value)| (name, u64::from(value)));
        let plan = LaunchPlan {
            block,
            settings: grouped::settings(&groups, sides).into_iter().chain(own).collect(),
            why,
            ..LaunchPlan::new(
                Kernel { file: "grouped_matmul_wgmma", name },
                blocks,
                1,
                shared_bytes,
                GroupedWgmmaParams { wgmma: params, groups, unused: [0; 4] },
            )
        };
        (plan, launches)
    }

    /// The launches without addresses, for a problem at `bases`.
    pub fn choice(&self, problem: &GroupedMatmulProblem, device: &DeviceFacts, bases: &Bases) -> Choice {
        let (plan, launches) = self.plan(problem, device);
        let multiply = plan.launch(bases).with_maps(bases, launches.maps());
        Choice::new(multiply, plan.why)
    }
}
