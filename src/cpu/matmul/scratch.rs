//! Memory that a thread keeps from one product to the next: a few MiB. Clearing as much of the stack took longer than a
//! small product.

use std::cell::RefCell;

use crate::cpu::memory::Memory;

#[derive(Default)]
pub struct Scratch {
    /// Packed rows of a.
    pub a: Memory,
    /// Packed columns of b.
    pub b: Memory,
    /// Sums that the output cannot hold.
    pub sums: Memory,
    /// Sums of a product with a gate.
    pub gates: Memory,
    pub tile: Memory,
    /// Pairs of vectors, which all threads of a product read.
    pub pairs: Memory,
    pub staging: Staging,
}

/// What packing keeps on the way.
#[derive(Default)]
pub struct Staging {
    pub elements: Memory,
    pub factors: Memory,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Calls `f` with this thread's.
pub fn with<R>(f: impl FnOnce(&mut Scratch) -> R) -> R {
    SCRATCH.with(|scratch| match scratch.try_borrow_mut() {
        Ok(mut scratch) => f(&mut scratch),
        Err(_) => f(&mut Scratch::default()),
    })
}
