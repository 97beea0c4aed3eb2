//! Which kernel an addition gets, and that its launch makes every element once.

mod made;
mod tile;

use made::{index_space, made};
use smallvec::SmallVec;

use super::tiling::{MAX_THREADS, MIN_THREADS};
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

/// A result of this shape, contiguous and aligned; x and y as given.
fn into(shape: &[i64], x: Strided, y: Strided) -> AddProblem {
    let dtype = x.dtype.promote(y.dtype);
    problem(shape, x, Some(y), strided(dtype, 0, &layout::contiguous_strides(shape)))
}

/// The same of a plan with few dimensions and of one with many.
macro_rules! either {
    (plan($problem:expr, $device:expr, $forced:expr), $p:ident => $body:expr) => {
        match ($problem, $device) {
            (problem, device) => {
                let choice = choose(problem, device, $forced);
                if choice.main().kernel.name.starts_with("add_deep") {
                    let $p: LaunchPlan<AddParams<MAX_RANK>> = choice.plan(problem, 0);
                    $body
                } else {
                    let $p: LaunchPlan<AddParams<INLINE_RANK>> = choice.plan(problem, 0);
                    $body
                }
            }
        }
    };
}

fn name(problem: &AddProblem) -> String {
    choose(problem, &examples::h200(), None).main().kernel.name.clone()
}

const BF16: DType = DType::BF16;
const F32: DType = DType::F32;

/// Additions of every kind, small enough to be enumerated, and what makes them.
fn zoo() -> Vec<(&'static str, AddProblem)> {
    let at = |strides: &[i64]| strided(BF16, 0, strides);
    let off = |offset: usize, strides: &[i64]| strided(BF16, offset, strides);
    let wide = |strides: &[i64]| strided(F32, 0, strides);
    let row = [256, 1];
    vec![
        ("add_repeated_bf16", into(&[33, 256], at(&row), at(&[0, 1]))),
        ("add_rows_bf16", into(&[33, 256], at(&[264, 1]), at(&[0, 1]))),
        ("add_rows_bf16", into(&[33, 256], at(&row), at(&[1, 0]))),
        ("add_rows_bf16", into(&[33, 256], at(&row), at(&[512, 1]))),
        ("add_rows_bf16", into(&[3, 5, 16], at(&[16, 48, 1]), at(&[80, 16, 1]))),
        ("add_rows_bf16", into(&[2, 7, 3, 16], at(&[16, 32, 0, 1]), at(&[336, 48, 16, 1]))),
        // Rows that are no multiple of 16 bytes start anywhere, but all alike.
        ("add_rows_bf16", into(&[37, 259], at(&[259, 1]), at(&[1, 0]))),
        ("add_rows_bf16", into(&[3, 259], at(&[259, 1]), at(&[1, 0]))),
        ("add_repeated_bf16", into(&[37, 259], at(&[259, 1]), at(&[0, 1]))),
        ("add_repeated_bf16", into(&[37, 259], off(3, &[0, 1]), at(&[259, 1]))),
        ("add_repeated_bf16", into(&[70, 12], at(&[0, 1]), at(&[12, 1]))),
        ("add_repeated_bf16", into(&[33, 256], at(&[256, 1]), off(3, &[0, 1]))),
        ("add_repeated_bf16", problem(&[5, 9], off(3, &[9, 1]), Some(at(&[0, 1])), off(11, &[9, 1]))),
        (
            "add_misaligned_rows_bf16",
            problem(&[5, 259], off(3, &[259, 1]), Some(at(&[0, 1])), off(2, &[259, 1])),
        ),
        ("add_misaligned_bf16", into(&[1300], off(1, &[1]), off(3, &[1]))),
        ("add_misaligned_bf16", problem(&[1300], off(1, &[1]), Some(off(1, &[1])), off(5, &[1]))),
        ("add_misaligned_bf16", problem(&[1299], off(7, &[1]), Some(off(5, &[1])), off(4, &[1]))),
        ("add_misaligned_bf16", problem(&[128], off(1, &[1]), None, off(0, &[1]))),
        ("add_strided_bf16", into(&[127], off(1, &[1]), at(&[1]))),
        ("add_misaligned_rows_bf16", problem(&[20, 256], off(1, &[300, 1]), None, off(0, &row))),
        ("add_misaligned_rows_bf16", into(&[33, 256], at(&[257, 1]), at(&row))),
        ("add_mixed_f32", into(&[1300], at(&[1]), wide(&[1]))),
        ("add_mixed_f32", into(&[33, 256], wide(&row), at(&[0, 1]))),
        ("add_mixed_f32", into(&[33, 256], wide(&row), at(&[1, 0]))),
        ("add_mixed_f32", problem(&[9, 64], at(&[64, 1]), None, wide(&[64, 1]))),
        ("add_strided_mixed_f32", into(&[33, 256], wide(&row), off(1, &row))),
        ("add_strided_bf16", into(&[40, 100], at(&[200, 2]), at(&[100, 1]))),
        ("add_strided_bf16", into(&[70, 3], at(&[3, 1]), at(&[0, 1]))),
        ("add_strided_bf16", into(&[70, 12], at(&[1, 70]), at(&[12, 1]))),
        ("add_strided_bf16", problem(&[9, 100], at(&[100, 1]), Some(at(&[100, 1])), at(&[200, 2]))),
        ("add_strided_mixed_f32", into(&[], at(&[]), wide(&[]))),
        ("add_strided_mixed_f32", into(&[40, 100], wide(&[100, 1]), strided(DType::I64, 0, &[100, 1]))),
        ("add_strided_bf16", into(&[100], off(99, &[-1]), at(&[1]))),
        // Few rows, and so many elements that a thread of a T4 has eight.
        ("add_strided_bf16", into(&[3, 100], at(&[300, 2]), at(&[100, 1]))),
        ("add_strided_bf16", into(&[2, 3, 100], at(&[900, 300, 2]), at(&[100, 0, 1]))),
        ("add_strided_bf16", into(&[340_000], at(&[2]), at(&[1]))),
        ("add_strided_bf16", into(&[5, 70_000], at(&[150_000, 2]), at(&[70_000, 1]))),
        ("add_strided_bf16", into(&[100, 3400], at(&[6900, 2]), at(&[3400, 1]))),
        ("add_deep_bf16", into(&[2, 3, 2, 3, 4], at(&[1, 2, 6, 12, 36]), at(&[72, 24, 12, 4, 1]))),
        ("add_transposed_bf16", into(&[70, 130], at(&[1, 70]), at(&[130, 1]))),
        ("add_transposed_bf16", into(&[70, 130], at(&[130, 1]), at(&[1, 70]))),
        ("add_transposed_bf16", into(&[72, 136], at(&[1, 72]), at(&[1, 80]))),
        ("add_transposed_bf16", into(&[3, 20, 40], at(&[800, 1, 20]), at(&[0, 0, 1]))),
        ("add_transposed_bf16", into(&[20, 3, 40], at(&[1, 20, 60]), at(&[120, 40, 1]))),
    ]
}

