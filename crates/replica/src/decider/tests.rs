//! How many operations a limit accepts, in clusters of coordinators and owners that report to each
//! other. The tests vary load, split and level, and have wrong clocks and silent owners.

use super::*;
use crate::limiter::{LimitKind, debt};
use model::id::HostId;
use proptest::prelude::*;
use std::ops::Range;
use uuid::Uuid;

const KEY: LimitKey = LimitKey { token: 5, table: 7 << 64 | 9, kind: LimitKind::Read };
/// Between two reports of a shard.
const PERIOD: u64 = 250;
/// Limiters of tests are small: most tests have one key.
const BYTES: usize = 1 << 12;

/// Operations of many other partitions, of a table with another limit. They come to shards alike.
#[derive(Clone, Copy, Debug)]
struct Others {
    partitions: u64,
    /// Operations per second of all of them together.
    rate: u64,
    limit: u32,
    /// Whether the operations come to the owners only.
    to_owners: bool,
}

/// Evenly distributed numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// What replicas must answer.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Level {
    /// A read asks `n` replicas, and all of them must accept it.
    Reads(usize),
    /// A write is sent to all replicas, and `n` of them must accept it.
    Writes(usize),
}

struct Shard {
    decider: Decider,
    /// By how much its seconds begin later than those of the first shard, in milliseconds.
    behind: u64,
    reports: bool,
}

/// The shards of a cluster; the first three own the partition.
struct Cluster {
    shards: Vec<Shard>,
    /// The budget of bytes of a second.
    budget: u64,
    others: Option<Others>,
    random: Random,
    now: u64,
}

const OWNERS: usize = 3;

const BYTES_KEY: LimitKey = LimitKey { kind: LimitKind::ReadBytes, ..KEY };

impl Cluster {
    fn new(shards: usize, seed: u64) -> Cluster {
        Cluster::with_limiters(BYTES, shards, seed)
    }

    fn with_limiters(bytes: usize, shards: usize, seed: u64) -> Cluster {
        let shard = |n: u64| Shard {
            decider: Decider::new(
                Limiter::new(bytes, [1, 2, 3, 4].map(|part| Random(part << 8 | n).next())),
                shards as u64,
                n,
            ),
            behind: 0,
            reports: true,
        };
        Cluster {
            shards: (0..shards as u64).map(shard).collect(),
            budget: 0,
            others: None,
            random: Random(seed),
            now: 10_000,
        }
    }

    fn moment(&self, shard: usize) -> Moment {
        let millis = self.now - self.shards[shard].behind;
        Moment { window: millis / 1_000, into_window: millis % 1_000, millis: self.now }
    }

    /// Lets a shard report to the owners and take their answers, if it is its turn.
    fn report(&mut self, shard: usize) {
        if !self.shards[shard].reports || self.now % PERIOD != shard as u64 * 37 % PERIOD {
            return;
        }
        let now = self.moment(shard);
        let report = self.shards[shard].decider.to_report(now);
        let from = Origin { host: HostId(Uuid::from_u128(shard as u128)), shard: 0 };
        let mut others = vec![None; report.len()];
        for owner in 0..OWNERS {
            if owner == shard || !self.shards[owner].reports {
                continue;
            }
            let at = self.moment(owner);
            let told = self.shards[owner].decider.take(from, report.clone(), at, |_| Some(self.budget));
            others.iter_mut().zip(told).for_each(|(most, told)| *most = (*most).max(Some(told)));
        }
        for (arrival, others) in report.iter().zip(others) {
            if let Some(others) = others {
                self.shards[shard].decider.learn(arrival.key, others, now);
            }
        }
    }

    /// The operations of all other partitions that come in a millisecond.
    fn operate_on_others(&mut self, level: Level) {
        let Some(Others { partitions, rate, limit, to_owners }) = self.others else { return };
        let shards = if to_owners { OWNERS } else { self.shards.len() };
        for _ in self.now * rate / 1_000..(self.now + 1) * rate / 1_000 {
            let key = LimitKey { token: 1_000 + self.random.below(partitions) as i64, table: 3, ..KEY };
            let shard = self.random.below(shards as u64) as usize;
            self.operate(key, shard, limit, level);
        }
    }

