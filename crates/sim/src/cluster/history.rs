//! The oracle of the rows that a cluster's clients write and read: which values a read may show.
//! Pure.
//!
//! Each write has its own timestamp, which is given out here in order. So the value of a row is the
//! write with the highest number that a reader receives. The floor of a row is the highest write
//! that a majority is known to have. It was acknowledged at a quorum, or a read at a quorum has
//! shown it. A later read at QUORUM must show the floor or a later write. A write that failed, or
//! whose client died, may appear at any time or never. A write that was refused as `Unavailable`
//! must never appear.
//!
//! Each [`Majority`] has its own floor, since majorities of different datacenters need not overlap.
//! A write with a TTL becomes a deletion when it expires, by clocks that are right.
//!
//! Checkers: `reads_are_merged`, `no_resurrection` and, after the repair of all faults,
//! `acked_writes_survive`.

use std::collections::BTreeMap;

/// The clustering key that represents the static column.
pub const STATIC: i32 = -1;
/// Partitions of the table.
pub const PARTITIONS: i32 = 8;
/// Clustering keys are below this.
pub const ROWS: i32 = 6;

/// A row of a partition by its partition key and clustering key, or the static column ([`STATIC`]).
pub type RowKey = (i32, i32);

/// A group of replicas, of which a majority has a write: 0 is all replicas, n the replicas of the
/// n-th datacenter.
pub type Majority = usize;
/// The number of such groups.
const MAJORITIES: usize = 3;
/// All groups.
pub const EVERY: &[Majority] = &[0, 1, 2];
/// The number of seconds by which an expiry may be early or late. Times are whole seconds, and
/// statements take time.
const EXPIRY: i64 = 2;

/// The effect of a write on a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The row gets a value.
    Put,
    /// The row gets a value with a TTL in seconds.
    PutFor(i32),
    /// The row is deleted.
    Empty,
}

/// The outcome of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WriteOutcome {
    /// It may be applied, now or later.
    Maybe,
    /// It was refused, and is never applied.
    Never,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Write {
    puts: bool,
    /// When its value expires, in seconds of the wall clock.
    expires: Option<i64>,
    known: WriteOutcome,
}

impl Write {
    /// Whether a reader that meets this write may see no value at this time.
    fn may_be_empty(&self, now: i64) -> bool {
        self.known == WriteOutcome::Maybe && (!self.puts || self.expires.is_some_and(|at| at - EXPIRY <= now))
    }

    /// Whether its value has expired for certain.
    fn is_over(&self, now: i64) -> bool {
        self.expires.is_some_and(|at| at + EXPIRY < now)
    }
}

#[derive(Clone, Debug, Default)]
struct Row {
    /// The writes of the row by their numbers.
    writes: BTreeMap<i32, Write>,
    /// The least write that a read must show if it begins now and asks this majority.
    floors: [i32; MAJORITIES],
    /// The write that must exist in the end: the highest that was acknowledged at any level.
    promised: i32,
}

impl Row {
    fn floor(&self, of: &[Majority]) -> i32 {
        of.iter().map(|of| self.floors[*of]).max().unwrap_or(0)
    }

    fn raise(&mut self, of: &[Majority], number: i32) {
        for of in of {
            self.floors[*of] = self.floors[*of].max(number);
        }
    }
}

/// The least writes that one read must show.
#[derive(Clone, Debug, Default)]
pub struct LeastShown {
    rows: BTreeMap<RowKey, i32>,
    /// When the read began, in seconds of the wall clock.
    began: i64,
}

impl LeastShown {
    /// The floors of one partition, or of all.
    pub fn of(&self, pk: Option<i32>) -> LeastShown {
        let wanted = self.rows.iter().filter(|((own, _), _)| pk.is_none_or(|pk| pk == *own));
        LeastShown { rows: wanted.map(|(place, floor)| (*place, *floor)).collect(), began: self.began }
    }
}

/// The result of a read: each row that it covers with the number of the write that it shows, or
/// `None`.
pub type Shown = Vec<(RowKey, Option<i32>)>;

/// The oracle of a table.
#[derive(Debug, Default)]
pub struct History {
    rows: BTreeMap<RowKey, Row>,
    last: i32,
    /// Writes that were acknowledged, that failed, and that were refused.
    pub counts: [u64; 3],
    /// Reads checked.
    pub reads: u64,
}

impl History {
    /// All rows of the table.
    pub fn places() -> impl Iterator<Item = RowKey> {
        (0..PARTITIONS).flat_map(|pk| (STATIC..ROWS).map(move |ck| (pk, ck)))
    }

