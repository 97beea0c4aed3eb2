//! How the kernels of kernels/add*.cu are launched.

mod layout;
mod misaligned;
mod params;
#[cfg(test)]
mod tests;
mod tiling;

use crate::cuda::plan::limits::{INLINE_RANK, MAX_BLOCKS, VECTOR_BYTES};
use layout::{Layout, Variant};
use misaligned::Addition;
use params::{ALIGNED, AddParams, ROW_X, SAME_DTYPE, X_TRANSPOSED, Y_TRANSPOSED};
use tiling::{Tiling, block_size};

use super::index::{self, Divisor, MAX_RANK};
use super::reason::Reason;
use super::{Bases, Choice, Kernel, LaunchPlan};
use crate::cuda::device::DeviceFacts;
use crate::dtype::{Category, DType};
use crate::ops::add::{AddProblem, AddendProblem};
use crate::ops::{Scalar, Strided};

/// Per block of the vector variants: docs/measurements/add.md.
const VECTOR_THREADS: u64 = 128;
/// Flat indices of all variants but `deep` are below this.
const NARROW: u64 = (1 << 31) - 4096;

/// How the blocks tiling the tiles of a contiguous addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// One block for each tile.
    FixedGrid,
    /// As many blocks as run at once; each takes every so-many-th tile.
    GridStride,
}

/// `forced` takes the schedule of a contiguous addition out of the plan's hands.
pub fn choose(problem: &AddProblem, device: &DeviceFacts, forced: Option<Schedule>) -> Choice {
    let (problem, bases) = Bases::of(problem);
    if let Some(head) = contiguous(&problem) {
        return Choice::of(&vector(&problem, head, device, forced), &bases);
    }
    if let Some(Addition { variant, tiling, head, row_x, why }) = misaligned::of(&problem, device) {
        let mut plan = walk::<INLINE_RANK>(&problem, Layout::of(&problem), variant, &tiling, why);
        plan.params.head = head as u32;
        plan.params.flags |= if row_x { ROW_X } else { 0 };
        return Choice::of(&plan, &bases);
    }
    let mut layout = Layout::of(&problem);
    let (variant, tiling, why) = strided(&mut layout, device);
    // Parameters of few dimensions are quick to copy.
    match variant {
        Variant::Deep => Choice::of(&walk::<MAX_RANK>(&problem, layout, variant, &tiling, why), &bases),
        _ => Choice::of(&walk::<INLINE_RANK>(&problem, layout, variant, &tiling, why), &bases),
    }
}

/// The elements before the first 16-byte boundary, if the addition is contiguous and of one alignment and dtype.
fn contiguous(problem: &AddProblem) -> Option<u64> {
    let (x, out) = (&problem.x, &problem.out);
    let misaligned = |s: &Strided| s.address as u64 % VECTOR_BYTES;
    let alike = |s: &Strided| {
        (problem.shape.is_empty() || s.strides.as_slice() == [1])
            && s.dtype == out.dtype
            && misaligned(s) == misaligned(out)
    };
    let size = out.dtype.size() as u64;
    let y = match &problem.y {
        AddendProblem::Tensor(y) => y,
        AddendProblem::Scalar(_) => x,
    };
    (alike(x) && alike(y) && alike(out) && misaligned(out).is_multiple_of(size)).then(|| {
        ((VECTOR_BYTES - misaligned(out)) % VECTOR_BYTES / size).min(problem.elements().unsigned_abs())
    })
}

