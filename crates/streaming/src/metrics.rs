//! The counts of the data that a shard has streamed.

use crate::progress::OpenStreams;
use std::cell::Cell;

/// Counters of a shard.
#[derive(Default)]
pub(crate) struct Counters {
    pub outgoing_bytes: Cell<u64>,
    pub incoming_bytes: Cell<u64>,
    pub received_tablets: Cell<u64>,
    pub failed_attempts: Cell<u64>,
    pub hot_rows: Cell<u64>,
    pub streams: OpenStreams,
}

/// The values of a shard's counters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StreamMetrics {
    /// Bytes of files sent to other nodes.
    pub outgoing_bytes: u64,
    /// Bytes of files received from other nodes.
    pub incoming_bytes: u64,
    /// Tablets that have been received.
    pub received_tablets: u64,
    /// Attempts to receive a tablet that failed.
    pub failed_attempts: u64,
    /// Rows of received tablets that were read into the cache because the source reads them often.
    pub hot_rows: u64,
    /// The finished part of the files that arrive now, from 0 to 1. 1 if none arrive.
    pub finished: f64,
}

impl Default for StreamMetrics {
    fn default() -> Self {
        Counters::default().read()
    }
}

impl Counters {
    pub fn read(&self) -> StreamMetrics {
        let (done, total) = self.streams.incoming();
        StreamMetrics {
            outgoing_bytes: self.outgoing_bytes.get(),
            incoming_bytes: self.incoming_bytes.get(),
            received_tablets: self.received_tablets.get(),
            failed_attempts: self.failed_attempts.get(),
            hot_rows: self.hot_rows.get(),
            finished: if total == 0 { 1.0 } else { done as f64 / total as f64 },
        }
    }
}

pub(crate) fn add(counter: &Cell<u64>, n: u64) {
    counter.set(counter.get() + n);
}
