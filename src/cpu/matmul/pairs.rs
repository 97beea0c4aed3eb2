//! Pairs of bfloat16, neighbours along k, which AMX ([`super::amx`]) and AVX512-BF16 multiply and add to a float32 sum in one
//! instruction. Subnormal numbers count as zero in both, as in torch's products on such CPUs.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use half::bf16;

use super::scheme::Scheme;
use crate::cpu::isa::{Isa, has_avx512_not_of_intel};
use crate::cpu::register::x86::{instructions, transpose_4};
use crate::cpu::register::{DotsOf, Load, Operands, Register, RowPointers, Tiles, add_dots_of, multiply};

/// Whether this CPU has AVX512-BF16 that is faster than float32: not Intel's, which takes up to twice the time
/// (docs/measurements/cpu_matmul.md).
pub fn has_fast_avx512_bf16() -> bool {
    is_x86_feature_detected!("avx512bf16") && has_avx512_not_of_intel()
}

/// Products of pairs by `T`, to be used where the CPU has its instructions.
pub struct Pairs<T>(PhantomData<T>);

impl<T: Tiles<Factor = [bf16; 2], Sum = f32>> Scheme for Pairs<T> {
    type Memory = bf16;
    type Factor = [bf16; 2];
    const DEPTH: usize = 2;
    type Tiles<I: Isa> = T;

    #[inline(always)]
    fn across<'a, I: Isa>(
        _: I,
        [low, high]: [&'a [bf16]; 2],
        buffer: &'a mut [[bf16; 2]],
    ) -> &'a [[bf16; 2]] {
        for (pair, (&low, &high)) in buffer.iter_mut().zip(low.iter().zip(high)) {
            *pair = [low, high];
        }
        &buffer[..low.len()]
    }

    #[inline(always)]
    fn along<I: Isa>(_: I, row: &[bf16], to: &mut [[bf16; 2]]) {
        to.as_flattened_mut()[..row.len()].copy_from_slice(row);
        if let (Some(last), false) = (to.last_mut(), row.len().is_multiple_of(2)) {
            last[1] = bf16::ZERO;
        }
    }
}

/// Sums of products of pairs by AVX512-BF16.
#[derive(Clone, Copy)]
pub struct Sums(__m512);

impl Register for Sums {
    type Operand = __m512i;
    const ASKS_AHEAD: bool = false;
    const ROWS: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> Sums {
        // SAFETY: the caller's promise.
        Sums(unsafe { _mm512_setzero_ps() })
    }
    #[inline(always)]
    unsafe fn load(from: *const [bf16; 2]) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_rest(from: *const [bf16; 2], bytes: usize) -> __m512i {
        // SAFETY: the caller's promise; what is masked is not read.
        unsafe { _mm512_maskz_loadu_epi16(((1_u64 << (bytes / 2)) - 1) as u32, from.cast()) }
    }
    #[inline(always)]
    unsafe fn keep(factors: __m512i, to: *mut [bf16; 2]) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_si512(to.cast(), factors) }
    }
    #[inline(always)]
    unsafe fn of_row<const ROW: usize, const AT: usize>(rows: &RowPointers<[bf16; 2]>) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { of_16_pairs::of_row::<ROW, AT>(rows) }
    }
    #[inline(always)]
    unsafe fn of_panel<const H: usize, const ROW: usize, const AT: usize>(
        panel: *const [bf16; 2],
    ) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { of_16_pairs::of_panel::<H, ROW, AT>(panel) }
    }
    #[inline(always)]
    unsafe fn add_product(self, x: __m512i, y: __m512i) -> Sums {
        // SAFETY: the caller's promise.
        Sums(unsafe { of_16_pairs::add_product(self.0, x, y) })
    }
    #[inline(always)]
    unsafe fn add(self, sums: *const f32) -> Sums {
        // SAFETY: the caller's promise.
        Sums(unsafe { _mm512_add_ps(self.0, _mm512_loadu_ps(sums)) })
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }
    #[inline(always)]
    unsafe fn add_dots<L: Load<Sums>, const V: usize>(dots: &DotsOf<Sums, L>) {
        #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
        #[inline(never)]
        unsafe fn add_dots<L: Load<Sums>, const V: usize>(dots: &DotsOf<Sums, L>) {
            // SAFETY: the caller's promise.
            unsafe { add_dots_of::<Sums, L, V>(dots) }
        }
        // SAFETY: the caller's promise.
        unsafe { add_dots::<L, V>(dots) }
    }
}

instructions!(of_16_pairs: __m512, __m512i, [bf16; 2], zmm_reg, "vpbroadcastd", "dword", "vdpbf16ps",
    "avx512f,avx512bw,avx512bf16");

impl Tiles for Sums {
    type Factor = [bf16; 2];
    type Sum = f32;
    const HEIGHT: usize = 8;
    const WIDTH: usize = 3 * Sums::LEN;
    const LEN: usize = 16;

    #[inline(always)]
    unsafe fn transpose(from: *const [bf16; 2], from_step: usize, to: *mut [bf16; 2], to_step: usize) {
        // SAFETY: the caller's promise.
        unsafe { transpose_4(from, from_step, to, to_step) }
    }
    #[inline(always)]
    unsafe fn tile<const KEEP: bool>(operands: Operands<[bf16; 2], f32>) {
        // SAFETY: the caller's promise. Pairs are never kept.
        unsafe {
            match operands.columns.div_ceil(Sums::LEN) {
                1 => tile::<1>(&operands),
                2 => tile::<2>(&operands),
                _ => tile::<3>(&operands),
            }
        }
    }
}

/// # Safety
/// As of `multiply`.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
#[inline(never)]
unsafe fn tile<const N: usize>(operands: &Operands<[bf16; 2], f32>) {
    // SAFETY: the caller's promise.
    unsafe { multiply::<Sums, { Sums::HEIGHT }, N, false>(operands) }
}