fn vector(
    problem: &AddProblem,
    head: u64,
    device: &DeviceFacts,
    forced: Option<Schedule>,
) -> LaunchPlan<AddParams<INLINE_RANK>> {
    let each = Variant::Vector.vectors_per_thread();
    let lanes = VECTOR_BYTES / problem.out.dtype.size() as u64;
    let vectors = (problem.elements().unsigned_abs() - head) / lanes;
    let threads = block_size(vectors.div_ceil(each), VECTOR_THREADS, device);
    // The elements outside of the vectors, of one alignment, are fewer than two vectors' and have a tile of their own.
    let outside = problem.elements().unsigned_abs() != vectors * lanes;
    let tiles = (vectors.div_ceil(threads * each) + u64::from(outside)).max(1);
    // The fixed grid is never slower, because new blocks load while old ones store. A grid that would be too large loops
    // in any case.
    let looping = tiles > MAX_BLOCKS || forced == Some(Schedule::GridStride);
    let resident =
        u64::from(device.multiprocessors) * (u64::from(device.threads_per_multiprocessor) / threads);
    let blocks = if looping { tiles.min(resident) } else { tiles };
    let variant = if looping { Variant::VectorLoop } else { Variant::Vector };
    let metrics = [("tiles", tiles), ("blocks of the largest grid", MAX_BLOCKS)];
    let why = match forced {
        Some(_) => Reason::asked_for(variant.name(), Variant::Vector.name()),
        None if looping => Reason::new("vector_loop", "vector", "no grid has that many blocks", metrics),
        None => {
            Reason::new("vector", "vector_loop", "with a block for each tile, new ones load early", metrics)
        }
    };
    let mut plan = launch(problem, variant, &Tiling::tiles(blocks, threads, tiles, 1, 1), why);
    (plan.params.head, plan.params.vectors) = (head as u32, vectors);
    plan
}

/// The variant of an addition that is not contiguous, how it is shared, and why.
fn strided(layout: &mut Layout, device: &DeviceFacts) -> (Variant, Tiling, Reason) {
    let (variant, why) = layout.variant();
    layout.choose_rows(variant);
    let tiling = match variant {
        Variant::Transposed => Tiling::transposed(layout),
        _ => Tiling::vectors(layout, variant, device),
    };
    let rows = layout.shape[layout.last() - 1] as u64;
    let most = tiling.items.max(rows);
    if variant == Variant::Deep || most < NARROW {
        return (variant, tiling, why);
    }
    let metrics = [("items", most), ("below", NARROW)];
    let why = Reason::new("deep", variant.name(), "the others count in 32 bits", metrics);
    (Variant::Deep, Tiling::vectors(layout, Variant::Deep, device), why)
}

/// A launch that walks over dimensions.
fn walk<const RANK: usize>(
    problem: &AddProblem,
    mut layout: Layout,
    variant: Variant,
    tiling: &Tiling,
    why: Reason,
) -> LaunchPlan<AddParams<RANK>> {
    let last = layout.last();
    let width = variant.width(&layout);
    let mut plan = launch(problem, variant, tiling, why);
    let p: &mut AddParams<RANK> = &mut plan.params;
    let bit = |condition: bool, flag: u32| if condition { flag } else { 0 };
    let transposed = |operand: usize| !matches!(layout.strides[operand][last], 0 | 1);
    p.flags = match variant {
        Variant::Transposed => {
            let aligned = layout.whole() && layout.inputs().all(|(s, strides)| layout.aligned(s, strides));
            bit(transposed(0), X_TRANSPOSED) | bit(transposed(1), Y_TRANSPOSED) | bit(aligned, ALIGNED)
        }
        _ => bit(layout.one_dtype(), SAME_DTYPE),
    };
    [p.x_one, p.y_one] = [0, 1].map(|i| u32::from(width > 1 && layout.strides[i][last] == 0));
    let sizes = [layout.x, layout.y.unwrap_or(layout.x), layout.out].map(|s| s.dtype.size() as i64);
    for ((strides, size), step) in layout.strides.iter_mut().zip(sizes).zip(&mut p.steps) {
        strides.iter_mut().for_each(|s| *s = s.wrapping_mul(size));
        let along_rows = (tiling.row_step as i64).wrapping_mul(strides[last - 1]);
        *step = along_rows.wrapping_add(((tiling.vector_step * width) as i64).wrapping_mul(strides[last]));
    }
    let [x, y, out] = &layout.strides;
    (p.dims, p.rank) = index::dims(&layout.shape, [x, y, out]);
    plan
}

