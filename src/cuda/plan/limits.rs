//! Sizes of the hardware and of parameter structs that plans of several operations share.

/// Dimensions that a parameter struct has room for without being long to copy: INLINE_RANK in kernels/common/index.cuh.
pub const INLINE_RANK: usize = 4;
/// Bytes of a vector: the widest access of a thread.
pub const VECTOR_BYTES: u64 = 16;
/// Bytes of a line of the caches, and of a sector, the least that is read of one.
pub const LINE_BYTES: u64 = 128;
pub const SECTOR_BYTES: u64 = 32;
/// Blocks of a grid along x.
pub const MAX_BLOCKS: u64 = i32::MAX as u64;
/// Static shared memory of a block, for the scratch of its reductions, and the share that the driver reserves.
pub const STATIC_SHARED: u64 = 2048;
/// Slices of a row or column whose partials one block combines.
pub const MOST_SLICES: u64 = 1024;
