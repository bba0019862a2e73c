//! The oracle of the tables with rate limits. Each has a hot partition that clients use far too
//! often, and a cool one far below the limit. Pure.
//!
//! Checkers: `rate_limit_bounds`: without faults the hot partition gets its limit, whatever
//! coordinators and levels it is used by. Whatever faults happen, the cool one is never refused,
//! and the hot one gets at most what its deciders can accept ([`Bucket`]). `refused_is_not_done`:
//! no replica has a write that a coordinator refused.

use super::counters::Counters;
use rt::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// The hot partition.
pub const HOT: i32 = 0;
/// The cool partition.
pub const COOL: i32 = 1;
/// The kind of limit of a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limited {
    /// Operations.
    Operations,
    /// Bytes.
    Bytes,
    /// Operations, in mode `observe`: it refuses none.
    Observed,
    /// Operations of a table of counters.
    Counters,
}

/// The kind of an operation. Its number is the index of its counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum OperationKind {
    /// A read.
    Read,
    /// A write.
    Write,
}

impl OperationKind {
    /// Its name for messages.
    fn name(self) -> &'static str {
        match self {
            OperationKind::Read => "read",
            OperationKind::Write => "write",
        }
    }
}

/// A table with limits.
#[derive(Debug)]
pub struct LimitedTable {
    /// Its name.
    pub name: &'static str,
    /// The statement that creates it.
    pub statement: &'static str,
    /// The kind of its limit.
    pub limited: Limited,
    /// Reads per second, and writes per second, of a partition. For a limit of bytes, only the
    /// bytes of the values count, so that less is accepted.
    limit: u32,
    /// The accepted reads and writes without faults, by the limit, in percent.
    bounds: [RangeInclusive<u64>; 2],
}

/// Bytes of a value of the table with a limit of bytes.
pub const VALUE_BYTES: usize = 300;

/// The draws vary: over ten seconds, one in a thousand runs is outside.
const OPERATIONS: [RangeInclusive<u64>; 2] = [65..=140, 65..=140];
/// Half as many operations vary more.
const FEW: [RangeInclusive<u64>; 2] = [50..=165, 50..=165];
/// Keys and timestamps are bytes, too. A read also examines the row behind its last one, and may be
/// performed twice. A write that one replica refuses is charged by those that have stored it. The
/// least of 150 runs was 85 for reads and 48 for writes.
const BYTES: [RangeInclusive<u64>; 2] = [25..=140, 40..=140];

/// The tables.
static TABLES: [LimitedTable; 4] = [
    LimitedTable {
        name: "l",
        statement: "CREATE TABLE IF NOT EXISTS c.l (k int, c int, v int, PRIMARY KEY (k, c)) WITH \
             per_partition_rate_limit = {'max_reads_per_second': 10, 'max_writes_per_second': 10}",
        limited: Limited::Operations,
        limit: 10,
        bounds: OPERATIONS,
    },
    LimitedTable {
        name: "lb",
        statement: "CREATE TABLE IF NOT EXISTS c.lb (k int, c int, v text, PRIMARY KEY (k, c)) WITH \
             per_partition_rate_limit = {'max_read_kb_per_second': 2, 'max_write_kb_per_second': 2}",
        limited: Limited::Bytes,
        limit: 2 * 1024 / VALUE_BYTES as u32 + 1,
        bounds: BYTES,
    },
    LimitedTable {
        name: "lo",
        statement: "CREATE TABLE IF NOT EXISTS c.lo (k int, c int, v int, PRIMARY KEY (k, c)) WITH \
             per_partition_rate_limit = {'max_reads_per_second': 5, 'max_writes_per_second': 5, 'mode': 'observe'}",
        limited: Limited::Observed,
        limit: 5,
        bounds: FEW,
    },
    LimitedTable {
        name: "ln",
        statement: "CREATE TABLE IF NOT EXISTS c.ln (k int PRIMARY KEY, n counter) WITH \
             per_partition_rate_limit = {'max_reads_per_second': 5, 'max_writes_per_second': 5}",
        limited: Limited::Counters,
        limit: 5,
        bounds: FEW,
    },
];