#[test]
fn variants() {
    use DType::*;
    assert_eq!(name(&contiguous(1000, BF16, [0, 0, 0])), "add_vector_bf16");
    assert_eq!(name(&contiguous(1000, BF16, [3, 3, 3])), "add_vector_bf16");
    assert_eq!(name(&contiguous(1000, BF16, [3, 3, 11])), "add_vector_bf16");
    assert_eq!(name(&contiguous(1000, I8, [0, 0, 0])), "add_vector_u8", "int8 wraps as uint8 does");
    let scalar = problem(&[9], strided(F32, 1, &[1]), None, strided(F32, 1, &[1]));
    assert_eq!(name(&scalar), "add_vector_f32");
    let one = problem(&[], strided(F32, 0, &[]), Some(strided(F32, 0, &[])), strided(F32, 0, &[]));
    assert_eq!(name(&one), "add_vector_f32");
    for (expected, problem) in zoo() {
        assert_eq!(name(&problem), expected, "{problem:?}");
    }
}

#[test]
fn every_element_is_made_once_from_its_own_operands() {
    for (kind, problem) in zoo() {
        let expected = index_space(&problem);
        for device in [examples::h200(), examples::t4()] {
            either!(plan(&problem, &device, None), p => {
                assert_eq!(made(&p, problem.out.dtype.size() as u64), expected, "{kind} {:?}", problem.shape);
            });
        }
    }
}

