//! What has been chosen and loaded for a thread's last problems, whichever way they came: direct, recorded, dispatched,
//! or from another library. The call memo (`interop::memo`) holds the same entries.
//!
//! | what a choice depends on | where it is compared |
//! | --- | --- |
//! | device, dtypes, shape, strides, options | `Problem::is_like` |
//! | addresses modulo 128, and whether there is an operand at all | `Problem::is_like`; a memo's entry: `Prepared::suits` |
//! | what developers force | the epoch of `forced`; also `Prepared::suits` |
//! | facts of the device | never change |
//! | stream, capture, the refusal of a cooperative launch | asked at each call, in `queue` |

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::LocalKey;

use super::queue::Prepared;
use crate::error::Result;
use crate::ops::Problem;

/// Problems of one operation that a thread remembers: as many as a model's layers pose.
const ENTRIES: usize = 64;

/// The last used first.
pub type PlanCache<P> = RefCell<Vec<Box<Entry<P>>>>;

#[derive(Debug)]
pub struct Entry<P> {
    problem: P,
    prepared: Arc<Prepared>,
}

/// What was chosen for a problem like this one, or else what `choose` makes now.
pub fn prepared<P: Problem>(
    cache: &'static LocalKey<PlanCache<P>>,
    problem: &P,
    choose: impl FnOnce() -> Result<Prepared>,
) -> Result<Arc<Prepared>> {
    let find = |cache: &PlanCache<P>| {
        let mut entries = cache.try_borrow_mut().ok()?;
        let found =
            entries.iter().position(|entry| entry.problem.is_like(problem) && entry.prepared.is_current())?;
        entries[..=found].rotate_right(1);
        Some(Arc::clone(&entries[0].prepared))
    };
    if let Some(prepared) = cache.try_with(find).ok().flatten() {
        return Ok(prepared);
    }
    CHOICES.fetch_add(1, Ordering::Relaxed);
    let prepared = Arc::new(choose()?);
    let entry = Box::new(Entry { problem: problem.clone(), prepared: Arc::clone(&prepared) });
    // Where a thread ends, or is in the midst of another call, nothing is remembered.
    let _ = cache.try_with(|cache| {
        if let Ok(mut entries) = cache.try_borrow_mut() {
            entries.truncate(ENTRIES - 1);
            entries.insert(0, entry);
        }
    });
    Ok(prepared)
}

static CHOICES: AtomicU64 = AtomicU64::new(0);

/// How often this process has chosen how to solve a problem on a GPU.
pub fn choices() -> u64 {
    CHOICES.load(Ordering::Relaxed)
}
