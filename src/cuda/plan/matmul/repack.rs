//! Copying operands to where the copy engine can address them: how kernels/matmul_repack.cu is launched, and what the copies
//! of it and of kernels/matmul_split.cu look like.

use std::mem::{offset_of, size_of};

use super::Matrix;
use crate::cuda::plan::index::Divisor;
use crate::cuda::plan::{Kernel, KernelParams, LaunchPlan};
use crate::tensor::Dims;

/// `RepackOperand` of kernels/common/repack.cuh. Strides in elements, batch dimensions innermost first.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RepackOperand {
    from: usize,
    to: usize,
    row_stride: i64,
    col_stride: i64,
    batch_stride: [i64; 3],
    vectors: u64,
    by_across: Divisor,
    by_rows: Divisor,
    by_batch: [Divisor; 2],
    rows: u32,
    cols: u32,
    across: u32,
    batch_size: [u32; 2],
    from_rows: u32,
}

/// Where the addresses lie.
pub const OPERAND_ADDRESSES: [usize; 2] = [offset_of!(RepackOperand, from), offset_of!(RepackOperand, to)];

/// `RepackParams` of matmul_repack.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RepackParams {
    operand: [RepackOperand; 2],
    first_blocks: u32,
    /// Bit i, of float32: operand i is contiguous across its copy's rows.
    transposed: u32,
}

const _: () = assert!(size_of::<RepackParams>() == 312 && offset_of!(RepackParams, first_blocks) == 304);

impl RepackParams {
    #[cfg(test)]
    pub fn transposed(&self) -> u32 {
        self.transposed
    }
}

// SAFETY: repr(C) integers without padding, in the order and of the types of matmul_repack.cu's RepackParams; the
// size is asserted here and there.
unsafe impl KernelParams for RepackParams {
    const ADDRESSES: &'static [usize] = &{
        const NEXT: usize = size_of::<RepackOperand>();
        let [from, to] = OPERAND_ADDRESSES;
        [from, to, NEXT + from, NEXT + to]
    };
}

const THREADS: u32 = 256;
/// Elements of a vector: 16 bytes.
const VECTOR: u64 = 8;
/// Vectors of a line of the caches, which a box's row of as many bytes then is, and not two halves of two.
const LINE: u64 = 8;
/// Rows that a warp of matmul_repack_i32 transposes at a time.
const WARP_ROWS: u64 = 32;
/// Of k, that the planes of float32 are interleaved by: BLOCK_K of kernels/common/wgmma_tile.cuh.
const BLOCK_K: u64 = 64;

/// One operand's copy: matrices of rows of `cols` elements, padded to whole vectors, and to whole lines where that is
/// little. Of float32, whose k is padded to a multiple of 64, three planes of 16 bits, interleaved along k by the 64; or
/// two, which are the elements themselves, along k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dense {
    /// Of a plane; the padding of k is in `rows` or, of vectors, in `across`.
    rows: u64,
    across: u64,
    /// Of the operand.
    from_rows: u64,
    cols: u64,
    planes: u64,
    /// Sizes of the copy's batch dimensions, innermost first; 1 where the operand is broadcast.
    batch: [u64; 3],
    /// Whether k is what lies side by side.
    pub k_major: bool,
    /// Whether it is not so in the operand.
    transposed: bool,
}

/// Vectors of a row of so many elements.
fn across(elements: u64) -> u64 {
    let vectors = elements.div_ceil(VECTOR);
    if vectors < 4 * LINE { vectors } else { vectors.next_multiple_of(LINE) }
}

impl Dense {
    /// Of an operand that is `mn` by `k`, in a batch of at most three dimensions.
    pub fn new(x: &Matrix, mn: (i64, i64), k: (i64, i64), batch: &[i64], planes: u64) -> Dense {
        let ((mn, mn_stride), (k, k_stride)) = (mn, k);
        let k_fast = super::k_fast(mn_stride, k_stride, mn, k);
        let (k_major, transposed) = (k_fast || planes == 2, !k_fast && planes == 2);
        let (rows, cols) = if k_major { (mn, k) } else { (k, mn) };
        let (from_rows, cols) = (rows.unsigned_abs(), cols.unsigned_abs());
        let whole = |k: u64| if planes > 1 { k.next_multiple_of(BLOCK_K) } else { k };
        let (rows, across) = match k_major {
            true if transposed => (from_rows.next_multiple_of(WARP_ROWS), across(whole(cols))),
            true => (from_rows, across(whole(cols))),
            false => (whole(from_rows), across(cols)),
        };
        let mut sizes = [1; 3];
        for (size, (&n, &stride)) in sizes.iter_mut().zip(batch.iter().zip(&x.batch_strides).rev()) {
            *size = if stride == 0 { 1 } else { n.unsigned_abs() };
        }
        Dense { rows, across, from_rows, cols, planes, batch: sizes, k_major, transposed }
    }

