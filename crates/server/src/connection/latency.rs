//! The latency of statements in the server: from the wake that read the frame until the answer is
//! written.
//!
//! Latencies are counted in buckets of doubling size. For statements that are answered at once, the
//! loop reads the clock once per turn. All statements of the turn count with the duration of the
//! turn, because their clients wait that long.

use rt::time::{Duration, Instant};
use std::cell::Cell;

/// Buckets with bounds 16 us, 32 us, ... 33 s. Slower statements are only in the total count.
pub const BUCKETS: usize = 22;
/// The bound of the first bucket, in microseconds.
const FIRST: u64 = 16;

/// The bound of a bucket, in microseconds.
pub fn bound(bucket: usize) -> u64 {
    FIRST << bucket
}

/// A histogram of latencies.
#[derive(Debug, Default)]
pub struct Histogram {
    buckets: [Cell<u64>; BUCKETS],
    count: Cell<u64>,
    sum: Cell<u64>,
}

/// The counts of a histogram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramMetrics {
    /// The count of each bucket, not cumulative.
    pub buckets: [u64; BUCKETS],
    /// The total count.
    pub count: u64,
    /// The sum of all latencies, in microseconds.
    pub sum: u64,
}

impl Histogram {
    /// Counts `n` statements with the latency `took`.
    pub fn record(&self, took: Duration, n: u64) {
        let micros = took.as_micros().min(u128::from(u32::MAX)) as u64;
        let bucket = (micros.saturating_sub(1) / FIRST).checked_ilog2().map_or(0, |log| log as usize + 1);
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.set(bucket.get() + n);
        }
        self.count.set(self.count.get() + n);
        self.sum.set(self.sum.get() + micros * n);
    }

    /// The current counts.
    pub fn metrics(&self) -> HistogramMetrics {
        HistogramMetrics {
            buckets: std::array::from_fn(|at| self.buckets[at].get()),
            count: self.count.get(),
            sum: self.sum.get(),
        }
    }
}

/// The kind of a statement, derived from its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Did {
    /// The answer has rows.
    Read = 0,
    /// The answer has no rows.
    Write = 1,
}

/// The latencies of a shard.
#[derive(Debug, Default)]
pub struct Latencies {
    histograms: [Histogram; 2],
    /// Statements answered in the running turn of a connection.
    in_turn: [Cell<u64>; 2],
}

impl Latencies {
    /// The histogram of one kind.
    pub fn of(&self, did: Did) -> &Histogram {
        &self.histograms[did as usize]
    }

    /// Counts a statement that was answered in the turn that started it.
    #[inline]
    pub(super) fn answered_in_turn(&self, did: Did) {
        let count = &self.in_turn[did as usize];
        count.set(count.get() + 1);
    }

    /// Counts a statement that had to wait. `came` is when its frame was received.
    pub(super) fn answered(&self, did: Did, came: Instant) {
        let took = rt::time::coarse_now().saturating_duration_since(came);
        self.of(did).record(took, 1);
        rt::governor::answered(took, 1);
    }

    /// Records the statements of a turn that began at `began`.
    pub(super) fn turn_ends(&self, began: Instant) {
        let counts = [self.in_turn[0].take(), self.in_turn[1].take()];
        if counts == [0, 0] {
            return;
        }
        let took = rt::time::now().saturating_duration_since(began);
        rt::governor::answered(took, counts[0] + counts[1]);
        for (histogram, count) in self.histograms.iter().zip(counts).filter(|(_, count)| *count > 0) {
            histogram.record(took, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bucket_holds_what_is_up_to_its_bound() {
        let histogram = Histogram::default();
        for bucket in 0..BUCKETS {
            histogram.record(Duration::from_micros(bound(bucket)), 1);
            histogram.record(Duration::from_micros(bound(bucket) + 1), 10);
        }
        histogram.record(Duration::ZERO, 100);
        let metrics = histogram.metrics();
        assert_eq!(metrics.buckets[0], 101);
        assert!(metrics.buckets[1..].iter().all(|count| *count == 11));
        assert_eq!(metrics.count, 100 + 11 * BUCKETS as u64);
    }
}
