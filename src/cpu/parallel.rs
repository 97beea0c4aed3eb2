//! Loops over threads, that stay serial when threads cost more.

use std::iter;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use super::streaming;
use super::workers::{self, Crew};

/// Waking a pool from outside takes 5 to 30 us; below this much serial work it does not pay.
const SERIAL_BELOW_NS: f64 = 100_000.0;

/// The same of threads that a library lends: they are awake while its operations follow one another.
const SERIAL_BELOW_NS_LENT: f64 = 6_000.0;

/// What a piece of a range is worth, at least, if a thread has several.
const PIECE_NS: f64 = 20_000.0;

/// As often a thread comes for tasks, at least, so that one that is late does not hold up the rest.
const ROUNDS: usize = 32;

/// Threads that parallel loops use.
pub fn threads() -> usize {
    Crew::current().count()
}

/// Whether no other threads do a part of this one's call, nor could.
pub fn is_alone() -> bool {
    !workers::is_worker() && threads() == 1
}

/// Whether work of about `nanoseconds` on one thread is worth any threads, wherever they are from.
pub fn is_long(nanoseconds: f64) -> bool {
    nanoseconds > SERIAL_BELOW_NS
}

/// Whether it is worth those that there are.
pub fn pays(nanoseconds: f64) -> bool {
    crew_for(nanoseconds).count() > 1
}

/// The threads that it is worth.
fn crew_for(nanoseconds: f64) -> Crew {
    if nanoseconds <= SERIAL_BELOW_NS_LENT {
        return Crew::Alone;
    }
    match Crew::current() {
        Crew::Pool(..) if !is_long(nanoseconds) => Crew::Alone,
        crew => crew,
    }
}

/// The threads for a loop over so many tasks.
fn crew(tasks: usize, parallel: bool) -> Crew {
    if parallel && tasks > 1 { Crew::current() } else { Crew::Alone }
}

/// Tasks that a thread takes at once, of so many.
fn batch(crew: Crew, tasks: usize) -> usize {
    match crew {
        Crew::Alone => tasks,
        _ => tasks.div_ceil(crew.count() * ROUNDS),
    }
    .max(1)
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
    let crew = crew(tasks, parallel);
    for_batches(crew, tasks, batch(crew, tasks), init, work);
}

/// Neighbouring tasks, the same in every call, with which one thread begins: it finds in its caches what it left there. Threads
/// that are done with their own share take from the others'.
#[repr(align(64))] // A cache line of its own: others touch it only when they are done with theirs.
struct Share {
    next: AtomicUsize,
    end: usize,
}

impl Share {
    /// The `i`-th of so many, all about as long.
    fn nth(i: usize, shares: usize, tasks: usize) -> Share {
        let start = |i: usize| i * (tasks / shares) + i.min(tasks % shares);
        Share { next: AtomicUsize::new(start(i)), end: start(i + 1) }
    }

    fn take(&self, batch: usize) -> Option<Range<usize>> {
        // Nobody waits for the line of one that is used up.
        if self.next.load(Ordering::Relaxed) >= self.end {
            return None;
        }
        let first = self.next.fetch_add(batch, Ordering::Relaxed);
        (first < self.end).then(|| first..self.end.min(first + batch))
    }
}

fn for_batches<S>(
    crew: Crew,
    tasks: usize,
    batch: usize,
    init: impl Fn() -> S + Sync + Send,
    work: impl Fn(&mut S, usize) + Sync + Send,
) {
    let threads = crew.count().min(tasks.div_ceil(batch));
    let shares: SmallVec<[Share; 8]> = (0..threads).map(|i| Share::nth(i, threads, tasks)).collect();
    crew.run(threads, &|place| {
        let share = |i: usize| &shares[(place + i) % threads];
        let mut batches = (0..threads).flat_map(|i| iter::from_fn(move || share(i).take(batch)));
        let Some(mut tasks) = batches.next() else { return };
        let mut scratch = init();
        loop {
            tasks.for_each(|task| work(&mut scratch, task));
            match batches.next() {
                Some(more) => tasks = more,
                None => return streaming::finish(),
            }
        }
    });
}

/// Calls `work` for every item, in any order; each thread has a scratch of `init`.
pub fn for_items<I: Send, S>(
    items: impl ExactSizeIterator<Item = I>,
    parallel: bool,
    init: impl Fn() -> S + Sync + Send,
    work: impl Fn(&mut S, I) + Sync + Send,
) {
    let crew = crew(items.len(), parallel);
    let mut shared = Vec::new();
    // Without memory for them they are one thread's.
    if matches!(crew, Crew::Alone) || shared.try_reserve_exact(items.len()).is_err() {
        let mut scratch = init();
        items.for_each(|item| work(&mut scratch, item));
        return streaming::finish();
    }
    shared.extend(items.map(|item| Mutex::new(Some(item))));
    for_batches(crew, shared.len(), 1, init, |scratch, i| {
        let item = shared[i].lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(item) = item {
            work(scratch, item);
        }
    });
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
    let chunks = elements.len().div_ceil(width);
    let crew = crew(chunks, parallel);
    let batch = batch(crew, chunks);
    for_items(elements.chunks_mut(batch * width).enumerate(), parallel, init, |scratch, (i, chunks)| {
        for (j, chunk) in chunks.chunks_mut(width).enumerate() {
            work(scratch, i * batch + j, chunk);
        }
    });
}

/// Calls `work` on pieces of 0..`len`, each a multiple of `multiple` long but the last.
pub fn for_ranges(len: usize, multiple: usize, nanoseconds: f64, work: impl Fn(Range<usize>) + Sync + Send) {
    let crew = crew_for(nanoseconds);
    let threads = crew.count();
    if threads == 1 {
        work(0..len);
        // No short work streams.
        if is_long(nanoseconds) {
            streaming::finish();
        }
        return;
    }
    // Several pieces a thread, so that one that is late does not hold up the rest, if they take a while.
    let each = (nanoseconds / PIECE_NS / threads as f64).clamp(1.0, 4.0) as usize;
    let piece = len.div_ceil(threads * each).next_multiple_of(multiple);
    let range = |i: usize| i * piece..len.min((i + 1) * piece);
    for_batches(crew, len.div_ceil(piece), 1, || (), |(), i| work(range(i)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_all_tasks_once_in_order() {
        for tasks in [0, 1, 2, 7, 64, 1000] {
            for shares in 1..9 {
                let all = (0..shares).map(|i| Share::nth(i, shares, tasks));
                let taken = all.flat_map(|share| iter::from_fn(move || share.take(3)).flatten());
                assert!(taken.eq(0..tasks), "{tasks} in {shares}");
            }
        }
    }
}