    pub fn row_bytes(&self) -> u64 {
        self.across * 2 * VECTOR
    }

    /// Of one plane.
    pub fn vectors(&self) -> u64 {
        self.batch.iter().fold(self.rows * self.across, |n, size| n.saturating_mul(*size))
    }

    pub fn bytes(&self) -> u64 {
        self.vectors().saturating_mul(2 * VECTOR * self.planes)
    }

    /// The copy's size along k, of an operand of `k`.
    pub fn k(&self, k: u64) -> u64 {
        if self.planes > 1 { k.next_multiple_of(BLOCK_K) * self.planes } else { k }
    }

    /// The copy at `address` as an operand: (matrix, stride along m or n, stride along k).
    pub fn matrix(&self, x: &Matrix, address: usize) -> (Matrix, i64, i64) {
        let row = (self.across * VECTOR) as i64;
        let planes = self.planes as i64;
        let lead = if self.k_major { row * planes } else { row };
        let mut step = self.rows as i64 * row * planes;
        let mut batch_strides: Dims = x.batch_strides.clone();
        for (stride, size) in batch_strides.iter_mut().rev().zip(self.batch) {
            if *stride != 0 {
                *stride = step;
            }
            step = step.saturating_mul(size as i64);
        }
        let (mn_stride, k_stride) = if self.k_major { (lead, 1) } else { (1, lead) };
        (Matrix { address, batch_strides, ..*x }, mn_stride, k_stride)
    }

    pub fn operand(&self, x: &Matrix, mn_stride: i64, k_stride: i64, to: usize) -> RepackOperand {
        let (row_stride, col_stride) =
            if self.k_major { (mn_stride, k_stride) } else { (k_stride, mn_stride) };
        let mut batch_stride = [0; 3];
        for (to, from) in batch_stride.iter_mut().zip(x.batch_strides.iter().rev()) {
            *to = *from;
        }
        RepackOperand {
            from: x.address,
            to,
            row_stride,
            col_stride,
            batch_stride,
            vectors: self.vectors(),
            by_across: Divisor::new(self.across.max(1)),
            by_rows: Divisor::new(self.rows.max(1)),
            by_batch: [self.batch[0], self.batch[1]].map(|size| Divisor::new(size.max(1))),
            rows: self.rows as u32,
            cols: self.cols as u32,
            across: self.across as u32,
            batch_size: [self.batch[0] as u32, self.batch[1] as u32],
            from_rows: self.from_rows as u32,
        }
    }
}

/// An operand, its strides along m or n and along k, its copy and where that goes.
pub type Source<'a> = (&'a Matrix, (i64, i64), Dense, usize);

pub fn plan(sources: &[Source<'_>]) -> LaunchPlan<RepackParams> {
    let mut operand = [RepackOperand::default(); 2];
    let (mut transposed, mut words) = (0, 1);
    for (i, (x, (mn_stride, k_stride), copy, to)) in sources.iter().enumerate().take(2) {
        operand[i] = copy.operand(x, *mn_stride, *k_stride, *to);
        transposed |= u32::from(copy.transposed) << i;
        words = copy.planes;
    }
    let [first, second] =
        operand.map(|o| u32::try_from(o.vectors.div_ceil(u64::from(THREADS))).unwrap_or(u32::MAX));
    let name = if words == 2 { "matmul_repack_i32" } else { "matmul_repack_i16" };
    let kernel = Kernel { file: "matmul_repack", name: name.into() };
    let params = RepackParams { operand, first_blocks: first, transposed };
    LaunchPlan::new(kernel, first.saturating_add(second), THREADS, 0, params)
}
