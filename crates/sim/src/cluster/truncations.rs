//! The oracle of a table that is truncated repeatedly. Pure.
//!
//! Writes that were acknowledged before a TRUNCATE began are gone once it is acknowledged. Writes
//! that began after it exist. Writes that ran at the same time may exist or not. A TRUNCATE that
//! failed may take effect for a while (`LINGERS`).
//!
//! Checkers: `no_resurrection` for truncated writes; `acked_writes_survive` and `reads_are_merged`
//! for the others.

use std::collections::BTreeMap;

/// Keys of the table.
pub const KEYS: i32 = 4;
/// The number of seconds after which a failed TRUNCATE has no effect any more.
const LINGERS: i64 = 15;

/// A position in the order of the clients' requests and answers.
type Moment = u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// In progress, or its client died.
    Open,
    /// Acknowledged at this moment.
    Done(Moment),
    /// Failed; it may have been executed.
    Failed,
    /// Refused, and never executed.
    Never,
}

#[derive(Clone, Copy, Debug)]
struct Write {
    key: i32,
    begun: Moment,
    end: End,
}

#[derive(Clone, Copy, Debug)]
struct Truncation {
    begun: Moment,
    end: End,
    /// No request that begins from this moment on is affected by this TRUNCATE. `None` while that
    /// is not known.
    over: Option<Moment>,
    since: i64,
}

/// The oracle of the table.
#[derive(Debug, Default)]
pub struct Truncations {
    now: Moment,
    writes: BTreeMap<i32, Write>,
    all: Vec<Truncation>,
    /// TRUNCATEs acknowledged.
    pub done: u64,
}

/// The beginning of a read.
#[derive(Clone, Copy, Debug)]
pub struct Reading(Moment);

impl Truncations {
    /// The next moment. `seconds` is the driver's clock.
    fn tick(&mut self, seconds: i64) -> Moment {
        self.now += 1;
        let now = self.now;
        for one in self.all.iter_mut().filter(|one| one.over.is_none() && one.since + LINGERS < seconds) {
            one.over = Some(now);
        }
        now
    }

    /// Begins a write of a key. Returns its number.
    pub fn write(&mut self, key: i32, seconds: i64) -> i32 {
        let begun = self.tick(seconds);
        let number = self.writes.len() as i32 + 1;
        self.writes.insert(number, Write { key, begun, end: End::Open });
        number
    }

    /// A write at QUORUM is acknowledged.
    pub fn written(&mut self, number: i32, seconds: i64) {
        let now = self.tick(seconds);
        self.end_write(number, End::Done(now));
    }

    /// A write was refused before a replica was asked.
    pub fn not_written(&mut self, number: i32) {
        self.end_write(number, End::Never);
    }

    fn end_write(&mut self, number: i32, end: End) {
        if let Some(write) = self.writes.get_mut(&number) {
            write.end = end;
        }
    }

    /// Begins a TRUNCATE. Returns its number.
    pub fn begin(&mut self, seconds: i64) -> usize {
        let begun = self.tick(seconds);
        self.all.push(Truncation { begun, end: End::Open, over: None, since: seconds });
        self.all.len() - 1
    }

    /// The TRUNCATE was acknowledged.
    pub fn acknowledged(&mut self, number: usize, seconds: i64) {
        let now = self.tick(seconds);
        let own = &mut self.all[number];
        (own.end, own.over) = (End::Done(now), Some(now));
        self.done += 1;
    }

    /// The TRUNCATE was refused before anything was executed.
    pub fn refused(&mut self, number: usize) {
        let own = &mut self.all[number];
        (own.end, own.over) = (End::Never, Some(0));
    }

    /// The TRUNCATE failed.
    pub fn failed(&mut self, number: usize, seconds: i64) {
        let own = &mut self.all[number];
        (own.end, own.since) = (End::Failed, seconds);
    }

    /// A read at QUORUM begins.
    pub fn read(&mut self, seconds: i64) -> Reading {
        Reading(self.tick(seconds))
    }

