//! Loops over threads, that stay serial when threads cost more.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use super::workers::Crew;

/// Waking a pool from outside takes 5 to 30 us; below this much serial work it does not pay.
const SERIAL_BELOW_NS: f64 = 100_000.0;

/// As often a thread comes for tasks, at least, so that one that is late does not hold up the rest.
const ROUNDS: usize = 32;

/// Threads that parallel loops use.
pub fn threads() -> usize {
    Crew::current().count()
}

/// Whether work of about `nanoseconds` on one thread is worth more threads, if there are any.
pub fn is_long(nanoseconds: f64) -> bool {
    nanoseconds > SERIAL_BELOW_NS
}

/// Whether it is worth those that there are.
pub fn pays(nanoseconds: f64) -> bool {
    is_long(nanoseconds) && threads() > 1
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

/// Calls `work` for every item, of which there are so many; each thread has a scratch of `init`.
fn share<I: Send, S>(
    crew: Crew,
    mut items: impl ExactSizeIterator<Item = I> + Send,
    init: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, I) + Sync,
) {
    if matches!(crew, Crew::Alone) {
        let mut scratch = init();
        return items.for_each(|item| work(&mut scratch, item));
    }
    let threads = crew.count().min(items.len());
    let items = Mutex::new(&mut items);
    let next = || items.lock().unwrap_or_else(PoisonError::into_inner).next();
    crew.run(threads, &|| {
        let Some(mut item) = next() else { return };
        let mut scratch = init();
        loop {
            work(&mut scratch, item);
            match next() {
                Some(another) => item = another,
                None => return,
            }
        }
    });
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
    let batch = batch(crew, tasks);
    share(crew, (0..tasks).step_by(batch), init, |scratch, first| {
        (first..tasks.min(first + batch)).for_each(|task| work(scratch, task));
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
    share(crew, elements.chunks_mut(batch * width).enumerate(), init, |scratch, (i, chunks)| {
        for (j, chunk) in chunks.chunks_mut(width).enumerate() {
            work(scratch, i * batch + j, chunk);
        }
    });
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
