//! A matrix and one or a few vectors, columns or rows: the time is that of reading the matrix, once, in the order in which it
//! lies in memory.

mod across;
pub mod dots;
mod narrow;
mod short;
#[cfg(target_arch = "x86_64")]
pub mod tiles;

use std::mem;
use std::ops::{Range, RangeInclusive};

use self::across::{across, several_across};
use super::scratch::{self, Scratch};
use super::*;
use crate::cpu::isa::has_whole_groups;
use crate::cpu::operand::Target;
use crate::cpu::register::MAX_HEIGHT;

/// Elements of k that are summed in one go; the sums of longer ones are added up afterwards. Depends on
/// nothing, since it decides the order of the sums.
pub const DEPTH: usize = 4096;

/// Bytes of a tile's sums, at most. They are worth a first-level cache, since the longer a stretch of the matrix is, the
/// faster it is read.
const SUMS: usize = 32 << 10;

/// Elements of a tile of short rows, about: 20 us of work.
const TILE: usize = 131072;

/// Rows of a tile of longer ones, at most.
const ROWS: usize = 256;

/// Sums of pieces of k that are kept at a time, however many there are: 8 MiB of float64.
pub const KEPT: usize = 1 << 20;

/// Vectors that are multiplied together, at most: with a matrix whose rows follow k by AVX-512, by narrower registers (half as
/// many of float64), the same of bfloat16 beside AMX, and with any other matrix.
const MOST_ALONG: usize = 64;
const MOST_ALONG_NARROW: usize = 16;
const MOST_BESIDE_AMX: usize = 8;
const MOST_ACROSS: usize = 4;
/// Several vectors with a matrix across k: of fewer results than this and a smaller matrix, blocks are sooner done. They keep the
/// sums in registers, but their threads do not share k.
const WIDE_ACROSS: usize = 64;
const MANY_ACROSS: usize = 1 << 20;

/// Vectors of bfloat16 that AMX multiplies with rows where they lie: so many with those of any matrix, more with those of one that
/// has so many elements for each, as all threads share what is packed of them.
const BY_AMX: RangeInclusive<usize> = 4..=16;
const MOST_BY_AMX: usize = 128;
const SHARED: usize = 1 << 15;
/// Rows of that matrix, at least, for they are multiplied [`MAX_HEIGHT`] at a time.
const ROWS_BY_AMX: usize = 128;
/// Elements of a row, at most: the pairs of all vectors are kept.
const DEEPEST_BY_AMX: usize = 1 << 16;

/// Elements of a matrix that several vectors are multiplied with in one pass, at least: blocks pack less as quickly.
const WORTH: usize = 1 << 16;
/// The same of k, and of k for each vector that meets rows along it by AVX-512: adding up the running sums of fewer takes
/// longer than their products.
const LONG: usize = 128;
const LANES_ADDED: usize = 32;

/// Whether an m x n product over k is one of vectors, whose matrix is `across` or not: see [`is_across`].
pub fn is_for(dtype: DType, [m, n, k]: [usize; 3], across: bool) -> bool {
    let (count, len) = (m.min(n), m.max(n));
    if count == 1 || k < LONG || len.saturating_mul(k) < WORTH {
        return count == 1;
    }
    let most = match across {
        true if is_for_blocks(count, len, k) => 1,
        true => MOST_ACROSS,
        false if dtype == DType::BF16 && of_pairs() == Some(OfPairs::Amx) => MOST_BESIDE_AMX,
        false if has_whole_groups() => MOST_ALONG.min(k / LANES_ADDED),
        false => MOST_ALONG_NARROW / if dtype == DType::F64 { 2 } else { 1 },
    };
    count <= most || (!across && is_by_amx(dtype, [m, n, k]))
}

/// Whether several vectors with a matrix whose neighbours are results are left to blocks.
fn is_for_blocks(count: usize, len: usize, k: usize) -> bool {
    let is_small = len < WIDE_ACROSS && len.saturating_mul(k) < MANY_ACROSS;
    is_small && !narrow::is_narrow(count, len, k, true)
}

/// Whether rows that follow k are ones of [`short`].
fn is_short(vectors: usize, k: usize) -> bool {
    vectors == 1 && k <= short::LONGEST
}

