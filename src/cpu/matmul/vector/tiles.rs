//! Rows of a matrix of bfloat16 that follow k, and vectors, by AMX: its tiles read rows where they lie, and pairs of the
//! vectors, which all threads share.

use std::ops::Range;
use std::ptr;

use half::bf16;

use super::super::amx::{self, Amx};
use super::super::pack;
use super::super::pairs::Pairs;
use super::super::scheme::Scheme;
use super::super::scratch::{self, Scratch, Staging};
use super::super::{Placed, parallel};
use super::Problem;
use crate::cpu::isa::{Isa, Kernel, run_avx512};
use crate::cpu::memory::Memory;
use crate::cpu::operand::MATRIX;
use crate::cpu::register::{BLOCK, Operands, Tiles};

type Pair = [bf16; 2];

const HEIGHT: usize = Amx::HEIGHT;
const WIDTH: usize = Amx::WIDTH;

/// Pairs of k that a thread packs at a time, of `WIDTH` vectors.
const PART: usize = 256;

/// Elements of vectors that one thread packs, at most, in 10 us.
const ALONE: usize = 1 << 16;

/// Pairs from the panel of some vectors to that of the next.
fn panel_len(k: usize) -> usize {
    k.div_ceil(2 * PART) * PART * WIDTH
}

/// The pairs of `count` vectors, in panels of `WIDTH`: one element of k of all of them after another.
pub fn pairs(vectors: Placed, [count, k]: [usize; 2], parallel: bool, memory: &mut Memory) -> &[Pair] {
    let len = panel_len(k);
    let packed = memory.room::<Pair>(count.div_ceil(WIDTH) * len);
    parallel::for_chunks(packed, PART * WIDTH, parallel && count * k > ALONE, |i, to| {
        let (panel, start) = (i * PART * WIDTH / len, i * 2 * PART % (len / WIDTH * 2));
        let depth = start..k.min(start + 2 * PART);
        let columns = panel * WIDTH..count.min((panel + 1) * WIDTH);
        // SAFETY: CPUs with AMX have AVX-512.
        scratch::with(|Scratch { staging, .. }| unsafe {
            run_avx512(Pack { vectors, depth, columns, staging, to })
        });
    });
    packed
}

struct Pack<'a> {
    vectors: Placed,
    depth: Range<usize>,
    columns: Range<usize>,
    staging: &'a mut Staging,
    to: &'a mut [Pair],
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Pack { vectors, depth, columns, staging, to } = self;
        pack::panels::<Pairs<Amx>, I>(isa, vectors.transposed(), &depth, &columns, WIDTH, staging, to);
    }
}

/// Adds the products over some of k of the rows from the `first`-th on to the sums of one vector after another.
#[inline(always)]
pub fn sum<I: Isa>(
    isa: I,
    problem: &Problem<'_, bf16>,
    depth: &Range<usize>,
    first: usize,
    sums: &mut [f32],
    scratch: &mut Scratch,
) {
    let &Problem { pairs, placed: [matrix, _], len, k, count, .. } = problem;
    let Scratch { a: copies, tile, staging, .. } = scratch;
    let deep = depth.len().div_ceil(2);
    let width = sums.len() / count;
    let in_place = matrix.col_stride == 1 && depth.len().is_multiple_of(2);
    let copies = copies.room::<Pair>(if in_place { 0 } else { HEIGHT * deep });
    let tile = tile.room::<f32>(2 * HEIGHT * WIDTH);
    let (tile, transposed) = tile.split_at_mut(HEIGHT * WIDTH);
    // SAFETY: the CPU has AMX, or there were no pairs; `end` follows below.
    unsafe { Amx::begin() };
    for top in (first..first + width).step_by(HEIGHT) {
        // The last rows are done with those before them.
        let begin = top.min(len - HEIGHT);
        let done = top - begin..HEIGHT.min(first + width - begin);
        let (rows, step) = if in_place {
            let rows = ptr::with_exposed_provenance(matrix.at(size_of::<bf16>(), begin, depth.start));
            (rows, matrix.row_stride as isize * size_of::<bf16>() as isize)
        } else {
            for (row, copy) in copies.chunks_exact_mut(deep).enumerate() {
                for at in (0..depth.len()).step_by(MATRIX) {
                    let len = MATRIX.min(depth.len() - at);
                    let elements = staging.elements.room(MATRIX);
                    let line = problem.matrix.block((begin + row) * k + depth.start + at, len, elements);
                    Pairs::<Amx>::along(isa, line, &mut copy[at / 2..][..len.div_ceil(2)]);
                }
            }
            (copies.as_ptr(), (deep * size_of::<Pair>()) as isize)
        };
        for (panel, pairs) in pairs.chunks_exact(panel_len(k)).enumerate() {
            let vectors = panel * WIDTH..count.min((panel + 1) * WIDTH);
            let operands = Operands {
                a: rows,
                a_steps: [step, size_of::<Pair>() as isize],
                b: pairs[depth.start / 2 * WIDTH..].as_ptr(),
                b_step: (WIDTH * size_of::<Pair>()) as isize,
                copy: ptr::null_mut(),
                copy_step: 0,
                k: deep,
                columns: vectors.len(),
                to: tile.as_mut_ptr(),
                to_step: (WIDTH * size_of::<f32>()) as isize,
                earlier: ptr::null(),
                earlier_step: 0,
                awaited: tile.as_mut_ptr(),
                awaited_step: (WIDTH * size_of::<f32>()) as isize,
                later: ptr::null(),
            };
            // SAFETY: there are so many pairs of `HEIGHT` rows and of `WIDTH` vectors, and room for their sums; both sides of a
            // block lie within their tile.
            unsafe {
                match panel {
                    0 => amx::tile::<true>(operands),
                    _ => amx::tile::<false>(operands),
                }
                for i in (0..HEIGHT * WIDTH).step_by(BLOCK * WIDTH) {
                    for j in (0..vectors.len()).step_by(BLOCK) {
                        let from = tile[i + j..].as_ptr().cast::<Pair>();
                        let to = transposed[j * HEIGHT + i / WIDTH..].as_mut_ptr().cast::<Pair>();
                        Amx::transpose(from, WIDTH, to, HEIGHT);
                    }
                }
            }
            for (v, parts) in vectors.zip(transposed.chunks_exact(HEIGHT)) {
                let parts = &parts[done.clone()];
                let sums = &mut sums[v * width + top - first..][..parts.len()];
                for (sum, &part) in sums.iter_mut().zip(parts) {
                    *sum += part;
                }
            }
        }
    }
    // SAFETY: as above, after `begin`.
    unsafe { Amx::end() };
}
