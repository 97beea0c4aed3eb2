//! Matrix times matrix. A part of the output is done by blocks of k, of columns and of rows: a panel of rows of a stays in
//! the first-level cache and a block of columns of b, packed, in the second, while tiles of sums go through registers; bias,
//! activation, gate, residual and rounding follow on a tile whose last sums are in.

use std::ops::Range;
use std::{ptr, slice};

#[cfg(target_arch = "x86_64")]
use super::pairs::Pairs;
use super::parts::{even, split};
use super::scheme::{InRegisters, Scheme, Widened};
use super::scratch::{self, Scratch, Staging};
#[cfg(target_arch = "x86_64")]
use super::vector::tiles;
use super::vector::{self, dots};
use super::*;
use crate::cpu::element::Element;
#[cfg(target_arch = "x86_64")]
use crate::cpu::isa::run_avx512;
use crate::cpu::isa::{CACHE_LINE, LANES, has_whole_groups};
use crate::cpu::memory::Memory;
use crate::cpu::register::{AsFactors, BLOCK, MAX_HEIGHT, MAX_WIDTH, Operands, Tiles, Widening};

/// Factors along k in a block. The length depends on nothing else, since it decides the order of sums.
const DEPTH: usize = 512;

/// Bytes of a block of b: half of a second-level cache, which has at least a MiB in most CPUs whose tiles are high.
const fn block_bytes(height: usize) -> usize {
    if height > 6 { 512 << 10 } else { 256 << 10 }
}

/// How many times as long as to pack an element it takes to store one to a column, and bytes of a result that is stored so, at most.
const STORE: usize = 2;
const STORED: usize = 1 << 19;

/// Rows and columns that are worked on at a time, at most, which limits the packed rows of a to 8 MiB.
const MOST: [usize; 2] = [2048, 4096];

/// The same where sums are kept that the output cannot hold: 4 MiB of float32.
const MOST_KEPT: [usize; 2] = [1024, 1024];

/// What a product can be of.
pub trait Factor: Float<Real: Activate + InRegisters> {
    /// A part of a product that one thread solves.
    fn solve_part(product: Product<'_, Self::Real>) {
        solve_part::<Widened<Self>>(product);
    }

    /// Pairs of `count` vectors, where AMX multiplies them.
    fn pairs(_vectors: Placed, _size: [usize; 2], _parallel: bool, _memory: &mut Memory) -> &[[bf16; 2]] {
        &[]
    }

    /// [`dots::sum`].
    #[inline(always)]
    fn add_dots<I: Isa>(
        isa: I,
        problem: &vector::Problem<'_, Self>,
        depth: &Range<usize>,
        first: usize,
        sums: &mut [Self::Real],
        scratch: &mut Scratch,
    ) {
        dots::sum::<Widened<Self>, AsFactors, I>(isa, problem, depth, first, sums, scratch);
    }
}

impl Factor for f32 {}
impl Factor for f64 {}

impl Factor for f16 {
    #[inline(always)]
    fn add_dots<I: Isa>(
        isa: I,
        problem: &vector::Problem<'_, f16>,
        depth: &Range<usize>,
        first: usize,
        sums: &mut [f32],
        scratch: &mut Scratch,
    ) {
        dots::sum::<Widened<f16>, Widening<f16>, I>(isa, problem, depth, first, sums, scratch);
    }
}

