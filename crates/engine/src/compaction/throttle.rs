//! Limits the bytes per second that all compactions of a shard write together.

use rt::sync::Cancel;
use rt::time::{Duration, Instant};
use std::cell::Cell;

/// The budget that may be left over. Timers are accurate to a millisecond or two, and a busy shard
/// wakes a task late. Without this, each write of some KiB would lose that time.
const BURST: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Default)]
pub(super) struct Throttle {
    /// When the budget for all bytes written so far is earned.
    free_at: Cell<Option<Instant>>,
}

impl Throttle {
    /// Accounts for written bytes, and waits until more may be written. `limit` is in bytes per
    /// second; 0 for none.
    pub async fn wrote(&self, bytes: usize, limit: u64, cancel: &Cancel) {
        if limit == 0 {
            return;
        }
        let now = rt::time::now();
        let free_at = free_at(self.free_at.get(), now, bytes, limit);
        self.free_at.set(Some(free_at));
        if free_at > now {
            let _ = cancel.unless(rt::time::sleep_until(free_at)).await;
        }
    }
}

/// When the budget for `bytes` more is earned. `before`: when that of all bytes before is.
fn free_at(before: Option<Instant>, now: Instant, bytes: usize, limit: u64) -> Instant {
    let begin = before.map_or(now, |before| before.max(now.checked_sub(BURST).unwrap_or(now)));
    begin + Duration::from_secs_f64(bytes as f64 / limit as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes per second of writes of 64 KiB, each of which takes `work`, if timers are late.
    fn rate(limit: u64, work: Duration, late: Duration) -> u64 {
        const BYTES: usize = 64 << 10;
        const WRITES: u32 = 10_000;
        let began = rt::time::now();
        let (mut now, mut free) = (began, None);
        for _ in 0..WRITES {
            now += work;
            let at = free_at(free, now, BYTES, limit);
            free = Some(at);
            if at > now {
                now = at + late;
            }
        }
        (f64::from(WRITES) * BYTES as f64 / (now - began).as_secs_f64()) as u64
    }

    #[test]
    fn late_timers_do_not_lower_the_rate() {
        let micros = Duration::from_micros;
        for limit in [1 << 20, 16 << 20, 256 << 20] {
            let found = rate(limit, micros(100), micros(1_500));
            assert!(found.abs_diff(limit) < limit / 50, "{found} of {limit}");
        }
        let found = rate(1 << 40, micros(100), micros(1_500));
        assert!(found.abs_diff(10_000 * (64 << 10)) < 1 << 20, "the work decides: {found}");
    }

    #[test]
    fn a_pause_earns_no_more_than_the_burst() {
        let now = rt::time::now();
        let later = now + Duration::from_secs(60);
        let at = free_at(Some(now), later, 1 << 20, 1 << 20);
        assert_eq!(at, later - BURST + Duration::from_secs(1));
    }
}