    /// Begins a write at `now`, in seconds of the wall clock. Returns its number, which is also the
    /// value it writes.
    pub fn begin(&mut self, places: &[(RowKey, Effect)], now: i64) -> i32 {
        self.last += 1;
        for (place, effect) in places {
            let expires = match effect {
                Effect::PutFor(seconds) => Some(now + i64::from(*seconds)),
                Effect::Put | Effect::Empty => None,
            };
            let write = Write { puts: *effect != Effect::Empty, expires, known: WriteOutcome::Maybe };
            self.rows.entry(*place).or_default().writes.insert(self.last, write);
        }
        self.last
    }

    fn touched(&mut self, number: i32) -> impl Iterator<Item = &mut Row> {
        self.rows.values_mut().filter(move |row| row.writes.contains_key(&number))
    }

    /// The write was acknowledged: these majorities have it.
    pub fn acknowledged(&mut self, number: i32, by: &[Majority]) {
        self.counts[0] += 1;
        for row in self.touched(number) {
            row.promised = row.promised.max(number);
            row.raise(by, number);
        }
    }

    /// A write failed. It may have been applied.
    pub fn failed(&mut self) {
        self.counts[1] += 1;
    }

    /// The write was refused before a replica was asked.
    pub fn refused(&mut self, number: i32) {
        self.counts[2] += 1;
        for row in self.touched(number) {
            if let Some(write) = row.writes.get_mut(&number) {
                write.known = WriteOutcome::Never;
            }
        }
    }

    /// The floors for a read of these majorities that begins at `now`, in seconds of the wall
    /// clock.
    pub fn floors(&self, by: &[Majority], now: i64) -> LeastShown {
        LeastShown { rows: self.rows.iter().map(|(place, row)| (*place, row.floor(by))).collect(), began: now }
    }

    /// The writes that every replica must have after the repair of all faults, including those
    /// acknowledged at any lower level.
    pub fn promises(&self, now: i64) -> LeastShown {
        let promise = |row: &Row| row.floor(EVERY).max(row.promised);
        LeastShown { rows: self.rows.iter().map(|(place, row)| (*place, promise(row))).collect(), began: now }
    }

    /// Checks that a read which ends now shows at least the floors recorded when it began. Later
    /// reads from the same majorities must show at least the same. A read from no majority may show
    /// an old value, but never a value that no client wrote.
    pub fn check(&mut self, shown: &Shown, floors: &LeastShown, by: &[Majority], now: i64) -> Result<(), String> {
        self.reads += 1;
        for (place, number) in shown {
            let row = self.rows.entry(*place).or_default();
            let floor = floors.rows.get(place).copied().unwrap_or(0);
            let known = row.check(*place, *number, floor, (floors.began, now))?;
            row.raise(by, known);
        }
        Ok(())
    }
}