impl Factor for bf16 {
    fn solve_part(product: Product<'_, f32>) {
        match of_pairs() {
            #[cfg(target_arch = "x86_64")]
            Some(OfPairs::Amx) => solve_part_of_pairs::<amx::Amx>(product),
            #[cfg(target_arch = "x86_64")]
            Some(OfPairs::Avx512Bf16) => solve_part_of_pairs::<pairs::Sums>(product),
            _ => solve_part::<Widened<bf16>>(product),
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn pairs(vectors: Placed, size: [usize; 2], parallel: bool, memory: &mut Memory) -> &[[bf16; 2]] {
        tiles::pairs(vectors, size, parallel, memory)
    }

    #[inline(always)]
    fn add_dots<I: Isa>(
        isa: I,
        problem: &vector::Problem<'_, bf16>,
        depth: &Range<usize>,
        first: usize,
        sums: &mut [f32],
        scratch: &mut Scratch,
    ) {
        #[cfg(target_arch = "x86_64")]
        if problem.has_pairs() {
            return tiles::sum(isa, problem, depth, first, sums, scratch);
        } else if pairs::has_fast_avx512_bf16() {
            return dots::sum::<Pairs<pairs::Sums>, AsFactors, I>(isa, problem, depth, first, sums, scratch);
        }
        dots::sum::<Widened<bf16>, Widening<bf16>, I>(isa, problem, depth, first, sums, scratch);
    }
}

/// Instructions that multiply pairs of bfloat16.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OfPairs {
    Amx,
    Avx512Bf16,
}

/// Those of this CPU that are worth it.
pub fn of_pairs() -> Option<OfPairs> {
    #[cfg(target_arch = "x86_64")]
    if amx::is_usable() {
        return Some(OfPairs::Amx);
    } else if pairs::has_fast_avx512_bf16() {
        return Some(OfPairs::Avx512Bf16);
    }
    None
}

pub type Sum<S> = <<S as Scheme>::Memory as Float>::Real;

pub fn solve<T: Factor>(product: Product<'_, T::Real>, parallel: bool) {
    let product = if pays_transposed::<T>(&product) { product.transposed() } else { product };
    if !parallel {
        return T::solve_part(product);
    }
    let parts = Parts::of(product.m, product.n, product.k, costs::<T>(&product), parallel::threads());
    parallel::for_each(parts.count(), true, |i| {
        let (rows, columns) = parts.nth(product.m, product.n, i);
        T::solve_part(product.part(size_of::<T>(), rows, columns));
    });
}

/// Whether the transposed product, of the same sums, is done sooner: of a and b that follow columns. They need not be packed then, but
/// for rows that collide and the last columns, or rows of narrower elements are packed as they lie, if not for tiles of AVX-512. Tiles
/// are stored a column at a time, which is slower, so that the result has to be small.
fn pays_transposed<T: Factor>(product: &Product<'_, T::Real>) -> bool {
    let &Product { m, n, k, a, b, out, bias, gate, residual, .. } = product;
    let follows_columns = |x: Placed| x.row_stride == 1 && x.col_stride != 1;
    let is_packed_less = size_of::<T>() == size_of::<T::Real>() || !has_whole_groups();
    let is_plain = bias.is_none() && gate.is_none() && residual.is_none();
    let is_small = m * n <= (m + n).saturating_mul(k) / STORE && m * n * size_of::<T>() <= STORED;
    is_packed_less && is_plain && is_small && follows_columns(a) && follows_columns(b) && out.col_stride == 1
}

/// What rows of a and columns of b cost that a part packs, beside one another: rows that AMX reads where they lie, columns that
/// are copied on the way beside rows that are transposed, or both alike.
fn costs<T: Factor>(product: &Product<'_, T::Real>) -> [usize; 2] {
    let Product { a, b, .. } = product;
    if T::DTYPE == DType::BF16 && of_pairs() == Some(OfPairs::Amx) {
        let in_place = a.col_stride == 1 && !a.rows_collide(size_of::<T>());
        return if in_place { [1, 4] } else { [1, 1] };
    }
    if a.row_stride == 1 && b.col_stride == 1 { [2, 1] } else { [1, 1] }
}

fn solve_part<S: Scheme>(product: Product<'_, Sum<S>>) {
    scratch::with(|scratch| dispatch(Part::<S> { product, scratch }));
}

/// The same on a CPU with the instructions of `T`, all of which have AVX-512.
#[cfg(target_arch = "x86_64")]
fn solve_part_of_pairs<T: Tiles<Factor = [bf16; 2], Sum = f32>>(product: Product<'_, f32>) {
    // SAFETY: the caller has found `T`'s instructions, and AVX-512 with them.
    scratch::with(|scratch| unsafe { run_avx512(Part::<Pairs<T>> { product, scratch }) });
}

/// Bytes that a thread takes for a product of `Factor`s or sums of so many bytes, at most.
pub fn scratch_bytes(size: usize, m: usize, n: usize, k: usize, gated: bool) -> usize {
    let packed = (m.min(MOST[0]) + MAX_HEIGHT) * (k.min(DEPTH) + 16);
    let sums = usize::from(k > DEPTH) + usize::from(gated);
    let kept = sums * m.min(MOST_KEPT[0]) * n.min(MOST_KEPT[1]);
    size * (packed + kept) + 2 * block_bytes(MAX_HEIGHT)
}

/// A part of a product on one thread.
struct Part<'a, S: Scheme> {
    product: Product<'a, Sum<S>>,
    scratch: &'a mut Scratch,
}

