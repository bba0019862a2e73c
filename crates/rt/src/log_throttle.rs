//! Limits the log lines about a repeated event to one per interval, with the number of events.

use crate::time::{Duration, Instant};
use std::cell::Cell;

/// The time between two lines.
const EVERY: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug, Default)]
pub struct LogThrottle {
    /// Events since the last line.
    unlogged: Cell<u64>,
    logged_at: Cell<Option<Instant>>,
}

impl LogThrottle {
    /// Records an event at `now`. Returns the number of events to log if a line is due.
    pub fn count(&self, now: Instant) -> Option<u64> {
        self.unlogged.set(self.unlogged.get() + 1);
        if self.logged_at.get().is_some_and(|at| now.saturating_duration_since(at) < EVERY) {
            return None;
        }
        self.logged_at.set(Some(now));
        Some(self.unlogged.take())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_has_the_number_of_times() {
        let throttle = LogThrottle::default();
        let start = crate::time::now();
        assert_eq!(throttle.count(start), Some(1));
        for second in 1..60 {
            assert_eq!(throttle.count(start + Duration::from_secs(second)), None);
        }
        assert_eq!(throttle.count(start + Duration::from_secs(60)), Some(60));
    }
}
