//! Contiguous operands at different offsets from 16-byte boundaries, and one row added to all: add_misaligned.cu.

use super::layout::{LEAST_VECTORS, Variant};
use super::{NARROW, Tiling, VECTOR_BYTES, VECTOR_THREADS, block_size};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::reason::Reason;
use crate::ops::Strided;
use crate::ops::add::{AddProblem, AddendProblem};

/// How such an addition is made.
pub struct Addition {
    pub variant: Variant,
    pub tiling: Tiling,
    /// Elements before the first whole vector.
    pub head: u64,
    /// Of `repeated`: x is the row.
    pub row_x: bool,
    pub why: Reason,
}

pub fn of(problem: &AddProblem, device: &DeviceFacts) -> Option<Addition> {
    let y = match &problem.y {
        AddendProblem::Tensor(y) => Some(y),
        AddendProblem::Scalar(_) => None,
    };
    let (x, out) = (&problem.x, &problem.out);
    let size = out.dtype.size();
    let fits = |s: &Strided| s.dtype == out.dtype && s.address.is_multiple_of(size);
    if !(fits(x) && fits(out) && y.is_none_or(fits)) {
        return None;
    }
    match (problem.shape.as_slice(), y) {
        (&[length], _) => contiguous(length.unsigned_abs(), [Some(x), y], out, device),
        (&[rows, columns], Some(y)) => {
            let (rows, columns) = (rows.unsigned_abs(), columns.unsigned_abs());
            repeated(rows, columns, (x, y, false), out, device)
                .or_else(|| repeated(rows, columns, (y, x, true), out, device))
        }
        _ => None,
    }
}

/// Bytes to the next 16-byte boundary.
fn missing(operand: &Strided) -> u64 {
    (operand.address as u64).wrapping_neg() % VECTOR_BYTES
}

/// Contiguous operands that start anywhere. A vector of the result needs two aligned vectors of an input.
fn contiguous(
    length: u64,
    inputs: [Option<&Strided>; 2],
    out: &Strided,
    device: &DeviceFacts,
) -> Option<Addition> {
    let size = out.dtype.size() as u64;
    let lanes = VECTOR_BYTES / size;
    let packed = |s: &Strided| s.strides.as_slice() == [1];
    let inputs = || inputs.into_iter().flatten();
    if length < LEAST_VECTORS * lanes || !packed(out) || !inputs().all(packed) {
        return None;
    }
    let mut head = missing(out) / size;
    let past = |s: &Strided| (s.address as u64 + head * size) % VECTOR_BYTES;
    let offsets: [u64; 2] = std::array::from_fn(|i| inputs().nth(i).map_or(0, past));
    if offsets.iter().any(|&past| past > head * size) {
        head += lanes;
    }
    let left = (length - head) * size;
    let mut vectors = left / VECTOR_BYTES;
    if offsets.iter().any(|&past| past > 0 && (vectors + 1) * VECTOR_BYTES - past > left) {
        vectors -= 1;
    }
    let items = vectors.div_ceil(Variant::Misaligned.vectors_per_thread());
    let threads = block_size(items, VECTOR_THREADS, device);
    let tiling = Tiling::tiles(items.div_ceil(threads), threads, vectors, vectors, 1);
    let why = Reason::plain(
        "misaligned",
        "misaligned_rows",
        "the operands are contiguous, at different offsets from 16-byte boundaries",
    );
    Some(Addition { variant: Variant::Misaligned, tiling, head, row_x: false, why })
}

/// One row, which is added to all rows of a contiguous operand.
fn repeated(
    rows: u64,
    columns: u64,
    (full, row, row_x): (&Strided, &Strided, bool),
    out: &Strided,
    device: &DeviceFacts,
) -> Option<Addition> {
    let size = out.dtype.size() as u64;
    let lanes = VECTOR_BYTES / size;
    let contiguous = |s: &Strided| s.strides.as_slice() == [columns.cast_signed(), 1];
    if columns < lanes || columns >= NARROW / lanes || row.strides.as_slice() != [0, 1] {
        return None;
    }
    if !contiguous(full) || !contiguous(out) || missing(full) != missing(out) {
        return None;
    }
    let head = missing(out) / size;
    // The vectors after which the columns repeat.
    let period = columns >> columns.trailing_zeros().min(lanes.trailing_zeros());
    let vectors = (rows * columns - head) / lanes;
    let groups = vectors.div_ceil(period * Variant::Repeated.vectors_per_thread()).max(1);
    let items = period * groups;
    if items >= NARROW {
        return None;
    }
    let threads = block_size(items, VECTOR_THREADS, device);
    let tiling = Tiling::tiles(items.div_ceil(threads), threads, items, period, groups);
    let why = Reason::plain("repeated", "rows", "one row is added to all rows of a contiguous operand");
    Some(Addition { variant: Variant::Repeated, tiling, head, row_x, why })
}
