//! Halves that cannot be read in vectors of 16 bytes where they are (odd sizes, odd strides, a base off 16 bytes): copied first,
//! once, by kernels/matmul_repack.cu, then multiplied by kernels/matmul_mma.cu's tiles of aligned operands.

use super::repack::{self, Dense, RepackParams};
use super::{Access, MatmulParams, Matrix, Oriented, blocks, cost, estimated};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::LaunchPlan;
use crate::cuda::plan::reason::Reason;
use crate::dtype::DType;
use crate::ops::matmul::MatmulProblem;

/// What matmul_repack.cu takes: batch dimensions, and coordinates.
const BATCH_DIMS: usize = 3;
const SIZE_LIMIT: i64 = i32::MAX as i64 - 1024;
/// Clocks for one more kernel, and share of the memory's nominal rate that it reaches.
const START: f64 = 5000.0;
const RATE: f64 = 0.5;

/// How a problem will be solved, but for where its workspace memory is.
#[derive(Clone, Debug, PartialEq)]
pub struct CopiedChoice {
    /// Of a and b.
    copies: [Option<Dense>; 2],
    clocks: f64,
    why: Reason,
}

/// The launches that solve a problem, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Launches {
    pub repack: LaunchPlan<RepackParams>,
    pub multiply: LaunchPlan<MatmulParams>,
}

/// None: not for this problem on this device, or nothing is to be copied.
pub fn choose(problem: &MatmulProblem, device: &DeviceFacts) -> Option<CopiedChoice> {
    let halves = matches!(problem.dtype, DType::F16 | DType::BF16);
    if !halves || device.compute_capability < (8, 0) || problem.batch.len() > BATCH_DIMS {
        return None;
    }
    let p = Oriented::new(problem);
    let fits = [p.m, p.n, p.k].iter().chain(&problem.batch).all(|&n| (1..=SIZE_LIMIT).contains(&n));
    let elements_lie_whole = [p.a.address, p.b.address].iter().all(|address| address.is_multiple_of(2));
    if !fits || !elements_lie_whole {
        return None;
    }
    let [a, b] = p.accesses(problem.dtype);
    let by_elements = |access| matches!(access, Access::Elements { .. });
    let copy_a = || Dense::new(&p.a, (p.m, p.a.row_stride), (p.k, p.a.col_stride), &problem.batch, 1);
    let copy_b = || Dense::new(&p.b, (p.n, p.b.col_stride), (p.k, p.b.row_stride), &problem.batch, 1);
    let copies = [by_elements(a).then(copy_a), by_elements(b).then(copy_b)];
    let bytes = copies.iter().flatten().map(Dense::bytes).fold(0u64, u64::saturating_add);
    // Of an expanded operand, a copy may be larger than any memory.
    if bytes == 0 || bytes > device.memory_bytes / 4 {
        return None;
    }
    let mut choice = CopiedChoice { copies, clocks: 0.0, why: Reason::asked_for("copied", "blocks") };
    let moved = cost::memory_clocks(2.0 * bytes as f64 / RATE, device);
    choice.clocks = START + moved + blocks::computing(problem, &choice.copied(p, 0).0, device);
    Some(choice)
}

impl CopiedChoice {
    /// The choice by estimates, against blocks that would take so many clocks without copies.
    pub fn instead(self, blocks: f64, problem: &MatmulProblem, device: &DeviceFacts) -> CopiedChoice {
        let [own, blocks] = [self.clocks, blocks].map(|clocks| cost::clocks(problem, clocks, device));
        CopiedChoice { why: estimated(("copied", own), ("by elements", blocks)), ..self }
    }

    /// Of both kernels, but for what every kernel's start and end takes.
    pub fn clocks(&self) -> f64 {
        self.clocks
    }

    /// Bytes of the copies, each from a multiple of 256 on.
    fn workspace(&self) -> [u64; 2] {
        self.copies.map(|copy| copy.map_or(0, |copy| copy.bytes()).next_multiple_of(256))
    }

    pub fn workspace_bytes(&self) -> u64 {
        self.workspace().iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// The problem with the copies, at `workspace`, for operands; and what they are made from.
    fn copied(&self, mut p: Oriented, workspace: usize) -> (Oriented, LaunchPlan<RepackParams>) {
        let (a, b) = (p.a.clone(), p.b.clone());
        let (a_strides, b_strides) = ((a.row_stride, a.col_stride), (b.col_stride, b.row_stride));
        let mut sources = Vec::new();
        if let Some(copy) = self.copies[0] {
            let (matrix, mn_stride, k_stride) = copy.matrix(&a, workspace);
            p.a = Matrix { row_stride: mn_stride, col_stride: k_stride, ..matrix };
            p.padded[0] = true;
            sources.push((&a, a_strides, copy, workspace));
        }
        if let Some(copy) = self.copies[1] {
            let to = workspace + self.workspace()[0] as usize;
            let (matrix, mn_stride, k_stride) = copy.matrix(&b, to);
            p.b = Matrix { row_stride: k_stride, col_stride: mn_stride, ..matrix };
            p.padded[1] = true;
            sources.push((&b, b_strides, copy, to));
        }
        let repack = repack::plan(&sources);
        (p, repack)
    }

    /// `workspace` is the address of `workspace_bytes` bytes.
    pub fn launches(&self, problem: &MatmulProblem, device: &DeviceFacts, workspace: usize) -> Launches {
        let (p, repack) = self.copied(Oriented::new(problem), workspace);
        let mut multiply = blocks::planned(problem, &p, blocks::Overrides::default(), device);
        multiply.why.insert(0, self.why);
        Launches { repack, multiply }
    }
}

#[cfg(test)]
mod tests;