impl<S: Scheme> Kernel for Part<'_, S> {
    type Output = ();

    #[inline(always)]
    fn run<I: Isa>(self, isa: I) {
        let Part { product, scratch } = self;
        let Product { m, n, k, gate, .. } = product;
        if !S::Tiles::<I>::ROWS_ALONG_K && small::is_small(m, n, k, gate.is_some()) {
            return Block::<S, I> { isa, product }.solve_small(scratch);
        }
        let keeps_sums = gate.is_some() || (k > DEPTH * S::DEPTH && !holds_sums::<S>(&product));
        let [most_rows, most_columns] = if keeps_sums { MOST_KEPT } else { MOST };
        for columns in even(n, most_columns) {
            for rows in even(m, most_rows) {
                let product = product.part(size_of::<S::Memory>(), rows, columns.clone());
                Block::<S, I> { isa, product }.solve(scratch);
            }
        }
    }
}

/// Whether the output can hold sums of some of k. The residual may be what it holds.
fn holds_sums<S: Scheme>(product: &Product<'_, Sum<S>>) -> bool {
    let Product { out, residual, .. } = product;
    let is_residual = residual.is_some_and(|residual| residual.address == out.address);
    S::Memory::DTYPE == <Sum<S>>::DTYPE && out.col_stride == 1 && !is_residual
}

/// Some rows and columns of a product.
pub struct Block<'a, S: Scheme, I> {
    pub isa: I,
    pub product: Product<'a, Sum<S>>,
}

/// What is known of sums when a tile is done.
#[derive(Clone, Copy)]
pub struct Progress {
    pub first: bool,
    pub last: bool,
    /// Where sums of earlier blocks of k lie, row by row.
    pub sums: Placed,
    /// Where the sums of the product with the gate lie, row by row.
    pub gates: Placed,
}

