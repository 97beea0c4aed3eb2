//! float32 from bfloat16 parts: how kernels/matmul_split.cu and kernels/matmul_bf16x6.cu are launched.

pub mod few;
mod params;

pub use params::{Bf16x6Params, SplitParams};

use super::floats::Model;
use super::launches::{batch_strides, by_offset};
use super::params::MAPS;
use super::repack::{self, RepackOperand};
use super::{BATCH_DIMS, Oriented, Overrides, SIZE_LIMIT, Tile, WgmmaChoice, estimated};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::matmul::reduce::ReduceParams;
use crate::cuda::plan::{self, Bases, Kernel, LaunchPlan};
use crate::cuda::tensor_map::TensorMapSpec;
use crate::dtype::DType;
use crate::ops::matmul::{MatmulProblem, Precision};
use crate::ops::work::Arithmetic;

/// The same list as in matmul_bf16x6.cu. Of equals, the first is preferred.
#[rustfmt::skip]
pub const TILES: [Tile; 3] = [
    Tile { name: "128x128", consumers: 2, m_steps: 1, n: 128, blocks: 1, has_cluster_splitk: true, planes: PARTS },
    Tile { name: "128x64",  consumers: 2, m_steps: 1, n:  64, blocks: 1, has_cluster_splitk: true, planes: PARTS },
    Tile { name: "64x64",   consumers: 1, m_steps: 1, n:  64, blocks: 2, has_cluster_splitk: true, planes: PARTS },
];
const MODEL: Model = Model {
    name: "bf16x6",
    instead_of: "simt",
    tiles: &TILES,
    rates: &[0.874, 0.796, 0.571],
    products: PRODUCTS,
    start: START,
    start_behind_copies: START,
    copying: 2.5,
};
const START: f64 = 16_100.0;
/// Products of two parts.
const PRODUCTS: u32 = 6;
/// PARTS of kernels/common/bf16x3.cuh.
const PARTS: u32 = 3;
/// Share of the device's memory that the parts may take.
const MEMORY: u64 = 8;
/// Vectors that a block of matmul_split.cu splits at a time, and blocks of it on a multiprocessor.
const SPLIT_THREADS: u64 = 256;
const SPLIT_BLOCKS: u64 = 8;

/// How a problem will be solved, but for where its workspace memory is.
#[derive(Clone, Debug, PartialEq)]
pub struct Bf16x6Choice {
    product: WgmmaChoice,
    /// Blocks that split a, and b.
    split_blocks: [u32; 2],
    clocks: f64,
}

/// The launches that solve a problem, in their order.
#[derive(Clone, Debug, PartialEq)]
pub struct Launches {
    pub split: LaunchPlan<SplitParams>,
    pub multiply: LaunchPlan<Bf16x6Params>,
    /// What the maps among the parameters are made from.
    pub maps: [Option<TensorMapSpec>; MAPS],
    pub reduce: Option<LaunchPlan<ReduceParams>>,
}

/// None: not for this problem on this device.
pub fn choose(problem: &MatmulProblem, device: &DeviceFacts, overrides: Overrides) -> Option<Bf16x6Choice> {
    // Code for 9.0a runs on nothing else.
    if device.compute_capability != (9, 0) || problem.dtype != DType::F32 || problem.batch.len() > BATCH_DIMS
    {
        return None;
    }
    let p = Oriented::new(problem);
    let fits = [p.m, p.n, p.k].iter().chain(&problem.batch).all(|&size| (1..=SIZE_LIMIT).contains(&size));
    let residual = p.residual.as_ref().map_or(0, |x| x.address);
    let addresses = [p.a.address, p.b.address, p.out.address, p.bias, residual];
    let elements_lie_whole = addresses.iter().all(|address| address.is_multiple_of(problem.dtype.size()));
    if !fits || !elements_lie_whole {
        return None;
    }
    let parts = u64::from(PARTS);
    let copies = [
        repack::Dense::new(&p.a, (p.m, p.a.row_stride), (p.k, p.a.col_stride), &problem.batch, parts),
        repack::Dense::new(&p.b, (p.n, p.b.col_stride), (p.k, p.b.row_stride), &problem.batch, parts),
    ];
    let k = p.k.unsigned_abs();
    let copied = copies.iter().fold(0u64, |sum, copy| sum.saturating_add(copy.bytes()));
    if copied > device.memory_bytes / MEMORY || copies[0].k(k) > SIZE_LIMIT.unsigned_abs() {
        return None;
    }
    let (product, clocks) = MODEL.choose((problem, &p), device, overrides, copies.map(Some))?;
    let split_blocks = blocks_to_split(copies.map(|copy| copy.vectors()), device);
    Some(Bf16x6Choice { product, split_blocks, clocks })
}

