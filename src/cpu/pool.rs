//! The threads: pools that survive fork, one for each set of floating-point modes that callers have.
//!
//! They are of our own, not rayon's global one, since a forked child (a torch DataLoader worker, say) inherits a
//! pool without its threads and would wait for them forever.

use std::env;
use std::num::NonZero;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::thread;

use rayon::{ThreadPool, ThreadPoolBuilder};

use super::{float_modes, memory};

struct Pool {
    process: Process,
    modes: u64,
    threads: ThreadPool,
}

/// The pools, from the front on; the rest is null. Modes are those of the thread that makes a pool, whose threads
/// inherit them (POSIX has it so) and keep them: tasks of other crates, which any thread of a pool may run, have no
/// other way to those of their caller. Two sets are usual, by `torch.set_flush_denormal`; who comes after these
/// computes alone. Replaced pools are leaked: their threads live in another process.
static POOLS: [AtomicPtr<Pool>; 4] = [const { AtomicPtr::new(ptr::null_mut()) }; 4];

/// What tells a child from its parent: how many forks lie behind it, since its id may be its parent's (that of the
/// first process of a container and of its child in a namespace of its own); and its id, for a child that was cloned
/// without calling the handlers of fork.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Process {
    forks: u32,
    id: u32,
}

static FORKS: AtomicU32 = AtomicU32::new(0);

impl Process {
    fn current() -> Process {
        Process { forks: FORKS.load(Ordering::Relaxed), id: process::id() }
    }
}

unsafe extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Whether forks are counted from here on.
fn counts_forks() -> bool {
    // No Once, which a child would wait for forever if its parent was in it. Counting forks twice does no harm.
    static COUNTED: AtomicBool = AtomicBool::new(false);
    // SAFETY: the handler changes an atomic number and nothing else.
    if !COUNTED.load(Ordering::Acquire) && unsafe { libc::pthread_atfork(None, None, Some(forked)) } == 0 {
        COUNTED.store(true, Ordering::Release);
    }
    COUNTED.load(Ordering::Acquire)
}

/// Whether this process may have been forked from one with threads: it was forked since this was first asked, or has run
/// no program of its own (a DataLoader's worker that imports tilewise when its parent has long used torch).
pub fn is_forked() -> bool {
    /// The id of the process that asked first; one that no process has, if that was forked itself.
    static FIRST: AtomicU32 = AtomicU32::new(0);
    let first = match FIRST.load(Ordering::Relaxed) {
        0 => {
            let first = if counts_forks() && !runs_its_parents_program() { process::id() } else { u32::MAX };
            FIRST.store(first, Ordering::Relaxed);
            first
        }
        first => first,
    };
    Process::current() != Process { forks: 0, id: first }
}

/// As Linux says, in the ninth field behind a name in brackets: forked, but did not exec.
fn runs_its_parents_program() -> bool {
    const FORKNOEXEC: u64 = 0x40;
    let status = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let flags = status.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(6)?.parse().ok());
    flags.is_some_and(|flags: u64| flags & FORKNOEXEC != 0)
}

/// As many threads as the environment asks for, or one a core: RAYON_NUM_THREADS, or what users of torch and NumPy limit
/// a process by and torchrun sets, OMP_NUM_THREADS. No more than 16 a core: thousands take minutes to start.
fn count() -> usize {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let text = ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"].into_iter().find_map(|name| env::var(name).ok());
    // "4,2" is for nested regions, of which there are none here.
    let asked = text.and_then(|text| text.split(',').next()?.trim().parse().ok()).filter(|&asked| asked > 0);
    asked.map_or(cores, |asked: usize| asked.min(16 * cores))
}

/// What a thread takes of addresses before it works: 64 MiB that malloc reserves for it, and a stack.
const THREAD: usize = 72 << 20;

/// Whether the system has room for so many threads.
pub fn has_room(threads: usize) -> bool {
    memory::has_room(threads.saturating_mul(THREAD))
}

fn start() -> Option<ThreadPool> {
    let mut count = count();
    while !has_room(count) {
        count /= 2;
        if count < 2 {
            return None;
        }
    }
    if !counts_forks() {
        return None;
    }
    let builder = ThreadPoolBuilder::new().num_threads(count);
    let pool = builder.thread_name(|i| format!("tilewise-{i}")).build().ok()?;
    // What is left of memory is known when all threads have theirs.
    pool.broadcast(|_| ());
    Some(pool)
}

/// The pool of this process for the calling thread's modes. None if threads cannot be had.
pub fn pool() -> Option<&'static ThreadPool> {
    let (process, modes) = (Process::current(), float_modes::current());
    for place in &POOLS {
        let current = place.load(Ordering::Acquire);
        // SAFETY: what is in POOLS is null or came from Box::into_raw below, fully initialised, and is never freed.
        match unsafe { current.as_ref() } {
            Some(pool) if pool.modes != modes => continue,
            Some(pool) if pool.process == process => return Some(&pool.threads),
            _ => {}
        }
        let fresh = Box::into_raw(Box::new(Pool { process, modes, threads: start()? }));
        let taken = place.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire);
        if taken.is_err() {
            // SAFETY: another thread of this process was quicker, so `fresh` was never shared.
            drop(unsafe { Box::from_raw(fresh) });
        }
        // SAFETY: as above, of whichever is there now.
        let there = unsafe { &*taken.map_or_else(|quicker| quicker, |_| fresh) };
        if there.modes == modes {
            return Some(&there.threads);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_told_from_its_parent_even_if_it_has_its_id() {
        assert!(pool().is_some());
        let parent = Process::current();
        // SAFETY: the child reads numbers and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let twin = Process { id: parent.id, ..Process::current() };
            // SAFETY: ends this process without running what its parent has registered for its own end.
            unsafe { libc::_exit(i32::from(twin == parent)) };
        }
        let mut status = -1;
        // SAFETY: `status` is there to be written.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(parent == Process::current());
        assert!(parent != Process { id: parent.id + 1, ..parent });
    }
}
