//! What the calling thread says of its floating-point arithmetic: rounding, subnormal numbers, traps.

/// The modes of this thread, as a number that differs where they do.
#[inline]
pub fn current() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        let mut mxcsr = 0u32;
        // SAFETY: the instruction writes the four bytes of `mxcsr` and nothing else.
        unsafe {
            std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags));
        }
        // The lowest six bits are no modes, but what has happened so far: an overflow, a rounding.
        u64::from(mxcsr & !0x3f)
    }
    #[cfg(target_arch = "aarch64")]
    {
        let fpcr: u64;
        // SAFETY: the instruction reads a register that every thread may read.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) fpcr, options(nomem, nostack, preserves_flags)) };
        fpcr
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    0
}