/// The table that limits operations.
pub fn of_operations() -> &'static [LimitedTable] {
    &TABLES[..1]
}

/// The tables with other limits.
pub fn of_other_kinds() -> &'static [LimitedTable] {
    &TABLES[1..]
}

/// If fewer operations than this multiple of the limit are offered, they prove nothing.
const LEAST_OFFERED: u64 = 3;

/// The most operations per second that one decider accepts for long, by the limit. With operations
/// at a steady rate it is 1.09, see [`Bucket`]. The rest keeps the bucket of a decider at its limit
/// from filling by chance.
const STEADY: f64 = 1.25;
/// The most operations that one decider accepts beyond the steady rate, by the limit. See
/// [`Bucket`].
const BURST: f64 = 8.0;

/// The shards that decide on an operation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Decider {
    /// This shard of this node: it is the operation's coordinator, and owns the partition.
    Owner(usize, u16),
    /// Its coordinator, which does not own the partition, or the owners.
    Others,
}

impl Decider {
    fn is_of(self, node: usize) -> bool {
        matches!(self, Decider::Owner(own, _) if own == node)
    }
}

/// How much has been accepted beyond the steady rate of a decider. It checks all intervals of time
/// at once: the level falls by the steady rate, and each accepted operation raises it by one.
///
/// A decider is a shard with a count of the partition. It accepts an operation by that count or by
/// a higher one, because it only adds what it knows of others. Let `L` be the limit, and `V` the
/// most operations that arrive in a second. Let `c` be the count as a second begins, and `d` the
/// count as the next second begins, with `c, d <= V`. While the count `x` is at most `2 L`, an
/// operation is accepted; beyond it with the probability `L / (x ln 2)`. Let `f(c)` be `c` up to
/// `L`, and `L + L log2(c / L)` beyond. Then the mean of what is accepted in that second is at most
/// `1.09 L + f(d) - f(c)`. `T` seconds touch at most `T + 1` windows. So in `T` seconds a decider
/// accepts at most `1.09 L (T + 1) + L + L log2(V / L)`: its steady rate, and a share when it
/// starts.
///
/// This does not depend on other nodes, and a shard's clock is its monotonic one. So cut
/// connections, dead nodes and clocks that jump change nothing; the reports of others only lower
/// what is accepted. A restart makes a new decider with a bucket of its own. An owner that does not
/// own the partition any more keeps its count, and its bucket.
///
/// If the coordinator owns the partition, it decides alone. Otherwise it decides alone once an
/// owner has reported the rate at the other coordinators. Until then, the owners decide. At ONE it
/// suffices that one owner accepts. So all operations of such coordinators share a bucket with as
/// many deciders as there are shards: the owners, and all shards that own nothing. The bucket is
/// emptied when one of these deciders may be new: a node has restarted, or the owners have changed.
#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    level: f64,
    at: Duration,
}

impl Bucket {
    /// Adds an accepted operation. Returns the level.
    fn add(&mut self, now: Duration, steady: f64) -> f64 {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        *self = Bucket { level: (self.level - steady * passed).max(0.0) + 1.0, at: now };
        self.level
    }
}

/// Operations of the hot partition.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Operations {
    /// Those that clients have begun.
    pub offered: u64,
    /// Those that were not refused.
    pub accepted: u64,
}

/// The oracle of a table.
#[derive(Debug)]
pub struct RateLimits {
    /// The table.
    pub table: &'static LimitedTable,
    /// The expected values of the counters, if it is a table of counters.
    pub counters: Counters,
    writes: i32,
    never: BTreeSet<i32>,
    buckets: BTreeMap<(Decider, OperationKind), Bucket>,
    /// The owners of the hot partition, as nodes and shards, as the last coordinator knew them.
    owners: Vec<(u128, u16)>,
    /// The shards of all nodes.
    shards: usize,
    /// The reads and the writes of the hot partition.
    pub hot: [Operations; 2],
}