impl<S: Scheme, I: Isa> Block<'_, S, I> {
    #[inline(always)]
    fn solve(&self, scratch: &mut Scratch) {
        let Product { m, n, k, out, gate, .. } = self.product;
        // Of factors, as all that is named `deep`.
        let deep = k.div_ceil(S::DEPTH);
        let pieces = deep.div_ceil(DEPTH).max(1);
        let kept = |memory: &mut Memory| {
            let address = memory.room::<Sum<S>>(m * n).as_mut_ptr().expose_provenance();
            Placed { address, row_stride: n as i64, col_stride: 1 }
        };
        let sums = if pieces == 1 || holds_sums::<S>(&self.product) { out } else { kept(&mut scratch.sums) };
        let gates = if gate.is_some() { kept(&mut scratch.gates) } else { out };
        // The gate first, whose sums are kept as they are.
        for gating in [true, false] {
            let product = match gate {
                Some(gate) if gating => Product { b: gate.b, ..self.product },
                None if gating => continue,
                _ => self.product,
            };
            let block = Block::<S, I> { isa: self.isa, product };
            for piece in 0..pieces {
                let depth =
                    S::DEPTH * split(deep, pieces, piece)..k.min(S::DEPTH * split(deep, pieces, piece + 1));
                let (first, last) = (piece == 0, piece + 1 == pieces && !gating);
                let progress = Progress { first, last, sums: if gating { gates } else { sums }, gates };
                block.add_up(&depth, progress, scratch);
            }
        }
    }

    /// Adds the products of some of k to the sums.
    #[inline(always)]
    fn add_up(&self, depth: &Range<usize>, progress: Progress, scratch: &mut Scratch) {
        let Scratch { a: packed_rows, b: packed, tile, staging, .. } = scratch;
        let Product { m, n, a, b, out, bias, gate, residual, activation, .. } = self.product;
        let (height, width) = (S::Tiles::<I>::HEIGHT, S::Tiles::<I>::WIDTH);
        let (size, sum_size) = (size_of::<S::Memory>(), size_of::<Sum<S>>());
        let deep = depth.len().div_ceil(S::DEPTH);
        let is_plain = bias.is_none()
            && gate.is_none()
            && residual.is_none()
            && activation == Activation::None
            && out.col_stride == 1;
        let is_straight = !progress.last || (is_plain && S::Memory::DTYPE == <Sum<S>>::DTYPE);
        // Not where the only sums go to an output of narrower elements.
        let has_sums = !(progress.first && progress.last) || S::Memory::DTYPE == <Sum<S>>::DTYPE;
        let tile = tile.room::<Sum<S>>(height * width);
        let panel_len = deep * width;
        let wide = (block_bytes(height) / size_of::<S::Factor>() / panel_len.max(1)).clamp(1, 16) * width;
        // Elements that are factors are read where they lie; of those that are used once no copy is kept.
        let direct = size == size_of::<S::Factor>() && b.col_stride == 1;
        let row_bytes = (width * size_of::<S::Factor>()) as isize;
        let copy_step = if m <= height { 0 } else { row_bytes };
        let rows = self.rows(deep);
        let packed_rows = packed_rows.room::<S::Factor>(m.next_multiple_of(height) * rows.len);
        if !rows.in_place {
            self.pack_rows(&rows, depth, staging, packed_rows);
        }
        let panel_bytes = rows.len * height * size_of::<S::Factor>();
        // SAFETY: a proof that the CPU has the instructions is at hand; `end` follows below.
        unsafe { S::Tiles::<I>::begin() };
        for panels in even(n.div_ceil(width), wide / width) {
            let columns = panels.start * width..n.min(panels.end * width);
            let panels = columns.len().div_ceil(width);
            let packed = packed.room::<S::Factor>(panels * panel_len);
            // Panels of whole registers that can be read where they lie are, and copied on the way.
            let whole = match columns.len() % S::Tiles::<I>::LEN {
                _ if !direct => 0,
                0 => panels,
                _ => columns.len() / width,
            };
            let rest = columns.end.min(columns.start + whole * width)..columns.end;
            if !rest.is_empty() {
                let to = &mut packed[whole * panel_len..];
                pack::panels::<S, I>(self.isa, b, depth, &rest, width, staging, to);
            }
            // A packed panel of a is asked for a part with each tile of the one before.
            let part = panel_bytes.div_ceil(CACHE_LINE).div_ceil(panels);
            for top in (0..m).step_by(height) {
                // The last rows are done with those before them, as far as there are such.
                let (first, panel) = if rows.in_place {
                    let first = top.min(m - height);
                    (first, ptr::with_exposed_provenance(a.at(size, first, depth.start)))
                } else {
                    (top, packed_rows[top * rows.len..].as_ptr())
                };
                for (i, column) in columns.clone().step_by(width).enumerate() {
                    let copy = packed[i * panel_len..].as_mut_ptr();
                    let rows_done = top..m.min(first + height);
                    let columns_done = column..columns.end.min(column + width);
                    let whole_tile =
                        rows_done.len() == height && columns_done.len().is_multiple_of(S::Tiles::<I>::LEN);
                    let add = whole_tile && !progress.first;
                    let sums = progress.sums.at(sum_size, top, column);
                    let sums = ptr::with_exposed_provenance_mut(sums);
                    let sums_step = progress.sums.row_stride as isize * sum_size as isize;
                    // Sums that are as they are to be written need no tile.
                    let straight = whole_tile && is_straight;
                    let (to, to_step) = if straight {
                        (sums, sums_step)
                    } else {
                        (tile.as_mut_ptr(), (width * sum_size) as isize)
                    };
                    let mut operands = Operands {
                        a: panel,
                        a_steps: rows.steps,
                        b: copy,
                        b_step: row_bytes,
                        copy,
                        copy_step,
                        k: deep,
                        columns: columns_done.len(),
                        to,
                        to_step,
                        earlier: if add { sums } else { ptr::null() },
                        earlier_step: sums_step,
                        awaited: if has_sums { sums } else { to },
                        awaited_step: if has_sums { sums_step } else { to_step },
                        later: panel.wrapping_byte_add(panel_bytes + i * part * CACHE_LINE),
                    };
                    if top == 0 && i < whole {
                        operands.b = ptr::with_exposed_provenance(b.at(size, depth.start, column));
                        operands.b_step = b.row_stride as isize * size as isize;
                        // SAFETY: a proof that the CPU has the instructions is at hand; see above of what is read.
                        unsafe { S::Tiles::<I>::tile::<true>(operands) };
                    } else {
                        // SAFETY: as above.
                        unsafe { S::Tiles::<I>::tile::<false>(operands) };
                    }
                    if !straight {
                        let skip = top - first;
                        let tile = &mut tile[skip * width..(skip + rows_done.len()) * width];
                        let progress = Progress { first: progress.first || add, ..progress };
                        self.finish(progress, tile, rows_done, columns_done);
                    }
                }
            }
        }
        // SAFETY: as above, after `begin`.
        unsafe { S::Tiles::<I>::end() };
    }

    /// How tiles read rows of a: in place where the factors of a row follow one another there, else packed.
    #[inline(always)]
    fn rows(&self, deep: usize) -> Rows {
        let Product { m, k, a, .. } = self.product;
        let (height, size) = (S::Tiles::<I>::HEIGHT, size_of::<S::Factor>() as isize);
        let row_step = a.row_stride as isize * size_of::<S::Memory>() as isize;
        let is_factors =
            size_of::<S::Memory>() * S::DEPTH == size_of::<S::Factor>() && k.is_multiple_of(S::DEPTH);
        // Rows that collide leave no place to others.
        if is_factors && a.col_stride == 1 && m >= height && !a.rows_collide(size_of::<S::Memory>()) {
            return Rows { steps: [row_step, size], len: 0, in_place: true };
        }
        // Rows that are not as many as are transposed at a time are copied sooner as they are.
        if S::Tiles::<I>::ROWS_ALONG_K || (!a.runs_down() && !height.is_multiple_of(BLOCK)) {
            // A line more than a row keeps rows from sharing places.
            let len = deep.next_multiple_of(16) + 16;
            return Rows { steps: [len as isize * size, size], len, in_place: false };
        }
        Rows { steps: [size, height as isize * size], len: deep, in_place: false }
    }

    #[inline(always)]
    fn pack_rows(&self, rows: &Rows, depth: &Range<usize>, staging: &mut Staging, to: &mut [S::Factor]) {
        let (Product { m, a, .. }, isa) = (self.product, self.isa);
        if rows.len == depth.len().div_ceil(S::DEPTH) {
            pack::panels::<S, I>(isa, a.transposed(), depth, &(0..m), S::Tiles::<I>::HEIGHT, staging, to);
        } else if a.runs_down() {
            pack::transposed_rows::<S, I>(isa, a, &(0..m), depth, rows.len, staging, to);
        } else {
            pack::rows::<S, I>(isa, a, &(0..m), depth, rows.len, staging, to);
        }
    }

    /// Adds earlier sums to a tile of full width; then bias, activation and rounding if it is done, or else puts it where
    /// sums are.
    #[inline(always)]
    pub fn finish(&self, progress: Progress, tile: &mut [Sum<S>], rows: Range<usize>, columns: Range<usize>) {
        let width = S::Tiles::<I>::WIDTH;
        // With a length that is known moves are single instructions.
        if columns.len() == width {
            self.finish_columns(progress, tile, rows, columns.start, width);
        } else {
            self.finish_columns(progress, tile, rows, columns.start, columns.len());
        }
    }

    #[inline(always)]
    fn finish_columns(
        &self,
        progress: Progress,
        tile: &mut [Sum<S>],
        rows: Range<usize>,
        column: usize,
        count: usize,
    ) {
        let width = S::Tiles::<I>::WIDTH;
        let Product { out, bias, gate, residual, activation, .. } = self.product;
        let (size, sum_size) = (size_of::<S::Memory>(), size_of::<Sum<S>>());
        let sums = ptr::with_exposed_provenance_mut::<Sum<S>>(progress.sums.at(sum_size, rows.start, column));
        let sums_step = progress.sums.row_stride as isize;
        if !progress.first {
            for i in 0..rows.len() {
                // SAFETY: sums of the block, written for an earlier block of k.
                unsafe {
                    let sums = sums.wrapping_offset(i as isize * sums_step);
                    combine(&mut tile[i * width..][..count], With::Add, sums);
                };
            }
        }
        if !progress.last {
            for i in 0..rows.len() {
                // SAFETY: as above; each row of a tile is written by one thread.
                unsafe { copy_to(&tile[i * width..][..count], sums.wrapping_offset(i as isize * sums_step)) };
            }
            return;
        }
        if let Some(bias) = bias {
            let bias = &bias[column..][..count];
            for i in 0..rows.len() {
                // SAFETY: as many as the row has.
                unsafe { combine(&mut tile[i * width..][..count], With::Add, bias.as_ptr()) };
            }
        }
        match gate {
            None => epilogue::apply(self.isa, activation, None, tile),
            Some(Gate { bias, .. }) => {
                let bias = bias.map(|bias| &bias[column..][..count]);
                for i in 0..rows.len() {
                    let gates = progress.gates.at(sum_size, rows.start + i, column);
                    // SAFETY: sums of the block, in this thread's scratch memory, written before those of b.
                    let gates =
                        unsafe { slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(gates), count) };
                    epilogue::apply(self.isa, activation, bias, gates);
                    // SAFETY: as many as the row has.
                    unsafe { combine(&mut tile[i * width..][..count], With::Multiply, gates.as_ptr()) };
                }
            }
        }
        let is_sum = S::Memory::DTYPE == <Sum<S>>::DTYPE;
        if let Some(residual) = residual {
            let mut read = [S::Memory::default(); MAX_WIDTH];
            let mut wide = [Sum::<S>::default(); MAX_WIDTH];
            let (read, wide) = (&mut read[..count], &mut wide[..count]);
            for i in 0..rows.len() {
                let tile = &mut tile[i * width..][..count];
                let from = residual.at(size, rows.start + i, column);
                let from = ptr::with_exposed_provenance::<S::Memory>(from);
                // SAFETY: the residual broadcasts to the result's shape, and the caller keeps it alive; where it is the
                // result, this row of it has not been written yet. Elements that are added as they are have the type of
                // sums.
                unsafe {
                    match residual.col_stride as isize {
                        1 if is_sum => {
                            combine(tile, With::Add, from.cast());
                            continue;
                        }
                        1 => ptr::copy_nonoverlapping(
                            from.cast::<u8>(),
                            read.as_mut_ptr().cast(),
                            count * size,
                        ),
                        step => {
                            for (j, read) in read.iter_mut().enumerate() {
                                *read = from.wrapping_offset(j as isize * step).read_unaligned();
                            }
                        }
                    }
                }
                S::Memory::widen(self.isa, read, wide);
                // SAFETY: as many as the row has.
                unsafe { combine(tile, With::Add, wide.as_ptr()) };
            }
        }
        let first = ptr::with_exposed_provenance_mut::<S::Memory>(out.at(size, rows.start, column));
        if is_sum && out.row_stride == 1 && out.col_stride != 1 {
            for j in 0..count {
                let to = first.wrapping_offset(j as isize * out.col_stride as isize).cast::<Sum<S>>();
                for i in 0..rows.len() {
                    // SAFETY: as below.
                    unsafe { to.wrapping_add(i).write_unaligned(tile[i * width + j]) };
                }
            }
            return;
        }
        for i in 0..rows.len() {
            let tile = &tile[i * width..][..count];
            let to = first.wrapping_offset(i as isize * out.row_stride as isize);
            if is_sum && out.col_stride == 1 {
                // SAFETY: as below; elements are of the type of sums.
                unsafe { copy_to(tile, to.cast()) };
                continue;
            }
            let mut rounded = [S::Memory::default(); MAX_WIDTH];
            let rounded = &mut rounded[..count];
            S::Memory::narrow(self.isa, tile, rounded);
            // SAFETY: a problem's output is memory of the given shape that the caller keeps alive, and each row of a tile is
            // written by one thread.
            unsafe {
                if out.col_stride == 1 {
                    copy_to(rounded, to);
                } else {
                    for (j, &value) in rounded.iter().enumerate() {
                        to.wrapping_offset(j as isize * out.col_stride as isize).write_unaligned(value);
                    }
                }
            }
        }
    }
}