    /// An operation that comes to a shard; whether it is accepted.
    fn operate(&mut self, key: LimitKey, shard: usize, limit: u32, level: Level) -> bool {
        let (draw, now) = (self.random.next() as u32, self.moment(shard));
        let first = self.random.below(OWNERS as u64) as usize;
        let asked = |owns: bool| {
            let (count, first) = match level {
                Level::Reads(count) => (count, if owns { shard } else { first }),
                Level::Writes(_) => (OWNERS, 0),
            };
            (0..count).map(move |at| (first + at) % OWNERS)
        };
        let owns = shard < OWNERS;
        match self.shards[shard].decider.arrive(key, limit, draw, owns, now) {
            Decision::Refused { .. } => false,
            Decision::Accepted => {
                for owner in asked(owns).filter(|owner| *owner != shard) {
                    let at = self.moment(owner);
                    self.shards[owner].decider.count_sent(key, at);
                }
                true
            }
            Decision::Unknown => {
                let mut accepted = 0;
                for owner in asked(owns) {
                    let at = self.moment(owner);
                    let decider = &mut self.shards[owner].decider;
                    decider.count_sent(key, at);
                    accepted += usize::from(decider.decide(key, limit, draw, at) == Decision::Accepted);
                }
                let (Level::Reads(needed) | Level::Writes(needed)) = level;
                accepted >= needed
            }
        }
    }

    /// A read of so many bytes that comes to a shard; whether it is accepted. An owner decides and
    /// reads by itself, others ask an owner.
    fn read_bytes(&mut self, shard: usize, bytes: u64) -> bool {
        let owner = if shard < OWNERS { shard } else { self.random.below(OWNERS as u64) as usize };
        let now = self.moment(owner);
        let decider = &mut self.shards[owner].decider;
        let accepted = decider.debt(BYTES_KEY, self.budget, now) < self.budget;
        if accepted {
            decider.charge(BYTES_KEY, bytes, self.budget, now);
        }
        accepted
    }

    /// The accepted operations of a load for so long. `split`: the share of each shard.
    fn run(&mut self, rate: u64, limit: u32, split: &[u64], level: Level, seconds: Range<u64>) -> u64 {
        let (mut accepted, mut due) = (0, 0);
        let all: u64 = split.iter().sum();
        for _ in seconds.start * 1_000..seconds.end * 1_000 {
            self.now += 1;
            (0..self.shards.len()).for_each(|shard| self.report(shard));
            self.operate_on_others(level);
            due += rate;
            for _ in 0..due / 1_000 {
                let mut share = self.random.below(all);
                let shard = split.iter().position(|own| {
                    let is_here = share < *own;
                    share = share.saturating_sub(*own);
                    is_here
                });
                accepted += u64::from(self.operate(KEY, shard.expect("there is one"), limit, level));
            }
            due %= 1_000;
        }
        accepted
    }
}

/// Accepted by limit over ten seconds, from the fourth second on.
fn ratio(shards: usize, seed: u64, rate: u64, limit: u32, split: &[u64], level: Level) -> f64 {
    let mut cluster = Cluster::new(shards, seed);
    cluster.run(rate, limit, split, level, 0..4);
    cluster.run(rate, limit, split, level, 4..14) as f64 / (10.0 * f64::from(limit))
}

const LEVELS: [Level; 6] =
    [Level::Reads(1), Level::Reads(2), Level::Reads(3), Level::Writes(1), Level::Writes(2), Level::Writes(3)];
const SPLITS: [&[u64]; 6] = [
    // Shard-aware clients that ask the owners in turn, or one of them most.
    &[1, 1, 1, 0, 0, 0],
    &[8, 1, 1, 0, 0, 0],
    &[1, 0, 0, 0, 0, 0],
    // Round-robin clients, also beside the owners.
    &[1, 1, 1, 1, 1, 1],
    &[1, 0, 0, 5, 3, 1],
    &[0, 0, 0, 1, 1, 1],
];

#[test]
fn the_limit_is_accepted_whatever_the_split_and_the_level() {
    for split in SPLITS {
        for level in LEVELS {
            for times in [2, 20] {
                let limit = 250;
                let ratio = ratio(split.len(), 7, times * u64::from(limit), limit, split, level);
                assert!((0.92..=1.08).contains(&ratio), "{split:?} {level:?} {times} times: {ratio}");
            }
        }
    }
}

#[test]
fn low_and_high_limits_and_a_hundred_times_as_much() {
    for (rate, limit) in [(20_000, 10_000), (10_000, 100), (1_000, 100), (200, 100)] {
        for split in [SPLITS[1], SPLITS[3], SPLITS[5]] {
            let ratio = ratio(split.len(), 3, rate, limit, split, Level::Reads(1));
            assert!((0.9..=1.1).contains(&ratio), "{rate} of {limit} {split:?}: {ratio}");
        }
    }
    let ratio = ratio(6, 5, 1_000, 10, SPLITS[3], Level::Writes(2));
    assert!((0.75..=1.25).contains(&ratio), "10 a second: {ratio}");
}

