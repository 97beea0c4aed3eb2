//! Matrix times vector, and vector times matrix: every element of the matrix is used once, so the time is
//! that of reading it, in the order in which it lies in memory.

use std::ops::Range;

use super::*;
use crate::cpu::float::{Real, is_half, wide, wide_rest};
use crate::cpu::isa::LANES;
use crate::cpu::operand::Target;

/// Elements of k that are summed in one go; the sums of longer ones are added up afterwards. Depends on
/// nothing, since it decides the order of the sums.
pub const DEPTH: usize = 4096;

/// Bytes of a tile's sums, at most. They are worth a first-level cache, since the longer a stretch of the matrix is, the
/// faster it is read.
const SUMS: usize = 32 << 10;

/// Elements of a tile, about: 20 us of work.
const TILE: usize = 131072;

/// Sums of pieces of k that are kept at a time, however many there are: 8 MiB of float64.
pub const KEPT: usize = 1 << 20;

/// out[i] = sum over k of matrix[i, k] * vector[k], for `len` results.
struct Problem<'a, T: Float> {
    len: usize,
    k: usize,
    /// Over (i, k), or over (k, i) if `across`.
    matrix: Source<T>,
    /// Whether neighbours in memory belong to different results.
    across: bool,
    vector: Source<T>,
    out: Target<T>,
    /// One value a result, or one for all.
    bias: Option<&'a [T::Real]>,
    gate_bias: Option<&'a [T::Real]>,
    gates: Gates<'a, T::Real>,
    residual: Option<Source<T>>,
    activation: Activation,
}

/// The sums of the product with the gate, which comes before that with b.
#[derive(Clone, Copy)]
enum Gates<'a, R> {
    None,
    /// They are what is computed: the address of as many numbers as there are results.
    To(usize),
    Are(&'a [R]),
}

pub fn solve<T: Float<Real: Activate>>(product: Product<'_, T::Real>, parallel: bool) {
    let Some(gate) = product.gate else { return sum_up::<T>(product, Gates::None, parallel) };
    let mut gates = vec![T::Real::default(); product.m.max(product.n)];
    let to = Gates::To(gates.as_mut_ptr().expose_provenance());
    sum_up::<T>(Product { b: gate.b, ..product }, to, parallel);
    sum_up::<T>(product, Gates::Are(&gates), parallel);
}

fn sum_up<T: Float<Real: Activate>>(
    product: Product<'_, T::Real>,
    gates: Gates<'_, T::Real>,
    parallel: bool,
) {
    let Product { m, n, k, a, b, out, bias, gate, residual, activation } = product;
    // A row times a matrix is the transposed matrix times a column.
    let (len, matrix, vector, vector_stride, out_stride) = if n == 1 {
        (m, a, b, b.row_stride, out.row_stride)
    } else {
        (n, b.transposed(), a, a.col_stride, out.col_stride)
    };
    let across = matrix.row_stride.unsigned_abs() < matrix.col_stride.unsigned_abs();
    let (mut shape, mut strides) = ([len as i64, k as i64], [matrix.row_stride, matrix.col_stride]);
    if across {
        shape.reverse();
        strides.reverse();
    }
    // SAFETY: a problem's operands are memory of the given shapes that the caller keeps alive, and
    // `check_out` has refused outputs that overlap themselves or an input.
    let problem = unsafe {
        Problem {
            len,
            k,
            matrix: Source::<T>::new(matrix.address, T::DTYPE, &shape, &strides, 0),
            across,
            vector: Source::new(vector.address, T::DTYPE, &[k as i64], &[vector_stride], 0),
            out: Target::new(out.address, T::DTYPE, &[len as i64], &[out_stride]),
            bias,
            gate_bias: gate.and_then(|gate| gate.bias),
            gates,
            residual: residual.map(|x| {
                let stride = if n == 1 { x.row_stride } else { x.col_stride };
                Source::new(x.address, T::DTYPE, &[len as i64], &[stride], out.address)
            }),
            activation,
        }
    };
    let depth = k.min(DEPTH);
    // Across, a tile is as wide as threads leave it and as its sums stay in the first-level cache: memory is read 1.4 times
    // as fast in rows of 16 KiB as in those of 4.
    let threads = if parallel { parallel::threads() } else { 1 };
    let wanted = if across { len.div_ceil(threads).next_multiple_of(64) } else { TILE / depth.max(1) };
    let width = len.min(wanted.clamp(16, SUMS / size_of::<T::Real>()));
    let problem = &problem;
    if k > DEPTH {
        return in_pieces(problem, width, parallel);
    }
    parallel::for_each(len.div_ceil(width), parallel, |t| {
        let results = problem.tile(width, t);
        let mut sums = vec![T::Real::default(); results.len()];
        dispatch(Sums { problem, first: results.start, depth: 0..k, sums: &mut sums });
        dispatch(Finish { problem, start: results.start, sums: &mut sums });
    });
}

