//! The launches of a thread's last calls. A problem like an earlier one, by value, is queued without being planned again:
//! its parameters are moved to where its operands are.

use std::cell::RefCell;
use std::fmt::Display;
use std::thread::LocalKey;

use super::gpu::Gpu;
use super::launch::Prepared;
use super::plan::{Kernel, LaunchPlan, Movable};
use super::{RawStream, forced};
use crate::error::Result;
use crate::ops::Recurring;

/// Different calls of one operation that are remembered: as many as a layer of a model has, and more.
const KEPT: usize = 16;

/// What has been launched lately, on one thread.
pub type Recent<Problem, const N: usize> = RefCell<Vec<Entry<Problem, N>>>;

#[derive(Debug)]
pub struct Entry<Problem, const N: usize> {
    problem: Problem,
    addresses: [usize; N],
    workspace: u64,
    /// Of the choices that developers force.
    epoch: u32,
    launches: Box<dyn Launches<N>>,
}

trait Launches<const N: usize>: std::fmt::Debug {
    fn move_by(&mut self, steps: [u64; N]);
    fn queue(&self, op: &'static str, gpu: &Gpu, problem: &dyn Display, stream: RawStream) -> Result<()>;
}

impl<const N: usize, P: Movable<N>> Launches<N> for Prepared<P> {
    fn move_by(&mut self, steps: [u64; N]) {
        self.params().move_by(steps);
    }

    fn queue(&self, op: &'static str, gpu: &Gpu, problem: &dyn Display, stream: RawStream) -> Result<()> {
        Prepared::queue(self, op, gpu, problem, stream)
    }
}

/// The bytes of workspace that a problem like this one got.
pub fn workspace<Q: Recurring, const N: usize>(
    recent: &'static LocalKey<Recent<Q, N>>,
    problem: &Q,
) -> Option<u64> {
    let find = |recent: &Recent<Q, N>| {
        let entries = recent.try_borrow().ok()?;
        entries.iter().find(|entry| entry.solves(problem)).map(|entry| entry.workspace)
    };
    recent.try_with(find).ok().flatten()
}

/// Queues the launches of a problem like this one; None if there was none.
pub fn queue<Q: Recurring + Display, const N: usize>(
    recent: &'static LocalKey<Recent<Q, N>>,
    (problem, addresses): (&Q, [usize; N]),
    op: &'static str,
    gpu: &Gpu,
    stream: RawStream,
) -> Option<Result<()>> {
    let find = |recent: &Recent<Q, N>| {
        let mut entries = recent.try_borrow_mut().ok()?;
        let entry = entries.iter_mut().find(|entry| entry.solves(problem))?;
        let steps = std::array::from_fn(|i| addresses[i].wrapping_sub(entry.addresses[i]) as u64);
        entry.launches.move_by(steps);
        entry.addresses = addresses;
        Some(entry.launches.queue(op, gpu, problem, stream))
    };
    recent.try_with(find).ok().flatten()
}

/// Queues a plan, `first` before it, and remembers it.
pub fn queue_new<Q: Recurring + Display + Clone, const N: usize, P: Movable<N> + 'static>(
    recent: &'static LocalKey<Recent<Q, N>>,
    (problem, addresses): (&Q, [usize; N]),
    (op, gpu, workspace, stream): (&'static str, &Gpu, u64, RawStream),
    first: Option<Kernel>,
    plan: LaunchPlan<P>,
) -> Result<()> {
    let epoch = forced::epoch();
    let launches = Prepared::new(op, gpu, first, plan)?;
    launches.queue(op, gpu, problem, stream)?;
    let entry = Entry { problem: problem.clone(), addresses, workspace, epoch, launches: Box::new(launches) };
    // Where a thread ends, or is in the midst of another call, nothing is remembered.
    let _ = recent.try_with(|recent| {
        if let Ok(mut entries) = recent.try_borrow_mut() {
            entries.truncate(KEPT - 1);
            entries.insert(0, entry);
        }
    });
    Ok(())
}

impl<Q: Recurring, const N: usize> Entry<Q, N> {
    fn solves(&self, problem: &Q) -> bool {
        self.problem.is_like(problem) && self.epoch == forced::epoch()
    }
}
