//! Forks: what tells a child, which inherits what its parent knows of threads but not the threads, from its parent.

use std::process;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// What tells a child from its parent: how many forks lie behind it, since its id may be its parent's (that of the
/// first process of a container and of its child in a namespace of its own); and its id, for a child that was cloned
/// without calling the handlers of fork.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    forks: u32,
    id: u32,
}

static FORKS: AtomicU32 = AtomicU32::new(0);

impl Process {
    pub fn current() -> Process {
        Process { forks: FORKS.load(Ordering::Relaxed), id: process::id() }
    }
}

unsafe extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Whether forks are counted from here on.
pub fn counts_forks() -> bool {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_told_from_its_parent_even_if_it_has_its_id() {
        assert!(counts_forks());
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
