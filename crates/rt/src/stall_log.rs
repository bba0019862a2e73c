//! Limits the log lines of long polls: at most one a second for each location where tasks are
//! spawned, with the number of polls that were not logged.

use crate::hash::HashMap;
use crate::log_throttle::LogThrottle;
use crate::time::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::panic::Location;

type SpawnLocation = &'static Location<'static>;

/// The time between two lines about one location.
const EVERY: Duration = Duration::from_secs(1);

/// A line that is due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StallLine {
    /// Long polls since the last line of the location, with this one.
    pub times: u64,
    /// The longest of them.
    pub longest: Duration,
}

struct LocationEntry {
    throttle: LogThrottle,
    longest: Cell<Duration>,
}

/// The long polls of a shard, by the location where the task was spawned.
#[derive(Default)]
pub(crate) struct StallLog {
    locations: RefCell<HashMap<SpawnLocation, LocationEntry>>,
}

impl StallLog {
    /// Records a poll of a task that was spawned at `location` and took `took`. Returns the line
    /// that is due, if one is.
    pub fn record(&self, location: SpawnLocation, took: Duration, now: Instant) -> Option<StallLine> {
        let mut locations = self.locations.borrow_mut();
        let entry = locations
            .entry(location)
            .or_insert_with(|| LocationEntry { throttle: LogThrottle::every(EVERY), longest: Cell::default() });
        let longest = entry.longest.get().max(took);
        let times = entry.throttle.count(now);
        entry.longest.set(if times.is_some() { Duration::ZERO } else { longest });
        times.map(|times| StallLine { times, longest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn here() -> SpawnLocation {
        Location::caller()
    }

    #[test]
    fn each_location_gets_one_line_a_second() {
        let (one, other) = (here(), here());
        let log = StallLog::default();
        let start = crate::time::now();
        let ms = Duration::from_millis;
        assert_eq!(log.record(one, ms(30), start), Some(StallLine { times: 1, longest: ms(30) }));
        let lines = (1..1_000).filter_map(|at| log.record(one, ms(20 + at % 50), start + ms(at))).count();
        assert_eq!(lines, 0);
        assert_eq!(log.record(other, ms(25), start + ms(999)), Some(StallLine { times: 1, longest: ms(25) }));
        assert_eq!(log.record(one, ms(20), start + ms(1_000)), Some(StallLine { times: 1_000, longest: ms(69) }));
        assert_eq!(log.record(one, ms(21), start + ms(2_000)), Some(StallLine { times: 1, longest: ms(21) }));
    }
}
