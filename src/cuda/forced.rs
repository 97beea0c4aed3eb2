//! Choices that a developer takes out of the plan's hands, to test and to measure variants side by side.

use std::sync::atomic::{AtomicU8, Ordering};

use super::plan::add::Schedule;

static ADD_SCHEDULE: AtomicU8 = AtomicU8::new(0);

/// For the whole process, until called again; None gives the choice back to the plan.
pub fn set_add_schedule(schedule: Option<Schedule>) {
    let code = match schedule {
        None => 0,
        Some(Schedule::FixedGrid) => 1,
        Some(Schedule::GridStride) => 2,
    };
    ADD_SCHEDULE.store(code, Ordering::Relaxed);
}

pub fn add_schedule() -> Option<Schedule> {
    match ADD_SCHEDULE.load(Ordering::Relaxed) {
        1 => Some(Schedule::FixedGrid),
        2 => Some(Schedule::GridStride),
        _ => None,
    }
}