#[test]
fn without_reports_each_owner_accepts_the_limit() {
    let mut cluster = Cluster::new(3, 1);
    cluster.shards.iter_mut().for_each(|shard| shard.reports = false);
    let load = (6_000, 400, SPLITS[0].split_at(3).0, Level::Reads(1));
    cluster.run(load.0, load.1, load.2, load.3, 0..4);
    let ratio = cluster.run(load.0, load.1, load.2, load.3, 4..14) as f64 / 4_000.0;
    assert!(ratio > 2.7, "the test finds what reports are for: {ratio}");
}

#[test]
fn many_small_coordinators() {
    let split = vec![1; 60];
    let ratio = ratio(60, 2, 4_000, 1_000, &split, Level::Reads(1));
    assert!((0.92..=1.08).contains(&ratio), "{ratio}");
}

#[test]
fn wrong_clocks_change_nothing() {
    for behind in [[0, 300, 650, 0, 500, 900], [999, 1, 500, 250, 750, 0]] {
        for split in [SPLITS[0], SPLITS[3], SPLITS[5]] {
            let mut cluster = Cluster::new(6, 9);
            cluster.shards.iter_mut().zip(behind).for_each(|(shard, behind)| shard.behind = behind);
            cluster.run(4_000, 400, split, Level::Reads(2), 0..4);
            let ratio = cluster.run(4_000, 400, split, Level::Reads(2), 4..14) as f64 / 4_000.0;
            assert!((0.92..=1.08).contains(&ratio), "{split:?} {behind:?}: {ratio}");
        }
    }
}

#[test]
fn the_share_of_a_silent_owner_expires() {
    let mut cluster = Cluster::new(3, 4);
    cluster.run(4_000, 400, &[1, 1, 1], Level::Reads(1), 0..4);
    // It dies, and its clients turn to the others.
    cluster.shards[0].reports = false;
    let at_once = cluster.run(4_000, 400, &[0, 1, 1], Level::Reads(1), 4..7) as f64 / 1_200.0;
    assert!((0.6..=1.1).contains(&at_once), "{at_once}");
    let later = cluster.run(4_000, 400, &[0, 1, 1], Level::Reads(1), 7..17) as f64 / 4_000.0;
    assert!((0.92..=1.08).contains(&later), "{later}");
}

#[test]
fn a_burst_after_silence_is_bounded() {
    for (level, most) in [(Level::Writes(2), 1.35), (Level::Reads(1), 3.0)] {
        let mut cluster = Cluster::new(3, 6);
        let first = cluster.run(20_000, 400, &[1, 1, 1], level, 0..1) as f64;
        // That of a single node: `2 L + L log2(V / 2 L)`. Reads at ONE reach no other owner.
        let single = 2.0 * 400.0 + 400.0 * (20_000.0f64 / 800.0).log2();
        assert!(first <= single * most, "{level:?}: {first} of {single}");
    }
}

/// Partitions below their limits must not take the place of one above its limit in the reports. Nor
/// must many that exceed low limits a little.
#[test]
fn the_limit_is_accepted_beside_many_other_partitions() {
    let others = [(1_200, 1_000, 1), (20_000, 20_000, 1), (2_000, 6_000, 2), (1_200, 10_000, 10), (300, 24_000, 100)];
    let loads = [
        (Level::Reads(1), 3, 100, SPLITS[3]),
        (Level::Reads(1), 3, 200, SPLITS[1]),
        (Level::Reads(2), 3, 100, SPLITS[5]),
        (Level::Writes(2), 2, 200, SPLITS[3]),
    ];
    for ((partitions, rate, limit), at) in others.into_iter().zip(0..) {
        let others = Others { partitions, rate, limit, to_owners: false };
        for (level, times, limit, split) in [loads[at % 4], loads[(at + 3) % 4]] {
            check_beside(others, level, times, limit, split);
        }
    }
}

/// In a large cluster whose clients know the owners.
#[test]
fn the_limit_is_accepted_beside_many_other_partitions_of_few_owners() {
    let mut split = vec![0; 60];
    split[..OWNERS].fill(1);
    let others = Others { partitions: 600, rate: 18_000, limit: 100, to_owners: true };
    check_beside(others, Level::Reads(1), 3, 100, &split);
}

fn check_beside(others: Others, level: Level, times: u64, limit: u32, split: &[u64]) {
    let mut cluster = Cluster::with_limiters(1 << 18, split.len(), 12);
    cluster.others = Some(others);
    let rate = times * u64::from(limit);
    cluster.run(rate, limit, split, level, 0..4);
    let accepted = cluster.run(rate, limit, split, level, 4..10);
    let ratio = accepted as f64 / (6.0 * f64::from(limit));
    let what = format!("{split:?} {level:?}, {times} times {limit} beside {others:?}");
    assert!((0.9..=1.1).contains(&ratio), "{what}: {ratio}");
}