/// A launch without dimensions.
fn launch<const RANK: usize>(
    problem: &AddProblem,
    variant: Variant,
    tiling: &Tiling,
    why: Reason,
) -> LaunchPlan<AddParams<RANK>> {
    let (x, out) = (&problem.x, &problem.out);
    let (y, y_size, scalar) = match &problem.y {
        AddendProblem::Tensor(y) => (y, y.dtype.size() as u32, 0),
        AddendProblem::Scalar(s) => (x, 0, arithmetic_bits(*s, out.dtype)),
    };
    let (dims, rank) = index::dims(&[], [&[], &[], &[]]);
    let kernel = Kernel { file: variant.file(), name: variant.kernel(wrapping(out.dtype)).to_owned() };
    // More blocks than a grid has are an error of the launch: of variants without a loop they make more elements than
    // any memory holds.
    let blocks = u32::try_from(tiling.blocks).unwrap_or(u32::MAX);
    let params = AddParams {
        x: x.address as u64,
        y: y.address as u64,
        out: out.address as u64,
        elements: problem.elements().unsigned_abs(),
        x_bytes: bytes_of(x, &problem.shape),
        y_bytes: bytes_of(y, &problem.shape),
        alpha: arithmetic_bits(problem.alpha, out.dtype),
        scalar,
        items: tiling.items,
        vectors: tiling.vectors,
        groups: tiling.groups,
        by_vectors: Divisor::new(tiling.vectors),
        by_groups: Divisor::new(tiling.groups),
        row_step: tiling.row_step,
        vector_step: tiling.vector_step,
        steps: [0; 3],
        span: tiling.span,
        group_step: tiling.group_step,
        x_tag: x.dtype.tag(),
        y_tag: y.dtype.tag(),
        x_size: x.dtype.size() as u32,
        y_size,
        x_one: 0,
        y_one: 0,
        head: 0,
        flags: 0,
        rank,
        dims,
    };
    LaunchPlan { why: [why].into(), ..LaunchPlan::new(kernel, blocks, tiling.threads as u32, 0, params) }
}

/// int8 wraps as uint8 does, so it has no kernels of its own.
fn wrapping(dtype: DType) -> DType {
    if dtype == DType::I8 { DType::U8 } else { dtype }
}

/// A number in the type that `dtype` is added in: float32 for halves, otherwise `dtype` itself, integers
/// wrapped. The kernel reads the low bits.
fn arithmetic_bits(value: Scalar, dtype: DType) -> u64 {
    match (dtype.category(), value) {
        (Category::Float, _) if dtype == DType::F64 => value.as_f64().to_bits(),
        // Not by way of float64, which would round large integers twice.
        (Category::Float, Scalar::Int(i)) => u64::from((i as f32).to_bits()),
        (Category::Float, _) => u64::from((value.as_f64() as f32).to_bits()),
        (Category::Integer, _) => value.as_i64().cast_unsigned(),
        (Category::Bool, _) => u64::from(value.as_i64() != 0),
    }
}

/// First and one past the last address that an operand's elements cover.
fn bytes_of(operand: &Strided, shape: &[i64]) -> [u64; 2] {
    let size = operand.dtype.size() as i64;
    let (mut low, mut high) = (0i64, 0i64);
    for (&n, &stride) in shape.iter().zip(&operand.strides) {
        let reach = (n - 1).wrapping_mul(stride);
        low += reach.min(0);
        high += reach.max(0);
    }
    let at = |offset: i64| (operand.address as u64).wrapping_add_signed(offset);
    [at(low.wrapping_mul(size)), at((high + 1).wrapping_mul(size))]
}
