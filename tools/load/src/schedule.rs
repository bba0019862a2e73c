//! When requests are sent: at once (closed loop), or at fixed times (open loop).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A run's times of sending, shared by its workers.
pub struct Schedule {
    start: Instant,
    /// Requests per second; 0 in a closed loop.
    rate: u64,
    taken: AtomicU64,
}

/// The turn of one request.
#[derive(Debug, PartialEq)]
pub enum Turn {
    /// Send it now. Its latency counts from this time.
    Now(Instant),
    /// Wait until this time. The latency counts from the end of the wait, so that a late timer of
    /// this machine does not count as latency of the server.
    At(Instant),
}

impl Schedule {
    pub fn new(rate: u64, start: Instant) -> Self {
        Schedule { start, rate, taken: AtomicU64::new(0) }
    }

    /// Takes the next turn. In an open loop a worker that comes late sends at once, and the latency
    /// counts from the scheduled time: a stall counts for every request that it delays.
    pub fn take(&self, now: Instant) -> Turn {
        if self.rate == 0 {
            return Turn::Now(now);
        }
        let at = self.start + after(self.taken.fetch_add(1, Relaxed), self.rate);
        if at <= now { Turn::Now(at) } else { Turn::At(at) }
    }
}

/// The time of request `number` after the start.
fn after(number: u64, rate: u64) -> Duration {
    let nanos = u128::from(number) * 1_000_000_000 / u128::from(rate);
    Duration::new((nanos / 1_000_000_000) as u64, (nanos % 1_000_000_000) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_loop_never_waits() {
        let start = Instant::now();
        let schedule = Schedule::new(0, start);
        for ms in [0, 5, 1000] {
            let now = start + Duration::from_millis(ms);
            assert_eq!(schedule.take(now), Turn::Now(now));
        }
    }

    #[test]
    fn an_open_loop_keeps_its_rate() {
        let start = Instant::now();
        let schedule = Schedule::new(4, start);
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(schedule.take(start), Turn::Now(start));
        assert_eq!(schedule.take(start), Turn::At(at(250)));
        // All workers were busy for a second: the next turns are late, and catch up.
        assert_eq!(schedule.take(at(1200)), Turn::Now(at(500)));
        assert_eq!(schedule.take(at(1200)), Turn::Now(at(750)));
        assert_eq!(schedule.take(at(1200)), Turn::Now(at(1000)));
        assert_eq!(schedule.take(at(1200)), Turn::At(at(1250)));
    }

    #[test]
    fn rates_that_do_not_divide_a_second_do_not_drift() {
        assert_eq!(after(3_000_000, 3), Duration::from_secs(1_000_000));
        assert_eq!(after(7, 3), Duration::from_nanos(2_333_333_333));
        assert_eq!(after(u64::MAX, 1), Duration::from_secs(u64::MAX));
    }
}
