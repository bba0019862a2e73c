//! The limiter of a shard: counts and decides by the shard's clock.

use crate::arrivals::{Arrival, Origin};
use crate::decider::{Decider, Decision, Moment};
use crate::limited_partitions::LimitedPartitions;
use crate::limiter::{LimitKey, LimitKind, Limiter, LimiterCounters, debt};
use rt::time::{Duration, Instant};
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// The limiter of a shard, with its clock.
pub(crate) struct RateLimiter {
    /// Made when it is first needed: most nodes have no table with limits.
    decider: RefCell<Option<Decider>>,
    bytes: usize,
    /// For the decider, once it is made.
    coordinators: Cell<u64>,
    /// The start of window 0: a full second of the wall clock, so that the windows of all nodes
    /// begin at about the same time.
    began: Instant,
    /// The last moment and its instant. The clock advances between polls, so most operations find
    /// them unchanged.
    last: Cell<(Instant, Moment)>,
    /// Reads and writes that this shard refused as a replica.
    pub refused: [Cell<u64>; 2],
    /// Reads and writes that would have been refused, of tables in mode `observe`.
    pub observed: [Cell<u64>; 2],
    /// The partitions that exceed a limit, for log lines.
    pub partitions: Rc<LimitedPartitions>,
}

/// Counters of a shard's rate limiter.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateLimitMetrics {
    /// The counters of the slots.
    pub slots: LimiterCounters,
    /// The share of the slots that are taken, at most.
    pub load_factor: f64,
    /// Reads that this shard refused as a replica.
    pub refused_reads: u64,
    /// Writes that this shard refused as a replica.
    pub refused_writes: u64,
    /// Reads that this shard would have refused, of tables in mode `observe`.
    pub observed_reads: u64,
    /// Writes that this shard would have refused, of tables in mode `observe`.
    pub observed_writes: u64,
    /// Bytes of the slots. 0 until a table has a limit.
    pub bytes: u64,
}

impl RateLimiter {
    pub fn new(bytes: usize) -> RateLimiter {
        let into_second = Duration::from_nanos(rt::time::wall_nanos().rem_euclid(1_000_000_000) as u64);
        let now = rt::time::coarse_now();
        let began = now.checked_sub(into_second).unwrap_or(now);
        RateLimiter {
            decider: RefCell::new(None),
            bytes,
            coordinators: Cell::new(0),
            began,
            last: Cell::new((began, Moment::default())),
            refused: Default::default(),
            observed: Default::default(),
            partitions: Rc::default(),
        }
    }

    /// The present moment.
    #[inline]
    pub fn moment(&self) -> Moment {
        let now = rt::time::coarse_now();
        let (then, moment) = self.last.get();
        if now == then { moment } else { self.next_moment(now) }
    }

    fn next_moment(&self, now: Instant) -> Moment {
        let elapsed = now.saturating_duration_since(self.began);
        let moment = Moment::of(elapsed.as_secs(), elapsed.subsec_millis().into());
        self.last.set((now, moment));
        moment
    }

    /// Uses the decider, which is made when it is first needed.
    fn with<T>(&self, work: impl FnOnce(&mut Decider, Moment) -> T) -> T {
        let make = || {
            let mut salt = [[0; 8]; 5];
            salt.iter_mut().for_each(|part| rt::random::secret(part));
            let [of_arrivals, of_limiter @ ..] = salt.map(u64::from_le_bytes);
            Decider::new(Limiter::new(self.bytes, of_limiter), self.coordinators.get(), of_arrivals)
        };
        work(self.decider.borrow_mut().get_or_insert_with(make), self.moment())
    }

    /// See [`Decider::arrive`].
    pub fn arrive(&self, key: LimitKey, limit: u32, draw: u32, owns: bool) -> Decision {
        self.with(|decider, now| decider.arrive(key, limit, draw, owns, now))
    }

    /// See [`Decider::count_sent`].
    pub fn count_sent(&self, key: LimitKey) {
        self.with(|decider, now| decider.count_sent(key, now));
    }

    /// See [`Decider::decide`].
    pub fn decide(&self, key: LimitKey, limit: u32, draw: u32) -> Decision {
        self.with(|decider, now| decider.decide(key, limit, draw, now))
    }

    /// See [`crate::arrivals::Arrivals::set_coordinators`].
    pub fn set_coordinators(&self, count: u64) {
        self.coordinators.set(count);
        if let Some(decider) = &mut *self.decider.borrow_mut() {
            decider.set_coordinators(count);
        }
    }

    /// See [`Decider::to_report`].
    pub fn to_report(&self) -> Vec<Arrival> {
        let is_used = self.decider.borrow().is_some();
        if is_used { self.with(Decider::to_report) } else { Vec::new() }
    }

    /// See [`Decider::take`]. `limit_of`: the limit of a partition in KiB per second.
    pub fn take(&self, from: Origin, report: Vec<Arrival>, limit_of: impl Fn(LimitKey) -> Option<u32>) -> Vec<u64> {
        self.with(|decider, now| decider.take(from, report, now, |key| limit_of(key).map(debt::budget)))
    }

    /// See [`Decider::learn`].
    pub fn learn(&self, key: LimitKey, others: u64) {
        self.with(|decider, now| decider.learn(key, others, now));
    }

    /// See [`Decider::charge`]. `limit`: in KiB per second.
    pub fn charge(&self, key: LimitKey, bytes: u64, limit: u32) {
        self.with(|decider, now| decider.charge(key, bytes, debt::budget(limit), now));
    }

    /// See [`Decider::debt`]. `limit`: in KiB per second.
    pub fn debt(&self, key: LimitKey, limit: u32) -> u64 {
        self.with(|decider, now| decider.debt(key, debt::budget(limit), now))
    }

    pub fn metrics(&self) -> RateLimitMetrics {
        let decider = self.decider.borrow();
        let limiter = decider.as_ref().map(|decider| &decider.limiter);
        RateLimitMetrics {
            slots: limiter.map(Limiter::counters).unwrap_or_default(),
            load_factor: limiter.map_or(0.0, Limiter::load_factor),
            refused_reads: self.refused[LimitKind::Read as usize].get(),
            refused_writes: self.refused[LimitKind::Write as usize].get(),
            observed_reads: self.observed[LimitKind::Read as usize].get(),
            observed_writes: self.observed[LimitKind::Write as usize].get(),
            bytes: limiter.map_or(0, Limiter::bytes) as u64,
        }
    }
}

/// Charges a read to its partitions when it is dropped. So a read that fails, is late or is
/// cancelled pays for what it has read.
pub(crate) struct ReadCharge<'a> {
    limiter: &'a RateLimiter,
    keys: SmallVec<[LimitKey; 1]>,
    /// The number of ranges that the read has: it is charged in equal parts.
    ranges: usize,
    /// KiB per second.
    limit: u32,
    /// Bytes of keys and rows read so far.
    pub bytes: u64,
}

impl<'a> ReadCharge<'a> {
    pub fn new(limiter: &'a RateLimiter, keys: SmallVec<[LimitKey; 1]>, ranges: usize, limit: u32) -> ReadCharge<'a> {
        debug_assert!(keys.len() <= ranges, "a range has at most one partition that is charged");
        ReadCharge { limiter, keys, ranges, limit, bytes: 0 }
    }
}

impl Drop for ReadCharge<'_> {
    fn drop(&mut self) {
        let bytes = self.bytes / self.ranges.max(1) as u64;
        self.keys.iter().for_each(|key| self.limiter.charge(*key, bytes, self.limit));
    }
}
