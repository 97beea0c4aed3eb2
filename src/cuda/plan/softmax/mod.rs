//! How the softmax kernels, kernels/softmax*.cu, are launched.

mod choose;
mod column_tile;
mod register_tile;
mod rows;
mod split_columns;
mod transposed;

use self::column_tile::ColumnTile;
use self::register_tile::RegisterTile;
use self::split_columns::SplitColumns;
use self::transposed::Transposed;
use super::limits::{INLINE_RANK, MAX_BLOCKS, STATIC_SHARED, VECTOR_BYTES};
use super::misaligned::{Misaligned, MisalignedRows};
use super::{Bases, Choice, Kernel};
use crate::cuda::device::DeviceFacts;
use crate::dtype::DType;
use crate::ops::softmax::{Kind, SoftmaxProblem};

/// WARP_THREADS in softmax.cu.
const WARP_THREADS: u64 = 64;
/// THREADS in softmax_general.cu.
const GENERAL_THREADS: u64 = 256;
const ONLINE_THREADS: u64 = 512;
const MAX_THREADS: u64 = 1024;
/// The V of EXPORT in softmax_misaligned.cu.
const MISALIGNED_VALUES: [u64; 2] = [16, 32];

/// The variants of softmax, with their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// `vectors` vectors per lane and row, `rows` rows at a time, 2^`lane_bits` lanes per row.
    Warp { vectors: u64, rows: u64, lane_bits: u32 },
    /// A row in the registers of one block.
    Block { threads: u64 },
    /// Rows of a contiguous tensor, one to a thread, that touch up to `words` words of 4 bytes.
    Short { words: u64 },
    /// Tiles of misaligned rows, through shared memory.
    Misaligned(Misaligned<2>),
    /// Rows in the shared memory of persistent blocks.
    Pipeline { threads: u64, stages: u64, vectors_per_thread: u64, blocks_per_multiprocessor: u64 },
    /// A row of any length, of which `vectors_per_thread` vectors stay in shared memory.
    Online { threads: u64, vectors_per_thread: u64 },
    /// A row in the registers of `blocks` blocks, a cluster if there are several.
    Cluster { threads: u64, blocks: u64 },
    /// A row in the shared memory of `blocks` blocks, a cluster if there are several.
    Smem { threads: u64, blocks: u64, vectors_per_thread: u64 },
    /// A row in `slices` slices and two launches; a block loads a slice in `batches` batches.
    Split { threads: u64, slices: u64, batches: u64 },
    /// A row in the registers and the shared memory of `slices` blocks, which all run at the same time. A thread has
    /// `register_batches` batches of vectors in registers and `shared_vectors` vectors in shared memory, and reads
    /// others twice.
    Grid { threads: u64, slices: u64, register_batches: u64, shared_vectors: u64 },
    /// Contiguous columns in the shared memory of a block or a cluster.
    ColumnTile(ColumnTile),
    /// Contiguous columns in the registers of a block, where accesses of 4 bytes do not fit.
    RegisterTile(RegisterTile),
    /// Contiguous columns in two launches.
    SplitColumns(SplitColumns),
    /// Rows contiguous in one of x and result, elements in the other, in the shared memory of a block or a cluster, or
    /// in two launches.
    Transposed(Transposed),
    /// Short rows of this layout, one or two to a thread.
    TransposedShort(transposed::Short),
    /// Anything.
    General,
}

/// The variant that a developer wants instead of the plan's own choice, and its parameter. The plan chooses for
/// problems that the variant cannot do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forced {
    /// Vectors in flight per lane: 1, 2 or 4 of one row, and together with the other rows of the lane 4.
    Warp(u64),
    /// Rows in shared memory.
    Pipeline(u64),
    /// Tiles of rows in shared memory.
    Misaligned(u64),
    /// Blocks of a cluster.
    Cluster(u64),
    Smem(u64),
    /// Slices of a row or a column.
    Split(u64),
    /// Slices of a row.
    Grid(u64),
    Block,
    Online,
    Short,
}

/// Bytes of the messages of a slice in softmax_grid.cu: two of 16 bytes for a Partial<double>, one for a
/// Partial<float>.
fn message_bytes(p: &SoftmaxProblem) -> u64 {
    2 * partial_bytes(p)
}

pub fn choose(problem: &SoftmaxProblem, device: &DeviceFacts, forced: Option<Forced>) -> Choice {
    let (p, bases) = Bases::of(problem);
    let (variant, why) = choose::choose(&p, device, forced);
    let choice = Choice { why: [why].into(), ..of_variant(&p, device, variant, &bases) };
    if !choice.main().cooperative {
        return choice;
    }
    let fallback = choose(problem, &device.without_cooperation(), forced);
    Choice {
        workspace: choice.workspace.max(fallback.workspace),
        fallback: Some(Box::new(fallback)),
        ..choice
    }
}

