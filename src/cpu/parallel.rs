//! Loops over threads, that stay serial when threads cost more.

use std::ops::Range;

use rayon::ThreadPool;
use rayon::prelude::*;

use super::pool::pool;

/// Waking the pool from outside takes 5 to 30 us; below this much serial work it does not pay.
const SERIAL_BELOW_NS: f64 = 100_000.0;

/// Threads that parallel loops use.
pub fn threads() -> usize {
    pool().map_or(1, ThreadPool::current_num_threads)
}

/// Whether work of about `nanoseconds` on one thread is worth more threads, if there are any.
pub fn is_long(nanoseconds: f64) -> bool {
    nanoseconds > SERIAL_BELOW_NS
}

/// Whether it is worth those that there are.
pub fn pays(nanoseconds: f64) -> bool {
    is_long(nanoseconds) && threads() > 1
}

/// Runs `work` within the pool if `parallel`, so that rayon calls made by other crates use it; `work` is
/// told whether there are threads to use.
pub fn within(parallel: bool, work: impl FnOnce(bool) + Send) {
    match if parallel { pool() } else { None } {
        Some(pool) => pool.install(|| work(true)),
        None => work(false),
    }
}

/// Calls `work` for every task of 0..tasks, in any order.
pub fn for_each(tasks: usize, parallel: bool, work: impl Fn(usize) + Sync + Send) {
    for_each_with(tasks, parallel, || (), |(), task| work(task));
}

/// The same with a scratch of `init` that tasks on one thread may share.
pub fn for_each_with<S>(
    tasks: usize,
    parallel: bool,
    init: impl Fn() -> S + Sync + Send,
    work: impl Fn(&mut S, usize) + Sync + Send,
) {
    match if parallel && tasks > 1 { pool() } else { None } {
        Some(pool) => pool.install(|| (0..tasks).into_par_iter().for_each_init(init, work)),
        None => {
            let mut scratch = init();
            (0..tasks).for_each(|task| work(&mut scratch, task));
        }
    }
}

/// Calls `work` for every chunk of `width` elements, in any order, with its index.
pub fn for_chunks<T: Send>(
    elements: &mut [T],
    width: usize,
    parallel: bool,
    work: impl Fn(usize, &mut [T]) + Sync + Send,
) {
    for_chunks_with(elements, width, parallel, || (), |(), i, chunk| work(i, chunk));
}

/// The same with a scratch of `init` that chunks on one thread may share.
pub fn for_chunks_with<T: Send, S>(
    elements: &mut [T],
    width: usize,
    parallel: bool,
    init: impl Fn() -> S + Sync + Send,
    work: impl Fn(&mut S, usize, &mut [T]) + Sync + Send,
) {
    match if parallel && elements.len() > width { pool() } else { None } {
        Some(pool) => pool.install(|| {
            let chunks = elements.par_chunks_mut(width).enumerate();
            chunks.for_each_init(init, |scratch, (i, chunk)| work(scratch, i, chunk));
        }),
        None => {
            let mut scratch = init();
            elements.chunks_mut(width).enumerate().for_each(|(i, chunk)| work(&mut scratch, i, chunk));
        }
    }
}

/// Calls `work` on pieces of whole rows of `width` elements, with the index of each piece's first row.
pub fn for_rows<T: Send>(
    elements: &mut [T],
    width: usize,
    parallel: bool,
    work: impl Fn(usize, &mut [T]) + Sync + Send,
) {
    let rows = (8192 / width).max(1);
    for_chunks(elements, rows * width, parallel, |i, piece| work(i * rows, piece));
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
