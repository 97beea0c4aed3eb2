//! Tensor maps: how Hopper's copy engine (TMA) is told where a tensor lies and what boxes to cut out of it.

use crate::dtype::DType;

/// A CUtensorMap, as `driver::encode_tensor_map` writes it and kernels take it.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap(pub [u64; 16]);

impl TensorMap {
    /// For a tensor that no kernel will touch.
    pub const NONE: TensorMap = TensorMap([0; 16]);
}

/// Most dimensions of a map: two of a matrix and three of a batch.
pub const MAX_DIMS: usize = 5;

/// What a tensor map is made from: a tensor of 16-bit elements, or of float32 that is rounded to TF32 on its way, innermost
/// dimension first, and the box that one instruction copies. Boxes lie in shared memory as rows of 128 bytes, in the permutation that wgmma reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMapSpec {
    pub dtype: DType,
    pub address: usize,
    /// 2, or all 5.
    pub rank: usize,
    pub sizes: [u64; MAX_DIMS],
    /// Bytes from one index to the next, of all dimensions but the innermost.
    pub strides: [u64; MAX_DIMS - 1],
    pub r#box: [u32; MAX_DIMS],
    /// Nobody asks for any of it a second time.
    pub read_once: bool,
}

impl TensorMapSpec {
    /// The same tensor elsewhere.
    pub fn at(&self, address: usize) -> TensorMapSpec {
        TensorMapSpec { address, ..*self }
    }
}

/// What addresses and strides must be multiples of, in bytes.
pub const ALIGNMENT: usize = 16;
/// What strides must be below, in bytes.
pub const STRIDE_LIMIT: u64 = 1 << 40;
