//! What a plan means on a device, as plain data. The launches are those of `cuda/mod.rs`, in their order.

use super::device::DeviceFacts;
use super::forced;
use super::module::{FATBINS, KernelResources};
use super::plan::add::AddPlan;
use super::plan::matmul::Route;
use super::plan::occupancy::{Demand, Occupancy, occupancy};
use super::plan::reason::Reasons;
use super::plan::softmax::Launch;
use super::plan::tile_order::MOST_TILES;
use super::plan::{self, Kernel, KernelParams, LaunchPlan, softmax_backward::Plan};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::ops::activation_backward::ActivationBackwardProblem;
use crate::ops::add::AddProblem;
use crate::ops::matmul::{MatmulProblem, Precision};
use crate::ops::softmax::SoftmaxProblem;
use crate::ops::softmax_backward::SoftmaxBackwardProblem;
use crate::ops::work::Work;

/// Of a result: what a process can address.
const MOST_BYTES: u64 = 1 << 47;
/// Blocks of a grid in x, y and z.
const MOST_BLOCKS: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

/// One launch.
#[derive(Clone, Debug)]
pub struct Launched {
    pub kernel: Kernel,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic.
    pub shared_bytes: u32,
    /// The plan's own figures, such as stages or tiles.
    pub settings: Vec<(&'static str, u64)>,
    /// What the compiler reported; None where the driver would compile the kernel from PTX.
    pub compiled: Option<&'static KernelResources>,
}

#[derive(Clone, Debug)]
pub struct Explanation {
    pub device: DeviceFacts,
    /// Launches that prepare the main one.
    pub before: Vec<Launched>,
    pub main: Launched,
    /// Launches that finish what it has begun.
    pub after: Vec<Launched>,
    /// Of the main launch, as what follows.
    pub why: Reasons,
    pub occupancy: Option<Occupancy>,
    /// Seconds at the device's ceilings for the problem, where they are known.
    pub memory_seconds: Option<f64>,
    pub arithmetic_seconds: Option<f64>,
}

/// Refuses what plans are not made for.
pub fn check_work(work: Work) -> Result<()> {
    if work.bytes_written <= MOST_BYTES {
        return Ok(());
    }
    let got = format!("a result of {} bytes", work.bytes_written);
    Err(Error::NotPlanned { got, most: "a process can address (2^47)" })
}

impl Explanation {
    pub fn launches(&self) -> impl Iterator<Item = &Launched> {
        self.before.iter().chain([&self.main]).chain(&self.after)
    }

