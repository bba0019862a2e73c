//! The rates at which operations of a partition arrive at the coordinators of a cluster. Each
//! coordinator reports its rate to the owners of the partition. Pure: no clock, no I/O.
//!
//! A shard counts the operations that it receives as coordinator. For the partitions with the
//! highest counts it sends the rates to their owners, a few times a second
//! ([`Arrivals::to_report`]). An owner adds up the reports ([`Arrivals::take`]), and answers each
//! with the rate that arrives at all other coordinators. So every coordinator decides by the same
//! total, although each operation is counted by one shard only. Reports hold first-hand counts
//! alone: a total that is reported would return and be counted twice.
//!
//! If there are too many partitions, the ones with the most operations beyond their limits are
//! reported. The shard estimates this number ([`Tracked::excess`]). It is not divided by the limit:
//! otherwise one operation of a partition with a limit of 1 would displace any other partition.
//!
//! Rates are thousandths of operations per second, halved each second like the counts behind them.
//! They do not depend on when the seconds of a node begin. The report of a coordinator that no
//! longer reports expires after [`EXPIRY_MILLIS`]. Memory is bounded: see [`MAX_TRACKED`] and
//! [`MAX_SHARES`].

use crate::limiter::{LimitKey, fold};
use model::id::HostId;
use rt::hash::HashMap;
use std::cmp::Reverse;

/// The most partitions of a report, with the partitions of [`crate::spent`].
pub const MAX_REPORTED: usize = 256;
/// How long a report counts.
pub const EXPIRY_MILLIS: u64 = 1_500;
/// The most partitions that a shard tracks.
pub const MAX_TRACKED: usize = SETS * WAYS;
/// The most rates of other coordinators that an owner keeps.
pub const MAX_SHARES: usize = 1 << 15;
/// The highest rate of a report. A higher one is cut.
const MAX_RATE: u64 = 1 << 45;
/// Totals are cut to this value, so that an excess fits an `i64`.
const MAX_TOTAL: u64 = 1 << 62;
/// The rate of one operation per second.
const PER_OPERATION: u64 = 1_000;

const SETS: usize = 256;
const WAYS: usize = 4;
/// A partition is tracked once its count reaches this part of the shard's share of the limit.
const RELEVANT_PART: u64 = 8;
/// A shard's share of a limit counts as at least the limit divided by this number. Otherwise, in
/// large clusters, partitions far below their limits would be reported to all owners, and would be
/// ranked above those that exceed their limits.
const MOST_SHARES: u64 = 16;
/// A partition with a lower count is not tracked, unless its limit is lower.
const LEAST_COUNT: u64 = 4;
/// A partition that gets no operation for this long is no longer tracked.
const IDLE_MILLIS: u64 = 2_000;
/// For this long after the first answer of an owner, the rate at the other coordinators may be too
/// low, because they must report the partition first.
const SETTLING_MILLIS: u64 = 1_000;
/// How often reports are searched for those that have expired.
const SWEEP_MILLIS: u64 = 250;

/// A shard that coordinates requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Origin {
    /// Its node.
    pub host: HostId,
    /// Its number.
    pub shard: u16,
}

/// The rate at which operations of a partition arrive at a coordinator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The kind of operation of the partition.
    pub key: LimitKey,
    /// Thousandths of operations per second. For a limit of bytes: the bytes that the sender has
    /// read since its last report.
    pub rate: u64,
}

/// A partition that this shard tracks. A limit of 0: the slot is free.
#[derive(Clone, Copy)]
struct Tracked {
    key: LimitKey,
    limit: u32,
    count: u64,
    /// When the last operation came, in milliseconds.
    at: u64,
    /// The rate that arrives at all other coordinators.
    others: u64,
    /// Since when `others` is known without a gap.
    since: u64,
    /// Until when `others` counts.
    until: u64,
}

impl Tracked {
    /// The operations per second beyond the limit at all coordinators, in thousandths; negative
    /// below the limit. `own`: the rate at this shard.
    ///
    /// Until owners have reported the rate at the others for a while, each of the others is assumed
    /// to receive as much as this shard, up to [`MOST_SHARES`] of them. The square root of this
    /// shard's count is subtracted, about its standard deviation, so that few operations do not
    /// look like a high rate.
    fn excess(&self, own: u64, coordinators: u64, now: u64) -> i64 {
        let is_known = self.until > now;
        let mut total = own.saturating_add(if is_known { self.others } else { 0 });
        if !is_known || self.since + SETTLING_MILLIS > now {
            let deviation = own.saturating_mul(PER_OPERATION).isqrt();
            let lower_bound = own.saturating_sub(deviation);
            total = total.max(lower_bound.saturating_mul(coordinators.min(MOST_SHARES)));
        }
        total.min(MAX_TOTAL) as i64 - (u64::from(self.limit) * PER_OPERATION) as i64
    }