/// With k in pieces: rounds that leave the sums of as many tiles as can be kept, and of as many pieces of these, each of
/// which adds them up.
fn in_pieces<T: Float<Real: Activate>>(problem: &Problem<'_, T>, width: usize, parallel: bool) {
    let (tiles, pieces) = (problem.len.div_ceil(width), problem.k.div_ceil(DEPTH));
    let tiles_kept = tiles.min(KEPT / width);
    let pieces_kept = pieces.min(KEPT / (tiles_kept * width));
    let mut parts = vec![T::Real::default(); tiles_kept * pieces_kept * width];
    let mut sums = vec![T::Real::default(); tiles_kept * width];
    for first in (0..tiles).step_by(tiles_kept) {
        let sums = &mut sums[..tiles_kept.min(tiles - first) * width];
        sums.fill(T::Real::default());
        for deep in (0..pieces).step_by(pieces_kept) {
            let count = pieces_kept.min(pieces - deep);
            let parts = &mut parts[..sums.len() * count];
            parallel::for_chunks(parts, width, parallel, |i, part| {
                let (results, depth) =
                    (problem.tile(width, first + i / count), problem.piece(deep + i % count));
                let sums = &mut part[..results.len()];
                dispatch(Sums { problem, first: results.start, depth, sums });
            });
            parallel::for_chunks(sums, width, parallel, |t, sums| {
                let results = problem.tile(width, first + t);
                let sums = &mut sums[..results.len()];
                for part in parts[t * count * width..(t + 1) * count * width].chunks_exact(width) {
                    for (s, &p) in sums.iter_mut().zip(part) {
                        *s = *s + p;
                    }
                }
                if deep + count == pieces {
                    dispatch(Finish { problem, start: results.start, sums });
                }
            });
        }
    }
}

impl<T: Float> Problem<'_, T> {
    fn tile(&self, width: usize, i: usize) -> Range<usize> {
        i * width..self.len.min((i + 1) * width)
    }

    fn piece(&self, i: usize) -> Range<usize> {
        i * DEPTH..self.k.min((i + 1) * DEPTH)
    }
}

/// The sums of the results from `first` on over some of k.
struct Sums<'a, T: Float> {
    problem: &'a Problem<'a, T>,
    first: usize,
    depth: Range<usize>,
    sums: &'a mut [T::Real],
}

impl<T: Float> Kernel for Sums<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Sums { problem, first, depth, sums } = self;
        sums.fill(T::Real::default());
        if depth.is_empty() {
            return;
        }
        let mut vector = vec![T::Real::default(); depth.len()];
        widened::load(isa, &problem.vector, depth.start, &mut vector);
        if problem.across {
            across(isa, problem, depth.start, first, &vector, sums);
        } else {
            along(isa, problem, depth.start, first, &vector, sums);
        }
    }
}

/// What stretches of the matrix are gathered in, where they are not contiguous. Four at a time read a matrix that is
/// not in the cache twice as fast as one (measured on Zen 5), and load and store sums or the vector a quarter as often.
#[derive(Default)]
struct Buffers<T>([Vec<T>; ROWS]);

/// Stretches that are read at a time, at most.
const ROWS: usize = 8;

