//! The counters of a log.

use std::cell::Cell;

/// Counts since the log was opened.
#[derive(Default)]
pub(super) struct Counters {
    pub bytes_written: Cell<u64>,
    pub records: Cell<u64>,
    pub writes: Cell<u64>,
    pub syncs: Cell<u64>,
    pub syncing: Cell<u64>,
    pub allocating: Cell<u64>,
    pub blocked: Cell<u64>,
    pub segment_files: Cell<u64>,
}

/// The metrics of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metrics {
    /// Bytes handed to the kernel, record headers included.
    pub bytes_written: u64,
    /// Records appended, mappings not counted.
    pub records: u64,
    /// Write calls.
    pub writes: u64,
    /// fsync calls that ended well.
    pub syncs: u64,
    /// fsync calls under way (`pending_flushes`).
    pub syncing: u64,
    /// Segments being made.
    pub allocating: u64,
    /// Segments that hold what replay needs, the active one included.
    pub segments: u64,
    /// Bytes of all segment files, spare ones included.
    pub disk_total_bytes: u64,
    /// Bytes that wait in memory.
    pub buffered_bytes: u64,
    /// Appends that wait now.
    pub blocked_writers: u64,
    /// Whether writes are refused because there is no space for another segment.
    pub out_of_space: bool,
}

/// Adds to a counter.
pub(super) fn add(counter: &Cell<u64>, n: u64) {
    counter.set(counter.get() + n);
}

/// Counts a blocked appender.
pub(super) struct Blocked<'a>(&'a Cell<u64>);

impl<'a> Blocked<'a> {
    pub fn enter(counters: &'a Counters) -> Self {
        add(&counters.blocked, 1);
        Blocked(&counters.blocked)
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
