//! Work on as many cores as cargo allows.

use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::Result;

/// What `work` makes of every item, in their order. The first items begin first; after an error none begins.
pub fn in_parallel<'a, T: Sync, R: Send>(
    items: &'a [T],
    work: impl Fn(&'a T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let jobs = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1usize);
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(i) else { return Ok(done) };
            match work(item) {
                Ok(result) => done.push((i, result)),
                Err(error) => {
                    next.store(items.len(), Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    };
    let mut done = Vec::new();
    thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs.min(items.len())).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            done.extend(worker.join().map_err(|_| "a compile thread panicked")??);
        }
        Ok::<(), String>(())
    })?;
    done.sort_by_key(|(i, _)| *i);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_order_of_the_items() {
        assert_eq!(in_parallel(&[3, 1, 2], |n| Ok(n * 2)), Ok(vec![6, 2, 4]));
        assert_eq!(in_parallel(&[] as &[i32], |n| Ok(n * 2)), Ok(vec![]));
    }

    #[test]
    fn an_error_ends_the_work() {
        let failed = in_parallel(&[1, 2, 3], |n| if *n < 2 { Ok(*n) } else { Err(format!("{n} failed")) });
        assert!(failed.unwrap_err().ends_with("failed"));
    }
}
