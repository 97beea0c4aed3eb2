//! How a GPU multiplies: which kernel, which tile, in what order.

mod addends;
pub mod blocks;
pub mod copied;
mod cost;
mod gated;
pub mod grouped;
mod operands;
mod params;
mod reduce;
mod repack;
pub mod skinny;
pub mod splitk;
pub mod wgmma;

use addends::Addends;
pub use blocks::plan;
use operands::{Access, Oriented, access, alignment, allows_vectors, down_columns, k_fast};
pub use params::MatmulParams;

use super::reason::Reason;
use super::{Bases, Choice};
use crate::cuda::device::DeviceFacts;
use crate::dtype::DType;
use crate::ops::matmul::{Activation, MatmulProblem, Matrix};
use crate::ops::work::Workload;

/// Kernels that a developer may ask for where the plan would choose others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Forced {
    /// One block a tile: matmul_mma.cu and its siblings.
    Blocks(blocks::Overrides),
    /// matmul_wgmma.cu, where it can do the problem.
    Wgmma(wgmma::Overrides),
    /// matmul_bf16x6.cu, where it can do the problem.
    Bf16x6(wgmma::Overrides),
    /// matmul_wgmma_few.cu, or of float32 matmul_bf16x6_few.cu, where they can do the problem.
    Few(wgmma::Overrides),
    /// matmul_wgmma_tf32.cu, where it can do the problem.
    Tf32(wgmma::Overrides),
    /// matmul_skinny.cu or matmul_skinny_simt.cu, where there are few rows or columns.
    Skinny(skinny::Overrides),
    /// matmul_mma.cu on copies of what it could only read element by element.
    Copied,
}

/// Which kernels solve a problem.
#[derive(Clone, Debug, PartialEq)]
pub enum Route {
    Blocks(blocks::Overrides),
    Wgmma(wgmma::WgmmaChoice),
    Bf16x6(wgmma::bf16x6::Bf16x6Choice),
    Bf16x6Few(wgmma::bf16x6::few::FewChoice),
    WgmmaFew(wgmma::few::FewChoice),
    Tf32(wgmma::tf32::Tf32Choice),
    Skinny(skinny::SkinnyChoice),
    Copied(copied::CopiedChoice),
    SplitK(splitk::SplitKChoice),
}

/// On compute capability 9.0, fp16 and bf16 go to matmul_wgmma.cu, but for small problems whose operands it would have to copy, and
/// few rows that matmul_wgmma_few.cu is estimated to do sooner; among its tiles and splits wgmma/cost.rs decides. float32 goes to
/// matmul_bf16x6.cu there where that is estimated to be done before the blocks or the kernels of few rows, of which
/// matmul_bf16x6_few.cu is one; as TF32 to matmul_wgmma_tf32.cu.
/// Elsewhere few rows or columns go to matmul_skinny.cu where blocks of whole tiles would leave much of the device idle; of
/// float32 and float64 k is split where there are few tiles;
/// operands that those blocks would read element by element are copied first where they are used often enough;
/// everything else goes to the blocks as it is.
pub fn route(problem: &MatmulProblem, device: &DeviceFacts, forced: Option<Forced>) -> Route {
    let route = match forced {
        Some(Forced::Wgmma(overrides)) => wgmma::choose(problem, device, overrides).map(Route::Wgmma),
        Some(Forced::Bf16x6(overrides)) => {
            wgmma::bf16x6::choose(problem, device, overrides).map(Route::Bf16x6)
        }
        Some(Forced::Few(overrides)) if problem.dtype == DType::F32 => {
            wgmma::bf16x6::few::choose(problem, device, overrides).map(Route::Bf16x6Few)
        }
        Some(Forced::Few(overrides)) => wgmma::few::choose(problem, device, overrides).map(Route::WgmmaFew),
        Some(Forced::Tf32(overrides)) => wgmma::tf32::choose(problem, device, overrides).map(Route::Tf32),
        Some(Forced::Skinny(overrides)) => skinny::choose(problem, device, overrides).map(Route::Skinny),
        Some(Forced::Copied) => copied::choose(problem, device).map(Route::Copied),
        Some(Forced::Blocks(overrides)) if overrides.splits.is_some_and(|splits| splits > 1) => {
            splitk::choose(problem, device, overrides).map(Route::SplitK)
        }
        Some(Forced::Blocks(overrides)) => Some(Route::Blocks(overrides)),
        None => unforced(problem, device),
    };
    route.unwrap_or(Route::Blocks(blocks::Overrides::default()))
}