/// Whether rows that follow k are ones of [`tiles`].
fn is_by_amx(dtype: DType, [m, n, k]: [usize; 3]) -> bool {
    let (count, len) = (m.min(n), m.max(n));
    let most = (len.saturating_mul(k) / SHARED).clamp(*BY_AMX.end(), MOST_BY_AMX);
    let is_worth = (*BY_AMX.start()..=most).contains(&count) && len >= ROWS_BY_AMX && k <= DEEPEST_BY_AMX;
    dtype == DType::BF16 && is_worth && of_pairs() == Some(OfPairs::Amx)
}

/// What solves such a product.
pub fn method(dtype: DType, [m, n, k]: [usize; 3], across: bool) -> Method {
    if narrow::is_narrow(m.min(n), m.max(n), k, across) {
        return Method::new("a few results of a long k", "matmul/vector/narrow.rs");
    }
    if across {
        return Method::new("columns of a matrix times one or a few vectors", "matmul/vector/across.rs");
    }
    if is_short(m.min(n), k) {
        return Method::new("rows of few elements times a vector", "matmul/vector/short.rs");
    }
    if is_by_amx(dtype, [m, n, k]) {
        return Method::new("rows of a matrix times a few vectors", "matmul/vector/tiles.rs").with("AMX");
    }
    let method = Method::new("rows of a matrix times one or a few vectors", "matmul/vector/dots.rs");
    let of_pairs = dtype == DType::BF16 && of_pairs() == Some(OfPairs::Avx512Bf16);
    if of_pairs { method.with("AVX512-BF16") } else { method }
}

/// Whether neighbours in memory of the larger of a and b, of given steps along rows and columns, belong to different results.
pub fn is_across(m: usize, n: usize, a: [i64; 2], b: [i64; 2]) -> bool {
    // The rows of a times vectors are results, or the columns of b.
    let [of_results, of_k] = if n < m { a } else { [b[1], b[0]] };
    // A single result has no neighbour, whatever its stride.
    m.max(n) > 1 && of_results.unsigned_abs() < of_k.unsigned_abs()
}

/// out[v, i] = sum over k of matrix[i, k] * vectors[v, k], for `len` results of each of `count` vectors.
pub struct Problem<'a, T: Float> {
    len: usize,
    count: usize,
    k: usize,
    /// Over (i, k), or over (k, i) if `across`.
    matrix: Source<T>,
    /// Where it lies, over (i, k), and where the vectors do.
    placed: [Placed; 2],
    /// Whether neighbours in memory belong to different results.
    across: bool,
    vectors: Source<T>,
    /// Pairs of vectors of bfloat16, where AMX multiplies them.
    pairs: &'a [[bf16; 2]],
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

pub fn solve<T: Factor>(product: Product<'_, T::Real>, parallel: bool) {
    let Some(gate) = product.gate else { return sum_up::<T>(product, Gates::None, parallel) };
    let mut gates = vec![T::Real::default(); product.m * product.n];
    let to = Gates::To(gates.as_mut_ptr().expose_provenance());
    sum_up::<T>(Product { b: gate.b, ..product }, to, parallel);
    sum_up::<T>(product, Gates::Are(&gates), parallel);
}

fn sum_up<T: Factor>(product: Product<'_, T::Real>, gates: Gates<'_, T::Real>, parallel: bool) {
    let Product { m, n, k, a, b, .. } = product;
    if is_across(m, n, a.strides(), b.strides()) || !is_by_amx(T::DTYPE, [m, n, k]) {
        return sum_of::<T>(product, gates, &[], parallel);
    }
    let vectors = if n < m { b.transposed() } else { a };
    // Taken out of the thread's memory, which this thread uses for its own part of the work, too.
    let mut memory = scratch::with(|scratch| mem::take(&mut scratch.pairs));
    let pairs = T::pairs(vectors, [m.min(n), k], parallel, &mut memory);
    sum_of::<T>(product, gates, pairs, parallel);
    scratch::with(|scratch| scratch.pairs = memory);
}

