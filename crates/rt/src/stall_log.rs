//! Which long polls are logged: of each place at most one a second, with the number of those that
//! were not logged.

use crate::hash::HashMap;
use crate::log_throttle::LogThrottle;
use crate::time::{Duration, Instant};
use std::cell::{Cell, RefCell};
use std::panic::Location;

type Place = &'static Location<'static>;

/// The time between two lines about one place.
const EVERY: Duration = Duration::from_secs(1);

/// A line that is due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StallLine {
    /// Long polls since the last line of the place, with this one.
    pub times: u64,
    /// The longest of them.
    pub longest: Duration,
}

struct OfPlace {
    throttle: LogThrottle,
    longest: Cell<Duration>,
}

/// The long polls of a shard, by the place where the task was spawned.
#[derive(Default)]
pub(crate) struct StallLog {
    places: RefCell<HashMap<Place, OfPlace>>,
}

impl StallLog {
    /// A poll of a task of `place` took so long. Gives the line that is due, if one is.
    pub fn record(&self, place: Place, took: Duration, now: Instant) -> Option<StallLine> {
        let mut places = self.places.borrow_mut();
        let of_place = places
            .entry(place)
            .or_insert_with(|| OfPlace { throttle: LogThrottle::every(EVERY), longest: Cell::default() });
        let longest = of_place.longest.get().max(took);
        let times = of_place.throttle.count(now);
        of_place.longest.set(if times.is_some() { Duration::ZERO } else { longest });
        times.map(|times| StallLine { times, longest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn here() -> Place {
        Location::caller()
    }

    #[test]
    fn each_place_gets_one_line_a_second() {
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
