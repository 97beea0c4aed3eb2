//! What a plan means on a device, as plain data.

use super::device::DeviceFacts;
use super::module::{FATBINS, KernelResources};
use super::plan::occupancy::{Demand, Occupancy, occupancy};
use super::plan::{Kernel, KernelParams, LaunchPlan};
use crate::dtype::DType;
use crate::ops::matmul::Precision;
use crate::ops::work::Work;

#[derive(Clone, Debug)]
pub struct Explanation {
    pub device: DeviceFacts,
    /// Launched before `kernel`, with the same grid, block and settings.
    pub first: Option<Kernel>,
    pub kernel: Kernel,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Dynamic.
    pub shared_bytes: u32,
    /// The plan's own figures, such as stages or tiles.
    pub settings: Vec<(&'static str, u64)>,
    /// What the compiler reported; None where the driver would compile the kernel from PTX.
    pub compiled: Option<&'static KernelResources>,
    pub occupancy: Option<Occupancy>,
    /// Seconds at the device's ceilings, where they are known.
    pub memory_seconds: Option<f64>,
    pub arithmetic_seconds: Option<f64>,
}

/// What the arithmetic of a problem is done in.
#[derive(Clone, Copy, Debug)]
pub struct Arithmetic {
    pub dtype: DType,
    pub precision: Precision,
    /// A product of matrices, which tensor cores take.
    pub matrix: bool,
}

pub fn explain<P: KernelParams>(
    plan: &LaunchPlan<P>,
    work: Work,
    arithmetic: Arithmetic,
    device: &DeviceFacts,
) -> Explanation {
    let compiled = compiled(&plan.kernel, device.compute_capability);
    let threads = plan.block.iter().product();
    let blocks = plan.grid.iter().map(|&n| u64::from(n)).product();
    let demand = |compiled: &KernelResources| Demand {
        threads,
        registers: compiled.registers,
        shared_bytes: compiled.shared_bytes + plan.shared_bytes,
    };
    let Arithmetic { dtype, precision, matrix } = arithmetic;
    Explanation {
        first: None,
        kernel: plan.kernel.clone(),
        grid: plan.grid,
        block: plan.block,
        shared_bytes: plan.shared_bytes,
        settings: plan.params.settings(),
        compiled,
        occupancy: compiled.map(|compiled| occupancy(demand(compiled), blocks, device)),
        memory_seconds: device.memory_bandwidth().map(|rate| work.bytes() as f64 / rate),
        arithmetic_seconds: device
            .arithmetic(dtype, precision, matrix)
            .map(|rate| work.operations as f64 / rate),
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
