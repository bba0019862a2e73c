//! Write timestamps: microseconds of the wall clock that always increase on a shard, also over a
//! restart and when the clock jumps back.
//!
//! While the clock is behind, the shards of a node share a counter. So when one shard writes after
//! another, its timestamp is still the higher one.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Generates the write timestamps of a shard.
pub struct TimestampClock {
    last: Cell<i64>,
    /// The highest timestamp that any shard generated while the clock was behind.
    node: Arc<AtomicI64>,
}

impl TimestampClock {
    /// A clock whose timestamps are above `floor`: the highest timestamp in the commitlog or the
    /// tables.
    pub fn above(floor: i64) -> Self {
        TimestampClock::on_node(Arc::new(AtomicI64::new(floor)))
    }

    /// The clock of one of several shards. They share `node`, which begins with the highest
    /// timestamp in their commitlogs and tables.
    pub fn on_node(node: Arc<AtomicI64>) -> Self {
        TimestampClock { last: Cell::new(i64::MIN), node }
    }

    /// The next timestamp.
    pub fn next(&self) -> i64 {
        let wall = rt::time::wall_micros();
        let last = self.last.get();
        let next =
            if wall > last && wall > self.node.load(Ordering::Relaxed) { wall } else { self.count_on(wall, last) };
        self.last.set(next);
        next
    }

    #[cold]
    fn count_on(&self, wall: i64, last: i64) -> i64 {
        let above = |node: i64| node.max(last).saturating_add(1).max(wall);
        let before = self.node.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |node| Some(above(node)));
        above(before.unwrap_or_else(|node| node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_increase_over_all_shards_while_the_clock_is_behind() {
        let ahead = rt::time::wall_micros() + 3_600_000_000;
        let node = Arc::new(AtomicI64::new(ahead));
        let (a, b) = (TimestampClock::on_node(node.clone()), TimestampClock::on_node(node));
        let given: Vec<i64> = [&a, &a, &b, &a, &b, &b].into_iter().map(TimestampClock::next).collect();
        assert_eq!(given, (1..=6).map(|n| ahead + n).collect::<Vec<_>>());
    }

    #[test]
    fn timestamps_are_the_clocks_while_it_is_right() {
        let clock = TimestampClock::above(i64::MIN);
        let (before, first, second) = (rt::time::wall_micros(), clock.next(), clock.next());
        assert!(before <= first && first < second && second <= rt::time::wall_micros().max(first + 1));
    }
}
