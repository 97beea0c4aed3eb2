//! Threads of our own, for calls whose library lends none: a pool that survives fork.
//!
//! A call hands its threads one closure, which takes tasks from somewhere until there are none. The caller is one of the
//! threads. It waits only for workers that have begun, so that one which wakes late holds up nobody.

use std::any::Any;
use std::env;
use std::num::NonZero;
use std::panic::{self, AssertUnwindSafe};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use super::forks::{Process, counts_forks};
use super::memory;

/// How long a worker looks for the next work before it sleeps: work then starts within a microsecond, and a worker that
/// sleeps takes some ten to wake.
const AWAKE: Duration = Duration::from_micros(100);

#[derive(Debug)]
pub struct Pool {
    process: Process,
    /// Threads of a call, its caller among them.
    threads: usize,
    /// A call has the workers. Another call of that moment works alone.
    taken: AtomicBool,
    workers: OnceLock<Box<[Worker]>>,
    gate: Gate,
    job: AtomicPtr<Job<'static>>,
}

#[derive(Debug)]
struct Worker {
    thread: Thread,
    sleeps: AtomicBool,
}

struct Job<'a> {
    work: &'a (dyn Fn(usize) + Sync),
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// The number of the current call, how many workers it still lets in, and how many are inside: 32, 16 and 16 bits of one
/// number, so that a worker goes in only to the call that it has seen.
#[derive(Debug)]
struct Gate(AtomicU64);

const SEAT: u64 = 1 << 16;
const INSIDE: u64 = SEAT - 1;
const SEATS: u64 = INSIDE * SEAT;

fn call_of(state: u64) -> u64 {
    state >> 32
}

impl Gate {
    /// Begins a call. Nobody is inside or can come in before.
    fn open(&self, seats: u64) {
        let call = (call_of(self.0.load(Ordering::Relaxed)) + 1) & u64::from(u32::MAX);
        self.0.store((call << 32) | (seats * SEAT), Ordering::SeqCst);
    }

    fn enter(&self, call: u64) -> bool {
        let enter = |state| (call_of(state) == call && state & SEATS > 0).then(|| state - SEAT + 1);
        self.0.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok()
    }

    fn leave(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Lets nobody in any more, and waits until all are out.
    fn close(&self) {
        let mut state = self.0.fetch_and(!SEATS, Ordering::Acquire);
        let mut looks = 0;
        while state & INSIDE > 0 {
            looks += 1;
            if looks % 1024 == 0 {
                thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
            state = self.0.load(Ordering::Acquire);
        }
    }
}

/// A call that has the workers, until it is dropped.
struct Open<'a>(&'a Pool);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.gate.close();
        self.0.taken.store(false, Ordering::Release);
    }
}

impl Pool {
    fn new(process: Process) -> Option<Pool> {
        let mut threads = count();
        while !has_room(threads) {
            threads /= 2;
            if threads < 2 {
                return None;
            }
        }
        counts_forks().then(|| Pool {
            process,
            threads,
            taken: AtomicBool::new(false),
            workers: OnceLock::new(),
            gate: Gate(AtomicU64::new(0)),
            job: AtomicPtr::new(ptr::null_mut()),
        })
    }

    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `work` on the calling thread, with 0, and on as many workers as make up so many threads and come in time, with
    /// the number of each, from 1 on. A number may be larger than `threads`: any worker may come.
    pub fn run(&'static self, threads: usize, work: &(dyn Fn(usize) + Sync)) {
        if threads < 2 || self.taken.swap(true, Ordering::Acquire) {
            return work(0);
        }
        let job = Job { work, panic: Mutex::new(None) };
        {
            let _open = Open(self);
            let workers = self.workers.get_or_init(|| self.start());
            let seats = workers.len().min(threads - 1);
            self.job.store((&raw const job).cast_mut().cast(), Ordering::Relaxed);
            self.gate.open(seats as u64);
            (0..seats.min(2)).for_each(|i| self.wake(i));
            work(0);
        }
        if let Some(payload) = job.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            panic::resume_unwind(payload);
        }
    }

    /// As many workers as there are threads to be had.
    fn start(&'static self) -> Box<[Worker]> {
        let start = |i: usize| {
            let thread = thread::Builder::new().name(format!("tilewise-{i}"));
            let started = thread.spawn(move || self.serve(i)).ok()?;
            Some(Worker { thread: started.thread().clone(), sleeps: AtomicBool::new(false) })
        };
        (0..self.threads - 1).map_while(start).collect()
    }

    fn wake(&self, index: usize) {
        if let Some(worker) = self.workers.get().and_then(|workers| workers.get(index))
            && worker.sleeps.load(Ordering::SeqCst)
        {
            worker.thread.unpark();
        }
    }

    /// What a worker does all its life.
    fn serve(&self, index: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_call(index, seen);
            if !self.gate.enter(seen) {
                continue;
            }
            // Each wakes two, so that the caller need not wake all.
            (2 * index + 2..2 * index + 4).for_each(|i| self.wake(i));
            // SAFETY: the job of a call is alive until all that have entered are out, and `enter` is after the store of
            // its address.
            let job = unsafe { &*self.job.load(Ordering::Relaxed) };
            if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(|| (job.work)(index + 1))) {
                *job.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
            }
            self.gate.leave();
        }
    }

    /// The number of a call after the one that was seen.
    fn next_call(&self, index: usize, seen: u64) -> u64 {
        let current = || call_of(self.gate.0.load(Ordering::SeqCst));
        let until = Instant::now() + AWAKE;
        loop {
            for _ in 0..256 {
                let call = current();
                if call != seen {
                    return call;
                }
                std::hint::spin_loop();
            }
            // It is not in the list at once.
            let worker = self.workers.get().and_then(|workers| workers.get(index));
            if let Some(worker) = worker
                && Instant::now() > until
            {
                worker.sleeps.store(true, Ordering::SeqCst);
                if current() == seen {
                    thread::park();
                }
                worker.sleeps.store(false, Ordering::Relaxed);
            }
        }
    }
}