    /// Checks the value that a read has shown for a key.
    pub fn check(&self, reading: Reading, key: i32, shown: Option<i32>) -> Result<(), String> {
        let own = self.writes.iter().filter(|(_, write)| write.key == key);
        let spared = |write: &&Write| {
            let beside = self.all.iter().any(|one| one.over.is_none_or(|over| over > write.begun));
            !beside && matches!(write.end, End::Done(at) if at < reading.0)
        };
        let floor = own.filter(|(_, write)| spared(write)).map(|(number, _)| *number).max().unwrap_or(0);
        let Some(number) = shown else {
            return match floor {
                0 => Ok(()),
                _ => {
                    Err(format!("acked_writes_survive is broken: key {key} shows nothing, and a majority has {floor}"))
                }
            };
        };
        let Some(write) = self.writes.get(&number).filter(|write| write.key == key && write.end != End::Never) else {
            return Err(format!("no_resurrection is broken: key {key} shows {number}, which was never written"));
        };
        let erased = self.all.iter().any(|one| {
            matches!((write.end, one.end), (End::Done(written), End::Done(gone)) if written < one.begun && gone < reading.0)
        });
        if erased {
            return Err(format!("no_resurrection is broken: key {key} shows {number}, which was truncated"));
        }
        if number < floor {
            return Err(format!("reads_are_merged is broken: key {key} shows {number}, and a majority has {floor}"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_writes_must_be_absent_and_later_ones_present() {
        let mut oracle = Truncations::default();
        let old = oracle.write(0, 0);
        oracle.written(old, 0);
        let truncation = oracle.begin(0);
        let beside = oracle.write(0, 0);
        oracle.written(beside, 0);
        let reading = oracle.read(0);
        for shown in [None, Some(old), Some(beside)] {
            assert_eq!(oracle.check(reading, 0, shown), Ok(()), "it is not over: {shown:?}");
        }
        oracle.acknowledged(truncation, 0);
        assert_eq!(oracle.check(reading, 0, Some(old)), Ok(()), "that one began before");
        let reading = oracle.read(0);
        let back = oracle.check(reading, 0, Some(old)).unwrap_err();
        assert!(back.contains("which was truncated"), "{back}");
        assert_eq!((oracle.check(reading, 0, None), oracle.check(reading, 0, Some(beside))), (Ok(()), Ok(())));
        let new = oracle.write(0, 0);
        oracle.written(new, 0);
        let reading = oracle.read(0);
        assert_eq!(oracle.check(reading, 0, Some(new)), Ok(()));
        assert!(oracle.check(reading, 0, None).is_err() && oracle.check(reading, 0, Some(beside)).is_err());
    }

    #[test]
    fn one_that_failed_may_have_an_effect_for_a_while() {
        let mut oracle = Truncations::default();
        let failed = oracle.begin(0);
        oracle.failed(failed, 1);
        let write = oracle.write(1, 2);
        oracle.written(write, 2);
        let reading = oracle.read(3);
        assert_eq!((oracle.check(reading, 1, None), oracle.check(reading, 1, Some(write))), (Ok(()), Ok(())));
        let later = oracle.write(1, 1 + LINGERS + 1);
        oracle.written(later, 1 + LINGERS + 1);
        let reading = oracle.read(1 + LINGERS + 1);
        assert!(oracle.check(reading, 1, None).is_err() && oracle.check(reading, 1, Some(write)).is_err());
        assert_eq!(oracle.check(reading, 1, Some(later)), Ok(()));
        let never = oracle.begin(29);
        oracle.refused(never);
        let reading = oracle.read(30);
        assert!(oracle.check(reading, 1, None).is_err(), "it was never done");
        let refused = oracle.write(1, 30);
        oracle.not_written(refused);
        let reading = oracle.read(30);
        assert!(oracle.check(reading, 1, Some(refused)).is_err() && oracle.check(reading, 1, Some(99)).is_err());
    }
}
