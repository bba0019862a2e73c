//! What a table shows that is emptied now and then, as its clients were told. Pure.
//!
//! What was acknowledged before a TRUNCATE began is gone once that is acknowledged; what was begun after it is there. What runs beside one may
//! be there or not, and a TRUNCATE that failed runs on for a while, for all that its client knows.
//!
//! Checkers: `no_resurrection`, of what was truncated; `acked_writes_survive` and `reads_are_merged`, of what was not.

use std::collections::BTreeMap;

/// Keys of the table.
pub const KEYS: i32 = 4;
/// A TRUNCATE that failed has no effect any more after this many seconds.
const LINGERS: i64 = 15;

/// A place in the order of what clients did and were told.
type Moment = u64;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// It runs, or died with its client.
    Open,
    /// Acknowledged.
    Done(Moment),
    /// It failed, and may have been done.
    Failed,
    /// It was refused: it was not done and never will be.
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
    /// If it has not been acknowledged: nothing that begins from this moment on meets it.
    over: Option<Moment>,
    since: i64,
}

/// The book of the table.
#[derive(Debug, Default)]
pub struct Truncations {
    now: Moment,
    writes: BTreeMap<i32, Write>,
    all: Vec<Truncation>,
    /// TRUNCATEs acknowledged.
    pub done: u64,
}

/// A read, when it began.
#[derive(Clone, Copy, Debug)]
pub struct Reading(Moment);

impl Truncations {
    /// The next moment; `seconds`: what time it is.
    fn tick(&mut self, seconds: i64) -> Moment {
        self.now += 1;
        let now = self.now;
        for one in self.all.iter_mut().filter(|one| one.over.is_none() && one.since + LINGERS < seconds) {
            one.over = Some(now);
        }
        now
    }

    /// A write of a key begins: gives its number.
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

    /// A write was refused before anybody was asked.
    pub fn not_written(&mut self, number: i32) {
        self.end_write(number, End::Never);
    }

    fn end_write(&mut self, number: i32, end: End) {
        if let Some(write) = self.writes.get_mut(&number) {
            write.end = end;
        }
    }

    /// A TRUNCATE begins: gives its number.
    pub fn begin(&mut self, seconds: i64) -> usize {
        let begun = self.tick(seconds);
        self.all.push(Truncation { begun, end: End::Open, over: None, since: seconds });
        self.all.len() - 1
    }

    /// It was acknowledged.
    pub fn acknowledged(&mut self, number: usize, seconds: i64) {
        let now = self.tick(seconds);
        let own = &mut self.all[number];
        (own.end, own.over) = (End::Done(now), Some(now));
        self.done += 1;
    }

    /// It was refused before anything was done.
    pub fn refused(&mut self, number: usize) {
        let own = &mut self.all[number];
        (own.end, own.over) = (End::Never, Some(0));
    }

    /// It failed.
    pub fn failed(&mut self, number: usize, seconds: i64) {
        let own = &mut self.all[number];
        (own.end, own.since) = (End::Failed, seconds);
    }

    /// A read at QUORUM begins.
    pub fn read(&mut self, seconds: i64) -> Reading {
        Reading(self.tick(seconds))
    }

    /// What a read has shown of a key.
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
            return Err(format!("no_resurrection is broken: key {key} shows {number}, which nobody wrote"));
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
    fn what_was_there_before_is_gone_and_what_came_after_is_there() {
        let mut book = Truncations::default();
        let old = book.write(0, 0);
        book.written(old, 0);
        let truncation = book.begin(0);
        let beside = book.write(0, 0);
        book.written(beside, 0);
        let reading = book.read(0);
        for shown in [None, Some(old), Some(beside)] {
            assert_eq!(book.check(reading, 0, shown), Ok(()), "it is not over: {shown:?}");
        }
        book.acknowledged(truncation, 0);
        assert_eq!(book.check(reading, 0, Some(old)), Ok(()), "that one began before");
        let reading = book.read(0);
        let back = book.check(reading, 0, Some(old)).unwrap_err();
        assert!(back.contains("which was truncated"), "{back}");
        assert_eq!((book.check(reading, 0, None), book.check(reading, 0, Some(beside))), (Ok(()), Ok(())));
        let new = book.write(0, 0);
        book.written(new, 0);
        let reading = book.read(0);
        assert_eq!(book.check(reading, 0, Some(new)), Ok(()));
        assert!(book.check(reading, 0, None).is_err() && book.check(reading, 0, Some(beside)).is_err());
    }

    #[test]
    fn one_that_failed_may_have_an_effect_for_a_while() {
        let mut book = Truncations::default();
        let failed = book.begin(0);
        book.failed(failed, 1);
        let write = book.write(1, 2);
        book.written(write, 2);
        let reading = book.read(3);
        assert_eq!((book.check(reading, 1, None), book.check(reading, 1, Some(write))), (Ok(()), Ok(())));
        let later = book.write(1, 1 + LINGERS + 1);
        book.written(later, 1 + LINGERS + 1);
        let reading = book.read(1 + LINGERS + 1);
        assert!(book.check(reading, 1, None).is_err() && book.check(reading, 1, Some(write)).is_err());
        assert_eq!(book.check(reading, 1, Some(later)), Ok(()));
        let never = book.begin(29);
        book.refused(never);
        let reading = book.read(30);
        assert!(book.check(reading, 1, None).is_err(), "it was never done");
        let refused = book.write(1, 30);
        book.not_written(refused);
        let reading = book.read(30);
        assert!(book.check(reading, 1, Some(refused)).is_err() && book.check(reading, 1, Some(99)).is_err());
    }
}
