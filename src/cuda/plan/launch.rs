//! A launch: as a planner makes it, with the parameter struct of its kernel, and as plain data without addresses.

use std::fmt;

use smallvec::SmallVec;

use super::reason::Reasons;
use crate::cuda::tensor_map::TensorMapSpec;
use crate::ops::work::Arithmetic;
use crate::ops::{Addresses, Problem};

/// A kernel by the file it lives in (`kernels/{file}.cu`) and its symbol, `{op}_{variant}_{dtype}`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kernel {
    pub file: &'static str,
    pub name: String,
}

/// A choice among the parameters, for who reads a plan.
pub type Setting = (&'static str, u64);

/// One kernel launch with its parameters by type, at the addresses of the problem that it was planned for.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchPlan<P> {
    pub kernel: Kernel,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads per block in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory per block, in bytes.
    pub shared_bytes: u32,
    /// Neighbouring blocks in x that run as a cluster; none if fewer than two.
    pub cluster: u32,
    /// Whether blocks wait for others of the grid, which must all run at the same time.
    pub cooperative: bool,
    /// The kernel's single parameter, by value.
    pub params: P,
    pub settings: Vec<Setting>,
    /// Why this kernel; empty for one that only goes with another.
    pub why: Reasons,
}

/// A Rust mirror of a kernel's parameter struct.
///
/// # Safety
/// The type must be `#[repr(C)]`, plain data without padding, of a multiple of 8 bytes, for which any bytes are a value,
/// and laid out exactly as the struct of the same name in the kernel's file; both sides assert size and offsets. The
/// kernel touches no memory before it has waited for what was queued before it, unless its launches are cooperative
/// (kernels/common/ptx/grid.cuh).
pub unsafe trait KernelParams: Copy + fmt::Debug {
    /// Byte offsets of the fields that hold addresses. 0 in such a field means none.
    const ADDRESSES: &'static [usize];
}

/// A launch without addresses, complete but for them: what is printed is what runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    pub kernel: Kernel,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub cluster: u32,
    pub cooperative: bool,
    /// Whether it may begin before the launch before it is done, for which its kernel waits.
    pub may_begin_early: bool,
    /// The bytes of the parameter struct, with operands at the addresses of `Bases`.
    pub params: Vec<u64>,
    pub relocations: SmallVec<[Relocation; 8]>,
    /// Tensor maps among the parameters.
    pub maps: Vec<Map>,
    pub settings: Vec<Setting>,
}

/// A word of the parameters that holds an operand's address plus `addend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    pub word: u16,
    pub operand: u8,
    pub addend: u64,
}

/// A tensor map in the parameters from `relocation.word` on, of a tensor at an operand's address plus an addend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    pub relocation: Relocation,
    pub spec: TensorMapSpec,
}

/// Where the operands of a problem without addresses lie, in its own order and then its workspace: far apart, and as
/// far from boundaries of `ALIGNMENT` as the real ones, which is all that plans see of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bases(Addresses);

/// No plan looks at more of an address than this: no access is wider than 16 bytes, and no line longer.
pub const ALIGNMENT: usize = crate::ops::ALIGNMENT;
/// log2 of the distance of two bases, more than the bytes that a process can address.
const DISTANCE: u32 = 56;

impl Bases {
    /// The same problem with its operands at their bases.
    pub fn of<P: Problem>(problem: &P) -> (P, Bases) {
        let bases: Addresses = problem
            .addresses()
            .iter()
            .enumerate()
            .map(|(i, &address)| if address == 0 { 0 } else { base(i) + address % ALIGNMENT })
            .collect();
        let mut problem = problem.clone();
        problem.place(&bases);
        let workspace = base(bases.len());
        (problem, Bases(bases.into_iter().chain([workspace]).collect()))
    }

    pub fn workspace(&self) -> usize {
        *self.0.last().unwrap_or(&0)
    }

