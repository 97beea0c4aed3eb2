//! bfloat16 products by AVX512-BF16, which multiplies pairs of elements along k and adds them to a float32 sum in one
//! instruction: twice the rate of float32. Subnormal numbers count as zero in it, as in torch's products on such CPUs.
//!
//! Panels of twelve rows of a, and of 32 columns of b, are packed in the order in which a tile of the output reads them; its
//! sums stay in registers over all of k.

use std::arch::x86_64::*;
use std::mem::transmute;
use std::ops::Range;
use std::ptr;

use half::bf16;

use super::product::even;
use super::*;
use crate::cpu::float::Float;
use crate::cpu::isa::has_avx512;
use crate::cpu::operand::{MATRIX, Target};

/// Rows and columns of a tile: 24 registers of sums.
const HEIGHT: usize = 12;
const WIDTH: usize = 32;

/// Elements of k in a register, which a packed panel is filled up to with zeros.
const DEPTH: usize = 32;

/// Bytes of packed rows of a that are kept, about.
const KEPT: usize = 2 << 20;

/// Longest k of which whole panels are packed; longer ones are widened and go to gemm.
const LONGEST: usize = 1 << 15;

/// Whether a product of this k can be done so, on this CPU.
pub fn fits(k: usize) -> bool {
    k > 0 && k <= LONGEST && is_x86_feature_detected!("avx512bf16") && has_avx512()
}

pub fn solve(product: Product<'_, f32>) {
    let deep = product.k.next_multiple_of(DEPTH);
    let rows = (KEPT / (size_of::<bf16>() * deep)).max(HEIGHT);
    let mut panels = Panels::default();
    for rows in even(product.m, rows) {
        dispatch(Rows { product, rows, deep, panels: &mut panels });
    }
}

/// Packed panels: of all rows, and of the columns that are at work.
#[derive(Default)]
struct Panels {
    a: Vec<Chunk>,
    b: Vec<Chunk>,
}

/// A cache line, where a register is loaded from.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Chunk([bf16; DEPTH]);

const ZEROS: Chunk = Chunk([bf16::ZERO; DEPTH]);

struct Rows<'a> {
    product: Product<'a, f32>,
    rows: Range<usize>,
    /// k, filled up.
    deep: usize,
    panels: &'a mut Panels,
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Rows { product, rows, deep, panels: Panels { a, b } } = self;
        let Product { n, out, bias, activation, .. } = product;
        pack_rows(product.a, &rows, product.k, a);
        let mut tile = [[0.0; WIDTH]; HEIGHT];
        for column in (0..n).step_by(WIDTH) {
            let columns = column..n.min(column + WIDTH);
            pack_columns(product.b, &columns, product.k, b);
            let bias = bias.map(|bias| &bias[columns.clone()]);
            for (panel, first) in a.chunks_exact(HEIGHT * deep / DEPTH).zip(rows.clone().step_by(HEIGHT)) {
                // SAFETY: `fits` has found the instructions; the panels are as deep as each other.
                unsafe { multiply(panel, b, &mut tile) };
                for (row, sums) in (first..rows.end).zip(&mut tile) {
                    let sums = &mut sums[..columns.len()];
                    epilogue::apply(isa, activation, bias, sums);
                    store(isa, out, row, &columns, sums);
                }
            }
        }
    }
}

/// Writes part of a row of the output, rounded.
#[inline(always)]
fn store<I: Isa>(isa: I, out: Placed, row: usize, columns: &Range<usize>, sums: &[f32]) {
    let address = out.at(size_of::<bf16>(), row, columns.start);
    let mut rounded = [bf16::ZERO; WIDTH];
    let rounded = &mut rounded[..sums.len()];
    bf16::narrow(isa, sums, rounded);
    if out.col_stride == 1 {
        let to = ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: a problem's output is memory of the given shape that the caller keeps alive, and each row of a tile is
        // written by one thread. No alignment is assumed.
        unsafe { ptr::copy_nonoverlapping(rounded.as_ptr().cast::<u8>(), to, size_of_val(rounded)) };
        return;
    }
    // SAFETY: as above; `check_out` has refused outputs that overlap themselves or an input.
    let target = unsafe { Target::new(address, &[sums.len() as i64], &[out.col_stride]) };
    // SAFETY: nobody holds a slice of it.
    unsafe { target.store(0, rounded) };
}

