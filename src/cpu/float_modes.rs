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

/// Runs `work` in modes that `current` returned, on this or another thread, and goes back to this thread's own.
pub fn within(modes: u64, work: impl FnOnce()) {
    struct Restore(u64);
    impl Drop for Restore {
        fn drop(&mut self) {
            set(self.0);
        }
    }
    let own = current();
    let _restore = (own != modes).then(|| {
        set(modes);
        Restore(own)
    });
    work();
}

fn set(modes: u64) {
    #[cfg(target_arch = "x86_64")]
    {
        let mxcsr = modes as u32;
        // SAFETY: the instruction reads four bytes, which another thread's, or this one's, register has held: no bit
        // that the processor does not know is set.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const mxcsr, options(nostack, preserves_flags))
        };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the register, which every thread may write, gets what one has held.
    unsafe {
        std::arch::asm!("msr fpcr, {}", in(reg) modes, options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = modes;
}