#[test]
fn vectors_lie_on_boundaries() {
    for (kind, problem) in zoo() {
        either!(plan(&problem, &examples::h200(), None), p => {
            let p = p.params;
            let rows = p.dims[p.rank as usize - 2].size;
            let alike = |step: i64| step % 16 == 0 || p.row_step >= rows;
            let in_step = |address: u64, step| address % 16 == p.out % 16 && alike(step);
            if kind.contains("rows") || kind.starts_with("add_mixed") {
                assert!(alike(p.steps[2]), "the vectors of a thread have one alignment: {problem:?}");
            }
            if kind.starts_with("add_rows") {
                assert!(p.x_one == 1 || in_step(p.x, p.steps[0]), "{problem:?}");
                assert!(p.y_size == 0 || p.y_one == 1 || in_step(p.y, p.steps[1]), "{problem:?}");
            }
        });
    }
    let flags = |x: Strided, y: Strided, shape: &[i64]| either!(plan(&into(shape, x, y), &examples::h200(), None), p => p.params.flags);
    let at = |offset, strides: &[i64]| strided(BF16, offset, strides);
    assert_eq!(flags(at(0, &[1, 72]), at(0, &[136, 1]), &[72, 136]), X_TRANSPOSED | ALIGNED);
    assert_eq!(flags(at(0, &[136, 1]), at(8, &[1, 72]), &[72, 136]), Y_TRANSPOSED | ALIGNED);
    assert_eq!(flags(at(0, &[1, 72]), at(0, &[1, 80]), &[72, 136]), X_TRANSPOSED | Y_TRANSPOSED | ALIGNED);
    assert_eq!(flags(at(0, &[1, 72]), at(0, &[0, 0]), &[72, 136]), X_TRANSPOSED | ALIGNED);
    assert_eq!(flags(at(0, &[1, 72]), at(1, &[136, 1]), &[72, 136]), X_TRANSPOSED);
    assert_eq!(flags(at(0, &[1, 73]), at(0, &[136, 1]), &[72, 136]), X_TRANSPOSED);
    assert_eq!(flags(at(0, &[1, 72]), at(0, &[1, 1]), &[72, 136]), X_TRANSPOSED, "windows start anywhere");
    assert_eq!(
        flags(at(0, &[1, 72]), at(0, &[135, 1]), &[72, 135]),
        X_TRANSPOSED,
        "rows of no whole vectors"
    );
}

#[test]
fn peeling_reaches_the_first_boundary() {
    for (offset, n, head) in
        [(0, 100, 0), (1, 100, 7), (7, 100, 1), (8, 100, 0), (1, 3, 3), (15, 100, 1), (0, 0x1_0000_0007, 0)]
    {
        either!(plan(&contiguous(n, BF16, [offset; 3]), &examples::h200(), None), p => {
            let p = p.params;
            assert_eq!(p.head, head, "offset {offset}");
            assert!(p.elements == u64::from(head) || (p.x + 2 * u64::from(head)).is_multiple_of(16));
        });
    }
}

