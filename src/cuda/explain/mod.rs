//! What a choice means on a device, as plain data: the launches are those that are queued.

use super::Planned;
use super::device::DeviceFacts;
use super::module::{FATBINS, KernelResources};
use super::plan::occupancy::{Demand, Occupancy, occupancy};
use super::plan::reason::Reasons;
use super::plan::tile_order::MOST_TILES;
use super::plan::{Choice, Kernel, Launch};
use super::targets::{self, Capability};
use crate::error::{Error, Result};
use crate::ops::work::{Arithmetic, Work};

/// Of a result: what a process can address.
const MOST_BYTES: u64 = 1 << 47;
/// Blocks of a grid in x, y and z.
const MOST_BLOCKS: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];

/// One launch, and what the compiler reported; None where the driver would compile the kernel from PTX.
#[derive(Clone, Debug)]
pub struct Launched {
    pub launch: Launch,
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
        for Launched { launch, .. } in self.launches() {
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

pub fn explain<P: Planned>(problem: &P, device: &DeviceFacts) -> Explanation {
    let Choice { launches, main, why, arithmetic, .. } = problem.choose(device);
    let mut before: Vec<Launched> =
        launches.into_iter().map(|launch| Launched::new(launch, device)).collect();
    let after = before.split_off(main + 1);
    let main = before.swap_remove(main);
    let blocks = main.launch.grid.iter().map(|&n| u64::from(n)).product();
    let demand = |compiled: &KernelResources| Demand {
        threads: main.launch.block.iter().product(),
        registers: compiled.registers,
        shared_bytes: compiled.shared_bytes + main.launch.shared_bytes,
    };
    let (work, own) = (problem.work(), (problem.arithmetic(), 1));
    let (Arithmetic { dtype, precision, matrix }, operations) = arithmetic.unwrap_or(own);
    Explanation {
        before,
        after,
        why,
        occupancy: main.compiled.map(|compiled| occupancy(demand(compiled), blocks, device)),
        memory_seconds: device.memory_bandwidth().map(|rate| work.bytes() as f64 / rate),
        arithmetic_seconds: device
            .arithmetic(dtype, precision, matrix)
            .map(|rate| work.operations as f64 * f64::from(operations) / rate),
        main,
        device: device.clone(),
    }
}

impl Launched {
    fn new(launch: Launch, device: &DeviceFacts) -> Launched {
        let compiled = compiled(&launch.kernel, device.compute_capability);
        Launched { launch, compiled }
    }
}

/// The report on the machine code that a device of this capability runs.
fn compiled(kernel: &Kernel, gpu: Capability) -> Option<&'static KernelResources> {
    let fatbin = FATBINS.iter().find(|fatbin| fatbin.file == kernel.file)?;
    let target = targets::runs(fatbin.targets, gpu)?;
    fatbin.kernels.iter().find(|resources| resources.kernel == kernel.name && resources.target == target)
}

#[cfg(test)]
mod tests;
