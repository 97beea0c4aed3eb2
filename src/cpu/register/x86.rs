//! Registers of x86-64: AVX2 and AVX-512.

#![allow(clippy::needless_range_loop)]

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{DotsOf, FromTwoBytes, Load, Operands, Register, RowPointers, Tiles, add_dots_of, multiply};
use crate::cpu::isa::LANES;

/// A register whose factors are numbers as its sums are.
macro_rules! register {
    (
        $register:ty: $number:ty, $len:literal, $height:literal rows of $registers:literal, asks ahead: $asks_ahead:literal,
        $rows:literal rows of vectors,
        $zero:ident, $load:ident, $load_rest:ident, $store:ident, $add:ident, $instructions:ident, $transpose:path, $features:literal
    ) => {
        impl Register for $register {
            type Operand = Self;
            const ASKS_AHEAD: bool = $asks_ahead;
            const ROWS: usize = $rows;

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
            unsafe fn load_rest(from: *const $number, bytes: usize) -> Self {
                // SAFETY: as above.
                unsafe { $load_rest(from, bytes) }
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
            #[inline(always)]
            unsafe fn add_dots<L: Load<Self>, const V: usize>(dots: &DotsOf<Self, L>) {
                // A function of its own, as tiles are.
                #[target_feature(enable = $features)]
                #[inline(never)]
                unsafe fn add_dots<L: Load<$register>, const V: usize>(dots: &DotsOf<$register, L>) {
                    // SAFETY: as above.
                    unsafe { add_dots_of::<$register, L, V>(dots) }
                }
                // SAFETY: as above.
                unsafe { add_dots::<L, V>(dots) }
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

register!(__m256: f32, 8, 6 rows of 2, asks ahead: true, 2 rows of vectors,
    _mm256_setzero_ps, _mm256_loadu_ps, rest_of_8_f32, _mm256_storeu_ps,
    _mm256_add_ps, of_8_f32, transpose_4, "avx2,fma,f16c");
register!(__m256d: f64, 4, 6 rows of 2, asks ahead: true, 2 rows of vectors,
    _mm256_setzero_pd, _mm256_loadu_pd, rest_of_4_f64, _mm256_storeu_pd,
    _mm256_add_pd, of_4_f64, transpose_8, "avx2,fma,f16c");
register!(__m512: f32, 16, 8 rows of 3, asks ahead: false, 4 rows of vectors,
    _mm512_setzero_ps, _mm512_loadu_ps, rest_of_16_f32, _mm512_storeu_ps,
    _mm512_add_ps, of_16_f32, transpose_4, "avx512f,avx512bw,avx512vl");
register!(__m512d: f64, 8, 8 rows of 3, asks ahead: false, 4 rows of vectors,
    _mm512_setzero_pd, _mm512_loadu_pd, rest_of_8_f64, _mm512_storeu_pd,
    _mm512_add_pd, of_8_f64, transpose_8, "avx512f,avx512bw,avx512vl");

/// # Safety
/// As of [`Register::load_rest`].
#[inline(always)]
unsafe fn rest_of_8_f32(from: *const f32, bytes: usize) -> __m256 {
    // SAFETY: the caller's promise; what is masked is not read.
    unsafe { _mm256_maskload_ps(from, mask(bytes)) }
}

/// # Safety
/// As of [`Register::load_rest`].
#[inline(always)]
unsafe fn rest_of_4_f64(from: *const f64, bytes: usize) -> __m256d {
    // SAFETY: the caller's promise; what is masked is not read.
    unsafe { _mm256_maskload_pd(from, mask(bytes)) }
}

/// Ones in so many bytes.
///
/// # Safety
/// The CPU has AVX, and a register has so many bytes.
#[inline(always)]
unsafe fn mask(bytes: usize) -> __m256i {
    static ONES_AND_ZEROS: [u64; 8] = [!0, !0, !0, !0, 0, 0, 0, 0];
    let ones = ONES_AND_ZEROS.as_ptr().wrapping_byte_add(32 - bytes);
    // SAFETY: a register from there on lies within the array.
    unsafe { _mm256_loadu_si256(ones.cast()) }
}

/// # Safety
/// As of [`Register::load_rest`].
#[inline(always)]
unsafe fn rest_of_16_f32(from: *const f32, bytes: usize) -> __m512 {
    // SAFETY: the caller's promise; what is masked is not read.
    unsafe { _mm512_maskz_loadu_ps(((1_u32 << (bytes / 4)) - 1) as u16, from) }
}

/// # Safety
/// As of [`Register::load_rest`].
#[inline(always)]
unsafe fn rest_of_8_f64(from: *const f64, bytes: usize) -> __m512d {
    // SAFETY: as of `rest_of_16_f32`.
    unsafe { _mm512_maskz_loadu_pd(((1_u32 << (bytes / 8)) - 1) as u8, from) }
}

impl FromTwoBytes for __m256 {
    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> __m256 {
        // SAFETY: the caller's promise.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
}

impl FromTwoBytes for __m512 {
    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> __m512 {
        // SAFETY: the caller's promise.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn rest_of_two_bytes<T: Copy + Default>(from: *const T, bytes: usize) -> [T; LANES] {
        const { assert!(size_of::<T>() == 2) };
        // SAFETY: the caller's promise; what is masked is not read, and any bits are a number of two bytes.
        unsafe {
            let rest = _mm256_maskz_loadu_epi16(((1_u32 << (bytes / 2)) - 1) as u16, from.cast());
            std::mem::transmute_copy::<__m256i, [T; LANES]>(&rest)
        }
    }
}

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

instructions!(of_8_f32: __m256, __m256, f32, ymm_reg, "vbroadcastss", "dword", "vfmadd231ps", "avx2,fma,f16c");
instructions!(of_4_f64: __m256d, __m256d, f64, ymm_reg, "vbroadcastsd", "qword", "vfmadd231pd", "avx2,fma,f16c");
instructions!(of_16_f32: __m512, __m512, f32, zmm_reg, "vbroadcastss", "dword", "vfmadd231ps", "avx512f,avx512bw,avx512vl");
instructions!(of_8_f64: __m512d, __m512d, f64, zmm_reg, "vbroadcastsd", "qword", "vfmadd231pd", "avx512f,avx512bw,avx512vl");

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
            _mm_storeu_si128(to.wrapping_add((2 * i + 1) * to_step).cast(), _mm_unpackhi_epi64(low, high));
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
