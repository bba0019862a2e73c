//! Decides which operations of partitions are accepted, by the rates at this coordinator and at all
//! others. Pure: the caller passes the time.
//!
//! Each operation is counted by one coordinator. A decision uses the coordinator's own count plus
//! the count of all others. There are two sources for the count of the others. Operations that they
//! sent to this shard as a replica are counted at once, but they are only a part. Reports of other
//! coordinators ([`Arrivals`]) are complete, but some hundred milliseconds old. The higher of the
//! two counts is used. So the accepted operations of all coordinators add up to the limit.
//!
//! Limits of bytes are decided by owners alone, by a debt that all of them charge alike
//! ([`crate::spent`]).

use crate::arrivals::{Arrival, Arrivals, MAX_REPORTED, Origin};
use crate::limiter::{LimitKey, Limiter, debt, decide};
use crate::spent::{MAX_SPENT, Spent};
use smallvec::SmallVec;

/// A moment of a shard's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The number of the second: counts are halved as it begins.
    pub window: u64,
    /// Milliseconds since the second began, up to 1000.
    pub into_window: u64,
    /// Milliseconds since any fixed time. They never decrease.
    pub millis: u64,
}

impl Moment {
    /// The moment `into_window` milliseconds after a window began.
    pub fn of(window: u64, into_window: u64) -> Moment {
        Moment { window, into_window, millis: window * 1_000 + into_window }
    }
}

impl From<Moment> for debt::At {
    fn from(Moment { window, into_window, .. }: Moment) -> debt::At {
        debt::At { window, into_window }
    }
}

/// The most bytes that a report charges to a partition: an owner reads no more between two reports.
const MAX_BYTES: u64 = 1 << 32;

/// The decision of a coordinator on an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// It is accepted.
    Accepted,
    /// It is refused.
    Refused {
        /// The count by which it is refused: the count of all coordinators, as far as known here.
        count: u64,
    },
    /// The replicas must decide: no owner has reported the rate at other coordinators to this one.
    Unknown,
}

/// The counts of a shard, as coordinator and as owner of partitions.
pub struct Decider {
    /// The counts of the operations that arrived here, and of those that others have sent.
    pub limiter: Limiter,
    arrivals: Arrivals,
    spent: Spent,
}

impl Decider {
    /// A decider without counts. `coordinators`: see [`Arrivals::set_coordinators`]. `salt`: random
    /// and secret.
    pub fn new(limiter: Limiter, coordinators: u64, salt: u64) -> Decider {
        let mut arrivals = Arrivals::new(salt);
        arrivals.set_coordinators(coordinators);
        Decider { limiter, arrivals, spent: Spent::default() }
    }

    /// See [`Arrivals::set_coordinators`].
    pub fn set_coordinators(&mut self, count: u64) {
        self.arrivals.set_coordinators(count);
    }

    /// Counts an operation that arrives at this shard as its coordinator, and decides. `owns`:
    /// whether this shard owns the partition. Otherwise the decision may be left to the owners.
    pub fn arrive(&mut self, key: LimitKey, limit: u32, draw: u32, owns: bool, now: Moment) -> Decision {
        let own = self.limiter.add(key, 1, now.window);
        let told = self.arrivals.track(key, own, limit, now.millis);
        if !owns && told.is_none() {
            return Decision::Unknown;
        }
        decision(own + self.others(key, told, now), limit, draw)
    }

    /// Counts an operation that another coordinator has sent to this shard as a replica.
    pub fn count_sent(&mut self, key: LimitKey, now: Moment) {
        self.limiter.add(key.elsewhere(), 1, now.window);
    }

    /// Decides on an operation that has been counted, for a coordinator that does not know enough.
    /// Never [`Decision::Unknown`].
    pub fn decide(&self, key: LimitKey, limit: u32, draw: u32, now: Moment) -> Decision {
        let count = self.limiter.count(key, now.window) + self.others(key, None, now);
        decision(count.max(1), limit, draw)
    }

