//! The sum of a product's k splits: how kernels/matmul_reduce.cu is launched.

use std::mem::{offset_of, size_of};

use super::activation;
use super::addends::{self, Addends};
use crate::cuda::plan::{Kernel, KernelParams, LaunchPlan};
use crate::ops::matmul::MatmulProblem;

const THREADS: u64 = 256;
/// What the kernel takes: batch dimensions, and coordinates.
pub const BATCH_DIMS: usize = 3;
pub const SIZE_LIMIT: i64 = i32::MAX as i64 - 1024;

/// Clocks of a second kernel, and bytes of partial sums that it reads in one.
const START: f64 = 5000.0;
const BYTES: f64 = 3000.0;

/// Clocks in which partial sums of so many bytes are added up.
pub fn clocks(bytes: u64, splits: u32) -> f64 {
    START + 2.0 * bytes as f64 / BYTES + f64::from(splits)
}

/// `ReduceParams` of matmul_reduce.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReduceParams {
    partials: usize,
    bias: usize,
    out: usize,
    bias_stride: i64,
    out_row: i64,
    out_col: i64,
    out_batch: [i64; 3],
    residual_batch: [i64; 3],
    bias_up: i64,
    addends: Addends,
    quads: u64,
    negative_slope: f64,
    m: u32,
    n: u32,
    width: u32,
    height: u32,
    products: u32,
    splits: u32,
    batch_size: [u32; 2],
    activation: u32,
    bias_by_row: u32,
    out_vector: u32,
    gate_width: u32,
}

const _: () = assert!(size_of::<ReduceParams>() == 232 && offset_of!(ReduceParams, m) == 184);

// SAFETY: repr(C) integers and floats without padding, in the order and of the types of matmul_reduce.cu's
// ReduceParams; the size is asserted here and there.
unsafe impl KernelParams for ReduceParams {
    const ADDRESSES: &'static [usize] = &[
        offset_of!(ReduceParams, partials),
        offset_of!(ReduceParams, bias),
        offset_of!(ReduceParams, out),
        offset_of!(ReduceParams, addends) + addends::ADDRESSES[0],
        offset_of!(ReduceParams, addends) + addends::ADDRESSES[1],
    ];
}

/// The partial sums of all k splits, one split after the other, and the result of their sum.
#[derive(Clone, Copy, Debug)]
pub struct Splits {
    pub partials: usize,
    pub count: u32,
    /// Of a matrix of the result.
    pub m: u32,
    pub n: u32,
    /// The same, as padded in the partial sums.
    pub height: u32,
    pub width: u32,
    pub products: u32,
    /// The result's address, and its strides along m and n.
    pub out: usize,
    pub out_row: i64,
    pub out_col: i64,
    /// Four neighbours along n may be written at once.
    pub out_vector: bool,
    /// 0: none.
    pub bias: usize,
    pub bias_row: i64,
    pub bias_col: i64,
    /// From the gate's bias to b's.
    pub bias_up: i64,
    pub addends: Addends,
    /// Columns of a tile that are the gate's, and as many behind them b's; 0: no gate.
    pub gate_width: u32,
}

impl Splits {
    /// Rows for columns.
    pub fn transposed(self) -> Splits {
        Splits {
            m: self.n,
            n: self.m,
            height: self.width,
            width: self.height,
            out_row: self.out_col,
            out_col: self.out_row,
            bias_row: self.bias_col,
            bias_col: self.bias_row,
            addends: self.addends.transposed(),
            ..self
        }
    }
}

/// At most three batch dimensions.
pub fn plan(problem: &MatmulProblem, splits: &Splits) -> LaunchPlan<ReduceParams> {
    let mut batch_size = [1; 3];
    let (mut out_batch, mut residual_batch) = ([0; 3], [0; 3]);
    let residual = problem.residual.as_ref().unwrap_or(&problem.out);
    for (i, (&size, &stride)) in
        problem.batch.iter().zip(&problem.out.batch_strides).rev().take(3).enumerate()
    {
        (batch_size[i], out_batch[i]) = (size as u32, stride);
    }
    for (to, &stride) in residual_batch.iter_mut().zip(residual.batch_strides.iter().rev()) {
        *to = stride;
    }
    let quads = u64::from(splits.m) * u64::from(splits.n.div_ceil(4)) * u64::from(splits.products);
    let (activation, negative_slope) = activation(problem.activation);
    let params = ReduceParams {
        partials: splits.partials,
        bias: splits.bias,
        out: splits.out,
        bias_stride: if splits.bias_row != 0 { splits.bias_row } else { splits.bias_col },
        out_row: splits.out_row,
        out_col: splits.out_col,
        out_batch,
        residual_batch,
        bias_up: splits.bias_up,
        addends: splits.addends,
        quads,
        negative_slope,
        m: splits.m,
        n: splits.n,
        width: splits.width,
        height: splits.height,
        products: splits.products,
        splits: splits.count,
        batch_size: [batch_size[0], batch_size[1]],
        activation,
        bias_by_row: u32::from(splits.bias_row != 0),
        out_vector: u32::from(splits.out_vector),
        gate_width: splits.gate_width,
    };
    let kernel = Kernel { file: "matmul_reduce", name: format!("matmul_reduce_{}", problem.dtype.suffix()) };
    // More blocks than a grid has are an error of the launch.
    let blocks = u32::try_from(quads.div_ceil(THREADS)).unwrap_or(u32::MAX);
    let settings = vec![("splits", u64::from(splits.count))];
    LaunchPlan { settings, ..LaunchPlan::new(kernel, blocks, THREADS as u32, 0, params) }
}