impl RateLimits {
    /// The oracle for nodes that have `shards` shards together.
    pub fn new(table: &'static LimitedTable, shards: usize) -> RateLimits {
        RateLimits {
            table,
            counters: Counters::default(),
            writes: 0,
            never: BTreeSet::new(),
            buckets: BTreeMap::new(),
            owners: Vec::new(),
            shards,
            hot: Default::default(),
        }
    }

    /// A client begins a write of a partition. Returns its clustering key.
    pub fn begin(&mut self, key: i32) -> i32 {
        if self.table.limited == Limited::Counters {
            self.counters.begin(key);
        }
        self.writes += 1;
        self.writes
    }

    /// An operation of a partition has ended.
    pub fn ended(&mut self, key: i32, kind: OperationKind, refused: bool) -> Result<(), String> {
        if key == HOT {
            let hot = &mut self.hot[kind as usize];
            hot.offered += 1;
            hot.accepted += u64::from(!refused);
        } else if refused {
            let kind = kind.name();
            return Err(format!("rate_limit_bounds is broken: a {kind} of a partition far below the limit is refused"));
        }
        if refused && self.table.limited == Limited::Observed {
            return Err(format!("rate_limit_bounds is broken: {} refuses, and only observes", self.table.name));
        }
        Ok(())
    }

    /// A node has restarted, so it has lost its counts.
    pub fn restarted(&mut self, node: usize) {
        self.buckets.retain(|(decider, _), _| !matches!(decider, Decider::Others) && !decider.is_of(node));
    }

    /// An operation of the hot partition was done. `owners`: as its coordinator knew them.
    pub fn done(
        &mut self,
        kind: OperationKind,
        by: Decider,
        owners: Vec<(u128, u16)>,
        now: Duration,
    ) -> Result<(), String> {
        if self.table.limited == Limited::Observed {
            return Ok(());
        }
        let by = if self.table.limited == Limited::Bytes && kind == OperationKind::Read { Decider::Others } else { by };
        if self.owners != owners {
            self.owners = owners;
            self.buckets.retain(|(decider, _), _| *decider != Decider::Others);
        }
        let deciders = if by == Decider::Others { self.shards as f64 } else { 1.0 };
        let limit = f64::from(self.table.limit) * deciders;
        let level = self.buckets.entry((by, kind)).or_default().add(now, STEADY * limit);
        if level <= BURST * limit {
            return Ok(());
        }
        let (name, kind) = (self.table.name, kind.name());
        Err(format!(
            "rate_limit_bounds is broken: {by:?} accepts too many {kind}s of {name}: {level:.0} beyond its steady rate"
        ))
    }

    /// A coordinator has refused a write of a partition.
    pub fn never(&mut self, key: i32, write: i32) {
        match self.table.limited {
            Limited::Counters => self.counters.refused(key),
            _ => drop(self.never.insert(write)),
        }
    }

    /// Checks the clustering keys that a read has shown.
    pub fn check(&self, shown: impl Iterator<Item = i32>) -> Result<(), String> {
        for write in shown {
            if self.never.contains(&write) {
                return Err(format!("refused_is_not_done is broken: write {write} was refused by its coordinator"));
            }
        }
        Ok(())
    }

