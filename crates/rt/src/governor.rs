//! The governor of a shard: limits background groups, so that statements keep their latency.
//!
//! The governor has a target for the 99th percentile of statement latency. Ten times a second it
//! compares the target with the recent latency. That is the time of the statements' work, as the
//! connections report it, plus the time that their tasks waited for the shard. Above the target,
//! the governor halves its allowance. Well below the target, the allowance grows by 0.05, up to 1.
//! The allowance scales the shares that other groups demand, and their limits of bytes and requests
//! at the disk. Without a target, and in the simulation, the allowance is 1.
//!
//! Invariant: a demand always gets its floor. So work that statements will wait for, such as the
//! flush of full memtables, continues whatever the latency is.

use crate::ctx;
use crate::group::Group;
use std::cell::{Cell, RefCell};
use std::time::Duration;
use tokio::time::Instant;

/// The interval at which the allowance is updated.
const EVERY: Duration = Duration::from_millis(100);
/// The minimum allowance.
const LEAST: f64 = 0.05;
/// The factor for the allowance when statements are too slow.
const CUT: f64 = 0.5;
/// The increment of the allowance when statements are fast.
const GROWTH: f64 = 0.05;
/// Statements are fast below this part of the target.
const FAST: f64 = 0.6;
/// The factor for the recorded latencies at each update, so that they cover the last few updates.
const KEPT: f64 = 0.5;
/// With fewer statements than this, there is no meaningful 99th percentile.
const FEWEST: f64 = 20.0;
/// Less than this of a statement does not count any more.
const FADED: f64 = 0.1;
/// Buckets of a histogram: four for each doubling, from 4 us to more than a minute.
const BUCKETS: usize = 104;

/// Sets the target of this shard. `None` or zero: no limits.
pub fn set_target(target: Option<Duration>) {
    ctx::with(|c| c.governor.target.set(target.filter(|target| !target.is_zero())));
}

/// Records statements that were answered within `took` each, measured from the time their frame was
/// read.
#[inline]
pub fn answered(took: Duration, statements: u64) {
    ctx::with(|c| {
        if c.governor.target.get().is_some() {
            c.governor.latencies.borrow_mut().record(took, statements as f64);
        }
    });
}

/// Demands a part of the shard's time for a group while statements wait, in 1/1000. The group gets
/// at least `floor` of it, and the allowance's part of the rest. Returns the resulting part.
pub fn demand(group: Group, permille: u32, floor: u32) -> u32 {
    ctx::with(|c| {
        let rest = f64::from(permille.saturating_sub(floor)) * c.governor.allowance.get();
        let share = floor.min(permille) + rest as u32;
        crate::task::set_share(group, share);
        share
    })
}

/// A shard's governor.
pub(crate) struct Governor {
    target: Cell<Option<Duration>>,
    allowance: Cell<f64>,
    latencies: RefCell<Recent>,
    waits: RefCell<Recent>,
    next_sample: Cell<Option<Instant>>,
}

impl Governor {
    pub fn new() -> Governor {
        Governor {
            target: Cell::new(None),
            allowance: Cell::new(1.0),
            latencies: RefCell::default(),
            waits: RefCell::default(),
            next_sample: Cell::new(None),
        }
    }

    /// The part that background groups get now of their demands, from 0 to 1.
    pub fn allowance(&self) -> f64 {
        self.allowance.get()
    }

    /// Records how long a task of statements waited for the shard.
    #[inline]
    pub fn waited(&self, nanos: u64) {
        if self.target.get().is_some() {
            self.waits.borrow_mut().record(Duration::from_nanos(nanos), 1.0);
        }
    }

    /// Updates the allowance if an update is due. Returns the allowance if it has changed.
    #[inline]
    pub fn sample(&self, now: Instant) -> Option<f64> {
        if self.next_sample.get().is_some_and(|next| now < next) {
            return None;
        }
        self.next_sample.set(Some(now + EVERY));
        let (mut latencies, mut waits) = (self.latencies.borrow_mut(), self.waits.borrow_mut());
        let seen = latencies.percentile99().map(|took| took + waits.percentile99().unwrap_or_default());
        let slowest = latencies.slowest();
        latencies.fade();
        waits.fade();
        let before = self.allowance.get();
        let after = match self.target.get() {
            None => 1.0,
            // A few statements have no 99th percentile. The allowance does not grow while one of
            // them was slow.
            Some(target) if seen.is_none() && slowest.is_some_and(|slowest| slowest > target) => before,
            Some(target) => next_allowance(before, seen, target),
        };
        self.allowance.set(after);
        (after != before).then_some(after)
    }
}

