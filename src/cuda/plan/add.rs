//! How the kernels of kernels/add.cu are launched.

use std::mem::offset_of;

use super::index::{self, Dim, MAX_RANK};
use super::{Kernel, KernelParams, LaunchPlan};
use crate::cuda::device::DeviceFacts;
use crate::dtype::{Category, DType};
use crate::ops::add::{AddProblem, AddendProblem};
use crate::ops::{Scalar, Strided};

/// Threads per block: the kernels' launch bound, and the least worth launching.
const MAX_THREADS: u64 = 256;
const MIN_THREADS: u64 = 64;
/// Per block of the vector variants: 1 % faster than 256 from 2^24 elements on (H200, bf16).
const VECTOR_THREADS: u64 = 128;
/// 16-byte vectors, or chunks, per thread: VECTORS in add.cu.
const VECTORS: u64 = 2;
/// Dimensions that the strided variant takes: INLINE_RANK in add.cu.
const INLINE_RANK: usize = 6;
/// Elements per chunk of the convert variant: Tagged::WIDTH in add.cu.
const CONVERT_WIDTH: u64 = 4;
/// Flat indices and offsets of the strided variant are below this.
const NARROW: u64 = (1 << 31) - 4096;
const MAX_BLOCKS: u64 = i32::MAX as u64;

/// How the blocks share the tiles of a contiguous addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// One block for each tile.
    FixedGrid,
    /// As many blocks as run at once; each takes every so-many-th tile.
    GridStride,
}

/// `AddParams` of add.cu, with all of its dimensions; a kernel takes the part that it declares.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AddParams {
    x: u64,
    y: u64,
    out: u64,
    elements: u64,
    tiles: u64,
    x_bytes: [u64; 2],
    y_bytes: [u64; 2],
    alpha: u64,
    scalar: u64,
    scalar_y: u32,
    head: u32,
    x_tag: u32,
    y_tag: u32,
    rank: u32,
    linear: u32,
    dims: [Dim<3>; MAX_RANK],
}

// The same numbers are asserted in add.cu.
const _: () = assert!(offset_of!(AddParams, dims) == 112);
const _: () = assert!(size_of::<AddParams>() == 112 + 48 * MAX_RANK && size_of::<AddParams>() < 4096);

// SAFETY: repr(C) integers without padding, in the order and of the types of add.cu's AddParams<MAX_RANK>;
// size and the offset of the last field are asserted here and there.
unsafe impl KernelParams for AddParams {}

