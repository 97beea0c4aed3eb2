//! Who runs the loops of a call: the threads of the library that its tensors are of, where that lends them, or else the
//! pool of our own.

use std::cell::Cell;
use std::fmt::Debug;

use super::pool::{self, Pool};
use super::{float_modes, forks};

/// The threads of a library, for calls on its tensors.
pub trait Workers: Debug + Sync {
    /// How many there are for the calling thread, which is one of them.
    fn count(&self) -> usize;

    /// Calls `work` with each number below `times`, at the same time as far as there are threads. Where the library can, a number
    /// is on the same thread in every call. On return no call of `work` is running.
    fn run(&self, times: usize, work: &(dyn Fn(usize) + Sync));
}

#[derive(Clone, Copy)]
enum Duty {
    /// Nobody lends threads.
    None,
    Lent(&'static dyn Workers),
    /// This thread works for another one's call.
    Worker,
}

thread_local! {
    static DUTY: Cell<Duty> = const { Cell::new(Duty::None) };
    /// So many threads of the lending library's were found to have room, for this one.
    static ROOM: Cell<usize> = const { Cell::new(1) };
}

/// Sets what this thread is there for, until it is dropped.
struct Shift(Duty);

impl Shift {
    fn begin(duty: Duty) -> Shift {
        Shift(DUTY.replace(duty))
    }
}

impl Drop for Shift {
    fn drop(&mut self) {
        DUTY.set(self.0);
    }
}

/// Runs `work`, whose loops the workers are to run, if there are any.
pub fn with<T>(workers: Option<&'static dyn Workers>, work: impl FnOnce() -> T) -> T {
    let _shift = workers.map(|workers| Shift::begin(Duty::Lent(workers)));
    work()
}

/// Whether this thread works for another one's call, or for its own with others.
pub fn is_worker() -> bool {
    matches!(DUTY.get(), Duty::Worker)
}

/// The threads that a loop can have.
#[derive(Clone, Copy, Debug)]
pub enum Crew {
    Alone,
    /// Some threads of a pool, or all.
    Pool(&'static Pool, usize),
    Lent(&'static dyn Workers, usize),
}

impl Crew {
    /// Those that the calling thread has at its disposal.
    pub fn current() -> Crew {
        match DUTY.get() {
            Duty::Worker => Crew::Alone,
            Duty::None => Crew::of_pool(usize::MAX),
            Duty::Lent(workers) => match workers.count() {
                0 | 1 => Crew::Alone,
                // A forked child has inherited what its parent knows of these threads, but not them.
                count if forks::is_forked() || !has_room(count) => Crew::of_pool(count),
                count => Crew::Lent(workers, count),
            },
        }
    }

    fn of_pool(most: usize) -> Crew {
        match pool::pool() {
            Some(pool) => Crew::Pool(pool, pool.threads().min(most)),
            None => Crew::Alone,
        }
    }

    pub fn count(self) -> usize {
        match self {
            Crew::Alone => 1,
            Crew::Pool(_, count) | Crew::Lent(_, count) => count,
        }
    }

    /// Calls `work`, which takes tasks from somewhere until there are none, on so many of the threads at once, with a number
    /// that is the thread's own as far as possible.
    pub fn run(self, threads: usize, work: &(dyn Fn(usize) + Sync)) {
        if let Crew::Alone = self {
            return work(0);
        }
        // Workers compute in the modes of their caller, and loops within the work are serial.
        let modes = float_modes::current();
        let on_duty = |place| {
            let _shift = Shift::begin(Duty::Worker);
            float_modes::within(modes, || work(place));
        };
        match self {
            Crew::Alone => {}
            Crew::Pool(pool, _) => pool.run(threads, &on_duty),
            Crew::Lent(workers, _) => {
                workers.run(threads, &on_duty);
                // Where the workers could not do it all.
                work(0);
            }
        }
    }
}

/// Whether so many threads of a lending library can start; they end the process where they cannot.
fn has_room(count: usize) -> bool {
    let room = ROOM.get().max(count);
    if room > ROOM.get() && pool::has_room(count) {
        ROOM.set(room);
    }
    ROOM.get() >= count
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;
    use crate::cpu::parallel;

    /// Makes the first so many calls, each on a thread of its own.
    #[derive(Debug)]
    struct Reliable(usize);

    /// Passes numbers beyond those of the threads, as a pool does whose later workers came first.
    #[derive(Debug)]
    struct Distant;

    impl Workers for Distant {
        fn count(&self) -> usize {
            3
        }

        fn run(&self, times: usize, work: &(dyn Fn(usize) + Sync)) {
            thread::scope(|scope| {
                for place in 0..times {
                    scope.spawn(move || work(7 * place + 2));
                }
            });
        }
    }

    impl Workers for Reliable {
        fn count(&self) -> usize {
            3
        }

        fn run(&self, times: usize, work: &(dyn Fn(usize) + Sync)) {
            thread::scope(|scope| {
                for place in 0..times.min(self.0) {
                    scope.spawn(move || work(place));
                }
            });
        }
    }

    static ALL: Reliable = Reliable(3);
    static SOME: Reliable = Reliable(1);
    static NONE: Reliable = Reliable(0);

    #[test]
    fn every_task_is_done_once_even_by_workers_that_fail() {
        for workers in [&ALL as &dyn Workers, &SOME, &NONE, &Distant] {
            let done: Vec<_> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
            let mut chunks = vec![0; 1003];
            with(Some(workers), || {
                parallel::for_each(done.len(), true, |task| {
                    done[task].fetch_add(1, Ordering::Relaxed);
                });
                parallel::for_chunks(&mut chunks, 5, true, |i, chunk| chunk.fill(i + 1));
            });
            assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1));
            assert!(chunks.iter().enumerate().all(|(i, &chunk)| chunk == i / 5 + 1));
        }
    }

    #[test]
    fn loops_within_a_loop_are_serial() {
        let inner = AtomicUsize::new(0);
        with(Some(&ALL), || {
            assert_eq!(parallel::threads(), 3);
            parallel::for_each(100, true, |_| {
                if matches!(DUTY.get(), Duty::Worker) {
                    assert_eq!(parallel::threads(), 1);
                }
                parallel::for_each(10, true, |_| {
                    inner.fetch_add(1, Ordering::Relaxed);
                });
            });
            assert_eq!(parallel::threads(), 3);
        });
        assert_eq!(inner.into_inner(), 1000);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn workers_compute_in_the_modes_of_their_caller() {
        const FLUSH: u64 = 0x8000;
        let own = float_modes::current();
        float_modes::within(own | FLUSH, || {
            let flushing = AtomicUsize::new(0);
            with(Some(&ALL), || {
                parallel::for_each(100, true, |_| {
                    flushing.fetch_add(usize::from(float_modes::current() == own | FLUSH), Ordering::Relaxed);
                });
            });
            assert_eq!(flushing.into_inner(), 100);
        });
        assert_eq!(float_modes::current(), own);
    }
}