    /// Refuses what no GPU would launch, or kernels lose count of.
    pub fn check(&self) -> Result<()> {
        for launch in self.launches() {
            if launch.grid.iter().zip(MOST_BLOCKS).any(|(&blocks, most)| blocks > most) {
                let got = format!("the grid of {}", launch.kernel.name);
                return Err(Error::NotPlanned { got, most: "a GPU launches (2^31 - 1 blocks)" });
            }
            let tiles = launch.settings.iter().filter(|(name, _)| matches!(*name, "tiles_m" | "tiles_n"));
            let tiles: u64 = tiles.map(|&(_, count)| count).product();
            if tiles >= MOST_TILES {
                let got = format!("a matrix of {tiles} tiles");
                return Err(Error::NotPlanned { got, most: "kernels count (2^31 - 1)" });
            }
        }
        Ok(())
    }
}

/// What the arithmetic of a problem is done in.
#[derive(Clone, Copy, Debug)]
struct Arithmetic {
    dtype: DType,
    precision: Precision,
    /// A product of matrices, which tensor cores take.
    matrix: bool,
}

impl Arithmetic {
    fn plain(dtype: DType) -> Arithmetic {
        Arithmetic { dtype, precision: Precision::Ieee, matrix: false }
    }
}

pub fn add(p: &AddProblem, device: &DeviceFacts) -> Explanation {
    let arithmetic = Arithmetic::plain(p.out.dtype);
    match plan::add::plan(p, device, forced::add_schedule()) {
        AddPlan::Few(plan) => explain(&plan, p.work(), arithmetic, device),
        AddPlan::Many(plan) => explain(plan.as_ref(), p.work(), arithmetic, device),
    }
}

pub fn softmax(p: &SoftmaxProblem, device: &DeviceFacts) -> Explanation {
    let arithmetic = Arithmetic::plain(p.out.dtype);
    let planned = plan::softmax::plan(p, device, forced::softmax(), 0);
    match planned.launch {
        Launch::Rows(plan) => both(planned.first, plan, p.work(), arithmetic, device),
        Launch::Ragged(plan) => explain(&plan, p.work(), arithmetic, device),
        Launch::Panels(plan) => both(planned.first, plan, p.work(), arithmetic, device),
        Launch::Tiles(plan) => both(planned.first, plan, p.work(), arithmetic, device),
        Launch::Turned(plan) => both(planned.first, plan, p.work(), arithmetic, device),
    }
}

pub fn matmul(p: &MatmulProblem, device: &DeviceFacts) -> Explanation {
    let arithmetic = Arithmetic { dtype: p.dtype, precision: p.precision, matrix: true };
    match plan::matmul::route(p, device, forced::matmul()) {
        Route::Blocks(overrides) => {
            explain(&plan::matmul::plan(p, overrides, device), p.work(), arithmetic, device)
        }
        Route::Skinny(choice) => {
            let launches = choice.launches(p, device, 0);
            Explanation {
                after: launches.reduce.iter().map(|plan| launched(plan, device)).collect(),
                ..explain(&launches.multiply, p.work(), arithmetic, device)
            }
        }
        Route::Copied(choice) => {
            let launches = choice.launches(p, device, 0);
            Explanation {
                before: vec![launched(&launches.repack, device)],
                ..explain(&launches.multiply, p.work(), arithmetic, device)
            }
        }
        Route::Wgmma(choice) => {
            let launches = choice.launches(p, device, 0);
            Explanation {
                before: launches.repack.iter().map(|plan| launched(plan, device)).collect(),
                after: launches.reduce.iter().map(|plan| launched(plan, device)).collect(),
                ..explain(&launches.multiply, p.work(), arithmetic, device)
            }
        }
    }
}

pub fn softmax_backward(p: &SoftmaxBackwardProblem, device: &DeviceFacts) -> Explanation {
    let arithmetic = Arithmetic::plain(p.out.dtype);
    match plan::softmax_backward::plan(p, device, forced::softmax(), 0) {
        Plan::Rows(first, plan) => both(first, plan, p.work(), arithmetic, device),
        Plan::Ragged(plan) => explain(&plan, p.work(), arithmetic, device),
        Plan::Tiles(first, plan) => both(first, plan, p.work(), arithmetic, device),
    }
}

pub fn activation_backward(p: &ActivationBackwardProblem, device: &DeviceFacts) -> Explanation {
    let (first, second) = plan::activation_backward::plan(p, device, 0);
    let after = second.iter().map(|plan| launched(plan, device)).collect();
    Explanation { after, ..explain(&first, p.work(), Arithmetic::plain(p.dtype), device) }
}

/// As `launch::Prepared::new`.
fn both<P: KernelParams>(
    first: Option<Kernel>,
    plan: LaunchPlan<P>,
    work: Work,
    arithmetic: Arithmetic,
    device: &DeviceFacts,
) -> Explanation {
    let explained = explain(&plan, work, arithmetic, device);
    let before = first.map(|kernel| launched(&LaunchPlan { kernel, ..plan }, device));
    Explanation { before: before.into_iter().collect(), ..explained }
}

fn launched<P: KernelParams>(plan: &LaunchPlan<P>, device: &DeviceFacts) -> Launched {
    Launched {
        kernel: plan.kernel.clone(),
        grid: plan.grid,
        block: plan.block,
        shared_bytes: plan.shared_bytes,
        settings: plan.params.settings(),
        compiled: compiled(&plan.kernel, device.compute_capability),
    }
}

fn explain<P: KernelParams>(
    plan: &LaunchPlan<P>,
    work: Work,
    arithmetic: Arithmetic,
    device: &DeviceFacts,
) -> Explanation {
    let main = launched(plan, device);
    let threads = plan.block.iter().product();
    let blocks = plan.grid.iter().map(|&n| u64::from(n)).product();
    let demand = |compiled: &KernelResources| Demand {
        threads,
        registers: compiled.registers,
        shared_bytes: compiled.shared_bytes + plan.shared_bytes,
    };
    let Arithmetic { dtype, precision, matrix } = arithmetic;
    Explanation {
        before: Vec::new(),
        after: Vec::new(),
        why: plan.why.clone(),
        occupancy: main.compiled.map(|compiled| occupancy(demand(compiled), blocks, device)),
        memory_seconds: device.memory_bandwidth().map(|rate| work.bytes() as f64 / rate),
        arithmetic_seconds: device
            .arithmetic(dtype, precision, matrix)
            .map(|rate| work.operations as f64 / rate),
        main,
        device: device.clone(),
    }
}

/// The machine code that a device of this capability runs: the newest of its own generation that is not newer
/// than itself.
fn compiled(kernel: &Kernel, (major, minor): (u32, u32)) -> Option<&'static KernelResources> {
    let own = major * 10 + minor;
    let fatbin = FATBINS.iter().find(|fatbin| fatbin.file == kernel.file)?;
    let capability = |resources: &KernelResources| -> Option<u32> {
        resources.target.strip_prefix("sm_")?.trim_end_matches(char::is_alphabetic).parse().ok()
    };
    let candidates = fatbin.kernels.iter().filter(|resources| resources.kernel == kernel.name);
    candidates
        .filter_map(|resources| Some((capability(resources)?, resources)))
        .filter(|&(built_for, _)| built_for / 10 == major && built_for <= own)
        .max_by_key(|&(built_for, _)| built_for)
        .map(|(_, resources)| resources)
}

#[cfg(test)]
mod tests;
