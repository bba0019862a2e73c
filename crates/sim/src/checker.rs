//! The checkers `acked_writes_survive` and `no_resurrection`. The [`Oracle`] keeps every state that
//! each partition may be in.
//!
//! Without faults, that is exactly one state. A statement in progress when the node dies leaves
//! two: before and after. A power loss in the commitlog's periodic mode leaves the states after
//! each acknowledged statement of the last period.
//!
//! Every read must show one of these states. Missing data is a lost write; additional data is a
//! resurrection. The state that is read after a restart becomes the only state.

use crate::model::{Change, Partition, SeenRow};
use rt::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// A change of the whole table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Global {
    Create,
    Drop,
    AddX,
    DropX,
    Truncate,
}

/// The seconds after the start of a statement by which all its values with a TTL have expired.
/// Statements and TTLs take a few seconds only.
const OVER: i64 = 60;

/// The changing part of the table's schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shape {
    /// The table exists.
    pub exists: bool,
    /// The table has column `x`.
    pub has_x: bool,
}

impl Shape {
    fn after(self, global: Global) -> Shape {
        match global {
            Global::Create => Shape { exists: true, has_x: false },
            Global::Drop => Shape::default(),
            Global::AddX => Shape { has_x: true, ..self },
            Global::DropX => Shape { has_x: false, ..self },
            Global::Truncate => self,
        }
    }
}

/// The states that a partition may be in after one of its statements.
#[derive(Clone)]
struct Point {
    number: u64,
    /// When the statement was acknowledged, microseconds.
    at: i64,
    states: Vec<Partition>,
}

/// The states that a table may be in. All times are in microseconds since 1970, unless they are
/// called seconds.
#[derive(Clone)]
pub struct Oracle {
    /// A power loss may lose acknowledged writes that are younger than this. `None`: it may lose
    /// none.
    window: Option<Duration>,
    shape: Shape,
    /// For each partition the states that a power loss could leave, oldest first. The last is the
    /// present one.
    trails: BTreeMap<i32, VecDeque<Point>>,
    under_way: BTreeMap<i32, (Change, i64)>,
    global: Option<Global>,
    numbers: u64,
    /// No value expires from this second on.
    lasting_from: i64,
    /// The node has been down since then, and the kernel's unwritten data has not been synced.
    dead_since: Option<i64>,
}

impl Oracle {
    /// An oracle for a table that does not exist yet. `window`: the age up to which a power loss
    /// may lose acknowledged writes.
    pub fn new(partitions: impl Iterator<Item = i32>, window: Option<Duration>) -> Self {
        let empty = || VecDeque::from([Point { number: 0, at: i64::MIN, states: vec![Partition::default()] }]);
        Oracle {
            window,
            shape: Shape::default(),
            trails: partitions.map(|pk| (pk, empty())).collect(),
            under_way: BTreeMap::new(),
            global: None,
            numbers: 0,
            lasting_from: i64::MIN,
            dead_since: None,
        }
    }

