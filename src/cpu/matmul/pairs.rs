//! Pairs of bfloat16, neighbours along k, which AMX ([`super::amx`]) and AVX512-BF16 multiply and add to a float32 sum in one
//! instruction. Subnormal numbers count as zero in both, as in torch's products on such CPUs.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::sync::LazyLock;

use half::bf16;

use super::scheme::Scheme;
use crate::cpu::isa::{Isa, has_avx512};
use crate::cpu::register::x86::{add_products, transpose_4};
use crate::cpu::register::{Operands, Register, RowPointers, Tiles, multiply};

/// Whether this CPU has AVX512-BF16 that is faster than float32: not Intel's, which takes up to twice the time
/// (docs/measurements/cpu_matmul.md).
pub fn has_fast_avx512_bf16() -> bool {
    static FAST: LazyLock<bool> = LazyLock::new(|| {
        let vendor = __cpuid(0);
        let of_intel = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel";
        is_x86_feature_detected!("avx512bf16") && has_avx512() && !of_intel
    });
    *FAST
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
    unsafe fn keep(factors: __m512i, to: *mut [bf16; 2]) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_si512(to.cast(), factors) }
    }
    #[inline(always)]
    unsafe fn add_products<const ROW: usize, const AT: usize>(
        sums: &mut [Sums; 2],
        rows: &RowPointers<[bf16; 2]>,
        b: [__m512i; 2],
    ) {
        let mut registers = [sums[0].0, sums[1].0];
        // SAFETY: the caller's promise.
        unsafe { add_16_pairs::<ROW, AT>(&mut registers, rows, b) };
        *sums = [Sums(registers[0]), Sums(registers[1])];
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

add_products!(add_16_pairs: __m512, __m512i, [bf16; 2], zmm_reg, "vpbroadcastd", "dword", "vdpbf16ps",
    "avx512f,avx512bw,avx512bf16");

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
