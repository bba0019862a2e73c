//! What a shard has streamed.

use std::cell::Cell;

/// Counters of a shard.
#[derive(Default)]
pub(crate) struct Counters {
    pub outgoing_bytes: Cell<u64>,
    pub incoming_bytes: Cell<u64>,
    pub received_tablets: Cell<u64>,
    pub failed_attempts: Cell<u64>,
}

/// The values of a shard's counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamMetrics {
    /// Bytes of files sent to other nodes.
    pub outgoing_bytes: u64,
    /// Bytes of files received from other nodes.
    pub incoming_bytes: u64,
    /// Tablets that have been received.
    pub received_tablets: u64,
    /// Attempts to receive a tablet that failed.
    pub failed_attempts: u64,
}

impl Counters {
    pub fn read(&self) -> StreamMetrics {
        StreamMetrics {
            outgoing_bytes: self.outgoing_bytes.get(),
            incoming_bytes: self.incoming_bytes.get(),
            received_tablets: self.received_tablets.get(),
            failed_attempts: self.failed_attempts.get(),
        }
    }
}

pub(crate) fn add(counter: &Cell<u64>, n: u64) {
    counter.set(counter.get() + n);
}