    /// The expected schema of the table.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    fn trail(&mut self, pk: i32) -> &mut VecDeque<Point> {
        self.trails.get_mut(&pk).expect("a partition of the oracle")
    }

    fn present(&self, pk: i32) -> &[Partition] {
        &self.trails[&pk].back().expect("a trail has a point").states
    }

    /// Whether a value may expire after second `now`.
    pub fn may_expire(&self, now: i64) -> bool {
        now < self.lasting_from
    }

    /// A statement on a partition begins in second `now`.
    pub fn begin(&mut self, pk: i32, change: &Change, now: i64) {
        if change.expires() {
            self.lasting_from = self.lasting_from.max(now + OVER);
        }
        assert!(self.under_way.insert(pk, (change.clone(), now)).is_none(), "one statement at a time");
    }

    /// The statement on the partition was acknowledged in second `now`, at `at` in microseconds.
    pub fn acknowledged(&mut self, pk: i32, now: i64, at: i64) {
        let (change, begun) = self.under_way.remove(&pk).expect("it was begun");
        let states = after_any(self.present(pk), &change, begun..=now);
        self.numbers += 1;
        let (number, window) = (self.numbers, self.window);
        let trail = self.trail(pk);
        trail.push_back(Point { number, at, states });
        match window {
            Some(window) => {
                let kept = at - window.as_micros() as i64;
                while trail.get(1).is_some_and(|second| second.at <= kept) {
                    trail.pop_front();
                }
            }
            None => drop(trail.drain(..trail.len() - 1)),
        }
    }

    /// The statement on the partition failed. It may be applied or not, now and after a restart.
    pub fn failed(&mut self, pk: i32, now: i64) {
        let (change, begun) = self.under_way.remove(&pk).expect("it was begun");
        let more = after_any(self.present(pk), &change, begun..=now);
        add(&mut self.trail(pk).back_mut().expect("a trail has a point").states, more);
    }

    /// The change of the whole table that is in progress.
    pub fn under_way(&self) -> Option<Global> {
        self.global
    }

    /// A change of the whole table begins. No statement may be in progress.
    pub fn begin_global(&mut self, global: Global) {
        assert!(self.under_way.is_empty() && self.global.is_none());
        self.global = Some(global);
    }

    /// The change of the whole table was acknowledged. No crash may undo it.
    pub fn global_acknowledged(&mut self) {
        let global = self.global.take().expect("it was begun");
        self.apply(global);
    }

    /// The change of the whole table failed, and the table now has this shape. It must be the shape
    /// from before or from after the change. A failed TRUNCATE may have emptied any of the
    /// partitions.
    pub fn global_failed(&mut self, shape: Shape) -> Result<(), String> {
        let global = self.global.take().expect("it was begun");
        if global == Global::Truncate {
            for trail in self.trails.values_mut() {
                add(&mut trail.back_mut().expect("a trail has a point").states, vec![Partition::default()]);
            }
        } else if shape == self.shape.after(global) {
            self.apply(global);
        }
        if shape == self.shape { Ok(()) } else { Err(format!("after {global:?} failed the table is {shape:?}")) }
    }

    fn apply(&mut self, global: Global) {
        self.shape = self.shape.after(global);
        for trail in self.trails.values_mut() {
            match global {
                Global::Drop | Global::Truncate | Global::Create => {
                    let mut last = trail.pop_back().expect("a trail has a point");
                    last.states = vec![Partition::default()];
                    *trail = VecDeque::from([last]);
                }
                Global::DropX => {
                    for point in trail {
                        let states = point.states.iter().map(Partition::without_x).collect();
                        point.states = distinct(states);
                    }
                }
                Global::AddX => {}
            }
        }
    }

    /// The number of the last acknowledged statement, for [`Oracle::saved`].
    pub fn number(&self) -> u64 {
        self.numbers
    }

    /// Every statement up to number `upto` (see [`Oracle::number`]) is on the device: a power loss
    /// cannot lose it.
    pub fn saved(&mut self, upto: u64) {
        for trail in self.trails.values_mut() {
            while trail.get(1).is_some_and(|second| second.number <= upto) {
                trail.pop_front();
            }
        }
    }

    /// The node's process died at `at`. The kernel still has all data of acknowledged statements.
    pub fn killed(&mut self, at: i64) {
        self.dead_since.get_or_insert(at);
        for (pk, (change, begun)) in std::mem::take(&mut self.under_way) {
            let more = after_any(self.present(pk), &change, begun..=begun + 1);
            add(&mut self.trail(pk).back_mut().expect("a trail has a point").states, more);
        }
    }

    /// The machine lost its power at `at`.
    pub fn power_lost(&mut self, at: i64) {
        self.killed(at);
        let safe = self.dead_since.unwrap_or(at) - self.window.map_or(0, |window| window.as_micros() as i64);
        for trail in self.trails.values_mut() {
            while self.window.is_none() && trail.len() > 1 || trail.get(1).is_some_and(|second| second.at <= safe) {
                trail.pop_front();
            }
            let states = trail.drain(..).flat_map(|point| point.states).collect();
            trail.push_back(Point { number: 0, at: i64::MIN, states: distinct(states) });
        }
    }

    /// Checks the rows that were read after a restart, in second `now`. It becomes the only
    /// possible state.
    pub fn settle(&mut self, shape: Shape, seen: &BTreeMap<i32, Vec<SeenRow>>, now: i64) -> Result<(), String> {
        if self.global.is_some() {
            self.global_failed(shape)?;
        }
        if shape != self.shape {
            return Err(format!("the table is {shape:?}, it should be {:?}", self.shape));
        }
        if let Some(pk) = seen.keys().find(|pk| !self.trails.contains_key(pk)) {
            return Err(format!("partition {pk} was never written"));
        }
        for (pk, trail) in &mut self.trails {
            let found = seen.get(pk).map_or(&[][..], Vec::as_slice);
            let mut point = trail.pop_back().expect("a trail has a point");
            let fits: Vec<_> = point.states.iter().filter(|state| state.seen(now) == found).cloned().collect();
            if fits.is_empty() {
                return Err(no_such_state(*pk, &point.states, found, now));
            }
            point.states = distinct(fits.iter().map(|state| state.pruned(now)).collect());
            *trail = VecDeque::from([point]);
        }
        self.dead_since = None;
        Ok(())
    }

    /// Checks the rows that were read of a partition on a running node, in second `now`.
    pub fn check(&self, pk: i32, found: &[SeenRow], now: i64) -> Result<(), String> {
        let states = self.present(pk);
        if states.iter().any(|state| state.seen(now) == found) {
            return Ok(());
        }
        Err(no_such_state(pk, states, found, now))
    }

    /// The keys of all partitions.
    pub fn partitions(&self) -> Vec<i32> {
        self.trails.keys().copied().collect()
    }
}

