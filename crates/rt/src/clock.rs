//! The source of a shard's time. The only file that reads the real clock.

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::Instant;

/// The clock of one shard.
pub(crate) struct Clock {
    source: Source,
    /// When the running task was resumed; `None` before the first turn.
    coarse: Cell<Option<Instant>>,
}

enum Source {
    Real,
    #[cfg(feature = "sim")]
    Simulated {
        epoch_nanos: i128,
        start: Instant,
        skew: std::rc::Rc<Cell<i64>>,
    },
}

impl Clock {
    pub fn real() -> Self {
        Self { source: Source::Real, coarse: Cell::new(None) }
    }

    /// A clock that shows `epoch_nanos` (since 1970) at `start` and advances with tokio's paused
    /// clock. `skew` (nanoseconds) is added to it.
    #[cfg(feature = "sim")]
    pub fn simulated(epoch_nanos: i128, start: Instant, skew: std::rc::Rc<Cell<i64>>) -> Self {
        Self { source: Source::Simulated { epoch_nanos, start, skew }, coarse: Cell::new(None) }
    }

    /// Nanoseconds since 1970-01-01 UTC.
    pub fn wall_nanos(&self) -> i128 {
        match &self.source {
            Source::Real => real_wall_nanos(),
            #[cfg(feature = "sim")]
            // Simulated time does not pass within a turn. Asking tokio would read the real clock
            // where tasks are dropped by a crash.
            Source::Simulated { epoch_nanos, start, skew } => {
                let since = self.coarse().saturating_duration_since(*start);
                epoch_nanos + since.as_nanos() as i128 + i128::from(skew.get())
            }
        }
    }

    pub fn coarse(&self) -> Instant {
        self.coarse.get().unwrap_or_else(Instant::now)
    }

    pub fn set_coarse(&self, now: Instant) {
        self.coarse.set(Some(now));
    }

    /// Whether measured run times may influence the scheduler. Never in the simulation, where they
    /// would differ between runs.
    pub fn is_real(&self) -> bool {
        matches!(self.source, Source::Real)
    }
}

pub(crate) fn real_wall_nanos() -> i128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos() as i128
}
