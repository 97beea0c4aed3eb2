//! Instruction sets: code is written once, compiled for each, and chosen when it runs.
//!
//! Loops are plain Rust that LLVM vectorises. Conversions of float16 and bfloat16, the sum and the largest of a group, and the
//! larger of two are intrinsics: LLVM cannot see through the conversions of float16, takes the others apart, and makes stores by
//! a mask of the last. A value of an [`Isa`] type proves that the CPU has it: only what [`dispatch`] calls makes one.
//!
//! Only what is inlined into [`dispatch`]'s entries is compiled for their instruction set, and a closure is
//! inlined only where LLVM finds it cheap: exp in a closure took 30 times as long. Code under a [`Kernel`] is
//! therefore loops and `#[inline(always)]` functions, and closures of an operation or two at most.

use std::ptr;

use half::{bf16, f16};

use super::float::{Float, pairwise};
use super::half_float::narrow_bf16;
use super::register::{FromTwoBytes, Register, portable};

/// Elements in a group that is worked on at a time: one AVX-512 register of float32.
pub const LANES: usize = 16;

pub trait Isa: Copy + Send + Sync + 'static {
    const NAME: &'static str;
    /// Whether a fused multiply-add is one instruction; without one it would be a library call.
    const FMA: bool;
    /// Whether less than a group is loaded and stored by one instruction.
    const MASKS: bool = false;
    type F32: FromTwoBytes;
    type F64: Register<Factor = f64, Sum = f64>;

    fn widen_f16(self, values: [f16; LANES]) -> [f32; LANES];
    /// Rounds to nearest, ties to even.
    fn narrow_f16(self, values: [f32; LANES]) -> [f16; LANES];

    /// The same.
    fn narrow_bf16(self, values: [f32; LANES]) -> [bf16; LANES];

    /// The sum of a group, pairwise: places that are eight apart first, then four, two and one.
    fn sum_f32(self, values: [f32; LANES]) -> f32;
    fn sum_f64(self, values: [f64; LANES]) -> f64;

    /// The largest of a group without NaNs.
    fn largest_f32(self, values: [f32; LANES]) -> f32;
    fn largest_f64(self, values: [f64; LANES]) -> f64;

    /// The larger of each two elements: that of `a` where they are equal or one is NaN.
    fn larger_f32(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES];
    fn larger_f64(self, a: [f64; LANES], b: [f64; LANES]) -> [f64; LANES];

    /// Copies a cache line, past the caches if the CPU can.
    ///
    /// # Safety
    /// As [`ptr::copy_nonoverlapping`]; `to` is the first byte of a line.
    unsafe fn stream_line(self, from: *const u8, to: *mut u8);

    /// Less than a group of elements, filled up with zeros.
    #[inline(always)]
    fn load_rest<T: Float>(self, from: &[T]) -> [T; LANES] {
        padded(from)
    }

    /// Stores the first elements of a group.
    #[inline(always)]
    fn store_rest<T: Float>(self, group: [T; LANES], to: &mut [T]) {
        to.copy_from_slice(&group[..to.len()]);
    }
}

/// Bytes.
pub const CACHE_LINE: usize = 64;

/// Work to be compiled for every instruction set; `run` is to be `#[inline(always)]`.
pub trait Kernel {
    type Output;
    fn run<I: Isa>(self, isa: I) -> Self::Output;
}

/// Runs `kernel` with the widest instruction set that this CPU has.
#[inline]
pub fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        // Without the constant, loops for it would be compiled that a build has no use for.
        if x86::BUILT_FOR_AVX512 && x86::has_avx512() {
            // SAFETY: the CPU has just been found to have every feature that the entry enables.
            return unsafe { x86::run_avx512(kernel) };
        }
        if x86::has_avx2() {
            // SAFETY: as above.
            return unsafe { x86::run_avx2(kernel) };
        }
    }
    kernel.run(Portable(()))
}

/// The same for work that waits for memory: with AVX2 at most, whose loads and stores of half a line are faster there
/// (docs/measurements/cpu_memory_bound.md).
#[inline]
pub fn dispatch_streaming<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    if x86::has_avx2() {
        // SAFETY: as in `dispatch`.
        return unsafe { x86::run_avx2(kernel) };
    }
    dispatch(kernel)
}

#[cfg(target_arch = "x86_64")]
pub use x86::{has_avx2, has_avx512, run_avx512};

