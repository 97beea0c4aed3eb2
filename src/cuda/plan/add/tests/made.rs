//! What a launch makes, by a model of the kernels' index arithmetic, and what it should.

use std::collections::HashMap;

use super::super::*;

/// Every index of the problem: where its result is, and its operands.
pub fn index_space(problem: &AddProblem) -> HashMap<u64, (u64, u64)> {
    let y = match &problem.y {
        AddendProblem::Tensor(y) => y,
        AddendProblem::Scalar(_) => &problem.x,
    };
    let mut all = HashMap::new();
    for flat in 0..problem.elements() {
        let (mut rest, mut at) = (flat, [0i64; 3]);
        for (d, &n) in problem.shape.iter().enumerate().rev() {
            for (at, s) in at.iter_mut().zip([&problem.x, y, &problem.out]) {
                *at += rest % n * s.strides[d] * s.dtype.size() as i64;
            }
            rest /= n;
        }
        let address = |s: &Strided, at: i64| (s.address as u64).wrapping_add_signed(at);
        all.insert(address(&problem.out, at[2]), (address(&problem.x, at[0]), address(y, at[1])));
    }
    all
}

/// What the threads of a launch make, by add_strided.cu, add_transposed.cu and add_misaligned.cu: each thing once.
pub fn made<const RANK: usize>(plan: &LaunchPlan<AddParams<RANK>>, size: u64) -> HashMap<u64, (u64, u64)> {
    let p = &plan.params;
    let is = |variant: Variant| DType::ALL.iter().any(|&dtype| plan.kernel.name == variant.kernel(dtype));
    let transposed = is(Variant::Transposed);
    let single = is(Variant::Strided) || is(Variant::StridedMixed) || is(Variant::Deep);
    let lanes = if single { 1 } else { (VECTOR_BYTES / size) as i64 };
    let each = if is(Variant::Strided) {
        8
    } else if single || is(Variant::Rows) {
        4
    } else {
        2
    };
    let (inner, second) = (p.dims[p.rank as usize - 1], p.dims[p.rank as usize - 2]);
    let mut all = HashMap::new();
    let mut make = |row: i64, column: i64, outer: u64| {
        let (mut rest, mut at) = (outer, [p.x, p.y, p.out]);
        for d in p.dims[..p.rank as usize - 2].iter().rev() {
            for (at, stride) in at.iter_mut().zip(d.strides) {
                *at = at.wrapping_add_signed((rest % d.size) as i64 * stride);
            }
            rest /= d.size;
        }
        for (k, at) in at.iter_mut().enumerate() {
            *at = at.wrapping_add_signed(row * second.strides[k] + column * inner.strides[k]);
        }
        assert_eq!(all.insert(at[2], (at[0], at[1])), None, "made twice");
    };
    if is(Variant::Misaligned) || is(Variant::Repeated) {
        for flat in in_pieces(plan, is(Variant::Repeated), lanes as u64) {
            make((flat / inner.size) as i64, (flat % inner.size) as i64, 0);
        }
        return all;
    }
    for block in 0..u64::from(plan.grid[0]) {
        let threads = if transposed { 1 } else { u64::from(plan.block[0]) };
        for thread in 0..threads {
            let item = if transposed { block } else { block * p.span + thread };
            if item >= p.items {
                continue;
            }
            let (line, vector) = (item / p.vectors, item % p.vectors);
            let (outer, group) = (line / p.groups, line % p.groups);
            if transposed {
                let (tall, wide) = (8 * lanes, 64);
                for row in group as i64 * tall..((group as i64 + 1) * tall).min(second.size as i64) {
                    for column in vector as i64 * wide..((vector as i64 + 1) * wide).min(inner.size as i64) {
                        make(row, column, outer);
                    }
                }
                continue;
            }
            let row = group * u64::from(p.group_step);
            let mut rest = outer;
            let mut out = p.out.wrapping_add_signed(row as i64 * second.strides[2]);
            for d in p.dims[..p.rank as usize - 2].iter().rev() {
                out = out.wrapping_add_signed((rest % d.size) as i64 * d.strides[2]);
                rest /= d.size;
            }
            let past = if single { 0 } else { (out % VECTOR_BYTES / size) as i64 };
            for i in 0..each {
                let row = row + i * p.row_step;
                let first = (vector + i * p.vector_step) as i64 * lanes - past;
                for column in first.max(0)..(first + lanes).min(inner.size as i64) {
                    if row < second.size {
                        make(row as i64, column, outer);
                    }
                }
            }
        }
    }
    all
}

/// The flat indices of what add_misaligned.cu makes.
fn in_pieces<const RANK: usize>(plan: &LaunchPlan<AddParams<RANK>>, repeated: bool, lanes: u64) -> Vec<u64> {
    let (p, threads) = (&plan.params, u64::from(plan.block[0]));
    let head = u64::from(p.head);
    let vectors = if repeated { (p.elements - head) / lanes } else { p.items };
    let outside = |thread: u64| if thread < head { thread } else { vectors * lanes + thread };
    let mut all: Vec<u64> = (0..threads).map(outside).filter(|&i| i < p.elements).collect();
    for thread in 0..u64::from(plan.grid[0]) * threads {
        for i in 0..2 {
            let vector = match repeated {
                true if thread >= p.items => continue,
                true => (thread / p.vectors + i * p.groups) * p.vectors + thread % p.vectors,
                false => thread / 32 * 64 + i * 32 + thread % 32,
            };
            if vector < vectors {
                all.extend((0..lanes).map(|k| head + vector * lanes + k));
            }
        }
    }
    all
}