/// Of each operand as many as its share of those that run at once.
fn blocks_to_split(vectors: [u64; 2], device: &DeviceFacts) -> [u32; 2] {
    let most = u64::from(device.multiprocessors) * SPLIT_BLOCKS;
    let all = (vectors[0] + vectors[1]).div_ceil(SPLIT_THREADS).max(1);
    vectors.map(|vectors| {
        let blocks = vectors.div_ceil(SPLIT_THREADS);
        let share = (u128::from(blocks) * u128::from(most)).div_ceil(u128::from(all)) as u64;
        blocks.min(share).max(1) as u32
    })
}

impl Bf16x6Choice {
    /// The choice by estimates, against another kernel that would take so many clocks.
    pub fn instead(mut self, other: (&'static str, f64)) -> Bf16x6Choice {
        self.product.why[0] = estimated((MODEL.name, self.clocks), other);
        self
    }

    /// Until the result is complete.
    pub fn clocks(&self) -> f64 {
        self.clocks
    }

    /// Bytes before the words that the blocks of matmul_split.cu leave.
    fn extremes_at(&self, problem: &MatmulProblem) -> u64 {
        self.product.workspace_bytes(problem)
    }

    fn extremes(&self) -> u32 {
        self.split_blocks[0] + self.split_blocks[1]
    }

    pub fn workspace_bytes(&self, problem: &MatmulProblem) -> u64 {
        self.extremes_at(problem).saturating_add(u64::from(self.extremes()) * 4)
    }

    /// `workspace` is the address of `workspace_bytes` bytes.
    pub fn launches(&self, problem: &MatmulProblem, device: &DeviceFacts, workspace: usize) -> Launches {
        let p = Oriented::new(problem);
        let (product, sources) = self.product.product(problem, &p, device, workspace);
        let extremes = workspace + self.extremes_at(problem) as usize;
        let mut operand = [RepackOperand::default(); 2];
        let mut k_major = 0;
        for (i, (x, (mn_stride, k_stride), copy, to)) in sources.iter().enumerate().take(2) {
            operand[i] = copy.operand(x, *mn_stride, *k_stride, *to);
            k_major |= u32::from(copy.k_major) << i;
        }
        let [first_blocks, second] = self.split_blocks;
        let split = SplitParams { operand, extremes, first_blocks, k_major };
        let kernel = Kernel { file: "matmul_split", name: "matmul_split_f32".into() };
        let split = LaunchPlan::new(kernel, first_blocks + second, SPLIT_THREADS as u32, 0, split);
        let params = Bf16x6Params {
            a_batch: batch_strides(&p.a),
            b_batch: batch_strides(&p.b),
            extremes,
            a_extremes: first_blocks,
            all_extremes: self.extremes(),
            ..Bf16x6Params::new(product.multiply.params, &p)
        };
        let LaunchPlan { kernel, grid, block, shared_bytes, cluster, cooperative, settings, why, .. } =
            product.multiply.clone();
        let multiply =
            LaunchPlan { kernel, grid, block, shared_bytes, cluster, cooperative, params, settings, why };
        Launches { split, multiply, maps: product.maps, reduce: product.reduce }
    }
}

impl Launches {
    /// The same without addresses, for a problem at `bases`.
    pub fn choice(&self, bases: &Bases, workspace: u64) -> plan::Choice {
        let multiply = self.multiply.launch(bases).with_maps(bases, by_offset(&self.maps));
        plan::Choice::new(multiply, self.multiply.why.clone())
            .after(Some(self.split.launch(bases)))
            .before(self.reduce.as_ref().map(|plan| plan.launch(bases)))
            .with_workspace(workspace)
            .computing_in(
                Arithmetic { dtype: DType::BF16, precision: Precision::Ieee, matrix: true },
                PRODUCTS,
            )
    }
}

#[cfg(test)]
mod tests;
