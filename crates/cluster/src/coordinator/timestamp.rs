//! Write timestamps: microseconds of the wall clock, but always increasing on a shard, also over a restart and when the clock
//! jumps back.

use std::cell::Cell;

/// Gives out timestamps.
pub struct TimestampClock {
    last: Cell<i64>,
}

impl TimestampClock {
    /// A clock whose timestamps are above `floor`: the highest that the log or the tables hold.
    pub fn above(floor: i64) -> Self {
        TimestampClock { last: Cell::new(floor) }
    }

    /// The next timestamp.
    pub fn next(&self) -> i64 {
        let next = rt::time::wall_micros().max(self.last.get() + 1);
        self.last.set(next);
        next
    }
}