impl Row {
    /// Checks one row of a read that ran from `began` to `ended`. Returns the least write that the
    /// replicas of this read must have. An error if no replicas can have given this.
    fn check(&self, place: RowKey, shown: Option<i32>, floor: i32, (began, ended): (i64, i64)) -> Result<i32, String> {
        let known = |number: i32| self.writes.get(&number).filter(|write| write.known == WriteOutcome::Maybe);
        match shown {
            Some(number) if !known(number).is_some_and(|write| write.puts) => {
                let refused = self.writes.contains_key(&number);
                let why = if refused { "refused as not done" } else { "never begun" };
                Err(format!("no_resurrection is broken: {place:?} shows write {number}, which was {why}"))
            }
            Some(number) if known(number).is_some_and(|write| write.is_over(began)) => {
                Err(format!("no_resurrection is broken: {place:?} shows write {number}, which has expired"))
            }
            Some(number) if number < floor => {
                let hidden = known(floor).is_some_and(|write| write.may_be_empty(ended));
                let promise = if hidden { "no_resurrection" } else { "reads_are_merged" };
                Err(format!("{promise} is broken: {place:?} shows write {number}, and a majority has write {floor}"))
            }
            Some(number) => Ok(number),
            None => {
                // A read without a row is correct if the floor is a deletion or has expired, or if
                // there is a later deletion.
                let mut deletions = self.writes.range(floor..).filter(|(_, write)| write.may_be_empty(ended));
                match deletions.next() {
                    _ if floor == 0 => Ok(0),
                    Some((number, _)) => Ok(*number),
                    None => Err(format!(
                        "acked_writes_survive is broken: {place:?} shows nothing, and a majority has write {floor}"
                    )),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Effect::{Empty, Put, PutFor};
    use super::*;

    const PLACE: RowKey = (1, 2);
    const ALL: &[Majority] = &[0];

    fn read(history: &mut History, floors: &LeastShown, shown: Option<i32>) -> Result<(), String> {
        history.check(&vec![(PLACE, shown)], floors, ALL, 0)
    }

    #[test]
    fn writes_of_a_majority_are_shown_from_then_on() {
        let mut history = History::default();
        let (old, new) = (history.begin(&[(PLACE, Put)], 0), history.begin(&[(PLACE, Put)], 0));
        let before = history.floors(ALL, 0);
        assert_eq!(read(&mut history, &before, None), Ok(()), "no write was acknowledged");
        history.acknowledged(new, ALL);
        assert_eq!(read(&mut history, &before, Some(old)), Ok(()), "it began before");
        let floors = history.floors(ALL, 0).of(Some(PLACE.0));
        let stale = read(&mut history, &floors, Some(old)).unwrap_err();
        assert!(stale.starts_with("reads_are_merged is broken"), "{stale}");
        let lost = read(&mut history, &floors, None).unwrap_err();
        assert!(lost.starts_with("acked_writes_survive is broken"), "{lost}");
        assert_eq!(read(&mut history, &floors, Some(new)), Ok(()));
    }

    #[test]
    fn later_reads_must_show_values_that_were_read() {
        let mut history = History::default();
        let (first, second) = (history.begin(&[(PLACE, Put)], 0), history.begin(&[(PLACE, Put)], 0));
        let floors = history.floors(ALL, 0);
        assert_eq!(read(&mut history, &floors, Some(second)), Ok(()));
        let later = history.floors(ALL, 0);
        assert!(read(&mut history, &later, Some(first)).is_err());
        assert_eq!(read(&mut history, &floors, Some(first)), Ok(()), "a concurrent read may be behind");
    }

    #[test]
    fn deleted_rows_stay_away() {
        let mut history = History::default();
        let put = history.begin(&[(PLACE, Put)], 0);
        let deletion = history.begin(&[(PLACE, Empty)], 0);
        let again = history.begin(&[(PLACE, Put)], 0);
        history.acknowledged(deletion, ALL);
        let floors = history.floors(ALL, 0);
        let back = read(&mut history, &floors, Some(put)).unwrap_err();
        assert!(back.starts_with("no_resurrection is broken"), "{back}");
        assert_eq!(read(&mut history, &floors, None), Ok(()));
        assert_eq!(read(&mut history, &floors, Some(again)), Ok(()), "it may have been done");
        history.refused(again);
        assert!(read(&mut history, &floors, Some(again)).is_err(), "it was refused");
        assert!(read(&mut history, &floors, Some(77)).is_err(), "it was never written");
    }

    #[test]
    fn a_write_at_one_is_required_only_at_the_end() {
        let mut history = History::default();
        let write = history.begin(&[(PLACE, Put)], 0);
        history.acknowledged(write, &[]);
        let floors = history.floors(ALL, 0);
        assert_eq!(read(&mut history, &floors, None), Ok(()));
        let promises = history.promises(0);
        assert!(read(&mut history, &promises, None).is_err());
    }

    #[test]
    fn a_majority_of_one_datacenter_is_none_of_another() {
        let mut history = History::default();
        let write = history.begin(&[(PLACE, Put)], 0);
        history.acknowledged(write, &[1]);
        for (majority, must) in [(0, false), (1, true), (2, false)] {
            let floors = history.floors(&[majority], 0);
            assert_eq!(read(&mut history, &floors, None).is_err(), must, "majority {majority}");
        }
        let floors = history.floors(EVERY, 0);
        assert!(read(&mut history, &floors, None).is_err(), "a read from all replicas meets every floor");
    }

    #[test]
    fn values_with_a_ttl_are_required_until_they_expire() {
        let mut history = History::default();
        let old = history.begin(&[(PLACE, Put)], 100);
        let write = history.begin(&[(PLACE, PutFor(10))], 100);
        history.acknowledged(write, ALL);
        for (second, shown, fine) in [
            (101, Some(write), true),
            (101, None, false),
            (110, Some(write), true),
            (110, None, true),
            (113, Some(write), false),
            (113, None, true),
            (113, Some(old), false),
        ] {
            let floors = history.floors(ALL, second);
            let checked = history.check(&vec![(PLACE, shown)], &floors, ALL, second);
            assert_eq!(checked.is_ok(), fine, "{shown:?} at {second}: {checked:?}");
        }
    }
}