/// The states after `change` is executed in any of these seconds.
fn after_any(states: &[Partition], change: &Change, seconds: std::ops::RangeInclusive<i64>) -> Vec<Partition> {
    let seconds = if change.expires() { seconds } else { *seconds.start()..=*seconds.start() };
    distinct(states.iter().flat_map(|state| seconds.clone().map(|now| state.after(change, now))).collect())
}

fn add(states: &mut Vec<Partition>, more: Vec<Partition>) {
    let all = std::mem::take(states).into_iter().chain(more).collect();
    *states = distinct(all);
}

fn distinct(mut states: Vec<Partition>) -> Vec<Partition> {
    states.sort();
    states.dedup();
    states
}

/// Whether `found` has only rows and values that `wanted` has.
fn no_resurrection(wanted: &[SeenRow], found: &[SeenRow]) -> bool {
    found.iter().all(|row| {
        let same = |own: &&SeenRow| own.ck == row.ck;
        wanted.iter().find(same).is_some_and(|own| {
            let within = |found: Option<i32>, wanted: Option<i32>| found.is_none() || found == wanted;
            within(row.s, own.s)
                && within(row.v, own.v)
                && within(row.x, own.x)
                && row.m.iter().all(|(key, value)| own.m.get(key) == Some(value))
                && row.e.is_subset(&own.e)
        })
    })
}

