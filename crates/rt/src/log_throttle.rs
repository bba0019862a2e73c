//! Limits the log lines about a repeated event to one per interval, with the number of events.

use crate::time::{Duration, Instant};
use std::cell::Cell;

/// The time between two lines, unless another one is asked for.
const EVERY: Duration = Duration::from_secs(60);

/// See the module.
#[derive(Debug)]
pub struct LogThrottle {
    /// The time between two lines.
    every: Duration,
    /// Events since the last line.
    unlogged: Cell<u64>,
    logged_at: Cell<Option<Instant>>,
}

impl Default for LogThrottle {
    fn default() -> Self {
        LogThrottle::every(EVERY)
    }
}

impl LogThrottle {
    /// A throttle that allows one line in this time.
    pub fn every(every: Duration) -> Self {
        LogThrottle { every, unlogged: Cell::new(0), logged_at: Cell::new(None) }
    }

    /// Records an event at `now`. Returns the number of events to log if a line is due.
    pub fn count(&self, now: Instant) -> Option<u64> {
        self.unlogged.set(self.unlogged.get() + 1);
        if self.logged_at.get().is_some_and(|at| now.saturating_duration_since(at) < self.every) {
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
