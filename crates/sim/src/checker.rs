//! The checkers `acked_writes_survive` and `no_resurrection`: the book keeps every state that each partition may be in.
//!
//! While all goes well that is exactly one state. A statement under way when the node dies leaves two (before, after); a power loss in
//! periodic mode leaves the states after each acknowledged statement of the last period. What a reader sees must be one of them:
//! fewer rows would be a lost write, more a resurrection. After a restart what was read is what is there from then on.

use crate::model::{Change, Partition, SeenRow};
use rt::time::Duration;
use std::collections::{BTreeMap, VecDeque};

/// Something that concerns all partitions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Global {
    Create,
    Drop,
    AddX,
    DropX,
    Truncate,
}

/// Seconds after which what has a time to live is over, from when its statement began: both take some seconds only.
const OVER: i64 = 60;

/// What the table is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shape {
    /// It is there.
    pub exists: bool,
    /// It has column `x`.
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

/// The states a partition may be in, after one of its statements.
#[derive(Clone)]
struct Point {
    number: u64,
    /// When the statement was acknowledged, microseconds.
    at: i64,
    states: Vec<Partition>,
}

/// The book. All times in microseconds since 1970.
#[derive(Clone)]
pub struct Book {
    /// How old the youngest acknowledged write is that a power loss may not take; `None` if it may take none.
    window: Option<Duration>,
    shape: Shape,
    /// For each partition the states that a power loss could leave; the last is the present one.
    trails: BTreeMap<i32, VecDeque<Point>>,
    under_way: BTreeMap<i32, (Change, i64)>,
    global: Option<Global>,
    numbers: u64,
    /// Nothing expires from this second on.
    lasting_from: i64,
    /// The node is dead since then, and nothing synced what the kernel still had to write.
    dead_since: Option<i64>,
}

impl Book {
    /// Of a table that does not exist, with these partitions.
    pub fn new(partitions: impl Iterator<Item = i32>, window: Option<Duration>) -> Self {
        let empty = || VecDeque::from([Point { number: 0, at: i64::MIN, states: vec![Partition::default()] }]);
        Book {
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

    /// What the table is like.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    fn trail(&mut self, pk: i32) -> &mut VecDeque<Point> {
        self.trails.get_mut(&pk).expect("a partition of the book")
    }

    fn present(&self, pk: i32) -> &[Partition] {
        &self.trails[&pk].back().expect("a trail has a point").states
    }

    /// Whether something may expire after second `now`.
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

    /// It was acknowledged in second `now`.
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

    /// It failed: it may or may not be there, now and after a restart.
    pub fn failed(&mut self, pk: i32, now: i64) {
        let (change, begun) = self.under_way.remove(&pk).expect("it was begun");
        let more = after_any(self.present(pk), &change, begun..=now);
        add(&mut self.trail(pk).back_mut().expect("a trail has a point").states, more);
    }

    /// What is being done to the whole table.
    pub fn under_way(&self) -> Option<Global> {
        self.global
    }

    /// Something that concerns all partitions begins, while no statement is under way.
    pub fn begin_global(&mut self, global: Global) {
        assert!(self.under_way.is_empty() && self.global.is_none());
        self.global = Some(global);
    }

    /// It was acknowledged: no crash may undo it.
    pub fn global_acknowledged(&mut self) {
        let global = self.global.take().expect("it was begun");
        self.apply(global);
    }

    /// It failed, and the table is like this now: that must be as before or as after, and stay so. Truncation may have happened to
    /// any partition.
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

    /// A number that tells what came before it, for [`Book::saved`].
    pub fn number(&self) -> u64 {
        self.numbers
    }

    /// All that was acknowledged before [`Book::number`] gave `upto` is on the device.
    pub fn saved(&mut self, upto: u64) {
        for trail in self.trails.values_mut() {
            while trail.get(1).is_some_and(|second| second.number <= upto) {
                trail.pop_front();
            }
        }
    }

    /// The node's process died at `at`: the kernel still has all that was acknowledged.
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

    /// What was read after a restart, in second `now`: it must be possible, and is what holds from now on.
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

    /// What was read of a partition on a running node, in second `now`.
    pub fn check(&self, pk: i32, found: &[SeenRow], now: i64) -> Result<(), String> {
        let states = self.present(pk);
        if states.iter().any(|state| state.seen(now) == found) {
            return Ok(());
        }
        Err(no_such_state(pk, states, found, now))
    }

    /// The partitions.
    pub fn partitions(&self) -> Vec<i32> {
        self.trails.keys().copied().collect()
    }
}

/// The states after `change` in any of these seconds.
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

/// Whether nothing was found that is not in `wanted`: no row, no value of a row.
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

