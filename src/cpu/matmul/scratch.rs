//! Memory that a thread keeps from one product to the next: a few MiB. Clearing as much of the stack took longer than a
//! small product.

use std::cell::RefCell;

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

/// Numbers of any type, which stay from one use to the next.
#[derive(Default)]
pub struct Memory(Vec<Line>);

/// A cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Memory {
    /// The first `len` elements, of types of numbers: more memory is asked for where it is too short.
    #[inline]
    pub fn room<F: Copy>(&mut self, len: usize) -> &mut [F] {
        let lines = (len * size_of::<F>()).div_ceil(size_of::<Line>());
        if self.0.len() < lines {
            self.0 = vec![Line([0; 64]); lines];
        }
        // SAFETY: so many bytes are there and initialised, aligned for any number, of which any bits are one.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}