/// Some rows in panels of [`HEIGHT`]: of each a chunk of k, row by row, then the next of k.
fn pack_rows(a: Placed, rows: &Range<usize>, k: usize, panels: &mut Vec<Chunk>) {
    let source = matrix(a, [rows.end, k]);
    let chunks = k.div_ceil(DEPTH);
    panels.clear();
    panels.resize(rows.len().div_ceil(HEIGHT) * HEIGHT * chunks, ZEROS);
    let mut buffer = [bf16::ZERO; MATRIX];
    for (panel, first) in panels.chunks_exact_mut(HEIGHT * chunks).zip(rows.clone().step_by(HEIGHT)) {
        let height = HEIGHT.min(rows.end - first);
        for (part, depth) in panel.chunks_mut(HEIGHT * AT_ONCE / DEPTH).zip((0..k).step_by(AT_ONCE)) {
            let lines = source.matrix(first * k + depth, [height, AT_ONCE.min(k - depth)], &mut buffer);
            for row in 0..height {
                let (whole, rest) = lines.row(row).as_chunks::<DEPTH>();
                let mut chunks = part.iter_mut().skip(row).step_by(HEIGHT);
                for (from, to) in whole.iter().zip(&mut chunks) {
                    to.0 = *from;
                }
                if let Some(to) = chunks.next() {
                    to.0[..rest.len()].copy_from_slice(rest);
                }
            }
        }
    }
}

/// Elements of k that are read at once.
const AT_ONCE: usize = MATRIX / WIDTH;

/// Up to [`WIDTH`] columns: pairs along k of each column, column by column, then the next pairs.
fn pack_columns(b: Placed, columns: &Range<usize>, k: usize, panel: &mut Vec<Chunk>) {
    panel.clear();
    panel.resize(k.next_multiple_of(DEPTH), ZEROS);
    let mut buffer = [bf16::ZERO; MATRIX];
    let width = columns.len();
    if b.row_stride.unsigned_abs() < b.col_stride.unsigned_abs() {
        // Along k, in which the elements of a pair are neighbours.
        let source = matrix(b.transposed(), [columns.end, k]);
        for (part, depth) in panel.chunks_mut(AT_ONCE).zip((0..k).step_by(AT_ONCE)) {
            let len = AT_ONCE.min(k - depth);
            let lines = source.matrix(columns.start * k + depth, [width, len], &mut buffer);
            for column in 0..width {
                let at = 2 * (column % (WIDTH / 2));
                let (pairs, rest) = lines.row(column).as_chunks::<2>();
                let mut chunks = part.iter_mut().skip(column / (WIDTH / 2)).step_by(2);
                for (&[low, high], to) in pairs.iter().zip(&mut chunks) {
                    (to.0[at], to.0[at + 1]) = (low, high);
                }
                if let (&[low], Some(to)) = (rest, chunks.next()) {
                    to.0[at] = low;
                }
            }
        }
        return;
    }
    let source = matrix(b, [k, columns.end]);
    for (part, depth) in panel.chunks_mut(AT_ONCE).zip((0..k).step_by(AT_ONCE)) {
        let len = AT_ONCE.min(k - depth);
        let lines = source.matrix(depth * columns.end + columns.start, [len, width], &mut buffer);
        for (to, row) in part.as_chunks_mut::<2>().0.iter_mut().zip((0..len).step_by(2)) {
            let low = chunk(lines.row(row));
            let high = if row + 1 < len { chunk(lines.row(row + 1)) } else { ZEROS };
            // SAFETY: `fits` has found the instructions.
            unsafe { interleave(low, high, to) };
        }
    }
}

