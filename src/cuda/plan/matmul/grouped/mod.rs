//! grouped_matmul on a GPU: on Hopper's tensor cores (wgmma/grouped.rs) where they take the operands, or a block a tile, in
//! two launches where there is a gate (../gated.rs).

pub mod listed;
mod params;

pub use params::{GroupedMatmulParams, GroupedWgmmaParams, Groups};

use super::gated::{Between, bias_at};
use super::operands::{Access, Oriented};
use super::{Forced, MatmulParams, Matrix, blocks, choose_from, wgmma};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::reason::Reason;
use crate::cuda::plan::tile_order::MOST_TILES;
use crate::cuda::plan::{Bases, Choice, Kernel, LaunchPlan};
use crate::dtype::DType;
use crate::ops::grouped_matmul::{Cut, GroupBias, GroupedMatmulProblem};
use crate::ops::matmul::{Activation, Bias, MatmulProblem, Precision};

/// The launches of a problem, decided once.
pub fn choose(problem: &GroupedMatmulProblem, device: &DeviceFacts, forced: Option<Forced>) -> Choice {
    let (p, bases) = Bases::of(problem);
    if let Some(batch) = p.as_matmul() {
        return choose_from(&batch, &bases, device, forced);
    }
    let wgmma = match forced {
        None => wgmma::grouped::choose(&p, device, None),
        Some(Forced::Wgmma(overrides)) => wgmma::grouped::choose(&p, device, overrides.tile_name()),
        Some(_) => None,
    };
    match wgmma {
        Some(choice) => choice.choice(&p, device, &bases),
        None => by_blocks(&p, device, &bases),
    }
}

fn by_blocks(p: &GroupedMatmulProblem, device: &DeviceFacts, bases: &Bases) -> Choice {
    let one = |p: &GroupedMatmulProblem| Choice::of(&plan(p, device), bases);
    let Some(gate) = p.gate.clone() else { return one(p) };
    let groups = [p.groups];
    let batch: &[i64] = if p.cut == Cut::Rows { &[] } else { &groups };
    let between = Between::new(p.dtype, (p.m, p.n), batch, bases.workspace());
    let bias = |row| {
        p.bias.as_ref().map(|bias| {
            let address = bias_at(bias.address, row * bias.row_stride, p.dtype);
            GroupBias { address, ..bias.clone() }
        })
    };
    let first = GroupedMatmulProblem {
        b: gate,
        bias: bias(0),
        gate: None,
        out: between.result.clone().unwrap_or_else(|| p.out.clone()),
        wide: between.kept,
        ..p.clone()
    };
    let second = GroupedMatmulProblem {
        bias: bias(1),
        gate: None,
        activation: Activation::None,
        wide: between.taken,
        ..p.clone()
    };
    between.one_after_the_other(one(&first), one(&second))
}

/// The groups as one product: of all rows, or of all k; where matrices differ from group to group, as a batch.
pub(super) fn whole(problem: &GroupedMatmulProblem) -> MatmulProblem {
    let GroupedMatmulProblem { device, dtype, groups, m, n, k, activation, .. } = *problem;
    let batched = |x: &Matrix| {
        let mut x = x.clone();
        if x.batch_strides.is_empty() {
            x.batch_strides.push(0);
        }
        x
    };
    let [a, b, out] = [&problem.a, &problem.b, &problem.out].map(batched);
    let bias = problem.bias.as_ref().map(|&GroupBias { address, stride, row_stride, .. }| Bias {
        address,
        stride,
        row_stride,
    });
    MatmulProblem {
        device,
        dtype,
        m,
        n,
        k,
        batch: [groups].into_iter().collect(),
        a,
        b,
        out,
        bias,
        gate: problem.gate.as_ref().map(batched),
        residual: None,
        residual_is_out: false,
        wide: problem.wide,
        kept: None,
        activation,
        precision: Precision::Ieee,
    }
}