/// As many threads as the environment asks for, or one a core: TILEWISE_NUM_THREADS, RAYON_NUM_THREADS, or what users of
/// torch and NumPy limit a process by and torchrun sets, OMP_NUM_THREADS. No more than 16 a core: thousands take minutes
/// to start.
fn count() -> usize {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    const OURS: &str = "TILEWISE_NUM_THREADS";
    let names = [OURS, "RAYON_NUM_THREADS", "OMP_NUM_THREADS"];
    let text = names.into_iter().find_map(|name| env::var(name).ok());
    // "4,2" is for nested regions, of which there are none here.
    let asked = text.and_then(|text| text.split(',').next()?.trim().parse().ok()).filter(|&asked| asked > 0);
    if let (Ok(wrong), None) = (env::var(OURS), asked)
        && !wrong.is_empty()
    {
        eprintln!("tilewise: {OURS}={wrong:?} is not a positive integer: one thread per core is used");
    }
    asked.map_or(cores, |asked: usize| asked.min(16 * cores)).min(INSIDE as usize)
}

/// What a thread takes of addresses before it works: 64 MiB that malloc reserves for it, and a stack.
const THREAD: usize = 72 << 20;

/// Whether the system has room for so many threads.
pub fn has_room(threads: usize) -> bool {
    memory::has_room(threads.saturating_mul(THREAD))
}

/// The pool of this process. None if threads cannot be had.
pub fn pool() -> Option<&'static Pool> {
    // Replaced pools are leaked: their threads live in another process.
    static POOL: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());
    let process = Process::current();
    let current = POOL.load(Ordering::Acquire);
    // SAFETY: what is in POOL is null or came from Box::into_raw below, fully initialised, and is never freed.
    if let Some(pool) = unsafe { current.as_ref() }.filter(|pool| pool.process == process) {
        return Some(pool);
    }
    let fresh = Box::into_raw(Box::new(Pool::new(process)?));
    let there = match POOL.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => fresh,
        Err(quicker) => {
            // SAFETY: another thread of this process was quicker, so `fresh` was never shared and has no workers.
            drop(unsafe { Box::from_raw(fresh) });
            quicker
        }
    };
    // SAFETY: as above.
    Some(unsafe { &*there })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn with_threads(threads: usize) -> &'static Pool {
        counts_forks();
        let pool = Pool::new(Process::current()).expect("there is room");
        Box::leak(Box::new(Pool { threads, ..pool }))
    }

    /// Work that takes tasks until there are none.
    fn tasks(done: &[AtomicUsize]) -> impl Fn(usize) + Sync {
        let next = AtomicUsize::new(0);
        move |_| {
            while let Some(times) = done.get(next.fetch_add(1, Ordering::Relaxed)) {
                times.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    #[test]
    fn each_task_of_calls_from_many_threads_is_done_once() {
        for threads in [1, 2, 3, 9] {
            let pool = with_threads(threads);
            thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        for call in 0..2000 {
                            let done: Vec<_> = (0..17).map(|_| AtomicUsize::new(0)).collect();
                            pool.run(threads, &tasks(&done));
                            assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1));
                            if call % 500 == 0 {
                                thread::sleep(2 * AWAKE);
                            }
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn workers_come() {
        let pool = with_threads(3);
        for _ in 0..20 {
            let (inside, places) = (AtomicUsize::new(0), AtomicUsize::new(0));
            // Nobody leaves before all three are there.
            pool.run(3, &|place| {
                places.fetch_or(1 << place, Ordering::SeqCst);
                inside.fetch_add(1, Ordering::SeqCst);
                while inside.load(Ordering::SeqCst) < 3 {
                    thread::yield_now();
                }
            });
            assert_eq!((inside.into_inner(), places.into_inner()), (3, 0b111));
        }
    }

    #[test]
    fn a_panic_of_a_worker_reaches_the_caller_and_the_next_call_works() {
        let pool = with_threads(2);
        let caller = thread::current().id();
        let inside = AtomicUsize::new(0);
        let work = |_| {
            inside.fetch_add(1, Ordering::SeqCst);
            while inside.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
            assert_eq!(thread::current().id(), caller, "no caller");
        };
        let raised = panic::catch_unwind(AssertUnwindSafe(|| pool.run(2, &work)));
        assert!(raised.is_err());
        let done = [AtomicUsize::new(0)];
        pool.run(2, &tasks(&done));
        assert_eq!(done[0].load(Ordering::Relaxed), 1);
    }
}