/// Whether a register holds a group of float32.
pub fn has_whole_groups() -> bool {
    #[cfg(target_arch = "x86_64")]
    return x86::has_avx512();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Whether this CPU has AVX-512 and is not Intel's: some loops pay on AMD's CPUs and not on Intel's.
pub fn has_avx512_not_of_intel() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        static NOT_OF_INTEL: std::sync::LazyLock<bool> = std::sync::LazyLock::new(|| {
            let vendor = std::arch::x86_64::__cpuid(0);
            let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
            x86::has_avx512() && name.as_flattened() != b"GenuineIntel"
        });
        *NOT_OF_INTEL
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// What [`dispatch`] chooses on this CPU.
pub fn name() -> &'static str {
    dispatch(Name)
}

/// The same of [`dispatch_streaming`].
pub fn name_streaming() -> &'static str {
    dispatch_streaming(Name)
}

struct Name;

impl Kernel for Name {
    type Output = &'static str;

    #[inline(always)]
    fn run<I: Isa>(self, _: I) -> Self::Output {
        I::NAME
    }
}

/// The target's baseline.
#[derive(Clone, Copy, Debug)]
pub struct Portable(());

impl Isa for Portable {
    const NAME: &'static str = std::env::consts::ARCH;
    const FMA: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
    type F32 = portable::F32;
    type F64 = portable::F64;

    #[inline(always)]
    fn widen_f16(self, values: [f16; LANES]) -> [f32; LANES] {
        widen_f16(values)
    }

    #[inline(always)]
    fn narrow_f16(self, values: [f32; LANES]) -> [f16; LANES] {
        narrow_f16(values)
    }

    #[inline(always)]
    fn narrow_bf16(self, values: [f32; LANES]) -> [bf16; LANES] {
        values.map(narrow_bf16)
    }

    #[inline(always)]
    fn sum_f32(self, values: [f32; LANES]) -> f32 {
        pairwise(values)
    }

    #[inline(always)]
    fn sum_f64(self, values: [f64; LANES]) -> f64 {
        pairwise(values)
    }

    #[inline(always)]
    fn largest_f32(self, values: [f32; LANES]) -> f32 {
        values.into_iter().fold(f32::NEG_INFINITY, |largest, v| if v > largest { v } else { largest })
    }

    #[inline(always)]
    fn largest_f64(self, values: [f64; LANES]) -> f64 {
        values.into_iter().fold(f64::NEG_INFINITY, |largest, v| if v > largest { v } else { largest })
    }

    #[inline(always)]
    fn larger_f32(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
        larger(a, b)
    }

    #[inline(always)]
    fn larger_f64(self, a: [f64; LANES], b: [f64; LANES]) -> [f64; LANES] {
        larger(a, b)
    }

    #[inline(always)]
    unsafe fn stream_line(self, from: *const u8, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy_nonoverlapping(from, to, CACHE_LINE) };
    }
}

/// To be called in each step of a loop over groups: keeps LLVM from forming vectors across steps, of elements that it gathers.
#[inline(always)]
pub fn one_step() {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    // SAFETY: no instruction.
    unsafe {
        std::arch::asm!("", options(nomem, nostack, preserves_flags));
    }
}

#[inline(always)]
fn larger<T: PartialOrd + Copy>(mut a: [T; LANES], b: [T; LANES]) -> [T; LANES] {
    for i in 0..LANES {
        a[i] = if b[i] > a[i] { b[i] } else { a[i] };
    }
    a
}

#[inline(always)]
fn padded<T: Float>(from: &[T]) -> [T; LANES] {
    let mut group = [T::default(); LANES];
    group[..from.len()].copy_from_slice(from);
    group
}

// Out of line on an x86-64 without instructions for it, where a group takes hundreds of others.
#[cfg_attr(target_arch = "x86_64", inline(never))]
#[cfg_attr(not(target_arch = "x86_64"), inline(always))]
fn widen_f16(values: [f16; LANES]) -> [f32; LANES] {
    values.map(f16::to_f32)
}

