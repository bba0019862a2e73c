//! The memory that a shard lends to requests.
//!
//! Requests that wait for something are charged with what they may hold; while the memory is used up, connections stop
//! reading their sockets. Requests that finish at once are never charged: they hold nothing when the next one starts.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::Waker;

/// The budget of a shard.
#[derive(Debug)]
pub struct Memory {
    limit: usize,
    used: Cell<usize>,
    waiting: RefCell<Vec<Waker>>,
    /// How often a connection had to wait for memory.
    waits: Cell<u64>,
}

/// A part of the budget; dropping it gives it back.
#[derive(Debug)]
pub struct Charge {
    memory: Rc<Memory>,
    bytes: usize,
}

impl Memory {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Rc<Memory> {
        Rc::new(Memory { limit, used: Cell::new(0), waiting: RefCell::default(), waits: Cell::new(0) })
    }

    /// The whole budget, bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes that are lent now.
    pub fn used(&self) -> usize {
        self.used.get()
    }

    /// How often a connection had to wait.
    pub fn waits(&self) -> u64 {
        self.waits.get()
    }

    /// Whether nothing is left.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.used.get() >= self.limit
    }

    /// Takes `bytes`, if need be beyond the limit: for work that was already accepted.
    pub fn charge(self: &Rc<Self>, bytes: usize) -> Charge {
        self.used.set(self.used.get() + bytes);
        Charge { memory: self.clone(), bytes }
    }

    /// Takes `bytes` if they are left.
    pub fn try_charge(self: &Rc<Self>, bytes: usize) -> Option<Charge> {
        (self.used.get() + bytes <= self.limit).then(|| self.charge(bytes))
    }

    /// Wakes `waker` when something is given back.
    pub fn wait(&self, waker: &Waker) {
        self.waits.set(self.waits.get() + 1);
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.iter().any(|known| known.will_wake(waker)) {
            waiting.push(waker.clone());
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let memory = &self.memory;
        memory.used.set(memory.used.get() - self.bytes);
        if memory.is_full() || memory.waiting.borrow().is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut *memory.waiting.borrow_mut());
        for waker in waiting {
            waker.wake();
        }
    }
}
