//! A matrix and one or a few vectors, columns or rows: the time is that of reading the matrix, once, in the order in which it
//! lies in memory.

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

/// Vectors that are multiplied together, at most.
const MOST_VECTORS: usize = 4;

/// Elements of a matrix that several vectors are multiplied with in one pass, at least: blocks pack less as quickly.
const WORTH: usize = 1 << 16;
/// The same of k: adding up the running sums of fewer takes longer than their products.
const LONG: usize = 128;

/// Whether an m x n product over k is one of vectors.
pub fn is_for(m: usize, n: usize, k: usize) -> bool {
    let (count, len) = (m.min(n), m.max(n));
    count == 1 || (count <= MOST_VECTORS && k >= LONG && len.saturating_mul(k) >= WORTH)
}

/// out[v, i] = sum over k of matrix[i, k] * vectors[v, k], for `len` results of each of `count` vectors.
struct Problem<'a, T: Float> {
    len: usize,
    count: usize,
    k: usize,
    /// Over (i, k), or over (k, i) if `across`.
    matrix: Source<T>,
    /// Whether neighbours in memory belong to different results.
    across: bool,
    vectors: Source<T>,
    out: Target<T>,
    /// Whether vectors are columns: they have a bias each, else each of a vector's results has.
    of_columns: bool,
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
    let mut gates = vec![T::Real::default(); product.m * product.n];
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
    // Rows times a matrix are the transposed matrix times columns.
    let of_columns = n < m;
    let (len, count, matrix, vectors) =
        if of_columns { (m, n, a, b.transposed()) } else { (n, m, b.transposed(), a) };
    let place = |results: Placed| if of_columns { results.transposed() } else { results };
    let (out, residual) = (place(out), residual.map(place));
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
            count,
            k,
            matrix: Source::<T>::new(matrix.address, T::DTYPE, &shape, &strides, 0),
            across,
            vectors: Source::new(
                vectors.address,
                T::DTYPE,
                &[count as i64, k as i64],
                &[vectors.row_stride, vectors.col_stride],
                0,
            ),
            out: Target::new(
                out.address,
                T::DTYPE,
                &[count as i64, len as i64],
                &[out.row_stride, out.col_stride],
            ),
            of_columns,
            bias,
            gate_bias: gate.and_then(|gate| gate.bias),
            gates,
            residual: residual.map(|x| {
                let (shape, strides) = ([count as i64, len as i64], [x.row_stride, x.col_stride]);
                Source::new(x.address, T::DTYPE, &shape, &strides, out.address)
            }),
            activation,
        }
    };
    let depth = k.min(DEPTH);
    // Across, a tile is as wide as threads leave it and as its sums stay in the first-level cache: memory is read 1.4 times
    // as fast in rows of 16 KiB as in those of 4.
    let threads = if parallel { parallel::threads() } else { 1 };
    let wanted = if across { len.div_ceil(threads).next_multiple_of(64) } else { TILE / depth.max(1) };
    let width = len.min(wanted.clamp(16, SUMS / size_of::<T::Real>() / count));
    let problem = &problem;
    if k > DEPTH {
        return in_pieces(problem, width, parallel);
    }
    parallel::for_each(len.div_ceil(width), parallel, |t| {
        let results = problem.tile(width, t);
        let mut sums = vec![T::Real::default(); count * results.len()];
        dispatch(Sums { problem, first: results.start, depth: 0..k, sums: &mut sums });
        dispatch(Finish { problem, start: results.start, sums: &mut sums });
    });
}