#[cfg_attr(target_arch = "x86_64", inline(never))]
#[cfg_attr(not(target_arch = "x86_64"), inline(always))]
fn narrow_f16(values: [f32; LANES]) -> [f16; LANES] {
    values.map(f16::from_f32)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::mem::{transmute, transmute_copy};

    use half::{bf16, f16};

    use super::{Float, Isa, Kernel, LANES, padded};

    /// AVX-512 F, BW, DQ and VL, with all of [`Avx2`]: x86-64-v4.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx512(());

    /// AVX2, FMA and F16C: x86-64-v3.
    #[derive(Clone, Copy, Debug)]
    pub struct Avx2(());

    /// Whether this build has loops for AVX-512.
    pub const BUILT_FOR_AVX512: bool = cfg!(feature = "avx512");

    #[inline]
    pub fn has_avx512() -> bool {
        BUILT_FOR_AVX512
            && has_avx2()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
    }

    #[inline]
    pub fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
    }

    /// # Safety
    /// [`has_avx512`] says that the CPU has it.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
        kernel.run(Avx512(()))
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
        kernel.run(Avx2(()))
    }

    impl Isa for Avx512 {
        const NAME: &'static str = "AVX-512";
        const FMA: bool = true;
        const MASKS: bool = true;
        type F32 = __m512;
        type F64 = __m512d;

        #[inline(always)]
        fn widen_f16(self, values: [f16; LANES]) -> [f32; LANES] {
            // SAFETY: a value of Avx512 exists only within `run_avx512`, whose caller has found AVX-512;
            // the arrays have the size of the registers and any bits are valid for both.
            unsafe { transmute(_mm512_cvtph_ps(transmute::<[f16; LANES], __m256i>(values))) }
        }

        #[inline(always)]
        fn narrow_f16(self, values: [f32; LANES]) -> [f16; LANES] {
            // SAFETY: as in `widen_f16`.
            unsafe {
                let values = transmute::<[f32; LANES], __m512>(values);
                transmute(_mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(values))
            }
        }

        #[inline(always)]
        fn narrow_bf16(self, values: [f32; LANES]) -> [bf16; LANES] {
            // SAFETY: as in `widen_f16`.
            unsafe {
                let values = transmute::<[f32; LANES], __m512>(values);
                let bits = _mm512_castps_si512(values);
                let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
                let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
                let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(values, values);
                let kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(QUIET));
                transmute(_mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(kept)))
            }
        }

        #[inline(always)]
        fn sum_f32(self, values: [f32; LANES]) -> f32 {
            // SAFETY: as in `widen_f16`.
            unsafe {
                let values = transmute::<[f32; LANES], __m512>(values);
                let high = _mm512_extractf32x8_ps::<1>(values);
                sum_of_8(_mm256_add_ps(_mm512_castps512_ps256(values), high))
            }
        }

        #[inline(always)]
        fn sum_f64(self, values: [f64; LANES]) -> f64 {
            // SAFETY: as in `widen_f16`, with two registers.
            unsafe {
                let [low, high] = transmute::<[f64; LANES], [__m512d; 2]>(values);
                let sums = _mm512_add_pd(low, high);
                let high = _mm512_extractf64x4_pd::<1>(sums);
                sum_of_4(_mm256_add_pd(_mm512_castpd512_pd256(sums), high))
            }
        }

        #[inline(always)]
        fn largest_f32(self, values: [f32; LANES]) -> f32 {
            // SAFETY: as in `widen_f16`.
            unsafe {
                let values = transmute::<[f32; LANES], __m512>(values);
                let high = _mm512_extractf32x8_ps::<1>(values);
                largest_of_8(_mm256_max_ps(_mm512_castps512_ps256(values), high))
            }
        }

        #[inline(always)]
        fn largest_f64(self, values: [f64; LANES]) -> f64 {
            // SAFETY: as in `widen_f16`, with two registers.
            unsafe {
                let [low, high] = transmute::<[f64; LANES], [__m512d; 2]>(values);
                let largest = _mm512_max_pd(low, high);
                let high = _mm512_extractf64x4_pd::<1>(largest);
                largest_of_4(_mm256_max_pd(_mm512_castpd512_pd256(largest), high))
            }
        }

        #[inline(always)]
        fn larger_f32(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
            // SAFETY: as in `widen_f16`.
            unsafe {
                let [a, b] = [a, b].map(|group| transmute::<[f32; LANES], __m512>(group));
                transmute(_mm512_max_ps(b, a))
            }
        }

        #[inline(always)]
        fn larger_f64(self, a: [f64; LANES], b: [f64; LANES]) -> [f64; LANES] {
            // SAFETY: as in `widen_f16`, with two registers.
            unsafe {
                let [a, b] = [a, b].map(|group| transmute::<[f64; LANES], [__m512d; 2]>(group));
                transmute([_mm512_max_pd(b[0], a[0]), _mm512_max_pd(b[1], a[1])])
            }
        }

        #[inline(always)]
        unsafe fn stream_line(self, from: *const u8, to: *mut u8) {
            // SAFETY: as in `widen_f16`; the caller's promise.
            unsafe { stream_line(from, to) };
        }

        #[inline(always)]
        fn load_rest<T: Float>(self, from: &[T]) -> [T; LANES] {
            let (mask, from) = (first_bits(from.len()), from.as_ptr());
            // SAFETY: as in `widen_f16`; memory that the mask leaves out is not read, and zeros are elements.
            unsafe {
                match size_of::<T>() {
                    2 => transmute_copy(&_mm256_maskz_loadu_epi16(mask, from.cast())),
                    // Of integers LLVM keeps the group in memory, in parts that are loaded before they are stored.
                    4 => transmute_copy(&_mm512_maskz_loadu_ps(mask, from.cast())),
                    _ => transmute_copy(&[
                        _mm512_maskz_loadu_pd(mask as u8, from.cast()),
                        _mm512_maskz_loadu_pd((mask >> 8) as u8, from.wrapping_add(LANES / 2).cast()),
                    ]),
                }
            }
        }

        #[inline(always)]
        fn store_rest<T: Float>(self, group: [T; LANES], to: &mut [T]) {
            let (mask, to) = (first_bits(to.len()), to.as_mut_ptr());
            // SAFETY: as above, of what is written.
            unsafe {
                match size_of::<T>() {
                    2 => _mm256_mask_storeu_epi16(to.cast(), mask, transmute_copy(&group)),
                    4 => _mm512_mask_storeu_ps(to.cast(), mask, transmute_copy(&group)),
                    _ => {
                        let [low, high] = transmute_copy::<[T; LANES], [__m512d; 2]>(&group);
                        _mm512_mask_storeu_pd(to.cast(), mask as u8, low);
                        _mm512_mask_storeu_pd(to.wrapping_add(LANES / 2).cast(), (mask >> 8) as u8, high);
                    }
                }
            }
        }
    }

    impl Isa for Avx2 {
        const NAME: &'static str = "AVX2";
        const FMA: bool = true;
        type F32 = __m256;
        type F64 = __m256d;

        #[inline(always)]
        fn widen_f16(self, values: [f16; LANES]) -> [f32; LANES] {
            // SAFETY: a value of Avx2 exists only within `run_avx2`, whose caller has found F16C; the
            // arrays have the size of two registers and any bits are valid for both.
            unsafe {
                let [low, high] = transmute::<[f16; LANES], [__m128i; 2]>(values);
                transmute([_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)])
            }
        }

        #[inline(always)]
        fn narrow_f16(self, values: [f32; LANES]) -> [f16; LANES] {
            // SAFETY: as in `widen_f16`.
            unsafe {
                let [low, high] = transmute::<[f32; LANES], [__m256; 2]>(values);
                transmute([
                    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(low),
                    _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(high),
                ])
            }
        }

        #[inline(always)]
        fn narrow_bf16(self, values: [f32; LANES]) -> [bf16; LANES] {
            // SAFETY: as in `widen_f16`.
            unsafe {
                let [low, high] = transmute::<[f32; LANES], [__m256; 2]>(values);
                let both = _mm256_packus_epi32(upper_halves(low), upper_halves(high));
                transmute(_mm256_permute4x64_epi64::<0b11_01_10_00>(both))
            }
        }

        #[inline(always)]
        fn sum_f32(self, values: [f32; LANES]) -> f32 {
            // SAFETY: as in `widen_f16`.
            unsafe {
                let [low, high] = transmute::<[f32; LANES], [__m256; 2]>(values);
                sum_of_8(_mm256_add_ps(low, high))
            }
        }

        #[inline(always)]
        fn sum_f64(self, values: [f64; LANES]) -> f64 {
            // SAFETY: as in `widen_f16`, with four registers.
            unsafe {
                let [a, b, c, d] = transmute::<[f64; LANES], [__m256d; 4]>(values);
                sum_of_4(_mm256_add_pd(_mm256_add_pd(a, c), _mm256_add_pd(b, d)))
            }
        }

        #[inline(always)]
        fn largest_f32(self, values: [f32; LANES]) -> f32 {
            // SAFETY: as in `widen_f16`.
            unsafe {
                let [low, high] = transmute::<[f32; LANES], [__m256; 2]>(values);
                largest_of_8(_mm256_max_ps(low, high))
            }
        }

        #[inline(always)]
        fn largest_f64(self, values: [f64; LANES]) -> f64 {
            // SAFETY: as in `widen_f16`, with four registers.
            unsafe {
                let [a, b, c, d] = transmute::<[f64; LANES], [__m256d; 4]>(values);
                largest_of_4(_mm256_max_pd(_mm256_max_pd(a, c), _mm256_max_pd(b, d)))
            }
        }

        #[inline(always)]
        fn larger_f32(self, a: [f32; LANES], b: [f32; LANES]) -> [f32; LANES] {
            // SAFETY: as in `widen_f16`.
            unsafe {
                let [a, b] = [a, b].map(|group| transmute::<[f32; LANES], [__m256; 2]>(group));
                transmute([_mm256_max_ps(b[0], a[0]), _mm256_max_ps(b[1], a[1])])
            }
        }

        #[inline(always)]
        fn larger_f64(self, a: [f64; LANES], b: [f64; LANES]) -> [f64; LANES] {
            // SAFETY: as in `widen_f16`, with four registers.
            unsafe {
                let [a, b] = [a, b].map(|group| transmute::<[f64; LANES], [__m256d; 4]>(group));
                transmute([
                    _mm256_max_pd(b[0], a[0]),
                    _mm256_max_pd(b[1], a[1]),
                    _mm256_max_pd(b[2], a[2]),
                    _mm256_max_pd(b[3], a[3]),
                ])
            }
        }

        #[inline(always)]
        unsafe fn stream_line(self, from: *const u8, to: *mut u8) {
            // SAFETY: as in `widen_f16`; the caller's promise.
            unsafe { stream_line(from, to) };
        }

        #[inline(always)]
        fn load_rest<T: Float>(self, from: &[T]) -> [T; LANES] {
            if size_of::<T>() == 2 {
                return padded(from);
            }
            let words = (size_of_val(from) / 4) as i32;
            let mut registers = [[0; 8]; 4];
            for (i, register) in registers.iter_mut().enumerate().take(size_of::<[T; LANES]>() / 32) {
                let from = from.as_ptr().cast::<i32>().wrapping_add(8 * i);
                // SAFETY: as in `widen_f16`; memory that the mask leaves out is not read.
                unsafe {
                    let places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
                    let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(words - 8 * i as i32), places);
                    *register = transmute::<__m256i, [i32; 8]>(_mm256_maskload_epi32(from, mask));
                }
            }
            // SAFETY: there are as many bytes, or more, and zeros are elements.
            unsafe { transmute_copy(&registers) }
        }
    }

    /// So many of the lowest bits: at most one for each element of a group.
    #[inline(always)]
    fn first_bits(count: usize) -> u16 {
        ((1u32 << count.min(LANES)) - 1) as u16
    }

    /// # Safety
    /// As [`Isa::stream_line`]; the CPU has AVX.
    #[inline(always)]
    unsafe fn stream_line(from: *const u8, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            let [low, high] = from.cast::<[__m256i; 2]>().read_unaligned();
            _mm256_stream_si256(to.cast(), low);
            _mm256_stream_si256(to.cast::<__m256i>().add(1), high);
        }
    }

    /// What makes a NaN quiet, whose rounding could carry into infinity.
    const QUIET: i32 = 0x0040_0000;

    /// The bits of bfloat16s, as numbers of 32 bits.
    ///
    /// # Safety
    /// The CPU has AVX2.
    #[inline(always)]
    unsafe fn upper_halves(values: __m256) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = _mm256_castps_si256(values);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(QUIET));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(values, values));
            _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan))
        }
    }

    /// # Safety
    /// The CPU has AVX.
    #[inline(always)]
    unsafe fn sum_of_8(values: __m256) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            let fours = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps::<1>(values));
            let pairs = _mm_add_ps(fours, _mm_movehl_ps(fours, fours));
            _mm_cvtss_f32(_mm_add_ss(pairs, _mm_movehdup_ps(pairs)))
        }
    }

    /// # Safety
    /// The CPU has AVX.
    #[inline(always)]
    unsafe fn sum_of_4(values: __m256d) -> f64 {
        // SAFETY: the caller's promise.
        unsafe {
            let pairs = _mm_add_pd(_mm256_castpd256_pd128(values), _mm256_extractf128_pd::<1>(values));
            _mm_cvtsd_f64(_mm_add_sd(pairs, _mm_unpackhi_pd(pairs, pairs)))
        }
    }

    /// # Safety
    /// The CPU has AVX.
    #[inline(always)]
    unsafe fn largest_of_8(values: __m256) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            let fours = _mm_max_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps::<1>(values));
            let pairs = _mm_max_ps(fours, _mm_movehl_ps(fours, fours));
            _mm_cvtss_f32(_mm_max_ss(pairs, _mm_movehdup_ps(pairs)))
        }
    }

    /// # Safety
    /// The CPU has AVX.
    #[inline(always)]
    unsafe fn largest_of_4(values: __m256d) -> f64 {
        // SAFETY: the caller's promise.
        unsafe {
            let pairs = _mm_max_pd(_mm256_castpd256_pd128(values), _mm256_extractf128_pd::<1>(values));
            _mm_cvtsd_f64(_mm_max_sd(pairs, _mm_unpackhi_pd(pairs, pairs)))
        }
    }
}
