//! Limits the bytes per second that all shards of a node stream together, in both directions
//! (`stream_io_throughput_mb_per_sec`). All shards share it, without locks.

use rt::time::{Duration, Instant};
use std::sync::atomic::{AtomicU64, Ordering};

const NANOS: u128 = 1_000_000_000;
/// A new limit takes effect within this time.
const LOOK: Duration = Duration::from_millis(100);
/// The budget that may be left over, in nanoseconds: timers wake a task a millisecond or two late.
const BURST: u64 = 20_000_000;

/// See the module.
pub(crate) struct Throttle {
    began: Instant,
    /// Bytes per second. 0: no limit.
    limit: AtomicU64,
    /// When the budget for all bytes so far is earned, in nanoseconds since `began`.
    free_at: AtomicU64,
}

impl Throttle {
    pub fn new() -> Throttle {
        Throttle { began: rt::time::now(), limit: AtomicU64::new(0), free_at: AtomicU64::new(0) }
    }

    /// Sets the limit, in bytes per second. 0: no limit.
    pub fn set(&self, limit: u64) {
        if self.limit.swap(limit, Ordering::Relaxed) != limit {
            // Bytes that were streamed at another limit do not count.
            self.free_at.store(0, Ordering::Relaxed);
        }
    }

    /// Waits until `bytes` bytes may be streamed.
    pub async fn wait(&self, bytes: u64) {
        loop {
            let limit = self.limit.load(Ordering::Relaxed);
            if limit == 0 {
                return;
            }
            let now = self.began.elapsed().as_nanos() as u64;
            let cost = (u128::from(bytes) * NANOS / u128::from(limit)) as u64;
            let earned = |free_at: u64| (free_at <= now).then(|| begin(free_at, now).saturating_add(cost));
            match self.free_at.fetch_update(Ordering::Relaxed, Ordering::Relaxed, earned) {
                Ok(_) => return,
                Err(free_at) => {
                    debug_assert!(now < free_at, "a budget that is earned is taken");
                    rt::time::sleep(Duration::from_nanos(free_at - now).min(LOOK)).await
                }
            }
        }
    }
}

/// From when on bytes earn their budget, if that of all bytes before was earned at `free_at`.
fn begin(free_at: u64, now: u64) -> u64 {
    free_at.max(now.saturating_sub(BURST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_wake_is_made_up_for_and_a_pause_is_not() {
        let (earned, late) = (5 * BURST, 5 * BURST + BURST / 2);
        assert_eq!(begin(earned, late), earned);
        assert_eq!(begin(earned, 100 * BURST), 99 * BURST);
    }

    #[test]
    fn bytes_take_the_time_of_the_limit() {
        rt::block_on(async {
            let throttle = Throttle::new();
            let took = async |bytes: &[u64]| {
                let began = rt::time::now();
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
