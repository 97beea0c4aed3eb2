//! Work over threads: a pool that survives fork, and loops that stay serial when threads cost more.

use std::env;
use std::num::NonZero;
use std::ops::Range;
use std::process;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::thread;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Waking the pool from outside takes 5 to 30 us; below this much serial work it does not pay.
const SERIAL_BELOW_NS: f64 = 100_000.0;

struct Pool {
    process: u32,
    threads: ThreadPool,
}

/// The pool of this process, or null. Replaced pools are leaked: their threads live in another process.
static POOL: AtomicPtr<Pool> = AtomicPtr::new(ptr::null_mut());

/// How many threads the environment asks for, 0 for a thread a core: RAYON_NUM_THREADS, or what users of torch and NumPy
/// limit a process by and torchrun sets, OMP_NUM_THREADS. No more than 16 a core: thousands take minutes to start.
fn asked_for() -> usize {
    let text = ["RAYON_NUM_THREADS", "OMP_NUM_THREADS"].into_iter().find_map(|name| env::var(name).ok());
    // "4,2" is for nested regions, of which there are none here.
    let asked = text.and_then(|text| text.split(',').next()?.trim().parse().ok()).unwrap_or(0);
    asked.min(16 * thread::available_parallelism().map_or(1, NonZero::get))
}

/// A pool of our own instead of rayon's global one, since a forked child (a torch DataLoader worker, say)
/// inherits a pool without its threads and would wait for them forever. None if threads cannot be had.
fn pool() -> Option<&'static ThreadPool> {
    let current = POOL.load(Ordering::Acquire);
    // SAFETY: POOL is null or came from Box::into_raw below, fully initialised, and is never freed.
    if let Some(pool) = unsafe { current.as_ref() }
        && pool.process == process::id()
    {
        return Some(&pool.threads);
    }
    let builder = ThreadPoolBuilder::new().num_threads(asked_for());
    let threads = builder.thread_name(|i| format!("tilewise-{i}")).build().ok()?;
    let fresh = Box::into_raw(Box::new(Pool { process: process::id(), threads }));
    match POOL.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: `fresh` was made just now and POOL owns it forever.
        Ok(_) => Some(unsafe { &(*fresh).threads }),
        Err(winner) => {
            // SAFETY: another thread of this process was quicker, so `fresh` was never shared; `winner` is
            // never freed.
            let (pool, _) = unsafe { (&*winner, Box::from_raw(fresh)) };
            Some(&pool.threads)
        }
    }
}

/// Threads that parallel loops use.
pub fn threads() -> usize {
    pool().map_or(1, ThreadPool::current_num_threads)
}

/// Whether work of about `nanoseconds` on one thread is worth more threads.
pub fn pays(nanoseconds: f64) -> bool {
    nanoseconds > SERIAL_BELOW_NS && threads() > 1
}

/// Runs `work` within the pool if `parallel`, so that rayon calls made by other crates use it; `work` is
/// told whether there are threads to use.
pub fn within(parallel: bool, work: impl FnOnce(bool) + Send) {
    match if parallel { pool() } else { None } {
        Some(pool) => pool.install(|| work(true)),
        None => work(false),
    }
}

/// Calls `work` on pieces of whole rows of `width` elements, with the index of each piece's first row.
pub fn for_rows<T: Send>(
    elements: &mut [T],
    width: usize,
    parallel: bool,
    work: impl Fn(usize, &mut [T]) + Sync + Send,
) {
    match if parallel { pool() } else { None } {
        Some(pool) => pool.install(|| {
            let rows = (8192 / width).max(1);
            let pieces = elements.par_chunks_mut(rows * width).enumerate();
            pieces.for_each(|(i, piece)| work(i * rows, piece));
        }),
        None => work(0, elements),
    }
}

/// Calls `work` for every task of 0..tasks, in any order.
pub fn for_each(tasks: usize, parallel: bool, work: impl Fn(usize) + Sync + Send) {
    match if parallel && tasks > 1 { pool() } else { None } {
        Some(pool) => pool.install(|| (0..tasks).into_par_iter().for_each(work)),
        None => (0..tasks).for_each(work),
    }
}

/// `work` of every task of 0..tasks, in order, with a scratch of `init` that tasks on one thread may share.
pub fn map_with<S, R: Send>(
    tasks: usize,
    parallel: bool,
    init: impl Fn() -> S + Sync + Send,
    work: impl Fn(&mut S, usize) -> R + Sync + Send,
) -> Vec<R> {
    match if parallel && tasks > 1 { pool() } else { None } {
        Some(pool) => pool.install(|| (0..tasks).into_par_iter().map_init(init, work).collect()),
        None => {
            let mut scratch = init();
            (0..tasks).map(|task| work(&mut scratch, task)).collect()
        }
    }
}

/// Calls `work` on pieces of 0..`len`, each a multiple of `multiple` long but the last.
pub fn for_ranges(len: usize, multiple: usize, nanoseconds: f64, work: impl Fn(Range<usize>) + Sync + Send) {
    if !pays(nanoseconds) {
        return work(0..len);
    }
    // Several pieces a thread, so that one that is late does not hold up the rest.
    let piece = len.div_ceil(threads() * 4).next_multiple_of(multiple);
    for_each(len.div_ceil(piece), true, |i| work(i * piece..len.min((i + 1) * piece)));
}
