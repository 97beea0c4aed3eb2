//! Registers of any other CPU.

#![allow(clippy::needless_range_loop)]

use half::{bf16, f16};

use super::{
    DotsOf, FromTwoBytes, Load, Operands, Register, RowPointers, Tiles, add_dots_of, copied, multiply,
};

/// A register, by functions that fill one with a number, add two, and add a product.
macro_rules! register {
    ($register:ty: $number:ty, $len:expr, $fill:path, $add:path, $add_product:path) => {
        impl Register for $register {
            type Operand = Self;
            const ASKS_AHEAD: bool = true;
            const ROWS: usize = 2;

            #[inline(always)]
            unsafe fn zero() -> Self {
                // SAFETY: any bits are numbers.
                unsafe { std::mem::zeroed() }
            }
            #[inline(always)]
            unsafe fn load(from: *const $number) -> Self {
                // SAFETY: the caller's promise.
                unsafe { from.cast::<Self>().read_unaligned() }
            }
            #[inline(always)]
            unsafe fn load_rest(from: *const $number, bytes: usize) -> Self {
                // SAFETY: the caller's promise.
                unsafe { Self::load(copied(from, bytes).as_ptr()) }
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
                unsafe { $fill(row.wrapping_add(AT).read_unaligned()) }
            }
            #[inline(always)]
            unsafe fn of_panel<const H: usize, const ROW: usize, const AT: usize>(
                panel: *const $number,
            ) -> Self {
                // SAFETY: the caller's promise.
                unsafe { $fill(panel.wrapping_add(AT * H + ROW).read_unaligned()) }
            }
            #[inline(always)]
            unsafe fn add_product(self, x: Self, y: Self) -> Self {
                // SAFETY: the caller's promise.
                unsafe { $add_product(self, x, y) }
            }
            #[inline(always)]
            unsafe fn add(self, sums: *const $number) -> Self {
                // SAFETY: the caller's promise.
                unsafe { $add(self, Self::load(sums)) }
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $number) {
                // SAFETY: the caller's promise.
                unsafe { to.cast::<Self>().write_unaligned(self) }
            }
            #[inline(always)]
            unsafe fn add_dots<L: Load<Self>, const V: usize>(dots: &DotsOf<Self, L>) {
                // SAFETY: the caller's promise.
                unsafe { add_dots_of::<Self, L, V>(dots) }
            }
        }

        impl Tiles for $register {
            type Factor = $number;
            type Sum = $number;
            const HEIGHT: usize = 6;
            const WIDTH: usize = 2 * $len;
            const LEN: usize = $len;

            #[inline(always)]
            unsafe fn tile<const KEEP: bool>(operands: Operands<$number, $number>) {
                // A function of its own, for all dtypes with such sums.
                #[inline(never)]
                unsafe fn tile<const N: usize, const KEEP: bool>(operands: &Operands<$number, $number>) {
                    // SAFETY: as of `tile`.
                    unsafe { multiply::<$register, 6, N, KEEP>(operands) }
                }
                // SAFETY: the caller's promise.
                unsafe {
                    match operands.columns.div_ceil($len) {
                        1 => tile::<1, KEEP>(&operands),
                        _ => tile::<2, KEEP>(&operands),
                    }
                }
            }
        }
    };
}

pub use self::registers::{F32, F64};

impl FromTwoBytes for F32 {
    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: the caller's promise.
        unsafe { widened(from, f16::to_f32) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: the caller's promise.
        unsafe { widened(from, bf16::to_f32) }
    }
}

/// # Safety
/// A register's elements may be read.
#[inline(always)]
unsafe fn widened<T: Copy>(from: *const T, widen: fn(T) -> f32) -> F32 {
    // SAFETY: the caller's promise, and a register has so many numbers.
    unsafe {
        let numbers = from.cast::<[T; F32::LEN]>().read_unaligned().map(widen);
        F32::load(numbers.as_ptr())
    }
}

/// Every x86-64 has these, without fused multiply-adds. LLVM compiles them in a fraction of the time of arrays.
#[cfg(target_arch = "x86_64")]
mod registers {
    use std::arch::x86_64::{
        __m128, __m128d, _mm_add_pd, _mm_add_ps, _mm_mul_pd, _mm_mul_ps, _mm_set1_pd, _mm_set1_ps,
    };

    #[allow(clippy::wildcard_imports, reason = "what the macro needs")]
    use super::*;

    pub type F32 = __m128;
    pub type F64 = __m128d;

    register!(__m128: f32, 4, _mm_set1_ps, _mm_add_ps, add_product_f32);
    register!(__m128d: f64, 2, _mm_set1_pd, _mm_add_pd, add_product_f64);

    /// # Safety
    /// None is needed: every x86-64 has the instructions.
    #[inline(always)]
    unsafe fn add_product_f32(sums: __m128, x: __m128, y: __m128) -> __m128 {
        // SAFETY: as above.
        unsafe { _mm_add_ps(_mm_mul_ps(x, y), sums) }
    }

    /// # Safety
    /// None is needed: every x86-64 has the instructions.
    #[inline(always)]
    unsafe fn add_product_f64(sums: __m128d, x: __m128d, y: __m128d) -> __m128d {
        // SAFETY: as above.
        unsafe { _mm_add_pd(_mm_mul_pd(x, y), sums) }
    }
}

/// As many numbers as LLVM is to keep in registers of its own choice.
#[cfg(not(target_arch = "x86_64"))]
mod registers {
    #[allow(clippy::wildcard_imports, reason = "what the macro needs")]
    use super::*;
    use crate::cpu::float::Real;

    /// Registers of 16 bytes that are worked on as one: NEON has twice as many as SSE.
    const WIDE: usize = if cfg!(target_arch = "aarch64") { 2 } else { 1 };

    pub type F32 = [f32; 4 * WIDE];
    pub type F64 = [f64; 2 * WIDE];

    register!(F32: f32, 4 * WIDE, fill, add, add_product);
    register!(F64: f64, 2 * WIDE, fill, add, add_product);

    #[inline(always)]
    fn fill<R: Real, const N: usize>(number: R) -> [R; N] {
        [number; N]
    }

    #[inline(always)]
    fn add<R: Real, const N: usize>(mut x: [R; N], y: [R; N]) -> [R; N] {
        for i in 0..N {
            x[i] = x[i] + y[i];
        }
        x
    }

    /// # Safety
    /// None is needed; other registers' instructions do.
    #[inline(always)]
    unsafe fn add_product<R: Real, const N: usize>(mut sums: [R; N], x: [R; N], y: [R; N]) -> [R; N] {
        for i in 0..N {
            // A fused one would be a library call elsewhere.
            sums[i] = if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
                x[i].fused(y[i], sums[i])
            } else {
                x[i].separate(y[i], sums[i])
            };
        }
        sums
    }
}