/// Elements, filled up with zeros.
fn chunk(from: &[bf16]) -> Chunk {
    let mut chunk = ZEROS;
    match <&[bf16; WIDTH]>::try_from(from) {
        Ok(whole) => chunk.0 = *whole,
        Err(_) => chunk.0[..from.len()].copy_from_slice(from),
    }
    chunk
}

fn matrix(placed: Placed, shape: [usize; 2]) -> Source<bf16> {
    // SAFETY: a problem's operands are memory of the given shapes that the caller keeps alive, and none of it is written:
    // `check_out` has refused outputs that overlap an input.
    unsafe {
        let strides = [placed.row_stride, placed.col_stride];
        Source::new(placed.address, DType::BF16, &shape.map(|size| size as i64), &strides, 0)
    }
}

/// The elements of two rows in turn.
#[target_feature(enable = "avx512f,avx512bw")]
fn interleave(low: Chunk, high: Chunk, to: &mut [Chunk; 2]) {
    // SAFETY: all are of the size of a register, whose bits are valid whatever they are.
    unsafe {
        let [low, high] = transmute::<[Chunk; 2], [__m512i; 2]>([low, high]);
        let [first, second] = transmute::<[[u16; 32]; 2], [__m512i; 2]>(const { [turns(0), turns(16)] });
        *to = transmute::<[__m512i; 2], [Chunk; 2]>([
            _mm512_permutex2var_epi16(low, first, high),
            _mm512_permutex2var_epi16(low, second, high),
        ]);
    }
}

/// Elements from `start` on of one register and, 32 further on, of another.
const fn turns(start: u16) -> [u16; 32] {
    let mut turns = [0; 32];
    let mut i = 0;
    while i < 32 {
        turns[i] = start + i as u16 / 2 + i as u16 % 2 * 32;
        i += 1;
    }
    turns
}

/// tile = panel of rows times panel of columns.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn multiply(a: &[Chunk], b: &[Chunk], tile: &mut [[f32; WIDTH]; HEIGHT]) {
    assert!(a.len() / HEIGHT * DEPTH == b.len() && a.len().is_multiple_of(HEIGHT));
    let mut sums = [[_mm512_setzero_ps(); 2]; HEIGHT];
    let load = |from: &Chunk| {
        // SAFETY: a chunk is of the size of a register and aligned as one, whose bits are valid whatever they are.
        unsafe { transmute::<__m512i, __m512bh>(_mm512_load_si512((&raw const *from).cast())) }
    };
    for (rows, columns) in a.as_chunks::<HEIGHT>().0.iter().zip(b.as_chunks::<DEPTH>().0) {
        for (i, [first, second]) in columns.as_chunks::<2>().0.iter().enumerate() {
            let (first, second) = (load(first), load(second));
            for (row, [left, right]) in rows.iter().zip(&mut sums) {
                // SAFETY: the `i`-th of sixteen pairs of a chunk; any bits are valid.
                let pair = unsafe {
                    let pair = (&raw const *row).cast::<i32>().add(i).read();
                    transmute::<__m512i, __m512bh>(_mm512_set1_epi32(pair))
                };
                *left = _mm512_dpbf16_ps(*left, pair, first);
                *right = _mm512_dpbf16_ps(*right, pair, second);
            }
        }
    }
    for (row, [left, right]) in tile.iter_mut().zip(sums) {
        let (to_left, to_right) = row.split_at_mut(WIDTH / 2);
        // SAFETY: both halves have room for a register; no alignment is assumed.
        unsafe {
            _mm512_storeu_ps(to_left.as_mut_ptr(), left);
            _mm512_storeu_ps(to_right.as_mut_ptr(), right);
        }
    }
}
