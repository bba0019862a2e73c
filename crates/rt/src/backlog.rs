//! Input that a shard's streams left unread because the poll's time slice was used up
//! ([`crate::net::StreamBacklog`]).

use std::cell::Cell;
use std::time::Duration;
use tokio::time::Instant;

/// The input of a shard.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// Bytes that are left, as of the last looks.
    pub left: Cell<u64>,
    /// Bytes received since the start.
    pub received: Cell<u64>,
    /// The sum of `left` over time until `summed`, in bytes times seconds.
    waited: Cell<f64>,
    summed: Cell<Option<Instant>>,
}

impl Backlog {
    /// The sum, until now, of the bytes that are left over time, in bytes times seconds.
    pub fn waited(&self, now: Instant) -> f64 {
        let passed = self.summed.replace(Some(now)).map_or(Duration::ZERO, |then| now.saturating_duration_since(then));
        self.waited.set(self.waited.get() + self.left.get() as f64 * passed.as_secs_f64());
        self.waited.get()
    }
}
