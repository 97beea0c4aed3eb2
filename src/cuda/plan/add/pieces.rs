//! Operands that lie in one piece each, where add.cu's accesses do not fit: add_shifted.cu.

use super::space::{LEAST_CHUNKS, Variant};
use super::{CHUNK, NARROW, Share, VECTOR_THREADS, block_size};
use crate::cuda::device::DeviceFacts;
use crate::cuda::plan::reason::Reason;
use crate::ops::Strided;
use crate::ops::add::{AddProblem, AddendProblem};

/// How such an addition is made.
pub struct Pieces {
    pub variant: Variant,
    pub share: Share,
    /// Elements before the first whole chunk.
    pub head: u64,
    /// Of `repeated`: x is the row.
    pub row_x: bool,
    pub why: Reason,
}

pub fn of(problem: &AddProblem, device: &DeviceFacts) -> Option<Pieces> {
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
        (&[length], _) => shifted(length.unsigned_abs(), [Some(x), y], out, device),
        (&[rows, columns], Some(y)) => {
            let (rows, columns) = (rows.unsigned_abs(), columns.unsigned_abs());
            repeated(rows, columns, (x, y, false), out, device)
                .or_else(|| repeated(rows, columns, (y, x, true), out, device))
        }
        _ => None,
    }
}

/// Bytes that are missing to the next boundary.
fn missing(operand: &Strided) -> u64 {
    (operand.address as u64).wrapping_neg() % CHUNK
}

/// Contiguous operands that start anywhere. A chunk needs the two vectors around what it takes of an input.
fn shifted(
    length: u64,
    inputs: [Option<&Strided>; 2],
    out: &Strided,
    device: &DeviceFacts,
) -> Option<Pieces> {
    let size = out.dtype.size() as u64;
    let lanes = CHUNK / size;
    let contiguous = |s: &Strided| s.strides.as_slice() == [1];
    let inputs = || inputs.into_iter().flatten();
    if length < LEAST_CHUNKS * lanes || !contiguous(out) || !inputs().all(contiguous) {
        return None;
    }
    let mut head = missing(out) / size;
    let skew = |s: &Strided| (s.address as u64 + head * size) % CHUNK;
    let skews: [u64; 2] = std::array::from_fn(|i| inputs().nth(i).map_or(0, skew));
    if skews.iter().any(|&skew| skew > head * size) {
        head += lanes;
    }
    let left = (length - head) * size;
    let mut chunks = left / CHUNK;
    if skews.iter().any(|&skew| skew > 0 && (chunks + 1) * CHUNK - skew > left) {
        chunks -= 1;
    }
    let items = chunks.div_ceil(Variant::Shifted.chunks());
    let threads = block_size(items, VECTOR_THREADS, device);
    let share = Share::tiles(items.div_ceil(threads), threads, chunks, chunks, 1);
    let why = Reason::plain(
        "shifted",
        "skewed",
        "each operand lies in one piece, unlike to boundaries of 16 bytes",
    );
    Some(Pieces { variant: Variant::Shifted, share, head, row_x: false, why })
}

/// One row, which is added to all rows of a contiguous operand.
fn repeated(
    rows: u64,
    columns: u64,
    (full, row, row_x): (&Strided, &Strided, bool),
    out: &Strided,
    device: &DeviceFacts,
) -> Option<Pieces> {
    let size = out.dtype.size() as u64;
    let lanes = CHUNK / size;
    let contiguous = |s: &Strided| s.strides.as_slice() == [columns.cast_signed(), 1];
    if columns < lanes || columns >= NARROW / lanes || row.strides.as_slice() != [0, 1] {
        return None;
    }
    if !contiguous(full) || !contiguous(out) || missing(full) != missing(out) {
        return None;
    }
    let head = missing(out) / size;
    // After so many vectors the columns come again.
    let period = columns >> columns.trailing_zeros().min(lanes.trailing_zeros());
    let vectors = (rows * columns - head) / lanes;
    let groups = vectors.div_ceil(period * Variant::Repeated.chunks()).max(1);
    let items = period * groups;
    if items >= NARROW {
        return None;
    }
    let threads = block_size(items, VECTOR_THREADS, device);
    let share = Share::tiles(items.div_ceil(threads), threads, items, period, groups);
    let why = Reason::plain(
        "repeated",
        "rows",
        "one row is added to all rows of an operand that lies in one piece",
    );
    Some(Pieces { variant: Variant::Repeated, share, head, row_x, why })
}
