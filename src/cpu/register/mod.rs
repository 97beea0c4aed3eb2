//! Registers of numbers, for the loops whose sums have to stay in them; all other loops are left to LLVM.

// LLVM keeps arrays in registers where indices are plain.
#![allow(clippy::needless_range_loop)]

mod dots;
pub mod portable;
#[cfg(target_arch = "x86_64")]
pub mod x86;

pub use self::dots::{
    AsFactors, Dots, DotsOf, Load, MOST_ROWS, MOST_VECTORS, Widening, add_dots, add_dots_of, rows_at_once,
};
use half::{bf16, f16};

use super::isa::{CACHE_LINE, LANES};

/// Tiles of sums, and the instructions that compute them.
pub trait Tiles: 'static {
    /// What is multiplied: a number, or several along k.
    type Factor: Copy + Default + Send + Sync + 'static;
    type Sum: Copy + Default;

    /// Rows of a tile, at most [`MAX_HEIGHT`].
    const HEIGHT: usize;
    /// Columns of a tile, at most [`MAX_WIDTH`].
    const WIDTH: usize;
    /// A tile may be narrower by multiples of so many columns.
    const LEN: usize;
    /// Whether the factors of a row of a have to follow one another.
    const ROWS_ALONG_K: bool = false;

    /// Writes a block of [`BLOCK`] rows and columns with rows as columns. Steps from a row to the next are in factors.
    ///
    /// # Safety
    /// As of all functions here and of [`Register`]: the CPU has the instructions; pointers are good for what is read or
    /// written, of any alignment.
    #[inline(always)]
    unsafe fn transpose(from: *const Self::Factor, from_step: usize, to: *mut Self::Factor, to_step: usize) {
        for i in 0..BLOCK {
            for j in 0..BLOCK {
                // SAFETY: the caller's promise.
                unsafe {
                    to.add(i * to_step + j).write_unaligned(from.add(j * from_step + i).read_unaligned())
                };
            }
        }
    }

    /// What a thread does before its first tile and after its last: a state of the processor's that tiles need.
    ///
    /// # Safety
    /// As of all functions here; each `begin` is followed by an `end` on the same thread.
    #[inline(always)]
    unsafe fn begin() {}
    /// # Safety
    /// As of `begin`.
    #[inline(always)]
    unsafe fn end() {}

    /// What [`multiply`] says, with `HEIGHT` rows.
    ///
    /// # Safety
    /// As of `multiply`, with the registers that the columns take.
    unsafe fn tile<const KEEP: bool>(operands: Operands<Self::Factor, Self::Sum>);
}

pub const MAX_HEIGHT: usize = 32;
pub const MAX_WIDTH: usize = 48;

/// A register of `LEN` sums, and the instructions that add products to it. The sums of a tile's row take a few, and a tile
/// leaves some free.
pub trait Register: Tiles + Copy {
    /// A register of factors.
    type Operand: Copy;
    /// Whether a tile asks for rows of a copy of b before it loads them.
    const ASKS_AHEAD: bool;
    /// Rows that are multiplied with three vectors or more at a time: 2 or 4, as many as have their sums in registers.
    const ROWS: usize;

    /// # Safety
    /// As of all functions here.
    unsafe fn zero() -> Self;
    /// # Safety
    /// As of `zero`.
    unsafe fn load(from: *const Self::Factor) -> Self::Operand;
    /// So many bytes of factors, and zeros.
    ///
    /// # Safety
    /// As of `zero`.
    unsafe fn load_rest(from: *const Self::Factor, bytes: usize) -> Self::Operand;
    /// # Safety
    /// As of `zero`.
    unsafe fn keep(factors: Self::Operand, to: *mut Self::Factor);
    /// A register of a row's factor, the one `AT` factors from where `rows` are.
    ///
    /// # Safety
    /// As of `zero`.
    unsafe fn of_row<const ROW: usize, const AT: usize>(rows: &RowPointers<Self::Factor>) -> Self::Operand;
    /// A register of a row's factor, the one `AT` steps from where a panel of `H` rows is.
    ///
    /// # Safety
    /// As of `zero`.
    unsafe fn of_panel<const H: usize, const ROW: usize, const AT: usize>(
        panel: *const Self::Factor,
    ) -> Self::Operand;
    /// # Safety
    /// As of `zero`.
    unsafe fn add_product(self, x: Self::Operand, y: Self::Operand) -> Self;
    /// # Safety
    /// As of `zero`.
    unsafe fn add(self, sums: *const Self::Sum) -> Self;
    /// # Safety
    /// As of `zero`.
    unsafe fn store(self, to: *mut Self::Sum);
    /// [`add_dots`] of `V` vectors.
    ///
    /// # Safety
    /// As there.
    unsafe fn add_dots<L: Load<Self>, const V: usize>(dots: &DotsOf<Self, L>);
}

