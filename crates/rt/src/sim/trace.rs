//! The trace of a simulated run, hashed to one number.
//!
//! Every poll of every task is added automatically (node, shard, source line, simulated time).
//! Product and test code add lines of their own. Two runs of a seed must end with the same hash.

use super::net::Cuts;
use crate::ctx;
use std::cell::{Cell, RefCell};
use std::hash::{DefaultHasher, Hasher};
use std::rc::Rc;

/// The trace of one world. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct Trace {
    inner: Rc<Inner>,
}

struct Inner {
    hasher: RefCell<DefaultHasher>,
    lines: RefCell<Vec<String>>,
    keep: Cell<bool>,
}

impl Default for Inner {
    fn default() -> Self {
        // The default keys are fixed, unlike those of `RandomState`.
        Self { hasher: RefCell::new(DefaultHasher::new()), lines: RefCell::default(), keep: Cell::new(false) }
    }
}

impl Trace {
    pub fn numbers(&self, numbers: &[u64]) {
        let mut hasher = self.inner.hasher.borrow_mut();
        for &number in numbers {
            hasher.write_u64(number);
        }
    }

    pub fn line(&self, line: &str) {
        let mut hasher = self.inner.hasher.borrow_mut();
        hasher.write(line.as_bytes());
        hasher.write_u8(0xFF);
        if self.inner.keep.get() {
            self.inner.lines.borrow_mut().push(line.to_string());
        }
    }

    pub fn hash(&self) -> u64 {
        self.inner.hasher.borrow().clone().finish()
    }

    pub fn keep_lines(&self) {
        self.inner.keep.set(true);
    }

    pub fn lines(&self) -> Vec<String> {
        self.inner.lines.borrow().clone()
    }
}

/// The simulation's part of a shard's context.
#[derive(Clone)]
pub(crate) struct SimShard {
    pub node: Rc<str>,
    pub trace: Trace,
    /// The error of the node's wall clock, in nanoseconds.
    pub skew: Rc<Cell<i64>>,
    /// The pending cuts of connections in the world.
    pub cuts: Cuts,
}

/// Adds a line to the trace of the running shard's world, with node, shard and simulated time. No
/// effect outside the simulation.
pub fn trace(what: &str) {
    ctx::try_with(|c| {
        if let Some(sim) = &c.simulated {
            let micros = (c.clock.wall_nanos() - super::EPOCH_NANOS) / 1_000;
            sim.trace.line(&format!("{micros} {}/{} {what}", sim.node, c.shard));
        }
    });
}

/// The hash of the trace of the running shard's world so far.
pub fn trace_hash() -> u64 {
    ctx::try_with(|c| c.simulated.as_ref().map_or(0, |sim| sim.trace.hash())).unwrap_or(0)
}
