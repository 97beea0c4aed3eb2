//! Choices that a developer takes out of the plan's hands, to test and to measure variants.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock};

use super::plan::add::Schedule;
use super::plan::{matmul, softmax};

static ADD_SCHEDULE: AtomicU8 = AtomicU8::new(0);
/// How often a choice was made here.
static EPOCH: AtomicU32 = AtomicU32::new(0);

/// Changes with every choice: plans of an older one are not to be used again.
pub fn epoch() -> u32 {
    EPOCH.load(Ordering::Acquire)
}

/// For the whole process, until called again; None gives the choice back to the plan.
pub fn set_add_schedule(schedule: Option<Schedule>) {
    let code = match schedule {
        None => 0,
        Some(Schedule::FixedGrid) => 1,
        Some(Schedule::GridStride) => 2,
    };
    ADD_SCHEDULE.store(code, Ordering::Relaxed);
    EPOCH.fetch_add(1, Ordering::Release);
}

pub fn add_schedule() -> Option<Schedule> {
    match ADD_SCHEDULE.load(Ordering::Relaxed) {
        1 => Some(Schedule::FixedGrid),
        2 => Some(Schedule::GridStride),
        _ => None,
    }
}

static SOFTMAX: RwLock<Option<softmax::Forced>> = RwLock::new(None);
/// Whether SOFTMAX holds something: all that a call usually asks.
static SOFTMAX_IS_FORCED: AtomicBool = AtomicBool::new(false);

/// As set_add_schedule.
pub fn set_softmax(forced: Option<softmax::Forced>) {
    *SOFTMAX.write().unwrap_or_else(PoisonError::into_inner) = forced;
    SOFTMAX_IS_FORCED.store(forced.is_some(), Ordering::Release);
    EPOCH.fetch_add(1, Ordering::Release);
}

pub fn softmax() -> Option<softmax::Forced> {
    if !SOFTMAX_IS_FORCED.load(Ordering::Acquire) {
        return None;
    }
    *SOFTMAX.read().unwrap_or_else(PoisonError::into_inner)
}

static MATMUL: RwLock<Option<matmul::Forced>> = RwLock::new(None);

/// As `set_add_schedule`.
pub fn set_matmul(forced: Option<matmul::Forced>) {
    *MATMUL.write().unwrap_or_else(PoisonError::into_inner) = forced;
    EPOCH.fetch_add(1, Ordering::Release);
}

pub fn matmul() -> Option<matmul::Forced> {
    *MATMUL.read().unwrap_or_else(PoisonError::into_inner)
}