/// None: the blocks.
fn unforced(problem: &MatmulProblem, device: &DeviceFacts) -> Option<Route> {
    if let Some((choice, clocks)) = wgmma::choose_timed(problem, device, wgmma::Overrides::default())
        && (!choice.copies_operands() || multiply_adds(problem) >= COPIED_FROM)
    {
        return Some(wgmma_or_few(problem, device, choice, clocks));
    }
    let narrow = Narrow::fastest(problem, device);
    let blocks = || blocks::clocks(problem, &Oriented::new(problem), device);
    if let Some(choice) = wgmma::tf32::choose(problem, device, wgmma::Overrides::default()) {
        // Few rows wait for the other operand, which float32's own kernels read from any layout.
        return Some(match narrow.filter(|narrow| narrow.clocks() < choice.clocks()) {
            Some(narrow) => narrow.instead(("wgmma tf32", choice.clocks())),
            None => Route::Tf32(choice.unasked()),
        });
    }
    if let Some(choice) = wgmma::bf16x6::choose(problem, device, wgmma::Overrides::default()) {
        let (blocks, own) = (blocks() * PLAINLY, choice.clocks());
        return match narrow.filter(|narrow| narrow.clocks() < blocks) {
            Some(narrow) if narrow.clocks() <= own => Some(narrow.instead(("blocks", blocks))),
            Some(narrow) => Some(Route::Bf16x6(choice.instead((narrow.name(), narrow.clocks())))),
            None => (own < blocks).then(|| Route::Bf16x6(choice.instead(("blocks", blocks)))),
        };
    }
    let whole = blocks();
    let split = splitk::choose(problem, device, blocks::Overrides::default());
    let split = split.filter(|split| split.clocks() * PLAINLY < whole);
    if let Some(narrow) = narrow {
        let other = split.as_ref().map_or(("blocks", whole), |split| ("k in splits", split.clocks()));
        if narrow.clocks() * PLAINLY < other.1 {
            return Some(narrow.instead(other));
        }
    }
    if let Some(split) = split {
        return Some(Route::SplitK(split.instead(whole)));
    }
    let choice = copied::choose(problem, device)?;
    let by_elements = blocks::computing(problem, &Oriented::new(problem), device);
    (choice.clocks() * PLAINLY < by_elements)
        .then(|| Route::Copied(choice.instead(by_elements, problem, device)))
}

/// What is estimated to be done first: matmul_wgmma.cu, with a choice that takes so many clocks, or its kernel of few rows.
fn wgmma_or_few(p: &MatmulProblem, device: &DeviceFacts, choice: wgmma::WgmmaChoice, clocks: f64) -> Route {
    match wgmma::few::choose(p, device, wgmma::Overrides::default()) {
        Some(few) if few.clocks() < clocks => Route::WgmmaFew(few.instead(("wgmma", clocks))),
        Some(few) => Route::Wgmma(choice.instead(clocks, (wgmma::few::NAME, few.clocks()))),
        None => Route::Wgmma(choice.unasked()),
    }
}

/// A kernel for few rows or columns.
enum Narrow {
    Skinny(skinny::SkinnyChoice),
    Few(wgmma::bf16x6::few::FewChoice),
}

impl Narrow {
    fn fastest(problem: &MatmulProblem, device: &DeviceFacts) -> Option<Narrow> {
        if problem.work().bytes() < FEW_BYTES {
            return None;
        }
        let few = wgmma::bf16x6::few::choose(problem, device, wgmma::Overrides::default()).map(Narrow::Few);
        let is_skinny = problem.m.min(problem.n) <= skinny::FEW;
        let skinny =
            is_skinny.then(|| skinny::choose(problem, device, skinny::Overrides::default())).flatten();
        let both = skinny.map(Narrow::Skinny).into_iter().chain(few);
        both.min_by(|x, y| x.clocks().total_cmp(&y.clocks()))
    }

    fn clocks(&self) -> f64 {
        match self {
            Narrow::Skinny(choice) => choice.clocks(),
            Narrow::Few(choice) => choice.clocks(),
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Narrow::Skinny(choice) => choice.name(),
            Narrow::Few(_) => wgmma::bf16x6::few::NAME,
        }
    }