    /// The count of the operations that arrive at all other coordinators.
    fn others(&self, key: LimitKey, told: Option<u64>, now: Moment) -> u64 {
        if self.arrivals.is_alone() {
            return 0;
        }
        let sent = self.limiter.count(key.elsewhere(), now.window);
        let rate = self.arrivals.reported(key, now.millis).max(told.unwrap_or(0));
        sent.max(count_of(rate, now))
    }

    /// Charges the bytes of an operation that this shard has performed. `budget`: see
    /// [`Limiter::charge`].
    pub fn charge(&mut self, key: LimitKey, bytes: u64, budget: u64, now: Moment) {
        self.limiter.charge(key, bytes, budget, now.into());
        if !key.kind.is_write() && self.arrivals.has_others() {
            let Decider { arrivals, spent, .. } = self;
            spent.add(key, bytes, debt::bytes(budget), |bytes, budget| arrivals.is_share(bytes, budget));
        }
    }

    /// The debt of a partition. `budget`: see [`Limiter::charge`].
    pub fn debt(&mut self, key: LimitKey, budget: u64, now: Moment) -> u64 {
        self.limiter.debt(key, budget, now.into())
    }

    /// What to report to the owners: rates of operations, and bytes since the last call.
    pub fn to_report(&mut self, now: Moment) -> Vec<Arrival> {
        let Decider { limiter, arrivals, spent } = self;
        arrivals.sweep(now.millis);
        let rate_of = |key| rate_of(limiter.count(key, now.window), now);
        let mut all = arrivals.to_report(MAX_REPORTED - MAX_SPENT, now.millis, rate_of);
        let bytes = spent.take(|bytes, budget| arrivals.is_share(bytes, budget));
        all.extend(bytes.into_iter().map(|(key, rate)| Arrival { key, rate }));
        all
    }

    /// Takes a report: see [`Arrivals::take`]. Charges the bytes that its sender has read; the
    /// answer to them is 0. `budget_of`: the budget of a partition, if it has a limit of bytes.
    pub fn take(
        &mut self,
        from: Origin,
        mut report: Vec<Arrival>,
        now: Moment,
        budget_of: impl Fn(LimitKey) -> Option<u64>,
    ) -> Vec<u64> {
        let Decider { limiter, arrivals, .. } = self;
        let are_bytes: SmallVec<[bool; 16]> = report.iter().map(|arrival| arrival.key.kind.is_bytes()).collect();
        report.retain(|Arrival { key, rate }| {
            if key.kind.is_bytes()
                && let Some(budget) = budget_of(*key)
            {
                limiter.charge(*key, (*rate).min(MAX_BYTES), budget, now.into());
            }
            !key.kind.is_bytes()
        });
        let rate_of = |key| rate_of(limiter.count(key, now.window), now);
        let mut others = arrivals.take(from, report, now.millis, rate_of).into_iter();
        are_bytes.into_iter().map(|is_bytes| if is_bytes { 0 } else { others.next().unwrap_or(0) }).collect()
    }

    /// Takes an owner's answer to a report: see [`Arrivals::learn`].
    pub fn learn(&mut self, key: LimitKey, others: u64, now: Moment) {
        self.arrivals.learn(key, others, now.millis);
    }
}

fn decision(count: u64, limit: u32, draw: u32) -> Decision {
    if decide(count, limit, draw) { Decision::Accepted } else { Decision::Refused { count } }
}

/// The rate behind a count, in thousandths per second. A steady rate `V` has the count `V` as a
/// second begins, and `2 V` as it ends.
fn rate_of(count: u64, now: Moment) -> u64 {
    (u128::from(count) * 1_000_000 / u128::from(1_000 + now.into_window)) as u64
}

/// The count that a steady rate has now.
fn count_of(rate: u64, now: Moment) -> u64 {
    (u128::from(rate) * u128::from(1_000 + now.into_window) / 1_000_000) as u64
}

#[cfg(test)]
mod tests;