/// A register of float32, which can be loaded from elements of two bytes.
pub trait FromTwoBytes: Register<Factor = f32, Sum = f32> {
    /// # Safety
    /// As of [`Register::load`].
    unsafe fn load_f16(from: *const f16) -> Self::Operand;
    /// # Safety
    /// As of `load_f16`.
    unsafe fn load_bf16(from: *const bf16) -> Self::Operand;
    /// So many bytes of elements, and zeros.
    ///
    /// # Safety
    /// As of `load_f16`.
    #[inline(always)]
    unsafe fn rest_of_two_bytes<T: Copy + Default>(from: *const T, bytes: usize) -> [T; LANES] {
        // SAFETY: the caller's promise.
        unsafe { copied(from, bytes) }
    }
}

/// The first elements of a register, and zeros.
///
/// # Safety
/// So many bytes may be read, no more than `LANES` elements have.
#[inline(always)]
unsafe fn copied<T: Copy + Default>(from: *const T, bytes: usize) -> [T; LANES] {
    let mut elements = [T::default(); LANES];
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), elements.as_mut_ptr().cast(), bytes) };
    elements
}

/// Where rows of factors are: an instruction adds up to three steps to an address.
#[derive(Clone, Copy, Debug)]
pub struct RowPointers<F> {
    /// Every fourth row.
    pub fours: [*const F; MAX_HEIGHT_IN_REGISTERS.div_ceil(4)],
    /// Bytes from a row to the next, and three times as many.
    pub step: isize,
    pub three_steps: isize,
}

impl<F> RowPointers<F> {
    #[inline(always)]
    fn new(first: *const F, step: isize) -> RowPointers<F> {
        let fours = [first, first.wrapping_byte_offset(4 * step)];
        RowPointers { fours, step, three_steps: 3 * step }
    }

    #[inline(always)]
    fn advance(&mut self, bytes: isize) {
        for i in 0..self.fours.len() {
            self.fours[i] = self.fours[i].wrapping_byte_offset(bytes);
        }
    }
}

/// Rows of a tile of registers, at most.
const MAX_HEIGHT_IN_REGISTERS: usize = 8;

/// Rows and columns that are transposed at a time.
pub const BLOCK: usize = 8;

/// Where the factors of a tile lie, and where sums go; steps are in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Operands<F, R> {
    pub a: *const F,
    /// From a row to the next, and from a factor of a row to the next: one of them is a factor's size, and a panel of columns is
    /// as high as a tile.
    pub a_steps: [isize; 2],
    pub b: *const F,
    /// From a row to the next, each of `WIDTH` neighbours.
    pub b_step: isize,
    /// Where a copy of b is to lie, and from a row of it to the next: 0 where nobody wants it, so that each takes the place of
    /// the one before.
    pub copy: *mut F,
    pub copy_step: isize,
    pub k: usize,
    /// At most `WIDTH`: sums are computed of as many whole multiples of `LEN` as they take.
    pub columns: usize,
    pub to: *mut R,
    pub to_step: isize,
    /// Sums that are added to these, or null.
    pub earlier: *const R,
    pub earlier_step: isize,
    /// What is read or written when the products are done, a row for each of the tile's: it is asked for meanwhile.
    pub awaited: *const R,
    pub awaited_step: isize,
    /// Factors that later tiles read: asked for afterwards, a cache line with every four steps.
    pub later: *const F,
}

