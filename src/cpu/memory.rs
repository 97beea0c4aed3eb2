//! Memory that an operation takes besides its operands, where its size depends on the problem.

use std::ptr;

use crate::error::{Error, Result};

/// So many zeros, or an error.
pub fn zeros<T: Copy + Default>(op: &'static str, len: usize) -> Result<Vec<T>> {
    let mut memory = Vec::new();
    memory
        .try_reserve_exact(len)
        .map_err(|_| Error::OutOfMemory { op, bytes: len.saturating_mul(size_of::<T>()) })?;
    memory.resize(len, T::default());
    Ok(memory)
}

/// Whether the system has so many bytes left. Asked before threads start and other crates take memory
/// of their own, which ends the process where there is none. What malloc has kept of freed memory does not count, for
/// other threads do not get it.
pub fn has_room(bytes: usize) -> bool {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a mapping of its own, where the system wants it, that nobody uses before it is gone.
    unsafe {
        let mapped = libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0);
        mapped != libc::MAP_FAILED && libc::munmap(mapped, bytes) == 0
    }
}