/// The launches of a given variant, which must be able to do the problem, for a problem at `bases`.
fn of_variant(p: &SoftmaxProblem, device: &DeviceFacts, variant: Variant, bases: &Bases) -> Choice {
    let partials = bases.workspace();
    let choice = match variant {
        Variant::ColumnTile(tile) => Choice::of(&column_tile::plan(p, tile), bases),
        Variant::RegisterTile(tile) => Choice::of(&register_tile::plan(p, tile), bases),
        Variant::SplitColumns(split) => {
            let (first, launch) = split_columns::plan(p, split, partials);
            Choice::of_two(first, &launch, bases)
        }
        Variant::TransposedShort(short) => Choice::of(&transposed::plan_short(p, short), bases),
        Variant::Transposed(transposed) => {
            let (first, launch) = transposed::plan(p, transposed, partials);
            Choice::of_two(first, &launch, bases)
        }
        Variant::Misaligned(misaligned) => {
            let pair = pair_suffix(p.x.dtype, p.out.dtype).unwrap_or_default();
            let name = format!("softmax_misaligned{}_{pair}", misaligned.values);
            let (kernel, log) = (Kernel { file: "softmax_misaligned", name }, p.kind == Kind::LogSoftmax);
            Choice::of(&misaligned_rows(p).plan(device, misaligned, kernel, log, None), bases)
        }
        _ => {
            let (first, launch) = rows::plan(p, device, variant, partials);
            Choice::of_two(first, &launch, bases)
        }
    };
    choice.with_workspace(variant.workspace(p))
}

impl Variant {
    /// Bytes of the partials between its launches, or its blocks.
    fn workspace(self, p: &SoftmaxProblem) -> u64 {
        let (rows, partial) = (p.row_count().unsigned_abs(), partial_bytes(p));
        match self {
            Variant::Split { slices, .. } => rows * slices * partial,
            // And for each row a count of the blocks that have read them.
            Variant::Grid { slices, .. } => rows * (slices * message_bytes(p) + VECTOR_BYTES),
            Variant::SplitColumns(split) => split.workspace(p),
            Variant::Transposed(transposed) => transposed.workspace(p),
            _ => 0,
        }
    }
}

/// For rows of contiguous elements.
fn misaligned_rows(p: &SoftmaxProblem) -> MisalignedRows<'_, 2> {
    MisalignedRows {
        length: p.length.unsigned_abs(),
        rows: &p.rows,
        operands: [&p.x, &p.out],
        values: MISALIGNED_VALUES,
    }
}

/// Bytes of a `Partial` in kernels/common/reduce.cuh.
fn partial_bytes(p: &SoftmaxProblem) -> u64 {
    if p.out.dtype == DType::F64 { 16 } else { 8 }
}

/// The suffix of the fast variants' kernels; None for a rare pair of dtypes.
fn pair_suffix(x: DType, out: DType) -> Option<String> {
    match (x, out) {
        (a, b) if a == b => Some(a.suffix().into()),
        (DType::F16 | DType::BF16, DType::F32) => Some(format!("{}_{}", x.suffix(), out.suffix())),
        _ => None,
    }
}

/// The number of outer dimensions, and of contiguous columns; None if there are none.
fn columns(p: &SoftmaxProblem) -> Option<(usize, u64)> {
    let inner = p.rows.len().checked_sub(1)?;
    (p.x.strides[inner] == 1 && p.out.strides[inner] == 1).then(|| (inner, p.rows[inner].unsigned_abs()))
}

/// Columns that are contiguous; 1 if there are none.
fn contiguous_columns(p: &SoftmaxProblem) -> u64 {
    columns(p).map_or(1, |(_, columns)| columns)
}

/// Bytes, up to 16, to which every vector of columns is aligned.
fn column_access(address: usize, dtype: DType, strides: &[i64], step: i64) -> u32 {
    let size = dtype.size() as u64;
    let bits = strides
        .iter()
        .chain([&step])
        .fold(address as u64 | VECTOR_BYTES, |bits, s| bits | s.unsigned_abs().wrapping_mul(size));
    1 << bits.trailing_zeros()
}

/// The first of `accesses`, each a number of contiguous elements and the rows that a thread has of it, that every row of
/// x, every row of the result and the number of columns allow.
fn widest_access(p: &SoftmaxProblem, accesses: &[(u64, u64)]) -> Option<(u64, u64)> {
    let (inner, columns) = columns(p)?;
    let (x_size, out_size) = (p.x.dtype.size() as u64, p.out.dtype.size() as u64);
    // The strides of a column of one element do not matter.
    let steps = if p.length > 1 { [p.x_stride, p.out_stride] } else { [0; 2] };
    let x = u64::from(column_access(p.x.address, p.x.dtype, &p.x.strides[..inner], steps[0]));
    let out = u64::from(column_access(p.out.address, p.out.dtype, &p.out.strides[..inner], steps[1]));
    let fits = |&(e, _): &(u64, u64)| {
        columns.is_multiple_of(e) && x >= e * x_size && out >= VECTOR_BYTES.min(e * out_size)
    };
    accesses.iter().copied().find(fits)
}

#[cfg(test)]
mod tests;