/// With k in pieces: rounds that leave the sums of as many tiles as can be kept, and of as many pieces of these, each of
/// which adds them up.
fn in_pieces<T: Float<Real: Activate>>(problem: &Problem<'_, T>, width: usize, parallel: bool) {
    let (tiles, pieces) = (problem.len.div_ceil(width), problem.k.div_ceil(DEPTH));
    let size = problem.count * width;
    let tiles_kept = tiles.min(KEPT / size);
    let pieces_kept = pieces.min(KEPT / (tiles_kept * size));
    let mut parts = vec![T::Real::default(); tiles_kept * pieces_kept * size];
    let mut sums = vec![T::Real::default(); tiles_kept * size];
    for first in (0..tiles).step_by(tiles_kept) {
        let sums = &mut sums[..tiles_kept.min(tiles - first) * size];
        sums.fill(T::Real::default());
        for deep in (0..pieces).step_by(pieces_kept) {
            let count = pieces_kept.min(pieces - deep);
            let parts = &mut parts[..sums.len() * count];
            parallel::for_chunks(parts, size, parallel, |i, part| {
                let (results, depth) =
                    (problem.tile(width, first + i / count), problem.piece(deep + i % count));
                let sums = &mut part[..problem.count * results.len()];
                dispatch(Sums { problem, first: results.start, depth, sums });
            });
            parallel::for_chunks(sums, size, parallel, |t, sums| {
                let results = problem.tile(width, first + t);
                let sums = &mut sums[..problem.count * results.len()];
                for part in parts[t * count * size..(t + 1) * count * size].chunks_exact(size) {
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

/// The sums of the results from `first` on over some of k, of one vector after another.
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
        // Of results that are neighbours, each has one running sum.
        let most = if problem.across { CHAIN } else { depth.len() };
        let mut vectors = vec![T::Real::default(); problem.count * most.min(depth.len())];
        let mut later = Vec::new();
        for start in depth.clone().step_by(most) {
            let len = most.min(depth.end - start);
            let vectors = &mut vectors[..problem.count * len];
            for (i, vector) in vectors.chunks_exact_mut(len).enumerate() {
                widened::load(isa, &problem.vectors, i * problem.k + start, vector);
            }
            if start == depth.start {
                problem.sum(isa, start, first, vectors, sums);
                continue;
            }
            later.clear();
            later.resize(sums.len(), T::Real::default());
            problem.sum(isa, start, first, vectors, &mut later);
            for (sum, &part) in sums.iter_mut().zip(&later) {
                *sum = *sum + part;
            }
        }
    }
}

/// Products that are added to a running sum one after another, at most: the error grows with their number.
const CHAIN: usize = 256;

impl<T: Float> Problem<'_, T> {
    /// Adds the products with elements of `vectors`, which are those from the `depth`-th of k on.
    #[inline(always)]
    fn sum<I: Isa>(&self, isa: I, depth: usize, first: usize, vectors: &[T::Real], sums: &mut [T::Real]) {
        match (self.across, self.count) {
            (true, 1) => across(isa, self, depth, first, vectors, sums),
            (true, 2) => several_across::<T, I, 2>(isa, self, depth, first, vectors, sums),
            (true, 3) => several_across::<T, I, 3>(isa, self, depth, first, vectors, sums),
            (true, _) => several_across::<T, I, MOST_VECTORS>(isa, self, depth, first, vectors, sums),
            (false, _) => along(isa, self, depth, first, vectors, sums),
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
    vectors: &[T::Real],
    sums: &mut [T::Real],
) {
    let mut buffers = Buffers::default();
    let mut start = 0;
    let mut some = Along { isa, problem, depth, first, vectors, sums, buffers: &mut buffers };
    // As many rows as have their running sums in registers: a group of float32 is one of AVX-512, two of AVX2.
    let is_wide = size_of::<I::F32>() == size_of::<[f32; LANES]>();
    let has_pairs = size_of::<T::Real>() > size_of::<f32>();
    if problem.count == 1 {
        if is_wide {
            start = some.rows::<ROWS>(start);
        }
        start = some.rows::<4>(start);
    } else if is_wide && !has_pairs {
        start = some.rows::<4>(start);
    } else if is_wide {
        start = some.rows::<2>(start);
    }
    some.rows::<1>(start);
}

struct Along<'a, T: Float, I> {
    isa: I,
    problem: &'a Problem<'a, T>,
    depth: usize,
    first: usize,
    vectors: &'a [T::Real],
    sums: &'a mut [T::Real],
    buffers: &'a mut Buffers<T>,
}

impl<T: Float, I: Isa> Along<'_, T, I> {
    /// The results from the `start`-th on, as far as they are N at a time: returns which are left.
    #[inline(always)]
    fn rows<const N: usize>(&mut self, start: usize) -> usize {
        let (count, k) = (self.problem.count, self.problem.k);
        let (width, len) = (self.sums.len() / count, self.vectors.len() / count);
        let end = start + (width - start) / N * N;
        for i in (start..end).step_by(N) {
            let from = (self.first + i) * k + self.depth;
            let rows: [&[T]; N] = self.buffers.load(&self.problem.matrix, from, k, len);
            let (vectors, sums) = (self.vectors, &mut self.sums[i..]);
            match count {
                1 => dots::<T, I, N, 1>(self.isa, rows, vectors, sums, width),
                2 => dots::<T, I, N, 2>(self.isa, rows, vectors, sums, width),
                3 => dots::<T, I, N, 3>(self.isa, rows, vectors, sums, width),
                _ => dots::<T, I, N, MOST_VECTORS>(self.isa, rows, vectors, sums, width),
            }
        }
        end
    }
}

/// The sum of products of each row with each of V vectors, in groups of running sums that are added up pairwise. The sums of a
/// vector are `step` behind those of the one before.
#[inline(always)]
fn dots<T: Float, I: Isa, const N: usize, const V: usize>(
    isa: I,
    rows: [&[T]; N],
    vectors: &[T::Real],
    to: &mut [T::Real],
    step: usize,
) {
    let len = rows[0].len();
    let (whole, done) = (len / LANES, len / LANES * LANES);
    // Of one length, or each access is checked.
    let row_groups = rows.map(|row| &row.as_chunks::<LANES>().0[..whole]);
    let mut groups: [&[[T::Real; LANES]]; V] = [&[]; V];
    for (v, groups) in groups.iter_mut().enumerate() {
        *groups = &vectors[v * len..].as_chunks::<LANES>().0[..whole];
    }
    let mut sums = [[[T::Real::default(); LANES]; V]; N];
    for g in 0..whole {
        for i in 0..N {
            let row = wide(isa, &row_groups[i][g]);
            for v in 0..V {
                sums[i][v] = add_products(isa, sums[i][v], row, groups[v][g]);
            }
        }
    }
    for i in 0..N {
        let last = wide_rest::<T, I>(isa, &rows[i][done..]);
        for v in 0..V {
            let mut sums = sums[i][v];
            if done < len {
                let rest = isa.load_rest(&vectors[v * len..][done..len]);
                sums = add_products(isa, sums, last, rest);
            }
            to[v * step + i] = T::Real::sum_of_lanes(isa, sums);
        }
    }
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
        let row = buffers.load::<1>(&problem.matrix, start(4 * fours.len() + i), step, width);
        add_rows(isa, row, [[factor]], [&mut *sums]);
    }
}

/// [`across`] of several vectors.
#[inline(always)]
fn several_across<T: Float, I: Isa, const V: usize>(
    isa: I,
    problem: &Problem<'_, T>,
    depth: usize,
    first: usize,
    vectors: &[T::Real],
    sums: &mut [T::Real],
) {
    let (width, len) = (sums.len() / V, vectors.len() / V);
    let mut buffers = Buffers::default();
    let start = |k: usize| (depth + k) * problem.len + first;
    for k in (0..len / 4 * 4).step_by(4) {
        let rows = buffers.load::<4>(&problem.matrix, start(k), problem.len, width);
        add_rows(isa, rows, factors::<_, 4, V>(vectors, len, k), split::<_, V>(sums, width));
    }
    for k in len / 4 * 4..len {
        let row = buffers.load::<1>(&problem.matrix, start(k), problem.len, width);
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

/// Bias, activation and rounding of all vectors' sums on their way to the output.
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
        let count = sums.len() / problem.count;
        for (v, sums) in sums.chunks_exact_mut(count.max(1)).enumerate() {
            let of_results = |bias: Option<&[T::Real]>| match bias {
                Some(bias) if problem.of_columns => Some(vec![bias[v]; count]),
                Some(bias) => Some(bias[start..start + count].to_vec()),
                None => None,
            };
            let (bias, gate_bias) = (of_results(problem.bias), of_results(problem.gate_bias));
            problem.finish(isa, v * problem.len + start, sums, [bias.as_deref(), gate_bias.as_deref()]);
        }
    }
}

impl<T: Float<Real: Activate>> Problem<'_, T> {
    /// The results from the `start`-th of all vectors on.
    #[inline(always)]
    fn finish<I: Isa>(
        &self,
        isa: I,
        start: usize,
        sums: &mut [T::Real],
        [bias, gate_bias]: [Option<&[T::Real]>; 2],
    ) {
        let count = sums.len();
        match self.gates {
            Gates::None => epilogue::apply(isa, self.activation, bias, sums),
            Gates::To(address) => {
                let to = std::ptr::with_exposed_provenance_mut::<T::Real>(address).wrapping_add(start);
                // SAFETY: there is room for all results, of which each is finished by one thread.
                unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), to, count) };
                return;
            }
            Gates::Are(gates) => {
                let mut gates = gates[start..start + count].to_vec();
                epilogue::apply(isa, self.activation, gate_bias, &mut gates);
                epilogue::apply(isa, Activation::None, bias, sums);
                for (sum, gate) in sums.iter_mut().zip(gates) {
                    *sum = *sum * gate;
                }
            }
        }
        if let Some(residual) = &self.residual {
            let mut values = vec![T::Real::default(); count];
            widened::load(isa, residual, start, &mut values);
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = *sum + value;
            }
        }
        // SAFETY: tiles are disjoint and each is finished by one thread, which holds no slice of it.
        unsafe { widened::store(isa, &self.out, start, sums) };
    }
}
