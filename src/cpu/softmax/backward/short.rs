//! Columns of few elements, as [`crate::cpu::softmax::short`].

use super::*;
use crate::cpu::isa::{CACHE_LINE, Kernel, dispatch, has_avx512_not_of_intel};
use crate::cpu::operand::{Matrix, MatrixMut};
use crate::cpu::register::prefetch;
use crate::cpu::softmax::columns::RUN;
use crate::cpu::softmax::short::{LONG, Solve, Tiles, for_blocks, read, write};

/// Elements of columns far apart, at most. AMD's CPUs with AVX-512 are mostly quicker by tiles from there on
/// (docs/measurements/cpu_memory_bound.md); nobody else's CPUs with it were measured.
pub fn long() -> i64 {
    if has_avx512_not_of_intel() { 8 } else { LONG }
}

pub fn solve<T: Float>(problem: &SoftmaxBackwardProblem) -> Result<()> {
    with_operands::<T, T>(problem, Split::dims, |operands| {
        let tiles = Tiles::of(&problem.rows, problem.length);
        tiles.for_ranges(|range| dispatch(Columns { operands, tiles, range }));
        Ok(())
    })
}

struct Columns<'a, T> {
    operands: Operands<'a, T, T>,
    tiles: Tiles,
    range: Range<usize>,
}

impl<T: Float> Kernel for Columns<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        // A kind that is known where loops are compiled is no branch in them.
        match self.operands.kind {
            Kind::Softmax => self.solve(isa, Kind::Softmax),
            Kind::LogSoftmax => self.solve(isa, Kind::LogSoftmax),
        }
    }
}

impl<T: Float> Columns<'_, T> {
    #[inline(always)]
    fn solve<I: Isa>(self, isa: I, kind: Kind) {
        let Columns { operands: Operands { grad, output, out, .. }, tiles, range } = self;
        for tile in range {
            let (start, size) = tiles.get(tile);
            let grad = grad.matrix(start, size, &mut []);
            let output = output.matrix(start, size, &mut []);
            // SAFETY: every tile is visited by one thread, which holds no other slice of `out`; one of an input's row is last
            // used before that is written.
            let Some(out) = (unsafe { out.matrix(start, size) }) else { return };
            for_blocks(isa, size[1], &mut Tile { kind, length: size[0], grad, output, out });
        }
    }
}

struct Tile<'a, T> {
    kind: Kind,
    length: usize,
    grad: Matrix<'a, T>,
    output: Matrix<'a, T>,
    out: MatrixMut<'a, T>,
}

impl<T: Float> Solve for Tile<'_, T> {
    #[inline(always)]
    fn solve<I: Isa, const N: usize>(&mut self, isa: I, first: usize, count: usize) {
        let Tile { kind, length, grad, output, out } = self;
        let mut sums = [[T::Real::default(); LANES]; N];
        for run in (0..*length).step_by(RUN) {
            let mut of_run = [[T::Real::default(); LANES]; N];
            for row in run..(*length).min(run + RUN) {
                let grad = read::<T, I, N>(isa, grad.part(row, first, count));
                let output = output.part(row, first, count);
                if *kind == Kind::LogSoftmax {
                    // It adds nothing, but is to be there when its exponentials are formed.
                    output.chunks(CACHE_LINE / size_of::<T>()).for_each(|line| prefetch(line.as_ptr()));
                }
                let output = read::<T, I, N>(isa, output);
                for i in 0..N {
                    of_run[i] = add_terms(isa, *kind, grad[i], output[i], of_run[i]);
                }
            }
            // Runs are so few that their sums need no float64.
            for i in 0..N {
                sums[i] = add_groups(sums[i], of_run[i]);
            }
        }
        for row in 0..*length {
            let mut of_row = read::<T, I, N>(isa, grad.part(row, first, count));
            let output = read::<T, I, N>(isa, output.part(row, first, count));
            for i in 0..N {
                of_row[i] = results(isa, *kind, of_row[i], output[i], sums[i]);
            }
            write(isa, &of_row, out.part(row, first, count));
        }
    }
}