impl<T: Float> Buffers<T> {
    /// N stretches of `len` elements, `step` elements apart.
    #[inline(always)]
    fn load<'a, const N: usize>(
        &'a mut self,
        matrix: &'a Source<T>,
        start: usize,
        step: usize,
        len: usize,
    ) -> [&'a [T]; N] {
        let mut stretches: [&[T]; N] = [&[]; N];
        for (i, (stretch, buffer)) in stretches.iter_mut().zip(&mut self.0).enumerate() {
            let start = start + i * step;
            *stretch = matrix.slice(start, len).unwrap_or_else(|| {
                buffer.resize(len, T::default());
                matrix.load(start, buffer);
                buffer
            });
        }
        stretches
    }
}

/// sums + x * y, one by one.
#[inline(always)]
fn add_products<R: Real, I: Isa, const N: usize>(isa: I, mut sums: [R; N], x: [R; N], y: [R; N]) -> [R; N] {
    for i in 0..N {
        sums[i] = x[i].mul_add(isa, y[i], sums[i]);
    }
    sums
}

/// Results whose elements follow one another in memory.
#[inline(always)]
fn along<T: Float, I: Isa>(
    isa: I,
    problem: &Problem<'_, T>,
    depth: usize,
    first: usize,
    vector: &[T::Real],
    sums: &mut [T::Real],
) {
    let mut buffers = Buffers::default();
    let mut done = 0;
    // Their running sums are as many registers of AVX-512.
    if size_of::<I::F32>() == size_of::<[f32; LANES]>() {
        done += rows_along::<T, I, ROWS>(isa, problem, depth, first, vector, sums, &mut buffers);
    }
    let rest = &mut sums[done..];
    done += rows_along::<T, I, 4>(isa, problem, depth, first + done, vector, rest, &mut buffers);
    rows_along::<T, I, 1>(isa, problem, depth, first + done, vector, &mut sums[done..], &mut buffers);
}

/// As many of these as N at a time are, which it returns.
#[inline(always)]
fn rows_along<T: Float, I: Isa, const N: usize>(
    isa: I,
    problem: &Problem<'_, T>,
    depth: usize,
    first: usize,
    vector: &[T::Real],
    sums: &mut [T::Real],
    buffers: &mut Buffers<T>,
) -> usize {
    let groups = sums.as_chunks_mut::<N>().0;
    for (i, group) in groups.iter_mut().enumerate() {
        let start = (first + N * i) * problem.k + depth;
        let rows = buffers.load(&problem.matrix, start, problem.k, vector.len());
        *group = dots::<T, I, N>(isa, rows, vector);
    }
    N * groups.len()
}

/// The sum of products of each row with the vector, in a group of running sums that are added up pairwise: of four rows they
/// are eight registers of AVX2, of eight rows as many of AVX-512.
#[inline(always)]
fn dots<T: Float, I: Isa, const N: usize>(isa: I, rows: [&[T]; N], vector: &[T::Real]) -> [T::Real; N] {
    let (groups, rest) = vector.as_chunks::<LANES>();
    let done = LANES * groups.len();
    let mut sums = [[T::Real::default(); LANES]; N];
    // Of one length, or each access is checked.
    let row_groups = rows.map(|row| &row.as_chunks::<LANES>().0[..groups.len()]);
    for (g, v) in groups.iter().enumerate() {
        for (row, sums) in row_groups.iter().zip(&mut sums) {
            *sums = add_products(isa, *sums, wide(isa, &row[g]), *v);
        }
    }
    let mut totals = [T::Real::default(); N];
    for (total, (row, mut sums)) in totals.iter_mut().zip(rows.iter().zip(sums)) {
        let mut last = [T::Real::default(); LANES];
        T::widen(isa, &row[done..], &mut last[..rest.len()]);
        for (sum, (&x, &v)) in sums.iter_mut().zip(last.iter().zip(rest)) {
            *sum = x.mul_add(isa, v, *sum);
        }
        *total = T::Real::sum_of_lanes(isa, sums);
    }
    totals
}