    fn write(book: &mut Book, v: i32, at: i64) {
        book.begin(0, &Change::Insert { ck: 1, v: Some(v), ttl: 0 }, at / SECOND);
        book.acknowledged(0, at / SECOND, at);
    }

    fn found(v: i32) -> Vec<SeenRow> {
        vec![SeenRow { ck: Some(1), v: Some(v), ..SeenRow::default() }]
    }

    fn settles(book: &mut Book, v: i32) -> bool {
        book.settle(Shape { exists: true, has_x: false }, &BTreeMap::from([(0, found(v))]), 100).is_ok()
    }

    fn book(window: Option<Duration>) -> Book {
        let mut book = Book::new(0..1, window);
        book.begin_global(Global::Create);
        book.global_acknowledged();
        for (v, at) in [(1, 1), (2, 2), (3, 3)] {
            write(&mut book, v, at * SECOND);
        }
        book
    }

    #[test]
    fn in_batch_mode_only_the_last_state_is_possible() {
        for (v, possible) in [(1, false), (2, false), (3, true), (4, true), (5, false)] {
            let mut book = book(None);
            book.begin(0, &Change::Insert { ck: 1, v: Some(4), ttl: 0 }, 4);
            book.power_lost(4 * SECOND);
            assert_eq!(settles(&mut book, v), possible, "{v}");
        }
    }

    #[test]
    fn in_periodic_mode_the_last_period_may_go() {
        for (v, possible) in [(1, false), (2, true), (3, true)] {
            let mut lost = book(Some(Duration::from_secs(1)));
            lost.power_lost(3 * SECOND + SECOND / 2);
            assert_eq!(settles(&mut lost, v), possible, "{v} after power loss");
            let mut killed = book(Some(Duration::from_secs(1)));
            killed.killed(3 * SECOND + SECOND / 2);
            assert_eq!(settles(&mut killed, v), v == 3, "{v} after a kill");
            let mut killed = book(Some(Duration::from_secs(1)));
            killed.killed(3 * SECOND + SECOND / 2);
            killed.power_lost(9 * SECOND);
            assert_eq!(settles(&mut killed, v), possible, "{v} after a kill and a power loss");
            let mut saved = book(Some(Duration::from_secs(1)));
            saved.saved(saved.number());
            saved.power_lost(3 * SECOND + SECOND / 2);
            assert_eq!(settles(&mut saved, v), v == 3, "{v} after a flush");
        }
    }

    #[test]
    fn what_was_truncated_stays_away() {
        let mut book = book(Some(Duration::from_secs(1)));
        book.begin_global(Global::Truncate);
        book.global_acknowledged();
        book.power_lost(4 * SECOND);
        assert!(!settles(&mut book, 3));
    }

    #[test]
    fn a_broken_promise_is_called_by_its_name() {
        let row = |ck, v| SeenRow { ck: Some(ck), v: Some(v), ..SeenRow::default() };
        let mut book = book(None);
        let lost = book.check(0, &[], 100).unwrap_err();
        assert!(lost.starts_with("acked_writes_survive is broken"), "{lost}");
        let more = book.check(0, &[row(1, 3), row(2, 2)], 100).unwrap_err();
        assert!(more.starts_with("no_resurrection is broken"), "{more}");
        let old = book.check(0, &[row(1, 2)], 100).unwrap_err();
        assert!(old.starts_with("no_resurrection is broken"), "an overwritten value is back: {old}");
        book.begin(0, &Change::DeleteRow { ck: 1 }, 100);
        book.acknowledged(0, 100, 100 * SECOND);
        let back = book.check(0, &[row(1, 3)], 100).unwrap_err();
        assert!(back.starts_with("no_resurrection is broken"), "{back}");
    }

    #[test]
    fn what_expired_is_not_seen() {
        let mut book = book(None);
        book.begin(0, &Change::Insert { ck: 1, v: Some(9), ttl: 5 }, 10);
        book.acknowledged(0, 10, 10 * SECOND);
        assert!(book.check(0, &found(9), 14).is_ok());
        assert!(book.check(0, &[], 15).is_ok());
        assert!(book.check(0, &found(3), 15).is_err());
    }
}