#[test]
fn a_limit_of_zero_refuses_everything() {
    let mut cluster = Cluster::new(6, 1);
    assert_eq!(cluster.run(1_000, 0, SPLITS[3], Level::Writes(1), 0..2), 0);
}

#[test]
fn a_coordinator_without_a_copy_refuses_by_itself() {
    let mut cluster = Cluster::new(4, 1);
    cluster.run(4_000, 400, &[0, 0, 0, 1], Level::Reads(1), 0..4);
    let sent = |cluster: &Cluster| {
        let all = (0..OWNERS).map(|owner| cluster.shards[owner].decider.limiter.counters());
        all.map(|counters| counters.successful_lookups).sum::<u64>()
    };
    let before = sent(&cluster);
    let accepted = cluster.run(4_000, 400, &[0, 0, 0, 1], Level::Reads(1), 4..8);
    assert_eq!(sent(&cluster) - before, accepted, "replicas see only what is accepted");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// A partition that gets half of its limit is never refused, however its clients move between
    /// coordinators, whatever the clocks say.
    #[test]
    fn no_partition_well_below_the_limit_is_refused(
        phases in prop::collection::vec((prop::collection::vec(0u64..4, 6), 1u64..4), 1..6),
        behind in prop::collection::vec(0u64..1_000, 6),
        limit in 20u32..200,
        level in 0usize..6,
        seed in any::<u64>(),
    ) {
        let mut cluster = Cluster::new(6, seed);
        cluster.shards.iter_mut().zip(behind).for_each(|(shard, behind)| shard.behind = behind);
        let rate = u64::from(limit) / 2;
        for (mut split, seconds) in phases {
            split[0] += u64::from(split.iter().all(|share| *share == 0));
            let accepted = cluster.run(rate, limit, &split, LEVELS[level], 0..seconds);
            prop_assert!(accepted >= rate * seconds - 1, "{accepted} of {}", rate * seconds);
        }
    }

    /// Random uneven splits.
    #[test]
    fn any_split_holds(split in prop::collection::vec(0u64..20, 6), times in 3u64..20, level in 0usize..6) {
        prop_assume!(split.iter().any(|share| *share > 0));
        let ratio = ratio(6, 11, times * 200, 200, &split, LEVELS[level]);
        prop_assert!((0.88..=1.12).contains(&ratio), "{split:?} {times}: {ratio}");
    }
}

#[test]
fn owners_share_a_limit_of_bytes() {
    // Reads of a large and of a small part of the limit; beyond the limit of an owner, and not.
    for (limit, kib, percent) in [(100, 2, 200), (100, 2, 2_000), (1_000, 1, 250), (3, 100, 10_000)] {
        for split in SPLITS {
            owners_share_bytes(limit, kib, percent, split);
        }
    }
}

fn owners_share_bytes(limit: u32, kib: u64, percent: u64, split: &[u64]) {
    let mut cluster = Cluster::new(split.len(), 11);
    cluster.budget = debt::budget(limit);
    // The seconds of the nodes need not begin together.
    cluster.shards.iter_mut().zip([0, 300, 700]).for_each(|(shard, behind)| shard.behind = behind);
    let all: u64 = split.iter().sum();
    let (mut accepted, mut due) = (vec![0; split.len()], 0);
    // So long that many reads are accepted.
    let seconds = 30 + 20 * kib / u64::from(limit);
    for millis in 0..(4 + seconds) * 1_000 {
        cluster.now += 1;
        (0..split.len()).for_each(|shard| cluster.report(shard));
        due += u64::from(limit) * percent;
        for _ in 0..due / (kib * 100_000) {
            let mut share = cluster.random.below(all);
            let shard = split.iter().position(|own| {
                let is_here = share < *own;
                share = share.saturating_sub(*own);
                is_here
            });
            let shard = shard.expect("there is one");
            let is_counted = cluster.read_bytes(shard, kib << 10) && millis >= 4_000;
            accepted[shard] += u64::from(is_counted);
        }
        due %= kib * 100_000;
    }
    let what = format!("{limit} KiB by {kib}, {percent} %, {split:?}: {accepted:?}");
    let sum = accepted.iter().sum::<u64>();
    let ratio = (sum * kib) as f64 / (seconds * u64::from(limit)) as f64;
    // Before reports arrive, each owner may accept a read.
    let slack = (OWNERS as u64 * kib) as f64 / (seconds * u64::from(limit)) as f64;
    assert!((0.9..=1.1 + slack).contains(&ratio), "{ratio}: {what}");
    let is_even = all == split.len() as u64 && sum > 100;
    let is_starved = |accepted: &u64| *accepted < sum / (4 * split.len() as u64);
    assert!(!is_even || !accepted.iter().any(is_starved), "{what}");
}
