//! Limits bytes per second: of compaction on a shard, of streaming on all shards of a node.

use crate::time::{self, Duration, Instant};
use std::sync::atomic::{AtomicU64, Ordering};

const NANOS: u128 = 1_000_000_000;
/// A new limit takes effect within this time.
const LOOK: Duration = Duration::from_millis(100);
/// The budget that may be left over, in nanoseconds. Timers wake a task a millisecond or two late,
/// a busy shard later. Without this, each piece of some KiB would lose that time.
const BURST: u64 = 20_000_000;

/// A limit that several shards may share, without locks.
pub struct Throttle {
    began: Instant,
    /// Bytes per second. 0: no limit.
    limit: AtomicU64,
    /// When the budget for all bytes so far is earned, in nanoseconds since `began`.
    free_at: AtomicU64,
}

impl Default for Throttle {
    fn default() -> Self {
        Throttle::new()
    }
}

impl Throttle {
    /// Without a limit.
    pub fn new() -> Throttle {
        Throttle { began: time::now(), limit: AtomicU64::new(0), free_at: AtomicU64::new(0) }
    }

    /// Sets the limit, in bytes per second. 0: no limit.
    pub fn set(&self, limit: u64) {
        if self.limit.swap(limit, Ordering::Relaxed) != limit {
            // Bytes under another limit do not count.
            self.free_at.store(0, Ordering::Relaxed);
        }
    }

    /// Waits until the budget for all earlier bytes is earned. Then these are accounted for.
    pub async fn wait(&self, bytes: u64) {
        loop {
            let limit = self.limit.load(Ordering::Relaxed);
            if limit == 0 {
                return;
            }
            let now = self.began.elapsed().as_nanos() as u64;
            let cost = (u128::from(bytes) * NANOS / u128::from(limit)) as u64;
            match self.free_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at| free_at(at, now, cost)) {
                Ok(_) => return,
                Err(free_at) => {
                    debug_assert!(now < free_at, "a budget that is earned is taken");
                    time::sleep(Duration::from_nanos(free_at - now).min(LOOK)).await
                }
            }
        }
    }
}

/// When the budget for bytes that take `cost` is earned. `before`: when that of all earlier bytes
/// is. None: not yet.
fn free_at(before: u64, now: u64, cost: u64) -> Option<u64> {
    (before <= now).then(|| before.max(now.saturating_sub(BURST)).saturating_add(cost))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long pieces take that cost `cost` each and are `work` each, if timers are `late`.
    fn time_of(pieces: u64, cost: u64, work: u64, late: u64) -> u64 {
        let (mut now, mut free) = (0, 0);
        for _ in 0..pieces {
            now += work;
            free = free_at(free, now, cost).unwrap_or_else(|| {
                now = free + late;
                free_at(free, now, cost).expect("it is earned by now")
            });
        }
        now
    }

    #[test]
    fn late_timers_do_not_lower_the_rate() {
        for cost in [200_000, 5_000_000, 60_000_000] {
            let (took, ideal) = (time_of(10_000, cost, 100_000, 1_500_000), 10_000 * cost);
            assert!(took.abs_diff(ideal) < ideal / 50, "{took} for {ideal}");
        }
        assert_eq!(time_of(10_000, 1, 100_000, 1_500_000), 10_000 * 100_000, "the work decides");
    }

    #[test]
    fn a_pause_earns_no_more_than_the_burst() {
        assert_eq!(free_at(5 * BURST, 100 * BURST, 7), Some(99 * BURST + 7));
        assert_eq!(free_at(5 * BURST, 5 * BURST - 1, 7), None);
    }

    #[test]
    fn bytes_take_the_time_of_the_limit() {
        crate::block_on(async {
            let throttle = Throttle::new();
            let took = async |bytes: &[u64]| {
                let began = time::now();
                for bytes in bytes {
                    throttle.wait(*bytes).await;
                }
                began.elapsed()
            };
            assert!(took(&[u64::MAX; 3]).await < Duration::from_secs(1), "there is no limit");
            throttle.set(1 << 20);
            let took = took(&[100 << 10, 100 << 10, 0]).await;
            assert!(took >= Duration::from_millis(175), "but for the burst: {took:?}");
            throttle.wait(1 << 40).await;
            throttle.set(1 << 60);
            throttle.wait(1).await;
        });
    }
}