/// Results that are neighbours in memory: rows of the matrix as it lies there, each times an element of the
/// vector, are added up.
#[inline(always)]
fn across<T: Float, I: Isa>(
    isa: I,
    problem: &Problem<'_, T>,
    depth: usize,
    first: usize,
    vector: &[T::Real],
    sums: &mut [T::Real],
) {
    let (width, step) = (sums.len(), problem.len);
    let mut buffers = Buffers::default();
    let start = |k: usize| (depth + k) * step + first;
    let (fours, rest) = vector.as_chunks::<4>();
    for (i, four) in fours.iter().enumerate() {
        let rows = buffers.load::<4>(&problem.matrix, start(4 * i), step, width);
        if is_half::<T>() {
            add_rows(isa, rows, four, sums);
            continue;
        }
        // Of groups by value LLVM keeps float32 and float64 in memory.
        let [a, b, c, d] = rows;
        let (a, b) = (T::real(isa, a, &mut []), T::real(isa, b, &mut []));
        let (c, d) = (T::real(isa, c, &mut []), T::real(isa, d, &mut []));
        let &[p, q, r, s] = four;
        for (sum, ((&a, &b), (&c, &d))) in sums.iter_mut().zip(a.iter().zip(b).zip(c.iter().zip(d))) {
            let low = b.mul_add(isa, q, a.mul_add(isa, p, *sum));
            *sum = d.mul_add(isa, s, c.mul_add(isa, r, low));
        }
    }
    for (i, &factor) in rest.iter().enumerate() {
        let row = buffers.load::<1>(&problem.matrix, start(4 * fours.len() + i), step, width);
        add_rows(isa, row, &[factor], sums);
    }
}

/// Adds rows, each times its factor, to `sums`.
#[inline(always)]
fn add_rows<T: Float, I: Isa, const N: usize>(
    isa: I,
    rows: [&[T]; N],
    factors: &[T::Real; N],
    sums: &mut [T::Real],
) {
    let (groups, rest) = sums.as_chunks_mut::<LANES>();
    let done = LANES * groups.len();
    for (g, sums) in groups.iter_mut().enumerate() {
        let mut added = *sums;
        for (row, &factor) in rows.iter().zip(factors) {
            added = add_products(isa, added, wide(isa, &row.as_chunks::<LANES>().0[g]), [factor; LANES]);
        }
        *sums = added;
    }
    if rest.is_empty() {
        return;
    }
    for (row, &factor) in rows.iter().zip(factors) {
        let last = wide_rest::<T, I>(isa, &row[done..]);
        for (sum, x) in rest.iter_mut().zip(last) {
            *sum = x.mul_add(isa, factor, *sum);
        }
    }
}

/// Bias, activation and rounding of sums on their way to the output.
struct Finish<'a, T: Float> {
    problem: &'a Problem<'a, T>,
    start: usize,
    sums: &'a mut [T::Real],
}

impl<T: Float<Real: Activate>> Kernel for Finish<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Finish { problem, start, sums } = self;
        let count = sums.len();
        let of_results = |bias: Option<&[T::Real]>| match bias {
            // One column has one bias, which every result shares.
            Some(&[one]) => Some(vec![one; count]),
            Some(bias) => Some(bias[start..start + count].to_vec()),
            None => None,
        };
        let bias = of_results(problem.bias);
        match problem.gates {
            Gates::None => epilogue::apply(isa, problem.activation, bias.as_deref(), sums),
            Gates::To(address) => {
                let to = std::ptr::with_exposed_provenance_mut::<T::Real>(address).wrapping_add(start);
                // SAFETY: there is room for all results, of which each is finished by one thread.
                unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), to, count) };
                return;
            }
            Gates::Are(gates) => {
                let mut gates = gates[start..start + count].to_vec();
                let gate_bias = of_results(problem.gate_bias);
                epilogue::apply(isa, problem.activation, gate_bias.as_deref(), &mut gates);
                epilogue::apply(isa, Activation::None, bias.as_deref(), sums);
                for (sum, gate) in sums.iter_mut().zip(gates) {
                    *sum = *sum * gate;
                }
            }
        }
        if let Some(residual) = &problem.residual {
            let mut values = vec![T::Real::default(); count];
            widened::load(isa, residual, start, &mut values);
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = *sum + value;
            }
        }
        // SAFETY: tiles are disjoint and each is finished by one thread, which holds no slice of it.
        unsafe { widened::store(isa, &problem.out, start, sums) };
    }
}
