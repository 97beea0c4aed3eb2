//! Registers of numbers, for the loops whose sums have to stay in them; all other loops are left to LLVM.

// LLVM keeps arrays in registers where indices are plain.
#![allow(clippy::needless_range_loop)]

use super::isa::CACHE_LINE;

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

    /// # Safety
    /// As of all functions here.
    unsafe fn zero() -> Self;
    /// # Safety
    /// As of `zero`.
    unsafe fn load(from: *const Self::Factor) -> Self::Operand;
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
    /// Where a copy of b is to lie, row after row.
    pub copy: *mut F,
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
    let Operands { mut b, mut copy, awaited, awaited_step, later, .. } = *operands;
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
                if KEEP || V::ASKS_AHEAD {
                    let ahead = b.wrapping_byte_offset(if KEEP { AHEAD_IN_MEMORY } else { AHEAD } * b_step);
                    for line in 0..(N * V::LEN * size_of::<V::Factor>()).div_ceil(CACHE_LINE) {
                        prefetch(ahead.wrapping_byte_add(line * CACHE_LINE));
                    }
                }
                if KEEP {
                    for j in 0..N {
                        V::keep(factors[j], copy.wrapping_add(j * V::LEN));
                    }
                    copy = copy.wrapping_add(V::WIDTH);
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
/// where the processor does not look ahead.
const AHEAD: isize = 8;
const AHEAD_IN_MEMORY: isize = 16;

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

/// A register whose factors are numbers as its sums are.
#[cfg(target_arch = "x86_64")]
macro_rules! register {
    (
        $register:ty: $number:ty, $len:literal, $height:literal rows of $registers:literal, asks ahead: $asks_ahead:literal,
        $zero:ident, $load:ident, $store:ident, $add:ident, $instructions:ident, $transpose:path, $features:literal
    ) => {
        impl Register for $register {
            type Operand = Self;
            const ASKS_AHEAD: bool = $asks_ahead;

            // SAFETY, of all: the caller's promise.
            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: as above.
                unsafe { $zero() }
            }
            #[inline(always)]
            unsafe fn load(from: *const $number) -> Self {
                // SAFETY: as above.
                unsafe { $load(from) }
            }
            #[inline(always)]
            unsafe fn keep(factors: Self, to: *mut $number) {
                // SAFETY: as above.
                unsafe { $store(to, factors) }
            }
            #[inline(always)]
            unsafe fn of_row<const ROW: usize, const AT: usize>(rows: &RowPointers<$number>) -> Self {
                // SAFETY: as above.
                unsafe { $instructions::of_row::<ROW, AT>(rows) }
            }
            #[inline(always)]
            unsafe fn of_panel<const H: usize, const ROW: usize, const AT: usize>(
                panel: *const $number,
            ) -> Self {
                // SAFETY: as above.
                unsafe { $instructions::of_panel::<H, ROW, AT>(panel) }
            }
            #[inline(always)]
            unsafe fn add_product(self, x: Self, y: Self) -> Self {
                // SAFETY: as above.
                unsafe { $instructions::add_product(self, x, y) }
            }
            #[inline(always)]
            unsafe fn add(self, sums: *const $number) -> Self {
                // SAFETY: as above.
                unsafe { $add(self, $load(sums)) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $number) {
                // SAFETY: as above.
                unsafe { $store(to, self) }
            }
        }

        impl Tiles for $register {
            type Factor = $number;
            type Sum = $number;
            const HEIGHT: usize = $height;
            const WIDTH: usize = $registers * $len;
            const LEN: usize = $len;

            #[inline(always)]
            unsafe fn transpose(from: *const $number, from_step: usize, to: *mut $number, to_step: usize) {
                // SAFETY: as above.
                unsafe { $transpose(from, from_step, to, to_step) }
            }
            #[inline(always)]
            unsafe fn tile<const KEEP: bool>(operands: Operands<$number, $number>) {
                // A function of its own: where the loop is one of many in a function, LLVM keeps sums in memory.
                #[target_feature(enable = $features)]
                #[inline(never)]
                unsafe fn tile<const N: usize, const KEEP: bool>(operands: &Operands<$number, $number>) {
                    // SAFETY: as above.
                    unsafe { multiply::<$register, $height, N, KEEP>(operands) }
                }
                // SAFETY: as above.
                unsafe {
                    match operands.columns.div_ceil($len) {
                        1 => tile::<1, KEEP>(&operands),
                        2 => tile::<2, KEEP>(&operands),
                        _ => tile::<$registers, KEEP>(&operands),
                    }
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
pub mod x86 {
    use std::arch::x86_64::*;

    use super::{Operands, Register, RowPointers, Tiles, multiply};

    register!(__m256: f32, 8, 6 rows of 2, asks ahead: true, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_storeu_ps,
        _mm256_add_ps, of_8_f32, transpose_4, "avx2,fma");
    register!(__m256d: f64, 4, 6 rows of 2, asks ahead: true, _mm256_setzero_pd, _mm256_loadu_pd, _mm256_storeu_pd,
        _mm256_add_pd, of_4_f64, transpose_8, "avx2,fma");
    register!(__m512: f32, 16, 8 rows of 3, asks ahead: false, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_storeu_ps,
        _mm512_add_ps, of_16_f32, transpose_4, "avx512f");
    register!(__m512d: f64, 8, 8 rows of 3, asks ahead: false, _mm512_setzero_pd, _mm512_loadu_pd, _mm512_storeu_pd,
        _mm512_add_pd, of_8_f64, transpose_8, "avx512f");

    /// [`Register`]'s instructions among products in assembly, whose order stays as it is: of intrinsics LLVM loads many
    /// factors at once, and keeps sums in memory for want of registers.
    macro_rules! instructions {
        (
            $name:ident: $register:ty, $operand:ty, $factor:ty, $class:ident, $broadcast:literal, $memory:literal,
            $multiply:literal, $features:literal
        ) => {
            pub mod $name {
                use std::arch::asm;

                #[allow(clippy::wildcard_imports, reason = "of whatever types the macro is given")]
                use super::*;

                /// # Safety
                /// As of [`Register::of_row`].
                #[target_feature(enable = $features)]
                #[inline]
                pub unsafe fn of_row<const ROW: usize, const AT: usize>(rows: &RowPointers<$factor>) -> $operand {
                    // Where `$steps` names no operand, a comment does.
                    macro_rules! load {
                        ($steps:literal, $step:expr) => {{
                            // Not `_`, which LLVM may take for a byte: whether it then assembles depends on what is inlined.
                            let factor: $operand;
                            // SAFETY: the caller's promise.
                            unsafe {
                                asm!(
                                    concat!($broadcast, " {x}, ", $memory, " ptr [{a}", $steps, " + {at}] // {step}"),
                                    a = in(reg) rows.fours[ROW / 4],
                                    step = in(reg) $step,
                                    at = const AT * size_of::<$factor>(),
                                    x = out($class) factor,
                                    options(nostack, readonly, preserves_flags),
                                )
                            }
                            factor
                        }};
                    }
                    match ROW % 4 {
                        0 => load!("", rows.step),
                        1 => load!(" + {step}", rows.step),
                        2 => load!(" + 2 * {step}", rows.step),
                        _ => load!(" + {step}", rows.three_steps),
                    }
                }

                /// # Safety
                /// As of [`Register::of_panel`].
                #[target_feature(enable = $features)]
                #[inline]
                pub unsafe fn of_panel<const H: usize, const ROW: usize, const AT: usize>(
                    panel: *const $factor,
                ) -> $operand {
                    let factor: $operand;
                    // SAFETY: the caller's promise.
                    unsafe {
                        asm!(
                            concat!($broadcast, " {x}, ", $memory, " ptr [{a} + {at}]"),
                            a = in(reg) panel,
                            at = const (AT * H + ROW) * size_of::<$factor>(),
                            x = out($class) factor,
                            options(nostack, readonly, preserves_flags),
                        )
                    }
                    factor
                }

                /// # Safety
                /// As of [`Register::add_product`].
                #[target_feature(enable = $features)]
                #[inline]
                pub unsafe fn add_product(mut sums: $register, x: $operand, y: $operand) -> $register {
                    // SAFETY: the caller's promise.
                    unsafe {
                        asm!(
                            concat!($multiply, " {sums}, {x}, {y}"),
                            sums = inout($class) sums,
                            x = in($class) x,
                            y = in($class) y,
                            options(nostack, nomem, preserves_flags),
                        )
                    }
                    sums
                }
            }
        };
    }
    pub(crate) use instructions;

    instructions!(of_8_f32: __m256, __m256, f32, ymm_reg, "vbroadcastss", "dword", "vfmadd231ps", "avx2,fma");
    instructions!(of_4_f64: __m256d, __m256d, f64, ymm_reg, "vbroadcastsd", "qword", "vfmadd231pd", "avx2,fma");
    instructions!(of_16_f32: __m512, __m512, f32, zmm_reg, "vbroadcastss", "dword", "vfmadd231ps", "avx512f");
    instructions!(of_8_f64: __m512d, __m512d, f64, zmm_reg, "vbroadcastsd", "qword", "vfmadd231pd", "avx512f");

    /// [`Tiles::transpose`] of elements of two bytes.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn transpose_2(from: *const u16, from_step: usize, to: *mut u16, to_step: usize) {
        // SAFETY: the caller's promise; every x86-64 has the instructions; eight elements are a register.
        unsafe {
            let mut rows = [_mm_setzero_si128(); 8];
            for i in 0..8 {
                rows[i] = _mm_loadu_si128(from.wrapping_add(i * from_step).cast());
            }
            let mut pairs = rows;
            for i in 0..4 {
                pairs[i] = _mm_unpacklo_epi16(rows[2 * i], rows[2 * i + 1]);
                pairs[4 + i] = _mm_unpackhi_epi16(rows[2 * i], rows[2 * i + 1]);
            }
            let mut fours = rows;
            for i in 0..4 {
                let (low, high) = (pairs[2 * i], pairs[2 * i + 1]);
                fours[4 * (i / 2) + i % 2] = _mm_unpacklo_epi32(low, high);
                fours[4 * (i / 2) + 2 + i % 2] = _mm_unpackhi_epi32(low, high);
            }
            for i in 0..4 {
                let (low, high) = (fours[2 * i], fours[2 * i + 1]);
                _mm_storeu_si128(to.wrapping_add(2 * i * to_step).cast(), _mm_unpacklo_epi64(low, high));
                _mm_storeu_si128(
                    to.wrapping_add((2 * i + 1) * to_step).cast(),
                    _mm_unpackhi_epi64(low, high),
                );
            }
        }
    }

    /// [`Tiles::transpose`] of elements of four bytes.
    ///
    /// # Safety
    /// As there; the CPU has AVX.
    #[inline(always)]
    pub unsafe fn transpose_4<F>(from: *const F, from_step: usize, to: *mut F, to_step: usize) {
        const { assert!(size_of::<F>() == 4) };
        // SAFETY: the caller's promise; eight elements are a register.
        unsafe {
            let mut rows = [_mm256_setzero_ps(); 8];
            for i in 0..8 {
                rows[i] = _mm256_loadu_ps(from.wrapping_add(i * from_step).cast());
            }
            let mut pairs = rows;
            for i in 0..4 {
                pairs[2 * i] = _mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
                pairs[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
            }
            let mut fours = rows;
            for i in 0..2 {
                for j in 0..2 {
                    let (low, high) = (pairs[4 * i + j], pairs[4 * i + 2 + j]);
                    fours[4 * i + 2 * j] = _mm256_shuffle_ps::<0x44>(low, high);
                    fours[4 * i + 2 * j + 1] = _mm256_shuffle_ps::<0xee>(low, high);
                }
            }
            for i in 0..4 {
                let (low, high) = (fours[i], fours[4 + i]);
                let halves =
                    [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)];
                for (j, half) in halves.into_iter().enumerate() {
                    _mm256_storeu_ps(to.wrapping_add((4 * j + i) * to_step).cast(), half);
                }
            }
        }
    }

    /// [`Tiles::transpose`] of elements of eight bytes.
    ///
    /// # Safety
    /// As there; the CPU has AVX.
    #[inline(always)]
    unsafe fn transpose_8(from: *const f64, from_step: usize, to: *mut f64, to_step: usize) {
        // SAFETY: the caller's promise; four elements are a register.
        unsafe {
            for (row, column) in [(0, 0), (0, 4), (4, 0), (4, 4)] {
                let load = |i: usize| _mm256_loadu_pd(from.wrapping_add((row + i) * from_step + column));
                let rows = [load(0), load(1), load(2), load(3)];
                let low = [_mm256_unpacklo_pd(rows[0], rows[1]), _mm256_unpackhi_pd(rows[0], rows[1])];
                let high = [_mm256_unpacklo_pd(rows[2], rows[3]), _mm256_unpackhi_pd(rows[2], rows[3])];
                for i in 0..2 {
                    let to = to.wrapping_add((column + i) * to_step + row);
                    _mm256_storeu_pd(to, _mm256_permute2f128_pd::<0x20>(low[i], high[i]));
                    _mm256_storeu_pd(
                        to.wrapping_add(2 * to_step),
                        _mm256_permute2f128_pd::<0x31>(low[i], high[i]),
                    );
                }
            }
        }
    }
}

/// As many numbers as LLVM is to keep in registers of its own choice.
macro_rules! array {
    ($number:ty, $len:expr) => {
        impl Register for [$number; $len] {
            type Operand = Self;
            const ASKS_AHEAD: bool = true;

            #[inline(always)]
            unsafe fn zero() -> Self {
                [0.0; $len]
            }
            #[inline(always)]
            unsafe fn load(from: *const $number) -> Self {
                // SAFETY: the caller's promise.
                unsafe { from.cast::<Self>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn keep(factors: Self, to: *mut $number) {
                // SAFETY: the caller's promise.
                unsafe { to.cast::<Self>().write_unaligned(factors) }
            }
            #[inline(always)]
            unsafe fn of_row<const ROW: usize, const AT: usize>(rows: &RowPointers<$number>) -> Self {
                let row = rows.fours[ROW / 4].wrapping_byte_offset((ROW % 4) as isize * rows.step);
                // SAFETY: the caller's promise.
                [unsafe { row.wrapping_add(AT).read_unaligned() }; $len]
            }
            #[inline(always)]
            unsafe fn of_panel<const H: usize, const ROW: usize, const AT: usize>(
                panel: *const $number,
            ) -> Self {
                // SAFETY: the caller's promise.
                [unsafe { panel.wrapping_add(AT * H + ROW).read_unaligned() }; $len]
            }
            #[inline(always)]
            unsafe fn add_product(mut self, x: Self, y: Self) -> Self {
                for i in 0..$len {
                    // A fused one would be a library call elsewhere.
                    self[i] = if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
                        x[i].mul_add(y[i], self[i])
                    } else {
                        x[i] * y[i] + self[i]
                    };
                }
                self
            }
            #[inline(always)]
            unsafe fn add(mut self, sums: *const $number) -> Self {
                // SAFETY: the caller's promise.
                let sums = unsafe { sums.cast::<Self>().read_unaligned() };
                for i in 0..$len {
                    self[i] += sums[i];
                }
                self
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $number) {
                // SAFETY: the caller's promise.
                unsafe { to.cast::<Self>().write_unaligned(self) }
            }
        }

        impl Tiles for [$number; $len] {
            type Factor = $number;
            type Sum = $number;
            const HEIGHT: usize = 6;
            const WIDTH: usize = 2 * $len;
            const LEN: usize = $len;

            #[inline(always)]
            unsafe fn tile<const KEEP: bool>(operands: Operands<$number, $number>) {
                // SAFETY: the caller's promise.
                unsafe {
                    match operands.columns.div_ceil($len) {
                        1 => multiply::<Self, 6, 1, KEEP>(&operands),
                        _ => multiply::<Self, 6, 2, KEEP>(&operands),
                    }
                }
            }
        }
    };
}

/// Registers of 16 bytes that are worked on as one: NEON has twice as many as SSE.
pub const WIDE: usize = if cfg!(target_arch = "aarch64") { 2 } else { 1 };

array!(f32, 4 * WIDE);
array!(f64, 2 * WIDE);
