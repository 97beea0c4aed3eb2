//! grouped_matmul: a product for each group, of `super`.

use half::{bf16, f16};

use super::{Factor, Gate, Placed, Product, SMALL, Shape, load_bias, multiply};
use crate::cpu::method::Method;
use crate::cpu::operand::Source;
use crate::cpu::parallel;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::grouped_matmul::{Cut, GroupedMatmulProblem, OP, Offsets, ranges};
use crate::ops::matmul::{Activation, Matrix};

pub fn run(problem: &GroupedMatmulProblem) -> Result<()> {
    if let Some(problem) = problem.as_matmul() {
        return super::run(&problem);
    }
    match problem.dtype {
        DType::F16 => grouped::<f16>(problem),
        DType::BF16 => grouped::<bf16>(problem),
        DType::F64 => grouped::<f64>(problem),
        // The only other dtype that `ops::grouped_matmul` lets through.
        _ => grouped::<f32>(problem),
    }
}

/// What `run` does with the largest product that a group can have.
pub fn method(problem: &GroupedMatmulProblem) -> Method {
    match problem.as_matmul() {
        Some(problem) => super::method(&problem),
        None => super::method_of(shape(problem, (problem.m as usize, problem.k as usize))),
    }
}

fn grouped<T: Factor>(problem: &GroupedMatmulProblem) -> Result<()> {
    let (groups, n) = (problem.groups as usize, problem.n as usize);
    let ranges: Vec<(usize, usize)> = match &problem.offsets {
        Some(offsets) => {
            let ends = ends(offsets, groups);
            ranges(ends.into_iter(), problem.total())
                .map(|(begin, end)| (begin as usize, end as usize))
                .collect()
        }
        None => vec![(0, 0); groups],
    };
    let gated = problem.gate.is_some();
    // All groups' values, one group behind the other: they are read once and not by every part of a product.
    let biases_of = |row: i64| -> Result<Vec<Vec<T::Real>>> {
        let mut biases = Vec::new();
        if let Some(bias) = &problem.bias {
            let first = at::<T>(bias.address, row, bias.row_stride);
            for group in 0..problem.groups {
                let address = at::<T>(first, group, bias.group_stride);
                // SAFETY: the bias is memory that the caller keeps alive for the call, and `check_out` has refused an
                // `out` that overlaps it.
                biases.push(unsafe { load_bias::<T>(OP, address, (n, bias.stride)) }?);
            }
        }
        Ok(biases)
    };
    let biases = biases_of(i64::from(gated))?;
    let gate_biases = if gated { biases_of(0)? } else { Vec::new() };
    let solve = |group: usize, parallel: bool| {
        let bias = [&biases, &gate_biases].map(|biases| biases.get(group).map(Vec::as_slice));
        let product = product::<T>(problem, group, ranges[group], bias);
        if product.m > 0 {
            multiply::<T>(product, shape(problem, (product.m, product.k)), parallel);
        }
    };
    let costs = ranges.iter().map(|&range| shape(problem, rows_and_depth(problem, range)).cost());
    let costs: Vec<(f64, f64)> = costs.collect();
    let largest = ranges.iter().map(|&range| rows_and_depth(problem, range)).max_by_key(|&(m, k)| m * k);
    let all: f64 = costs.iter().map(|&(_, nanoseconds)| nanoseconds).sum();
    if let Some(largest) = largest.filter(|_| parallel::is_long(all)) {
        shape(problem, largest).check_room::<T::Real>(OP)?;
    }
    if parallel::pays(all) {
        // One after the other those that are worth all threads, and then the rest at once.
        let few = groups < 4 * parallel::threads();
        let (alone, together): (Vec<usize>, Vec<usize>) = (0..groups).partition(|&group| {
            costs[group].0 >= SMALL && (few || costs[group].1 * parallel::threads() as f64 > all)
        });
        alone.into_iter().for_each(|group| solve(group, true));
        parallel::for_each(together.len(), true, |i| solve(together[i], false));
    } else {
        (0..groups).for_each(|group| solve(group, false));
    }
    // Rows of no group.
    let last = ranges.last().map_or(0, |&(_, end)| end);
    if problem.cut == Cut::Rows && last < problem.m as usize {
        let rest = product::<T>(problem, 0, (last, problem.m as usize), [None; 2]);
        let shape = shape(problem, (rest.m, 0));
        let rest = Product { k: 0, gate: None, activation: Activation::None, ..rest };
        multiply::<T>(rest, shape, parallel::pays(all));
    }
    Ok(())
}

/// Of a group with so many rows, over such a k.
fn shape(problem: &GroupedMatmulProblem, (m, k): (usize, usize)) -> Shape {
    let gate = problem.gate.as_ref().map(Matrix::strides);
    let size = [m, problem.n as usize, k];
    Shape::new(problem.dtype, size, problem.a.strides(), problem.b.strides(), gate)
}

/// Rows of a group's result, and its k.
fn rows_and_depth(problem: &GroupedMatmulProblem, (begin, end): (usize, usize)) -> (usize, usize) {
    let (m, k) = (problem.m as usize, problem.k as usize);
    match problem.cut {
        Cut::Rows => (end - begin, k),
        Cut::Depth => (m, end - begin),
        Cut::Nothing => (m, k),
    }
}

fn product<'a, T: Factor>(
    problem: &GroupedMatmulProblem,
    group: usize,
    range: (usize, usize),
    [bias, gate_bias]: [Option<&'a [T::Real]>; 2],
) -> Product<'a, T::Real> {
    let (m, k) = rows_and_depth(problem, range);
    let size = problem.dtype.size();
    let place = |matrix: &Matrix, row: usize, column: usize| {
        let group_stride = matrix.batch_strides.first().copied().unwrap_or(0);
        let address = at::<T>(matrix.address, group as i64, group_stride);
        let whole = Placed { address, row_stride: matrix.row_stride, col_stride: matrix.col_stride };
        Placed { address: whole.at(size, row, column), ..whole }
    };
    let (row, depth) = match problem.cut {
        Cut::Rows => (range.0, 0),
        Cut::Depth => (0, range.0),
        Cut::Nothing => (0, 0),
    };
    Product {
        m,
        n: problem.n as usize,
        k,
        a: place(&problem.a, row, depth),
        b: place(&problem.b, depth, 0),
        out: place(&problem.out, row, 0),
        bias,
        gate: problem.gate.as_ref().map(|gate| Gate { b: place(gate, depth, 0), bias: gate_bias }),
        residual: None,
        activation: problem.activation,
    }
}

fn at<T>(address: usize, index: i64, stride: i64) -> usize {
    address.wrapping_add_signed(index as isize * stride as isize * size_of::<T>() as isize)
}

fn ends(offsets: &Offsets, groups: usize) -> Vec<i32> {
    // SAFETY: the offsets are memory that the caller keeps alive for the call, and `check_out` has refused an `out` that
    // overlaps them.
    let source =
        unsafe { Source::<i32>::new(offsets.address, DType::I32, &[groups as i64], &[offsets.stride], 0) };
    let mut ends = vec![0; groups];
    if groups > 0 {
        source.load(0, &mut ends);
    }
    ends
}