    /// The choice by estimates, against another kernel that would take so many clocks.
    fn instead(self, other: (&'static str, f64)) -> Route {
        match self {
            Narrow::Skinny(choice) => Route::Skinny(choice.instead(other)),
            Narrow::Few(choice) => Route::Bf16x6Few(choice.instead(other)),
        }
    }
}

/// How much faster an estimate must be for a kernel to replace one that has been measured; and how much faster float32 in
/// blocks is estimated on compute capability 9.0 than it is measured.
const PLAINLY: f64 = 1.2;
/// With fewer, a kernel's time is that of its start and end, whichever it is.
const FEW_BYTES: u64 = 1 << 18;

/// The launches of `route`, decided once for a problem and a device.
pub fn choose(problem: &MatmulProblem, device: &DeviceFacts, forced: Option<Forced>) -> Choice {
    let (p, bases) = Bases::of(problem);
    choose_from(&p, &bases, device, forced)
}

/// The same for a problem at `bases`.
fn choose_from(p: &MatmulProblem, bases: &Bases, device: &DeviceFacts, forced: Option<Forced>) -> Choice {
    if p.gate.is_some() {
        return gated::choose(p, bases, device, forced);
    }
    of_route(&route(p, device, forced), p, bases, bases.workspace(), device)
}

/// The launches of a problem at `bases`, with memory from `workspace` on.
fn of_route(
    route: &Route,
    p: &MatmulProblem,
    bases: &Bases,
    workspace: usize,
    device: &DeviceFacts,
) -> Choice {
    match route {
        Route::Blocks(overrides) => Choice::of(&plan(p, *overrides, device), bases),
        Route::Skinny(choice) => {
            let launches = choice.launches(p, device, workspace);
            let reduce = launches.reduce.map(|plan| plan.launch(bases));
            let bytes = choice.workspace_bytes(p);
            Choice::of(&launches.multiply, bases).before(reduce).with_workspace(bytes)
        }
        Route::Copied(choice) => {
            let launches = choice.launches(p, device, workspace);
            let repack = launches.repack.launch(bases);
            let bytes = choice.workspace_bytes();
            Choice::of(&launches.multiply, bases).after(Some(repack)).with_workspace(bytes)
        }
        Route::SplitK(choice) => {
            let launches = choice.launches(p, device, workspace);
            let reduce = launches.reduce.launch(bases);
            let bytes = choice.workspace_bytes(p);
            Choice::of(&launches.multiply, bases).before(Some(reduce)).with_workspace(bytes)
        }
        Route::Bf16x6(choice) => {
            choice.launches(p, device, workspace).choice(bases, choice.workspace_bytes(p))
        }
        Route::Bf16x6Few(choice) => choice.launch(p, device).choice(bases),
        Route::WgmmaFew(choice) => choice.launch(p, device).choice(bases),
        Route::Tf32(choice) => choice.launches(p, device, workspace).choice(bases, choice.workspace_bytes(p)),
        Route::Wgmma(choice) => {
            choice.launches(p, device, workspace).choice(bases, choice.workspace_bytes(p))
        }
    }
}

/// Multiply-adds from which a copy of operands that the copy engine cannot address is worth its launch:
/// docs/measurements/matmul_repack.md.
const COPIED_FROM: u64 = 1 << 24;

fn multiply_adds(problem: &MatmulProblem) -> u64 {
    let sizes = [problem.m, problem.n, problem.k].map(i64::unsigned_abs);
    sizes.iter().fold(products(problem), |n, &size| n.saturating_mul(size))
}

fn products(problem: &MatmulProblem) -> u64 {
    problem.batch.iter().fold(1u64, |n, &size| n.saturating_mul(size.unsigned_abs()))
}

/// Why the tile that takes fewer clocks.
fn estimated(tile: (&'static str, f64), other: (&'static str, f64)) -> Reason {
    let metrics = [("clocks", tile.1 as u64), ("of the other", other.1 as u64)];
    Reason::new(tile.0, other.0, "it is estimated to be done first", metrics)
}

/// `ActivationKind` in kernels/common/epilogue.cuh, and leaky_relu's slope.
pub(super) fn activation(activation: Activation) -> (u32, f64) {
    match activation {
        Activation::None => (0, 0.0),
        Activation::Relu => (1, 0.0),
        Activation::LeakyRelu { negative_slope } => (2, negative_slope),
        Activation::Gelu => (3, 0.0),
        Activation::GeluTanh => (4, 0.0),
        Activation::Silu => (5, 0.0),
    }
}

#[cfg(test)]
mod tests;