fn sum_of<T: Factor>(
    product: Product<'_, T::Real>,
    gates: Gates<'_, T::Real>,
    pairs: &[[bf16; 2]],
    parallel: bool,
) {
    let Product { m, n, k, a, b, out, bias, gate, residual, activation } = product;
    // Rows times a matrix are the transposed matrix times columns.
    let of_columns = n < m;
    let (len, count, matrix, vectors) =
        if of_columns { (m, n, a, b.transposed()) } else { (n, m, b.transposed(), a) };
    let place = |results: Placed| if of_columns { results.transposed() } else { results };
    let (out, residual) = (place(out), residual.map(place));
    let across = is_across(m, n, a.strides(), b.strides());
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
            placed: [matrix, vectors],
            across,
            vectors: Source::new(
                vectors.address,
                T::DTYPE,
                &[count as i64, k as i64],
                &[vectors.row_stride, vectors.col_stride],
                0,
            ),
            pairs,
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
    // Across, a tile is as wide as threads leave it and as its sums stay in the first-level cache: memory is read 1.4 times
    // as fast in rows of 16 KiB as in those of 4. Else it has `ROWS` rows at most, and each thread two tiles if there are fewer, or
    // one where vectors are transposed for each.
    let threads = if parallel { parallel::threads() } else { 1 };
    let wanted = if across {
        len.div_ceil(threads).next_multiple_of(64)
    } else if is_short(count, k) {
        TILE / k.max(1)
    } else {
        let has_several = parallel && !dots::transposes(count, vectors);
        len.div_ceil(if has_several { 2 * threads } else { threads }).min(ROWS)
    };
    let multiple = if problem.has_pairs() { MAX_HEIGHT } else { 1 };
    let most = SUMS / size_of::<T::Real>() / count;
    let width = len.min(wanted.clamp(16, most).next_multiple_of(multiple));
    let problem = &problem;
    if k > DEPTH {
        return in_pieces(problem, width, parallel);
    }
    parallel::for_each(len.div_ceil(width), parallel, |t| {
        let results = problem.tile(width, t);
        let mut sums = vec![T::Real::default(); count * results.len()];
        scratch::with(|scratch| {
            dispatch(Sums { problem, first: results.start, depth: 0..k, sums: &mut sums, scratch });
        });
        dispatch(Finish { problem, start: results.start, sums: &mut sums });
    });
}

/// With k in pieces: rounds that leave the sums of as many tiles as can be kept, and of as many pieces of these, each of
/// which adds them up.
fn in_pieces<T: Factor>(problem: &Problem<'_, T>, width: usize, parallel: bool) {
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
                scratch::with(|scratch| {
                    dispatch(Sums { problem, first: results.start, depth, sums, scratch });
                });
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
    pub fn has_pairs(&self) -> bool {
        !self.pairs.is_empty()
    }

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
    scratch: &'a mut Scratch,
}

impl<T: Factor> Kernel for Sums<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Sums { problem, first, depth, sums, scratch } = self;
        sums.fill(T::Real::default());
        if depth.is_empty() {
            return;
        }
        let &Problem { ref vectors, k, count, .. } = problem;
        if narrow::is_narrow(count, problem.len, k, problem.across) {
            return narrow::sum(isa, problem, &depth, sums, scratch);
        }
        if !problem.across {
            if is_short(count, k) {
                let mut vector = [T::Real::default(); short::LONGEST];
                widened::load(isa, vectors, 0, &mut vector[..k]);
                let mut copy = Vec::new();
                let rows = problem.matrix.read(first * k, sums.len() * k, &mut copy);
                return short::sum(isa, rows, &vector[..k], sums);
            }
            return T::add_dots(isa, problem, &depth, first, sums, scratch);
        }
        // Of results that are neighbours, each has one running sum.
        let mut factors = vec![T::Real::default(); count * CHAIN.min(depth.len())];
        let mut later = Vec::new();
        for start in depth.clone().step_by(CHAIN) {
            let deep = CHAIN.min(depth.end - start);
            let factors = &mut factors[..count * deep];
            for (i, factors) in factors.chunks_exact_mut(deep).enumerate() {
                widened::load(isa, vectors, i * k + start, factors);
            }
            if start == depth.start {
                problem.sum(isa, start, first, factors, sums);
                continue;
            }
            later.clear();
            later.resize(sums.len(), T::Real::default());
            problem.sum(isa, start, first, factors, &mut later);
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
        match self.count {
            1 => across(isa, self, depth, first, vectors, sums),
            2 => several_across::<T, I, 2>(isa, self, depth, first, vectors, sums),
            3 => several_across::<T, I, 3>(isa, self, depth, first, vectors, sums),
            _ => several_across::<T, I, MOST_ACROSS>(isa, self, depth, first, vectors, sums),
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
