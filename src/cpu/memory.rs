//! Memory that an operation takes besides its operands, where its size depends on the problem, and memory that threads keep.

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

/// Numbers of any type, which stay from one use to the next.
#[derive(Debug, Default)]
pub struct Memory(Vec<Line>);

/// A cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Memory {
    /// The first `len` elements, of types of numbers: more memory is asked for where it is too short.
    #[inline]
    pub fn room<F: Copy>(&mut self, len: usize) -> &mut [F] {
        let lines = (len * size_of::<F>()).div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.0 = vec![Line([0; 64]); lines];
        }
        // SAFETY: so many bytes are there and initialised, aligned for any number, of which any bits are one.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }

    /// The same, or nothing if there is no memory.
    pub fn try_room<F: Copy>(&mut self, len: usize) -> Option<&mut [F]> {
        let lines = (len * size_of::<F>()).div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.0 = Vec::new();
            self.0.try_reserve_exact(lines).ok()?;
            self.0.resize(lines, Line([0; 64]));
        }
        Some(self.room(len))
    }
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

/// Bytes of a result that malloc maps anew whenever it is allocated.
const MAPPED: usize = 32 << 20;

/// Asks for huge pages where a result will lie that has no pages yet: to map it page by page takes several times as long as
/// to compute it.
pub fn ask_for_huge_pages(address: usize, bytes: usize) {
    const HUGE: usize = 2 << 20;
    let (first, end) = (address.next_multiple_of(HUGE), (address + bytes) / HUGE * HUGE);
    if bytes < MAPPED || end <= first {
        return;
    }
    let memory = ptr::with_exposed_provenance_mut(first);
    let mut has_page = [1];
    // SAFETY: one page is looked at; what is asked for changes no memory.
    unsafe {
        if libc::mincore(memory, 1, has_page.as_mut_ptr()) == 0 && has_page[0] & 1 == 0 {
            libc::madvise(memory, end - first, libc::MADV_HUGEPAGE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether the system was asked for huge pages at an address, as the flags of its mapping say.
    fn was_asked(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut within = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16);
            if let Some((Ok(first), Ok(end))) = range.map(|(first, end)| (number(first), number(end))) {
                within = (first..end).contains(&address);
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| within) {
                return flags.split(' ').any(|flag| flag == "hg");
            }
        }
        false
    }

    #[test]
    fn huge_pages_are_asked_for_where_there_are_none_yet() {
        let supported = std::fs::exists("/sys/kernel/mm/transparent_hugepage").unwrap_or(false);
        for (bytes, touched, asked) in
            [(MAPPED + 5, false, supported), (MAPPED + 5, true, false), (MAPPED - 1, false, false)]
        {
            let (access, kind) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            // SAFETY: a mapping of its own.
            let memory = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
            assert_ne!(memory, libc::MAP_FAILED);
            if touched {
                // SAFETY: the mapping is that long.
                unsafe { memory.cast::<u8>().write_bytes(1, bytes) };
            }
            let address = memory.expose_provenance();
            ask_for_huge_pages(address + 1, bytes - 1);
            assert_eq!(was_asked(address + bytes / 2), asked, "{bytes} {touched}");
            // SAFETY: nobody uses it any more.
            assert_eq!(unsafe { libc::munmap(memory, bytes) }, 0);
        }
    }
}
