//! Registers of any other CPU.

#![allow(clippy::needless_range_loop)]

use half::{bf16, f16};

use super::{
    DotsOf, FromTwoBytes, Load, Operands, Register, RowPointers, Tiles, add_dots_of, copied, multiply,
};

/// As many numbers as LLVM is to keep in registers of its own choice.
macro_rules! array {
    ($number:ty, $len:expr) => {
        impl Register for [$number; $len] {
            type Operand = Self;
            const ASKS_AHEAD: bool = true;
            const ROWS: usize = 2;

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
            #[inline(always)]
            unsafe fn add_dots<L: Load<Self>, const V: usize>(dots: &DotsOf<Self, L>) {
                // SAFETY: the caller's promise.
                unsafe { add_dots_of::<Self, L, V>(dots) }
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

impl FromTwoBytes for [f32; 4 * WIDE] {
    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> Self {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[f16; 4 * WIDE]>().read_unaligned() }.map(f16::to_f32)
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> Self {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[bf16; 4 * WIDE]>().read_unaligned() }.map(bf16::to_f32)
    }
}