    /// The excess, estimated from the count at the last operation, halved for each second since. A
    /// count is up to twice the rate: this is enough to choose among the partitions of a set.
    fn excess_by_count(&self, coordinators: u64, now: u64) -> i64 {
        let seconds = (now.saturating_sub(self.at) / 1_000) as u32;
        let count = self.count.checked_shr(seconds).unwrap_or(0);
        self.excess(count.saturating_mul(PER_OPERATION), coordinators, now)
    }

    fn is_free(&self, now: u64) -> bool {
        self.limit == 0 || self.at + IDLE_MILLIS < now
    }
}

/// The report of one coordinator.
struct Report {
    at: u64,
    arrivals: Vec<Arrival>,
}

/// The sum of the reports about a partition, and when the newest came.
#[derive(Clone, Copy, Default)]
struct Total {
    rate: u64,
    at: u64,
}

/// The operations that arrive at this shard, and those that other shards report.
#[derive(Default)]
pub struct Arrivals {
    /// Makes the sets of partitions unknown to clients.
    salt: u64,
    /// Empty until a partition is tracked: most nodes have no table with limits.
    tracked: Vec<[Option<Tracked>; WAYS]>,
    /// The shards of the cluster that may coordinate, or 0 if they must get no reports. With one,
    /// there is nothing to report.
    coordinators: u64,
    reports: HashMap<Origin, Report>,
    totals: HashMap<LimitKey, Total>,
    /// Rates in `reports`.
    shares: usize,
    /// When to search for expired reports.
    next_sweep: u64,
}

impl Arrivals {
    /// Nothing has arrived yet. `salt` must be random and secret: otherwise clients could choose
    /// keys that displace a partition from its set.
    pub fn new(salt: u64) -> Arrivals {
        Arrivals { salt, ..Arrivals::default() }
    }

    /// Sets the number of shards that may coordinate requests. 0: they must get no reports. 1: this
    /// shard is alone.
    pub fn set_coordinators(&mut self, count: u64) {
        self.coordinators = count;
    }