/// The allowance after `before`. `seen` is the recent latency; `None`: too few statements.
fn next_allowance(before: f64, seen: Option<Duration>, target: Duration) -> f64 {
    let after = match seen {
        Some(seen) if seen > target => before * CUT,
        Some(seen) if seen > target.mul_f64(FAST) => before,
        _ => before + GROWTH,
    };
    after.clamp(LEAST, 1.0)
}

/// A histogram of the last few updates.
struct Recent {
    buckets: [f64; BUCKETS],
    count: f64,
}

impl Default for Recent {
    fn default() -> Recent {
        Recent { buckets: [0.0; BUCKETS], count: 0.0 }
    }
}

impl Recent {
    #[inline]
    fn record(&mut self, took: Duration, n: f64) {
        self.buckets[bucket(took.as_micros().min(u128::from(u32::MAX)) as u64)] += n;
        self.count += n;
    }

    /// The upper bound of the bucket of the 99th percentile.
    fn percentile99(&self) -> Option<Duration> {
        if self.count < FEWEST {
            return None;
        }
        let mut above = self.count * 0.01;
        for (at, n) in self.buckets.iter().enumerate().rev() {
            above -= n;
            if above < 0.0 {
                return Some(Duration::from_micros(bound(at)));
            }
        }
        None
    }

    /// The longest time. `None`: nothing was recorded, or all of it has faded.
    fn slowest(&self) -> Option<Duration> {
        let at = self.buckets.iter().rposition(|n| *n >= FADED)?;
        Some(Duration::from_micros(bound(at)))
    }

    fn fade(&mut self) {
        self.buckets.iter_mut().for_each(|n| *n *= KEPT);
        self.count *= KEPT;
    }
}

/// The bucket of a time in microseconds.
fn bucket(micros: u64) -> usize {
    let micros = micros.max(4);
    let doubling = micros.ilog2() as usize;
    let quarter = (micros >> (doubling - 2)) as usize & 3;
    ((doubling - 2) * 4 + quarter).min(BUCKETS - 1)
}

/// The upper bound of a bucket, in microseconds.
fn bound(bucket: usize) -> u64 {
    let (doubling, quarter) = (bucket / 4 + 2, bucket as u64 % 4);
    (5 + quarter) << (doubling - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_where_the_next_begins() {
        for at in 0..BUCKETS - 1 {
            assert_eq!(bucket(bound(at) - 1), at);
            assert_eq!(bucket(bound(at)), at + 1);
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::from(u32::MAX)), BUCKETS - 1);
    }

    #[test]
    fn the_percentile_is_of_what_was_seen_lately() {
        let mut recent = Recent::default();
        recent.record(Duration::from_micros(100), 10.0);
        assert_eq!(recent.percentile99(), None, "too few");
        assert_eq!(recent.slowest(), Some(Duration::from_micros(bound(bucket(100)))));
        recent.record(Duration::from_micros(100), 975.0);
        recent.record(Duration::from_millis(8), 15.0);
        let seen = recent.percentile99().expect("enough");
        assert!((Duration::from_millis(8)..Duration::from_millis(11)).contains(&seen), "{seen:?}");
        for _ in 0..4 {
            recent.fade();
            recent.record(Duration::from_micros(100), 1_000.0);
        }
        assert!(recent.percentile99().expect("enough") < Duration::from_micros(150));
    }

    #[test]
    fn the_allowance_halves_above_the_target_and_grows_slowly_below_it() {
        let target = Duration::from_millis(5);
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(next_allowance(1.0, ms(6), target), 0.5);
        assert_eq!(next_allowance(0.5, ms(4), target), 0.5);
        assert_eq!(next_allowance(0.5, ms(1), target), 0.55);
        assert_eq!(next_allowance(0.5, None, target), 0.55);
        assert_eq!(next_allowance(1.0, ms(1), target), 1.0);
        let mut allowance = 1.0;
        for _ in 0..20 {
            allowance = next_allowance(allowance, ms(50), target);
        }
        assert_eq!(allowance, LEAST);
    }

    #[test]
    fn a_floor_is_never_taken_away() {
        crate::block_on(async {
            assert_eq!(demand(Group::Maintenance, 500, 100), 500);
            ctx::with(|c| c.governor.allowance.set(LEAST));
            assert_eq!(demand(Group::Maintenance, 500, 100), 120);
            assert_eq!(demand(Group::Maintenance, 500, 700), 500);
        });
    }
}