/// sums = a @ b, row by row, summed in order of k; and, where wanted, a copy of b, which costs nothing among the products.
///
/// # Safety
/// The CPU has the register's instructions; `H` rows and `k` columns of a, and `k` rows of `N` registers of b, may be read, as
/// many sums and, if `KEEP`, factors be written.
#[inline(always)]
pub unsafe fn multiply<V: Register, const H: usize, const N: usize, const KEEP: bool>(
    operands: &Operands<V::Factor, V::Sum>,
) {
    let Operands { a, a_steps: [row, step], k, to, to_step, earlier, earlier_step, .. } = *operands;
    let Operands { mut b, mut copy, copy_step, awaited, awaited_step, later, .. } = *operands;
    let one = size_of::<V::Factor>() as isize;
    let b_step = if KEEP { operands.b_step } else { V::WIDTH as isize * one };
    // SAFETY: the caller's promise; pointers step beyond the end, but are not read there.
    unsafe {
        let mut sums = [[V::zero(); N]; H];
        macro_rules! add_rows {
            ($factor:ident $at:literal, $b:ident: $($row:literal)*) => {$(
                let x = $factor!($row, $at);
                for j in 0..N {
                    sums[$row][j] = sums[$row][j].add_product(x, $b[j]);
                }
            )*};
        }
        // Of the step `$at` steps after where a's pointers are.
        macro_rules! add_step {
            ($factor:ident $at:literal) => {{
                let mut factors = [V::load(b); N];
                for j in 1..N {
                    factors[j] = V::load(b.wrapping_add(j * V::LEN));
                }
                let lines = (N * V::LEN * size_of::<V::Factor>()).div_ceil(CACHE_LINE);
                if KEEP {
                    let ahead = b.wrapping_byte_offset(AHEAD_IN_MEMORY * b_step);
                    for line in 0..lines {
                        prefetch_second_level(ahead.wrapping_byte_add(line * CACHE_LINE));
                    }
                    for j in 0..N {
                        V::keep(factors[j], copy.wrapping_add(j * V::LEN));
                    }
                    copy = copy.wrapping_byte_offset(copy_step);
                } else if V::ASKS_AHEAD {
                    let ahead = b.wrapping_byte_offset(AHEAD * b_step);
                    for line in 0..lines {
                        prefetch(ahead.wrapping_byte_add(line * CACHE_LINE));
                    }
                }
                add_rows!($factor $at, factors: 0 1 2 3 4 5);
                if H > 6 {
                    add_rows!($factor $at, factors: 6 7);
                }
                b = b.wrapping_byte_offset(b_step);
            }};
        }
        let (mut wanted, mut wanted_step) = (awaited.cast::<u8>(), awaited_step);
        let mut rows_to_come = H;
        // Four steps a turn, as counters and pointers take the place of products.
        macro_rules! add_steps {
            ($factor:ident, $advance:ident) => {
                for _ in 0..k / 4 {
                    add_step!($factor 0);
                    add_step!($factor 1);
                    add_step!($factor 2);
                    add_step!($factor 3);
                    $advance!(4);
                    // Few lines at a time, or loads would wait for them. And no jump, which may lie across 32 bytes of code:
                    // Intel's CPUs from Skylake to Cascade Lake decode all that follows such a jump anew each time.
                    for line in 0..(N * V::LEN * size_of::<V::Sum>()).div_ceil(CACHE_LINE) {
                        prefetch(wanted.wrapping_add(line * CACHE_LINE));
                    }
                    rows_to_come = rows_to_come.wrapping_sub(1);
                    let next = wanted.wrapping_offset(wanted_step);
                    wanted = std::hint::select_unpredictable(rows_to_come == 0, later.cast(), next);
                    wanted_step = std::hint::select_unpredictable(rows_to_come == 0, CACHE_LINE as isize, wanted_step);
                }
                for _ in 0..k % 4 {
                    add_step!($factor 0);
                    $advance!(1);
                }
            };
        }
        // Rows along k, or columns of a panel. Offsets that are known become part of the instructions.
        if step == one {
            let mut rows = RowPointers::new(a, row);
            macro_rules! of_row {
                ($row:literal, $at:literal) => {
                    V::of_row::<$row, $at>(&rows)
                };
            }
            macro_rules! advance {
                ($steps:literal) => {
                    rows.advance($steps * one)
                };
            }
            add_steps!(of_row, advance);
        } else {
            debug_assert!(row == one && step == H as isize * one);
            let mut panel = a;
            macro_rules! of_panel {
                ($row:literal, $at:literal) => {
                    V::of_panel::<H, $row, $at>(panel)
                };
            }
            macro_rules! advance {
                ($steps:literal) => {
                    panel = panel.wrapping_add($steps * H)
                };
            }
            add_steps!(of_panel, advance);
        }
        if !earlier.is_null() {
            for i in 0..H {
                let earlier = earlier.wrapping_byte_offset(i as isize * earlier_step);
                for j in 0..N {
                    sums[i][j] = sums[i][j].add(earlier.wrapping_add(j * V::LEN));
                }
            }
        }
        for i in 0..H {
            let to = to.wrapping_byte_offset(i as isize * to_step);
            for j in 0..N {
                sums[i][j].store(to.wrapping_add(j * V::LEN));
            }
        }
    }
}

/// Rows of b that are asked for ahead: of a copy, which the second-level cache has, and of those that lie in pages of their own,
/// where the processor does not look ahead. The latter may all have the same place in the first-level cache.
const AHEAD: isize = 8;
const AHEAD_IN_MEMORY: isize = 32;

/// Asks for a cache line.
#[inline(always)]
pub fn prefetch<T>(line: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 has the instruction, which reads nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// The same for the second-level cache.
#[inline(always)]
fn prefetch_second_level<T>(line: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: as of `prefetch`.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