    /// Whether no other shard coordinates requests, as far as is known.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.coordinators == 1
    }

    /// Records the count of a partition on this shard. Returns the rate at all other coordinators,
    /// if an owner has reported it recently.
    pub fn track(&mut self, key: LimitKey, count: u64, limit: u32, now: u64) -> Option<u64> {
        let is_relevant = self.is_relevant(count, limit);
        if self.tracked.is_empty() {
            if !is_relevant {
                return None;
            }
            self.tracked.resize(SETS, [None; WAYS]);
        }
        let set = &mut self.tracked[set_of(key, self.salt)];
        if let Some(known) = set.iter_mut().flatten().find(|known| known.key == key) {
            (known.count, known.limit, known.at) = (count, limit, now);
            return (known.until > now).then_some(known.others);
        }
        if is_relevant {
            let new = Tracked { key, limit, count, at: now, others: 0, since: 0, until: 0 };
            put(set, new, self.coordinators, now);
        }
        None
    }

    /// Whether a partition with this count may be near its limit.
    fn is_relevant(&self, count: u64, limit: u32) -> bool {
        count >= LEAST_COUNT.min(limit.into()) && self.is_share(count, limit.into())
    }

    /// Whether there are other coordinators, which get reports.
    pub fn has_others(&self) -> bool {
        self.coordinators > 1
    }

    /// Whether this is a good part of this shard's share of a limit.
    pub fn is_share(&self, count: u64, limit: u64) -> bool {
        let shares = RELEVANT_PART * self.coordinators.min(MOST_SHARES);
        limit > 0 && self.has_others() && count.saturating_mul(shares) >= limit
    }

    /// The rates to report, at most `most`: the rates of the partitions with the highest excess,
    /// the highest first. `rate_of`: the present rate of a partition at this shard.
    pub fn to_report(&mut self, most: usize, now: u64, rate_of: impl Fn(LimitKey) -> u64) -> Vec<Arrival> {
        let coordinators = self.coordinators;
        let mut all: Vec<(i64, Arrival)> = Vec::new();
        for slot in self.tracked.iter_mut().flatten() {
            *slot = slot.filter(|known| !known.is_free(now));
            let Some(known) = slot else { continue };
            let rate = rate_of(known.key);
            if rate > 0 {
                all.push((known.excess(rate, coordinators, now), Arrival { key: known.key, rate }));
            }
        }
        all.sort_unstable_by_key(|(excess, _)| Reverse(*excess));
        all.truncate(most);
        all.into_iter().map(|(_, arrival)| arrival).collect()
    }

    /// Stores the rate that arrives at all other coordinators of a partition, as its owner reports
    /// it.
    pub fn learn(&mut self, key: LimitKey, others: u64, now: u64) {
        let Some(set) = self.tracked.get_mut(set_of(key, self.salt)) else { return };
        if let Some(known) = set.iter_mut().flatten().find(|known| known.key == key) {
            if known.until <= now {
                known.since = now;
            }
            (known.others, known.until) = (others.min(MAX_RATE), now + EXPIRY_MILLIS);
        }
    }

    /// Takes the report of another coordinator, in place of its last one. Returns the rate of each
    /// partition at all other coordinators. `rate_of`: the present rate of a partition here.
    pub fn take(
        &mut self,
        from: Origin,
        mut arrivals: Vec<Arrival>,
        now: u64,
        rate_of: impl Fn(LimitKey) -> u64,
    ) -> Vec<u64> {
        self.sweep(now);
        self.remove(from);
        arrivals.iter_mut().for_each(|arrival| arrival.rate = arrival.rate.min(MAX_RATE));
        let others = |arrival: &Arrival| self.reported(arrival.key, now) + rate_of(arrival.key);
        let others = arrivals.iter().map(others).collect();
        // The memory is divided equally among all coordinators.
        let most = MAX_SHARES / usize::try_from(self.coordinators.max(1)).unwrap_or(MAX_SHARES);
        arrivals.truncate(most.min(MAX_REPORTED).min(MAX_SHARES.saturating_sub(self.shares)));
        for arrival in &arrivals {
            let total = self.totals.entry(arrival.key).or_default();
            *total = Total { rate: total.rate + arrival.rate, at: now };
        }
        if !arrivals.is_empty() {
            self.shares += arrivals.len();
            self.reports.insert(from, Report { at: now, arrivals });
        }
        others
    }

    /// The rate of a partition at all other coordinators, by their reports.
    pub fn reported(&self, key: LimitKey, now: u64) -> u64 {
        if self.totals.is_empty() {
            return 0;
        }
        self.totals.get(&key).filter(|total| total.at + EXPIRY_MILLIS > now).map_or(0, |total| total.rate)
    }

    /// Drops expired reports of coordinators.
    pub fn sweep(&mut self, now: u64) {
        if now < self.next_sweep || self.reports.is_empty() {
            return;
        }
        self.next_sweep = now + SWEEP_MILLIS;
        let expired = self.reports.iter().filter(|(_, report)| report.at + EXPIRY_MILLIS <= now);
        for origin in expired.map(|(origin, _)| *origin).collect::<Vec<_>>() {
            self.remove(origin);
        }
    }

    fn remove(&mut self, origin: Origin) {
        let Some(report) = self.reports.remove(&origin) else { return };
        self.shares -= report.arrivals.len();
        for arrival in report.arrivals {
            let Some(total) = self.totals.get_mut(&arrival.key) else { continue };
            total.rate -= arrival.rate;
            if total.rate == 0 {
                self.totals.remove(&arrival.key);
            }
        }
    }
}

/// Puts a partition into its set, into a free slot. If no slot is free, it replaces the partition
/// with the lowest excess, if its own is higher.
#[cold]
fn put(set: &mut [Option<Tracked>; WAYS], new: Tracked, coordinators: u64, now: u64) {
    let rank = |slot: &Option<Tracked>| {
        let known = slot.filter(|known| !known.is_free(now));
        known.map(|known| known.excess_by_count(coordinators, now))
    };
    let least = set.iter_mut().min_by_key(|slot| rank(slot)).expect("a set has slots");
    if rank(least).is_none_or(|excess| new.excess_by_count(coordinators, now) > excess) {
        *least = Some(new);
    }
}

/// The set of a partition.
fn set_of(key: LimitKey, salt: u64) -> usize {
    let table = fold(key.table as u64 ^ salt, (key.table >> 64) as u64 | 1);
    fold(key.token as u64 ^ salt.rotate_left(32), table ^ key.kind as u64 ^ 0x94d0_49bb_1331_11eb) as usize % SETS
}

#[cfg(test)]
mod tests;
