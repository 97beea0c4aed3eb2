//! Streaming stores: large results go past all caches. No line of an output is then
//! read before it is written, which is a quarter of an addition's traffic.

use std::cell::Cell;
use std::ops::Range;

use super::element::Element;
use super::isa::{CACHE_LINE, Isa};

thread_local! {
    /// Whether this thread has streamed since it last called [`finish`].
    static UNFINISHED: Cell<bool> = const { Cell::new(false) };
}

/// Whether an output of so many bytes, computed from so many others, should be streamed.
pub fn pays(written: usize, read: usize, threads: impl FnOnce() -> usize) -> bool {
    #[cfg(target_arch = "x86_64")]
    return written >= LEAST
        && super::isa::has_avx2()
        && (cfg!(test) || is_worth(x86::last_level_cache(), written, read, threads));
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// With one thread, outputs of at least half of the last-level cache; with several, where output and inputs together are at least
/// twice that cache. Just above these limits a reader of the output loses more than was gained; far above, nothing
/// (docs/measurements/cpu_memory_bound.md).
#[cfg(target_arch = "x86_64")]
fn is_worth(cache: usize, written: usize, read: usize, threads: impl FnOnce() -> usize) -> bool {
    written + read >= 2 * cache || written >= cache / 2 && threads() == 1
}

/// Fewer bytes are never streamed: some virtual CPUs have caches of no size. Tests have no outputs as large as caches.
#[cfg(target_arch = "x86_64")]
const LEAST: usize = if cfg!(test) { 1 << 10 } else { 8 << 20 };

/// Results that can be computed a few at a time.
pub trait Fill<T> {
    /// Those at a range of places.
    fn fill<I: Isa>(&self, isa: I, range: Range<usize>, to: &mut [T]);
}

/// Elements that are computed and streamed in turns: with more of them the inputs' loads wait for the stores.
const CHUNK: usize = 128;

#[repr(align(64))]
struct Chunk<T>([T; CHUNK]);

/// Fills `to` past the caches, where [`pays`] has said so. Other threads may use it once this one has called [`finish`].
#[inline(always)]
pub fn fill<T: Element, I: Isa>(isa: I, to: &mut [T], by: &impl Fill<T>) {
    UNFINISHED.set(true);
    let mut chunk = Chunk([T::default(); CHUNK]);
    // Up to the first line; lines from there on.
    let before = to.as_ptr().align_offset(CACHE_LINE).min(to.len());
    let mut count = if before > 0 { before } else { CHUNK.min(to.len()) };
    let mut start = 0;
    while start < to.len() {
        let results = &mut chunk.0[..count];
        by.fill(isa, start..start + count, results);
        let to_rest = &mut to[start..start + count];
        let lines = if start < before { 0 } else { size_of_val(to_rest) / CACHE_LINE };
        let (first, rest) = (to_rest.as_mut_ptr().cast::<u8>(), lines * CACHE_LINE / size_of::<T>());
        for i in 0..lines {
            // SAFETY: `lines` are within both, and what is left of `to` begins with one.
            unsafe {
                isa.stream_line(results.as_ptr().cast::<u8>().add(i * CACHE_LINE), first.add(i * CACHE_LINE))
            };
        }
        // `copy_from_slice` calls memcpy, even for no bytes.
        if rest < count {
            to_rest[rest..].copy_from_slice(&results[rest..]);
        }
        start += count;
        count = CHUNK.min(to.len() - start);
    }
}

/// Lets other threads see what this one has streamed: such stores are ordered by nothing else.
pub fn finish() {
    if UNFINISHED.replace(false) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: every x86-64 has the instruction.
        unsafe {
            std::arch::x86_64::_mm_sfence();
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::sync::LazyLock;

    use raw_cpuid::CpuId;

    /// Bytes of the last-level caches of all threads.
    pub fn last_level_cache() -> usize {
        static BYTES: LazyLock<usize> = LazyLock::new(|| {
            let caches = CpuId::new().get_cache_parameters().into_iter().flatten();
            let last = caches.max_by_key(raw_cpuid::CacheParameter::level);
            last.map_or(0, |cache| {
                let ways = cache.associativity() * cache.physical_line_partitions();
                let bytes = cache.sets() * ways * cache.coherency_line_size();
                let threads = std::thread::available_parallelism().map_or(1, Into::into);
                bytes * threads.div_ceil(cache.max_cores_for_cache().max(1))
            })
        });
        *BYTES
    }
}

#[cfg(test)]
mod tests {
    use super::super::isa::{Kernel, dispatch};
    use super::*;

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn only_one_thread_streams_what_the_caches_have_room_for() {
        let unasked = || panic!("the number of threads does not matter");
        assert!(!is_worth(64, 31, 62, unasked));
        assert!(is_worth(64, 32, 32, || 1));
        assert!(!is_worth(64, 32, 95, || 2));
        assert!(is_worth(64, 32, 96, unasked));
        assert!(is_worth(64, 128, 0, unasked));
    }

    struct Places;

    impl Fill<i16> for Places {
        fn fill<I: Isa>(&self, _: I, range: Range<usize>, to: &mut [i16]) {
            for (place, to) in range.zip(to) {
                *to = place as i16 + 1;
            }
        }
    }

    struct FillPlaces<'a>(&'a mut [i16]);

    impl Kernel for FillPlaces<'_> {
        type Output = ();

        #[inline(always)]
        fn run<I: Isa>(self, isa: I) {
            fill(isa, self.0, &Places);
        }
    }

    #[test]
    fn every_element_is_filled_and_no_other() {
        for first in 0..34 {
            for len in [0, 1, 31, 32, 33, 127, 128, 129, 160, 300] {
                let mut all = vec![0; 400];
                dispatch(FillPlaces(&mut all[first..first + len]));
                finish();
                let (before, rest) = all.split_at(first);
                let (filled, behind) = rest.split_at(len);
                assert!(filled.iter().copied().eq(1..=len as i16), "{first} {len}");
                assert!(before.iter().chain(behind).all(|&element| element == 0));
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn the_cache_is_of_no_absurd_size() {
        assert!(x86::last_level_cache() < 1 << 40, "{}", x86::last_level_cache());
    }
}
