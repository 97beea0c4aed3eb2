//! Pairs of bfloat16, neighbours along k, which AMX ([`super::amx`]) and AVX512-BF16 multiply and add to a float32 sum in one
//! instruction. Subnormal numbers count as zero in both, as in torch's products on such CPUs.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::transmute;

use half::bf16;

use super::amx;
use super::scheme::Scheme;
use crate::cpu::isa::{Isa, has_avx512};
use crate::cpu::register::x86::transpose_4;
use crate::cpu::register::{Operands, Register, Tiles, multiply};

/// Whether this CPU has AVX512-BF16, and no AMX: on the one CPU with both that was measured it takes twice the time of
/// float32 (docs/measurements/cpu_matmul.md).
pub fn has_avx512_bf16() -> bool {
    is_x86_feature_detected!("avx512bf16") && has_avx512() && !amx::is_there()
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
    type Operand = __m512bh;

    #[inline(always)]
    unsafe fn zero() -> Sums {
        // SAFETY: the caller's promise.
        Sums(unsafe { _mm512_setzero_ps() })
    }
    #[inline(always)]
    unsafe fn splat(from: *const [bf16; 2]) -> __m512bh {
        // SAFETY: the caller's promise; any bits are valid in both.
        unsafe { transmute(_mm512_set1_epi32(from.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn load(from: *const [bf16; 2]) -> __m512bh {
        // SAFETY: as above.
        unsafe { transmute(_mm512_loadu_si512(from.cast())) }
    }
    #[inline(always)]
    unsafe fn keep(factors: __m512bh, to: *mut [bf16; 2]) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_si512(to.cast(), transmute::<__m512bh, __m512i>(factors)) }
    }
    #[inline(always)]
    unsafe fn add_product(self, x: __m512bh, y: __m512bh) -> Sums {
        // SAFETY: the caller's promise.
        Sums(unsafe { _mm512_dpbf16_ps(self.0, x, y) })
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
}

impl Tiles for Sums {
    type Factor = [bf16; 2];
    type Sum = f32;
    const HEIGHT: usize = 12;
    const WIDTH: usize = 32;

    #[inline(always)]
    unsafe fn transpose(from: *const [bf16; 2], from_step: usize, to: *mut [bf16; 2], to_step: usize) {
        // SAFETY: the caller's promise.
        unsafe { transpose_4(from, from_step, to, to_step) }
    }
    #[inline(always)]
    unsafe fn tile<const KEEP: bool>(operands: Operands<[bf16; 2], f32>) {
        // SAFETY: the caller's promise.
        unsafe { tile::<KEEP>(operands) }
    }
}

/// # Safety
/// As of `multiply`.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn tile<const KEEP: bool>(operands: Operands<[bf16; 2], f32>) {
    // SAFETY: the caller's promise.
    unsafe { multiply::<Sums, { Sums::HEIGHT }, KEEP>(&operands) }
}
