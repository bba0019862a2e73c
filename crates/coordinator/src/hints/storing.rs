//! The hints that are being stored, and so are in memory. If the disk stalls, their number grows.

use std::cell::Cell;

/// The bytes of writes whose hints are being stored, beyond which writes that need a hint are
/// refused. ScyllaDB has the same limit for each shard.
const MAX_BYTES: u64 = 10 << 20;

/// Bytes of writes whose hints are being stored, on this shard.
#[derive(Default)]
pub(super) struct Storing(Cell<u64>);

impl Storing {
    /// Counts a write until the result is dropped.
    pub fn begin(&self, bytes: u64) -> StoringOne<'_> {
        self.0.set(self.0.get() + bytes);
        StoringOne(self, bytes)
    }

    /// Whether writes that need a hint must be refused.
    pub fn is_full(&self) -> bool {
        self.0.get() >= MAX_BYTES
    }
}

/// A write whose hint is being stored.
pub(super) struct StoringOne<'a>(&'a Storing, u64);

impl Drop for StoringOne<'_> {
    fn drop(&mut self) {
        self.0.0.set(self.0.0.get() - self.1);
    }
}