    /// For a word of the parameters that holds an address; None for 0, which is none, and for what lies further from its
    /// operand's base than any tensor reaches, such as the end of one that is only explained.
    fn relocation(&self, word: usize, address: u64) -> Option<Relocation> {
        // A tensor with negative strides reaches below its base.
        let operand = ((address.wrapping_add(1 << (DISTANCE - 1)) >> DISTANCE) as usize).wrapping_sub(1);
        let base = *self.0.get(operand).filter(|_| address != 0)?;
        let addend = address.wrapping_sub(base as u64);
        Some(Relocation { word: word as u16, operand: operand as u8, addend })
    }
}

fn base(operand: usize) -> usize {
    (operand + 1) << DISTANCE
}

impl<P> LaunchPlan<P> {
    /// Of blocks in x alone, without clusters.
    pub fn new(kernel: Kernel, blocks: u32, threads: u32, shared_bytes: u32, params: P) -> LaunchPlan<P> {
        LaunchPlan {
            kernel,
            grid: [blocks, 1, 1],
            block: [threads, 1, 1],
            shared_bytes,
            cluster: 1,
            cooperative: false,
            params,
            settings: Vec::new(),
            why: Reasons::new(),
        }
    }
}

/// The settings that say something: 0 is none.
pub fn settings<const N: usize>(all: [Setting; N]) -> Vec<Setting> {
    all.into_iter().filter(|&(_, value)| value > 0).collect()
}

impl<P: KernelParams> LaunchPlan<P> {
    /// The launch without addresses of a plan that was made for a problem at `bases`.
    pub fn launch(&self, bases: &Bases) -> Launch {
        let mut params = vec![0u64; size_of::<P>() / 8];
        // SAFETY: `KernelParams` promises plain data without padding, of as many bytes as `params` then has.
        unsafe {
            std::ptr::copy_nonoverlapping(
                (&raw const self.params).cast::<u64>(),
                params.as_mut_ptr(),
                params.len(),
            );
        }
        let words = P::ADDRESSES.iter().map(|at| at / 8);
        let relocations = words.filter_map(|word| bases.relocation(word, *params.get(word)?)).collect();
        Launch {
            kernel: self.kernel.clone(),
            grid: self.grid,
            block: self.block,
            shared_bytes: self.shared_bytes,
            cluster: self.cluster,
            cooperative: self.cooperative,
            may_begin_early: !self.cooperative,
            params,
            relocations,
            maps: Vec::new(),
            settings: self.settings.clone(),
        }
    }
}

impl Launch {
    /// With tensor maps in the parameters, each from its byte offset on.
    pub fn with_maps(mut self, bases: &Bases, maps: impl Iterator<Item = (usize, TensorMapSpec)>) -> Launch {
        let map = |(at, spec): (usize, TensorMapSpec)| {
            let relocation = bases.relocation(at / 8, spec.address as u64)?;
            Some(Map { relocation, spec })
        };
        self.maps = maps.filter_map(map).collect();
        self
    }

    /// Writes the operands' addresses into a copy of the parameters.
    pub fn place(&self, params: &mut [u64], addresses: &[usize]) {
        for relocation in &self.relocations {
            if let Some(word) = params.get_mut(usize::from(relocation.word)) {
                *word = relocation.address(addresses);
            }
        }
    }

    /// As its planner would make it for operands and workspace at these addresses.
    #[cfg(test)]
    pub fn typed<P: KernelParams>(&self, addresses: &[usize]) -> LaunchPlan<P> {
        assert_eq!(self.params.len() * 8, size_of::<P>(), "{} has other parameters", self.kernel.name);
        let mut placed = self.params.clone();
        self.place(&mut placed, addresses);
        let mut params = std::mem::MaybeUninit::<P>::zeroed();
        // SAFETY: any bytes are a value of a `KernelParams`, and there are as many as it has.
        let params = unsafe {
            let to = params.as_mut_ptr().cast::<u64>();
            std::ptr::copy_nonoverlapping(placed.as_ptr(), to, placed.len());
            params.assume_init()
        };
        let Launch { kernel, grid, block, shared_bytes, cluster, cooperative, settings, .. } = self.clone();
        let why = Reasons::new();
        LaunchPlan { kernel, grid, block, shared_bytes, cluster, cooperative, params, settings, why }
    }
}