    /// Checks the operations that were accepted in `seconds` seconds without faults, since
    /// `before`. `observed`: the reads and the writes that would have been refused in this time.
    pub fn check_accepted(&self, before: [Operations; 2], seconds: u64, observed: [u64; 2]) -> Result<(), String> {
        let LimitedTable { name, limit, limited, bounds, .. } = self.table;
        for (kind, what) in ["reads", "writes"].into_iter().enumerate() {
            let (now, before) = (self.hot[kind], before[kind]);
            let (offered, accepted) = (now.offered - before.offered, now.accepted - before.accepted);
            let limit = u64::from(*limit) * seconds;
            if offered < LEAST_OFFERED * limit {
                return Err(format!("only {offered} {what} of {name} were offered in {seconds} s"));
            }
            // Of a table that refuses nothing, the rest would have been accepted.
            let accepted = match limited {
                Limited::Observed => offered.saturating_sub(observed[kind]),
                _ => accepted,
            };
            if !bounds[kind].contains(&(accepted * 100 / limit)) {
                return Err(format!(
                    "rate_limit_bounds is broken: of {offered} {what} of {name} {accepted} were accepted in {seconds} s, at a \
                     limit of {limit}"
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_below_the_limit_and_refused_writes_that_were_done_are_found() {
        let mut oracle = RateLimits::new(&TABLES[0], 3);
        let (first, second) = (oracle.begin(HOT), oracle.begin(HOT));
        oracle.never(HOT, first);
        assert_eq!(oracle.ended(HOT, OperationKind::Write, true), Ok(()));
        assert_eq!(oracle.ended(COOL, OperationKind::Read, false), Ok(()));
        assert!(oracle.ended(COOL, OperationKind::Write, true).is_err());
        assert_eq!(oracle.check([second].into_iter()), Ok(()));
        assert!(oracle.check([second, first].into_iter()).is_err());
    }

    #[test]
    fn a_decider_that_accepts_more_than_its_steady_rate_is_found() {
        let run = |by, each_second: u32, restarts_at: u32| {
            let mut oracle = RateLimits::new(&TABLES[0], 4);
            (0..60 * each_second).try_for_each(|n| {
                if n == restarts_at * each_second {
                    oracle.restarted(2);
                }
                oracle.done(
                    OperationKind::Write,
                    by,
                    vec![(7, 0)],
                    Duration::from_millis(u64::from(n * 1000 / each_second)),
                )
            })
        };
        let (owner, other) = (Decider::Owner(2, 1), Decider::Owner(1, 1));
        assert_eq!(run(owner, 12, 0), Ok(()));
        assert!(run(owner, 15, 0).is_err());
        assert_eq!(run(owner, 15, 30), Ok(()), "it has restarted after half of the time");
        assert!(run(other, 15, 30).is_err(), "another node has restarted");
        assert_eq!(run(Decider::Others, 48, 0), Ok(()), "four deciders");
        assert!(run(Decider::Others, 60, 0).is_err());
    }

    #[test]
    fn too_much_too_little_and_no_attack_are_found() {
        for (offered, accepted, fine) in [(400, 100, true), (400, 60, false), (400, 150, false), (200, 100, false)] {
            let before = [Operations { offered: 7, accepted: 7 }; 2];
            let hot = [Operations { offered: 7 + offered, accepted: 7 + accepted }; 2];
            let oracle = RateLimits { hot, ..RateLimits::new(&TABLES[0], 3) };
            assert_eq!(oracle.check_accepted(before, 10, [0; 2]).is_ok(), fine, "{accepted} of {offered}");
        }
    }
    #[test]
    fn a_table_that_observes_refuses_nothing_and_counts() {
        let mut oracle = RateLimits::new(&TABLES[2], 3);
        assert_eq!(oracle.ended(HOT, OperationKind::Read, false), Ok(()));
        assert!(oracle.ended(HOT, OperationKind::Read, true).is_err());
        for (observed, fine) in [(0, false), (350, true), (390, false)] {
            let hot = [Operations { offered: 400, accepted: 400 }; 2];
            let oracle = RateLimits { hot, ..RateLimits::new(&TABLES[2], 3) };
            let before = [Operations::default(); 2];
            assert_eq!(oracle.check_accepted(before, 10, [observed; 2]).is_ok(), fine, "{observed}");
        }
    }

    #[test]
    fn a_refused_increment_must_not_change_the_counter() {
        let mut oracle = RateLimits::new(&TABLES[3], 3);
        let write = oracle.begin(HOT);
        oracle.never(HOT, write);
        assert_eq!(oracle.counters.check(HOT, 0, 0), Ok(()));
        assert!(oracle.counters.check(HOT, 1, 0).is_err());
    }
}