#[test]
fn grids_cover_every_element_and_are_legal() {
    for device in examples::all() {
        for dtype in DType::ALL {
            let size = dtype.size() as u64;
            for n in [1, 15, 16, 4095, 1 << 20, (1 << 31) + 5, 1 << 35, 1 << 39] {
                for offsets in [[0, 0, 0], [1, 1, 1], [1, 0, 1]] {
                    for wish in [Schedule::FixedGrid, Schedule::GridStride] {
                        either!(plan(&contiguous(n, dtype, offsets), &device, Some(wish)), plan => {
                            let ([blocks, y, z], threads) = (plan.grid, u64::from(plan.block[0]));
                            assert!(blocks >= 1 && u64::from(blocks) <= MAX_BLOCKS && (y, z) == (1, 1));
                            assert!((MIN_THREADS..=MAX_THREADS).contains(&threads));
                            let (p, name) = (&plan.params, &plan.kernel.name);
                            let kind = |part| name.starts_with(part);
                            let vector = kind("add_vector");
                            let rows = kind("add_misaligned_rows");
                            let misaligned = kind("add_misaligned") && !rows;
                            let (each, width) = if vector || misaligned {
                                (2 * threads, VECTOR_BYTES / size)
                            } else {
                                (p.span, if rows { VECTOR_BYTES / size } else { 1 })
                            };
                            let tiles = if vector { p.items } else { u64::from(blocks) };
                            let covered = u128::from(tiles) * u128::from(each) * u128::from(width);
                            let ends = if vector || misaligned { 4 * VECTOR_BYTES / size } else { 0 };
                            assert!(!misaligned || u64::from(blocks) * each >= p.items && ends <= threads);
                            assert!(covered + u128::from(ends) >= n as u128, "{name} {n}");
                            if kind("add_vector_loop") {
                                let resident = device.threads_per_multiprocessor * device.multiprocessors;
                                assert!(blocks * plan.block[0] <= resident && u64::from(blocks) <= p.items);
                            } else if vector {
                                assert_eq!(u64::from(blocks), p.items, "a fixed grid does not loop");
                            }
                            let looping = wish == Schedule::GridStride || p.items > MAX_BLOCKS;
                            assert_eq!(kind("add_vector_loop"), vector && looping);
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn indices_beyond_32_bits_go_deep() {
    let tall = |rows, columns| {
        into(&[rows, columns], strided(DType::I8, 0, &[columns, 1]), strided(DType::I8, 0, &[1, 0]))
    };
    assert_eq!(name(&tall(70_000, 33_000)), "add_rows_u8", "2^31 elements are not many vectors");
    assert_eq!(name(&tall(1 << 31, 16)), "add_deep_u8");
    assert_eq!(name(&contiguous(1 << 36, BF16, [0, 1, 0])), "add_misaligned_bf16", "of 64 bits");
    let side = 1 << 18;
    let skewed = |rows| into(&[rows, side], strided(BF16, 0, &[side + 1, 1]), strided(BF16, 0, &[side, 1]));
    assert_eq!(name(&skewed(1 << 16)), "add_misaligned_rows_bf16");
    assert_eq!(name(&skewed(side)), "add_deep_bf16");
    let repeated = into(&[1 << 19, side + 1], strided(BF16, 0, &[side + 1, 1]), strided(BF16, 0, &[0, 1]));
    assert_eq!(name(&repeated), "add_deep_bf16");
    let many = into(&[1 << 20, 1 << 14], strided(F32, 0, &[1, 1 << 20]), strided(F32, 0, &[1 << 14, 1]));
    assert_eq!(name(&many), "add_transposed_f32");
}

#[test]
fn small_problems_spread_out() {
    let choice = choose(&contiguous(1 << 16, BF16, [0; 3]), &examples::h200(), None);
    assert_eq!((choice.main().grid[0], choice.main().block[0]), (64, 64));
}

#[test]
fn a_row_that_is_repeated_is_read_by_the_thread_that_has_it() {
    // Of the dimensions before the last the repeated one is the rows', even if another is longer.
    let x = strided(BF16, 0, &[8 * 256, 256, 1]);
    let bias = strided(BF16, 0, &[256, 0, 1]);
    either!(plan(&into(&[100, 8, 256], x, bias), &examples::h200(), None), p => {
        assert_eq!((p.params.row_step, p.params.steps[1]), (2, 0));
    });
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
    let i = (1i128 << 60) + (1 << 36) + 1;
    assert_eq!(arithmetic_bits(Scalar::Int(i), F32), u64::from((i as f32).to_bits()));
    assert_ne!(i as f32, i as f64 as f32);
}

#[test]
fn all_addresses_are_placed() {
    for (kind, problem) in zoo() {
        either!(plan(&problem, &examples::h200(), None), p => {
            let p = p.params;
            let y = if let AddendProblem::Tensor(y) = &problem.y { y } else { &problem.x };
            let addresses = [&problem.x, y, &problem.out].map(|operand| operand.address as u64);
            assert_eq!([p.x, p.y, p.out], addresses, "{kind}");
            let bytes = [bytes_of(&problem.x, &problem.shape), bytes_of(y, &problem.shape)];
            assert_eq!([p.x_bytes, p.y_bytes], bytes, "{kind}");
        });
    }
}

#[test]
fn byte_ranges() {
    let s = strided(F32, 10, &[-4, 1]);
    let base = s.address as u64;
    assert_eq!(bytes_of(&s, &[3, 4]), [base - 32, base + 16]);
    assert_eq!(bytes_of(&strided(F32, 10, &[]), &[]), [base, base + 4]);
}