fn no_such_state(pk: i32, states: &[Partition], found: &[SeenRow], now: i64) -> String {
    let distance = |state: &&Partition| {
        let seen = state.seen(now);
        seen.iter().filter(|row| !found.contains(row)).count() + found.iter().filter(|row| !seen.contains(row)).count()
    };
    let nearest = states.iter().min_by_key(distance);
    let promise = match nearest.map(|state| state.seen(now)) {
        Some(wanted) if no_resurrection(&wanted, found) => "acked_writes_survive",
        _ => "no_resurrection",
    };
    let mut text = format!("{promise} is broken: partition {pk} in second {now}: found\n");
    found.iter().for_each(|row| text += &format!("    {row:?}\n"));
    text += &format!("which is none of {} possible states; the nearest is\n", states.len());
    if let Some(nearest) = nearest {
        nearest.seen(now).iter().for_each(|row| text += &format!("    {row:?}\n"));
        text += &format!("that is {nearest:?}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn write(oracle: &mut Oracle, v: i32, at: i64) {
        oracle.begin(0, &Change::Insert { ck: 1, v: Some(v), ttl: 0 }, at / SECOND);
        oracle.acknowledged(0, at / SECOND, at);
    }

    fn found(v: i32) -> Vec<SeenRow> {
        vec![SeenRow { ck: Some(1), v: Some(v), ..SeenRow::default() }]
    }

    fn settles(oracle: &mut Oracle, v: i32) -> bool {
        oracle.settle(Shape { exists: true, has_x: false }, &BTreeMap::from([(0, found(v))]), 100).is_ok()
    }

    fn oracle(window: Option<Duration>) -> Oracle {
        let mut oracle = Oracle::new(0..1, window);
        oracle.begin_global(Global::Create);
        oracle.global_acknowledged();
        for (v, at) in [(1, 1), (2, 2), (3, 3)] {
            write(&mut oracle, v, at * SECOND);
        }
        oracle
    }

    #[test]
    fn in_batch_mode_only_the_last_state_is_possible() {
        for (v, possible) in [(1, false), (2, false), (3, true), (4, true), (5, false)] {
            let mut oracle = oracle(None);
            oracle.begin(0, &Change::Insert { ck: 1, v: Some(4), ttl: 0 }, 4);
            oracle.power_lost(4 * SECOND);
            assert_eq!(settles(&mut oracle, v), possible, "{v}");
        }
    }

    #[test]
    fn in_periodic_mode_the_last_period_may_go() {
        for (v, possible) in [(1, false), (2, true), (3, true)] {
            let mut lost = oracle(Some(Duration::from_secs(1)));
            lost.power_lost(3 * SECOND + SECOND / 2);
            assert_eq!(settles(&mut lost, v), possible, "{v} after power loss");
            let mut killed = oracle(Some(Duration::from_secs(1)));
            killed.killed(3 * SECOND + SECOND / 2);
            assert_eq!(settles(&mut killed, v), v == 3, "{v} after a kill");
            let mut killed = oracle(Some(Duration::from_secs(1)));
            killed.killed(3 * SECOND + SECOND / 2);
            killed.power_lost(9 * SECOND);
            assert_eq!(settles(&mut killed, v), possible, "{v} after a kill and a power loss");
            let mut saved = oracle(Some(Duration::from_secs(1)));
            saved.saved(saved.number());
            saved.power_lost(3 * SECOND + SECOND / 2);
            assert_eq!(settles(&mut saved, v), v == 3, "{v} after a flush");
        }
    }

    #[test]
    fn truncated_rows_stay_away() {
        let mut oracle = oracle(Some(Duration::from_secs(1)));
        oracle.begin_global(Global::Truncate);
        oracle.global_acknowledged();
        oracle.power_lost(4 * SECOND);
        assert!(!settles(&mut oracle, 3));
    }

    #[test]
    fn a_broken_promise_is_called_by_its_name() {
        let row = |ck, v| SeenRow { ck: Some(ck), v: Some(v), ..SeenRow::default() };
        let mut oracle = oracle(None);
        let lost = oracle.check(0, &[], 100).unwrap_err();
        assert!(lost.starts_with("acked_writes_survive is broken"), "{lost}");
        let more = oracle.check(0, &[row(1, 3), row(2, 2)], 100).unwrap_err();
        assert!(more.starts_with("no_resurrection is broken"), "{more}");
        let old = oracle.check(0, &[row(1, 2)], 100).unwrap_err();
        assert!(old.starts_with("no_resurrection is broken"), "an overwritten value is back: {old}");
        oracle.begin(0, &Change::DeleteRow { ck: 1 }, 100);
        oracle.acknowledged(0, 100, 100 * SECOND);
        let back = oracle.check(0, &[row(1, 3)], 100).unwrap_err();
        assert!(back.starts_with("no_resurrection is broken"), "{back}");
    }

    #[test]
    fn expired_rows_are_not_seen() {
        let mut oracle = oracle(None);
        oracle.begin(0, &Change::Insert { ck: 1, v: Some(9), ttl: 5 }, 10);
        oracle.acknowledged(0, 10, 10 * SECOND);
        assert!(oracle.check(0, &found(9), 14).is_ok());
        assert!(oracle.check(0, &[], 15).is_ok());
        assert!(oracle.check(0, &found(3), 15).is_err());
    }
}
