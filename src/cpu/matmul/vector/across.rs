//! Results that are neighbours in memory.

use super::Problem;
use crate::cpu::float::{Float, Real, is_half, wide, wide_rest};
use crate::cpu::isa::{Isa, LANES};
use crate::cpu::operand::Matrix;

/// Rows of the matrix as it lies there, each times an element of the vector, are added up.
#[inline(always)]
pub fn across<T: Float, I: Isa>(
    isa: I,
    problem: &Problem<'_, T>,
    depth: usize,
    first: usize,
    vector: &[T::Real],
    sums: &mut [T::Real],
) {
    let mut stretches = Stretches::new(problem, [depth, vector.len()], [first, sums.len()]);
    let (fours, rest) = vector.as_chunks::<4>();
    for (i, four) in fours.iter().enumerate() {
        let rows = stretches.load::<4>(4 * i);
        if is_half::<T>() {
            add_rows(isa, rows, four.map(|factor| [factor]), [&mut *sums]);
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
        let row = stretches.load::<1>(4 * fours.len() + i);
        add_rows(isa, row, [[factor]], [&mut *sums]);
    }
}

/// [`across`] of several vectors.
#[inline(always)]
pub fn several_across<T: Float, I: Isa, const V: usize>(
    isa: I,
    problem: &Problem<'_, T>,
    depth: usize,
    first: usize,
    vectors: &[T::Real],
    sums: &mut [T::Real],
) {
    let (width, len) = (sums.len() / V, vectors.len() / V);
    let mut stretches = Stretches::new(problem, [depth, len], [first, width]);
    for k in (0..len / 4 * 4).step_by(4) {
        let rows = stretches.load::<4>(k);
        add_rows(isa, rows, factors::<_, 4, V>(vectors, len, k), split::<_, V>(sums, width));
    }
    for k in len / 4 * 4..len {
        let row = stretches.load::<1>(k);
        add_rows(isa, row, factors::<_, 1, V>(vectors, len, k), split::<_, V>(sums, width));
    }
}

/// N elements of each of V vectors of `len` elements.
#[inline(always)]
fn factors<R: Real, const N: usize, const V: usize>(vectors: &[R], len: usize, k: usize) -> [[R; V]; N] {
    let mut factors = [[R::default(); V]; N];
    for v in 0..V {
        for i in 0..N {
            factors[i][v] = vectors[v * len + k + i];
        }
    }
    factors
}

/// The first V stretches of `width` elements.
#[inline(always)]
fn split<R, const V: usize>(sums: &mut [R], width: usize) -> [&mut [R]; V] {
    let mut stretches = sums.chunks_exact_mut(width);
    [(); V].map(|()| stretches.next().unwrap_or_default())
}

/// Adds rows, each times its factors, to sums.
#[inline(always)]
fn add_rows<T: Float, I: Isa, const N: usize, const V: usize>(
    isa: I,
    rows: [&[T]; N],
    factors: [[T::Real; V]; N],
    sums: [&mut [T::Real]; V],
) {
    let mut parts = sums.map(|sums| sums.as_chunks_mut::<LANES>());
    let whole = rows[0].len() / LANES;
    for g in 0..whole {
        if V == 1 {
            // Of bfloat16 LLVM keeps groups in memory that are all widened first.
            let sums = &mut parts[0].0[g];
            let mut added = *sums;
            for (row, factors) in rows.iter().zip(&factors) {
                let factor = [factors[0]; LANES];
                added = add_products(isa, added, wide(isa, &row.as_chunks::<LANES>().0[g]), factor);
            }
            *sums = added;
            continue;
        }
        let mut groups = [[T::Real::default(); LANES]; N];
        for (group, row) in groups.iter_mut().zip(&rows) {
            *group = wide(isa, &row.as_chunks::<LANES>().0[g]);
        }
        for (v, (sums, _)) in parts.iter_mut().enumerate() {
            let mut added = sums[g];
            for (group, factors) in groups.iter().zip(&factors) {
                added = add_products(isa, added, *group, [factors[v]; LANES]);
            }
            sums[g] = added;
        }
    }
    if parts[0].1.is_empty() {
        return;
    }
    for i in 0..N {
        let last = wide_rest::<T, I>(isa, &rows[i][whole * LANES..]);
        for v in 0..V {
            for (sum, x) in parts[v].1.iter_mut().zip(last) {
                *sum = x.mul_add(isa, factors[i][v], *sum);
            }
        }
    }
}

/// Stretches of rows of the matrix, where they lie or, if they are not contiguous, gathered in buffers. Four at a time read a matrix
/// that is not in the cache twice as fast as one (measured on Zen 5), and load and store sums or the vector a quarter as often.
struct Stretches<'a, T: Float> {
    problem: &'a Problem<'a, T>,
    in_place: Option<Matrix<'a, T>>,
    buffers: [Vec<T>; 4],
    /// The first row and column, and columns.
    start: [usize; 2],
    width: usize,
}

impl<'a, T: Float> Stretches<'a, T> {
    #[inline(always)]
    fn new(
        problem: &'a Problem<'a, T>,
        [depth, rows]: [usize; 2],
        [first, width]: [usize; 2],
    ) -> Stretches<'a, T> {
        let Problem { matrix, len, .. } = problem;
        let in_place = || matrix.matrix(depth * len + first, [rows, width], &mut []);
        let in_place = matrix.has_rows().then(in_place);
        Stretches { problem, in_place, buffers: Default::default(), start: [depth, first], width }
    }

    /// N of them, from the `k`-th on.
    #[inline(always)]
    fn load<const N: usize>(&mut self, k: usize) -> [&[T]; N] {
        let mut stretches: [&[T]; N] = [&[]; N];
        if let Some(rows) = &self.in_place {
            for (i, stretch) in stretches.iter_mut().enumerate() {
                *stretch = rows.row(k + i);
            }
            return stretches;
        }
        let Problem { matrix, len, .. } = self.problem;
        let [depth, first] = self.start;
        for (i, (stretch, buffer)) in stretches.iter_mut().zip(&mut self.buffers).enumerate() {
            buffer.resize(self.width, T::default());
            matrix.load((depth + k + i) * len + first, buffer);
            *stretch = buffer;
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
