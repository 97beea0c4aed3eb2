//! float32 as TF32: how kernels/matmul_wgmma_tf32.cu is launched, behind kernels/matmul_repack.cu where neither operand is
//! contiguous along k, or one is not in vectors of 16 bytes.

use super::floats::Model;
use super::{
    BATCH_DIMS, Launches, Oriented, Overrides, SIZE_LIMIT, Tile, WgmmaChoice, addressed_words,
    addressed_words_of_rows, repack,
};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::reason::Reason;
use crate::dtype::DType;
use crate::ops::matmul::{MatmulProblem, Precision};

/// The same list as in matmul_wgmma_tf32.cu. Of equals, the first is preferred.
#[rustfmt::skip]
pub const TILES: [Tile; 4] = [
    Tile { name: "128x256", consumers: 2, m_steps: 1, n: 256, blocks: 1, has_cluster_splitk: false, planes: 2 },
    Tile { name: "128x128", consumers: 2, m_steps: 1, n: 128, blocks: 1, has_cluster_splitk: false, planes: 2 },
    Tile { name: "128x64",  consumers: 2, m_steps: 1, n:  64, blocks: 1, has_cluster_splitk: false, planes: 2 },
    Tile { name: "64x64",   consumers: 1, m_steps: 1, n:  64, blocks: 2, has_cluster_splitk: false, planes: 2 },
];
const MODEL: Model = Model {
    name: "wgmma tf32",
    instead_of: "tf32",
    tiles: &TILES,
    rates: &[0.88, 0.84, 0.60, 0.50],
    products: 2,
    start: 8_400.0,
    start_behind_copies: 14_000.0,
    copying: 2.8,
};

/// How a problem will be solved, but for where its workspace memory is.
#[derive(Clone, Debug, PartialEq)]
pub struct Tf32Choice {
    product: WgmmaChoice,
    clocks: f64,
}

/// None: not for this problem on this device.
pub fn choose(problem: &MatmulProblem, device: &DeviceFacts, overrides: Overrides) -> Option<Tf32Choice> {
    let is_tf32 = problem.dtype == DType::F32 && problem.precision == Precision::Tf32;
    // Code for 9.0a runs on nothing else.
    if device.compute_capability != (9, 0) || !is_tf32 || problem.batch.len() > BATCH_DIMS {
        return None;
    }
    let (p, other) = (Oriented::new(problem), Oriented::swapped(problem));
    let sizes = [p.m, p.n, p.k].into_iter().chain(problem.batch.iter().copied());
    let fits = sizes.into_iter().all(|size| (1..=SIZE_LIMIT / 2).contains(&size));
    let addresses = [p.a.address, p.b.address, p.out.address, p.bias];
    let elements_lie_whole = addresses.iter().all(|address| address.is_multiple_of(problem.dtype.size()));
    if !fits || !elements_lie_whole {
        return None;
    }
    let (own, others) = (copies(problem, &p), copies(problem, &other));
    let swapped = copied_bytes(&others) < copied_bytes(&own);
    let (p, copies) = if swapped { (other, others) } else { (p, own) };
    // Of an expanded operand, a copy may be larger than any memory.
    if copied_bytes(&copies) > device.memory_bytes / MEMORY {
        return None;
    }
    let (mut product, clocks) = MODEL.choose((problem, &p), device, overrides, copies)?;
    if swapped {
        let because = "wgmma takes floats that lie across k from registers, as rows";
        product.why.push(Reason::plain("the transposed product", "a copy of its rows", because));
    }
    Some(Tf32Choice { product, clocks })
}

/// Of operands that the kernel cannot read as they are.
fn copies(problem: &MatmulProblem, p: &Oriented) -> [Option<repack::Dense>; 2] {
    let (a_m, a_k) = ((p.m, p.a.row_stride), (p.k, p.a.col_stride));
    let (b_n, b_k) = ((p.n, p.b.col_stride), (p.k, p.b.row_stride));
    let copy = |x, mn, k| repack::Dense::new(x, mn, k, &problem.batch, 2);
    [
        addressed_words_of_rows(&p.a, a_m, a_k).is_none().then(|| copy(&p.a, a_m, a_k)),
        addressed_words(&p.b, b_n, b_k).is_none().then(|| copy(&p.b, b_n, b_k)),
    ]
}

fn copied_bytes(copies: &[Option<repack::Dense>; 2]) -> u64 {
    copies.iter().flatten().fold(0, |sum, copy| sum.saturating_add(copy.bytes()))
}

/// Share of the device's memory that copies may take.
const MEMORY: u64 = 4;

impl Tf32Choice {
    /// The plan's own choice, and not a developer's.
    pub fn unasked(mut self) -> Tf32Choice {
        let because = "compute capability 9.0 has wgmma, which takes TF32";
        self.product.why[0] = Reason::plain(MODEL.name, MODEL.instead_of, because);
        self
    }

    /// Until the result is complete.
    pub fn clocks(&self) -> f64 {
        self.clocks
    }

    pub fn workspace_bytes(&self, problem: &MatmulProblem) -> u64 {
        self.product.workspace_bytes(problem)
    }

    /// `workspace` is the address of `workspace_bytes` bytes.
    pub fn launches(&self, problem: &MatmulProblem, device: &DeviceFacts, workspace: usize) -> Launches {
        self.product.launches(problem, device, workspace)
    }
}

#[cfg(test)]
mod tests;