/// How a number is changed by another.
#[derive(Clone, Copy)]
enum With {
    Add,
    Multiply,
}

/// Changes a row by another, a group at a time: LLVM vectorises groups of values, which share no memory.
///
/// # Safety
/// `from` can be read, as many as `to` has.
#[inline(always)]
unsafe fn combine<R: Real>(to: &mut [R], with: With, from: *const R) {
    let (groups, rest) = to.as_chunks_mut::<LANES>();
    let whole = groups.len() * LANES;
    for (g, to) in groups.iter_mut().enumerate() {
        let mut group = *to;
        // SAFETY: the caller's promise; no alignment is assumed.
        let other = unsafe { from.wrapping_add(g * LANES).cast::<[R; LANES]>().read_unaligned() };
        for i in 0..LANES {
            group[i] = match with {
                With::Add => group[i] + other[i],
                With::Multiply => group[i] * other[i],
            };
        }
        *to = group;
    }
    for (i, to) in rest.iter_mut().enumerate() {
        // SAFETY: as above.
        let other = unsafe { from.wrapping_add(whole + i).read_unaligned() };
        *to = match with {
            With::Add => *to + other,
            With::Multiply => *to * other,
        };
    }
}

/// # Safety
/// `to` can be written, as many as `from` has.
#[inline(always)]
unsafe fn copy_to<T: Copy>(from: &[T], to: *mut T) {
    // SAFETY: the caller's promise; no alignment is assumed.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr().cast::<u8>(), to.cast(), size_of_val(from)) };
}

/// How tiles read rows of a.
#[derive(Clone, Copy)]
struct Rows {
    /// Bytes from a row to the next, and from a factor of a row to the next.
    steps: [isize; 2],
    /// Factors of a packed row, with what follows it: nothing in a panel.
    len: usize,
    in_place: bool,
}