/// `forced` takes the schedule of a contiguous addition out of the plan's hands.
pub fn plan(problem: &AddProblem, device: &DeviceFacts, forced: Option<Schedule>) -> LaunchPlan<AddParams> {
    let (x, out) = (&problem.x, &problem.out);
    let (y, scalar) = match &problem.y {
        AddendProblem::Tensor(y) => (y, 0),
        AddendProblem::Scalar(s) => (x, arithmetic_bits(*s, out.dtype)),
    };
    let scalar_y = matches!(problem.y, AddendProblem::Scalar(_));
    let elements = problem.len().unsigned_abs();
    let size = out.dtype.size() as u64;
    let lanes = 16 / size;

    let alike = x.dtype == out.dtype && y.dtype == out.dtype;
    let linear = |s: &Strided| problem.shape.is_empty() || s.strides.as_slice() == [1];
    let misaligned = |s: &Strided| s.address as u64 % 16;
    let vector = alike
        && [x, y, out].into_iter().all(linear)
        && [x, y].into_iter().all(|s| misaligned(s) == misaligned(out))
        && misaligned(out) % size == 0;

    let (name, units, head) = if vector {
        let head = ((16 - misaligned(out)) % 16 / size).min(elements);
        ("vector", (elements - head) / lanes, head)
    } else {
        let narrow = elements < NARROW
            && [x, y, out].into_iter().all(|s| {
                let [begin, end] = bytes_of(s, &problem.shape);
                end.wrapping_sub(begin) / s.dtype.size() as u64 <= NARROW
            });
        let (name, width) = match alike && narrow && problem.shape.len() <= INLINE_RANK {
            true => ("strided", lanes),
            false => ("convert", CONVERT_WIDTH),
        };
        // Chunks start on the boundaries of the result if that is contiguous.
        let boundary = (width * size).min(16);
        let head = if linear(out) { out.address as u64 % boundary / size } else { 0 };
        (name, (elements + head).div_ceil(width), head)
    };

    let multiprocessors = u64::from(device.multiprocessors);
    let mut threads = if vector { VECTOR_THREADS } else { MAX_THREADS };
    // Few units: smaller blocks, so that every multiprocessor gets some.
    while threads > MIN_THREADS && units.div_ceil(threads * VECTORS) < 2 * multiprocessors {
        threads /= 2;
    }
    let tiles = units.div_ceil(threads * VECTORS).max(1);
    let resident = multiprocessors * (u64::from(device.threads_per_multiprocessor) / threads);
    // The fixed grid is never slower (H200: by 1 % at 2^20 elements, 8 % from 2^26), because new blocks
    // load while old ones store. A grid that would be too large loops in any case.
    let schedule = match tiles > MAX_BLOCKS {
        true => Schedule::GridStride,
        false => forced.unwrap_or(Schedule::FixedGrid),
    };
    let looping = vector && schedule == Schedule::GridStride;
    let blocks = if looping { tiles.min(resident) } else { tiles.min(MAX_BLOCKS) };
    let variant = if looping { "vector_loop" } else { name };

    let (dims, rank) = index::dims(&problem.shape, [&x.strides, &y.strides, &out.strides]);
    LaunchPlan {
        kernel: Kernel { file: "add", name: format!("add_{variant}_{}", out.dtype.suffix()) },
        grid: [blocks as u32, 1, 1],
        block: [threads as u32, 1, 1],
        shared_bytes: 0,
        params: AddParams {
            x: x.address as u64,
            y: y.address as u64,
            out: out.address as u64,
            elements,
            tiles,
            x_bytes: bytes_of(x, &problem.shape),
            y_bytes: bytes_of(y, &problem.shape),
            alpha: arithmetic_bits(problem.alpha, out.dtype),
            scalar,
            scalar_y: u32::from(scalar_y),
            head: head as u32,
            x_tag: x.dtype.tag(),
            y_tag: y.dtype.tag(),
            rank,
            linear: u32::from(linear(out)),
            dims,
        },
    }
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

#[cfg(test)]
mod tests {
    use smallvec::SmallVec;

    use super::*;
    use crate::cuda::device::examples;
    use crate::tensor::{Device, Dims, layout};

    const BASE: usize = 0x7f00_0000_0000;

    fn strided(dtype: DType, offset: usize, strides: &[i64]) -> Strided {
        Strided { address: BASE + offset * dtype.size(), dtype, strides: Dims::from_slice(strides) }
    }

    fn problem(shape: &[i64], x: Strided, y: Option<Strided>, out: Strided) -> AddProblem {
        AddProblem {
            device: Device::Cuda(0),
            shape: SmallVec::from_slice(shape),
            x,
            y: y.map_or(AddendProblem::Scalar(Scalar::Float(0.5)), AddendProblem::Tensor),
            out,
            alpha: Scalar::Int(1),
        }
    }

    fn contiguous(n: i64, dtype: DType, offsets: [usize; 3]) -> AddProblem {
        let at = |i: usize| strided(dtype, offsets[i], &[1]);
        problem(&[n], at(0), Some(at(1)), at(2))
    }

    /// Elements that one block of this plan deals with.
    fn elements_per_tile(plan: &LaunchPlan<AddParams>, dtype: DType) -> u64 {
        let per_unit = match plan.kernel.name.contains("convert") {
            true => CONVERT_WIDTH,
            false => 16 / dtype.size() as u64,
        };
        u64::from(plan.block[0]) * VECTORS * per_unit
    }

    #[test]
    fn variants() {
        use DType::*;
        let name = |p: &AddProblem| plan(p, &examples::h200(), None).kernel.name;
        assert_eq!(name(&contiguous(1000, BF16, [0, 0, 0])), "add_vector_bf16");
        assert_eq!(name(&contiguous(1000, BF16, [3, 3, 3])), "add_vector_bf16");
        assert_eq!(name(&contiguous(1000, BF16, [3, 3, 11])), "add_vector_bf16");
        assert_eq!(name(&contiguous(1000, BF16, [1, 3, 0])), "add_strided_bf16");
        let scalar = problem(&[9], strided(F32, 1, &[1]), None, strided(F32, 1, &[1]));
        assert_eq!(name(&scalar), "add_vector_f32");
        let one = problem(&[], strided(F32, 0, &[]), Some(strided(F32, 0, &[])), strided(F32, 0, &[]));
        assert_eq!(name(&one), "add_vector_f32");
        let bias = problem(
            &[64, 64],
            strided(F16, 0, &[64, 1]),
            Some(strided(F16, 0, &[0, 1])),
            strided(F16, 0, &[64, 1]),
        );
        assert_eq!(name(&bias), "add_strided_f16");
        let mixed =
            problem(&[64], strided(BF16, 0, &[1]), Some(strided(F32, 0, &[1])), strided(F32, 0, &[1]));
        assert_eq!(name(&mixed), "add_convert_f32");
        let reversed =
            problem(&[64], strided(I64, 63, &[-1]), Some(strided(I64, 0, &[1])), strided(I64, 0, &[1]));
        assert_eq!(name(&reversed), "add_strided_i64");
        let strides: Vec<i64> = (0..7).rev().map(|d| 3i64.pow(d)).collect();
        let deep = problem(
            &[2; 7],
            strided(F32, 0, &strides),
            Some(strided(F32, 0, &strides)),
            strided(F32, 0, &strides),
        );
        assert_eq!(name(&deep), "add_convert_f32");
    }

    #[test]
    fn peeling_reaches_the_first_boundary() {
        for (offset, n, head) in [
            (0, 100, 0),
            (1, 100, 7),
            (7, 100, 1),
            (8, 100, 0),
            (1, 3, 3),
            (15, 100, 1),
            (0, 0x1_0000_0007, 0),
        ] {
            let p = plan(&contiguous(n, DType::BF16, [offset; 3]), &examples::h200(), None);
            assert_eq!(p.params.head, head, "offset {offset}");
            assert!(
                p.params.head == p.params.elements as u32
                    || (p.params.x + 2 * u64::from(head)).is_multiple_of(16)
            );
        }
        let p = plan(&contiguous(100, DType::F32, [1, 2, 3]), &examples::h200(), None);
        assert_eq!(p.params.head, 3, "chunk 0 starts on the boundary before the result");
    }

    #[test]
    fn grids_cover_every_element_and_are_legal() {
        for device in examples::all() {
            for dtype in DType::ALL {
                for n in [1, 15, 16, 4095, 1 << 20, (1 << 31) + 5, 1 << 35, 1 << 41] {
                    for offsets in [[0, 0, 0], [1, 1, 1], [1, 0, 1]] {
                        for wish in [Schedule::FixedGrid, Schedule::GridStride] {
                            let plan = plan(&contiguous(n, dtype, offsets), &device, Some(wish));
                            let [blocks, y, z] = plan.grid;
                            assert!(blocks >= 1 && u64::from(blocks) <= MAX_BLOCKS && (y, z) == (1, 1));
                            assert!((MIN_THREADS..=MAX_THREADS).contains(&u64::from(plan.block[0])));
                            let p = &plan.params;
                            assert!(u64::from(blocks) <= p.tiles);
                            let covered = u128::from(p.tiles) * u128::from(elements_per_tile(&plan, dtype));
                            let lanes = 16 / dtype.size() as u64;
                            match plan.kernel.name.contains("vector") {
                                true => assert!(covered + 2 * u128::from(lanes) > u128::from(p.elements)),
                                false => assert!(covered >= u128::from(p.elements) + u128::from(p.head)),
                            }
                            // Only the variants that loop may have fewer blocks than tiles.
                            let loops = !plan.kernel.name.starts_with("add_vector_")
                                || plan.kernel.name.starts_with("add_vector_loop");
                            assert!(loops || u64::from(blocks) == p.tiles);
                            if wish == Schedule::GridStride && offsets[1] == 1 {
                                assert!(plan.kernel.name.starts_with("add_vector_loop"));
                                let threads = device.threads_per_multiprocessor * device.multiprocessors;
                                assert!(blocks * plan.block[0] <= threads);
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn small_problems_spread_out() {
        let plan = plan(&contiguous(1 << 16, DType::BF16, [0; 3]), &examples::h200(), None);
        assert_eq!((plan.grid[0], plan.block[0]), (64, 64));
    }

    #[test]
    fn scalars_in_the_arithmetic_type() {
        use DType::*;
        assert_eq!(arithmetic_bits(Scalar::Float(0.1), F64), 0.1f64.to_bits());
        assert_eq!(arithmetic_bits(Scalar::Float(0.1), BF16), u64::from(0.1f32.to_bits()));
        assert_eq!(arithmetic_bits(Scalar::Int(-1), U8), u64::MAX);
        assert_eq!(arithmetic_bits(Scalar::Bool(true), Bool), 1);
        assert_eq!(arithmetic_bits(Scalar::Bool(true), F32), u64::from(1f32.to_bits()));
        // 2^60 + 2^36 + 1 is just above the middle of two float32 numbers, but not in float64.
        let i = (1i64 << 60) + (1 << 36) + 1;
        assert_eq!(arithmetic_bits(Scalar::Int(i), F32), u64::from((i as f32).to_bits()));
        assert_ne!(i as f32, i as f64 as f32);
    }

    #[test]
    fn byte_ranges() {
        let s = strided(DType::F32, 10, &[-4, 1]);
        let base = s.address as u64;
        assert_eq!(bytes_of(&s, &[3, 4]), [base - 32, base + 16]);
        assert_eq!(bytes_of(&strided(DType::F32, 10, &[]), &[]), [base, base + 4]);
    }

    #[test]
    fn plans_fit_contiguous_layouts_of_any_rank() {
        // Problems come merged; strides of an unmerged one are still walked right.
        let shape = [4, 5, 6];
        let strides = layout::contiguous_strides(&shape);
        let at = |offset| strided(DType::F64, offset, &strides);
        let plan = plan(&problem(&shape, at(0), Some(at(0)), at(0)), &examples::t4(), None);
        assert_eq!(plan.kernel.name, "add_strided_f64");
        assert_eq!(plan.params.rank, 3);
    }
}