impl Relocation {
    pub fn address(&self, addresses: &[usize]) -> u64 {
        let address = addresses.get(usize::from(self.operand)).copied().unwrap_or(0);
        (address as u64).wrapping_add(self.addend)
    }
}

/// How a problem is solved on a device: decided once, and the same for all problems like it.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// In their order.
    pub launches: SmallVec<[Launch; 1]>,
    /// Which of them is the one that others prepare or finish.
    pub main: usize,
    /// Bytes of device memory that the launches need besides the operands.
    pub workspace: u64,
    /// Of the main launch.
    pub why: Reasons,
    /// What is computed in, where that is not the problem's own arithmetic, and how many operations for each of its own.
    pub arithmetic: Option<(Arithmetic, u32)>,
    /// What is queued where the driver refuses a cooperative launch: a stream may have fewer multiprocessors than its
    /// device. It needs no more workspace.
    pub fallback: Option<Box<Choice>>,
}

impl Choice {
    /// One launch.
    pub fn of<P: KernelParams>(plan: &LaunchPlan<P>, bases: &Bases) -> Choice {
        Choice::new(plan.launch(bases), plan.why.clone())
    }

    pub fn new(main: Launch, why: Reasons) -> Choice {
        Choice {
            launches: [main].into_iter().collect(),
            main: 0,
            workspace: 0,
            why,
            arithmetic: None,
            fallback: None,
        }
    }

    /// Another kernel with the same parameters before the launch, which gets some of its work done before it waits for
    /// that kernel: so that kernel begins in its turn.
    pub fn of_two<P: KernelParams>(first: Option<Kernel>, plan: &LaunchPlan<P>, bases: &Bases) -> Choice {
        let choice = Choice::of(plan, bases);
        let first =
            first.map(|kernel| Launch { kernel, may_begin_early: false, ..choice.launches[0].clone() });
        choice.after(first)
    }

    /// With a launch in front of all others.
    pub fn after(mut self, first: Option<Launch>) -> Choice {
        if let Some(first) = first {
            self.launches.insert(0, first);
            self.main += 1;
        }
        self
    }

    /// With a launch after all others.
    pub fn before(mut self, last: Option<Launch>) -> Choice {
        self.launches.extend(last);
        self
    }

    pub fn computing_in(self, arithmetic: Arithmetic, operations: u32) -> Choice {
        Choice { arithmetic: Some((arithmetic, operations)), ..self }
    }

    pub fn with_workspace(self, workspace: u64) -> Choice {
        Choice { workspace, ..self }
    }

    pub fn main(&self) -> &Launch {
        &self.launches[self.main]
    }

    /// The main launch as its planner would make it for this problem and a workspace.
    #[cfg(test)]
    pub fn plan<P: KernelParams>(&self, problem: &impl Problem, workspace: usize) -> LaunchPlan<P> {
        let mut addresses = problem.addresses();
        addresses.push(workspace);
        let why = self.why.clone();
        LaunchPlan { why, ..self.main().typed(&addresses) }
    }
}

impl<P> fmt::Display for LaunchPlan<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(f, &self.kernel, self.grid, self.block, self.shared_bytes)
    }
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display(f, &self.kernel, self.grid, self.block, self.shared_bytes)
    }
}

fn display(
    f: &mut fmt::Formatter<'_>,
    Kernel { file, name }: &Kernel,
    [gx, gy, gz]: [u32; 3],
    [bx, by, bz]: [u32; 3],
    shared_bytes: u32,
) -> fmt::Result {
    write!(
        f,
        "{name} ({file}.cu): grid {gx}x{gy}x{gz}, block {bx}x{by}x{bz}, {shared_bytes} bytes of shared memory"
    )
}