/// Tiles that there are at most, whatever the offsets say.
pub(super) fn most_tiles(problem: &GroupedMatmulProblem, (tile_m, tile_n): (u32, u32)) -> u64 {
    let [m, n, groups] = [problem.m, problem.n, problem.groups].map(i64::unsigned_abs);
    let rows = match problem.cut {
        // One more for the rows of no group.
        Cut::Rows => (m / u64::from(tile_m)).saturating_add(m.min(groups + 1)),
        Cut::Depth | Cut::Nothing => m.div_ceil(u64::from(tile_m)).saturating_mul(groups),
    };
    rows.saturating_mul(n.div_ceil(u64::from(tile_n)))
}

/// Sizes that kernels count in 31 bits: all but those of a problem that no memory holds, or that nobody poses.
pub(super) fn is_countable(problem: &GroupedMatmulProblem, tile: (u32, u32)) -> bool {
    let sizes = [problem.groups, problem.total()];
    sizes.iter().all(|&size| size < i64::from(i32::MAX) - 1024) && most_tiles(problem, tile) < MOST_TILES
}

/// A block a tile.
fn plan(problem: &GroupedMatmulProblem, device: &DeviceFacts) -> LaunchPlan<GroupedMatmulParams> {
    let matmul = whole(problem);
    let p = Oriented::straight(&matmul);
    let tensor_cores =
        device.compute_capability >= (8, 0) && matches!(problem.dtype, DType::F16 | DType::BF16);
    // Along what is cut a group may begin anywhere.
    let layout = match (p.accesses(problem.dtype), problem.cut) {
        ([Access::AlongK, Access::AlongK], Cut::Rows | Cut::Nothing) => Some("kk"),
        ([Access::AlongK, Access::AlongMn], Cut::Rows | Cut::Nothing) => Some("kn"),
        ([Access::AlongMn, Access::AlongMn], _) if problem.cut != Cut::Rows => Some("mn"),
        _ => None,
    };
    let mean = match problem.cut {
        Cut::Rows => problem.m / problem.groups.max(1),
        Cut::Depth | Cut::Nothing => problem.m,
    };
    let large = mean >= 96 && problem.n >= 96;
    let (file, tile, layout, why) = match (tensor_cores, layout) {
        (true, Some(layout)) => {
            let tile = if large { "128x128" } else { "64x64" };
            let why = Reason::plain("mma", "wgmma", "the device or the operands do not suit wgmma and TMA");
            ("matmul_mma", tile, format!("_{layout}"), why)
        }
        (true, None) => {
            let why = Reason::plain("mma any", "mma", "no vectors of 16 bytes fit a group's operands");
            ("matmul_mma", "64x64", "_any".to_owned(), why)
        }
        (false, _) => {
            let why = Reason::plain("simt", None, "tensor cores do not take the dtype on the device");
            ("matmul_simt", "64x64", String::new(), why)
        }
    };
    let name = format!("grouped_{file}_{tile}{layout}_{}", problem.dtype.suffix());
    let shape = blocks::launch_shape(file, tile, layout.ends_with("any"), problem.dtype, device);
    let side = shape.side;
    let mut params = MatmulParams::<1>::new(&matmul, &p, (side, side), device.multiprocessors * 2);
    params.blocks = most_tiles(problem, (side, side));
    let tiles = [params.order.tiles_m, params.order.tiles_n, params.order.group_m];
    let params = GroupedMatmulParams { matmul: params, groups: Groups::new(problem, tiles) };
    LaunchPlan {
        grid: blocks::grid(params.matmul.blocks),
        settings: settings(&params.groups, (side, side)),
        why: [why].into_iter().collect(),
        ..LaunchPlan::new(Kernel { file, name }, 1, shape.threads, shape.shared_bytes, params)
    }
}

/// As plans print them.
pub(super) fn settings(groups: &Groups, (tile_m, tile_n): (u32, u32)) -> Vec<(&'static str, u64)> {
    let all = [("groups", groups.count), ("tile_m", tile_m), ("tile_n", tile_n), ("group_m", groups.group_m)];
    all.map(|(name, value)| (name, u64::from(value))).to_vec()
}

#[cfg(test)]
mod tests;
